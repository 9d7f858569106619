"""Merge of one key's records in memory, for replays of many subsets: no SST is written and no Spark job runs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ....pipeline.batch.rerun import RecordNumbers
from ....snapshot.diff.equality import has_floats, pair_similar_rows
from ....store.read.multi_get import TableLookUps
from ....store.sst.schema import OP, SEQ, TOMBSTONE, arrow_schema
from ....store.versions.manifest import Manifest
from ..replay.batches import OpenBatches, ReplayBatch, SubsetReplay
from ..replay.stage_replay import StageReplay, filter_by_keys
from ..replay.what_if import ChosenRecords


@dataclass(frozen=True, slots=True)
class OneRow(TableLookUps):
    """Look-ups in a table for a single key: return its row, if the key has a row."""

    row: pa.Table = field(kw_only=True)
    """At most one row, with value columns and `_seq`."""

    def get_rows(
        self, hashes: npt.NDArray[np.int64], keys: pa.Table
    ) -> tuple[pa.Table, npt.NDArray[np.bool_], npt.NDArray[np.int64]]:
        """Return the row for the key. `TableLookUps.get_rows` describes the result."""
        values = self.row.drop_columns([SEQ])
        if self.row.num_rows:
            return values, np.array([True]), np.asarray(self.row[SEQ].to_numpy(), np.int64)
        nulls = [pa.nulls(1, kind) for kind in values.schema.types]
        return pa.table(nulls, schema=values.schema), np.array([False]), np.zeros(1, np.int64)


@dataclass(frozen=True, slots=True)
class KeyFold:
    """Replays of the batches that wrote a key's row, with subsets of the source records."""

    batches: OpenBatches
    steps: tuple[tuple[ReplayBatch, pa.Table], ...]
    """Batches of the key's stage, ascending, with the rows that the function made for the key in each batch."""

    @classmethod
    def open(cls, batches: OpenBatches, newest: Manifest, key: pa.Table) -> Self | None:
        """Return the fold of a key up to the version `newest`; None if its row depends on more than its records.

        The row depends on more if a function mixes or does not trace records, if an upstream stage has state, if rows
        expire or fall due, or if the state has tables of parts.
        """
        opened = sorted(batches.opened.items(), key=lambda item: item[0])
        own = [batch for (stage, _), batch in opened if stage == newest.stage]
        others = [batch for (stage, _), batch in opened if stage != newest.stage]
        is_traced = all(part.sender is None or part.trace is not None for _, batch in opened for part in batch.parts)
        if not is_traced or any(batch.replay.shape.bound is not None for batch in others):
            return None
        if not all(_is_simple(batch.replay) for batch in own) or not all(b.replay.knows_records for _, b in opened):
            return None
        steps = ((batch, filter_by_keys(batch.replay.step.split_late(batch.replay.rows())[0], key)) for batch in own)
        return cls(batches, tuple(steps))

    def row(self, chosen: ChosenRecords) -> pa.Table:
        """Return the key's row after all batches with only the chosen source records: a table of at most one row."""
        subset = SubsetReplay(self.batches, chosen)
        first = self.steps[0][0].replay
        columns = [*arrow_schema((*first.table.key, *first.table.values)), pa.field(SEQ, pa.int64())]
        row = pa.schema(columns).empty_table()
        for batch, rows in self.steps:
            replay = batch.replay
            present = rows.filter(pa.array(np.isin(replay.record_of(rows), _processed(replay, subset.numbers(batch)))))
            if present.num_rows:
                row = _next_row(replay, present, row)
        return row

    def gives(self, expected: pa.Table, chosen: ChosenRecords) -> bool:
        """Return True if the chosen records give the row `expected`, within the tolerance; or no row if it is empty."""
        row = self.row(chosen).select(expected.column_names)
        if row.num_rows != expected.num_rows or not row.num_rows:
            return bool(row.num_rows == expected.num_rows)
        row = row.cast(expected.schema).combine_chunks()
        if bool(row.equals(expected.combine_chunks())):
            return True
        return any(map(has_floats, row.schema.types)) and len(pair_similar_rows(expected, row)[0]) == 1


def _is_simple(replay: StageReplay) -> bool:
    return replay.table.ttl is None and replay.due is None and not replay.look_ups


def _processed(replay: StageReplay, numbers: RecordNumbers) -> RecordNumbers:
    return numbers[numbers < replay.count]


def _next_row(replay: StageReplay, rows: pa.Table, row: pa.Table) -> pa.Table:
    key = [column.name for column in replay.table.key]
    stored = replay.stored
    look_ups = OneRow(stored.store, stored.cache, stored.table, (), stored.clock_ms, row=row.drop_columns(key))
    new = replay.step.apply(rows, look_ups, None).new
    if not new.num_rows:
        return row  # the state kept the row as it was
    new = new.filter(pa.array(np.asarray(new[OP].to_numpy()) != TOMBSTONE))
    return new.select(row.column_names).cast(row.schema)
