"""An SST read by ranges: its footer, then only the row groups in which some keys can be.

For a cold cache and for single look-ups. The checksum of the whole cannot be checked this way; but the footer and each
filter have one of their own, and each page a CRC.

What is read, for few keys: the footer, the filters of the row groups that the keys fall in by their hash, and of these
row groups those that a filter lets pass. The filters of a small SST come with its footer, in one read. Where many keys
fall in a row group, one of them passes anyway, and its filter is not asked for.
"""

import io
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from ..objects.protocol import ObjectStore
from ..sst.evolution import Reading
from ..sst.types import HASH
from ..sst.whole_file import read_groups
from ..versions.manifest import Sst, Table
from .decode import Block, corrupt
from .footers import filters_of, footer_of
from .range_reads import RangeReader
from .read_stats import Reads

_FEW_KEYS = 16
"""Up to so many keys in a row group its filter is worth reading: it is 1/20 of the bytes, and 0.6 of so many absent
keys are ruled out together."""
SMALL_BYTES = 128 << 10
"""An SST up to this is better read whole: one request, where ranges would be two."""
_LOWEST, _HIGHEST = -(1 << 63), (1 << 63) - 1
_WINDOW_BYTES = 32 << 20
"""Row groups of so many bytes are read, decoded and searched at once: bounds memory."""


class RangedSst:
    """One SST in the store, of which only what is asked for is read."""

    def __init__(self, store: ObjectStore, sst: Sst, table: Table, reads: Reads) -> None:
        """Read the footer, unless this process has done so before; `reads` counts what is read.

        Raises:
            Corruption: the object is missing or its footer is not what the manifest promises.
            Unavailable: the store did not answer.
        """
        self._sst = sst
        self._reader = RangeReader(store, sst, reads)
        self._reads = reads
        self._footer = footer_of(self._reader, sst, table)
        reads.row_groups_total += len(self._footer.start)

    @property
    def reading(self) -> Reading | None:
        """How its rows are read as the table's; None where they are that already."""
        return self._footer.reading

    def needed(self, hashes: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The row groups, ascending, in which at least one of these hashes (ascending) can be."""
        first, end = self._spans(hashes)
        return np.flatnonzero(first < end)

    def _spans(self, hashes: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Of these hashes (ascending), for each row group: the first that can be in it, and the first beyond it."""
        first = np.searchsorted(hashes, self._footer.hash_min, side="left")
        return first, np.searchsorted(hashes, self._footer.hash_max, side="right")

    def within(self, low: int, high: int) -> npt.NDArray[np.int64]:
        """The row groups, ascending, in which hashes from `low` to `high`, both included, can be."""
        return np.flatnonzero((self._footer.hash_min <= high) & (self._footer.hash_max >= low))

    def having(self, column: str, low: int, high: int) -> npt.NDArray[np.int64]:
        """The row groups, ascending, in which a value from `low` to `high`, both included, can be in a column.

        All, in SSTs that say nothing of the column: `_seq` and `_expires_at` have statistics in those of today.
        """
        least, most = self.ranges(column)
        return np.flatnonzero((least <= high) & (most >= low))

    def ranges(self, column: str) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """The least and the largest value of a column of int64 in each row group.

        The smallest and the largest int64 where nothing is said, and the other way round where all are null: also in an
        SST of before the table had the column.
        """
        metadata = self._footer.metadata
        index = next((i for i in range(metadata.num_columns) if metadata.schema.column(i).path == column), None)
        if index is None:
            groups = metadata.num_row_groups
            return np.full(groups, _HIGHEST, np.int64), np.full(groups, _LOWEST, np.int64)
        found = (metadata.row_group(group).column(index).statistics for group in range(metadata.num_row_groups))
        least, most = zip(*map(_range, found), strict=True)
        return np.array(least, np.int64), np.array(most, np.int64)

    def bytes_of(self, groups: npt.NDArray[np.int64]) -> int:
        """How many bytes these row groups take."""
        return int((self._footer.end[groups] - self._footer.start[groups]).sum())

    def passing(self, hashes: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Which of these hashes (ascending) can be here, as far as row groups' ranges and filters tell.

        Raises as the constructor, also for a damaged filter.
        """
        first, end = self._spans(hashes)
        groups = np.flatnonzero(first < end).tolist()
        # A hash that ends one row group and begins the next passes if either lets it.
        passed, inside = np.zeros(len(hashes), np.bool_), np.zeros(len(hashes), np.bool_)
        known = filters_of(self._reader, self._sst, self._footer, groups, fetch=False)
        few = [group for group in groups if group in known or end[group] - first[group] <= _FEW_KEYS]
        filters = filters_of(self._reader, self._sst, self._footer, few, fetch=True)
        for group in groups:
            part = slice(first[group], end[group])
            inside[part] = True
            passed[part] |= filters[group].may_have(hashes[part]) if group in filters else True
        self._reads.filtered += int((inside & ~passed).sum())
        return passed

    def read(self, groups: npt.NDArray[np.int64]) -> Iterator[Block]:
        """The rows of these row groups (ascending), in the order of the SST, some 32 MiB of them at a time.

        Raises as the constructor, also for a damaged page.
        """
        window = (self._footer.end[groups] - self._footer.start[groups]).cumsum() // _WINDOW_BYTES
        for number in np.unique(window):
            yield from self._read_window(groups[window == number])

    def _read_window(self, groups: npt.NDArray[np.int64]) -> Iterator[Block]:
        found = self._reader.read(self._footer.start[groups].tolist(), self._footer.end[groups].tolist())
        self._reads.row_groups += len(groups)
        try:
            file = pq.ParquetFile(
                pa.PythonFile(_Partly(found, self._sst.bytes), "r"),
                metadata=self._footer.metadata,
                page_checksum_verification=True,
            )
            rows = read_groups(file, groups.tolist())
        except (pa.ArrowException, OSError) as error:
            raise corrupt(self._sst, f"row groups {groups.tolist()} cannot be decoded ({error})") from error
        rows = rows.combine_chunks()
        self._check_hashes(groups, rows.column(HASH).to_numpy())
        for batch in rows.to_batches():
            yield Block.of(batch, self._footer.reading)

    def _check_hashes(self, groups: npt.NDArray[np.int64], hashes: npt.NDArray[np.int64]) -> None:
        """Pages of another object are whole, and their CRCs are right: see that these row groups are those."""
        ends = np.cumsum([self._footer.metadata.row_group(group).num_rows for group in groups.tolist()])
        starts = np.concatenate(([0], ends[:-1]))
        if (
            len(hashes) != ends[-1]
            or (hashes[starts] != self._footer.hash_min[groups]).any()
            or (hashes[ends - 1] != self._footer.hash_max[groups]).any()
        ):
            raise corrupt(self._sst, f"row groups {groups.tolist()} hold other hashes than its footer says")


def _range(statistics: pq.Statistics | None) -> tuple[int, int]:
    if statistics is not None and statistics.has_min_max:
        return int(statistics.min), int(statistics.max)
    # There is no range of nulls.
    return (_LOWEST, _HIGHEST) if statistics is None or statistics.num_values else (_HIGHEST, _LOWEST)


class _Partly(io.RawIOBase):
    """A file of which only some ranges are here; it has its full size, and elsewhere reads as cut off."""

    def __init__(self, ranges: Sequence[tuple[int, bytes]], size: int) -> None:
        self._ranges = ranges
        self._size = size
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        self._position = base + offset
        return self._position

    def read(self, size: int = -1) -> bytes:
        for start, data in self._ranges:
            if start <= self._position < start + len(data):
                at = self._position - start
                found = data[at:] if size < 0 else data[at : at + size]
                self._position += len(found)
                return found
        return b""
