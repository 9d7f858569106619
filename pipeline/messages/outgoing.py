"""Rows as the records that a sink publishes: key, value and headers as bytes, a whole Arrow table at a time."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

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


_AROUND_BATCH = 61
"""Bytes of a batch of records in Kafka's format (v2) beside them."""


def batch_bytes(records: pa.Table) -> npt.NDArray[np.int64]:
    """How many bytes each of these records has as a batch of its own, which is what a topic bounds.

    As Kafka's format lays them out, uncompressed: https://kafka.apache.org/documentation/#messageformat
    """
    body = np.full(records.num_rows, 3, np.int64)  # attributes, and how much later it is than the batch's first
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
            there = np.asarray(column.is_valid())
            title = pa.array([name.removeprefix(HEADER)])
            body += np.where(there, _counted_bytes(title)[0] + _counted_bytes(column), 0)
            counts += there
    body += _varint_bytes(counts)
    return np.asarray(_AROUND_BATCH + _varint_bytes(body) + body, np.int64)


def _counted_bytes(column: pa.Array) -> npt.NDArray[np.int64]:
    """Bytes of texts behind their number, which is -1 for null."""
    lengths = pc.fill_null(pc.binary_length(column), -1).to_numpy().astype(np.int64)
    return np.asarray(_varint_bytes(lengths) + np.maximum(lengths, 0), np.int64)


def _varint_bytes(numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    zigzag = np.where(numbers < 0, -2 * numbers - 1, 2 * numbers)
    return np.asarray(np.searchsorted(_VARINTS, zigzag, side="right") + 1, np.int64)


_VARINTS = np.array([1 << bits for bits in (7, 14, 21, 28)], np.int64)
"""The first number that takes one byte more, by how many it takes else."""


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
