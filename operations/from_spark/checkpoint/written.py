"""Changes of batches to a state variable, parsed from the changelogs of its store without Spark."""

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
from pyspark.sql.types import ArrayType, DataType, StructField, StructType

from .changelogs import DELETE, FAMILY_BYTES, MERGE, Changelog, elements
from .protocol import APPENDED, DELETED
from .tables import StateTable
from .unsafe_rows import Positions, UnknownLayout, gather, is_readable, structs

_TIMERS = ("$procTimers_keyToTimestamp", "$eventTimers_keyToTimestamp")
_SECOND = ("user_map_key", "expiration_timestamp_ms")
"""Columns of Spark's state reader that are the second part of a key."""
_VALUES = ("value", "user_map_value")
_LIST = "list_value"


def is_read_here(table: StateTable) -> bool:
    """Return True if a table is a state variable, or its timers, of types that can be parsed without Spark."""
    types = table.spark_types
    return table.kind == "transform" and all(
        map(is_readable, (types[column] for column in types if column != "partition_id"))
    )


def is_list(table: StateTable) -> bool:
    """Return True if a table is a list; changelogs have only its appended elements."""
    return _LIST in table.spark_types


def changed(table: StateTable, records: Changelog, families: Mapping[str, int], delimiter: int) -> pa.Table:
    """Return a table's changes: its columns, `DELETED` and, for a list, `APPENDED`; one row for each changed key.

    `families` are the numbers of column families in `records`. Raises `UnknownLayout` for an unsupported layout.
    """
    names = [dict(table.options).get("stateVarName", ""), *_TIMERS]
    family = next((families[name] for name in names if name in families), None)
    if family is None:
        raise UnknownLayout
    own = records.of(family)
    codes = own.key_codes()
    newest = np.full(codes.max(initial=-1) + 1, -1)
    if is_list(table):
        return _lists(table, own, codes, newest, delimiter)
    newest[codes] = np.arange(len(codes))
    rows = own.take(np.sort(newest))
    deleted = rows.kinds == DELETE
    if (rows.kinds == MERGE).any():
        raise UnknownLayout
    columns = _keys(table, rows)
    for name in _VALUES:
        if name in table.spark_types:
            columns[name] = _filled(rows.take(np.flatnonzero(~deleted)), table.spark_types[name], deleted)
    return table.flat(columns).append_column(DELETED, pa.array(deleted))


def _lists(table: StateTable, own: Changelog, codes: Positions, base: Positions, delimiter: int) -> pa.Table:
    number = np.arange(len(codes))
    begins = np.flatnonzero(own.kinds != MERGE)
    base[codes[begins]] = begins
    counted = np.flatnonzero((number >= base[codes]) & (own.kinds != DELETE))
    owner, starts = elements(own.take(counted), delimiter)
    codes_of_elements = codes[counted][owner]
    order = np.argsort(codes_of_elements, kind="stable")
    ends = np.cumsum(np.bincount(codes_of_elements, minlength=len(base)))
    kind = table.spark_types[_LIST]
    assert isinstance(kind, ArrayType)  # noqa: S101  the type of lists in Spark's state reader
    values = _rows(own, starts[order], kind.elementType)
    lists = pa.ListArray.from_arrays(pa.array(np.concatenate([[0], ends]), pa.int32()), values)
    first = np.full(len(base), -1)
    first[codes[::-1]] = number[::-1]
    columns = _keys(table, own.take(first)) | {_LIST: lists}
    appended = base < 0
    deleted = ~appended & (np.diff(ends, prepend=0) == 0)
    flat = table.flat(columns).append_column(DELETED, pa.array(deleted))
    return flat.append_column(APPENDED, pa.array(appended))


def _keys(table: StateTable, rows: Changelog) -> dict[str, pa.Array]:
    """Return the key columns of Spark's state reader."""
    types, at = table.spark_types, rows.keys + FAMILY_BYTES
    second = next((column for column in _SECOND if column in types), None)
    if second is None:
        return {"key": _rows(rows, at, types["key"])}
    # The key is two rows of one field each, prefixed with the size of the first.
    size = gather(rows.data, at, np.int32)
    if (size <= 0).any() or (FAMILY_BYTES + 4 + size >= rows.key_sizes).any():
        raise UnknownLayout
    parts = {"key": at + 4, second: at + 4 + size}
    return {name: _rows(rows, at, StructType([StructField(name, types[name])])).field(0) for name, at in parts.items()}


def _filled(puts: Changelog, kind: DataType, deleted: np.ndarray) -> pa.Array:
    values = _rows(puts, puts.values, kind)
    at = np.cumsum(~deleted) - 1
    return values.take(pa.array(at, mask=deleted))


def _rows(records: Changelog, at: Positions, kind: DataType) -> pa.StructArray:
    """Decode rows that are prefixed with the version of their encoding, 0."""
    assert isinstance(kind, StructType)  # noqa: S101  the type of rows in Spark's state reader
    if gather(records.data, at, np.uint8).any():
        raise UnknownLayout
    return structs(records.data, at + 1, kind)
