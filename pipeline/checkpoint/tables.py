"""The tables of state that a query keeps, one for each store or state variable, with flat columns."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import DataType, NullType, StructField, StructType

from ...errors import Refused, Usage
from ...store.sst.arrow_types import from_arrow, to_arrow

_NO_NAME = re.compile(r"\W+", re.ASCII)


@dataclass(frozen=True, slots=True)
class Part:
    """One flat column of a table, within a column `key` or `value` as Spark's reader gives it."""

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
        key: The columns that name a row.
        values: The other columns; all names differ.
    """

    name: str
    operator: int
    kind: str
    store: str
    key: pa.Schema
    values: pa.Schema
    parts: tuple[Part, ...] = field(repr=False)
    spark_types: tuple[StructType, StructType] = field(repr=False)
    """Those of Spark's columns `key` and `value`."""

    @property
    def schema(self) -> pa.Schema:
        """All columns, the key's first."""
        return pa.schema([*self.key, *self.values])

    def columns(self) -> Sequence[Column]:
        """All columns, made of Spark's `key` and `value`."""
        by_position = dict(zip(("key", "value"), map(_numbered, self.spark_types), strict=True))
        return [_select(F.col(each.within).cast(by_position[each.within]), each) for each in self.parts]


def state_table(name: str, operator: int, kind: str, store: str, key: StructType, values: StructType) -> StateTable:
    """A table with flat columns of these of Spark's. Raises `Refused` for a type that no table can have."""
    named = list(_parts("key", key, name or kind))
    is_key = len(named)
    keys = {each.name for each in named}
    # A session's value has its key once more.
    named += [each for each in _parts("value", values, name or kind) if kind != "session" or each.name not in keys]
    parts = tuple(_unique(named))
    columns = [pa.field(each.name, each.type) for each in parts]
    return StateTable(
        name, operator, kind, store, pa.schema(columns[:is_key]), pa.schema(columns[is_key:]), parts, (key, values)
    )


def struct_of(schema: StructType, column: str) -> StructType:
    """The type of a column that is a struct."""
    found = schema[column].dataType
    assert isinstance(found, StructType)
    return found


def _parts(
    within: str, struct: StructType, table: str, above: Sequence[str] = (), place: tuple[int, ...] = ()
) -> Iterator[Part]:
    for number, each in enumerate(struct.fields):
        names, at = [*above, each.name], (*place, number)
        if isinstance(each.dataType, StructType):
            yield from _parts(within, each.dataType, table, names, at)
        elif not isinstance(each.dataType, NullType):
            yield Part(
                _word("_".join(names)), within, at, _storable(each.dataType, f"{within}.{'.'.join(names)}", table)
            )


def _word(name: str) -> str:
    """A column's name of Spark's as one that tables have: one that begins with `_` is not the user's there."""
    return _NO_NAME.sub("_", name).strip("_") or "value"


def _unique(parts: Iterable[Part]) -> Iterator[Part]:
    """The same with names that differ: of the second of a name, `sum_2`."""
    seen: set[str] = set()
    for each in parts:
        name, number = each.name, 1
        while name in seen:
            number += 1
            name = f"{each.name}_{number}"
        seen.add(name)
        yield Part(name, each.within, each.place, each.type)


def _storable(kind: DataType, column: str, table: str) -> pa.DataType:
    try:
        return to_arrow(from_arrow(to_arrow_type(kind, timezone="UTC")))
    except Exception as error:
        if not isinstance(error, Usage | TypeError) and type(error).__module__.partition(".")[0] != "pyspark":
            raise
        raise Refused(
            f"column {column} of state {table!r} has Spark's type {kind.simpleString()!r}, which no table can have",
            hint="the other operators of the query can be read once this one is not in it",
        ) from error


def _numbered(struct: StructType) -> StructType:
    """The same struct with fields that are named by their position."""
    return StructType(
        [
            StructField(
                f"_{number}", _numbered(each.dataType) if isinstance(each.dataType, StructType) else each.dataType
            )
            for number, each in enumerate(struct.fields)
        ]
    )


def _select(column: Column, part: Part) -> Column:
    for number in part.place:
        column = column.getField(f"_{number}")
    return column.alias(part.name)
