"""Decodes SSTs to sorted blocks of Arrow rows, and finds the rows of keys in a block.

Also `read_whole`, which reads Parquet from memory without leaving references to the bytes in Arrow's threads.

Arrow's readers of tables and row groups pass parts of the file to Arrow's thread pool, whose threads release these
parts a moment after the caller has the rows. To release Python's memory, a thread must take the interpreter's lock. If
it requests the lock while the interpreter shuts down, it is ended inside a C++ destructor, which aborts the process
("terminate called without an active exception"). Reading by batches keeps the parts in the caller's thread.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from ..sst.arrow_types import python_value
from ..sst.hashing import same_keys, sort_keys
from ..sst.schema import EXPIRES, HASH, ColumnConversion, column_conversion
from ..versions.entries.ssts import Sst
from ..versions.manifest import Table
from ..versions.side_tables import has_parts
from .fetch import corruption_error

_SPARSE_STEP = 64
_CACHED_ROWS = 1 << 17
_SMALL_SEARCH = 16
_MAX_COLLISIONS = 4
"""Limit of rows with the same hash that are compared one by one. More rows are compared by a join."""
BLOCK_ROWS, _BLOCK_BYTES = 1 << 20, 64 << 20
_PARTS_BLOCK_BYTES = 16 << 20
"""Size in bytes of a block of parts of lists. Arrow needs three times this memory to decode a block."""


@dataclass(frozen=True, slots=True)
class Block:
    """Consecutive rows of one SST in memory, sorted by hash."""

    stored: pa.RecordBatch
    """Rows with the SST's own columns. `rows` and `take` return the table's columns, which may differ.

    The internal columns (`_hash`, `_seq`, `_op`, `_expires_at`) may be read directly.
    """
    hashes: npt.NDArray[np.int64]
    sparse: npt.NDArray[np.int64]
    """Copy of every 64th hash, which fits into a core's cache; empty for a small block."""
    conversion: ColumnConversion | None = None

    @staticmethod
    def from_rows(rows: pa.RecordBatch, reading: ColumnConversion | None = None) -> "Block":
        hashes = np.asarray(rows.column(HASH))
        sparse = hashes[:: _SPARSE_STEP if len(hashes) > _CACHED_ROWS else len(hashes) + 1][1:].copy()
        return Block(rows, hashes, sparse, reading)

    def rows(self, names: Sequence[str], start: int = 0, count: int | None = None) -> pa.RecordBatch:
        stored = self.stored if not start and count is None else self.stored.slice(start, count)
        return stored.select(names) if self.conversion is None else self.conversion.convert(stored, names)

    def take(self, at: npt.NDArray[np.int64], names: Sequence[str]) -> pa.RecordBatch:
        """Return the named columns of the rows at positions `at`. Other rows are not converted."""
        if self.conversion is None:
            return self.stored.select(names).take(pa.array(at))
        return self.conversion.convert(
            self.stored.select(self.conversion.stored_names(names)).take(pa.array(at)), names
        )

    def find(self, hashes: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the position of each hash in the block, like `numpy.searchsorted`. The hashes are ascending.

        In a large block, each step of a binary search waits for memory. Here all hashes take a step together, so that
        the waits overlap. This halves the time to find 20,000 hashes among 2.5 M.
        """
        if not self.sparse.size or hashes.size <= _SMALL_SEARCH:
            return self.hashes.searchsorted(hashes)
        # The last sampled row below each hash, or the first row of the block.
        at = np.searchsorted(self.sparse, hashes) * _SPARSE_STEP
        step = _SPARSE_STEP // 2
        while step:
            at += (self.hashes.take(at + step, mode="clip") < hashes) * step
            step //= 2
        at += self.hashes.take(at, mode="clip") < hashes
        return np.minimum(at, len(self.hashes))

    def match(
        self,
        hashes: npt.NDArray[np.int64],
        keys: pa.Table | pa.RecordBatch,
        positions: npt.NDArray[np.int64],
        columns: Sequence[str],
    ) -> Iterator[tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], pa.RecordBatch, npt.NDArray[np.bool_]]]:
        """Find the keys at these `positions` of `keys` in the block. `hashes` has the hashes of all `keys`, ascending.

        Yields four aligned values for the keys whose hash is in the block: positions of the keys; the index of a row
        with the key's hash; `columns` of these rows; and a mask. The mask is True if the row has the searched key. If
        it is False (a hash collision), the key is yielded again with the next row of the same hash, if any.
        """
        positions, at = self.locate(hashes, positions)
        for _ in range(_MAX_COLLISIONS):
            if not positions.size:
                return
            rows = self.take(at, columns)
            same = same_keys(keys.take(pa.array(positions)), rows, keys.schema.names)
            yield positions, at, rows, same
            # After a collision, the next row may have the same hash.
            positions, at = positions[~same], at[~same] + 1
            more = self._has_hashes(at, hashes[positions])
            positions, at = positions[more], at[more]
        if positions.size:
            yield self._join(hashes[positions], keys, positions, columns)

    def locate(
        self, hashes: npt.NDArray[np.int64], positions: npt.NDArray[np.int64]
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return the `positions` whose hash is in the block, and the first row of each such hash.

        `positions` refer to `hashes`, which are ascending.
        """
        hashes = hashes[positions]
        if not self.hashes.size:
            return positions[:0], positions[:0]
        if hashes.size > _SMALL_SEARCH:
            low = hashes.searchsorted(self.hashes[0])
            high = hashes.searchsorted(self.hashes[-1], side="right")
            positions, hashes = positions[low:high], hashes[low:high]
        at = self.find(hashes)
        present = self._has_hashes(at, hashes)
        return positions[present], at[present]

    def _has_hashes(self, at: npt.NDArray[np.int64], hashes: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        # A hash above all hashes of the block, or a collision, may lead past the last row.
        present: npt.NDArray[np.bool_] = (self.hashes.take(at, mode="clip") == hashes) & (at < self.hashes.size)
        return present

    def _join(
        self,
        hashes: npt.NDArray[np.int64],
        keys: pa.Table | pa.RecordBatch,
        positions: npt.NDArray[np.int64],
        columns: Sequence[str],
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], pa.RecordBatch, npt.NDArray[np.bool_]]:
        """Find keys whose hash many rows share, such as the parts of one list, by a join with all rows of their hashes.

        Returns the same four values as `match` yields, without rows of other keys.
        """
        at = self.rows_with(np.unique(hashes))[1]
        names = keys.schema.names
        own = pa.Table.from_batches([self.take(at, names)])
        chosen = keys.take(pa.array(positions)).select(names)
        requested = pa.Table.from_batches([chosen]) if isinstance(chosen, pa.RecordBatch) else chosen
        both = pa.concat_tables([requested.cast(own.schema), own])
        order, repeats = sort_keys(np.concatenate([hashes, self.hashes[at]]), both)
        numbers = np.empty(len(order), np.int64)
        numbers[order] = np.cumsum(~repeats)
        row_of = np.full(len(order) + 1, -1)
        row_of[numbers[len(hashes) :]] = np.arange(len(at))
        matches = row_of[numbers[: len(hashes)]]
        is_match = matches >= 0
        at = at[matches[is_match]]
        return positions[is_match], at, self.take(at, columns), np.ones(len(at), np.bool_)

    def rows_with(self, hashes: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return two arrays for all rows with these hashes: the index into `hashes`, and the row's position."""
        low, high = (self.hashes.searchsorted(hashes, side=side) for side in ("left", "right"))
        owners = np.repeat(np.arange(len(hashes)), high - low)
        starts = np.repeat(low - np.concatenate(([0], np.cumsum(high - low)[:-1])), high - low)
        return owners, starts + np.arange(len(owners))


def check_columns(sst: Sst, table: Table, stored: pa.Schema, rows: int) -> ColumnConversion | None:
    """Return the conversion of an SST file's columns to the table's columns; None if they are equal.

    Raises `Corruption` if the table never had these columns, or if `rows` differs from the row count in the manifest.
    It is no error if the file has, or lacks, `_expires_at`.
    """
    try:
        conversion = column_conversion(stored, table)
    except (ValueError, pa.ArrowException) as error:
        raise corruption_error(sst, str(error)) from error
    if rows != sst.rows:
        raise corruption_error(sst, f"expected {sst.rows} rows, found {rows}")
    return conversion


def decode(data: bytes, sst: Sst, table: Table, *, use_threads: bool = True) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a whole SST, in order and with the SST's columns, a block at a time.

    Without `use_threads`, all work is done in the caller's thread, at its priority; Arrow's threads have the priority
    of the process. Raises `Corruption` if the bytes are not Parquet, or if the table never had the SST's columns.
    """
    try:
        file = pq.ParquetFile(pa.BufferReader(data))
        check_columns(sst, table, file.schema_arrow, file.metadata.num_rows)
        groups = range(file.num_row_groups)
        num_bytes = sum(file.metadata.row_group(group).total_byte_size for group in groups)
        block_bytes = _PARTS_BLOCK_BYTES if has_parts(table) else _BLOCK_BYTES
        block_rows = int(block_bytes * sst.rows / max(num_bytes, 1))
        yield from file.iter_batches(batch_size=max(1, min(BLOCK_ROWS, block_rows)), use_threads=use_threads)
    except (pa.ArrowException, OSError) as error:
        raise corruption_error(sst, f"it cannot be decoded ({error})") from error


def read_whole(data: bytes | pa.Buffer, *, check_pages: bool = False) -> pa.Table:
    """Return all rows of a Parquet file. With `check_pages`, the checksum of each page is verified.

    Raises `ArrowException` or `OSError` if the file is damaged or is not Parquet.
    """
    file = pq.ParquetFile(pa.BufferReader(data), page_checksum_verification=check_pages)
    return read_groups(file, range(file.num_row_groups))


def read_groups(file: pq.ParquetFile, groups: Sequence[int], columns: Sequence[str] | None = None) -> pa.Table:
    """Return the rows of these row groups of a file, in the given order. `columns` of None are all columns."""
    rows = sum(file.metadata.row_group(group).num_rows for group in groups)
    batches = file.iter_batches(batch_size=max(rows, 1), row_groups=list(groups), columns=columns and list(columns))
    schema = file.schema_arrow
    return pa.Table.from_batches(batches, schema if columns is None else pa.schema([schema.field(c) for c in columns]))


class Cells(dict[str, Callable[[int], object]]):
    """Functions that return a block's value at a position, by column name. Created on first use. Thread-safe.

    Values are converted as by `arrow_types.python_rows`.
    """

    def __init__(self, block: Block) -> None:
        super().__init__()
        self._block = block
        self.hashes = block.hashes.data
        self.find = block.hashes.searchsorted
        self.may_expire = EXPIRES in block.stored.schema.names

    def __missing__(self, name: str) -> Callable[[int], object]:
        accessor = self[name] = self._column(name)
        return accessor

    def _column(self, name: str) -> Callable[[int], object]:
        block = self._block
        source = block.conversion.sources.get(name) if block.conversion is not None else None
        if source is None:
            return _value_accessor(block.stored.column(name))
        if source.name is None:
            default = python_value(source.default)
            return lambda _at: default
        column, kind = block.stored.column(source.name), source.type
        if source.stored_type == kind:
            return _value_accessor(column)
        return lambda at: python_value(column.slice(at, 1).cast(kind)[0])


def _value_accessor(column: pa.Array) -> Callable[[int], object]:
    types, kind = pa.types, column.type
    is_number = types.is_integer(kind) or types.is_float32(kind) or types.is_float64(kind)
    if is_number and not column.null_count:
        # Costs a tenth of an Arrow scalar.
        return np.asarray(column).data.__getitem__
    if types.is_string(kind) and not column.null_count and (data := column.buffers()[2]) is not None:
        ends = np.frombuffer(column.buffers()[1], np.int32, len(column) + 1, column.offset * 4).data
        text = memoryview(data)
        return lambda at: str(text[ends[at] : ends[at + 1]], "utf-8", "backslashreplace")
    return lambda at: python_value(column[at])
