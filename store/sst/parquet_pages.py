"""Parquet's footer and page index as values, and some pages of a file as a Parquet file of their own.

Arrow reads whole row groups and says nothing of where pages are. So what Parquet writes about that (parquet-format,
`parquet.thrift`) is read here, by Apache Thrift; of its structures only the fields that this takes. And Arrow decodes
chosen pages from a file that has no others: the same bytes, under a footer that says where they are in it.
"""

from collections.abc import Callable, Sequence
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

_COMPACT = TCompactProtocolAcceleratedFactory()
MALFORMED = (ValueError, TypeError, LookupError, AttributeError, OSError, pa.ArrowException)
"""What reading bytes raises that are not what they should be, though their checksums are right."""
_LOWEST, _HIGHEST = -(1 << 63), (1 << 63) - 1


class _Struct(TBase):  # type: ignore[misc]  # Thrift has no types
    thrift_spec: ClassVar[tuple[Any, ...]]

    def __init__(self, **fields: Any) -> None:
        self.__dict__.update(fields)


def _fields(kind: type[_Struct], fields: dict[int, tuple[str, Any]]) -> None:
    """Declare fields by number: name, and type; `[type]` is a list of it. What a value lacks is None."""
    spec: list[Any] = [None] * (max(fields) + 1)
    for number, (name, of) in fields.items():
        thrift_type, more = _type(of[0] if isinstance(of, list) else of)
        listed = isinstance(of, list)
        spec[number] = (
            number,
            TType.LIST if listed else thrift_type,
            name,
            (thrift_type, more, False) if listed else more,
            None,
        )
        setattr(kind, name, None)
    kind.thrift_spec = tuple(spec)


def _type(of: Any) -> tuple[int, Any]:
    if isinstance(of, type) and issubclass(of, _Struct):
        return TType.STRUCT, [of, of.thrift_spec]
    return of, "BINARY" if of == TType.STRING else None


class PageHeader(_Struct):
    """What stands before a page."""

    class Data(_Struct):
        """Of a page of values, in either version of these."""

        num_values: int

    data: Data | None
    data_v2: Data | None


class PageLocation(_Struct):
    """Where a page is, its header included."""

    offset: int
    size: int
    first_row: int


class OffsetIndex(_Struct):
    """Where the pages of a column are in a row group."""

    pages: list[PageLocation]


class ColumnIndex(_Struct):
    """The least and the largest value of each page of a column in a row group."""

    null_pages: list[bool]
    min_values: list[bytes]
    max_values: list[bytes]


class ColumnMetaData(_Struct):
    """A column of a row group."""

    num_values: int
    path: list[bytes]
    total_compressed_size: int
    data_page_offset: int
    dictionary_page_offset: int | None
    bloom_filter_offset: int | None
    bloom_filter_length: int | None

    @property
    def start(self) -> int:
        """Where its first page is, that of its dictionary included."""
        dictionary = self.dictionary_page_offset
        return self.data_page_offset if dictionary is None else min(dictionary, self.data_page_offset)

    @property
    def end(self) -> int:
        """Where its last page ends."""
        return self.start + self.total_compressed_size


class ColumnChunk(_Struct):
    """A column of a row group, and where its indexes are."""

    meta_data: ColumnMetaData
    offset_index_offset: int | None
    offset_index_length: int
    column_index_offset: int | None
    column_index_length: int


class RowGroup(_Struct):
    """A row group."""

    columns: list[ColumnChunk]
    total_byte_size: int
    num_rows: int


class FileMetaData(_Struct):
    """The footer of a Parquet file."""

    row_groups: list[RowGroup]


_fields(PageHeader.Data, {1: ("num_values", TType.I32)})
_fields(PageHeader, {5: ("data", PageHeader.Data), 8: ("data_v2", PageHeader.Data)})
_fields(PageLocation, {1: ("offset", TType.I64), 2: ("size", TType.I32), 3: ("first_row", TType.I64)})
_fields(OffsetIndex, {1: ("pages", [PageLocation])})
_fields(
    ColumnIndex,
    {1: ("null_pages", [TType.BOOL]), 2: ("min_values", [TType.STRING]), 3: ("max_values", [TType.STRING])},
)
_fields(
    ColumnMetaData,
    {
        1: ("type", TType.I32),
        2: ("encodings", [TType.I32]),
        3: ("path", [TType.STRING]),
        4: ("codec", TType.I32),
        5: ("num_values", TType.I64),
        6: ("total_uncompressed_size", TType.I64),
        7: ("total_compressed_size", TType.I64),
        9: ("data_page_offset", TType.I64),
        11: ("dictionary_page_offset", TType.I64),
        14: ("bloom_filter_offset", TType.I64),
        15: ("bloom_filter_length", TType.I32),
    },
)
_fields(
    ColumnChunk,
    {
        2: ("file_offset", TType.I64),
        3: ("meta_data", ColumnMetaData),
        4: ("offset_index_offset", TType.I64),
        5: ("offset_index_length", TType.I32),
        6: ("column_index_offset", TType.I64),
        7: ("column_index_length", TType.I32),
    },
)
_fields(RowGroup, {1: ("columns", [ColumnChunk]), 2: ("total_byte_size", TType.I64), 3: ("num_rows", TType.I64)})
_fields(FileMetaData, {3: ("num_rows", TType.I64), 4: ("row_groups", [RowGroup])})

Decoded = TypeVar("Decoded", bound=_Struct)


def decoded(kind: type[Decoded], data: bytes) -> Decoded:
    """The structure at the beginning of these bytes.

    Raises:
        ValueError: there is none.
    """
    try:
        found = deserialize(kind(), data, _COMPACT)
    except (TException, EOFError, TypeError, OverflowError) as error:
        raise ValueError(f"expected Parquet's {kind.__name__} in {len(data)} bytes ({error})") from error
    assert isinstance(found, kind)  # noqa: S101  what it was given to fill
    return found


def index_ranges(group: RowGroup) -> tuple[tuple[int, int], tuple[int, int]]:
    """From where to where the column indexes and the offset indexes of a row group are, which has them.

    Arrow writes those of a row group one after the other.
    """
    columns = [
        (one.column_index_offset, one.column_index_offset + one.column_index_length)
        for one in group.columns
        if one.column_index_offset is not None
    ]
    offsets = [
        (one.offset_index_offset, one.offset_index_offset + one.offset_index_length)
        for one in group.columns
        if one.offset_index_offset is not None
    ]
    return (columns[0][0], columns[-1][1]), (offsets[0][0], offsets[-1][1])


def bounds(index: ColumnIndex) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The least and the largest value of each page of a column of int64; a range of nothing where all are null."""
    low, high = (
        np.array([missing if null else int.from_bytes(value, "little", signed=True) for null, value in pages], np.int64)
        for missing, pages in (
            (_HIGHEST, zip(index.null_pages, index.min_values, strict=True)),
            (_LOWEST, zip(index.null_pages, index.max_values, strict=True)),
        )
    )
    return low, high


def file_of_pages(
    schema: pa.Schema,
    parts: Sequence[tuple[RowGroup, int, Sequence[Sequence[tuple[int, int]]]]],
    read: Callable[[int, int], bytes],
    nested: Sequence[bool],
) -> bytes:
    """A Parquet file of some pages of another.

    Args:
        schema: of the other.
        parts: row groups, each with how many rows its pages have, and of each plain column in the order of its chunks
            where the pages are, that of the dictionary first if there is one; none for a column that nobody will read.
        read: the bytes from one offset of the other file to another.
        nested: of each plain column, whether a row may have several values of it, or none.
    """
    body, at, groups = [b"PAR1"], 4, []
    for group, num_rows, columns in parts:
        chunks = []
        for chunk, pages, several in zip(group.columns, columns, nested, strict=True):
            data = [read(start, end) for start, end in pages]
            was = chunk.meta_data
            has_dictionary = was.dictionary_page_offset is not None and bool(data)
            first = at + len(data[0]) if has_dictionary else at
            fields = {
                "num_values": _num_values(was.num_values, data[has_dictionary:], num_rows == group.num_rows)
                if several
                else num_rows,
                "total_compressed_size": sum(map(len, data)),
                "data_page_offset": first,
                "dictionary_page_offset": at if has_dictionary else None,
                "bloom_filter_offset": None,
                "bloom_filter_length": None,
            }
            chunks.append(ColumnChunk(file_offset=0, meta_data=ColumnMetaData(**{**was.__dict__, **fields})))
            body += data
            at += sum(map(len, data))
        groups.append(RowGroup(columns=chunks, total_byte_size=group.total_byte_size, num_rows=num_rows))
    before, after = _footer_without_rows(schema)
    rows = FileMetaData(num_rows=sum(group.num_rows for group in groups), row_groups=groups)
    # As the number of a field counts from the field before: the third of a structure that begins with it, and so of one
    # that has two before. What ends the structure comes after it all.
    footer = before + b"\x16" + serialize(rows, _COMPACT)[1:-1] + after
    return b"".join((*body, footer, len(footer).to_bytes(4, "little"), b"PAR1"))


def _num_values(of_all: int, pages: Sequence[bytes], whole: bool) -> int:
    """How many values some pages of a column chunk have; the `whole` chunk comes as one piece."""
    if whole:
        return of_all
    found = 0
    for page in pages:
        header = decoded(PageHeader, page)
        data = header.data or header.data_v2
        if data is None:
            raise ValueError("expected a page of values; found another")
        found += data.num_values
    return found


@lru_cache(maxsize=256)
def _footer_without_rows(schema: pa.Schema) -> tuple[bytes, bytes]:
    """A footer of this schema: what stands before the number of rows and the row groups, and what behind them."""
    sink = pa.BufferOutputStream()
    pq.ParquetWriter(sink, schema).close()
    data = sink.getvalue().to_pybytes()
    # No rows, and an empty list of structures. What follows is text and the order of columns, and has no such bytes.
    before, _, after = data[-8 - int.from_bytes(data[-8:-4], "little") : -8].rpartition(b"\x16\x00\x19\x0c")
    return before, after
