"""Stored rows of a table at a moment: rows that certain versions wrote, or rows of one key.

An SST never changes, so a key is looked up only once in an SST, even if many versions name the SST. An SST whose hash
range excludes the key costs no request. An SST whose filter excludes the key costs the requests for its footer, page
index and filter. An SST that holds the key also costs one page per column. An SST is read whole if it is in the local
cache, or if reading it whole is faster than these requests.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ...state.records import RECORD_OFFSET, RECORD_PARTITION
from ...store.objects.counting import ReadCounters
from ...store.objects.protocol import ObjectStore
from ...store.read.cache import SstCache
from ...store.read.decode import Block
from ...store.read.multi_get import multi_get
from ...store.read.parts import read_hashes
from ...store.read.remote_sst import SMALL_BYTES, PageSelection, RangedSst
from ...store.sst.arrow_types import python_rows
from ...store.sst.hashing import KeyShare, hash_keys, same_keys, sort_keys
from ...store.sst.schema import EXPIRES, HASH, OP, PREV, SEQ, TOMBSTONE, arrow_schema, expired_mask
from ...store.sst.sorted_runs import overlapping
from ...store.versions.entries.ssts import Sst
from ...store.versions.manifest import Manifest, Table
from ..query.columns import visible_schema

_SYSTEM_COLUMNS = ((SEQ, pa.int64()), (OP, pa.uint8()), (EXPIRES, pa.int64()))
_LAST_SEQ = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class TableSide:
    """One side of a comparison: a table at one version, with the clock by which its rows expire."""

    store: ObjectStore
    cache: SstCache
    table: Table
    """Declaration of the table; if this side has no version, the declaration of the other side."""
    manifest: Manifest | None
    clock_ms: int = 0
    """Time by the clock of the table. Rows that expire at this time or earlier are absent."""
    share: KeyShare | None = None

    @property
    def ssts(self) -> Sequence[Sst]:
        return self.manifest.ssts if self.manifest is not None else ()

    @property
    def key(self) -> list[str]:
        return [column.name for column in self.table.key]

    @property
    def value_names(self) -> list[str]:
        """Visible value columns."""
        return [name for name in visible_schema(self.table).names if name not in self.key]

    def empty_rows(self, *, values: bool = False) -> pa.Table:
        columns = arrow_schema((*self.table.key, *(self.table.values if values else ())))
        return pa.schema([(HASH, pa.int64()), *columns, *_SYSTEM_COLUMNS]).empty_table()

    def look_up(
        self, keys: pa.Table, names: Sequence[str], newest: pa.Table | None = None
    ) -> tuple[pa.Table, npt.NDArray[np.bool_]]:
        """Return the values of each key in the columns `names`, and a flag for each key: True if it has a row.

        `keys` has `_hash` and the key columns. Values are null for keys without a row. `newest` is a result of
        `read_newest` with values: rows that are known to be the newest of their keys.
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
            newer=map(Block.from_rows, blocks),
        )
        return values.select(list(names)), present

    def read_stored(
        self,
        sst: Sst,
        column: str,
        low: int,
        high: int,
        *,
        values: bool = False,
        hashes: npt.NDArray[np.int64] | None = None,
    ) -> pa.Table:
        """Return the rows of an SST, visible or not, whose `column` (`_seq`, `_expires_at`) is from `low` to `high`.

        If this side has a `share` of the keys, returns only rows of these keys. `hashes` (ascending), if given, are the
        only `_hash` values to return. The columns are `_hash`, the key columns, the value columns if `values` is set,
        `_seq`, `_op`, and `_expires_at`, which is null if the SST lacks it. If the SST is not in the local cache, reads
        only pages that can hold such rows, or the whole SST if it is small or all rows match.
        """
        schema = self.empty_rows(values=values).schema
        whole = sst.bytes <= SMALL_BYTES or (column == SEQ and low <= sst.seq_min and sst.seq_max <= high)

        def pages(ranged: RangedSst) -> Sequence[PageSelection]:
            return ranged.find_values(column, low, high)

        parts = [schema.empty_table()]
        place, reads = (self.store, self.cache), ReadCounters()
        blocks = (
            _read_blocks(*place, sst, self.table, reads, pages, whole=whole)
            if hashes is None
            else read_hashes(*place, self.table, sst, hashes, schema.names, reads)
        )
        for block in blocks:
            own = block.stored.schema.names
            if column in own:
                at = block.stored.column(column)
                matches = np.asarray(pc.fill_null(pc.and_(pc.greater_equal(at, low), pc.less_equal(at, high)), False))
                if self.share is not None:
                    matches = matches & self._flag_in_share(block, self.share)
                if hashes is not None:
                    matches = matches & (hashes.take(hashes.searchsorted(block.hashes), mode="clip") == block.hashes)
                names = [name for name in schema.names if name != EXPIRES or EXPIRES in own]
                columns = block.take(np.flatnonzero(matches), names).columns
                if EXPIRES not in own:
                    columns.append(pa.nulls(len(columns[0]), pa.int64()))
                parts.append(pa.table(columns, schema=schema))
        return pa.concat_tables(parts)

    def _flag_in_share(self, block: Block, share: KeyShare) -> npt.NDArray[np.bool_]:
        if share.columns == tuple(self.key):
            return share.select_hashes(block.hashes)
        return share.select_rows(block.rows(share.columns))

    def read_newest(self, ssts: Iterable[Sst], low: int, high: int = _LAST_SEQ, *, values: bool = False) -> pa.Table:
        """Return the newest row of each key, among rows of the SSTs whose `_seq` is from `low` to `high`.

        The result is ordered by hash and key. Columns and errors are those of `read_stored`.
        """
        newest_first = sorted(ssts, key=lambda sst: -sst.seq_max)
        parts = (self.read_stored(sst, SEQ, low, high, values=values) for sst in newest_first)
        rows = pa.concat_tables([self.empty_rows(values=values), *parts])
        order, repeats = sort_keys(rows.column(HASH).to_numpy(), rows.select(self.key))
        return rows.take(pa.array(order[~repeats]))

    def read_written(self, seq: int) -> pa.Table:
        """Return the rows with this `_seq`, with values. Columns and errors are those of `read_stored`."""
        ssts = (sst for sst in self.ssts if sst.seq_min <= seq <= sst.seq_max)
        parts = (self.read_stored(sst, SEQ, seq, seq, values=True) for sst in ssts)
        return pa.concat_tables([self.empty_rows(values=True), *parts])

    def flag_hidden(self, rows: pa.Table) -> npt.NDArray[np.bool_]:
        tombstones, gone = np.asarray(pc.equal(rows.column(OP), TOMBSTONE)), expired_mask(rows, self.clock_ms)
        return tombstones if gone is None else tombstones | gone


def _read_blocks(
    store: ObjectStore,
    cache: SstCache,
    sst: Sst,
    table: Table,
    reads: ReadCounters,
    pages: Callable[[RangedSst], Sequence[PageSelection]],
    *,
    whole: bool,
) -> Iterable[Block]:
    mapped = cache.cached_rows(sst, table)
    if mapped is None and whole:
        mapped = cache.fetch_rows(store, sst, table, reads)
    if mapped is not None:
        return mapped.blocks
    ranged = RangedSst(store, sst, table, reads)
    return ranged.read(pages(ranged))


def sst_identity(sst: Sst) -> tuple[str, str]:
    """Return an identity of an SST's object that does not depend on the store root, or on the level of the SST."""
    return sst.object, sst.checksum


def distinct_keys(keys: pa.Table) -> pa.Table:
    """Return each key once, in order of first occurrence: `_hash` and key columns."""
    order, repeats = sort_keys(keys.column(HASH).to_numpy(), keys.drop_columns([HASH]))
    return keys.take(pa.array(np.sort(order[~repeats])))


@dataclass(frozen=True, slots=True)
class StoredRow:
    """Stored row of a key."""

    seq: int
    values: dict[str, object] | None
    expires_ms: int | None
    replaced_seq: int | None
    """`_seq` of the key's previous row, which this row replaced; 0 if there was none, None if unknown."""
    record: tuple[int, int] | None = None
    """Partition and offset of the record that wrote or deleted the row; None if the table does not store it."""


class KeyReader:
    """Looks up one key in the SSTs of any version, including tombstones and expired rows.

    `key` is a table of one row with the normalised values of the key columns. `hashed` is the `_hash` of the key, if
    it is known.
    """

    def __init__(self, store: ObjectStore, cache: SstCache, key: pa.Table, hashed: int | None = None) -> None:
        self.key = key
        self.reads = ReadCounters()
        """Requests and bytes read, manifests not counted."""
        self._store, self._cache = store, cache
        self._hashes = hash_keys(key, key.column_names) if hashed is None else np.array([hashed], np.int64)
        # By object, checksum and schema number, because the table's columns decide how a row is decoded.
        self._cached_rows: dict[tuple[str, str, int], StoredRow | None] = {}

    def ssts_in_range(self, manifest: Manifest) -> tuple[Sst, ...]:
        hashed = int(self._hashes[0])
        return overlapping(manifest.ssts, hashed, hashed)

    def read_newest(self, manifest: Manifest) -> StoredRow | None:
        """Return the newest stored row of the key in a version; None if no row is stored."""
        if manifest.table is None:
            return None
        return self._find_first_row(sorted(self.ssts_in_range(manifest), key=lambda sst: -sst.seq_max), manifest.table)

    def find_seq(self, manifest: Manifest, seq: int, table: Table) -> StoredRow | None:
        """Return the key's row with this `_seq`, in the columns of `table`, if it is the key's newest row in its SST.

        At most one SST of a version can have rows with this `_seq` and a hash range that includes the key.
        """
        candidates = (sst for sst in self.ssts_in_range(manifest) if sst.seq_min <= seq <= sst.seq_max)
        row = self._find_first_row(candidates, table, filtered=False)
        return row if row is not None and row.seq == seq else None

    def _find_first_row(self, ssts: Iterable[Sst], table: Table, *, filtered: bool = True) -> StoredRow | None:
        def pages(sst: RangedSst) -> Sequence[PageSelection]:
            return sst.find_hashes(self._hashes, filtered=filtered)[1]

        # Range reads: the footer, the page index with the filter, and a page per column, of which four are internal.
        # Each request takes as long as reading `SMALL_BYTES`.
        by_ranges = (2 + len(table.columns) + 4) * SMALL_BYTES
        for sst in ssts:
            cache_key = (*sst_identity(sst), table.schema)
            if cache_key not in self._cached_rows:
                whole = sst.bytes <= by_ranges
                blocks = _read_blocks(self._store, self._cache, sst, table, self.reads, pages, whole=whole)
                rows = (self._find_in_block(block, table) for block in blocks)
                self._cached_rows[cache_key] = next((row for row in rows if row is not None), None)
            if (row := self._cached_rows[cache_key]) is not None:
                return row
        return None

    def _find_in_block(self, block: Block, table: Table) -> StoredRow | None:
        low, high = (int(np.searchsorted(block.hashes, self._hashes[0], side)) for side in ("left", "right"))
        key = [column.name for column in table.key]
        shown = [name for name in visible_schema(table).names if name not in key]
        expiry = [EXPIRES] if EXPIRES in block.stored.schema.names else []
        # Different keys may share a hash.
        names = {column.name for column in table.values}
        record = [RECORD_PARTITION, RECORD_OFFSET] if names >= {RECORD_PARTITION, RECORD_OFFSET} else []
        rows = pa.Table.from_batches([block.rows([*key, *shown, SEQ, OP, PREV, *expiry, *record], low, high - low)])
        keys = self.key.take(pa.array(np.zeros(rows.num_rows, np.int64)))
        # The key columns may have been renamed since.
        stored_keys = rows.select(key).rename_columns(self.key.column_names)
        for row_number in np.flatnonzero(same_keys(keys, stored_keys, self.key.column_names)).tolist():
            row = rows.slice(row_number, 1)
            seq, deleted = row.column(SEQ)[0].as_py(), row.column(OP)[0].as_py() == TOMBSTONE
            expires_ms = row.column(EXPIRES)[0].as_py() if expiry else None
            # `python_rows` returns no rows for a table without value columns.
            (visible,) = python_rows(row.select(shown)) or ({},)
            place = tuple(row.column(name)[0].as_py() for name in record)
            at = (place[0], place[1]) if place and None not in place else None
            return StoredRow(seq, None if deleted else visible, expires_ms, row.column(PREV)[0].as_py(), at)
        return None
