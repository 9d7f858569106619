"""SSTs written under other columns than the table has now: how each is read as one of today.

A column is known by its id (`Table.ids`), which an SST carries as Parquet's field id. So what was renamed is found
under its former name, what was widened is cast, what was added since is its default, and what was removed is not
looked at.

This is the one place that brings an SST's columns and a table's together. Everything that reads rows goes through a
`Reading`; for an SST that has the table's own columns there is none, and nothing is done.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeVar

import pyarrow as pa

from ..versions.manifest import Column, Table
from .arrow_types import to_arrow
from .types import EXPIRES, HASH, OP, PREV, SEQ, field_id, shape, sst_schema, stored_schema

_OWN = (HASH, SEQ, OP, PREV, EXPIRES)
"""The columns that every SST calls so."""

Rows = TypeVar("Rows", pa.RecordBatch, pa.Table)


@dataclass(frozen=True, slots=True)
class ColumnSource:
    """Where the values of one column of the table come from, in SSTs of other columns."""

    type: pa.DataType
    """The column's type now."""
    name: str | None
    """What the SST calls the column; None where it does not have it."""
    stored: pa.DataType
    """Its type there."""
    default: pa.Scalar
    """Its value in all rows, where the SST does not have it."""


@dataclass(frozen=True, slots=True)
class Reading:
    """How SSTs of some columns are read as SSTs of a table that has others."""

    sources: dict[str, ColumnSource]
    """Of each key and value column of the table, by its name."""
    schema: pa.Schema
    """The rows when they are read: as the table's own SSTs have them, with `_expires_at` if these have it."""

    def stored_names(self, names: Sequence[str]) -> list[str]:
        """What the SST calls these columns; those that it does not have are left out."""
        found = (name if name in _OWN else self.sources[name].name for name in names)
        return [name for name in found if name is not None]

    def read(self, rows: Rows, names: Sequence[str]) -> Rows:
        """These columns of rows of such an SST, as the table has them."""
        columns = []
        for name in names:
            if name in _OWN:
                columns.append(rows.column(name))
            elif (source := self.sources[name]).name is None:
                columns.append(pa.repeat(source.default, rows.num_rows))
            else:
                column = rows.column(source.name)
                columns.append(column if source.stored == source.type else column.cast(source.type))
        return type(rows).from_arrays(columns, schema=pa.schema([self.schema.field(name) for name in names]))


def reading(found: pa.Schema, table: Table) -> Reading | None:
    """How an SST with the columns `found` is read as one of the table; None where it is one.

    Raises `ValueError` where the table never had these columns; tells which it has.
    """
    schema = sst_schema(table)
    if not table.schema:
        if found != stored_schema(schema, found):
            raise ValueError(f"expected columns {shape(schema)}; found {shape(found)}")
        return None
    return _reading(tuple((each.name, each.type, field_id(each), each.nullable) for each in found), table)


@lru_cache(maxsize=256)
def _reading(found: tuple[tuple[str, pa.DataType, int, bool], ...], table: Table) -> Reading | None:
    own = pa.schema([pa.field(name, kind, nullable) for name, kind, _, nullable in found if name in _OWN])
    schema = stored_schema(sst_schema(table), own)
    if own != (expected := pa.schema([field for field in schema if field.name in _OWN])):
        raise ValueError(f"expected columns {shape(expected)}; found {shape(own)}")
    known = {number: (name, kind) for name, kind, number, _ in found if name not in _OWN}
    sources = {}
    for number, column in zip(table.ids, table.columns, strict=True):
        kind = to_arrow(column.type)
        name, was = known.get(number, (None, kind))
        if name is None and column in table.key:
            raise ValueError(f"expected key column {column.name}, of id {number}; found none")
        if not widens(was, kind):
            raise ValueError(f"expected column {column.name} to be {kind}, or what became that; found {was}")
        sources[column.name] = ColumnSource(kind, name, was, default_of(column))
    as_it_is = [(name, name, kind, kind) for name, kind in known.values()]
    if [(name, each.name, each.stored, each.type) for name, each in sources.items()] == as_it_is:
        return None
    return Reading(sources, schema)


def default_of(column: Column) -> pa.Scalar:
    """What rows have that were written before the column was there. Raises `ValueError` for what is not of its type."""
    kind = to_arrow(column.type)
    if column.default is None:
        return pa.scalar(None, kind)
    return pa.array([column.default], pa.string()).cast(kind)[0]


def default_text(value: object, kind: pa.DataType) -> str:
    """A default as a manifest keeps it. Raises `ValueError` or `TypeError` unless it is a value of a plain type.

    It is as the type has it: of 0.1 a `float` keeps less than a `double`.
    """
    if pa.types.is_nested(kind) or pa.types.is_binary(kind):
        raise TypeError(f"a column of type {kind} has no default but null")
    if pa.types.is_integer(kind) and not isinstance(value, int | pa.Scalar):
        raise TypeError("Arrow would cut off what lies behind the point")
    made = value if isinstance(value, pa.Scalar) else pa.array([value], kind)[0]
    text = pa.array([made.as_py()], made.type).cast(pa.string())[0].as_py()
    if pa.array([text]).cast(kind)[0].as_py() != made.cast(kind).as_py() and made.as_py() == made.as_py():
        raise ValueError(f"{value!r} is no {kind}")
    return str(text)


def fits(was: pa.Schema, schema: pa.Schema) -> bool:
    """Whether rows of one schema can be taken for rows of another: columns came, or went, or became larger.

    Not where some came and others went: these may be the same under another name.
    """
    had, has = set(was.names), set(schema.names)
    return not (had - has and has - had) and all(widens(was.field(n).type, schema.field(n).type) for n in had & has)


def widens(was: pa.DataType, kind: pa.DataType) -> bool:
    """Whether every value of a type is one of another: of larger integers, floats or decimals, or fields so changed.

    A struct may get further fields, which are null in rows from before; it keeps those that it has.
    """
    types = pa.types
    if was == kind:
        return True
    if types.is_signed_integer(was) and types.is_signed_integer(kind):
        return bool(was.bit_width < kind.bit_width)
    if types.is_float32(was):
        return bool(types.is_float64(kind))
    if types.is_decimal(was) and types.is_decimal(kind):
        return bool(was.scale <= kind.scale and was.precision - was.scale <= kind.precision - kind.scale)
    if types.is_struct(was) and types.is_struct(kind):
        now = {kind.field(place).name: kind.field(place).type for place in range(kind.num_fields)}
        fields = [was.field(place) for place in range(was.num_fields)]
        return all(field.name in now and widens(field.type, now[field.name]) for field in fields)
    if types.is_list(was) and types.is_list(kind):
        return widens(was.value_type, kind.value_type)
    if types.is_map(was) and types.is_map(kind):
        return bool(was.key_type == kind.key_type) and widens(was.item_type, kind.item_type)
    return False
