"""Footers and page indexes of SSTs, which say where everything is, and Bloom filters: read once and kept."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from threading import Lock

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash
from cachetools import LRUCache

from ..objects.protocol import ObjectStore
from ..objects.stats import Reads
from ..sst.bloom import CHUNK_BYTES, bits_of
from ..sst.evolution import Reading
from ..sst.parquet_pages import (
    MALFORMED,
    ColumnIndex,
    FileMetaData,
    OffsetIndex,
    RowGroup,
    bounds,
    decoded,
    index_ranges,
)
from ..sst.types import HASH
from ..sst.writer import ROW_GROUP_ROWS, page_rows
from ..versions.manifest import Sst, Table
from .decode import check_shape
from .fetch import corrupt, file_name
from .range_reads import RangeReader, read_all

_CHECKSUM_BYTES = 8
CHUNK_CHECKSUM_BYTES = 4
_MAX_BYTES = 64 << 20
"""Of each of the three kinds."""
_CHUNK_OBJECTS_BYTES = 1_000
"""What a process keeps of one column of one row group, about: Thrift's objects."""
_OWN_COLUMNS, _PLACE_BYTES = 5, 24
"""Columns of an SST beside the table's, and what an index says of a page of a column: most of them, and about."""


@dataclass(frozen=True, slots=True)
class Footer:
    """Where the row groups of an SST are, and which hashes they hold; arrays have one element a row group."""

    metadata: pq.FileMetaData
    schema: pa.Schema
    """Of the file."""
    table: Table
    """As which one the rows are read …"""
    reading: Reading | None
    """… and how; None where they have its columns."""
    groups: Sequence[RowGroup]
    hash_min: npt.NDArray[np.int64]
    hash_max: npt.NDArray[np.int64]
    start: npt.NDArray[np.int64]
    end: npt.NDArray[np.int64]
    checks: npt.NDArray[np.int64]
    """Where the checksums of the filters' chunks begin, and where the last end."""
    checksums: bytes
    """Of the index of each row group."""

    def filter_at(self, group: int, chunk: int) -> tuple[int, int]:
        """From where to where a chunk of a filter is."""
        start, end = bits_of(self.groups[group].columns[0].meta_data)
        return start + chunk * CHUNK_BYTES, min(start + (chunk + 1) * CHUNK_BYTES, end)

    def index_at(self, group: int) -> list[tuple[int, int]]:
        """From where to where are column indexes, offset indexes and checksums of the filter."""
        return [*index_ranges(self.groups[group]), (int(self.checks[group]), int(self.checks[group + 1]))]

    def filter_bytes(self, group: int) -> int:
        """How many bytes of bits a row group's filter has."""
        start, end = bits_of(self.groups[group].columns[0].meta_data)
        return end - start


@dataclass(frozen=True, slots=True)
class PageIndex:
    """The pages of a row group. Those of all columns begin with the same rows."""

    first_row: npt.NDArray[np.int64]
    """With which row of the row group each begins, and how many rows there are."""
    start: npt.NDArray[np.int64]
    """Where they begin in the file: for each plain column in the order of its chunks, for each page."""
    end: npt.NDArray[np.int64]
    ranges: Mapping[str, tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]]
    """The least and the largest value in each page, of the columns of which the index says so."""
    checksums: bytes
    """Of the filter's chunks."""

    @property
    def memory_bytes(self) -> int:
        """What it takes here, about; never more than there is room for."""
        arrays = (self.first_row, self.start, self.end, *(one for pair in self.ranges.values() for one in pair))
        return min(_MAX_BYTES, 1_000 + len(self.checksums) + sum(array.nbytes for array in arrays))


# By name of the SST's file; indexes by row group, too, and filters by chunk.
_footers: LRUCache[str, Footer] = LRUCache(
    _MAX_BYTES, lambda one: min(_MAX_BYTES, _CHUNK_OBJECTS_BYTES * (4 + sum(len(each.columns) for each in one.groups)))
)
_indexes: LRUCache[tuple[str, int], PageIndex] = LRUCache(_MAX_BYTES, getsizeof=lambda index: index.memory_bytes)
_chunks: LRUCache[tuple[str, int, int], bytes] = LRUCache(_MAX_BYTES, getsizeof=len)
_lock = Lock()


def footer_of(reader: RangeReader, sst: Sst, table: Table, tail: bytes = b"") -> Footer:
    """The SST's footer, kept from before, out of the object's last bytes if these are at hand, or read now."""
    name = file_name(sst)
    with _lock:
        footer = _footers.get(name)
    if footer is not None and footer.table == table:
        return footer
    if footer is None:
        footer = decode_footer(tail or reader.one(_footer_start(sst), sst.bytes), sst, table)
    else:
        # At another version, the table may have other columns.
        how = check_shape(sst, table, footer.schema, footer.metadata.num_rows)
        footer = replace(footer, table=table, reading=how)
    with _lock:
        _footers[name] = footer
    return footer


def _footer_start(sst: Sst) -> int:
    first = sst.bytes - sst.footer_bytes
    if sst.footer_bytes <= 0 or first < 0:
        raise corrupt(sst, f"{sst.bytes} bytes cannot end with {sst.footer_bytes} of a footer")
    return first


def decode_footer(data: bytes, sst: Sst, table: Table) -> Footer:
    """The footer from the object's last bytes. Raises `Corruption` where the footer is not what was written."""
    end = data[len(data) - sst.footer_bytes :]
    found = xxhash.xxh3_128_hexdigest(end)
    # Before anything looks at it: Arrow ends the process over some footers.
    if found != sst.footer_checksum:
        raise corrupt(sst, f"expected checksum {sst.footer_checksum} of its footer, found {found}")
    try:
        return _decode_footer(end, sst, table)
    except MALFORMED as error:
        raise corrupt(sst, f"its footer cannot be decoded ({error})") from error


def _decode_footer(end: bytes, sst: Sst, table: Table) -> Footer:
    metadata = pq.read_metadata(pa.BufferReader(end))
    schema = metadata.schema.to_arrow_schema()
    groups = decoded(FileMetaData, end[-8 - int.from_bytes(end[-8:-4], "little") : -8]).row_groups
    hash_column = metadata.schema.names.index(HASH)
    statistics = [metadata.row_group(i).column(hash_column).statistics for i in range(len(groups))]
    reading = check_shape(sst, table, schema, metadata.num_rows)
    if any(chunk.offset_index_offset is None for group in groups for chunk in group.columns):
        raise ValueError("it tells of no page index")
    filters = [bits_of(group.columns[0].meta_data) for group in groups]
    sizes = [-(-(stop - start) // CHUNK_BYTES) * CHUNK_CHECKSUM_BYTES for start, stop in filters]
    return Footer(
        metadata,
        schema,
        table,
        reading,
        groups,
        np.array([one.min for one in statistics], np.int64),
        np.array([one.max for one in statistics], np.int64),
        np.array([min(chunk.meta_data.start for chunk in group.columns) for group in groups], np.int64),
        np.array([max(chunk.meta_data.end for chunk in group.columns) for group in groups], np.int64),
        sst.bytes - sst.footer_bytes - sum(sizes) + np.concatenate(([0], np.cumsum(sizes))),
        end[: metadata.num_row_groups * _CHECKSUM_BYTES],
    )


@dataclass(frozen=True, slots=True)
class Located:
    """What a reader of an SST knows of its row groups beside the footer."""

    sst: Sst
    footer: Footer
    tail: bytes = b""
    """The object's last bytes, as far as they came with the footer."""
    indexes: dict[int, PageIndex] = field(default_factory=dict)
    """By row group."""
    chunks: dict[int, dict[int, bytes]] = field(default_factory=dict)
    """Of filters, by row group and number."""

    def unknown(self, wanted: Mapping[int, Sequence[int]]) -> list[tuple[int, int]]:
        """Where that is, ascending, which is to be read of some row groups: their index, and chunks of their filter.

        Takes what this process knows already.
        """
        name, absent = file_name(self.sst), []
        for group, numbers in wanted.items():
            known = self.chunks.setdefault(group, {})
            with _lock:
                if group not in self.indexes and (index := _indexes.get((name, group))) is not None:
                    self.indexes[group] = index
                known |= {each: data for each in numbers if (data := _chunks.get((name, group, each))) is not None}
            if group not in self.indexes:
                absent += self.footer.index_at(group)
            absent += [self.footer.filter_at(group, each) for each in numbers if each not in known]
        came = self.sst.bytes - len(self.tail)
        return sorted(each for each in absent if each[0] < came)

    def learn(self, wanted: Mapping[int, Sequence[int]], read: Callable[[int, int], bytes]) -> None:
        """Take what was `unknown`; `read` gives the bytes from one offset to another.

        Raises `Corruption` where it is not what was written.
        """
        name, came = file_name(self.sst), self.sst.bytes - len(self.tail)

        def at(start: int, end: int) -> bytes:
            return read(start, end) if start < came else self.tail[start - came : end - came]

        for group, numbers in wanted.items():
            index = self.indexes.get(group)
            if index is None:
                index = self.indexes[group] = decode_index(at, self.sst, self.footer, group)
            known = self.chunks[group]
            for each in numbers:
                if each not in known:
                    known[each] = at(*self.footer.filter_at(group, each))
                    check_chunk(known[each], each, self.sst, index, group)
            with _lock:
                _indexes[name, group] = index
                for each in numbers:
                    _chunks[name, group, each] = known[each]


def check_chunk(data: bytes, number: int, sst: Sst, index: PageIndex, group: int) -> None:
    """Raise `Corruption` unless these bytes are this chunk of a row group's filter."""
    at = number * CHUNK_CHECKSUM_BYTES
    if xxhash.xxh32_digest(data) != index.checksums[at : at + CHUNK_CHECKSUM_BYTES]:
        raise corrupt(sst, f"the filter of row group {group} is not what was written")


def decode_index(read: Callable[[int, int], bytes], sst: Sst, footer: Footer, group: int) -> PageIndex:
    """The index of a row group; `read` gives the object's bytes from one offset to another.

    Raises `Corruption` where it is not what was written.
    """
    parts = [read(start, end) for start, end in footer.index_at(group)]
    expected = footer.checksums[group * _CHECKSUM_BYTES : (group + 1) * _CHECKSUM_BYTES]
    if xxhash.xxh3_64_digest(b"".join(parts)) != expected:
        raise corrupt(sst, f"the page index of row group {group} is not what was written")
    try:
        return _decode_index(parts, footer.groups[group])
    except MALFORMED as error:
        raise corrupt(sst, f"the page index of row group {group} cannot be decoded ({error})") from error


def _decode_index(parts: Sequence[bytes], group: RowGroup) -> PageIndex:
    ranges, pages = {}, []
    ((first_column, _), (first_offset, _)) = index_ranges(group)
    for chunk in group.columns:
        if chunk.column_index_offset is not None:
            at = chunk.column_index_offset - first_column
            data = parts[0][at : at + chunk.column_index_length]
            ranges[b".".join(chunk.meta_data.path).decode()] = bounds(decoded(ColumnIndex, data))
        assert chunk.offset_index_offset is not None  # noqa: S101  no footer lacks one
        at = chunk.offset_index_offset - first_offset
        pages.append(decoded(OffsetIndex, parts[1][at : at + chunk.offset_index_length]).pages)
    start = np.array([[page.offset for page in column] for column in pages], np.int64)
    size = np.array([[page.size for page in column] for column in pages], np.int64)
    begins = {tuple(page.first_row for page in column) for column in pages}
    if len(begins) > 1:
        raise ValueError("the pages of its columns begin with different rows")
    first_row = np.array([*begins.pop(), group.num_rows], np.int64)
    return PageIndex(first_row, start, start + size, ranges, parts[2])


def fetch_tails(store: ObjectStore, ssts: Sequence[Sst], table: Table, reads: Reads, most_bytes: int) -> list[bytes]:
    """The last bytes of these SSTs, in one round trip, with the footers; empty where this process knows the footer.

    With each comes the page index before it, where that has at most so many bytes. Raises as `footer_of`.
    """
    with _lock:
        absent = [sst for sst in ssts if file_name(sst) not in _footers]
    ranges = [(_footer_start(sst) - _index_bytes(sst, table, most_bytes), sst.bytes) for sst in absent]
    readers = [RangeReader(store, sst, reads) for sst in absent]
    found = read_all([(reader, [each]) for reader, each in zip(readers, ranges, strict=True)])
    tails = {sst: one.bytes_at(*each) for sst, one, each in zip(absent, found, ranges, strict=True)}
    return [tails.get(sst, b"") for sst in ssts]


def _index_bytes(sst: Sst, table: Table, most_bytes: int) -> int:
    """About how many bytes before the footer are page indexes and checksums; 0 if that is more than is wanted.

    What it lacks is read later: more pages than here where rows are wide, more columns where these are nested.
    """
    pages = sst.rows // page_rows(sst.rows) + 1 + sst.rows // ROW_GROUP_ROWS
    size = pages * (len(table.key) + len(table.values) + _OWN_COLUMNS) * _PLACE_BYTES
    size += sst.filter_bytes * CHUNK_CHECKSUM_BYTES // CHUNK_BYTES
    return min(size, sst.filter_bytes) if size <= most_bytes else 0
