"""Of two records that met in a join, the one whose values are bad: the other may only have been the occasion.

A row of a join is bad by some of its columns. Each of them in turn is made null, and it is asked again what the stages
below make of the row. A column is at fault where the moment is good without its value, though the row reaches the same
keys; and each column of a join is of one side.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ....pipeline.batch.rerun import Numbers
from ....snapshot.diff.equality import places_of
from ....state.kinds.join import BoundJoin, JoinSide
from ....state.multi_input import TAG, name_of
from ....store.sst.hashing import hash_keys
from ....store.sst.types import HASH
from ....store.versions import history
from ....store.versions.manifest import Manifest
from .batches import Choice, InputPart, ReplayBatch
from .first import FirstRecord, RecordSearch
from .what_if import Item


@dataclass(frozen=True, slots=True)
class Met:
    """What a record met in a join, whose values are bad."""

    at: int
    """Where on the way up the rows of the join are."""
    key: pa.Table
    """The key at which the two met: one row."""
    records: Numbers
    """Records of the join's batch that brought the bad values; none where they waited in its table."""
    batch: ReplayBatch
    version: int
    """Then, the version that brought them; 0 where that is not known."""


def met(search: RecordSearch, found: FirstRecord, way: Sequence[Item]) -> Met | None:
    """What the record that was found met, if that has the bad values; None where it has them itself, or nobody knows.

    `way` are the records from that of the bad batch up to the one that was found.
    """
    for at, (part, number) in enumerate(way[:-1]):
        batch = part.sender
        if batch is None or not isinstance(bound := batch.replay.shape.bound, BoundJoin):
            continue
        row = part.received.slice(int(np.searchsorted(part.numbers, number)), 1)
        columns = _at_fault(search, found, part, row)
        sides = [side for side in (bound.left, bound.right) if columns & {*side.columns.names}]
        if len(sides) != 1 or sides[0].name == way[at + 1][0].name:
            return None
        key = row.select(list(bound.key))
        records = _of_batch(Choice(search.batches, found.until).numbers(batch), batch, bound, sides[0], row)
        return Met(at, key, records, batch, 0 if len(records) else _waited(batch, sides[0], key, row))
    return None


def is_joined(way: Sequence[Item]) -> bool:
    """Return whether the way up passes a join: then a record of another topic is what the bad one met, not its like."""
    return any(part.sender is not None and isinstance(part.sender.replay.shape.bound, BoundJoin) for part, _ in way)


def _at_fault(search: RecordSearch, found: FirstRecord, part: InputPart, row: pa.Table) -> set[str]:
    """The columns of a row without whose values it is good, with the same keys."""
    begun = search.replays
    without = Choice(search.batches, found.before).of_part(part)
    fixed = {each: numbers for each, numbers in search.fixed.items() if each is not part}

    def tried(one: pa.Table) -> tuple[bool, Numbers]:
        choice = Choice(search.batches, fixed | {part: without}, more={part: one})
        search.replays += 1
        is_bad = search.is_bad_at(search.cut_of(choice.manifest(search.root)))
        return is_bad, np.unique(choice.rows(search.root)[HASH].to_numpy())

    is_bad, keys = tried(row)
    columns = set[str]()
    for at, field in enumerate(row.schema if is_bad else ()):
        masked = row.set_column(at, field, pa.nulls(1, field.type))
        still_bad, others = tried(masked)
        if not still_bad and np.array_equal(keys, others):
            columns.add(field.name)
    search.replays = begun
    return columns


def _of_batch(there: Numbers, batch: ReplayBatch, bound: BoundJoin, side: JoinSide, row: pa.Table) -> Numbers:
    """The records of a join's batch that brought a side of a row."""
    replay = batch.replay
    if not replay.knows_records:
        return there[:0]
    rows = replay.rows()
    mine = rows.filter(pc.equal(rows[TAG], side.part))
    names = {name_of(side.part, name): name for name in side.columns.names}
    shown = mine.select([*bound.key, *names]).rename_columns([*bound.key, *names.values()])
    places = places_of(row.select(shown.column_names), shown)
    return np.intersect1d(replay.record_of(mine.take(pa.array(places))), there)


def _waited(batch: ReplayBatch, side: JoinSide, key: pa.Table, row: pa.Table) -> int:
    """The version with which a side of a row began to wait; 0 where that is not known."""
    program, after = batch.replay.program, batch.replay.after
    values = row.select(side.columns.names).to_pylist()[0]
    before: Manifest | None = batch.replay.before
    while before is not None:
        waiting, seq = _waiting(batch, before, side, key)
        if values not in waiting or not seq:
            return 0
        wrote = history.find(program.store, after.app, after.stage, seq)
        if wrote is None or wrote.row_seq != seq:
            return 0
        before = history.before(program.store, wrote)
        if before is None or values not in _waiting(batch, before, side, key)[0]:
            return seq
    return 0


def _waiting(batch: ReplayBatch, at: Manifest, side: JoinSide, key: pa.Table) -> tuple[list[object], int]:
    """The rows of a side that wait at a version for a key, and the version that wrote them; 0 for none."""
    stored = batch.replay.based_on(at).stored
    found, there, seqs = stored.of_keys(hash_keys(key, key.column_names), key)
    rows = found[side.name][0].as_py() if there[0] else None
    return list(rows or ()), int(seqs[0])


def climb(search: RecordSearch, batch: ReplayBatch, number: int) -> list[Item]:
    """A record of a batch, and that of which it was made, and so on, as far up as it is known. Raises as replays do."""
    way = list[Item]()
    while True:
        part = next(part for part in batch.parts if number in part.numbers)
        way.append((part, number))
        if not part.upstream:
            return way
        batch = search.batches.expand(part)
        if part.trace is None:
            return way
        mine, made_of = part.trace
        number = int(made_of[mine == number][0])
