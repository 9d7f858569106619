"""Search for everything that a record reached: rows, later rows of their keys, rows sent downstream and to sinks.

A record reaches a key's row if the function makes a row of the key from the record. The record also reaches all later
rows of the key until the row is removed. That holds even if the state ignores the record, as a maximum ignores smaller
values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ....errors import NotFound
from ....pipeline.api.topic import Repartition
from ....pipeline.batch.rerun import RecordNumbers
from ....pipeline.reject.table import RejectedTable
from ....pipeline.spark.user_errors import reason_of
from ....snapshot.bisect.explained import NotTaken, ReachedOutput, ReachedRow
from ....snapshot.bisect.verdict import RecordLocation
from ....snapshot.diff.equality import find_row_numbers, flag_unmatched_rows, pair_similar_rows
from ....snapshot.diff.key_history import RowChange
from ....snapshot.diff.reading import version_that_consumed, versions_that_read
from ....state.failing import RECORD
from ....state.kinds.join import BoundJoin
from ....state.multi_input import INPUT_COLUMN, tagged_name
from ....store.sst.arrow_types import python_rows
from ....store.sst.hashing import hash_keys, normalise_keys
from ....store.sst.schema import HASH, arrow_schema
from ....store.versions import history, published
from ....store.versions.manifest import Manifest
from ..replay.batches import OpenBatches, ReplayBatch
from ..replay.program import LoadedProgram
from ..replay.stage_replay import StageReplay, filter_by_keys
from .walk import difference_of_key, hash_range, writes_of_key


@dataclass
class ImpactWalk:
    """Search downstream over the versions that a record reached.

    Args:
        heads: Newest version of each stage.
        max_batches: Maximum number of batches to replay; 0 for no limit.
        on_version: Called before each version is replayed.
        beyond: Advice for the user on how to replay more than `max_batches`.
    """

    program: LoadedProgram
    heads: Mapping[str, Manifest]
    max_batches: int = 0
    on_version: Callable[[Manifest], None] = lambda _manifest: None
    beyond: str = "--limit 0 replays all"
    readers: list[str] = field(default_factory=list)
    not_taken: list[NotTaken] = field(default_factory=list)
    rows: dict[tuple[str, int, int | None], ReachedRow] = field(default_factory=dict)
    outputs: dict[tuple[str, int, str], ReachedOutput] = field(default_factory=dict)
    unknown: dict[str, None] = field(default_factory=dict)
    batches: OpenBatches = field(init=False)
    _reached: dict[ReplayBatch, RecordNumbers] = field(default_factory=dict)
    _emitted: set[tuple[str, int, int]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.batches = OpenBatches(self.program, self.max_batches)

    def run(self, record: RecordLocation) -> None:
        """Search from a record of a user's topic or of a repartition topic."""
        for head in self.heads.values():
            if all(source.topic != record.topic for source in head.inputs.values()):
                continue
            with self._noting(f"which version of {head.stage} read it"):
                place = record.topic, record.partition, record.offset
                for version in versions_that_read(self.program.store, head, *place):
                    self.readers.append(f"{head.stage}@v{version}")
                    self._start(head.stage, version, record)

    def reached_in(self, stage: str) -> Iterator[tuple[ReplayBatch, RecordNumbers]]:
        """Yield the batches of a stage that the search has reached, each with the numbers of its reached records."""
        for batch, numbers in self._reached.items():
            if batch.replay.after.stage == stage:
                yield batch, numbers

    def _start(self, stage: str, version: int, record: RecordLocation) -> None:
        if (batch := self._open(stage, version)) is None:
            return
        with self._noting(f"what {batch!r} made of it"):
            if (number := batch.replay.number_of(record)) is not None:
                self._reach(batch, np.array([number]))
                return
            rejected, retried = self._rejection(batch, record)
            if rejected is None:
                raise NotFound("record of the batch", str(record))
            self.not_taken.append(rejected)
            if retried:
                again = self._open(stage, retried)
                if again is not None and (number := again.replay.number_of(record)) is not None:
                    self.readers.append(f"{stage}@v{retried}")
                    self._reach(again, np.array([number]))

    def _rejection(self, batch: ReplayBatch, record: RecordLocation) -> tuple[NotTaken | None, int]:
        """Return a batch's rejection of a record, or None, and the version that retried the record; 0 for none."""
        program, after = self.program, batch.replay.after
        table = RejectedTable(program.store, program.cache, after.app, after.stage)
        place = record.topic, record.partition, record.offset, record.row or 0
        for row in table.read_rows(self.heads[after.stage]).to_pylist():
            if (row["topic"], row["partition"], row["offset"], row["row"]) == place:
                detail = f"{row['error']}: {row['message']}"
                return NotTaken(after.stage, after.version, "rejected", detail), int(row["retried"] or 0)
        return None, 0

    @contextmanager
    def _noting(self, what: str) -> Iterator[None]:
        """Catch any error in the block, and record its message as the reason why `what` is unknown."""
        try:
            yield
        except Exception as error:
            self.unknown[f"{what}: {reason_of(error)}"] = None

    def _open(self, stage: str, version: int) -> ReplayBatch | None:
        place = stage, version
        if self.batches.is_full(*place):
            self.unknown[f"what it reached after {self.max_batches:,} batches: {self.beyond}"] = None
            return None
        with self._noting(f"what {stage}@v{version} made of it"):
            manifest = history.read(self.program.store, self.program.app.name, stage, version)
            if place not in self.batches.opened:
                self.on_version(manifest)
            batch = self.batches.open(manifest)
            _ = batch.replay.rows()
            return batch
        return None

    def _reach(self, batch: ReplayBatch, numbers: RecordNumbers) -> None:
        known = self._reached.get(batch, numbers[:0])
        new = np.setdiff1d(numbers, known)
        if not len(new):
            return
        self._reached[batch] = np.union1d(known, new)
        replay, stage = batch.replay, batch.replay.stage
        if replay.shape.bound is None:
            sent = {output.name: rows_of_records(replay.for_output(output.name), new) for output in stage.writes}
            if not any(rows.num_rows for rows in sent.values()):
                self._note_not_taken(replay.after, "filtered", "the function made no row of it")
            for name, rows in sent.items():
                self._send(replay.after, name, rows)
            return
        rows = rows_of_records(replay, new)
        kept, late = replay.step.split_late(rows)
        if not rows.num_rows:
            self._note_not_taken(replay.after, "filtered", "the function made no row of it")
        if late.num_rows:
            self._note_not_taken(replay.after, "late", "its row was late")
            if stage.late_output is not None:
                self._send(replay.after, stage.late_output.name, replay.late_rows(rows))
        names = arrow_schema(replay.table.key).names
        keys = normalise_keys(kept.select(names).cast(arrow_schema(replay.table.key)), names)
        for at in np.unique(kept[HASH].to_numpy(), return_index=True)[1].tolist():
            key = keys.slice(at, 1)
            if (reason := difference_of_key(replay, key)) is not None:
                self.unknown[reason] = None
            self._reach_key(replay.after, key, _sides(replay, filter_by_keys(kept, key)))

    def _note_not_taken(self, after: Manifest, kind: Literal["late", "filtered"], detail: str) -> None:
        self.not_taken.append(NotTaken(after.stage, after.version, kind, detail))

    def _reach_key(self, first: Manifest, key: pa.Table, sides: list[pa.Table]) -> None:
        """Follow a key's row from the version `first`, which the record reached, up to the row's removal."""
        writes = self._writes(first, key)
        until = next((change.version for change in writes if change.after is None), None)
        place = first.stage, int(hash_keys(key, key.column_names)[0]), until
        known = self.rows.get(place)
        if known is not None and known.version <= first.version and not sides:
            return
        is_written = bool(writes) and writes[0].version == first.version
        if is_written and (known is None or known.version > first.version):
            row = writes[0].before, writes[0].after
            self.rows[place] = ReachedRow(first.stage, python_rows(key)[0], first.version, until, *row)
        if outputs := self.program.app.stages[first.stage].emits_to:
            # A batch that does not change the row may send rows nevertheless.
            later = [change.version for change in writes if change.is_by_batch and change.version > first.version]
            for version in (first.version, *(later if is_written else ())):
                self._emit(first.stage, version, [output.name for output in outputs], key, sides)

    def _emit(self, stage: str, version: int, outputs: Sequence[str], key: pa.Table, sides: list[pa.Table]) -> None:
        place = stage, version, int(hash_keys(key, key.column_names)[0])
        if (place in self._emitted and not sides) or (batch := self._open(stage, version)) is None:
            return
        self._emitted.add(place)
        for name in outputs:
            with self._noting(f"what {batch!r} sent for it"):
                self._send(batch.replay.after, name, rows_sent_for(batch.for_output(name), key, sides))

    def _writes(self, first: Manifest, key: pa.Table) -> list[RowChange]:
        """Return the writes of a key from the version `first` up to the removal of its row, oldest first."""
        newest_first = writes_of_key(self.program, self.heads[first.stage], key)
        writes = [*takewhile(lambda change: change.version >= first.version, newest_first)][::-1]
        removed = next((at for at, change in enumerate(writes) if change.after is None), len(writes))
        return writes[: removed + 1]

    def _send(self, after: Manifest, name: str, rows: pa.Table) -> None:
        if not rows.num_rows:
            return
        output = next(output for output in self.program.app.stages[after.stage].writes if output.name == name)
        place = after.stage, after.version, name
        known = self.outputs.get(place)
        told = tuple(python_rows(rows.select([column for column in rows.column_names if column not in (HASH, RECORD)])))
        if isinstance(output, Repartition):
            readers = tuple(self._read_downstream(after, name, rows))
            reached = ReachedOutput(*place, "channel", told, readers)
        else:
            position = (
                published.newest(self.program.store, self.heads[after.stage], name) if name in after.sinks else None
            )
            is_published = position is not None and position.version >= after.version
            kind = after.sinks[name].kind if name in after.sinks else output.kind
            reached = ReachedOutput(*place, kind, told, (), is_published)
        if known is not None:
            reached = replace(reached, rows=(*known.rows, *told), readers=known.readers or reached.readers)
        self.outputs[place] = reached

    def _read_downstream(self, after: Manifest, channel: str, rows: pa.Table) -> Iterator[str]:
        for head in self.heads.values():
            source = head.inputs.get(channel)
            if source is None or source.upstream != after.stage:
                continue
            with self._noting(f"which version of {head.stage} read what {after.stage}@v{after.version} sent"):
                version = version_that_consumed(self.program.store, head, channel, after.version)
                if version is None:
                    continue
                yield f"{head.stage}@v{version}"
                if (batch := self._open(head.stage, version)) is not None:
                    self._receive(batch, channel, after.version, rows)

    def _receive(self, batch: ReplayBatch, channel: str, sent: int, rows: pa.Table) -> None:
        for part in batch.parts:
            if (part.name, part.version) == (channel, sent):
                received = part.received
                pairs = pair_similar_rows(rows.select(received.column_names).cast(received.schema), received)[1]
                numbers = part.numbers[pairs]
                if len(pairs) < rows.num_rows:
                    self.unknown[f"a replay gives other rows than {batch!r} read from {channel}"] = None
                self._reach(batch, numbers[numbers < batch.replay.count])
                for number in numbers[numbers >= batch.replay.count].tolist():
                    rejected, _ = self._rejection(batch, batch.address(number))
                    if rejected is not None:
                        self.not_taken.append(rejected)


def rows_of_records(replay: StageReplay, numbers: RecordNumbers) -> pa.Table:
    """Return the rows that a stage's function makes from some records of a batch.

    If the function mixes records, returns the rows that are missing when the function runs on all other records.
    """
    every = replay.rows()
    if replay.knows_records:
        return every.filter(pa.array(np.isin(replay.record_of(every), numbers)))
    others = np.setdiff1d(np.arange(replay.count), numbers)
    without = replay.rows(others) if len(others) else every.slice(0, 0)
    return every.filter(pa.array(flag_unmatched_rows(every, without.select(every.column_names))[0]))


def rows_sent_for(replay: StageReplay, key: pa.Table, sides: list[pa.Table]) -> pa.Table:
    """Return the rows that a stage emitted for a key.

    If `sides` is not empty, only joined rows with a row of `sides`.
    """
    emitted = replay.sent_rows(filter_by_keys(replay.rows(), key), hash_range(key))
    if not sides:
        return emitted
    places = [find_row_numbers(side, emitted) for side in sides]
    return emitted.take(pa.array(np.unique(np.concatenate(places))))


def _sides(replay: StageReplay, rows: pa.Table) -> list[pa.Table]:
    """Return the rows of each side of a join, with the column names of the joined rows; empty for other states."""
    bound = replay.shape.bound
    if not isinstance(bound, BoundJoin):
        return []
    sides = []
    for side in (bound.left, bound.right):
        own = rows.filter(pc.equal(rows[INPUT_COLUMN], side.part))
        names = {tagged_name(side.part, name): name for name in side.columns.names}
        if own.num_rows:
            sides.append(own.select([*bound.key, *names]).rename_columns([*bound.key, *names.values()]))
    return sides
