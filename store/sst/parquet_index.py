"""Reads Parquet's footer, page index and Bloom filters, and builds Parquet files from single pages of a file.

Arrow reads whole row groups and does not expose page offsets. So this module decodes the offsets from Parquet's
metadata (parquet-format, `parquet.thrift`) with Apache Thrift; its structs declare only the needed fields. To decode
chosen pages, Arrow gets a file that consists of these pages and a footer with new offsets.

Bloom filters over the key hashes, with one byte per row, rule out row groups that cannot have a key. They are Parquet's
own split-block Bloom filters over `_hash`, one for each row group, between the last row group and the footer, so that
any Parquet reader profits, DuckDB too. Arrow writes them; this module probes them, for all keys of a look-up at once.
With eight bits per row, a filter accepts all keys that the row group has, and 3 of 100 keys that it lacks.

The format and the constants are those of the Parquet specification (parquet-format, `BloomFilter.md`), after Putze,
Sanders and Singler, "Cache-, Hash- and Space-Efficient Bloom Filters" (2007). Parquet hashes a value with XXH64, so
`_hash` is hashed once more.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, ClassVar, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from thrift.protocol.TBase import TBase
from thrift.protocol.TCompactProtocol import TCompactProtocolAcceleratedFactory
from thrift.Thrift import TException, TType
from thrift.TSerialization import deserialize, serialize

from .xxh64 import hash_u64

_COMPACT = TCompactProtocolAcceleratedFactory()
DECODE_ERRORS = (ValueError, TypeError, LookupError, AttributeError, OSError, pa.ArrowException)
MIN_INT64, MAX_INT64 = -(1 << 63), (1 << 63) - 1


def _field(number: int, kind: Any) -> Any:
    return number, kind


class _Struct(TBase):  # type: ignore[misc]  # thrift has no type hints
    """Base class of Thrift structs with fields that `_field` declares; missing fields are None."""

    thrift_spec: ClassVar[tuple[Any, ...]]

    def __init_subclass__(cls) -> None:
        declared = {name: vars(cls)[name] for name in cls.__annotations__}
        spec: list[Any] = [None] * (1 + max(number for number, _ in declared.values()))
        for name, (number, kind) in declared.items():
            of = kind[0] if isinstance(kind, list) else kind
            is_struct, is_text = isinstance(of, type), of == TType.STRING
            element = (TType.STRUCT, [of, of.thrift_spec]) if is_struct else (of, "BINARY" if is_text else None)
            listed = (TType.LIST, name, (*element, False))
            spec[number] = (number, *(listed if isinstance(kind, list) else (element[0], name, element[1])), None)
            setattr(cls, name, None)
        cls.thrift_spec = tuple(spec)

    def __init__(self, **fields: Any) -> None:
        self.__dict__.update(fields)


class PageHeader(_Struct):
    """Header of a Parquet page."""

    class Data(_Struct):
        """Header fields that data pages of versions 1 and 2 share."""

        num_values: int = _field(1, TType.I32)

    data: Data | None = _field(5, Data)
    data_v2: Data | None = _field(8, Data)


class PageLocation(_Struct):
    """Offset of a page, its size with the header, and the number of its first row."""

    offset: int = _field(1, TType.I64)
    size: int = _field(2, TType.I32)
    first_row: int = _field(3, TType.I64)


class OffsetIndex(_Struct):
    """Locations of the pages that a column has in a row group."""

    pages: list[PageLocation] = _field(1, [PageLocation])


class ColumnIndex(_Struct):
    """Least and largest value of each page that a column has in a row group."""

    null_pages: list[bool] = _field(1, [TType.BOOL])
    min_values: list[bytes] = _field(2, [TType.STRING])
    max_values: list[bytes] = _field(3, [TType.STRING])


class ColumnMetaData(_Struct):
    """Metadata of one column of a row group."""

    type: int = _field(1, TType.I32)
    encodings: list[int] = _field(2, [TType.I32])
    path: list[bytes] = _field(3, [TType.STRING])
    codec: int = _field(4, TType.I32)
    num_values: int = _field(5, TType.I64)
    total_uncompressed_size: int = _field(6, TType.I64)
    total_compressed_size: int = _field(7, TType.I64)
    data_page_offset: int = _field(9, TType.I64)
    dictionary_page_offset: int | None = _field(11, TType.I64)
    bloom_filter_offset: int | None = _field(14, TType.I64)
    bloom_filter_length: int | None = _field(15, TType.I32)

    @property
    def start(self) -> int:
        dictionary = self.dictionary_page_offset
        return self.data_page_offset if dictionary is None else min(dictionary, self.data_page_offset)

    @property
    def end(self) -> int:
        return self.start + self.total_compressed_size


class ColumnChunk(_Struct):
    """One column of a row group, with the offsets of its indexes."""

    file_offset: int = _field(2, TType.I64)
    meta_data: ColumnMetaData = _field(3, ColumnMetaData)
    offset_index_offset: int | None = _field(4, TType.I64)
    offset_index_length: int = _field(5, TType.I32)
    column_index_offset: int | None = _field(6, TType.I64)
    column_index_length: int = _field(7, TType.I32)


class RowGroup(_Struct):
    """Columns and number of rows of a row group."""

    columns: list[ColumnChunk] = _field(1, [ColumnChunk])
    total_byte_size: int = _field(2, TType.I64)
    num_rows: int = _field(3, TType.I64)


class FileMetaData(_Struct):
    """The footer of a Parquet file."""

    num_rows: int = _field(3, TType.I64)
    row_groups: list[RowGroup] = _field(4, [RowGroup])


Decoded = TypeVar("Decoded", bound=_Struct)


def decode_struct(kind: type[Decoded], data: bytes) -> Decoded:
    try:
        struct: Decoded = deserialize(kind(), data, _COMPACT)
    except (TException, EOFError, TypeError, OverflowError) as error:
        raise ValueError(f"expected Parquet's {kind.__name__} in {len(data)} bytes ({error})") from error
    return struct


def index_ranges(group: RowGroup) -> tuple[tuple[int, int], tuple[int, int]]:
    columns, offsets = (
        [(start, start + length) for start, length in pairs if start is not None]
        for pairs in (
            [(column.column_index_offset, column.column_index_length) for column in group.columns],
            [(column.offset_index_offset, column.offset_index_length) for column in group.columns],
        )
    )
    return (columns[0][0], columns[-1][1]), (offsets[0][0], offsets[-1][1])


def page_value_ranges(index: ColumnIndex) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the least and the largest value of each page of an int64 column.

    A page with only nulls has an empty range: its least value is above its largest value.
    """
    low, high = (
        np.array([missing if null else int.from_bytes(value, "little", signed=True) for null, value in pages], np.int64)
        for missing, pages in (
            (MAX_INT64, zip(index.null_pages, index.min_values, strict=True)),
            (MIN_INT64, zip(index.null_pages, index.max_values, strict=True)),
        )
    )
    return low, high


def build_file_of_pages(
    schema: pa.Schema,
    parts: Sequence[tuple[RowGroup, int, Sequence[Sequence[tuple[int, int]]]]],
    read: Callable[[int, int], memoryview],
    nested: Sequence[bool],
) -> bytes:
    """Build a Parquet file from some pages of another file, and return the new file's bytes.

    Args:
        schema: schema of the other file.
        parts: row groups. Each has the number of rows in its pages, and, for each leaf column in chunk order, the
            offset ranges of its pages. The dictionary page is first. A column that is not read has no ranges.
        read: returns the bytes between two offsets of the other file.
        nested: for each leaf column, True if a row may have several values or none.
    """
    body: list[bytes | memoryview] = [b"PAR1"]
    at, groups = 4, []
    for group, num_rows, columns in parts:
        chunks = []
        for chunk, pages, several in zip(group.columns, columns, nested, strict=True):
            data = [read(start, end) for start, end in pages]
            was = chunk.meta_data
            has_dictionary = was.dictionary_page_offset is not None and bool(data)
            num_values = num_rows
            if several:
                # A whole chunk is read as one piece.
                is_whole = num_rows == group.num_rows
                num_values = was.num_values if is_whole else sum(map(_num_values, data[has_dictionary:]))
            fields = {
                "num_values": num_values,
                "total_compressed_size": sum(map(len, data)),
                "data_page_offset": at + len(data[0]) if has_dictionary else at,
                "dictionary_page_offset": at if has_dictionary else None,
                "bloom_filter_offset": None,
                "bloom_filter_length": None,
            }
            chunks.append(ColumnChunk(file_offset=0, meta_data=ColumnMetaData(**{**was.__dict__, **fields})))
            body += data
            at += sum(map(len, data))
        groups.append(RowGroup(columns=chunks, total_byte_size=group.total_byte_size, num_rows=num_rows))
    prefix, suffix = _footer_without_rows(schema)
    rows = FileMetaData(num_rows=sum(group.num_rows for group in groups), row_groups=groups)
    # Thrift encodes field numbers as deltas. In `rows`, field 3 has delta 3 because it is the first; in the footer it
    # follows field 2, so its header byte is replaced by one with delta 1. The stop byte comes with the suffix.
    footer = prefix + b"\x16" + serialize(rows, _COMPACT)[1:-1] + suffix
    return b"".join((*body, footer, len(footer).to_bytes(4, "little"), b"PAR1"))


_MAX_HEADER_BYTES = 16 << 10


def _num_values(page: memoryview) -> int:
    header = decode_struct(PageHeader, bytes(page[:_MAX_HEADER_BYTES]))
    data = header.data or header.data_v2
    if data is None:
        raise ValueError("expected a page of values; found another")
    return data.num_values


@lru_cache(maxsize=256)
def _footer_without_rows(schema: pa.Schema) -> tuple[bytes, bytes]:
    sink = pa.BufferOutputStream()
    pq.ParquetWriter(sink, schema).close()
    data = sink.getvalue().to_pybytes()
    # Zero rows, then an empty list of structs. After these only text and column orders follow, which cannot contain
    # these bytes.
    prefix, _, suffix = data[-8 - int.from_bytes(data[-8:-4], "little") : -8].rpartition(b"\x16\x00\x19\x0c")
    return prefix, suffix


FALSE_POSITIVE_RATE = 0.05
"""False positive rate requested from Arrow. Arrow rounds the filter up: a full row group has a rate of 0.03."""

_SALT = np.array(
    [0x47B6137B, 0x44974D91, 0x8824AD5B, 0xA2B7289D, 0x705495C7, 0x2DF1424B, 0x9EFC4947, 0x5C6BFB31], np.uint32
)
_BLOCK_BYTES = 32
_HEADER_END = b"\x1c\x1c\x00\x00" * 3 + b"\x00"
"""End of a filter's Thrift header, with the only algorithm, hash and compression that Parquet specifies."""
CHUNK_BYTES = 512
"""Size of a filter chunk, the smallest part of a filter that is read. A key's bits are in one block of one chunk."""
_CHUNK_BLOCKS = CHUNK_BYTES // _BLOCK_BYTES


def split_filter(data: bytes) -> dict[int, bytes]:
    """Split the bytes of a Parquet Bloom filter (header and bits) into numbered chunks.

    Raises `ValueError` for an unknown header.
    """
    # The header is shorter than a block; its field 1, a zigzag i32, is the number of bytes of bits.
    start = len(data) % _BLOCK_BYTES
    header, size = bytearray(b"\x15"), (len(data) - start) << 1
    while size > 0x7F:
        header.append(size & 0x7F | 0x80)
        size >>= 7
    header.append(size)
    if data[:start] != header + _HEADER_END or len(data) == start:
        raise ValueError(f"expected a split-block Bloom filter of XXH64 in {len(data)} bytes; found another header")
    starts = range(start, len(data), CHUNK_BYTES)
    return {number: data[at : at + CHUNK_BYTES] for number, at in enumerate(starts)}


def filter_bits_range(column: ColumnMetaData) -> tuple[int, int]:
    """Return the start and the end offset of the bits of a column's Bloom filter. Both are equal without a filter."""
    start, size = column.bloom_filter_offset or 0, column.bloom_filter_length or 0
    # The header before them is shorter than a block.
    return start + size % _BLOCK_BYTES, start + size


def probed_chunks(hashes: npt.NDArray[np.int64], num_bytes: int) -> npt.NDArray[np.int64]:
    """Return, for each `_hash`, the number of the filter chunk with its bits. `num_bytes` is the filter's size."""
    return (_block_numbers(_filter_hashes(hashes), num_bytes // _BLOCK_BYTES) // np.uint64(_CHUNK_BLOCKS)).astype(
        np.int64
    )


def probe_filter(chunks: Mapping[int, bytes], hashes: npt.NDArray[np.int64], num_bytes: int) -> npt.NDArray[np.bool_]:
    """Return a mask of the hashes that the Bloom filter passes. The row group lacks all other hashes.

    `chunks` has, by number, at least the chunks that `probed_chunks` returns. `num_bytes` is the size of the filter's
    bits.
    """
    numbers = np.array(sorted(chunks), np.int64)
    data = b"".join(chunks[number].ljust(CHUNK_BYTES, b"\0") for number in numbers.tolist())
    hashed = _filter_hashes(hashes)
    within = _block_numbers(hashed, num_bytes // _BLOCK_BYTES).astype(np.int64) % _CHUNK_BLOCKS
    at = np.searchsorted(numbers, probed_chunks(hashes, num_bytes)) * _CHUNK_BLOCKS + within
    blocks = np.frombuffer(data, "<u4").reshape(-1, _BLOCK_BYTES // 4)[at]
    bits = np.uint32(1) << ((hashed.astype(np.uint32)[:, np.newaxis] * _SALT) >> np.uint32(27))
    matches: npt.NDArray[np.bool_] = ((blocks & bits) == bits).all(axis=1)
    return matches


def _filter_hashes(hashes: npt.NDArray[np.int64]) -> npt.NDArray[np.uint64]:
    return hash_u64(hashes.view(np.uint64), np.zeros(len(hashes), np.uint64))


def _block_numbers(hashed: npt.NDArray[np.uint64], num_blocks: int) -> npt.NDArray[np.uint64]:
    return ((hashed >> np.uint64(32)) * np.uint64(num_blocks)) >> np.uint64(32)
