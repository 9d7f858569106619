"""Encoding of the records that a sink publishes, from whole Arrow tables: key, value and headers as bytes.

Also derives and registers the schema of Avro values. Each column is encoded to a column of bytes, and these columns are
joined. numpy encodes the variable-length integers, Arrow's kernels do everything else. See the specification of Avro
1.12, "Binary Encoding".
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ...errors import NotFound, Refused
from ...store.archive import columns
from ...store.sst.arrow_types import escape_invalid_text
from ..api.sink import Encoding
from ..kafka import json_rows
from ..kafka.protocol import Headers
from .registry import HEADER_BYTES, Registry, encode_varints, varint_sizes

HEADER_PREFIX = "header "
HEADERS_COLUMN = "headers"


def check_encoding(label: str, encoding: Encoding, rows: pa.Schema) -> None:
    """Check, without a request to the registry, that rows of these columns can be encoded.

    `label` begins each error message. Raises `NotFound` for a missing column, and `Refused` for a column that cannot be
    encoded.
    """
    value = () if encoding.value in ("json", "avro") else (encoding.value,)
    for role, names in (("key", encoding.key), ("value", value), ("header", [name for _, name in encoding.headers])):
        for name in names:
            if name not in rows.names:
                raise NotFound(f"{role} column", name, rows.names, hint=f"{label} names it")
            if role != "key" and not _is_bytes(rows.field(name).type):
                raise Refused(
                    f"{label}: its {role} column {name!r} is {rows.field(name).type}; expected bytes or a string",
                    hint="cast it in the stage's function",
                )
    if name := encoding.all_headers:
        if name not in rows.names:
            raise NotFound("headers column", name, rows.names, hint=f"{label} names it")
        if rows.field(name).type != columns.HEADERS:
            raise Refused(
                f"{label}: its headers column {name!r} is {rows.field(name).type}; expected an array of (key, value)",
                hint="topic(..., include_headers=True) has one: array<struct<key: string, value: binary>>",
            )
    json_rows.check_columns(label, pa.schema([rows.field(name) for name in encoding.key]))
    if not value:
        (json_rows.check_columns if encoding.value == "json" else check_avro)(label, _value_schema(encoding, rows))


def register_schema(encoding: Encoding, rows: pa.Schema, patience_s: float) -> None:
    if encoding.value == "avro":
        register_columns(encoding.registry, encoding.subject, _value_schema(encoding, rows), patience_s)


def encode_records(rows: pa.Table, encoding: Encoding, patience_s: float) -> pa.Table:
    """Encode rows to the binary columns `key` and `value`, and to header columns.

    There is one column for each header, or a single column with all headers. Raises `Refused` or `Unavailable` if the
    schema cannot be registered.
    """
    fields = {"key": _encode_key(rows, encoding.key), "value": _encode_value(rows, encoding, patience_s)}
    fields |= {f"{HEADER_PREFIX}{header}": rows[name].cast(pa.binary()) for header, name in encoding.headers}
    if encoding.all_headers:
        fields[HEADERS_COLUMN] = rows[encoding.all_headers].cast(columns.HEADERS)
    return pa.table(fields)


def record_headers(records: pa.Table) -> Sequence[Headers] | None:
    """Return the headers of each record of `encode_records`; None if the sink sends no headers."""
    if HEADERS_COLUMN in records.column_names:
        lists = records[HEADERS_COLUMN].to_pylist()
        return [[(header["key"], header["value"]) for header in entries or ()] for entries in lists]
    named = [name for name in records.column_names if name.startswith(HEADER_PREFIX)]
    if not named:
        return None
    names = [name.removeprefix(HEADER_PREFIX) for name in named]
    rows = zip(*(records[name].to_pylist() for name in named), strict=True)
    return [[(name, value) for name, value in zip(names, row, strict=True) if value is not None] for row in rows]


_BATCH_OVERHEAD = 61


def single_batch_bytes(records: pa.Table) -> npt.NDArray[np.int64]:
    """Return, for each record, the uncompressed bytes of a batch that has only this record.

    The topic's `max.message.bytes` limits this size. Source: https://kafka.apache.org/documentation/#messageformat
    """
    body = np.full(
        records.num_rows, 3, np.int64
    )  # one byte each for: attributes, time delta, and offset delta (relative to the batch's first record)
    counts = np.zeros(records.num_rows, np.int64)
    for name, column in zip(records.column_names, records.columns, strict=True):
        column = column.combine_chunks()
        if name in ("key", "value"):
            body += _prefixed_sizes(column)
        elif name == HEADERS_COLUMN:
            lengths = pc.fill_null(pc.list_value_length(column), 0).to_numpy()
            entries = column.flatten()
            sizes = _prefixed_sizes(entries.field("key")) + _prefixed_sizes(entries.field("value"))
            ends = np.cumsum(lengths)
            totals = np.concatenate(([0], np.cumsum(sizes)))
            body += totals[ends] - totals[ends - lengths]
            counts += lengths
        else:
            is_set = np.asarray(column.is_valid())
            title = pa.array([name.removeprefix(HEADER_PREFIX)])
            body += np.where(is_set, _prefixed_sizes(title)[0] + _prefixed_sizes(column), 0)
            counts += is_set
    body += varint_sizes(counts)
    return np.asarray(_BATCH_OVERHEAD + varint_sizes(body) + body, np.int64)


def _prefixed_sizes(column: pa.Array) -> npt.NDArray[np.int64]:
    lengths = pc.fill_null(pc.binary_length(column), -1).to_numpy().astype(np.int64)
    return np.asarray(varint_sizes(lengths) + np.maximum(lengths, 0), np.int64)


def _encode_key(rows: pa.Table, columns: tuple[str, ...]) -> pa.Array | pa.ChunkedArray:
    if not columns:
        return pa.nulls(rows.num_rows, pa.binary())
    if len(columns) > 1:
        return json_rows.encode_objects(rows.select(columns))
    column = rows[columns[0]]
    return column.cast(pa.binary()) if _is_bytes(column.type) else json_rows.encode_values(column)


def _encode_value(rows: pa.Table, encoding: Encoding, patience_s: float) -> pa.Array | pa.ChunkedArray:
    if encoding.value not in ("json", "avro"):
        return rows[encoding.value].cast(pa.binary())
    valued = rows.select(_value_schema(encoding, rows.schema).names)
    if encoding.value == "json":
        return json_rows.encode_objects(valued)
    number = register_columns(encoding.registry, encoding.subject, valued.schema, patience_s)
    return avro_messages(valued, number)


def _value_schema(encoding: Encoding, rows: pa.Schema) -> pa.Schema:
    headers = {name for _, name in encoding.headers} | {encoding.all_headers}
    return pa.schema([field for field in rows if field.name not in headers])


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_binary(kind))


_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_NULL, _NOT_NULL = b"\x00", b"\x02"
"""Encoded branch numbers of the union ["null", …]: index 0 for null, index 1 for a value."""


def check_avro(label: str, schema: pa.Schema) -> None:
    for field in schema:
        if not _NAME.fullmatch(field.name) or _avro_type(field.type) is None:
            reason = f"is {field.type}" if _NAME.fullmatch(field.name) else "has a name that Avro does not allow"
            raise Refused(
                f"{label}: column {field.name!r} {reason}; Avro output supports numbers, strings, bytes, booleans, "
                "dates, timestamps, decimals, and lists of these, in columns with names of letters, digits and '_'",
                hint="cast or rename it in the stage's function, or use value='json'",
            )


def avro_schema_of(name: str, schema: pa.Schema) -> str:
    fields = [{"name": field.name, "type": ["null", _avro_type(field.type)], "default": None} for field in schema]
    return json.dumps({"type": "record", "name": re.sub(r"\W", "_", f"_{name}")[1:] or "row", "fields": fields})


@lru_cache(maxsize=64)
def register_columns(url: str, subject: str, schema: pa.Schema, patience_s: float) -> int:
    """Register the Avro schema of these columns under a subject, if it is new. Return the schema's id.

    Raises `Refused` if the registry rejects the schema, and `Unavailable` after `patience_s` without an answer.
    """
    return Registry.at_url(url, patience_s).register(subject, avro_schema_of(subject, schema))


def avro_messages(rows: pa.Table, number: int) -> pa.Array:
    """Encode rows in Confluent's wire format with this schema id. Strings that are not UTF-8 are escaped."""
    head = b"\x00" + number.to_bytes(HEADER_BYTES - 1, "big")
    return _concat_elements(
        pa.repeat(head, rows.num_rows), *map(_encode_nullable, escape_invalid_text(rows).itercolumns())
    )


def _avro_type(kind: pa.DataType) -> Any:
    t = pa.types
    if t.is_list(kind):
        items = _avro_type(kind.value_type)
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


def _concat_elements(*pieces: pa.Array | bytes) -> pa.Array:
    return pc.binary_join_element_wise(*pieces, b"")


def _encode_nullable(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    values = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    return pc.fill_null(_concat_elements(_NOT_NULL, _encode_column(values)), _NULL)


def _encode_column(column: pa.Array) -> pa.Array:
    t, kind = pa.types, column.type
    if t.is_boolean(kind):
        return pc.if_else(column, b"\x01", b"\x00")
    if t.is_floating(kind):
        numbers = pc.fill_null(column, 0).to_numpy()
        return _restore_nulls(_to_binary_rows(numbers.view(np.uint8).reshape(len(numbers), numbers.itemsize)), column)
    if t.is_list(kind):
        return _encode_lists(column)
    if t.is_decimal(kind):
        # Avro requires big-endian two's complement, Arrow's is little-endian; surplus leading bytes are allowed.
        stored = np.frombuffer(column.buffers()[1], np.uint8).reshape(-1, kind.byte_width)
        return _prefix_lengths(
            _restore_nulls(_to_binary_rows(stored[column.offset : column.offset + len(column), ::-1]), column)
        )
    if t.is_string(kind) or t.is_binary(kind):
        return _prefix_lengths(column.cast(pa.binary()))
    if t.is_date32(kind):
        column = column.cast(pa.int32())
    if t.is_timestamp(kind):
        column = column.cast(pa.timestamp("us", kind.tz)).cast(pa.int64())
    return _restore_nulls(encode_varints(pc.fill_null(column.cast(pa.int64()), 0).to_numpy()), column)


def _to_binary_rows(rows: npt.NDArray[np.uint8]) -> pa.Array:
    count, width = rows.shape
    fixed = pa.FixedSizeBinaryArray.from_buffers(pa.binary(width), count, [None, pa.py_buffer(rows.tobytes())])
    return fixed.cast(pa.binary())


def _prefix_lengths(column: pa.Array) -> pa.Array:
    lengths = pc.fill_null(pc.binary_length(column), 0).to_numpy()
    return _concat_elements(encode_varints(lengths), column)


def _encode_lists(column: pa.Array) -> pa.Array:
    """Encode each list in Avro: a block with the number of items and the items, then an empty block as the end."""
    counts = pc.fill_null(pc.list_value_length(column), 0).to_numpy()
    offsets = np.concatenate(([0], np.cumsum(counts))).astype(np.int32)
    items = pc.binary_join(pa.ListArray.from_arrays(offsets, _encode_nullable(column.flatten())), b"")
    blocks = pc.if_else(pa.array(counts == 0), _NULL, _concat_elements(encode_varints(counts), items, _NULL))
    return _restore_nulls(blocks, column)


def _restore_nulls(encoded: pa.Array, column: pa.Array) -> pa.Array:
    return encoded if not column.null_count else pc.if_else(pc.is_valid(column), encoded, None)
