"""Values of a backfill brought into rows: what columns that were added would have, had they been there before.

A backfill is a table of an app of its own (`Backfill.app`) that has read what the stage had read before the migration,
and nothing that it read later. So a row's value is found from the row and from the backfill's row of its key alone:

- An aggregate of the row is of the records since the migration, the backfill's of those before: merged, of all.
- A row of an `upsert` that was written since has its value. One that was written before is of one record; where the
  backfill's row is of the same record, all columns that both have are equal, and its value is that record's.

The rule holds for every stored row of a key, whichever hides another, so an SST is filled by itself: the rows stay, and
their order, and their `_seq`. One commit puts all filled SSTs in the place of those that were. Who loses the race for a
number fills what the new head has more, and tries again; a batch that is committed later fills its own SSTs.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ...errors import Refused
from ...state.kinds.aggregate import NoRoom
from ...state.kinds.kind import kind_of
from ...store.compaction.rewrite import rewritten
from ...store.objects.many import many
from ...store.objects.protocol import ObjectStore
from ...store.read.cache import SstCache
from ...store.read.multi_get import multi_get
from ...store.sst.hashing import digests, same_keys
from ...store.sst.sorted_runs import overlapping
from ...store.sst.types import HASH, OP, PUT, SEQ
from ...store.versions import history
from ...store.versions.manifest import Backfill, Manifest, Sst, Table

_WORKERS = min(os.cpu_count() or 1, 4)
"""Each has the rows of an SST in memory, encoded."""


@dataclass(frozen=True, slots=True)
class Fill:
    """One backfill, and how its values come into rows of a table."""

    store: ObjectStore
    cache: SstCache
    table: Table
    source: Manifest
    """The version of the backfill's app that has the values."""
    since: int
    """The version of the table's stage from which on it has the columns."""
    names: tuple[str, ...]
    """The columns that get values, internal ones included."""
    parts: tuple[str, ...]
    """Of these, those whose values join with those of the past. Empty where a row is of one record."""

    def rows(self, rows: pa.Table) -> pa.Table:
        """These rows of an SST of the table, which have all its columns, with the backfill's values in them.

        Raises `Refused` where a sum has no room, and as `multi_get`.
        """
        key = [column.name for column in self.table.key]
        hashes = rows.column(HASH).combine_chunks().to_numpy()
        ssts = overlapping(self.source.ssts, int(hashes[0]), int(hashes[-1]))
        assert self.source.table is not None  # noqa: S101  it was made for its table
        values, found = multi_get(self.store, self.cache, ssts, self.source.table, hashes, rows.select(key))
        takes = found & (rows.column(OP).to_numpy() == PUT)
        if self.parts:
            kind = kind_of(self.table.state).core
            later = rows.select(self.names).cast(values.select(self.names).schema)
            made: dict[str, Any] = {}
            for name in self.parts:
                try:
                    made |= kind.join_parts(name, values, later)
                except NoRoom as error:
                    raise Refused(
                        f"{name} of {self.source.stage} cannot be computed over the past: "
                        f"{error.of(rows.select(key)).sentence}",
                        hint="no sum of this type has room for all records; sum a decimal, under another name",
                    ) from error
        else:
            made = {name: values.column(name) for name in self.names}
            takes &= (rows.column(SEQ).to_numpy() < self.since) & self._same_record(rows, values)
        for name, filled in made.items():
            at = rows.schema.get_field_index(name)
            field = rows.schema.field(at)
            rows = rows.set_column(at, field, pc.if_else(pa.array(takes), filled.cast(field.type), rows.column(at)))
        return rows

    def _same_record(self, rows: pa.Table, values: pa.Table) -> npt.NDArray[np.bool_]:
        both = [column.name for column in self.table.values if column.name not in self.names]
        nested = [name for name in both if pa.types.is_nested(rows.schema.field(name).type)]
        same = same_keys(rows, values, [name for name in both if name not in nested])
        for name in nested:
            same &= digests(rows.column(name)) == digests(values.column(name))
        return same


def fill_of(store: ObjectStore, cache: SstCache, table: Table, backfill: Backfill, stage: str) -> Fill:
    """How a backfill of a stage is brought into rows of its table.

    Raises `Refused` where what it computed is gone, and `Unavailable`.
    """
    source = history.find(store, backfill.app, stage, backfill.at)
    if source is None or source.writer != backfill.writer:
        raise Refused(
            f"what was computed for {stage} in {backfill.app} is gone: rows that were read meanwhile cannot get it",
            hint="nothing committed is lost; start again: it goes on with the columns as they are filled",
        )
    names = [column.name for column, number in zip(table.columns, table.ids, strict=True) if number in backfill.columns]
    parts = tuple(name for name in names if name in kind_of(table.state).columns)
    return Fill(store, cache, table, source, backfill.since, tuple(names), parts)


def fill_ssts(
    store: ObjectStore, cache: SstCache, names: tuple[str, str], fills: Sequence[Fill], ssts: Sequence[Sst]
) -> tuple[Sst, ...]:
    """SSTs of a stage (`names`: its app and itself) with the values in them, in the same order.

    One put for each, under a new name; those in which nothing can change stay. What is read comes into the cache.

    Raises `Refused` where a sum has no room, `Corruption` where an SST is missing or damaged, and `Unavailable`.
    """

    def one(sst: Sst) -> Sst:
        due = [fill for fill in fills if fill.parts or sst.seq_min < fill.since]
        if not due:
            return sst
        table = due[0].table

        def filled(rows: pa.Table) -> pa.Table:
            for fill in due:
                rows = fill.rows(rows)
            return rows

        writer = rewritten(store, cache, sst, table, filled)
        app, stage = names
        return writer.put(store, app=app, stage=stage, partition=sst.partition, level=sst.level, cache=cache)

    return tuple(many(one, ssts, _WORKERS))


def fill_changes(
    store: ObjectStore, cache: SstCache, head: Manifest, ssts: Sequence[Sst], due: Sequence[Backfill]
) -> tuple[Sst, ...]:
    """SSTs of a batch that was computed before the head had these backfills. Raises as `fill_of` and `fill_ssts`."""
    assert head.table is not None  # noqa: S101  only a table is backfilled
    fills = [fill_of(store, cache, head.table, each, head.stage) for each in due]
    return fill_ssts(store, cache, (head.app, head.stage), fills, ssts)
