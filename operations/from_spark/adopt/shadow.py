"""Comparison of a stage with the live Spark query that it is to replace, batch by batch.

The query's batches become versions in a temporary local store, as in an adoption. The program replays each batch on the
previous version, with the same offsets, and the rows are compared. So an earlier batch never causes a reported
difference.
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
from ....store.sst.schema import arrow_schema
from ....store.versions import apps
from ....store.versions.manifest import Manifest
from ...debugging.replay.compare import compare, keys_with_other_parts
from ...debugging.replay.program import LoadedProgram, open_program
from ...debugging.replay.stage_replay import StageReplay
from .adopting import PreparedAdoption
from .adoption import AdoptedBatch, Adoption


@dataclass(frozen=True, slots=True)
class ShadowBatch:
    """Comparison of one batch of the query with the stage's result for the same records."""

    batch: int
    time_ms: int
    records: int
    keys: int
    different: KeyChanges | None
    """Keys whose rows differ: `before` has the query's rows, `after` the stage's; None if all are equal."""
    parts: pa.Table | None = None
    """Keys whose lists or maps have other elements; None for no key."""


@dataclass(slots=True)
class ShadowRun:
    """Follows a query and compares each batch. All methods raise the errors of an adoption and of a replay."""

    adoption: Adoption
    program: LoadedProgram
    equal_batches: int = field(default=0, init=False)
    equal_ms: int = field(default=0, init=False)
    _head: Manifest | None = field(default=None, init=False)
    _last_ms: int = field(default=0, init=False)

    def compare_new_batches(self) -> Iterator[ShadowBatch]:
        committed = self.adoption.checkpoint.committed_batches()
        steps: list[AdoptedBatch] = []
        self.adoption.on_step = steps.append
        for last in range(self._next_batch, committed[-1] + 1):
            steps.clear()
            self.adoption.batches = range(self.adoption.batches[0], last + 1)
            self._head = self.adoption.advance(self._head)
            for step in steps:
                if step.manifest.traits.reads_records:
                    yield self._compare_batch(step)
                else:
                    self._last_ms = step.manifest.time_ms

    @property
    def _next_batch(self) -> int:
        adopted = self._head.adopted if self._head is not None else None
        return adopted.next_batch if adopted is not None else self.adoption.batches[0]

    def _compare_batch(self, step: AdoptedBatch) -> ShadowBatch:
        version = step.manifest
        replay = StageReplay.for_version(self.program, version)
        comparison = compare(replay, {})
        different = _without_evicted(comparison.different, version) if comparison.different else None
        # The adoption writes only parts that differ from the stored parts, so the written rows are not compared.
        parts = keys_with_other_parts(replay, comparison.keys.keys) if comparison.keys else None
        parts = parts if parts is not None and parts.num_rows else None
        self.equal_batches = 0 if different or parts is not None else self.equal_batches + 1
        self.equal_ms = self.equal_ms + version.time_ms - self._last_ms if self.equal_batches else 0
        self._last_ms = version.time_ms
        records = sum(count for _, count in comparison.read)
        return ShadowBatch(step.batch, version.time_ms, records, step.rows, different or None, parts)


def _without_evicted(different: KeyChanges, version: Manifest) -> KeyChanges:
    window = window_of(arrow_schema(version.table.key)) if version.table is not None else None
    times = version.event_time
    if window is None or times is None or times.watermark_ms is None:
        return different
    ends = pc.struct_field(different.keys[window].combine_chunks(), "end").cast(pa.int64())
    over = np.asarray(pc.fill_null(pc.less_equal(ends, times.watermark_ms * 1_000), False))
    return different.take(np.flatnonzero(~(over & ~different.had_row)))


@contextmanager
def open_shadow(adopting: PreparedAdoption, cache: SstCache, kafka: Kafka) -> Iterator[ShadowRun]:
    """Open a comparison of the batches that follow the last batch of `adopting`. Does not change the app's store."""
    planned = adopting.adoption
    if planned is None or adopting.plan is None:
        raise Refused("the query is already adopted as this stage: --shadow is for a query before its adoption")
    if constant := sorted(planned.constant_offsets):
        raise Refused(
            f"the query has no offsets of the topic {constant[0]!r}, so its batches cannot be replayed and compared",
            hint="use --dry-run without --shadow to see how the state would be mapped",
        )
    with tempfile.TemporaryDirectory(prefix="slackwater-shadow-", ignore_cleanup_errors=True) as folder:
        store = LocalStore(Path(folder) / "store")
        apps.ensure_app(store, planned.info)
        adoption = replace(planned, store=store, cache=cache, create_channels=dict)
        with open_program(adopting.program, store, cache, kafka) as program:
            yield ShadowRun(adoption, program)
