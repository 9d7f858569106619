"""The stored rows of a table at a moment, as many as are asked for: those of some versions, and those of one key.

An SST never changes, so for a key each is looked into once, however many versions name it. One that cannot hold the key
costs no request where its range of hashes says so, those for its footer, page index and filter where the filter does;
one that holds it also one for a page of each column. SSTs for which that is more than reading them whole, and those on
this machine, are read whole.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ...store.objects.protocol import ObjectStore
from ...store.objects.stats import Reads
from ...store.read.cache import SstCache
from ...store.read.decode import Block
from ...store.read.multi_get import multi_get
from ...store.read.remote_sst import SMALL_BYTES, Part, RangedSst
from ...store.sst.arrow_types import python_rows
from ...store.sst.expiry import expired
from ...store.sst.hashing import same_keys, sort_keys
from ...store.sst.key_share import KeyShare
from ...store.sst.sorted_runs import overlapping
from ...store.sst.types import EXPIRES, HASH, OP, PREV, SEQ, TOMBSTONE, arrow_schema
from ...store.versions.manifest import Manifest, Sst, Table
from ..query.columns import visible_schema

_SYSTEM = ((SEQ, pa.int64()), (OP, pa.uint8()), (EXPIRES, pa.int64()))
_LAST_SEQ = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class TableSide:
    """One side of a comparison: a table at one version, by one clock."""

    store: ObjectStore
    cache: SstCache
    table: Table
    """The declared columns; for a side without a version those of the other one."""
    manifest: Manifest | None
    """None where the table had no version yet: then it holds nothing."""
    clock_ms: int = 0
    """Rows that expire at this time or before are absent."""
    share: KeyShare | None = None
    """The keys whose rows count; None for all."""

    @property
    def ssts(self) -> tuple[Sst, ...]:
        """The SSTs that its rows are in."""
        return self.manifest.ssts if self.manifest is not None else ()

    @property
    def key(self) -> list[str]:
        """Names of the key columns."""
        return [column.name for column in self.table.key]

    def no_rows(self, *, values: bool = False) -> pa.Table:
        """What `stored` returns where there are none."""
        columns = arrow_schema((*self.table.key, *(self.table.values if values else ())))
        return pa.schema([(HASH, pa.int64()), *columns, *_SYSTEM]).empty_table()

    def look_up(
        self, keys: pa.Table, names: Sequence[str], newest: pa.Table | None = None
    ) -> tuple[pa.Table, npt.NDArray[np.bool_]]:
        """Of each key (`_hash` and key columns) its values in the columns `names`, and whether it has a row.

        Values are null where it has none. `newest` are rows as the method of that name gives them, with their values,
        and newer than any other.
        """
        blocks = newest.combine_chunks().to_batches() if newest is not None else ()
        values, present = multi_get(
            self.store,
            self.cache,
            self.ssts,
            self.table,
            keys.column(HASH).to_numpy(),
            keys.drop_columns([HASH]),
            clock_ms=self.clock_ms,
            newer=map(Block.of, blocks),
        )
        return values.select(list(names)), present

    def stored(self, sst: Sst, column: str, low: int, high: int, *, values: bool = False) -> pa.Table:
        """The rows of an SST, visible or not, whose `column` (`_seq`, `_expires_at`) lies from `low` to `high`.

        With a `share`, those of its keys alone. They have `_hash`, the key columns, with `values` these too, `_seq`,
        `_op`, and `_expires_at`, which is null where the SST has none. Of an SST that this machine does not have, and
        not all of which is asked for, only the pages are read in which such rows can be. Raises as `look_up`.
        """
        schema = self.no_rows(values=values).schema
        whole = sst.bytes <= SMALL_BYTES or (column == SEQ and low <= sst.seq_min and sst.seq_max <= high)

        def pages(ranged: RangedSst) -> Sequence[Part]:
            return ranged.having(column, low, high)

        found = [schema.empty_table()]
        for block in _blocks(self.store, self.cache, sst, self.table, Reads(), pages, whole=whole):
            own = block.stored.schema.names
            if column in own:
                at = block.stored.column(column)
                matches = np.asarray(pc.fill_null(pc.and_(pc.greater_equal(at, low), pc.less_equal(at, high)), False))
                if self.share is not None:
                    matches = matches & self._in_share(block, self.share)
                names = [name for name in schema.names if name != EXPIRES or EXPIRES in own]
                columns = block.take(np.flatnonzero(matches), names).columns
                if EXPIRES not in own:
                    columns.append(pa.nulls(len(columns[0]), pa.int64()))
                found.append(pa.table(columns, schema=schema))
        return pa.concat_tables(found)

    def _in_share(self, block: Block, share: KeyShare) -> npt.NDArray[np.bool_]:
        """Which rows of a block have a key of a share."""
        if share.columns == tuple(self.key):
            return share.of_hashes(block.hashes)
        return share.of_rows(block.rows(share.columns))

    def newest(self, ssts: Iterable[Sst], low: int, high: int = _LAST_SEQ, *, values: bool = False) -> pa.Table:
        """Of each key the newest of its rows in these SSTs with a `_seq` from `low` to `high`, by hash and key.

        With the columns and errors of `stored`.
        """
        newest_first = sorted(ssts, key=lambda sst: -sst.seq_max)
        found = (self.stored(sst, SEQ, low, high, values=values) for sst in newest_first)
        rows = pa.concat_tables([self.no_rows(values=values), *found])
        order, repeats = sort_keys(rows.column(HASH).to_numpy(), rows.select(self.key))
        return rows.take(pa.array(order[~repeats]))

    def hidden(self, rows: pa.Table) -> npt.NDArray[np.bool_]:
        """Which of these stored rows are tombstones, or have expired."""
        tombstones, gone = np.asarray(pc.equal(rows.column(OP), TOMBSTONE)), expired(rows, self.clock_ms)
        return tombstones if gone is None else tombstones | gone


def _blocks(
    store: ObjectStore,
    cache: SstCache,
    sst: Sst,
    table: Table,
    reads: Reads,
    pages: Callable[[RangedSst], Sequence[Part]],
    *,
    whole: bool,
) -> Iterable[Block]:
    """The rows of an SST: all where this machine has it, or may have it to read it `whole`; else those of `pages`."""
    mapped = cache.peek(sst, table)
    if mapped is None and whole:
        mapped = cache.bring(store, sst, table, reads)
    if mapped is not None:
        return mapped.blocks
    ranged = RangedSst(store, sst, table, reads)
    return ranged.read(pages(ranged))


def identity(sst: Sst) -> tuple[str, str]:
    """Equal for SSTs that hold the same rows: the same object, whatever root it lies under and at whatever level."""
    return sst.object, sst.checksum


def distinct(keys: pa.Table) -> pa.Table:
    """Each key once, in the order in which they come first: `_hash` and key columns."""
    order, repeats = sort_keys(keys.column(HASH).to_numpy(), keys.drop_columns([HASH]))
    return keys.take(pa.array(np.sort(order[~repeats])))


@dataclass(frozen=True, slots=True)
class StoredRow:
    """A row of a key, as it was written."""

    seq: int
    """`_seq`: which version wrote it."""
    values: dict[str, object] | None
    """The visible value columns; None for a tombstone."""
    expires_ms: int | None
    """When it expires, milliseconds since 1970 UTC; None for never."""
    replaced: int | None
    """`_seq` of the row of the key that was stored when this one was made; 0 for none, None where nobody knows."""


class StoredKey:
    """Finds one key in the SSTs of any version: its newest stored row, tombstone or expired though it may be.

    `key` has the key columns, normalised: one row; `hashed` is its `_hash`.
    """

    def __init__(self, store: ObjectStore, cache: SstCache, key: pa.Table, hashed: int) -> None:
        self.key = key
        self.reads = Reads()
        """What looking took, manifests aside."""
        self._store, self._cache = store, cache
        self._hashes = np.array([hashed], np.int64)
        # By the columns that the table had, too.
        self._found: dict[tuple[str, str, int], StoredRow | None] = {}

    def ssts(self, manifest: Manifest) -> tuple[Sst, ...]:
        """The SSTs of a version whose range of hashes has the key's."""
        hashed = int(self._hashes[0])
        return overlapping(manifest.ssts, hashed, hashed)

    def newest(self, manifest: Manifest) -> StoredRow | None:
        """The row that decides what a version shows of the key; None when it stores none."""
        if manifest.table is None:
            return None
        return self._first(sorted(self.ssts(manifest), key=lambda sst: -sst.seq_max), manifest.table)

    def of_seq(self, manifest: Manifest, seq: int, table: Table) -> StoredRow | None:
        """The row with this `_seq`, read as one of the table, where it is the newest one in its SST at that version.

        Of the SSTs of a version that may have the key one at most has rows of that time. Raises as `newest`.
        """
        of_its_time = (sst for sst in self.ssts(manifest) if sst.seq_min <= seq <= sst.seq_max)
        row = self._first(of_its_time, table, filtered=False)
        return row if row is not None and row.seq == seq else None

    def _first(self, ssts: Iterable[Sst], table: Table, *, filtered: bool = True) -> StoredRow | None:
        """The key's row in the first of these SSTs that has one; a filter only says that it may be there."""

        def pages(sst: RangedSst) -> Sequence[Part]:
            return sst.find(self._hashes, filtered=filtered)[1]

        # By ranges: the footer, the page index with the filter, and a page of each column, of which four are our own.
        # In time, each of these requests is worth `SMALL_BYTES`.
        by_ranges = (2 + len(table.columns) + 4) * SMALL_BYTES
        for sst in ssts:
            place = (*identity(sst), table.schema)
            if place not in self._found:
                whole = sst.bytes <= by_ranges
                blocks = _blocks(self._store, self._cache, sst, table, self.reads, pages, whole=whole)
                rows = (self._in_block(block, table) for block in blocks)
                self._found[place] = next((row for row in rows if row is not None), None)
            if (row := self._found[place]) is not None:
                return row
        return None

    def _in_block(self, block: Block, table: Table) -> StoredRow | None:
        low, high = (int(np.searchsorted(block.hashes, self._hashes[0], side)) for side in ("left", "right"))
        key = [column.name for column in table.key]
        shown = [name for name in visible_schema(table).names if name not in key]
        expiry = [EXPIRES] if EXPIRES in block.stored.schema.names else []
        # Different keys may share a hash.
        rows = pa.Table.from_batches([block.rows([*key, *shown, SEQ, OP, PREV, *expiry], low, high - low)])
        keys = self.key.take(pa.array(np.zeros(rows.num_rows, np.int64)))
        # Its columns may have been called otherwise.
        theirs = rows.select(key).rename_columns(self.key.column_names)
        for row_number in np.flatnonzero(same_keys(keys, theirs, self.key.column_names)).tolist():
            row = rows.slice(row_number, 1)
            seq, deleted = row.column(SEQ)[0].as_py(), row.column(OP)[0].as_py() == TOMBSTONE
            expires_ms = row.column(EXPIRES)[0].as_py() if expiry else None
            # A table may have no columns beside its key; then these have no rows either.
            (visible,) = python_rows(row.select(shown)) or ({},)
            return StoredRow(seq, None if deleted else visible, expires_ms, row.column(PREV)[0].as_py())
        return None
