"""SSTs on their way in: from the bytes of an object to sorted blocks of Arrow rows, and the rows of keys in a block.

Here too: Parquet in memory, read whole such that no thread of Arrow's holds the file once its rows are there.

Arrow's readers of tables and of row groups hand parts of the file to its pool, whose threads let go of them a moment
after the caller has the rows. To let go of memory that is Python's they need the interpreter's lock; a thread that asks
for it while the interpreter ends is ended in the middle of a C++ destructor, and with it the process ("terminate called
without an active exception"). Read by batches, the parts stay with the caller, and the pool only works on them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from ..sst.evolution import Reading, reading
from ..sst.hashing import same_keys
from ..sst.types import HASH
from ..versions.manifest import Sst, Table
from .fetch import corrupt

_SPARSE = 64
_CACHED_ROWS = 1 << 17
_FEW = 16
"""Of so many keys, a search costs less than to see which of them need one."""
BLOCK_ROWS = 1 << 20
"""Rows of a block of a decoded SST: bounds the memory that decoding takes, whatever the SST's size."""


@dataclass(frozen=True, slots=True)
class Block:
    """Consecutive rows of one SST that lie together in memory."""

    stored: pa.RecordBatch
    """As the SST has them. Columns of its own (`_hash`, `_seq`, `_op`, `_expires_at`) may be read from here; those of
    the table only through `rows` and `take`."""
    hashes: npt.NDArray[np.int64]
    """The rows' `_hash`, ascending: numpy's view of the same memory."""
    sparse: npt.NDArray[np.int64]
    """A copy of each 64th of them, which a core's cache can hold; empty for a small block, which it can hold whole."""
    reading: Reading | None = None
    """How they are read as the table's; None where they are that already."""

    @staticmethod
    def of(rows: pa.RecordBatch, reading: Reading | None = None) -> "Block":
        """The block over these rows, which have the columns of an SST and its order."""
        hashes = np.asarray(rows.column(HASH))
        sparse = hashes[:: _SPARSE if len(hashes) > _CACHED_ROWS else len(hashes) + 1][1:].copy()
        return Block(rows, hashes, sparse, reading)

    def rows(self, names: Sequence[str], start: int = 0, count: int | None = None) -> pa.RecordBatch:
        """These columns, the table's or an SST's own, of all rows or of some that lie side by side."""
        stored = self.stored if not start and count is None else self.stored.slice(start, count)
        return stored.select(names) if self.reading is None else self.reading.read(stored, names)

    def take(self, at: npt.NDArray[np.int64], names: Sequence[str]) -> pa.RecordBatch:
        """These columns of the rows at these places. Only these rows are brought to what the table has now."""
        if self.reading is None:
            return self.stored.select(names).take(pa.array(at))
        return self.reading.read(self.stored.select(self.reading.stored_names(names)).take(pa.array(at)), names)

    def find(self, hashes: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """`numpy.searchsorted` of these hashes (ascending) in the block's, from the left.

        In a large block the last steps of a binary search each wait for memory; taken by all hashes together, the waits
        overlap. Half the time, for 20,000 hashes in 2.5 M.
        """
        if not self.sparse.size or hashes.size <= _FEW:
            return self.hashes.searchsorted(hashes)
        # The last row that is known to come before, or the block's first.
        at = np.searchsorted(self.sparse, hashes) * _SPARSE
        step = _SPARSE // 2
        while step:
            further = np.minimum(at + step, len(self.hashes) - 1)
            at = np.where(self.hashes[further] < hashes, further, at)
            step //= 2
        return at + (self.hashes[at] < hashes)

    def match(
        self,
        hashes: npt.NDArray[np.int64],
        keys: pa.Table | pa.RecordBatch,
        wanted: npt.NDArray[np.int64],
        columns: Sequence[str],
    ) -> Iterator[tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], pa.RecordBatch, npt.NDArray[np.bool_]]]:
        """Look for the keys at the `wanted` positions of `keys`; `hashes` are those of all `keys`, ascending.

        Yields positions, where in the block there is a row with the hash of each, `columns` of these rows, and whether
        they have the very key. Who met another key comes again with the next row of that hash, if there is one.
        """
        if not self.hashes.size:
            return
        hashes = hashes[wanted]
        if hashes.size > _FEW:
            low = hashes.searchsorted(self.hashes[0])
            high = hashes.searchsorted(self.hashes[-1], side="right")
            wanted, hashes = wanted[low:high], hashes[low:high]
        at = self.find(hashes)
        while wanted.size:
            # A hash beyond the block's, or a collision, may lead beyond its last row.
            candidates = (self.hashes.take(at, mode="clip") == hashes) & (at < self.hashes.size)
            if not candidates.any():
                return
            wanted, hashes, at = wanted[candidates], hashes[candidates], at[candidates]
            rows = self.take(at, columns)
            same = same_keys(keys.take(pa.array(wanted)), rows, keys.schema.names)
            yield wanted, at, rows, same
            wanted, hashes, at = wanted[~same], hashes[~same], at[~same] + 1


def check_shape(sst: Sst, table: Table, found: pa.Schema, rows: int) -> Reading | None:
    """How a file is read as an SST of the table (`evolution.reading`); None where it has the table's own columns.

    It may have `_expires_at` or not, whatever the table has now. Raises `Corruption` unless the table has, or had,
    these columns, and the manifest says as many rows.
    """
    try:
        how = reading(found, table)
    except (ValueError, pa.ArrowException) as error:
        raise corrupt(sst, str(error)) from error
    if rows != sst.rows:
        raise corrupt(sst, f"expected {sst.rows} rows, found {rows}")
    return how


def decode(data: bytes, sst: Sst, table: Table) -> Iterator[pa.RecordBatch]:
    """The rows of a whole SST as it has them, in its order, at most `BLOCK_ROWS` at a time.

    Raises `Corruption` where the bytes are not Parquet, or not of columns that the table has or had.
    """
    try:
        file = pq.ParquetFile(pa.BufferReader(data))
        check_shape(sst, table, file.schema_arrow, file.metadata.num_rows)
        yield from file.iter_batches(batch_size=BLOCK_ROWS)
    except (pa.ArrowException, OSError) as error:
        raise corrupt(sst, f"it cannot be decoded ({error})") from error


def read_whole(data: bytes | pa.Buffer, *, check_pages: bool = False) -> pa.Table:
    """All rows of a Parquet file; `check_pages` compares each page with its own checksum.

    Raises `ArrowException` or `OSError` where it is no Parquet, or a page is damaged.
    """
    file = pq.ParquetFile(pa.BufferReader(data), page_checksum_verification=check_pages)
    return read_groups(file, range(file.num_row_groups))


def read_groups(file: pq.ParquetFile, groups: Sequence[int], columns: Sequence[str] | None = None) -> pa.Table:
    """The rows of these row groups, in this order; of these columns, or of all. Raises as `read_whole`."""
    rows = sum(file.metadata.row_group(group).num_rows for group in groups)
    batches = file.iter_batches(batch_size=max(rows, 1), row_groups=list(groups), columns=columns and list(columns))
    schema = file.schema_arrow
    return pa.Table.from_batches(batches, schema if columns is None else pa.schema([schema.field(c) for c in columns]))
