"""Rows as the records that a sink publishes: key, value and headers as bytes, a whole Arrow table at a time."""

from __future__ import annotations

import pyarrow as pa

from ...errors import NotFound, Refused
from ..api.sink import Encoding
from . import avro_rows, json_rows

HEADER = "header "
"""What the columns of headers are called, before the header's name."""


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
    json_rows.check(what, pa.schema([rows.field(name) for name in encoding.key]))
    if not value:
        (json_rows if encoding.value == "json" else avro_rows).check(what, _valued(encoding, rows))


def prepare(encoding: Encoding, rows: pa.Schema, patience_s: float) -> None:
    """Register the schema of rows of these columns, where there is to be one. Raises `Refused` or `Unavailable`."""
    if encoding.value == "avro":
        avro_rows.registered(encoding.registry, encoding.subject, _valued(encoding, rows), patience_s)


def records(rows: pa.Table, encoding: Encoding, patience_s: float) -> pa.Table:
    """Rows as records: columns `key` and `value` of bytes, and one for each header. Raises as `prepare`."""
    columns = {"key": _key(rows, encoding.key), "value": _value(rows, encoding, patience_s)}
    columns |= {f"{HEADER}{header}": rows[name].cast(pa.binary()) for header, name in encoding.headers}
    return pa.table(columns)


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
    headers = {name for _, name in encoding.headers}
    return pa.schema([field for field in rows if field.name not in headers])


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_binary(kind))
