"""One bad batch, as it would have been with other records, none of them, or another program.

A moment is asked that never was: the one that ends with the commit, with the tables of its stage as the batch would
have left them. All other tables are as they were.
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
from ....store.sst.types import DUE, EXPIRES, HASH, SEQ
from ....store.versions.manifest import Manifest
from ....store.versions.side_tables import table_name, table_of, tables_of
from .batches import Batches, Choice, InputPart, ReplayBatch
from .program import LoadedProgram
from .stage_replay import StageReplay, of_keys

Chosen = Mapping[InputPart, Numbers]
"""Records by number, of each part."""
Item = tuple[InputPart, int]
"""One record."""
_TIME = pa.timestamp("ms", "UTC")


@dataclass
class BadBatch:
    """A batch with which a moment turned bad."""

    batches: Batches
    predicate: Predicate
    bad: Cut
    """The first bad moment: it ends with the batch's commit."""
    root: ReplayBatch
    changed: KeyChanges | None = None
    """The keys that turned bad; None where that is not known."""
    replays: int = 0
    """How many choices of records were tried."""

    @classmethod
    def of(
        cls, program: LoadedProgram, predicate: Predicate, bad: Cut, stage: str, changed: KeyChanges | None = None
    ) -> Self:
        """Open the batch that a stage's version of the bad moment committed. Raises as `StageReplay.of`."""
        batches = Batches(program)
        return cls(batches, predicate, bad, batches.of(bad.stages[stage]), changed)

    @property
    def everything(self) -> Chosen:
        """All records of the batch."""
        return whole(self.root.parts)

    def cut(self, chosen: Chosen, only: Numbers | None = None) -> Cut:
        """The moment as it would be with these records only; `only` restricts those of the batch itself."""
        return self.cut_of(Choice(self.batches, chosen, self.root, only).manifest(self.root))

    def cut_of(self, manifest: Manifest) -> Cut:
        """The moment, had the batch committed this."""
        return dataclasses.replace(self.bad, stages={**self.bad.stages, self.root.replay.after.stage: manifest})

    def is_bad_at(self, cut: Cut) -> bool:
        """Whether the predicate says that a moment is bad. Raises as `Predicate.rows`, `CannotProve` for a skip."""
        program = self.batches.program
        try:
            return bool(self.predicate.rows(Context(program.store, program.cache, cut), 1).num_rows)
        except Skip as error:
            raise CannotProve(f"the predicate cannot judge what a replay gives: {error}") from error
        except Wanted:
            raise CannotProve("it was said by hand which moments are bad, which is not asked of replays") from None

    def is_bad(self, chosen: Chosen, only: Numbers | None = None) -> bool:
        """Whether it is bad with these records only. Raises as replays do."""
        self.replays += 1
        return self.is_bad_at(self.cut(chosen, only))

    def with_none(self) -> NoRecord | None:
        """What the batch did without any record, where it is bad with none; None where it is good then."""
        if not self.is_bad({}):
            return None
        return dataclasses.replace(no_record(self.root), keys=self.keys_between(self.before, self.cut({})))

    @property
    def before(self) -> Cut:
        """The moment with the stage as it was before the batch."""
        return self.cut_of(self.root.replay.before)

    def find(self, address: Address) -> Item:
        """A record that the batches behind the bad one read of a user's topic. Raises `NotFound`, and as replays do."""
        for part in self.source_records():
            if part.batch.replay.records[part.name].topic == address.topic:
                there = part.batch.column("_partition")[part.numbers] == address.partition
                there &= part.batch.column("_offset")[part.numbers] == address.offset
                if there.any():
                    return part, int(part.numbers[there][0])
        raise NotFound("record of the bad batch", str(address))

    def source_records(self) -> Chosen:
        """All records of users' topics that the bad batch is made of. Replays each batch between. Raises as that."""
        waiting, found = [*self.root.parts], dict[InputPart, Numbers]()
        while waiting:
            part = waiting.pop()
            if part.upstream:
                waiting += [each for each in self.batches.expand(part).parts if each not in found]
            else:
                found[part] = part.numbers
        return found

    def keys_between(self, one: Cut, other: Cut) -> KeyChanges | None:
        """The keys of the table that is asked about whose rows differ between two moments, bad keys where named."""
        program, stage = self.batches.program, self.root.replay.after.stage
        before, after = (table_of(cut.stages[stage], self.table) for cut in (one, other))
        rows = pa.table({})
        for cut in (other, one):
            if self.predicate.sql and not rows.num_rows:
                rows = self.predicate.rows(Context(program.store, program.cache, cut), MAX_ROWS)
        ssts = table_of(self.root.replay.before, self.table).ssts
        shared = Ancestry(max((each.seq_max for each in ssts), default=0))
        keys = changed_keys(program.store, program.cache, before, after, rows, shared)
        return keys.changed() if keys is not None else None

    @property
    def table(self) -> str:
        """The table that is asked about: the stage's own, unless the predicate names only one beside it."""
        after = self.root.replay.after
        return next(filter(self.predicate.names, (after.stage, *tables_of(after))), after.stage)

    @property
    def own_table(self) -> bool:
        """Whether the stage's own table is asked about, perhaps with others."""
        return self.table == self.root.replay.after.stage

    @cached_property
    def relevant(self) -> Numbers | None:
        """The records of the bad batch that may have to do with what is bad; None where that is not known."""
        replay = self.root.replay
        beside = [np.empty(0, np.int64), *(numbers[numbers >= 0] for _, numbers in self.root.side_rows.values())]
        if not self.own_table:
            return np.unique(np.concatenate(beside))
        if replay.shape.bound is None or not replay.knows_records:
            return None
        every = replay.rows()
        if self.changed is not None and self.changed.named:
            every, beside = of_keys(every, self.changed.changed().keys), beside[:1]
        return np.unique(np.concatenate([replay.record_of(every), *beside]))

    @cached_property
    def alone(self) -> Numbers | None:
        """The records of the bad batch that are bad by themselves; None where that is not known without trying."""
        return bad_alone(self.root.replay, self.predicate) if self.own_table else bad_beside(self.root, self.predicate)

    def reach(self, part: InputPart, wanted: Numbers | None) -> Numbers | None:
        """The records of a part of which the `wanted` ones of the bad batch are made; None where that is not known."""
        if wanted is None:
            return None
        if part.batch is self.root:
            return np.intersect1d(part.numbers, wanted)
        found = [np.empty(0, np.int64)]
        for below in (each for batch in self.batches.known.values() for each in batch.parts):
            if below.sender is not part.batch:
                continue
            reached = self.reach(below, wanted)
            if below.trace is None or reached is None:
                return None
            records, made_of = below.trace
            found.append(made_of[np.isin(records, reached)])
        return np.intersect1d(part.numbers, np.concatenate(found))


def whole(parts: Iterable[InputPart]) -> dict[InputPart, Numbers]:
    """All records of these parts."""
    return {part: part.numbers for part in parts}


def by_part(items: Iterable[Item]) -> dict[InputPart, Numbers]:
    """Records by part."""
    found: dict[InputPart, list[int]] = {}
    for part, number in items:
        found.setdefault(part, []).append(number)
    return {part: np.array(sorted(numbers), np.int64) for part, numbers in found.items()}


def may_emit(batch: ReplayBatch) -> bool:
    """Whether a batch may have sent rows that no record of it is behind."""
    replay = batch.replay
    return replay.shape.bound is not None and replay.due is not None and replay.due.pending


def no_record(batch: ReplayBatch) -> NoRecord:
    """What a batch did that no record of it is behind: which rows expired with it, and which fell due."""
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
    """The rows that were visible before the batch, and are not by its clock: key, and when each expired."""
    program, table = replay.program, replay.table
    side = TableSide(program.store, program.cache, table, replay.before, replay.before.clock_ms)
    span = replay.before.clock_ms + 1, replay.clock_ms
    found = [side.no_rows(values=False)]
    if table.ttl is not None and span[0] <= span[1]:
        found += [side.stored(each, EXPIRES, *span) for each in side.ssts if each.expiring]
    rows = pa.concat_tables(found)
    keys = rows.select(side.key)
    # Of a key's rows the newest counts.
    stored = dataclasses.replace(replay.stored, clock_ms=replay.before.clock_ms)
    _, there, seqs = stored.of_keys(rows[HASH].to_numpy(), keys)
    mine = pa.array(there & (seqs == rows[SEQ].to_numpy()))
    return keys.filter(mine).append_column("time", rows[EXPIRES].filter(mine).cast(_TIME))


def _fell_due(replay: StageReplay) -> pa.Table:
    """The rows whose time passed with the batch: key, and the time."""
    key = TableSide(replay.program.store, replay.program.cache, replay.table, replay.before).no_rows()
    names = [column.name for column in replay.table.key]
    if (due := replay.due) is None or not due.pending:
        return key.select(names).append_column("time", pa.array([], _TIME))
    found = replay.stored.due(due.span, EVERY_HASH)
    return found.keys.select(names).append_column("time", found.values[DUE].cast(_TIME))


def bad_beside(batch: ReplayBatch, predicate: Predicate) -> Numbers | None:
    """The records whose rows of a table beside the stage's own are each wrong; None where that is not known."""
    names = {table_name(batch.replay.after.stage, name): name for name in batch.side_rows}
    try:
        table, sql = row_local(predicate.sql, names)
        rows, numbers = batch.side_rows[names[table]]
        return numbers_of(sql, table, rows.append_column(ROW, pa.array(numbers)).filter(pa.array(numbers >= 0)))
    except SlackwaterError:
        return None


def bad_alone(replay: StageReplay, predicate: Predicate) -> Numbers | None:
    """The records that make the predicate true by themselves, ascending; None where that is not known.

    It is known where each of the function's rows comes of one record, and the predicate is SQL over single rows of
    the stage's table.
    """
    if not replay.knows_records or not predicate.sql or replay.before.table is None:
        return None
    try:
        stage, sql = row_local(predicate.sql, [replay.after.stage])
        return numbers_of(sql, stage, _each_alone(replay))
    except Exception:
        # The predicate is another one, or the state's function does not take a key several times.
        return None


def _each_alone(replay: StageReplay) -> pa.Table:
    """The table's rows as each record by itself would leave those of its keys, with the record's number as `ROW`."""
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
    each, first, place = np.unique(hashes[starts], return_index=True, return_inverse=True)
    old, _, _ = replay.stored.of_keys(each, keys.take(pa.array(first)))
    groups = Groups((np.cumsum(begins) - 1).astype(np.int32), starts)
    merged = bound.merge(rows.select([*key, *bound.needs]), groups, keys, old.take(pa.array(place)))
    made = pa.table(
        [*keys.columns, *merged.values.columns, pa.array(records[starts])],
        names=[*key, *merged.values.column_names, ROW],
    )
    return made if merged.deleted is None else made.filter(pa.array(~merged.deleted))
