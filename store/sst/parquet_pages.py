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
LOWEST, HIGHEST = -(1 << 63), (1 << 63) - 1


def _field(number: int, kind: Any) -> Any:
    """A field of a structure: its number, and its type, Thrift's or another structure; `[type]` is a list of these."""
    return number, kind


class _Struct(TBase):  # type: ignore[misc]  # Thrift has no types
    """A structure whose fields are declared by `_field`. What a value lacks is None."""

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
    """What stands before a page."""

    class Data(_Struct):
        """Of a page of values, in either version of these."""

        num_values: int = _field(1, TType.I32)

    data: Data | None = _field(5, Data)
    data_v2: Data | None = _field(8, Data)


class PageLocation(_Struct):
    """Where a page is, its header included."""

    offset: int = _field(1, TType.I64)
    size: int = _field(2, TType.I32)
    first_row: int = _field(3, TType.I64)


class OffsetIndex(_Struct):
    """Where the pages of a column are in a row group."""

    pages: list[PageLocation] = _field(1, [PageLocation])


class ColumnIndex(_Struct):
    """The least and the largest value of each page of a column in a row group."""

    null_pages: list[bool] = _field(1, [TType.BOOL])
    min_values: list[bytes] = _field(2, [TType.STRING])
    max_values: list[bytes] = _field(3, [TType.STRING])


class ColumnMetaData(_Struct):
    """A column of a row group."""

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
        """Where its first page is, that of its dictionary included."""
        dictionary = self.dictionary_page_offset
        return self.data_page_offset if dictionary is None else min(dictionary, self.data_page_offset)

    @property
    def end(self) -> int:
        """Where its last page ends."""
        return self.start + self.total_compressed_size


class ColumnChunk(_Struct):
    """A column of a row group, and where its indexes are."""

    file_offset: int = _field(2, TType.I64)
    meta_data: ColumnMetaData = _field(3, ColumnMetaData)
    offset_index_offset: int | None = _field(4, TType.I64)
    offset_index_length: int = _field(5, TType.I32)
    column_index_offset: int | None = _field(6, TType.I64)
    column_index_length: int = _field(7, TType.I32)


class RowGroup(_Struct):
    """A row group."""

    columns: list[ColumnChunk] = _field(1, [ColumnChunk])
    total_byte_size: int = _field(2, TType.I64)
    num_rows: int = _field(3, TType.I64)


class FileMetaData(_Struct):
    """The footer of a Parquet file."""

    num_rows: int = _field(3, TType.I64)
    row_groups: list[RowGroup] = _field(4, [RowGroup])


Decoded = TypeVar("Decoded", bound=_Struct)


def decoded(kind: type[Decoded], data: bytes) -> Decoded:
    """The structure at the beginning of these bytes. Raises `ValueError` where there is none."""
    try:
        found: Decoded = deserialize(kind(), data, _COMPACT)
    except (TException, EOFError, TypeError, OverflowError) as error:
        raise ValueError(f"expected Parquet's {kind.__name__} in {len(data)} bytes ({error})") from error
    return found


def index_ranges(group: RowGroup) -> tuple[tuple[int, int], tuple[int, int]]:
    """From where to where the column indexes and the offset indexes of a row group are, which has them.

    Arrow writes those of a row group one after the other.
    """
    columns, offsets = (
        [(start, start + length) for start, length in pairs if start is not None]
        for pairs in (
            [(one.column_index_offset, one.column_index_length) for one in group.columns],
            [(one.offset_index_offset, one.offset_index_length) for one in group.columns],
        )
    )
    return (columns[0][0], columns[-1][1]), (offsets[0][0], offsets[-1][1])


def bounds(index: ColumnIndex) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The least and the largest value of each page of a column of int64; a range of nothing where all are null."""
    low, high = (
        np.array([missing if null else int.from_bytes(value, "little", signed=True) for null, value in pages], np.int64)
        for missing, pages in (
            (HIGHEST, zip(index.null_pages, index.min_values, strict=True)),
            (LOWEST, zip(index.null_pages, index.max_values, strict=True)),
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
            num_values = num_rows
            if several:
                # All of a chunk comes as one piece.
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
    before, after = _footer_without_rows(schema)
    rows = FileMetaData(num_rows=sum(group.num_rows for group in groups), row_groups=groups)
    # As the number of a field counts from the field before: the third of a structure that begins with it, and so of one
    # that has two before. What ends the structure comes after it all.
    footer = before + b"\x16" + serialize(rows, _COMPACT)[1:-1] + after
    return b"".join((*body, footer, len(footer).to_bytes(4, "little"), b"PAR1"))


def _num_values(page: bytes) -> int:
    header = decoded(PageHeader, page)
    data = header.data or header.data_v2
    if data is None:
        raise ValueError("expected a page of values; found another")
    return data.num_values


@lru_cache(maxsize=256)
def _footer_without_rows(schema: pa.Schema) -> tuple[bytes, bytes]:
    """A footer of this schema: what stands before the number of rows and the row groups, and what behind them."""
    sink = pa.BufferOutputStream()
    pq.ParquetWriter(sink, schema).close()
    data = sink.getvalue().to_pybytes()
    # No rows, and an empty list of structures. What follows is text and the order of columns, and has no such bytes.
    before, _, after = data[-8 - int.from_bytes(data[-8:-4], "little") : -8].rpartition(b"\x16\x00\x19\x0c")
    return before, after
