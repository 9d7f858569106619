"""Evaluation of one bad batch with other records, with no records, or with another program.

The predicate is evaluated at a hypothetical moment. It is the moment that ends with the bad commit, except that the
stage's tables are the result of the replayed batch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Self

import numpy as np
import pyarrow as pa

from ....errors import NotFound, SlackwaterError
from ....pipeline.batch.rerun import RecordNumbers
from ....snapshot.bisect.flips import ROW_NUMBER, matching_row_numbers, parse_row_local
from ....snapshot.bisect.predicate import AnswerNeeded, Context, Predicate, Skip
from ....snapshot.bisect.verdict import MAX_ROWS, RecordlessBatch, RecordLocation, UnprovedRecord
from ....snapshot.cut.graph import Cut
from ....snapshot.diff.candidates import Ancestry, changed_keys
from ....snapshot.diff.key_changes import KeyChanges
from ....snapshot.diff.stored_rows import TableSide
from ....state.failing import RECORD
from ....state.kinds.kind import Groups
from ....state.step import EVERY_HASH, PartLookUps
from ....store.sst import ttl
from ....store.sst.hashing import normalise_keys
from ....store.sst.schema import DUE, EXPIRES, HASH, SEQ, arrow_schema
from ....store.versions.manifest import Manifest
from ....store.versions.side_tables import as_main_table, table_name, tables_of
from .batches import InputPart, OpenBatches, ReplayBatch, SubsetReplay
from .program import LoadedProgram
from .stage_replay import StageReplay, filter_by_keys

ChosenRecords = Mapping[InputPart, RecordNumbers]
PartRecord = tuple[InputPart, int]
_TIME = pa.timestamp("ms", "UTC")


@dataclass
class BadBatch:
    """The batch whose commit turned a moment bad."""

    batches: OpenBatches
    predicate: Predicate
    bad: Cut
    root: ReplayBatch
    changed: KeyChanges | None = None
    replays: int = 0

    @classmethod
    def open(
        cls, program: LoadedProgram, predicate: Predicate, bad: Cut, stage: str, changed: KeyChanges | None = None
    ) -> Self:
        """Open the batch that committed the version of `stage` in the moment `bad`.

        Raises the errors of `StageReplay.for_version`.
        """
        batches = OpenBatches(program)
        return cls(batches, predicate, bad, batches.open(bad.stages[stage]), changed)

    @property
    def all_records(self) -> ChosenRecords:
        return all_records_of(self.root.parts)

    def cut_with_records(self, chosen: ChosenRecords, only: RecordNumbers | None = None) -> Cut:
        return self.cut_with_manifest(SubsetReplay(self.batches, chosen, self.root, only).manifest(self.root))

    def cut_with_manifest(self, manifest: Manifest) -> Cut:
        return dataclasses.replace(self.bad, stages={**self.bad.stages, self.root.replay.after.stage: manifest})

    def is_bad_at(self, cut: Cut) -> bool:
        """Return True if the predicate evaluates a moment as bad.

        Raises the errors of `Predicate.rows`, and `UnprovedRecord` if the predicate skips the moment or asks a person.
        """
        program = self.batches.program
        try:
            return bool(self.predicate.rows(Context(program.store, program.cache, cut), 1).num_rows)
        except Skip as error:
            raise UnprovedRecord(f"the predicate cannot judge the result of a replay: {error}") from error
        except AnswerNeeded:
            raise UnprovedRecord("moments were judged by hand, and a replay cannot ask a person") from None

    def is_bad(self, chosen: ChosenRecords, only: RecordNumbers | None = None) -> bool:
        self.replays += 1
        return self.is_bad_at(self.cut_with_records(chosen, only))

    def find_effects_without_records(self) -> RecordlessBatch | None:
        """Return the rows that expire or fall due in the batch without any record, if these rows make the moment bad.

        None if the moment is good without the records.
        """
        if not self.is_bad({}):
            return None
        before = self.cut_with_manifest(self.root.replay.before)
        keys = self.changed_keys_between(before, self.cut_with_records({}))
        return dataclasses.replace(effects_without_records(self.root), keys=keys)

    def find_record(self, address: RecordLocation) -> PartRecord:
        """Return a source record of the bad batch by its topic, partition and offset.

        Raises `NotFound`, and the errors of replays.
        """
        for part in self.source_records():
            if part.batch.replay.records[part.name].topic == address.topic:
                matches = part.batch.column("_partition")[part.numbers] == address.partition
                matches &= part.batch.column("_offset")[part.numbers] == address.offset
                if matches.any():
                    return part, int(part.numbers[matches][0])
        raise NotFound("record of the bad batch", str(address))

    def source_records(self) -> ChosenRecords:
        """Return the records of users' topics from which the bad batch was made; upstream batches are replayed."""
        waiting, records = [*self.root.parts], dict[InputPart, RecordNumbers]()
        while waiting:
            part = waiting.pop()
            if part.upstream:
                waiting += [
                    upstream_part
                    for upstream_part in self.batches.replay_sender(part).parts
                    if upstream_part not in records
                ]
            else:
                records[part] = part.numbers
        return records

    def changed_keys_between(self, earlier: Cut, later: Cut) -> KeyChanges | None:
        program, stage = self.batches.program, self.root.replay.after.stage
        before, after = (as_main_table(cut.stages[stage], self.table) for cut in (earlier, later))
        rows = pa.table({})
        for cut in (later, earlier):
            if self.predicate.sql and not rows.num_rows:
                rows = self.predicate.rows(Context(program.store, program.cache, cut), MAX_ROWS)
        ssts = as_main_table(self.root.replay.before, self.table).ssts
        shared = Ancestry(max((sst.seq_max for sst in ssts), default=0))
        keys = changed_keys(program.store, program.cache, before, after, rows, shared)
        return keys.changed() if keys is not None else None

    @property
    def table(self) -> str:
        """Table that the predicate reads: a side table if the predicate names only that table, else the stage's own."""
        after = self.root.replay.after
        return next(filter(self.predicate.names_table, (after.stage, *tables_of(after))), after.stage)

    @property
    def reads_own_table(self) -> bool:
        return self.table == self.root.replay.after.stage

    @cached_property
    def relevant_records(self) -> RecordNumbers | None:
        """Numbers of the bad batch's records that may have caused the change; None if not known."""
        replay = self.root.replay
        numbers_parts = [np.empty(0, np.int64), *(numbers[numbers >= 0] for _, numbers in self.root.side_rows.values())]
        if not self.reads_own_table:
            return np.unique(np.concatenate(numbers_parts))
        if replay.shape.bound is None or not replay.knows_records:
            return None
        function_rows = replay.rows()
        if self.changed is not None and self.changed.from_predicate:
            function_rows, numbers_parts = filter_by_keys(function_rows, self.changed.changed().keys), numbers_parts[:1]
        return np.unique(np.concatenate([replay.record_of(function_rows), *numbers_parts]))

    def candidates_of(self, part: InputPart) -> RecordNumbers:
        """Return the numbers of a part's records that may have caused the change; all records if unknown."""
        some = self.records_leading_to(part, self.relevant_records)
        return part.numbers if some is None else some

    @cached_property
    def records_bad_alone(self) -> RecordNumbers | None:
        """Numbers of the bad batch's records that make the predicate true without any other record.

        None if only replays can decide that.
        """
        return (
            bad_alone(self.root.replay, self.predicate)
            if self.reads_own_table
            else find_bad_alone_in_side_table(self.root, self.predicate)
        )

    def records_leading_to(self, part: InputPart, targets: RecordNumbers | None) -> RecordNumbers | None:
        if targets is None:
            return None
        if part.batch is self.root:
            return np.intersect1d(part.numbers, targets)
        records_found = [np.empty(0, np.int64)]
        for below in (batch_part for batch in self.batches.opened.values() for batch_part in batch.parts):
            if below.sender is not part.batch:
                continue
            reached = self.records_leading_to(below, targets)
            if below.trace is None or reached is None:
                return None
            records, made_of = below.trace
            records_found.append(made_of[np.isin(records, reached)])
        return np.intersect1d(part.numbers, np.concatenate(records_found))


def all_records_of(parts: Iterable[InputPart]) -> dict[InputPart, RecordNumbers]:
    return {part: part.numbers for part in parts}


def group_by_part(items: Iterable[PartRecord]) -> dict[InputPart, RecordNumbers]:
    numbers_by_part: dict[InputPart, list[int]] = {}
    for part, number in items:
        numbers_by_part.setdefault(part, []).append(number)
    return {part: np.array(sorted(numbers), np.int64) for part, numbers in numbers_by_part.items()}


def has_due_rows(batch: ReplayBatch) -> bool:
    """Return True if rows fell due in a batch: the batch may then have sent rows without a record."""
    replay = batch.replay
    return replay.shape.bound is not None and replay.due is not None and replay.due.pending


def effects_without_records(batch: ReplayBatch) -> RecordlessBatch:
    """Return the rows that expired and the rows that fell due in a batch."""
    replay, after = batch.replay, batch.replay.after
    if replay.shape.bound is None:
        nothing = pa.table({"time": pa.array([], _TIME)})
        return RecordlessBatch(after.stage, after.version, nothing, nothing, (0, 0), (None, None))
    table, due, clocks = replay.table, replay.due, (replay.before.clock_ms, replay.clock_ms)
    by_clock = ttl.expires_by_write_time(table.ttl) or (after.event_time is not None and after.event_time.by_clock)
    return RecordlessBatch(
        after.stage,
        after.version,
        _expired_rows(replay),
        _rows_fallen_due(replay),
        clocks,
        (due.after_ms, due.until_ms) if due is not None else (None, None),
        "clock" if by_clock else "watermark",
    )


def _expired_rows(replay: StageReplay) -> pa.Table:
    program, table = replay.program, replay.table
    side = TableSide(program.store, program.cache, table, replay.before, replay.before.clock_ms)
    span = replay.before.clock_ms + 1, replay.clock_ms
    tables = [side.empty_rows(values=False)]
    if table.ttl is not None and span[0] <= span[1]:
        tables += [side.read_stored(sst, EXPIRES, *span) for sst in side.ssts if sst.expiring]
    rows = pa.concat_tables(tables)
    keys = rows.select(side.key)
    # Only the newest row of a key counts.
    stored = dataclasses.replace(replay.stored, clock_ms=replay.before.clock_ms)
    _, present, seqs = stored.get_rows(rows[HASH].to_numpy(), keys)
    newest = pa.array(present & (seqs == rows[SEQ].to_numpy()))
    return keys.filter(newest).append_column("time", rows[EXPIRES].filter(newest).cast(_TIME))


def _rows_fallen_due(replay: StageReplay) -> pa.Table:
    key = arrow_schema(replay.table.key)
    if (due := replay.due) is None or not due.pending:
        return key.empty_table().append_column("time", pa.array([], _TIME))
    due_rows = replay.stored.get_due_rows(due.span, EVERY_HASH)
    return due_rows.keys.select(key.names).append_column("time", due_rows.values[DUE].cast(_TIME))


def find_bad_alone_in_side_table(batch: ReplayBatch, predicate: Predicate) -> RecordNumbers | None:
    names = {table_name(batch.replay.after.stage, name): name for name in batch.side_rows}
    try:
        table, sql = parse_row_local(predicate.sql, names)
        rows, numbers = batch.side_rows[names[table]]
        return matching_row_numbers(
            sql, table, rows.append_column(ROW_NUMBER, pa.array(numbers)).filter(pa.array(numbers >= 0))
        )
    except SlackwaterError:
        return None


def bad_alone(replay: StageReplay, predicate: Predicate) -> RecordNumbers | None:
    """Return the numbers of records that make the predicate true without any other record, ascending.

    Returns None if unknown. The numbers are known if each row of the function comes from one record, and the predicate
    is SQL over single rows of the stage's table.
    """
    if not replay.knows_records or not predicate.sql or replay.before.table is None:
        return None
    try:
        stage, sql = parse_row_local(predicate.sql, [replay.after.stage])
        return matching_row_numbers(sql, stage, _rows_by_record(replay))
    except Exception:
        # The predicate is not row-local, or the state's function does not accept repeated keys.
        return None


def _rows_by_record(replay: StageReplay) -> pa.Table:
    step, table = replay.step, replay.table
    bound = step.state_with(PartLookUps(replay.look_ups))
    key = [column.name for column in table.key]
    rows = normalise_keys(step.split_late(replay.rows())[0], key)
    order = np.lexsort((rows["_hash"].to_numpy(), rows[RECORD].to_numpy()))
    rows = rows.take(pa.array(order)).combine_chunks()
    records, hashes = rows[RECORD].to_numpy(), rows["_hash"].to_numpy()
    begins = np.append(True, (records[1:] != records[:-1]) | (hashes[1:] != hashes[:-1]))
    starts = np.flatnonzero(begins)
    keys = rows.select(key).take(pa.array(starts))
    unique_hashes, first, place = np.unique(hashes[starts], return_index=True, return_inverse=True)
    old, _, _ = replay.stored.get_rows(unique_hashes, keys.take(pa.array(first)))
    groups = Groups((np.cumsum(begins) - 1).astype(np.int32), starts)
    merged = bound.merge(rows.select([*key, *bound.needed_columns]), groups, keys, old.take(pa.array(place)))
    result = pa.table(
        [*keys.columns, *merged.values.columns, pa.array(records[starts])],
        names=[*key, *merged.values.column_names, ROW_NUMBER],
    )
    return result if merged.deleted is None else result.filter(pa.array(~merged.deleted))
