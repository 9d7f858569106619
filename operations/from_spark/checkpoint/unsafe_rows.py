"""Decoder of Spark's `UnsafeRow`s into Arrow arrays: all rows of a buffer at once, one column at a time.

The layout is that of Spark's `UnsafeRow`, `UnsafeArrayData` and `UnsafeMapData`: little-endian words of eight bytes.
A row begins with the null bits of its fields. Then each field has a word: its value, or the offset (upper half) and
size (lower half) of a longer value. The longer values come last. Array elements have the width of their type.
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

from ....pipeline.source.spark_types import arrow_schema_of

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
"""NumPy types of the Spark types whose values are stored in a field's eight-byte word."""
_MAX_WORD_PRECISION = 18
"""Maximum precision of a decimal that is stored in a field's eight-byte word."""


class UnknownLayout(Exception):
    """State has a layout that this module does not support. Spark may be able to read it."""


def is_readable(kind: DataType) -> bool:
    if isinstance(kind, StructType):
        return all(is_readable(part.dataType) for part in kind.fields)
    if isinstance(kind, ArrayType):
        return is_readable(kind.elementType)
    if isinstance(kind, MapType):
        return is_readable(kind.keyType) and is_readable(kind.valueType)
    return type(kind) in _WIDTHS or isinstance(kind, StringType | BinaryType | DecimalType)


def decode_rows(data: Bytes, at: Positions, kind: StructType) -> pa.StructArray:
    """Decode the rows of type `kind` at these byte offsets. Raises `UnknownLayout`."""
    null_bytes = 8 * (-(-len(kind.fields) // 64))
    fields = []
    for number, part in enumerate(kind.fields):
        nulls = _bits(data, at, np.full(len(at), number))
        fields.append(_values(data, at, at + null_bytes + 8 * number, nulls, part.dataType, 8))
    if not fields:
        return pa.array([{}] * len(at), pa.struct([]))
    return pa.StructArray.from_arrays(fields, fields=list(arrow_schema_of(kind)))


def gather(data: Bytes, at: Positions, stored: type[np.generic]) -> npt.NDArray[Any]:
    """Return the numbers of type `stored` at these byte offsets. Raises `UnknownLayout` for offsets outside `data`."""
    kind = np.dtype(stored)
    if len(at) and (at.min() < 0 or at.max() + kind.itemsize > len(data)):
        raise UnknownLayout
    numbers: npt.NDArray[Any] = data[at[:, None] + np.arange(kind.itemsize)].view(kind)[:, 0]
    return numbers


def _values(
    data: Bytes, base: Positions, slots: Positions, nulls: npt.NDArray[np.bool_], kind: DataType, width: int
) -> pa.Array:
    arrow_type = arrow_schema_of(StructType([StructField("_", kind)])).field(0).type
    if (stored := _WIDTHS.get(type(kind))) is not None:
        numbers = gather(data, slots, stored)
        if isinstance(kind, BooleanType):
            return pa.array(numbers != 0, mask=nulls)
        return pa.array(numbers, mask=nulls).view(arrow_type)
    if isinstance(kind, DecimalType) and kind.precision <= _MAX_WORD_PRECISION:
        halves = np.empty((len(slots), 2), np.int64)
        halves[:, 0] = gather(data, slots, np.int64)
        halves[:, 1] = halves[:, 0] >> 63
        return _masked(pa.Array.from_buffers(arrow_type, len(slots), [None, pa.py_buffer(halves)]), nulls)
    valid = np.flatnonzero(~nulls)
    word = gather(data, slots[valid], np.int64)
    starts, sizes = base[valid] + (word >> 32), word & 0xFFFFFFFF
    if (starts < base[valid]).any() or (starts + sizes > len(data)).any():
        raise UnknownLayout
    return _spread(_variable_length(data, starts, sizes, kind, arrow_type), valid, nulls)


def _variable_length(
    data: Bytes, starts: Positions, sizes: Positions, kind: DataType, arrow_type: pa.DataType
) -> pa.Array:
    if isinstance(kind, StructType):
        return decode_rows(data, starts, kind)
    if isinstance(kind, ArrayType):
        offsets, elements = _elements(data, starts, kind.elementType)
        return pa.ListArray.from_arrays(offsets, elements, type=arrow_type)
    if isinstance(kind, MapType):
        values = starts + 8 + gather(data, starts, np.int64)
        offsets, keys = _elements(data, starts + 8, kind.keyType)
        _, items = _elements(data, values, kind.valueType)
        return pa.MapArray.from_arrays(offsets, keys, items, type=arrow_type)
    if isinstance(kind, DecimalType):
        return pa.Array.from_buffers(arrow_type, len(starts), [None, pa.py_buffer(_decimals(data, starts, sizes))])
    ends = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)
    contents = data[np.repeat(starts - ends[:-1], sizes) + np.arange(ends[-1])]
    return pa.Array.from_buffers(arrow_type, len(starts), [None, pa.py_buffer(ends), pa.py_buffer(contents)])


def _elements(data: Bytes, at: Positions, kind: DataType) -> tuple[pa.Array, pa.Array]:
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
    bits = gather(data, at + number // 8, np.uint8) >> (number % 8).astype(np.uint8)
    return np.asarray(bits & 1, np.bool_)


def _masked(values: pa.Array, nulls: npt.NDArray[np.bool_]) -> pa.Array:
    return pc.if_else(pa.array(nulls), pa.scalar(None, values.type), values)


def _spread(values: pa.Array, valid: Positions, nulls: npt.NDArray[np.bool_]) -> pa.Array:
    if len(valid) == len(nulls):
        return values
    at = np.zeros(len(nulls), np.int64)
    at[valid] = np.arange(len(valid))
    return values.take(pa.array(at, mask=nulls))


def _decimals(data: Bytes, starts: Positions, sizes: Positions) -> npt.NDArray[np.uint8]:
    number = np.arange(16)
    within = number < sizes[:, None]
    digits = data[np.where(within, (starts + sizes - 1)[:, None] - number, starts[:, None])]
    return np.where(within, digits, np.where(digits[:, -1:] >> 7, 0xFF, 0)).astype(np.uint8)
