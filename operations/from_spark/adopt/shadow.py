"""A stage beside the live query that it is to replace: each of the query's batches, run again by the program.

The query's versions are made in a store of this process, as an adoption makes them; each batch is then replayed over
the version before it, from the same offsets, and compared. So a difference is that of its batch, and of no earlier one.
"""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ....errors import Refused
from ....pipeline.kafka.protocol import Kafka
from ....snapshot.diff.key_changes import KeyChanges
from ....state.kinds.due import window_of
from ....store.objects.local import LocalStore
from ....store.read.cache import SstCache
from ....store.sst.types import arrow_schema
from ....store.versions import apps
from ....store.versions.manifest import Manifest
from ...debugging.replay.compare import compare
from ...debugging.replay.program import LoadedProgram, open_program
from ...debugging.replay.stage_replay import StageReplay
from .adopting import Adopting
from .adoption import AdoptedBatch, Adoption


@dataclass(frozen=True, slots=True)
class ShadowBatch:
    """A batch of the query, and of the stage over the same records."""

    batch: int
    time_ms: int
    """When the query committed it."""
    records: int
    """How many the stage read for it."""
    keys: int
    """How many the query's batch changed."""
    different: KeyChanges | None
    """The keys whose rows differ: the query's (`before`), and the stage's (`after`). None where all are equal."""


@dataclass(slots=True)
class Shadow:
    """Follows the query. Raises, from all that it does, as an adoption and a replay."""

    adoption: Adoption
    program: LoadedProgram
    """It replays the query's versions."""
    equal: int = field(default=0, init=False)
    """How many batches in a row were equal, up to the last one."""
    equal_ms: int = field(default=0, init=False)
    """From the commit of the batch before the first of these to that of the last."""
    _head: Manifest | None = field(default=None, init=False)
    _last_ms: int = field(default=0, init=False)

    def round(self) -> Iterator[ShadowBatch]:
        """The batches that are there and were not compared yet."""
        committed = self.adoption.checkpoint.committed()
        steps: list[AdoptedBatch] = []
        self.adoption.on_step = steps.append
        for last in range(self._following, committed[-1] + 1):
            steps.clear()
            self.adoption.batches = range(self.adoption.batches[0], last + 1)
            self._head = self.adoption.advance(self._head)
            for step in steps:
                if step.manifest.traits.reads_records:
                    yield self._compared(step)
                else:
                    self._last_ms = step.manifest.time_ms

    @property
    def _following(self) -> int:
        adopted = self._head.adopted if self._head is not None else None
        return adopted.next_batch if adopted is not None else self.adoption.batches[0]

    def _compared(self, step: AdoptedBatch) -> ShadowBatch:
        version = step.manifest
        found = compare(StageReplay.of(self.program, version), {})
        different = _without_evicted(found.different, version) if found.different else None
        self.equal = 0 if different else self.equal + 1
        self.equal_ms = self.equal_ms + version.time_ms - self._last_ms if self.equal else 0
        self._last_ms = version.time_ms
        records = sum(count for _, count in found.read)
        return ShadowBatch(step.batch, version.time_ms, records, step.rows, different or None)


def _without_evicted(different: KeyChanges, version: Manifest) -> KeyChanges:
    """Without windows that the query has forgotten, as the watermark has passed them: a stage keeps its rows."""
    window = window_of(arrow_schema(version.table.key)) if version.table is not None else None
    times = version.event_time
    if window is None or times is None or times.watermark_ms is None:
        return different
    ends = pc.struct_field(different.keys[window].combine_chunks(), "end").cast(pa.int64())
    over = np.asarray(pc.fill_null(pc.less_equal(ends, times.watermark_ms * 1_000), False))
    return different.take(np.flatnonzero(~(over & ~different.was)))


@contextmanager
def shadowing(adopting: Adopting, cache: SstCache, kafka: Kafka) -> Iterator[Shadow]:
    """Begin behind the last batch of `adopting`, which has all rows; its store gets nothing."""
    made = adopting.adoption
    if made is None or adopting.plan is None:
        raise Refused("the query has become the stage: there is nothing to compare it with")
    if constant := sorted(made.constant):
        raise Refused(
            f"the query's offsets are none of the topic {constant[0]!r}: its batches cannot be read again, so the "
            "program cannot be compared with it",
            hint="--dry-run says what would become of the state, without --shadow",
        )
    with tempfile.TemporaryDirectory(prefix="slackwater-shadow-", ignore_cleanup_errors=True) as folder:
        store = LocalStore(Path(folder) / "store")
        apps.ensure_app(store, made.info)
        adoption = replace(made, store=store, cache=cache, channels=dict)
        with open_program(adopting.program, store, cache, kafka) as program:
            yield Shadow(adoption, program)
