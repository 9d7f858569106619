"""Evaluation of one bad batch with other records, with none of them, or with another program.

The predicate is evaluated on a hypothetical moment: the moment that ends with the bad commit, with the stage's tables
as the replayed batch would have left them. All other tables are unchanged.
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
from ....pipeline.batch.rerun import Numbers
from ....snapshot.bisect.flips import ROW, numbers_of, row_local
from ....snapshot.bisect.predicate import Context, Predicate, Skip, Wanted
from ....snapshot.bisect.verdict import MAX_ROWS, Address, CannotProve, NoRecord
from ....snapshot.cut.graph import Cut
from ....snapshot.diff.candidates import Ancestry, changed_keys
from ....snapshot.diff.key_changes import KeyChanges
from ....snapshot.diff.stored_rows import TableSide
from ....state.failing import RECORD
from ....state.kinds.kind import Groups
from ....state.step import EVERY_HASH
from ....store.sst import ttl
from ....store.sst.hashing import normalise_keys
from ....store.sst.schema import DUE, EXPIRES, HASH, SEQ
from ....store.versions.manifest import Manifest
from ....store.versions.side_tables import table_name, table_of, tables_of
from .batches import Batches, Choice, InputPart, ReplayBatch
from .program import LoadedProgram
from .stage_replay import StageReplay, of_keys

Chosen = Mapping[InputPart, Numbers]
Item = tuple[InputPart, int]
_TIME = pa.timestamp("ms", "UTC")


@dataclass
class BadBatch:
    """A batch with which a moment turned bad."""

    batches: Batches
    predicate: Predicate
    bad: Cut
    root: ReplayBatch
    changed: KeyChanges | None = None
    replays: int = 0

    @classmethod
    def of(
        cls, program: LoadedProgram, predicate: Predicate, bad: Cut, stage: str, changed: KeyChanges | None = None
    ) -> Self:
        """Open the batch that committed a stage's version of the bad moment.

        Raises the errors of `StageReplay.for_version`.
        """
        batches = Batches(program)
        return cls(batches, predicate, bad, batches.of(bad.stages[stage]), changed)

    @property
    def everything(self) -> Chosen:
        return whole(self.root.parts)

    def cut(self, chosen: Chosen, only: Numbers | None = None) -> Cut:
        return self.cut_of(Choice(self.batches, chosen, self.root, only).manifest(self.root))

    def cut_of(self, manifest: Manifest) -> Cut:
        return dataclasses.replace(self.bad, stages={**self.bad.stages, self.root.replay.after.stage: manifest})

    def is_bad_at(self, cut: Cut) -> bool:
        """Return True if the predicate judges a moment bad.

        Raises the errors of `Predicate.rows`, and `CannotProve` if the predicate skips the moment or asks a person.
        """
        program = self.batches.program
        try:
            return bool(self.predicate.rows(Context(program.store, program.cache, cut), 1).num_rows)
        except Skip as error:
            raise CannotProve(f"the predicate cannot judge what a replay gives: {error}") from error
        except Wanted:
            raise CannotProve("moments were judged by hand, and a replay cannot ask a person") from None

    def is_bad(self, chosen: Chosen, only: Numbers | None = None) -> bool:
        self.replays += 1
        return self.is_bad_at(self.cut(chosen, only))

    def with_none(self) -> NoRecord | None:
        """Return the batch's effects without any record; None if the moment is good without the records."""
        if not self.is_bad({}):
            return None
        return dataclasses.replace(no_record(self.root), keys=self.keys_between(self.before, self.cut({})))

    @property
    def before(self) -> Cut:
        return self.cut_of(self.root.replay.before)

    def find(self, address: Address) -> Item:
        """Return a source record of the bad batch by its address. Raises `NotFound`, and the errors of replays."""
        for part in self.source_records():
            if part.batch.replay.records[part.name].topic == address.topic:
                matches = part.batch.column("_partition")[part.numbers] == address.partition
                matches &= part.batch.column("_offset")[part.numbers] == address.offset
                if matches.any():
                    return part, int(part.numbers[matches][0])
        raise NotFound("record of the bad batch", str(address))

    def source_records(self) -> Chosen:
        """Return all source records of the bad batch, by replays of its upstream batches.

        Raises the errors of replays.
        """
        waiting, records = [*self.root.parts], dict[InputPart, Numbers]()
        while waiting:
            part = waiting.pop()
            if part.upstream:
                waiting += [
                    upstream_part for upstream_part in self.batches.expand(part).parts if upstream_part not in records
                ]
            else:
                records[part] = part.numbers
        return records

    def keys_between(self, earlier: Cut, later: Cut) -> KeyChanges | None:
        program, stage = self.batches.program, self.root.replay.after.stage
        before, after = (table_of(cut.stages[stage], self.table) for cut in (earlier, later))
        rows = pa.table({})
        for cut in (later, earlier):
            if self.predicate.sql and not rows.num_rows:
                rows = self.predicate.rows(Context(program.store, program.cache, cut), MAX_ROWS)
        ssts = table_of(self.root.replay.before, self.table).ssts
        shared = Ancestry(max((sst.seq_max for sst in ssts), default=0))
        keys = changed_keys(program.store, program.cache, before, after, rows, shared)
        return keys.changed() if keys is not None else None

    @property
    def table(self) -> str:
        """Table that the predicate reads: the stage's own, unless the predicate names only a side table."""
        after = self.root.replay.after
        return next(filter(self.predicate.names, (after.stage, *tables_of(after))), after.stage)

    @property
    def own_table(self) -> bool:
        return self.table == self.root.replay.after.stage

    @cached_property
    def relevant(self) -> Numbers | None:
        """Records of the bad batch that may be involved; None if not known."""
        replay = self.root.replay
        numbers_parts = [np.empty(0, np.int64), *(numbers[numbers >= 0] for _, numbers in self.root.side_rows.values())]
        if not self.own_table:
            return np.unique(np.concatenate(numbers_parts))
        if replay.shape.bound is None or not replay.knows_records:
            return None
        function_rows = replay.rows()
        if self.changed is not None and self.changed.named:
            function_rows, numbers_parts = of_keys(function_rows, self.changed.changed().keys), numbers_parts[:1]
        return np.unique(np.concatenate([replay.record_of(function_rows), *numbers_parts]))

    @cached_property
    def alone(self) -> Numbers | None:
        """Records of the bad batch that are bad by themselves; None if only replays could tell."""
        return bad_alone(self.root.replay, self.predicate) if self.own_table else bad_beside(self.root, self.predicate)

    def reach(self, part: InputPart, targets: Numbers | None) -> Numbers | None:
        if targets is None:
            return None
        if part.batch is self.root:
            return np.intersect1d(part.numbers, targets)
        records_found = [np.empty(0, np.int64)]
        for below in (batch_part for batch in self.batches.known.values() for batch_part in batch.parts):
            if below.sender is not part.batch:
                continue
            reached = self.reach(below, targets)
            if below.trace is None or reached is None:
                return None
            records, made_of = below.trace
            records_found.append(made_of[np.isin(records, reached)])
        return np.intersect1d(part.numbers, np.concatenate(records_found))


def whole(parts: Iterable[InputPart]) -> dict[InputPart, Numbers]:
    return {part: part.numbers for part in parts}


def by_part(items: Iterable[Item]) -> dict[InputPart, Numbers]:
    numbers_by_part: dict[InputPart, list[int]] = {}
    for part, number in items:
        numbers_by_part.setdefault(part, []).append(number)
    return {part: np.array(sorted(numbers), np.int64) for part, numbers in numbers_by_part.items()}


def may_emit(batch: ReplayBatch) -> bool:
    """Return True if rows fell due in a batch, so that it may have sent rows that no record caused."""
    replay = batch.replay
    return replay.shape.bound is not None and replay.due is not None and replay.due.pending


def no_record(batch: ReplayBatch) -> NoRecord:
    """Return a batch's effects without any record: rows that expired, and rows that fell due."""
    replay, after = batch.replay, batch.replay.after
    if replay.shape.bound is None:
        nothing = pa.table({"time": pa.array([], _TIME)})
        return NoRecord(after.stage, after.version, nothing, nothing, (0, 0), (None, None))
    table, due, clocks = replay.table, replay.due, (replay.before.clock_ms, replay.clock_ms)
    by_clock = ttl.by_write_time(table.ttl) or (after.event_time is not None and after.event_time.by_clock)
    return NoRecord(
        after.stage,
        after.version,
        _expired(replay),
        _fell_due(replay),
        clocks,
        (due.after_ms, due.until_ms) if due is not None else (None, None),
        "clock" if by_clock else "watermark",
    )


def _expired(replay: StageReplay) -> pa.Table:
    program, table = replay.program, replay.table
    side = TableSide(program.store, program.cache, table, replay.before, replay.before.clock_ms)
    span = replay.before.clock_ms + 1, replay.clock_ms
    tables = [side.no_rows(values=False)]
    if table.ttl is not None and span[0] <= span[1]:
        tables += [side.stored(sst, EXPIRES, *span) for sst in side.ssts if sst.expiring]
    rows = pa.concat_tables(tables)
    keys = rows.select(side.key)
    # Only the newest row of a key counts.
    stored = dataclasses.replace(replay.stored, clock_ms=replay.before.clock_ms)
    _, present, seqs = stored.of_keys(rows[HASH].to_numpy(), keys)
    newest = pa.array(present & (seqs == rows[SEQ].to_numpy()))
    return keys.filter(newest).append_column("time", rows[EXPIRES].filter(newest).cast(_TIME))


def _fell_due(replay: StageReplay) -> pa.Table:
    key = TableSide(replay.program.store, replay.program.cache, replay.table, replay.before).no_rows()
    names = [column.name for column in replay.table.key]
    if (due := replay.due) is None or not due.pending:
        return key.select(names).append_column("time", pa.array([], _TIME))
    due_rows = replay.stored.due(due.span, EVERY_HASH)
    return due_rows.keys.select(names).append_column("time", due_rows.values[DUE].cast(_TIME))


def bad_beside(batch: ReplayBatch, predicate: Predicate) -> Numbers | None:
    names = {table_name(batch.replay.after.stage, name): name for name in batch.side_rows}
    try:
        table, sql = row_local(predicate.sql, names)
        rows, numbers = batch.side_rows[names[table]]
        return numbers_of(sql, table, rows.append_column(ROW, pa.array(numbers)).filter(pa.array(numbers >= 0)))
    except SlackwaterError:
        return None


def bad_alone(replay: StageReplay, predicate: Predicate) -> Numbers | None:
    """Return the records that make the predicate true by themselves, ascending; None if not known.

    Known only if each of the function's rows comes from one record, and the predicate is SQL over single rows of the
    stage's table.
    """
    if not replay.knows_records or not predicate.sql or replay.before.table is None:
        return None
    try:
        stage, sql = row_local(predicate.sql, [replay.after.stage])
        return numbers_of(sql, stage, _rows_by_record(replay))
    except Exception:
        # The predicate is not row-local, or the state's function does not accept repeated keys.
        return None


def _rows_by_record(replay: StageReplay) -> pa.Table:
    """Return the table rows that each record would leave if it were the only one; `ROW` has the record's number."""
    step, table = replay.step, replay.table
    bound = step.state_now
    key = [column.name for column in table.key]
    rows = normalise_keys(step.split_late(replay.rows())[0], key)
    order = np.lexsort((rows["_hash"].to_numpy(), rows[RECORD].to_numpy()))
    rows = rows.take(pa.array(order)).combine_chunks()
    records, hashes = rows[RECORD].to_numpy(), rows["_hash"].to_numpy()
    begins = np.append(True, (records[1:] != records[:-1]) | (hashes[1:] != hashes[:-1]))
    starts = np.flatnonzero(begins)
    keys = rows.select(key).take(pa.array(starts))
    unique_hashes, first, place = np.unique(hashes[starts], return_index=True, return_inverse=True)
    old, _, _ = replay.stored.of_keys(unique_hashes, keys.take(pa.array(first)))
    groups = Groups((np.cumsum(begins) - 1).astype(np.int32), starts)
    merged = bound.merge(rows.select([*key, *bound.needs]), groups, keys, old.take(pa.array(place)))
    result = pa.table(
        [*keys.columns, *merged.values.columns, pa.array(records[starts])],
        names=[*key, *merged.values.column_names, ROW],
    )
    return result if merged.deleted is None else result.filter(pa.array(~merged.deleted))
