"""Records that a sink publishes, from whole Arrow tables: key, value and headers as bytes."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ...errors import NotFound, Refused
from ...store.archive import columns
from ..api.sink import Encoding
from . import avro_rows, json_messages
from .registry import varint_sizes

HEADER = "header "
"""Prefix of a header's column name."""
HEADERS = "headers"
"""Name of the column with all headers of a record, if an encoding has one."""


def check(label: str, encoding: Encoding, rows: pa.Schema) -> None:
    """Check that rows of these columns can be encoded, without a request to the registry. `label` begins each message.

    Raises `NotFound` for a missing column, and `Refused` for a column that cannot be encoded.
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
    json_messages.check(label, pa.schema([rows.field(name) for name in encoding.key]))
    if not value:
        (json_messages if encoding.value == "json" else avro_rows).check(label, _value_schema(encoding, rows))


def prepare(encoding: Encoding, rows: pa.Schema, patience_s: float) -> None:
    """Register the schema of rows of these columns if the encoding is Avro. Raises `Refused` and `Unavailable`."""
    if encoding.value == "avro":
        avro_rows.registered(encoding.registry, encoding.subject, _value_schema(encoding, rows), patience_s)


def records(rows: pa.Table, encoding: Encoding, patience_s: float) -> pa.Table:
    """Encode rows to columns `key` and `value` of bytes, and a column per header or of all headers.

    Raises `Refused` and `Unavailable` if the schema cannot be registered.
    """
    fields = {"key": _key(rows, encoding.key), "value": _value(rows, encoding, patience_s)}
    fields |= {f"{HEADER}{header}": rows[name].cast(pa.binary()) for header, name in encoding.headers}
    if encoding.all_headers:
        fields[HEADERS] = rows[encoding.all_headers].cast(columns.HEADERS)
    return pa.table(fields)


_BATCH_OVERHEAD = 61
"""Overhead in bytes of a record batch in Kafka's format (v2)."""


def batch_bytes(records: pa.Table) -> npt.NDArray[np.int64]:
    """Return the size in bytes of each record as a batch of its own, which `max.message.bytes` limits.

    Uncompressed, in Kafka's format: https://kafka.apache.org/documentation/#messageformat
    """
    body = np.full(
        records.num_rows, 3, np.int64
    )  # one byte each: attributes, and time and offset relative to the batch's first record
    counts = np.zeros(records.num_rows, np.int64)
    for name, column in zip(records.column_names, records.columns, strict=True):
        column = column.combine_chunks()
        if name in ("key", "value"):
            body += _counted_bytes(column)
        elif name == HEADERS:
            lengths = pc.fill_null(pc.list_value_length(column), 0).to_numpy()
            entries = column.flatten()
            sizes = _counted_bytes(entries.field("key")) + _counted_bytes(entries.field("value"))
            ends = np.cumsum(lengths)
            totals = np.concatenate(([0], np.cumsum(sizes)))
            body += totals[ends] - totals[ends - lengths]
            counts += lengths
        else:
            is_set = np.asarray(column.is_valid())
            title = pa.array([name.removeprefix(HEADER)])
            body += np.where(is_set, _counted_bytes(title)[0] + _counted_bytes(column), 0)
            counts += is_set
    body += varint_sizes(counts)
    return np.asarray(_BATCH_OVERHEAD + varint_sizes(body) + body, np.int64)


def _counted_bytes(column: pa.Array) -> npt.NDArray[np.int64]:
    """Return the size of each text with its length prefix, which is -1 for null."""
    lengths = pc.fill_null(pc.binary_length(column), -1).to_numpy().astype(np.int64)
    return np.asarray(varint_sizes(lengths) + np.maximum(lengths, 0), np.int64)


def _key(rows: pa.Table, columns: tuple[str, ...]) -> pa.Array | pa.ChunkedArray:
    if not columns:
        return pa.nulls(rows.num_rows, pa.binary())
    if len(columns) > 1:
        return json_messages.objects(rows.select(columns))
    column = rows[columns[0]]
    return column.cast(pa.binary()) if _is_bytes(column.type) else json_messages.values(column)


def _value(rows: pa.Table, encoding: Encoding, patience_s: float) -> pa.Array | pa.ChunkedArray:
    if encoding.value not in ("json", "avro"):
        return rows[encoding.value].cast(pa.binary())
    valued = rows.select(_value_schema(encoding, rows.schema).names)
    if encoding.value == "json":
        return json_messages.objects(valued)
    number = avro_rows.registered(encoding.registry, encoding.subject, valued.schema, patience_s)
    return avro_rows.messages(valued, number)


def _value_schema(encoding: Encoding, rows: pa.Schema) -> pa.Schema:
    """Return the schema of the value's columns: all but the headers."""
    headers = {name for _, name in encoding.headers} | {encoding.all_headers}
    return pa.schema([field for field in rows if field.name not in headers])


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_binary(kind))
