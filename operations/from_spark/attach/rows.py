"""Rows of a batch as SSTs: those that it changed, or those in which a whole state differs from what is stored.

Memory is that of the changed rows, and of a few SSTs: a whole state is sorted by DuckDB, on disk where it is large, and
compared with the stored one a range of hashes at a time.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from msgspec.structs import replace

from ....snapshot.diff.key_changes import KeyChanges
from ....store.compaction.merge import merged_rows
from ....store.objects.many import many
from ....store.objects.protocol import ObjectStore
from ....store.read.cache import SstCache
from ....store.read.multi_get import multi_get
from ....store.sst import writer
from ....store.sst.expiry import with_expiry
from ....store.sst.hashing import hash_keys, normalise_keys, partition_of, sort_keys
from ....store.sst.types import HASH, OP, PUT, SEQ, TOMBSTONE, arrow_schema
from ....store.versions.manifest import Manifest, Sst, Table
from ...exchange.initialise import by_hash, by_slot, slots_of
from ..checkpoint.protocol import APPENDED, DELETED
from .tables import fitting

_AT_ONCE = 2
"""SSTs that are written at the same time."""


@dataclass(slots=True)
class RowWriter:
    """Puts SSTs for the next version of a stage, which nothing names yet."""

    store: ObjectStore
    cache: SstCache
    app: str
    stage: str
    clock_ms: int = 0
    """From when a time to live counts, where a table has one that does so from when a row is written."""

    def changed(self, table: Table, rows: pa.Table, seq: int, ssts: Sequence[Sst] = ()) -> tuple[Sst, ...]:
        """Rows that a batch changed, key, values and `DELETED`, as one SST of each state partition that has some.

        Where only what is appended to a list is there (`APPENDED`), the rest is looked up in `ssts`, the table's.
        """
        if not rows.num_rows:
            return ()
        gone, key = np.asarray(rows[DELETED]), [column.name for column in table.key]
        made = _with_hashes(fitting(rows, table.columns), key)
        if APPENDED in rows.column_names:
            made = self._with_stored(table, ssts, made, np.flatnonzero(rows[APPENDED]))
        made = made.append_column(OP, pa.array(np.where(gone, TOMBSTONE, PUT).astype(np.uint8)))
        numbers = partition_of(made[HASH].to_numpy(), table.partitions)
        parts = ((p, made.filter(pa.array(numbers == p))) for p in np.unique(numbers).tolist())
        return self._write(table, parts, seq, level=0)

    def _with_stored(self, table: Table, ssts: Sequence[Sst], made: pa.Table, at: npt.NDArray[np.int64]) -> pa.Table:
        """The rows, those at these positions with the elements behind those of the stored row."""
        rows, (value,) = made.take(pa.array(at)), (column.name for column in table.values)
        hashes, keys = rows[HASH].to_numpy(), rows.select([column.name for column in table.key])
        stored, _ = multi_get(self.store, self.cache, ssts, table, hashes, keys, clock_ms=self.clock_ms)
        where, column = made.column_names.index(value), made[value].combine_chunks()
        before = pa.nulls(len(column), column.type) if not len(at) else stored[value].combine_chunks()
        positions = np.full(len(column), -1)
        positions[at] = np.arange(len(at))
        whole = joined_lists(before.take(pa.array(positions, mask=positions < 0)), column)
        return made.set_column(where, made.schema.field(where), whole)

    def differing(self, at: Manifest, rows: Iterable[pa.RecordBatch], seq: int) -> tuple[Sst, ...]:
        """What makes a table's rows those of a whole state: one sorted run, where the table is empty so far."""
        assert at.table is not None  # noqa: S101  it is a version of one table
        return self._write(at.table, self._differences(at, at.table, rows), seq, level=0 if at.ssts else 1)

    def _differences(
        self, at: Manifest, table: Table, rows: Iterable[pa.RecordBatch]
    ) -> Iterator[tuple[int, pa.Table]]:
        key, size = [column.name for column in table.key], 0

        def on_read(_rows: int, num_bytes: int) -> None:
            nonlocal size
            size += num_bytes

        columns = arrow_schema(table.columns)
        fit = (some for each in rows for some in fitting(each, table.columns).combine_chunks().to_batches())
        none = pa.schema([pa.field(HASH, pa.int64()), *columns]).empty_table()
        slots, following = table.partitions, 0
        for slot, slots, new in by_slot(by_hash(fit, columns, tuple(key), on_read), lambda: slots_of(table, size)):
            for missing in range(following, slot):
                yield from self._difference(at, table, missing, slots, none)
            yield from self._difference(at, table, slot, slots, new)
            following = slot + 1
        for missing in range(following, slots):
            yield from self._difference(at, table, missing, slots, none)

    def _difference(
        self, at: Manifest, table: Table, slot: int, slots: int, new: pa.Table
    ) -> Iterator[tuple[int, pa.Table]]:
        """The rows of a slot that are put or deleted, with its state partition; nothing where none is."""
        names, key = [HASH, *(column.name for column in table.columns)], [column.name for column in table.key]
        old = new.slice(0, 0)
        if at.ssts:
            stored = merged_rows(self.store, self.cache, at.ssts, replace(table, partitions=slots), slot, 0)
            old = pa.concat_tables([old, *(some.select(names).cast(old.schema) for some in stored)])
        changed = between(old, normalise_keys(new, key), key)
        if changed.num_rows:
            yield slot * table.partitions // slots, changed

    def _write(self, table: Table, parts: Iterable[tuple[int, pa.Table]], seq: int, *, level: int) -> tuple[Sst, ...]:
        # What has level 1 may be all of a large state: it does not fit into the cache, perhaps.
        kept = None if level else self.cache
        put = partial(writer.write, self.store, kept, app=self.app, stage=self.stage, table=table, level=level)

        def write(part: tuple[int, pa.Table]) -> Sst:
            partition, rows = part
            stamped = rows.append_column(SEQ, pa.repeat(pa.scalar(seq, pa.int64()), rows.num_rows))
            return put(partition=partition, rows=with_expiry(stamped, table, self.clock_ms))

        return tuple(many(write, parts, _AT_ONCE, ahead=_AT_ONCE))


def between(old: pa.Table, new: pa.Table, key: list[str]) -> pa.Table:
    """What makes `new` of `old`: both have `_hash`, key and values, and each key once. The rows have `_op`, too."""
    both = pa.concat_tables([old, new]).combine_chunks()
    order, repeats = sort_keys(both[HASH].to_numpy(), both.select(key))
    # Equal keys keep their order: the stored row comes right before the new one.
    same = np.flatnonzero(repeats)
    was, now = order[same - 1], order[same]
    values = [name for name in old.column_names if name not in (HASH, *key)]
    before, after = (both.take(pa.array(rows)) for rows in (was, now))
    there = np.ones(len(same), np.bool_)
    pairs = KeyChanges.between(after.select(key), before.select(values), after.select(values), there, there)
    stays = np.zeros(both.num_rows, np.bool_)
    stays[was] = True
    stays[now[pairs.kinds() == "same"]] = True
    ops = np.full(both.num_rows, PUT, np.uint8)
    ops[: old.num_rows] = TOMBSTONE
    return both.append_column(OP, pa.array(ops)).filter(pa.array(~stays))


def joined_lists(before: pa.ListArray, after: pa.ListArray) -> pa.ListArray:
    """Of each row the elements of both, one after the other; null where both are."""
    parts = (before, after)
    counts = [np.asarray(pc.fill_null(pc.list_value_length(each), 0)) for each in parts]
    rows = np.concatenate([np.repeat(np.arange(len(after)), count) for count in counts])
    values = pa.concat_arrays([each.flatten() for each in parts]).take(pa.array(np.argsort(rows, kind="stable")))
    ends = np.concatenate([[0], np.cumsum(counts[0] + counts[1])])
    nulls = pc.and_(*(each.is_null() for each in parts))
    return pa.ListArray.from_arrays(pa.array(ends, pa.int32()), values, type=after.type, mask=nulls)


def _with_hashes(rows: pa.Table, key: list[str]) -> pa.Table:
    rows = normalise_keys(rows, key)
    return rows.add_column(0, HASH, pa.array(hash_keys(rows, key)))
