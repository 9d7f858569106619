"""Merges of a batch's rows into rows in memory, which stand in for the table: no SST is read or written."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ....state.step import StepResult
from ....store.read.multi_get import TableLookUps
from ....store.sst.schema import HASH, OP, SEQ, TOMBSTONE, arrow_schema
from ....store.versions.manifest import Table
from .stage_replay import StageReplay


@dataclass(frozen=True, slots=True)
class KnownRows(TableLookUps):
    """Look-ups that answer from rows in memory. A key without a row in memory is absent."""

    rows: pa.Table = field(kw_only=True)
    """Rows with the columns of `known_schema`, sorted by `_hash`, each with a different hash."""

    @classmethod
    def of(cls, replay: StageReplay, rows: pa.Table) -> KnownRows:
        stored = replay.stored
        return cls(stored.store, stored.cache, stored.table, (), stored.clock_ms, rows=rows)

    def get_rows(
        self, hashes: npt.NDArray[np.int64], keys: pa.Table
    ) -> tuple[pa.Table, npt.NDArray[np.bool_], npt.NDArray[np.int64]]:
        """Return the rows of the keys; see `TableLookUps.get_rows`."""
        own, seqs = (np.asarray(self.rows[name].to_numpy(), np.int64) for name in (HASH, SEQ))
        places = np.searchsorted(own, hashes)
        present = np.isin(hashes, own)
        values = self.rows.select([column.name for column in self.table.values])
        chosen = values.take(pa.array(places, mask=~present))
        found = np.zeros(len(hashes), np.int64)
        found[present] = seqs[places[present]]
        return chosen, present, found


def known_schema(table: Table) -> pa.Schema:
    """Return the columns of rows in memory: `_hash`, key, values and `_seq`."""
    return pa.schema([pa.field(HASH, pa.int64()), *arrow_schema(table.columns), pa.field(SEQ, pa.int64())])


def merge_known(replay: StageReplay, rows: pa.Table, known: pa.Table) -> tuple[StepResult, pa.Table]:
    """Merge a function's rows into rows in memory. Returns the result of the merge, and the rows in memory afterwards.

    The function's rows must not be late. Rows that fall due are left out.
    """
    result = replay.step.apply(rows, KnownRows.of(replay, known), None)
    new = result.new
    if not new.num_rows:
        return result, known  # the state kept the rows as they were
    others = known.filter(pc.invert(pc.is_in(known[HASH], new[HASH].combine_chunks())))
    put = new.filter(pa.array(np.asarray(new[OP].to_numpy()) != TOMBSTONE)).select(known.column_names)
    return result, pa.concat_tables([others, put.cast(known.schema)]).sort_by(HASH)
