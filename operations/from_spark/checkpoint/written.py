"""Changes that batches made to a state variable, read from the changelogs of its store, without its state and Spark."""

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
"""Columns of Spark's reader that are the second part of a key."""
_VALUES = ("value", "user_map_value")
_LIST = "list_value"


def is_read_here(table: StateTable) -> bool:
    """Whether a table is a state variable, or its timers, of types that can be read without Spark."""
    types = table.spark_types
    return table.kind == "transform" and all(
        map(is_readable, (types[each] for each in types if each != "partition_id"))
    )


def is_list(table: StateTable) -> bool:
    """Whether a table is a list, of which changelogs say what is appended."""
    return _LIST in table.spark_types


def changed(table: StateTable, records: Changelog, families: Mapping[str, int], delimiter: int) -> pa.Table:
    """The columns of a table, `DELETED` and, of a list, `APPENDED`: a row for each key of which there are records.

    `families` are the numbers of column families in `records`. Raises `UnknownLayout` where one is laid out otherwise.
    """
    names = [dict(table.options).get("stateVarName", ""), *_TIMERS]
    family = next((families[each] for each in names if each in families), None)
    if family is None:
        raise UnknownLayout
    mine = records.of(family)
    codes = mine.key_codes()
    newest = np.full(codes.max(initial=-1) + 1, -1)
    if is_list(table):
        return _lists(table, mine, codes, newest, delimiter)
    newest[codes] = np.arange(len(codes))
    rows = mine.take(np.sort(newest))
    deleted = rows.kinds == DELETE
    if (rows.kinds == MERGE).any():
        raise UnknownLayout
    columns = _keys(table, rows)
    for name in _VALUES:
        if name in table.spark_types:
            columns[name] = _filled(rows.take(np.flatnonzero(~deleted)), table.spark_types[name], deleted)
    return table.flat(columns).append_column(DELETED, pa.array(deleted))


def _lists(table: StateTable, mine: Changelog, codes: Positions, base: Positions, delimiter: int) -> pa.Table:
    number = np.arange(len(codes))
    begins = np.flatnonzero(mine.kinds != MERGE)
    base[codes[begins]] = begins
    counted = np.flatnonzero((number >= base[codes]) & (mine.kinds != DELETE))
    owner, starts = elements(mine.take(counted), delimiter)
    of = codes[counted][owner]
    order = np.argsort(of, kind="stable")
    ends = np.cumsum(np.bincount(of, minlength=len(base)))
    kind = table.spark_types[_LIST]
    assert isinstance(kind, ArrayType)  # noqa: S101  so Spark's reader has lists
    values = _rows(mine, starts[order], kind.elementType)
    lists = pa.ListArray.from_arrays(pa.array(np.concatenate([[0], ends]), pa.int32()), values)
    first = np.full(len(base), -1)
    first[codes[::-1]] = number[::-1]
    columns = _keys(table, mine.take(first)) | {_LIST: lists}
    appended = base < 0
    deleted = ~appended & (np.diff(ends, prepend=0) == 0)
    flat = table.flat(columns).append_column(DELETED, pa.array(deleted))
    return flat.append_column(APPENDED, pa.array(appended))


def _keys(table: StateTable, rows: Changelog) -> dict[str, pa.Array]:
    """The columns of Spark's reader that are the key."""
    types, at = table.spark_types, rows.keys + FAMILY_BYTES
    second = next((each for each in _SECOND if each in types), None)
    if second is None:
        return {"key": _rows(rows, at, types["key"])}
    # Two rows of one field each, behind the length of the first.
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
    """Rows with the version of their encoding, 0, before them."""
    assert isinstance(kind, StructType)  # noqa: S101  so Spark's reader has rows
    if gather(records.data, at, np.uint8).any():
        raise UnknownLayout
    return structs(records.data, at + 1, kind)
