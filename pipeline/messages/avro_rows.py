"""Rows as Avro, a whole Arrow table at a time, and the schema of a table's rows in the registry.

Each column becomes a column of its bytes, and those are joined: numpy makes the variable-length integers, Arrow's
kernels the rest. See the specification of Avro 1.12, "Binary Encoding".
"""

from __future__ import annotations

import json
import re
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ...errors import Refused
from .registry import Registry
from .schema import HEAD_BYTES

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_NULL, _THERE = b"\x00", b"\x02"
"""The branches of ["null", …]: 0 and 1."""


def check(what: str, schema: pa.Schema) -> None:
    """See that there is an Avro schema for these columns. Raises `Refused`, beginning with `what`."""
    for field in schema:
        if not _NAME.fullmatch(field.name) or _kind(field.type) is None:
            why = f"is {field.type}" if _NAME.fullmatch(field.name) else "has a name that Avro does not take"
            raise Refused(
                f"{what}: column {field.name!r} {why}; Avro is written of columns that are numbers, strings, bytes, "
                "booleans, dates, timestamps, decimals, or lists of these, and named by letters, digits and '_'",
                hint="cast or rename it in the stage's function, or say value='json'",
            )


def schema_of(name: str, schema: pa.Schema) -> str:
    """The Avro schema of rows of these columns, each of which may be null."""
    fields = [{"name": one.name, "type": ["null", _kind(one.type)], "default": None} for one in schema]
    return json.dumps({"type": "record", "name": re.sub(r"\W", "_", f"_{name}")[1:] or "row", "fields": fields})


def registered(url: str, subject: str, schema: pa.Schema, patience_s: float) -> int:
    """The id of the columns' schema, which is registered under a subject where it is not there yet.

    Raises:
        Refused: The registry does not take it.
        Unavailable: It has not answered for so long.
    """
    return _registered(url, subject, schema_of(subject, schema), patience_s)


@lru_cache(maxsize=64)
def _registered(url: str, subject: str, text: str, patience_s: float) -> int:
    return Registry.of(url, patience_s).register(subject, text)


def messages(rows: pa.Table, number: int) -> pa.Array:
    """The rows in Confluent's wire format, of the schema with this id."""
    head = pa.scalar(b"\x00" + number.to_bytes(HEAD_BYTES - 1, "big"), pa.binary())
    columns = [_nullable(rows[name].combine_chunks()) for name in rows.column_names]
    joined = pc.binary_join_element_wise(head, *columns, pa.scalar(b"", pa.binary()))
    return pa.repeat(head, rows.num_rows) if not columns else joined


def _kind(kind: pa.DataType) -> Any:
    """The Avro type; None where there is none."""
    t = pa.types
    if t.is_list(kind):
        items = _kind(kind.value_type)
        return None if items is None or t.is_nested(kind.value_type) else {"type": "array", "items": ["null", items]}
    if t.is_timestamp(kind):
        return {"type": "long", "logicalType": "timestamp-micros" if kind.tz else "local-timestamp-micros"}
    if t.is_decimal(kind):
        return {"type": "bytes", "logicalType": "decimal", "precision": kind.precision, "scale": kind.scale}
    for is_kind, name in (
        (t.is_boolean, "boolean"),
        (t.is_int64, "long"),
        (t.is_signed_integer, "int"),
        (t.is_float32, "float"),
        (t.is_float64, "double"),
        (t.is_string, "string"),
        (t.is_binary, "bytes"),
        (t.is_date32, {"type": "int", "logicalType": "date"}),
    ):
        if is_kind(kind):
            return name
    return None


def _nullable(column: pa.Array) -> pa.Array:
    there = pc.binary_join_element_wise(pa.scalar(_THERE, pa.binary()), _bytes(column), pa.scalar(b"", pa.binary()))
    return pc.fill_null(there, pa.scalar(_NULL, pa.binary()))


def _bytes(column: pa.Array) -> pa.Array:
    """The encoding of each value; null where that is."""
    t, kind = pa.types, column.type
    if t.is_boolean(kind):
        return pc.if_else(column, pa.scalar(b"\x01", pa.binary()), pa.scalar(b"\x00", pa.binary()))
    if t.is_floating(kind):
        return _fixed(column)
    if t.is_list(kind):
        return _lists(column)
    if t.is_decimal(kind):
        # Big-endian two's complement; Arrow's is little-endian, and a longer one than needed is the same number.
        width = kind.byte_width
        words = np.frombuffer(column.buffers()[1], np.uint8)[
            column.offset * width : (column.offset + len(column)) * width
        ]
        return _counted(_cut(words.reshape(-1, width)[:, ::-1], column))
    if t.is_string(kind) or t.is_binary(kind):
        return _counted(column.cast(pa.binary()))
    if t.is_date32(kind):
        column = column.cast(pa.int32())
    if t.is_timestamp(kind):
        column = column.cast(pa.timestamp("us", kind.tz)).cast(pa.int64())
    return _masked(_longs(pc.fill_null(column.cast(pa.int64()), 0).to_numpy()), column)


def _fixed(column: pa.Array) -> pa.Array:
    numbers = pc.fill_null(column, 0).to_numpy()
    return _cut(numbers.view(np.uint8).reshape(len(numbers), -1), column)


def _cut(rows: npt.NDArray[np.uint8], column: pa.Array) -> pa.Array:
    """Rows of bytes of one length, null where the column is."""
    offsets = np.arange(len(rows) + 1, dtype=np.int32) * rows.shape[1]
    made = pa.Array.from_buffers(
        pa.binary(), len(rows), [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(rows))]
    )
    return _masked(made, column)


def _counted(column: pa.Array) -> pa.Array:
    """Bytes behind their number."""
    lengths = pc.fill_null(pc.binary_length(column), 0).to_numpy().astype(np.int64)
    return pc.binary_join_element_wise(_longs(lengths), column, pa.scalar(b"", pa.binary()))


def _lists(column: pa.Array) -> pa.Array:
    """One block with all items, behind their number, and the empty block that ends a list."""
    counts = pc.fill_null(pc.list_value_length(column), 0).to_numpy().astype(np.int64)
    items = _nullable(column.flatten())
    offsets = np.concatenate(([0], np.cumsum(counts))).astype(np.int32)
    joined = pc.binary_join(pa.ListArray.from_arrays(offsets, items), pa.scalar(b"", pa.binary()))
    empty = pa.array(counts == 0)
    blocks = pc.binary_join_element_wise(
        _longs(counts), joined, pa.scalar(_NULL, pa.binary()), pa.scalar(b"", pa.binary())
    )
    return _masked(pc.if_else(empty, pa.scalar(_NULL, pa.binary()), blocks), column)


def _masked(made: pa.Array, column: pa.Array) -> pa.Array:
    return made if not column.null_count else pc.if_else(pc.is_valid(column), made, pa.scalar(None, pa.binary()))


def _longs(numbers: npt.NDArray[np.int64]) -> pa.Array:
    """Zigzag, then seven bits a byte, the smallest first, each but the last with the eighth bit set."""
    zigzag = (numbers.astype(np.int64) << 1 ^ numbers.astype(np.int64) >> 63).view(np.uint64)
    sizes = np.ones(len(zigzag), np.int32)
    for more in range(1, 10):
        sizes += zigzag >= np.uint64(1) << np.uint64(7 * more)
    offsets = np.concatenate(([0], np.cumsum(sizes, dtype=np.int32))).astype(np.int32)
    out = np.empty(int(offsets[-1]), np.uint8)
    for at in range(int(sizes.max(initial=0))):
        mine = sizes > at
        bits = (zigzag[mine] >> np.uint64(7 * at)).astype(np.uint8) & 0x7F
        out[offsets[:-1][mine] + at] = bits | np.where(sizes[mine] > at + 1, 0x80, 0).astype(np.uint8)
    return pa.Array.from_buffers(pa.binary(), len(zigzag), [None, pa.py_buffer(offsets), pa.py_buffer(out)])
