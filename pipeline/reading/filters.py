"""The keys that a query's filters leave of a table, where these say each column of the key."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import product
from math import prod
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from ...store.sst.hashing import normalise_keys
from ...store.sst.types import arrow_schema
from ...store.versions.manifest import Table

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter

_MOST = 10_000
"""More keys than this are not looked up: the table is read."""


def keys_in(table: Table, filters: Iterable[Filter]) -> pa.Table | None:
    """The key columns of all rows for which the filters, joined by AND, can hold; None where these may be any."""
    schema = arrow_schema(table.key)
    chosen: dict[str, set[Any]] = {}
    for each in filters:
        values = _values(each)
        if values is not None and (name := each.attribute[0]) in schema.names:  # type: ignore[attr-defined]
            chosen[name] = chosen.get(name, values) & values
    exact = all(_is_exact(field.type) for field in schema)
    if not exact or set(schema.names) - chosen.keys() or prod(len(each) for each in chosen.values()) > _MOST:
        return None
    keys = [*product(*(chosen[name] for name in schema.names))]
    columns: Sequence[Sequence[Any]] = [*zip(*keys, strict=True)] if keys else [() for _ in schema]
    try:
        arrays = [pa.array(values, field.type) for values, field in zip(columns, schema, strict=True)]
    except (pa.ArrowException, TypeError, OverflowError):
        return None
    return normalise_keys(pa.table(arrays, schema=schema), schema.names)


def _values(one: Filter) -> set[Any] | None:
    """The values that a filter leaves of one column; None where they are not said one by one."""
    if len(getattr(one, "attribute", ())) != 1:
        return None  # a field of a struct
    match type(one).__name__:
        case "EqualTo" | "EqualNullSafe":
            return {one.value}  # type: ignore[attr-defined]
        case "In":
            return {*one.value} - {None}  # type: ignore[attr-defined]
    return None


def _is_exact(kind: pa.DataType) -> bool:
    """Whether Spark and Arrow understand a value of Python's alike, whatever the session's time zone."""
    is_of = (pa.types.is_integer, pa.types.is_string, pa.types.is_boolean, pa.types.is_date, pa.types.is_binary)
    return any(each(kind) for each in is_of)
