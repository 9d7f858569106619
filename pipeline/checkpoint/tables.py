"""The tables of state that a query keeps, one for each store or state variable, with flat columns."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.errors import PySparkException
from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, NullType, StructField, StructType, TimestampType

from ...errors import Refused, Usage
from ...store.sst.arrow_types import from_arrow, to_arrow
from ...store.versions.column_types import in_backticks
from ..source.spark_types import arrow_of
from .operators import Kept, Operator

_NO_NAME = re.compile(r"\W+", re.ASCII)
_INSTANT = pa.timestamp("us", "UTC")
_WINDOW = [("start", TimestampType()), ("end", TimestampType())]
_KEYS = ("key", "user_map_key", "expiration_timestamp_ms")
_VALUES = ("value", "user_map_value", "list_value")
"""Columns of Spark's reader, those that are there."""
_TIMES = {
    ("transform", ("expiration_timestamp_ms",)): ("due_at", F.timestamp_millis),
    ("transform", ("value", "ttlExpirationMs")): ("expires_at", F.timestamp_millis),
    ("transform", ("user_map_value", "ttlExpirationMs")): ("expires_at", F.timestamp_millis),
    ("pandas", ("value", "timeoutTimestamp")): ("due_at", F.timestamp_millis),
    ("map-groups", ("value", "timeoutTimestamp")): ("due_at", F.timestamp_millis),
    ("distinct-within-watermark", ("value", "expiresAtMicros")): ("expires_at", F.timestamp_micros),
}
"""Numbers of Spark's that are times, by kind and path: what they are called here. Below 0 there is none."""
_AROUND = {"pandas": "groupState", "map-groups": "groupState", "transform": "value"}
"""Structs of Spark's own around a user's state, whose names say nothing."""
NO_KEY = "row"
"""The key of a table that has one row, such as that of a total: 0."""


@dataclass(frozen=True, slots=True)
class FlatColumn:
    """One flat column of a table, within a column of Spark's reader."""

    name: str
    within: str
    place: tuple[int, ...]
    """By position, from the outside in: a buffer of an aggregate has several fields of one name."""
    type: pa.DataType
    path: tuple[str, ...]
    """The same by Spark's names, the column first. Empty for a key where Spark has none."""


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
    parts: tuple[FlatColumn, ...] = field(repr=False)
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
        return [_select(each, self.spark_types, self.kind) for each in self.parts]

    def flat(self, columns: Mapping[str, pa.Array]) -> pa.Table:
        """All columns, made of those that Spark's reader would give, by name."""
        return pa.table([_flat(each, columns, self.kind).cast(each.type) for each in self.parts], self.schema)


def state_table(name: str, operator: Operator, kept: Kept, schema: StructType) -> StateTable:
    """The table of what Spark's reader gives by a schema. Raises `Refused` for a type that no table can have."""
    types = {each.name: each.dataType for each in schema.fields}
    kind = operator.kind
    if kind == "aggregate":
        grouping = getattr(types["key"], "fields", ())
        kind = "total" if not grouping else "window" if any(_is_window(each.dataType) for each in grouping) else kind

    def parts(columns: Iterable[str]) -> Iterator[FlatColumn]:
        for column in columns:
            if column in types:
                for each in _parts(types[column], (column,), name or kind):
                    yield _named(each, kind)

    key = [*parts(_KEYS)] or [FlatColumn(NO_KEY, "", (), pa.int64(), ())]
    keys = {each.name for each in key}
    # A session's value has its key once more.
    values = [each for each in parts(_VALUES) if kind != "session" or each.name not in keys]
    flat = tuple(_unique([*key, *values]))
    columns = [pa.field(each.name, each.type) for each in flat]
    return StateTable(
        name,
        operator.id,
        kind,
        kept.store,
        kept.options,
        kept.has_feed,
        pa.schema(columns[: len(key)]),
        pa.schema(columns[len(key) :]),
        flat,
        types,
    )


def _is_window(kind: DataType) -> bool:
    return isinstance(kind, StructType) and [(each.name, each.dataType) for each in kind.fields] == _WINDOW


def _parts(kind: DataType, path: tuple[str, ...], table: str, place: tuple[int, ...] = ()) -> Iterator[FlatColumn]:
    if isinstance(kind, StructType):
        for number, each in enumerate(kind.fields):
            yield from _parts(each.dataType, (*path, each.name), table, (*place, number))
    elif not isinstance(kind, NullType):
        name = _word("_".join(path[1:] or path))
        yield FlatColumn(name, path[0], place, _storable(kind, ".".join(path), table), path)


def _named(part: FlatColumn, kind: str) -> FlatColumn:
    """A column as an operator of a kind has it: times are times, and what is only around a user's state has no name."""
    if (time := _TIMES.get((kind, part.path))) is not None:
        return replace(part, name=time[0], type=_INSTANT)
    _, *inside = part.path
    if len(inside) > 1 and inside[0] == _AROUND.get(kind) and part.within in _VALUES:
        return replace(part, name=_word("_".join(inside[1:])))
    return part


def _word(name: str) -> str:
    """A column's name of Spark's as one that tables have: one that begins with `_` is not the user's there."""
    return _NO_NAME.sub("_", name).strip("_") or "value"


def _unique(parts: Iterable[FlatColumn]) -> Iterator[FlatColumn]:
    """The same with names that differ: of the second of a name, `sum_2`."""
    seen: set[str] = set()
    for each in parts:
        name, number = each.name, 1
        while name.lower() in seen:
            number += 1
            name = f"{each.name}_{number}"
        seen.add(name.lower())
        yield replace(each, name=name)


def _storable(kind: DataType, column: str, table: str) -> pa.DataType:
    try:
        return to_arrow(from_arrow(arrow_of(StructType([StructField(column, kind)])).field(0).type))
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


def _select(part: FlatColumn, types: Mapping[str, DataType], kind: str) -> Column:
    if not part.path:
        return F.lit(0).cast("long").alias(part.name)
    column = F.col(in_backticks(part.within)).cast(_numbered(types[part.within]))
    for number in part.place:
        column = column.getField(f"_{number}")
    if (time := _TIMES.get((kind, part.path))) is not None:
        column = F.when(column >= 0, time[1](column))
    return column.alias(part.name)


def _flat(part: FlatColumn, columns: Mapping[str, pa.Array], kind: str) -> pa.Array:
    """As `_select`."""
    if not part.path:
        return pa.repeat(pa.scalar(0, part.type), len(next(iter(columns.values()))))
    column = columns[part.within]
    for number in part.place:
        column = pc.struct_field(column, [number])
    if (time := _TIMES.get((kind, part.path))) is not None:
        factor = 1_000 if time[1] is F.timestamp_millis else 1
        column = pc.multiply(pc.if_else(pc.greater_equal(column, 0), column, None), factor)
    return column
