"""The tables of state that a query keeps, one for each store or state variable, with flat columns."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import DataType, NullType, StructField, StructType, TimestampType

from ...errors import Refused, Usage
from ...store.sst.arrow_types import from_arrow, to_arrow
from .operators import Kept, Operator

_NO_NAME = re.compile(r"\W+", re.ASCII)
_WINDOW = [("start", TimestampType()), ("end", TimestampType())]
_KEYS = ("key", "user_map_key", "expiration_timestamp_ms")
_VALUES = ("value", "user_map_value", "list_value")
"""Columns of Spark's reader, of which one that is there is a struct but for `list_value`."""


@dataclass(frozen=True, slots=True)
class Part:
    """One flat column of a table, within a column of Spark's reader."""

    name: str
    within: str
    place: tuple[int, ...]
    """By position, from the outside in: a buffer of an aggregate has several fields of one name."""
    type: pa.DataType


@dataclass(frozen=True, slots=True)
class StateTable:
    """One table of a query's state.

    Attributes:
        name: Empty for the query's first table; else what tells it from the others.
        operator: Spark's number of the operator.
        kind: What the operator is.
        store: The name of the store that holds it.
        options: Those of Spark's reader that name it within the store.
        has_feed: Whether what a batch changed in it can be read; else two whole states are compared.
        key: The columns that name a row.
        values: The other columns; all names differ.
    """

    name: str
    operator: int
    kind: str
    store: str
    options: tuple[tuple[str, str], ...]
    has_feed: bool
    key: pa.Schema
    values: pa.Schema
    parts: tuple[Part, ...] = field(repr=False)
    spark_types: dict[str, DataType] = field(repr=False)
    """Of the columns that Spark's reader gives."""

    @property
    def schema(self) -> pa.Schema:
        """All columns, the key's first."""
        return pa.schema([*self.key, *self.values])

    @property
    def registers(self) -> bool:
        """Whether it is one of several in a store, so that Spark opens a whole state before it reads changes."""
        return bool(self.options)

    def columns(self) -> Sequence[Column]:
        """All columns, made of those that Spark's reader gives."""
        return [_select(F.col(each.within).cast(_numbered(self.spark_types[each.within])), each) for each in self.parts]


def state_table(name: str, operator: Operator, kept: Kept, schema: StructType) -> StateTable:
    """The table of what Spark's reader gives by a schema. Raises `Refused` for a type that no table can have."""
    types = {each.name: each.dataType for each in schema.fields}
    about = name or operator.kind
    key = [part for column in _KEYS if column in types for part in _parts(column, types[column], about)]
    keys = {each.name for each in key}
    windows = any(_is_window(each.dataType) for each in getattr(types["key"], "fields", ()))
    kind = "window" if operator.kind == "aggregate" and windows else operator.kind
    values = [part for column in _VALUES if column in types for part in _parts(column, types[column], about)]
    # A session's value has its key once more.
    values = [each for each in values if kind != "session" or each.name not in keys]
    parts = tuple(_unique([*key, *values]))
    columns = [pa.field(each.name, each.type) for each in parts]
    return StateTable(
        name,
        operator.id,
        kind,
        kept.store,
        kept.options,
        kept.has_feed,
        pa.schema(columns[: len(key)]),
        pa.schema(columns[len(key) :]),
        parts,
        types,
    )


def _is_window(kind: DataType) -> bool:
    return isinstance(kind, StructType) and [(each.name, each.dataType) for each in kind.fields] == _WINDOW


def _parts(
    within: str, kind: DataType, table: str, names: Sequence[str] = (), place: tuple[int, ...] = ()
) -> Iterator[Part]:
    if isinstance(kind, StructType):
        for number, each in enumerate(kind.fields):
            yield from _parts(within, each.dataType, table, [*names, each.name], (*place, number))
    elif not isinstance(kind, NullType):
        yield Part(_word("_".join(names) or within), within, place, _storable(kind, ".".join([within, *names]), table))


def _word(name: str) -> str:
    """A column's name of Spark's as one that tables have: one that begins with `_` is not the user's there."""
    return _NO_NAME.sub("_", name).strip("_") or "value"


def _unique(parts: Iterable[Part]) -> Iterator[Part]:
    """The same with names that differ: of the second of a name, `sum_2`."""
    seen: set[str] = set()
    for each in parts:
        name, number = each.name, 1
        while name.lower() in seen:
            number += 1
            name = f"{each.name}_{number}"
        seen.add(name.lower())
        yield Part(name, each.within, each.place, each.type)


def _storable(kind: DataType, column: str, table: str) -> pa.DataType:
    try:
        return to_arrow(from_arrow(to_arrow_type(kind, timezone="UTC")))
    except (Usage, TypeError, PySparkException) as error:
        raise Refused(
            f"column {column} of state {table!r} has Spark's type {kind.simpleString()!r}, which no table can have",
            hint="only a query without this column can be read",
        ) from error


def _numbered(kind: DataType) -> DataType:
    """The same type with the fields of structs named by their position, but for those in lists and maps."""
    if not isinstance(kind, StructType):
        return kind
    return StructType([StructField(f"_{number}", _numbered(each.dataType)) for number, each in enumerate(kind.fields)])


def _select(column: Column, part: Part) -> Column:
    for number in part.place:
        column = column.getField(f"_{number}")
    return column.alias(part.name)
