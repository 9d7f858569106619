"""Reads the inputs of a merge in hash order, in bounded memory: first keys, then the rows that the merge keeps.

An SST with large rows that is not on this machine is read twice: first the keys of each slice, then only the pages with
rows to keep. Otherwise the merge might hold, for example, eight versions of a 100 MB row in memory, and drop seven of
them.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ..objects.counting import ReadCounters
from ..objects.protocol import ObjectStore
from ..read.cache import SstCache
from ..read.decode import Block
from ..read.remote_sst import RangedSst, SelectedRows
from ..sst.schema import EXPIRES, HASH, OP, add_missing_columns, sst_schema
from ..versions.entries.ssts import Sst
from ..versions.manifest import Table
from ..versions.side_tables import has_parts

CHUNK_BYTES = 16 << 20
"""Limit on the bytes of rows that are copied at a time; a single row may exceed it."""
_LARGE_GROUP_BYTES, _LARGE_ROW_BYTES = 64 << 20, 256 << 10
"""Bytes of a row group, and mean bytes of a row, above which an SST has large rows."""
_LARGE_PARTS_BYTES = 2 << 20
"""Like `_LARGE_GROUP_BYTES`, for a table of parts: a slice contains all parts of a key, because they share a hash."""


@dataclass(frozen=True, slots=True)
class Part:
    """Consecutive rows of one SST, in SST order."""

    keys: pa.Table
    """Keys, `_hash`, `_op` and `_expires_at` of the rows; all columns if `selected` is None."""
    selected: SelectedRows | None = None
    start: int = 0
    """Position of the first row in `selected`."""

    def num_bytes(self, first: int, last: int) -> int:
        """Return the size of the rows from `first` to `last` (inclusive)."""
        if self.selected is None:
            return int(self.keys.slice(first, last - first + 1).nbytes)
        return self.selected.num_bytes(self.start + first, self.start + last)

    def rows(self, at: npt.NDArray[np.int64]) -> tuple[pa.Table, npt.NDArray[np.int64]]:
        """Return rows of the part, and the position in these rows of each requested row. `at` ascends."""
        if self.selected is None:
            return self.keys.slice(at[0], at[-1] - at[0] + 1), at - at[0]
        return self.selected.read(at + self.start), np.arange(len(at))


def take_rows(parts: Sequence[Part], rows: npt.NDArray[np.int64]) -> Iterator[pa.Table]:
    """Yield rows in the order of `rows`, about `CHUNK_BYTES` at a time and at least one row.

    `rows` are positions in the concatenated parts. The positions within each part ascend.
    """
    starts = np.cumsum([0, *(part.keys.num_rows for part in parts)])
    sources = np.searchsorted(starts, rows, side="right") - 1
    pending = [(0, len(rows))] if rows.size else []
    while pending:
        low, high = pending.pop()
        by_part = [(source, np.flatnonzero(sources[low:high] == source)) for source in np.unique(sources[low:high])]
        chosen = [(parts[source], places, rows[low:high][places] - starts[source]) for source, places in by_part]
        if high - low > 1 and sum(part.num_bytes(at[0], at[-1]) for part, _, at in chosen) > CHUNK_BYTES:
            middle = (low + high) // 2
            pending += [(middle, high), (low, middle)]
            continue
        tables: list[pa.Table] = []
        positions, count = np.empty(high - low, np.int64), 0
        for part, places, at in chosen:
            table, within = part.rows(at)
            positions[places] = within + count
            tables.append(table)
            count += table.num_rows
        joined = pa.concat_tables(tables)
        is_whole = len(positions) == count and bool((positions == np.arange(count)).all())
        yield joined if is_whole else joined.combine_chunks().take(pa.array(positions))


class Cursor:
    """Reads one SST in hash order, with one block in memory."""

    def __init__(
        self,
        store: ObjectStore,
        cache: SstCache | None,
        sst: Sst,
        table: Table,
        window: tuple[int, int],
        read_bytes: int,
        names: Collection[str] | None,
    ) -> None:
        """`names` are the columns to read besides the key and the columns that decide if a row is visible."""
        self._sst, self._table, self._read_bytes = sst, table, read_bytes
        narrow = {HASH, OP, EXPIRES, *(column.name for column in table.key)}
        schema = sst_schema(table)
        self._schema = pa.schema([field for field in schema if names is None or field.name in {*names, *narrow}])
        self._keys = pa.schema([field for field in schema if field.name in narrow])
        self._selected: SelectedRows | None = None
        self._blocks = self._read_blocks(store, cache, window)
        self._block: Block | None = None
        self._num_passed = 0

    def read(self, low: int, high: int) -> list[Part]:
        """Return the rows with hashes from `low` to `high` (inclusive).

        `low` must be above `high` of the previous call.
        """
        parts: list[Part] = []
        if low > self._sst.hash_max or high < self._sst.hash_min:
            return parts
        while block := self._block or next(self._blocks, None):
            start = int(np.searchsorted(block.hashes, low))
            end = int(np.searchsorted(block.hashes, high, side="right"))
            if start < end:
                schema = self._schema if self._selected is None else self._keys
                rows = _rows(block, schema, start, end - start)
                parts.append(Part(rows, self._selected, self._num_passed + start))
            self._block = block if end < len(block.hashes) else None
            if self._block:
                break
            self._num_passed += len(block.hashes)
        return parts

    def _read_blocks(self, store: ObjectStore, cache: SstCache | None, window: tuple[int, int]) -> Iterator[Block]:
        mapped = cache.cached_rows(self._sst, self._table) if cache is not None else None
        if mapped is not None:
            yield from mapped.blocks
            return
        ranged = RangedSst(store, self._sst, self._table, ReadCounters())
        pages, schema = ranged.find_values(HASH, *window), self._schema
        large_group_bytes = _LARGE_PARTS_BYTES if has_parts(self._table) else _LARGE_GROUP_BYTES
        if ranged.max_group_bytes > large_group_bytes or ranged.row_bytes > _LARGE_ROW_BYTES:
            self._selected = SelectedRows(ranged, pages, schema.names, lambda block: _rows(block, self._schema))
            schema = self._keys
        yield from ranged.read(pages, schema.names, window_bytes=self._read_bytes)


def _rows(block: Block, schema: pa.Schema, start: int = 0, count: int | None = None) -> pa.Table:
    # SSTs from before the table got a ttl lack `_expires_at`, but merged rows always have the column.
    stored = (block.stored.schema if block.conversion is None else block.conversion.schema).names
    rows = block.rows([name for name in schema.names if name in stored], start, count)
    return add_missing_columns(pa.Table.from_batches([rows]), schema)
