"""Search for the record whose values made a joined row bad.

The first bad record (`first.py`) triggered the join, but the bad values may come from the other record of the join. To
find the bad columns, each column is set to null in turn, and the row is replayed through the downstream stages. A
column is at fault if the moment is then good and the row still has the same keys downstream. The faulty record is the
record that supplied this column to the join.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ....pipeline.batch.rerun import RecordNumbers
from ....snapshot.diff.equality import find_row_numbers
from ....state.kinds.join import BoundJoin, JoinSide
from ....state.multi_input import INPUT_COLUMN, tagged_name
from ....store.sst.hashing import hash_keys
from ....store.sst.schema import HASH
from ....store.versions import history
from ....store.versions.manifest import Manifest
from .batches import InputPart, ReplayBatch, SubsetReplay
from .first import FirstRecord, RecordSearch
from .what_if import PartRecord


@dataclass(frozen=True, slots=True)
class JoinPartner:
    """Record that a join matched with the first bad record, and that supplied the bad values of the joined row."""

    path_index: int
    key: pa.Table
    records: RecordNumbers
    batch: ReplayBatch
    version: int
    """Version that stored the bad row while the row waited for its match.

    0 if not known, or if `records` is not empty.
    """


def find_join_partner(search: RecordSearch, record: FirstRecord, path: Sequence[PartRecord]) -> JoinPartner | None:
    """Return the record that supplied the bad values of a joined row; None if the first bad record did, or if unknown.

    `path` has the records from the bad batch upstream to the first bad record, `record`.
    """
    for at, (part, number) in enumerate(path[:-1]):
        batch = part.sender
        if batch is None or not isinstance(bound := batch.replay.shape.bound, BoundJoin):
            continue
        row = part.received.slice(int(np.searchsorted(part.numbers, number)), 1)
        columns = _columns_at_fault(search, record, part, row)
        sides = [side for side in (bound.left, bound.right) if columns & {*side.columns.names}]
        if len(sides) != 1 or sides[0].name == path[at + 1][0].name:
            return None
        key = row.select(list(bound.key))
        present = SubsetReplay(search.batches, record.records_until).numbers(batch)
        records = records_of_side(present, batch, bound, sides[0], row)
        version = 0 if len(records) else _waiting_row_version(batch, sides[0], key, row)
        return JoinPartner(at, key, records, batch, version)
    return None


def is_joined(path: Sequence[PartRecord]) -> bool:
    """Return True if a join is on the path, so that the row was made from records of two topics."""
    return any(part.sender is not None and isinstance(part.sender.replay.shape.bound, BoundJoin) for part, _ in path)


def _columns_at_fault(search: RecordSearch, record: FirstRecord, part: InputPart, row: pa.Table) -> set[str]:
    replays_before = search.replays
    without = SubsetReplay(search.batches, record.records_before).numbers_of_part(part)
    fixed = {fixed_part: numbers for fixed_part, numbers in search.fixed.items() if fixed_part is not part}

    def tried(joined_row: pa.Table) -> tuple[bool, RecordNumbers]:
        choice = SubsetReplay(search.batches, fixed | {part: without}, extra_rows={part: joined_row})
        search.replays += 1
        is_bad = search.is_bad_at(search.cut_with_manifest(choice.manifest(search.root)))
        return is_bad, np.unique(choice.rows(search.root)[HASH].to_numpy())

    is_bad, keys = tried(row)
    columns = set[str]()
    for at, field in enumerate(row.schema if is_bad else ()):
        masked = row.set_column(at, field, pa.nulls(1, field.type))
        still_bad, masked_keys = tried(masked)
        if not still_bad and np.array_equal(keys, masked_keys):
            columns.add(field.name)
    search.replays = replays_before
    return columns


def records_of_side(
    present: RecordNumbers, batch: ReplayBatch, bound: BoundJoin, side: JoinSide, row: pa.Table
) -> RecordNumbers:
    replay = batch.replay
    if not replay.knows_records:
        return present[:0]
    rows = replay.rows()
    side_rows = rows.filter(pc.equal(rows[INPUT_COLUMN], side.part))
    names = {tagged_name(side.part, name): name for name in side.columns.names}
    shown = side_rows.select([*bound.key, *names]).rename_columns([*bound.key, *names.values()])
    positions = find_row_numbers(row.select(shown.column_names), shown)
    return np.intersect1d(replay.record_of(side_rows.take(pa.array(positions))), present)


def _waiting_row_version(batch: ReplayBatch, side: JoinSide, key: pa.Table, row: pa.Table) -> int:
    program, after = batch.replay.program, batch.replay.after
    values = row.select(side.columns.names).to_pylist()[0]
    current: Manifest | None = batch.replay.before
    while current is not None:
        waiting, seq = _waiting_rows(batch, current, side, key)
        if values not in waiting or not seq:
            return 0
        writer = history.find(program.store, after.app, after.stage, seq)
        if writer is None or writer.row_seq != seq:
            return 0
        current = history.previous_version(program.store, writer)
        if current is None or values not in _waiting_rows(batch, current, side, key)[0]:
            return seq
    return 0


def _waiting_rows(batch: ReplayBatch, at: Manifest, side: JoinSide, key: pa.Table) -> tuple[list[object], int]:
    stored = batch.replay.with_previous(at).stored
    values, present, seqs = stored.get_rows(hash_keys(key, key.column_names), key)
    rows = values[side.name][0].as_py() if present[0] else None
    return list(rows or ()), int(seqs[0])


def trace_upstream(search: RecordSearch, batch: ReplayBatch, number: int) -> list[PartRecord]:
    """Return a record of a batch and its source records upstream, as far as they are known.

    Raises the errors of replays.
    """
    way = list[PartRecord]()
    while True:
        part = next(part for part in batch.parts if number in part.numbers)
        way.append((part, number))
        if not part.upstream:
            return way
        batch = search.batches.replay_sender(part)
        if part.trace is None:
            return way
        numbers, made_of = part.trace
        number = int(made_of[numbers == number][0])
