"""Footers, page indexes and Bloom filters of SSTs, cached in this process."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash
from cachetools import LRUCache

from ...common import runtime
from ..objects.counting import ReadCounters
from ..objects.protocol import ObjectStore
from ..sst.parquet_index import (
    CHUNK_BYTES,
    DECODE_ERRORS,
    ColumnIndex,
    FileMetaData,
    OffsetIndex,
    RowGroup,
    decode_struct,
    filter_bits_range,
    index_ranges,
    page_value_ranges,
)
from ..sst.schema import HASH, ColumnConversion
from ..sst.writer import ROW_GROUP_ROWS, page_rows
from ..versions.entries.ssts import Sst
from ..versions.manifest import Table
from .decode import check_columns
from .fetch import RangeReader, corruption_error, file_name, read_ranges

_CHECKSUM_BYTES = 8
CHUNK_CHECKSUM_BYTES = 4
_MAX_BYTES = 64 << 20
_CHUNK_OBJECTS_BYTES = 1_000
_INTERNAL_COLUMNS, _PAGE_ENTRY_BYTES = 5, 24
"""Number of internal columns of an SST, and the estimated bytes of a page's entry in the index of a column."""


@dataclass(frozen=True, slots=True)
class Footer:
    """Footer of an SST: metadata, offsets and hash ranges of its row groups. Arrays have a value per row group."""

    metadata: pq.FileMetaData
    schema: pa.Schema
    table: Table
    conversion: ColumnConversion | None
    groups: Sequence[RowGroup]
    hash_min: npt.NDArray[np.int64]
    hash_max: npt.NDArray[np.int64]
    start: npt.NDArray[np.int64]
    end: npt.NDArray[np.int64]
    filter_checksums_start: npt.NDArray[np.int64]
    """Offset of each row group's filter checksums, followed by the end offset of the last checksums."""
    checksums: bytes

    def filter_chunk_range(self, group: int, chunk: int) -> tuple[int, int]:
        start, end = filter_bits_range(self.groups[group].columns[0].meta_data)
        return start + chunk * CHUNK_BYTES, min(start + (chunk + 1) * CHUNK_BYTES, end)

    def index_ranges_of(self, group: int) -> list[tuple[int, int]]:
        return [
            *index_ranges(self.groups[group]),
            (int(self.filter_checksums_start[group]), int(self.filter_checksums_start[group + 1])),
        ]

    def filter_bytes(self, group: int) -> int:
        start, end = filter_bits_range(self.groups[group].columns[0].meta_data)
        return end - start


@dataclass(frozen=True, slots=True)
class PageIndex:
    """Offsets and value ranges of a row group's pages. The pages of all columns begin at the same rows."""

    first_row: npt.NDArray[np.int64]
    start: npt.NDArray[np.int64]
    end: npt.NDArray[np.int64]
    ranges: Mapping[str, tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]]
    checksums: bytes

    @property
    def memory_bytes(self) -> int:
        arrays = (self.first_row, self.start, self.end, *(array for pair in self.ranges.values() for array in pair))
        return min(_MAX_BYTES, 1_000 + len(self.checksums) + sum(array.nbytes for array in arrays))


# Keyed by the SST's file name; indexes also by row group, filter chunks also by row group and number.
_footers: LRUCache[str, Footer] = LRUCache(
    _MAX_BYTES,
    lambda footer: min(_MAX_BYTES, _CHUNK_OBJECTS_BYTES * (4 + sum(len(group.columns) for group in footer.groups))),
)
_indexes: LRUCache[tuple[str, int], PageIndex] = LRUCache(_MAX_BYTES, getsizeof=lambda index: index.memory_bytes)
_chunks: LRUCache[tuple[str, int, int], bytes] = LRUCache(_MAX_BYTES, getsizeof=len)
_lock = runtime.lock()


def load_footer(reader: RangeReader, sst: Sst, table: Table, tail: bytes = b"") -> Footer:
    """Return an SST's footer: from the cache, decoded from `tail` (the object's last bytes), or read now."""
    name = file_name(sst)
    with _lock:
        footer = _footers.get(name)
    if footer is not None and footer.table == table:
        return footer
    if footer is None:
        footer = decode_footer(tail or reader.read_counted(_footer_start(sst), sst.bytes), sst, table)
    else:
        # At another version, the table may have other columns.
        reading = check_columns(sst, table, footer.schema, footer.metadata.num_rows)
        footer = replace(footer, table=table, conversion=reading)
    with _lock:
        _footers[name] = footer
    return footer


def _footer_start(sst: Sst) -> int:
    first = sst.bytes - sst.footer_bytes
    if sst.footer_bytes <= 0 or first < 0:
        raise corruption_error(sst, f"{sst.bytes} bytes cannot end with {sst.footer_bytes} of a footer")
    return first


def decode_footer(data: bytes, sst: Sst, table: Table) -> Footer:
    end = data[len(data) - sst.footer_bytes :]
    actual = xxhash.xxh3_128_hexdigest(end)
    # Checked before parsing, because some malformed footers crash Arrow.
    if actual != sst.footer_checksum:
        raise corruption_error(sst, f"expected checksum {sst.footer_checksum} of its footer, found {actual}")
    try:
        return _decode_footer(end, sst, table)
    except DECODE_ERRORS as error:
        raise corruption_error(sst, f"its footer cannot be decoded ({error})") from error


def _decode_footer(end: bytes, sst: Sst, table: Table) -> Footer:
    metadata = pq.read_metadata(pa.BufferReader(end))
    schema = metadata.schema.to_arrow_schema()
    groups = decode_struct(FileMetaData, end[-8 - int.from_bytes(end[-8:-4], "little") : -8]).row_groups
    hash_column = metadata.schema.names.index(HASH)
    statistics = [metadata.row_group(i).column(hash_column).statistics for i in range(len(groups))]
    reading = check_columns(sst, table, schema, metadata.num_rows)
    if any(chunk.offset_index_offset is None for group in groups for chunk in group.columns):
        raise ValueError("it has no page index")
    filters = [filter_bits_range(group.columns[0].meta_data) for group in groups]
    sizes = [-(-(stop - start) // CHUNK_BYTES) * CHUNK_CHECKSUM_BYTES for start, stop in filters]
    return Footer(
        metadata,
        schema,
        table,
        reading,
        groups,
        np.array([column.min for column in statistics], np.int64),
        np.array([column.max for column in statistics], np.int64),
        np.array([min(chunk.meta_data.start for chunk in group.columns) for group in groups], np.int64),
        np.array([max(chunk.meta_data.end for chunk in group.columns) for group in groups], np.int64),
        sst.bytes - sst.footer_bytes - sum(sizes) + np.concatenate(([0], np.cumsum(sizes))),
        end[: metadata.num_row_groups * _CHECKSUM_BYTES],
    )


@dataclass(frozen=True, slots=True)
class LoadedIndexes:
    """Page indexes and filter chunks of one SST that a reader has loaded."""

    sst: Sst
    footer: Footer
    tail: bytes = b""
    indexes: dict[int, PageIndex] = field(default_factory=dict)
    chunks: dict[int, dict[int, bytes]] = field(default_factory=dict)

    def missing_ranges(self, required: Mapping[int, Sequence[int]]) -> list[tuple[int, int]]:
        """Return the offset ranges to read for the required indexes and filter chunks, ascending.

        `required` has the numbers of filter chunks by row group. Parts that this process has cached are left out.
        """
        name, ranges = file_name(self.sst), []
        for group, numbers in required.items():
            chunks = self.chunks.setdefault(group, {})
            with _lock:
                if group not in self.indexes and (index := _indexes.get((name, group))) is not None:
                    self.indexes[group] = index
                chunks |= {
                    number: data for number in numbers if (data := _chunks.get((name, group, number))) is not None
                }
            if group not in self.indexes:
                ranges += self.footer.index_ranges_of(group)
            ranges += [self.footer.filter_chunk_range(group, number) for number in numbers if number not in chunks]
        tail_start = self.sst.bytes - len(self.tail)
        return sorted(span for span in ranges if span[0] < tail_start)

    def decode_parts(self, required: Mapping[int, Sequence[int]], read: Callable[[int, int], bytes]) -> None:
        """Decode the required indexes and filter chunks. Raises `Corruption`.

        `read(start, end)` is a function that returns the bytes from `start` to `end` of the SST. It is called only for
        bytes within the ranges that `missing_ranges` returned.
        """
        name, tail_start = file_name(self.sst), self.sst.bytes - len(self.tail)

        def at(start: int, end: int) -> bytes:
            return read(start, end) if start < tail_start else self.tail[start - tail_start : end - tail_start]

        for group, numbers in required.items():
            index = self.indexes.get(group)
            if index is None:
                index = self.indexes[group] = decode_index(at, self.sst, self.footer, group)
            chunks = self.chunks[group]
            for number in numbers:
                if number not in chunks:
                    chunks[number] = at(*self.footer.filter_chunk_range(group, number))
                    check_chunk(chunks[number], number, self.sst, index, group)
            with _lock:
                _indexes[name, group] = index
                for number in numbers:
                    _chunks[name, group, number] = chunks[number]


def check_chunk(data: bytes, number: int, sst: Sst, index: PageIndex, group: int) -> None:
    at = number * CHUNK_CHECKSUM_BYTES
    if xxhash.xxh32_digest(data) != index.checksums[at : at + CHUNK_CHECKSUM_BYTES]:
        raise corruption_error(sst, f"the filter of row group {group} does not match its checksum")


def decode_index(read: Callable[[int, int], bytes], sst: Sst, footer: Footer, group: int) -> PageIndex:
    parts = [read(start, end) for start, end in footer.index_ranges_of(group)]
    expected = footer.checksums[group * _CHECKSUM_BYTES : (group + 1) * _CHECKSUM_BYTES]
    if xxhash.xxh3_64_digest(b"".join(parts)) != expected:
        raise corruption_error(sst, f"the page index of row group {group} does not match its checksum")
    try:
        return _decode_index(parts, footer.groups[group])
    except DECODE_ERRORS as error:
        raise corruption_error(sst, f"the page index of row group {group} cannot be decoded ({error})") from error


def _decode_index(parts: Sequence[bytes], group: RowGroup) -> PageIndex:
    ranges, pages = {}, []
    ((first_column, _), (first_offset, _)) = index_ranges(group)
    for chunk in group.columns:
        if chunk.column_index_offset is not None:
            at = chunk.column_index_offset - first_column
            data = parts[0][at : at + chunk.column_index_length]
            ranges[b".".join(chunk.meta_data.path).decode()] = page_value_ranges(decode_struct(ColumnIndex, data))
        assert chunk.offset_index_offset is not None  # noqa: S101  no footer lacks one
        at = chunk.offset_index_offset - first_offset
        pages.append(decode_struct(OffsetIndex, parts[1][at : at + chunk.offset_index_length]).pages)
    start = np.array([[page.offset for page in column] for column in pages], np.int64)
    size = np.array([[page.size for page in column] for column in pages], np.int64)
    begins = {tuple(page.first_row for page in column) for column in pages}
    if len(begins) > 1:
        raise ValueError("the pages of its columns begin with different rows")
    first_row = np.array([*begins.pop(), group.num_rows], np.int64)
    return PageIndex(first_row, start, start + size, ranges, parts[2])


def fetch_tails(
    store: ObjectStore, ssts: Sequence[Sst], table: Table, reads: ReadCounters, max_index_bytes: int
) -> list[bytes]:
    """Return the last bytes of each SST, which contain the SST's footer, in one round trip.

    Returns empty bytes for a cached footer. The page index is included if it has at most `max_index_bytes`. Raises
    `Corruption`.
    """
    with _lock:
        absent = [sst for sst in ssts if file_name(sst) not in _footers]
    ranges = [(_footer_start(sst) - _index_bytes(sst, table, max_index_bytes), sst.bytes) for sst in absent]
    readers = [RangeReader(store, sst, reads) for sst in absent]
    pieces = read_ranges([(reader, [span]) for reader, span in zip(readers, ranges, strict=True)])
    tails = {sst: piece.bytes_at(*span) for sst, piece, span in zip(absent, pieces, ranges, strict=True)}
    return [tails.get(sst, b"") for sst in ssts]


def _index_bytes(sst: Sst, table: Table, max_index_bytes: int) -> int:
    pages = sst.rows // page_rows(sst.rows) + 1 + sst.rows // ROW_GROUP_ROWS
    size = pages * (len(table.key) + len(table.values) + _INTERNAL_COLUMNS) * _PAGE_ENTRY_BYTES
    size += sst.filter_bytes * CHUNK_CHECKSUM_BYTES // CHUNK_BYTES
    return min(size, sst.filter_bytes) if size <= max_index_bytes else 0
