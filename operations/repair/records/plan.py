"""Plan of a repair: the rows of each stage as if some records had never been read, from the topics downstream.

The changed input of a stage consists of the records in its users' topics, and of changed rows in its channels. A row of
a channel has changed if the sender's version would now send another row, or none.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from graphlib import TopologicalSorter
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from ....errors import NotFound, Refused
from ....pipeline.api.topic import Repartition
from ....snapshot.bisect.verdict import RecordLocation
from ....snapshot.diff.equality import pair_similar_rows
from ....snapshot.diff.key_changes import KeyChanges
from ....snapshot.diff.reading import version_that_consumed, versions_that_read
from ....store.objects.protocol import ObjectStore
from ....store.versions import history, published
from ....store.versions.manifest import Manifest
from ...debugging.replay.batches import OpenBatches, ReplayBatch
from .bounds import KeyLimit
from .changes import BatchChange
from .corrections import corrected_sinks
from .stage_fold import SentRows, StageFold


class Substitute(NamedTuple):
    """Substitute of a record."""

    value: bytes | None
    """Value that replaces the record's value; None to remove the record."""
    since: Mapping[str, int] = {}
    """Version up to which the original record stays in effect, by stage."""


Substitutes = Mapping[RecordLocation, Substitute]
Seeds = Mapping[str, Mapping[int, pa.Table]]
"""Keys that a repair changes, by stage and first version."""


@dataclass(frozen=True, slots=True)
class SinkDifference:
    """Rows of a version for a sink that the repair would withdraw or add."""

    stage: str
    version: int
    sink: str
    withdrawn: pa.Table
    new: pa.Table
    is_published: bool
    is_corrected: bool
    """True if corrections inform the sink's consumers about the new rows."""


@dataclass(frozen=True, slots=True)
class RepairPlan:
    """Rows that a repair changes. `heads` has the versions from which it was computed."""

    app: str
    heads: Mapping[str, Manifest]
    changes: Mapping[str, KeyChanges]
    """Changed rows by stage, senders first."""
    begun: Seeds
    followed: Mapping[str, frozenset[int]]
    """Hashes of all keys that the plan followed, by stage."""
    sinks: tuple[SinkDifference, ...]
    corrected: Mapping[str, tuple[str, ...]]
    """Sinks whose consumers get corrections, by changed stage."""
    in_flight: tuple[tuple[str, str, int], ...]
    """Unread rows of a channel that the repair would change: reader, channel, and the sender's version."""
    read_by: Mapping[RecordLocation, tuple[str, ...]]
    """Versions that read each record, as `stage@vN`."""
    versions: int
    """Number of versions that were replayed."""

    @property
    def uncorrected(self) -> tuple[SinkDifference, ...]:
        return tuple(sink for sink in self.sinks if not sink.is_corrected)


@dataclass
class RepairPlanner:
    """Planner of repairs. Batches stay open, so a second plan replays only new batches.

    Args:
        max_keys: Maximum number of keys, in all stages, whose past is changed.
        on_version: Called before each version is replayed.
    """

    batches: OpenBatches
    max_keys: int
    on_version: Callable[[Manifest], None] = lambda _manifest: None
    _changes: dict[str, dict[int, BatchChange]] = field(default_factory=dict)
    _sinks: list[SinkDifference] = field(default_factory=list)
    _in_flight: list[tuple[str, str, int]] = field(default_factory=list)

    def plan(self, heads: Mapping[str, Manifest], substitutes: Substitutes, seeds: Seeds) -> RepairPlan:
        """Plan the rows of all stages without the records. Also follows the keys in `seeds`.

        Raises:
            NotFound: No stage has read one of the records, or the versions that read it were collected.
            Refused: A key's row depends on more than its records, the program is not deterministic, or more than
                `max_keys` keys are affected.
        """
        self._changes, self._sinks, self._in_flight = defaultdict(dict), [], []
        read_by = {record: tuple(self._substitute(heads, record, other)) for record, other in substitutes.items()}
        limit, begun, changes = KeyLimit(self.max_keys), dict[str, Mapping[int, pa.Table]](), dict[str, KeyChanges]()
        followed = dict[str, frozenset[int]]()
        for stage in _senders_first(heads):
            head = heads[stage]
            own = self._changes[stage], seeds.get(stage, {})
            fold = StageFold(self.batches, head, *own, limit, self.on_version)
            fold.run()
            begun[stage], followed[stage] = fold.begun, fold.followed
            if (now := fold.changes_now()) is not None:
                changes[stage] = now
            for (version, output), rows in sorted(fold.sent.items(), key=lambda item: item[0]):
                self._pass_on(heads, head, version, output, rows)
        return RepairPlan(
            self.batches.program.app.name,
            heads,
            changes,
            begun,
            followed,
            tuple(self._sinks),
            {stage: self._corrected(heads[stage]) for stage in changes},
            tuple(dict.fromkeys(self._in_flight)),
            read_by,
            len(self.batches.opened),
        )

    def _corrected(self, head: Manifest) -> tuple[str, ...]:
        return tuple(sink.name for sink in corrected_sinks(self.batches.program.app.stages[head.stage], head))

    def _substitute(self, heads: Mapping[str, Manifest], record: RecordLocation, other: Substitute) -> Iterator[str]:
        """Change the input of the batches that read a record. Yields the versions of these batches."""
        versions = [
            (heads[stage], version)
            for stage, version in readings(self.batches.program.store, heads, record, other.since)
        ]
        if not versions:
            hint = f"`slackwater log {self.batches.program.app.name}` shows the offsets that each version read"
            topics = sorted({at.topic for head in heads.values() for at in head.inputs.values() if not at.upstream})
            raise NotFound(
                f"record that a stage has read{' since the moment of --from' if other.since else ''}",
                str(record),
                found=f"the app's topics: {', '.join(topics)}",
                hint="give an earlier moment, or leave --from out" if other.since else hint,
            )
        for head, version in versions:
            self._change_batch(head, version, record, other.value)
            yield f"{head.stage}@v{version}"

    def _change_batch(self, head: Manifest, version: int, record: RecordLocation, value: bytes | None) -> None:
        batch = self._open(head, version)
        if (number := batch.replay.number_of(record)) is None:
            raise Refused(
                f"{batch!r} rejected {record}, so no row depends on it: there is nothing to repair",
                hint=f"slackwater rejected {head.app}/{head.stage}",
            )
        change = self._changes[head.stage].setdefault(version, BatchChange())
        change.drop(np.array([number]))
        if value is not None:
            name, records, at = batch.replay.find_record(number)
            row = records.rows.slice(at, 1)
            index = row.schema.get_field_index("value")
            change.add(name, row.set_column(index, row.schema.field(index), pa.array([value], row.schema.types[index])))

    def _open(self, head: Manifest, version: int) -> ReplayBatch:
        manifest = history.read(self.batches.program.store, head.app, head.stage, version)
        if (head.stage, version) not in self.batches.opened:
            self.on_version(manifest)
        return self.batches.open(manifest)

    def _pass_on(self, heads: Mapping[str, Manifest], head: Manifest, version: int, name: str, rows: SentRows) -> None:
        output = next(output for output in self.batches.program.app.stages[head.stage].writes if output.name == name)
        store = self.batches.program.store
        if not isinstance(output, Repartition):
            if name not in history.read(store, head.app, head.stage, version).sinks:
                return  # the version is older than the sink, or a clone's sink is silent
            position = published.newest(store, head, name) if name in head.sinks else None
            is_published = position is not None and position.version >= version
            is_corrected = name in self._corrected(head)
            self._sinks.append(SinkDifference(head.stage, version, name, *rows, is_published, is_corrected))
            return
        for reader in heads.values():
            source = reader.inputs.get(name)
            if source is None or source.upstream != head.stage:
                continue
            if source.version < version:
                self._in_flight.append((reader.stage, name, version))
            elif (consumed := version_that_consumed(store, reader, name, version)) is not None:
                self._receive(reader, consumed, name, version, rows)

    def _receive(self, reader: Manifest, version: int, channel: str, sent: int, rows: SentRows) -> None:
        batch = self._open(reader, version)
        withdrawn, new = rows
        change = self._changes[reader.stage].setdefault(version, BatchChange())
        part = next((part for part in batch.parts if (part.name, part.version) == (channel, sent)), None)
        if withdrawn.num_rows:
            received = part.received if part is not None else batch.replay.records[channel].rows.slice(0, 0)
            pairs = pair_similar_rows(withdrawn.select(received.column_names).cast(received.schema), received)[1]
            if part is None or len(pairs) < withdrawn.num_rows:
                raise Refused(
                    f"a replay of the sender gives other rows than {batch!r} read from {channel!r}: the program is "
                    "nondeterministic",
                    hint="slackwater check FILE",
                )
            numbers = part.numbers[pairs]
            change.drop(numbers[numbers < batch.replay.count])
        if new.num_rows:
            schema = batch.replay.schemas[channel]
            change.add(channel, new.select(schema.names).cast(schema))


def readings(
    store: ObjectStore, heads: Mapping[str, Manifest], record: RecordLocation, since: Mapping[str, int]
) -> Iterator[tuple[str, int]]:
    """Yield each stage and version that read a record of a user's topic. After a reset, a stage may have several.

    `since` has versions by stage; only later versions are examined.
    """
    for stage, head in heads.items():
        if any(source.topic == record.topic and not source.upstream for source in head.inputs.values()):
            place = record.topic, record.partition, record.offset
            versions = versions_that_read(store, head, *place, after=since.get(stage, 0))
            yield from ((stage, version) for version in versions)


def _senders_first(heads: Mapping[str, Manifest]) -> tuple[str, ...]:
    senders = {
        stage: {at.upstream for at in head.inputs.values() if at.upstream in heads} for stage, head in heads.items()
    }
    return tuple(TopologicalSorter(senders).static_order())
