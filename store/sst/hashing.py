"""Hashes of keys, compatible with Spark; state partitions of hashes; equality and order of keys.

`_hash` equals Spark SQL's `xxhash64(key columns)`, so Spark can compute it, too. Each type is hashed as in Spark's
`HashExpression` and `XxHash64Function` (catalyst/expressions/hash.scala). The first column has the seed 42, and the
hash of a column is the seed of the next column. NULL keeps the seed. A struct is hashed field by field; a NULL struct
keeps the seed, as NULL fields do. Two structs are equal keys if all fields are equal; NULL and a struct of NULLs are
different keys, although they share their hash.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, reduce
from struct import Struct
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from ...errors import Usage
from ..versions.keys import hashed_columns
from .xxh64 import U64, hash_bytes, hash_u32, hash_u64

_SEED = np.uint64(42)
_LONG_DECIMAL_DIGITS = 18


def hash_keys(rows: pa.Table | pa.RecordBatch, columns: Sequence[str]) -> npt.NDArray[np.int64]:
    """Return the key hash of each row: Spark's `xxhash64(columns)`. Raises `Usage` if a column cannot be a key.

    In a table of parts, the last key column is not hashed, so that all parts of a list or a map are in one hash range
    (`hashed_columns`).
    """
    hashed = hashed_columns(columns)
    for name in hashed:
        _check_hashable(name, rows.schema.field(name).type)
    running = np.full(rows.num_rows, _SEED)
    for name in hashed:
        running = _chain(name, one_array(rows.column(name)), running)
    return running.view(np.int64)


_FAST_PACKERS: Mapping[str, Callable[[Any], bytes]] = {
    "string": str.encode,
    "int64": Struct("<q").pack,
    # Spark widens every shorter type to int.
    **dict.fromkeys(("int32", "int16", "int8"), Struct("<i").pack),
}
FAST_KEY_TYPES = frozenset(_FAST_PACKERS)


def hash_key(values: Sequence[str | int | None], types: Sequence[str]) -> int:
    """Return the hash of one key whose types are in `FAST_KEY_TYPES`, about 100 times faster than `hash_keys`."""
    running = int(_SEED)
    for value, kind in zip(values, types, strict=True):
        if value is not None:
            running = xxhash.xxh64_intdigest(_FAST_PACKERS[kind](value), running)
    return running - (1 << 64) if running >> 63 else running


def partition_of(hashes: npt.NDArray[np.int64], partitions: int) -> npt.NDArray[np.int32]:
    """Return the state partition of each hash: the index of one of `partitions` equal ranges of int64.

    The algorithm is multiply-shift on the upper half of the hash. Doubling `partitions` splits each range in two.
    """
    from_zero = hashes.view(np.uint64) ^ np.uint64(1 << 63)
    return (((from_zero >> np.uint64(32)) * np.uint64(partitions)) >> np.uint64(32)).astype(np.int32)


def normalise_keys(rows: pa.Table, columns: Sequence[str]) -> pa.Table:
    """Return the rows with canonical keys: -0.0 becomes 0.0, and all NaNs become one NaN. Nulls stay."""
    for name in columns:
        index = rows.schema.get_field_index(name)
        field = rows.schema.field(index)
        if has_floats(field.type):
            rows = rows.set_column(index, field, _normalise(one_array(rows.column(index))))
    return rows


def has_negative_zero(column: pa.Array | pa.ChunkedArray) -> bool:
    if not has_floats(column.type):
        return False
    plain = one_array(column)
    if pa.types.is_struct(plain.type):
        return any(has_negative_zero(child) for child in plain.flatten())
    values = _fixed_width_values(plain)
    return bool(np.any((values == 0) & np.signbit(values) & np.asarray(plain.is_valid())))


def same_keys(
    left: pa.Table | pa.RecordBatch, right: pa.Table | pa.RecordBatch, columns: Sequence[str]
) -> npt.NDArray[np.bool_]:
    """Return a mask of the rows whose keys are equal on both sides. Null equals null, and NaN equals NaN.

    Both sides have the same number of rows, and the same types in these columns.
    """
    if not columns:
        return np.ones(left.num_rows, np.bool_)
    return reduce(np.logical_and, (_equal_values(left.column(name), right.column(name)) for name in columns))


def sort_keys(hashes: npt.NDArray[np.int64], keys: pa.Table) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """Return the order of the keys by (hash, key), and a mask of repeated keys.

    The mask is in the sorted order. It is True for a key that equals the previous key.
    """
    order = np.argsort(hashes, kind="stable")
    hashes = hashes[order]
    repeats = np.zeros(len(hashes), np.bool_)
    tied = np.flatnonzero(hashes[1:] == hashes[:-1]) + 1
    if tied.size:
        repeats[tied] = _equals_previous(keys, order, tied)
        if not repeats[tied].all():
            # If different keys share a hash, sort the runs of equal hashes by key as well.
            members = np.union1d(tied, tied - 1)
            parts = (part for column in keys.take(pa.array(order[members])).columns for part in _sort_columns(column))
            runs = pa.table({"hash": hashes[members], **{str(i): part for i, part in enumerate(parts)}})
            by_key = pc.sort_indices(runs, sort_keys=[(name, "ascending") for name in runs.column_names])
            order[members] = order[members[np.asarray(by_key)]]
            repeats[tied] = _equals_previous(keys, order, tied)
    return order, repeats


def _equals_previous(
    keys: pa.Table, order: npt.NDArray[np.int64], positions: npt.NDArray[np.int64]
) -> npt.NDArray[np.bool_]:
    current, previous = keys.take(pa.array(order[positions])), keys.take(pa.array(order[positions - 1]))
    return same_keys(current, previous, keys.column_names)


def hash_values(column: pa.Array | pa.ChunkedArray) -> U64:
    """Return a hash of each value of any type, lists and maps included. The hash differs from Spark's."""
    return _hash_values(one_array(column), np.zeros(len(column), np.uint64))


def _hash_values(column: pa.Array, seeds: U64) -> U64:
    if pa.types.is_struct(column.type):
        # A struct of nulls differs from a null struct.
        begun = hash_u32(np.ones(len(column), np.uint32), seeds)
        hashed = reduce(lambda running, child: _hash_values(child, running), column.flatten(), begun)
    elif pa.types.is_list(column.type) or pa.types.is_map(column.type):
        starts = np.asarray(column.offsets).astype(np.int64)
        elements = column.values.slice(starts[0], starts[-1] - starts[0])
        positions = np.arange(len(elements)) - np.repeat(starts[:-1] - starts[0], np.diff(starts))
        sums = np.concatenate((np.zeros(1, np.uint64), np.cumsum(_hash_values(elements, positions.astype(np.uint64)))))
        ends = starts - starts[0]
        hashed = hash_u64(sums[ends[1:]] - sums[ends[:-1]] + np.diff(starts).astype(np.uint64), seeds)
    elif column.null_count == len(column):
        hashed = seeds
    else:
        hashed = _hash_column("", column, seeds)
    # Null is a value here, and changes the seed.
    return np.where(np.asarray(column.is_valid()), hashed, hash_u32(np.zeros(len(column), np.uint32), ~seeds))


def has_floats(kind: pa.DataType) -> bool:
    if pa.types.is_struct(kind):
        return any(has_floats(kind.field(number).type) for number in range(kind.num_fields))
    return bool(pa.types.is_floating(kind))


def _normalise(column: pa.Array) -> pa.Array:
    kind = column.type
    if pa.types.is_struct(kind):
        children = [_normalise(column.field(number)) for number in range(kind.num_fields)]
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=column.is_null())
    if not pa.types.is_floating(kind):
        return column
    zero, nan = pa.scalar(0.0, kind), pa.scalar(float("nan"), kind)
    plain = pc.if_else(pc.equal(column, zero), zero, column)
    return pc.if_else(pc.is_nan(plain), nan, plain)


def _sort_columns(column: pa.Array | pa.ChunkedArray) -> list[pa.Array]:
    plain = one_array(column)
    if not pa.types.is_struct(plain.type):
        return [plain]
    return [plain.is_null(), *(part for child in plain.flatten() for part in _sort_columns(child))]


def _equal_values(left: pa.Array | pa.ChunkedArray, right: pa.Array | pa.ChunkedArray) -> npt.NDArray[np.bool_]:
    if pa.types.is_struct(left.type):
        left, right = one_array(left), one_array(right)
        left_valid, right_valid = np.asarray(left.is_valid()), np.asarray(right.is_valid())
        fields = zip(left.flatten(), right.flatten(), strict=True)
        return reduce(np.logical_and, (_equal_values(*pair) for pair in fields), left_valid == right_valid)
    equal = pc.equal(left, right)
    if pa.types.is_floating(left.type):
        equal = pc.or_(equal, pc.and_(pc.is_nan(left), pc.is_nan(right)))
    if left.null_count or right.null_count:
        equal = pc.or_(pc.fill_null(equal, False), pc.and_(pc.is_null(left), pc.is_null(right)))
    return np.asarray(equal)


def one_array(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Return a column as one array, copied only if it has several chunks or none."""
    if isinstance(column, pa.Array):
        return column
    if column.num_chunks == 1:
        return column.chunk(0)
    combined = column.combine_chunks()
    # A column beyond 2 GiB of text stays chunked; batches of keys are far smaller.
    return combined if isinstance(combined, pa.Array) else pa.concat_arrays(combined.chunks)


def _chain(name: str, column: pa.Array, seeds: U64) -> U64:
    if column.null_count == len(column):
        return seeds
    hashed = _hash_column(name, column, seeds)
    return np.where(np.asarray(column.is_valid()), hashed, seeds) if column.null_count else hashed


@lru_cache(maxsize=1024)
def _check_hashable(name: str, kind: pa.DataType) -> None:
    if pa.types.is_struct(kind):
        for number in range(kind.num_fields):
            _check_hashable(f"{name}.{kind.field(number).name}", kind.field(number).type)
    elif pa.types.is_nested(kind):
        raise Usage(
            f"column {name!r} of type {kind} cannot be a key: expected a plain value, or a struct of plain values",
            hint="a list or map cannot be a key: select the fields that identify the row, or convert it to a string",
        )
    elif not pa.types.is_null(kind):
        _hash_column(name, pa.nulls(0, kind), np.empty(0, np.uint64))


def _hash_column(name: str, column: pa.Array, seeds: U64) -> U64:
    types, kind = pa.types, column.type
    if types.is_struct(kind):
        for number in range(kind.num_fields):
            seeds = _chain(f"{name}.{kind.field(number).name}", column.field(number), seeds)
        return seeds
    if types.is_boolean(kind):
        column, kind = column.cast(pa.uint8()), pa.uint8()
    if types.is_integer(kind) or types.is_date32(kind) or (types.is_timestamp(kind) and kind.unit == "us"):
        values = _fixed_width_values(column)
        if values.itemsize == 8:
            return hash_u64(values.view(np.uint64), seeds)
        # Spark widens every shorter type to int, with its sign.
        return hash_u32(values.astype(np.int32).view(np.uint32), seeds)
    if types.is_float32(kind) or types.is_float64(kind):
        floats = _fixed_width_values(column) + 0.0  # -0.0 + 0.0 is 0.0
        floats[np.isnan(floats)] = np.nan
        if types.is_float32(kind):
            return hash_u32(floats.view(np.uint32), seeds)
        return hash_u64(floats.view(np.uint64), seeds)
    if types.is_decimal128(kind):
        # Unscaled 128-bit integers as rows of two 64-bit halves, the lower first.
        halves = np.frombuffer(column.buffers()[1], "<u8", 2 * len(column), 16 * column.offset).reshape(-1, 2)
        if kind.precision <= _LONG_DECIMAL_DIGITS:
            return hash_u64(np.ascontiguousarray(halves[:, 0]), seeds)
        return hash_bytes(*_as_big_integers(halves), seeds)
    large = types.is_large_string(kind) or types.is_large_binary(kind)
    if large or types.is_string(kind) or types.is_binary(kind):
        dtype = np.dtype("<i8" if large else "<i4")
        _, offsets, text = column.buffers()
        offsets = np.frombuffer(offsets, dtype, len(column) + 1, column.offset * dtype.itemsize).astype(np.int64)
        return hash_bytes(np.frombuffer(text, np.uint8) if text else np.empty(0, np.uint8), offsets, seeds)
    raise Usage(f"column {name!r} of type {kind} cannot be a key: Spark's xxhash64 of this type is not supported")


def _fixed_width_values(column: pa.Array) -> np.ndarray:
    kind = "f" if pa.types.is_floating(column.type) else "u" if pa.types.is_unsigned_integer(column.type) else "i"
    dtype = np.dtype(f"<{kind}{column.type.bit_width // 8}")
    return np.frombuffer(column.buffers()[1], dtype, len(column), column.offset * dtype.itemsize)


def _as_big_integers(halves: U64) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    big_endian = halves[:, ::-1].astype(">u8").view(np.uint8).reshape(-1, 16)
    sign = np.where(big_endian[:, :1] & 0x80, 0xFF, 0).astype(np.uint8)
    # Skip leading sign bytes; but keep one if the top bit of the next byte would change the sign.
    informs = big_endian[:, :-1] != sign
    informs |= (big_endian[:, 1:] ^ sign) & 0x80 != 0
    drop = np.where(informs.any(axis=1), informs.argmax(axis=1), 15)
    offsets = np.zeros(len(halves) + 1, np.int64)
    np.cumsum(16 - drop, out=offsets[1:])
    return big_endian[np.arange(16) >= drop[:, None]], offsets


SHARE_GRANULARITY = 10_000
"""Number of equal parts into which hashes are divided; a `KeyShare` has the first `parts` of them."""


@dataclass(frozen=True, slots=True)
class KeyShare:
    """A sample of keys, chosen by hash, so that a table, the table's input and Spark choose the same keys.

    A key is in the sample if its `xxhash64`, modulo `SHARE_GRANULARITY`, is below `parts`.
    """

    columns: tuple[str, ...]
    parts: int

    def select_hashes(self, hashes: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        return np.mod(hashes, SHARE_GRANULARITY) < self.parts

    def select_rows(self, rows: pa.Table | pa.RecordBatch) -> npt.NDArray[np.bool_]:
        return self.select_hashes(hash_keys(rows, self.columns))
