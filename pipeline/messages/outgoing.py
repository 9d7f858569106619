"""Rows as the records that a sink publishes: key, value and headers as bytes, a whole Arrow table at a time."""

from __future__ import annotations

import pyarrow as pa

from ...errors import NotFound, Refused
from ...store.archive import columns
from ..api.sink import Encoding
from . import avro_rows, json_rows

HEADER = "header "
"""What the columns of headers are called, before the header's name."""
HEADERS = "headers"
"""The column of all headers of a record, where they have one."""


def check(what: str, encoding: Encoding, rows: pa.Schema) -> None:
    """See that records can be made of rows of these columns; nothing is asked of a registry yet.

    Raises `NotFound` for a column that is not there, and `Refused` for one of which no bytes can be made.
    """
    value = () if encoding.value in ("json", "avro") else (encoding.value,)
    for role, names in (("key", encoding.key), ("value", value), ("header", [name for _, name in encoding.headers])):
        for name in names:
            if name not in rows.names:
                raise NotFound(f"{role} column", name, rows.names, hint=f"{what} names it")
            if role != "key" and not _is_bytes(rows.field(name).type):
                raise Refused(
                    f"{what}: its {role} column {name!r} is {rows.field(name).type}; expected bytes or a string",
                    hint="cast it in the stage's function",
                )
    if name := encoding.all_headers:
        if name not in rows.names:
            raise NotFound("headers column", name, rows.names, hint=f"{what} names it")
        if rows.field(name).type != columns.HEADERS:
            raise Refused(
                f"{what}: its headers column {name!r} is {rows.field(name).type}; expected an array of (key, value)",
                hint="topic(..., include_headers=True) has one: array<struct<key: string, value: binary>>",
            )
    json_rows.check(what, pa.schema([rows.field(name) for name in encoding.key]))
    if not value:
        (json_rows if encoding.value == "json" else avro_rows).check(what, _valued(encoding, rows))


def prepare(encoding: Encoding, rows: pa.Schema, patience_s: float) -> None:
    """Register the schema of rows of these columns, where there is to be one. Raises `Refused`."""
    if encoding.value == "avro":
        avro_rows.registered(encoding.registry, encoding.subject, _valued(encoding, rows), patience_s)


def records(rows: pa.Table, encoding: Encoding, patience_s: float) -> pa.Table:
    """Rows as records: columns `key` and `value` of bytes, and one for each header, or of all. Raises as `prepare`."""
    made = {"key": _key(rows, encoding.key), "value": _value(rows, encoding, patience_s)}
    made |= {f"{HEADER}{header}": rows[name].cast(pa.binary()) for header, name in encoding.headers}
    if encoding.all_headers:
        made[HEADERS] = rows[encoding.all_headers].cast(columns.HEADERS)
    return pa.table(made)


def _key(rows: pa.Table, columns: tuple[str, ...]) -> pa.Array | pa.ChunkedArray:
    if not columns:
        return pa.nulls(rows.num_rows, pa.binary())
    if len(columns) > 1:
        return json_rows.objects(rows.select(columns))
    column = rows[columns[0]]
    return column.cast(pa.binary()) if _is_bytes(column.type) else json_rows.values(column)


def _value(rows: pa.Table, encoding: Encoding, patience_s: float) -> pa.Array | pa.ChunkedArray:
    if encoding.value not in ("json", "avro"):
        return rows[encoding.value].cast(pa.binary())
    valued = rows.select(_valued(encoding, rows.schema).names)
    if encoding.value == "json":
        return json_rows.objects(valued)
    number = avro_rows.registered(encoding.registry, encoding.subject, valued.schema, patience_s)
    return avro_rows.messages(valued, number)


def _valued(encoding: Encoding, rows: pa.Schema) -> pa.Schema:
    """The columns of the value."""
    headers = {name for _, name in encoding.headers} | {encoding.all_headers}
    return pa.schema([field for field in rows if field.name not in headers])


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_binary(kind))
