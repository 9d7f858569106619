"""An SST read by pieces: its footer, then only the row groups in which some hashes can be.

For a cold cache and for single look-ups. The checksum of the whole cannot be checked this way; but the footer has
one of its own in the manifest, and each page a CRC.
"""

import io
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from threading import Lock

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from .blocks import Block, check_shape, corrupt, file_name, holder
from .errors import ObjectNotFound
from .manifest import Sst, Table
from .objects import ObjectStore
from .types import HASH, sst_schema

__all__ = ["RangedSst", "Reads"]

_MAX_GAP_BYTES = 65_536
"""Row groups this near to each other come in one request: cheaper than another round trip."""


@dataclass(slots=True)
class Reads:
    """What reading by pieces took, summed over SSTs."""

    requests: int = 0
    bytes: int = 0
    row_groups: int = 0
    """Row groups read."""
    row_groups_total: int = 0
    """Row groups of all SSTs looked at."""


@dataclass(frozen=True, slots=True)
class _Footer:
    """Where the row groups of an SST are, and which hashes they hold; arrays have one element a row group."""

    metadata: pq.FileMetaData
    hash_min: npt.NDArray[np.int64]
    hash_max: npt.NDArray[np.int64]
    start: npt.NDArray[np.int64]
    end: npt.NDArray[np.int64]


_MAX_FOOTERS = 1024
"""Footers this process keeps."""
_footers: OrderedDict[str, _Footer] = OrderedDict()
_footers_lock = Lock()


class RangedSst:
    """One SST in the store, of which only what is asked for is read."""

    def __init__(self, store: ObjectStore, sst: Sst, table: Table, reads: Reads) -> None:
        """Read the footer, unless this process has done so before.

        Args:
            store: the store of the app.
            sst: which one.
            table: the declared columns.
            reads: counts what is read.

        Raises:
            Corruption: the object is missing or its footer is not what the manifest promises.
            Unavailable: the store did not answer.
        """
        self._sst = sst
        self._store = holder(store, sst)
        self._reads = reads
        self._footer = self._read_footer(table)
        reads.row_groups_total += len(self._footer.start)

    def needed(self, hashes: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The row groups, ascending, in which at least one of these hashes (ascending) can be."""
        first = np.searchsorted(hashes, self._footer.hash_min, side="left")
        end = np.searchsorted(hashes, self._footer.hash_max, side="right")
        return np.flatnonzero(first < end)

    def bytes_of(self, groups: npt.NDArray[np.int64]) -> int:
        """How many bytes these row groups take."""
        return int((self._footer.end[groups] - self._footer.start[groups]).sum())

    def read(self, groups: npt.NDArray[np.int64]) -> Iterator[Block]:
        """The rows of these row groups (ascending), in the order of the SST.

        Raises:
            Corruption: the object is missing or a page is damaged.
            Unavailable: the store did not answer.
        """
        if not groups.size:
            return
        pieces = [
            (start, self._read_range(start, end - start))
            for start, end in _joined(self._footer.start[groups].tolist(), self._footer.end[groups].tolist())
        ]
        self._reads.row_groups += len(groups)
        try:
            file = pq.ParquetFile(
                pa.PythonFile(_Pieces(pieces, self._sst.bytes), "r"),
                metadata=self._footer.metadata,
                page_checksum_verification=True,
            )
            rows = file.read_row_groups(groups.tolist())
        except (pa.ArrowException, OSError) as error:
            raise corrupt(self._sst, f"row groups {groups.tolist()} cannot be decoded ({error})") from error
        rows = rows.combine_chunks()
        self._check_hashes(groups, rows.column(HASH).to_numpy())
        for batch in rows.to_batches():
            yield Block.of(batch)

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

    def _read_footer(self, table: Table) -> _Footer:
        name = file_name(self._sst)
        with _footers_lock:
            footer = _footers.get(name)
        if footer is None:
            size = self._sst.footer_bytes
            data = self._read_range(self._sst.bytes - size, size)
            found = xxhash.xxh3_128_hexdigest(data)
            # Before anything looks at it: Arrow ends the process over some footers.
            if found != self._sst.footer_checksum:
                raise corrupt(self._sst, f"expected checksum {self._sst.footer_checksum} of its footer, found {found}")
            metadata = pq.read_metadata(pa.BufferReader(data))
            check_shape(self._sst, sst_schema(table), metadata.schema.to_arrow_schema(), metadata.num_rows)
            footer = _footer(metadata)
            with _footers_lock:
                _footers[name] = footer
                while len(_footers) > _MAX_FOOTERS:
                    _footers.popitem(last=False)
        return footer

    def _read_range(self, start: int, length: int) -> bytes:
        try:
            data = self._store.get_range(self._sst.object, start, length)
        except ObjectNotFound as error:
            raise corrupt(self._sst, "the object is missing") from error
        if len(data) != length:
            raise corrupt(self._sst, f"expected {length} bytes from {start} on, found {len(data)}")
        self._reads.requests += 1
        self._reads.bytes += length
        return data


def _footer(metadata: pq.FileMetaData) -> _Footer:
    """What look-ups need of a footer, as arrays."""
    groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
    hash_column = metadata.schema.names.index(HASH)
    bounds = [group.column(hash_column).statistics for group in groups]
    chunks = [[group.column(i) for i in range(group.num_columns)] for group in groups]
    return _Footer(
        metadata,
        np.array([bound.min for bound in bounds], np.int64),
        np.array([bound.max for bound in bounds], np.int64),
        np.array([min(_start(chunk) for chunk in row) for row in chunks], np.int64),
        np.array([max(_start(chunk) + chunk.total_compressed_size for chunk in row) for row in chunks], np.int64),
    )


def _start(chunk: pq.ColumnChunkMetaData) -> int:
    dictionary = chunk.dictionary_page_offset
    return int(chunk.data_page_offset if dictionary is None else min(dictionary, chunk.data_page_offset))


def _joined(starts: Sequence[int], ends: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Ascending ranges, those close to each other joined."""
    start, end = starts[0], ends[0]
    for next_start, next_end in zip(starts[1:], ends[1:], strict=True):
        if next_start - end > _MAX_GAP_BYTES:
            yield start, end
            start = next_start
        end = next_end
    yield start, end


class _Pieces(io.RawIOBase):
    """A file of which only some pieces are here; it has its full size, and elsewhere reads as cut off."""

    def __init__(self, pieces: Sequence[tuple[int, bytes]], size: int) -> None:
        self._pieces = pieces
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
        for start, data in self._pieces:
            if start <= self._position < start + len(data):
                at = self._position - start
                found = data[at:] if size < 0 else data[at : at + size]
                self._position += len(found)
                return found
        return b""
