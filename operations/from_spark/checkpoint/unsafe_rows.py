"""Spark's `UnsafeRow`s as Arrow arrays: all rows of a buffer at once, a column at a time.

The layout is that of Spark's `UnsafeRow`, `UnsafeArrayData` and `UnsafeMapData`: words of eight bytes in the machine's
order (little), first a bit for each field that is null, then a word a field, which holds the value, or where it lies
(upper half) and its length (lower half), then what does not fit into a word. An array's elements are as wide as they
are.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DayTimeIntervalType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from ....pipeline.source.spark_types import arrow_of

Bytes = npt.NDArray[np.uint8]
Positions = npt.NDArray[np.int64]
_WIDTHS: dict[type[DataType], type[np.generic]] = {
    BooleanType: np.uint8,
    ByteType: np.int8,
    ShortType: np.int16,
    IntegerType: np.int32,
    DateType: np.int32,
    FloatType: np.float32,
    LongType: np.int64,
    DoubleType: np.float64,
    TimestampType: np.int64,
    TimestampNTZType: np.int64,
    DayTimeIntervalType: np.int64,
}
"""Types whose values lie in the word itself, and as what."""
_IN_A_WORD = 18
"""Digits of a decimal that is a whole number in the word itself."""


class UnknownLayout(Exception):
    """State is laid out as is not known here: Spark may read it."""


def is_readable(kind: DataType) -> bool:
    """Whether values of a type can be read here."""
    if isinstance(kind, StructType):
        return all(is_readable(each.dataType) for each in kind.fields)
    if isinstance(kind, ArrayType):
        return is_readable(kind.elementType)
    if isinstance(kind, MapType):
        return is_readable(kind.keyType) and is_readable(kind.valueType)
    return type(kind) in _WIDTHS or isinstance(kind, StringType | BinaryType | DecimalType)


def structs(data: Bytes, at: Positions, kind: StructType) -> pa.StructArray:
    """The rows of these fields that begin at these positions. Raises `UnknownLayout` for others."""
    words = 8 * (-(-len(kind.fields) // 64))
    fields = []
    for number, each in enumerate(kind.fields):
        nulls = _bits(data, at, np.full(len(at), number))
        fields.append(_values(data, at, at + words + 8 * number, nulls, each.dataType, 8))
    if not fields:
        return pa.array([{}] * len(at), pa.struct([]))
    return pa.StructArray.from_arrays(fields, fields=list(arrow_of(kind)))


def gather(data: Bytes, at: Positions, stored: type[np.generic]) -> npt.NDArray[Any]:
    """Numbers that lie at these positions. Raises `UnknownLayout` where one is not in the buffer."""
    kind = np.dtype(stored)
    if len(at) and (at.min() < 0 or at.max() + kind.itemsize > len(data)):
        raise UnknownLayout
    found: npt.NDArray[Any] = data[at[:, None] + np.arange(kind.itemsize)].view(kind)[:, 0]
    return found


def _values(
    data: Bytes, base: Positions, slots: Positions, nulls: npt.NDArray[np.bool_], kind: DataType, width: int
) -> pa.Array:
    """The values in these slots, of rows or arrays that begin at `base`."""
    said = arrow_of(StructType([StructField("_", kind)])).field(0).type
    if (stored := _WIDTHS.get(type(kind))) is not None:
        found = gather(data, slots, stored)
        if isinstance(kind, BooleanType):
            return pa.array(found != 0, mask=nulls)
        return pa.array(found, mask=nulls).view(said)
    if isinstance(kind, DecimalType) and kind.precision <= _IN_A_WORD:
        halves = np.empty((len(slots), 2), np.int64)
        halves[:, 0] = gather(data, slots, np.int64)
        halves[:, 1] = halves[:, 0] >> 63
        return _masked(pa.Array.from_buffers(said, len(slots), [None, pa.py_buffer(halves)]), nulls)
    there = np.flatnonzero(~nulls)
    word = gather(data, slots[there], np.int64)
    starts, sizes = base[there] + (word >> 32), word & 0xFFFFFFFF
    if (starts < base[there]).any() or (starts + sizes > len(data)).any():
        raise UnknownLayout
    return _spread(_lengthy(data, starts, sizes, kind, said), there, nulls)


def _lengthy(data: Bytes, starts: Positions, sizes: Positions, kind: DataType, said: pa.DataType) -> pa.Array:
    """Values that lie in a region of their own, none of them null."""
    if isinstance(kind, StructType):
        return structs(data, starts, kind)
    if isinstance(kind, ArrayType):
        offsets, elements = _elements(data, starts, kind.elementType)
        return pa.ListArray.from_arrays(offsets, elements, type=said)
    if isinstance(kind, MapType):
        values = starts + 8 + gather(data, starts, np.int64)
        offsets, keys = _elements(data, starts + 8, kind.keyType)
        _, items = _elements(data, values, kind.valueType)
        return pa.MapArray.from_arrays(offsets, keys, items, type=said)
    if isinstance(kind, DecimalType):
        return pa.Array.from_buffers(said, len(starts), [None, pa.py_buffer(_decimals(data, starts, sizes))])
    ends = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)
    taken = data[np.repeat(starts - ends[:-1], sizes) + np.arange(ends[-1])]
    return pa.Array.from_buffers(said, len(starts), [None, pa.py_buffer(ends), pa.py_buffer(taken)])


def _elements(data: Bytes, at: Positions, kind: DataType) -> tuple[pa.Array, pa.Array]:
    """Where each array's elements end, and all elements of arrays that begin at these positions."""
    counts = gather(data, at, np.int64)
    if (counts < 0).any() or (at + counts > len(data)).any():
        raise UnknownLayout
    ends = np.concatenate([[0], np.cumsum(counts)])
    base = np.repeat(at, counts)
    number = np.arange(ends[-1]) - np.repeat(ends[:-1], counts)
    stored = _WIDTHS.get(type(kind))
    width = np.dtype(stored).itemsize if stored is not None else 8
    heads = np.repeat(8 + (counts + 63) // 64 * 8, counts)
    slots, nulls = base + heads + width * number, _bits(data, base + 8, number)
    return pa.array(ends, pa.int32()), _values(data, base, slots, nulls, kind, width)


def _bits(data: Bytes, at: Positions, number: Positions) -> npt.NDArray[np.bool_]:
    """Whether a bit is set, by its number in the words at a position."""
    found = gather(data, at + number // 8, np.uint8) >> (number % 8).astype(np.uint8)
    return np.asarray(found & 1, np.bool_)


def _masked(values: pa.Array, nulls: npt.NDArray[np.bool_]) -> pa.Array:
    return pc.if_else(pa.array(nulls), pa.scalar(None, values.type), values)


def _spread(values: pa.Array, there: Positions, nulls: npt.NDArray[np.bool_]) -> pa.Array:
    """Values at the places that are not null, with nulls between them."""
    if len(there) == len(nulls):
        return values
    at = np.zeros(len(nulls), np.int64)
    at[there] = np.arange(len(there))
    return values.take(pa.array(at, mask=nulls))


def _decimals(data: Bytes, starts: Positions, sizes: Positions) -> npt.NDArray[np.uint8]:
    """Whole numbers of up to 16 bytes, the highest first, as Arrow lays them: 16 bytes, the lowest first."""
    number = np.arange(16)
    within = number < sizes[:, None]
    found = data[np.where(within, (starts + sizes - 1)[:, None] - number, starts[:, None])]
    return np.where(within, found, np.where(found[:, -1:] >> 7, 0xFF, 0)).astype(np.uint8)
