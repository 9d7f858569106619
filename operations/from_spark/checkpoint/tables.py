"""The tables of state that a query keeps, one for each store or state variable.

The fields of a key and of a value are the columns. A struct within stays a struct: a null one and one of nulls are two
keys.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.errors import PySparkException
from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DataType,
    MapType,
    NullType,
    StringType,
    StructField,
    StructType,
    TimestampType,
    VariantType,
)

from ....errors import Refused, Usage
from ....pipeline.source.spark_types import arrow_of
from ....store.sst.arrow_types import from_arrow, to_arrow
from ....store.sst.hashing import has_floats, has_negative_zero
from ....store.versions.column_types import in_backticks
from .operators import Kept, Operator
from .protocol import DUE_AT, EXISTS

_NO_NAME = re.compile(r"\W+", re.ASCII)
_INSTANT = pa.timestamp("us", "UTC")
_WINDOW = [("start", TimestampType()), ("end", TimestampType())]
_KEYS = ("key", "user_map_key", "expiration_timestamp_ms")
_VALUES = ("value", "user_map_value", "list_value")
"""Columns of Spark's reader, those that are there."""
_TIMES = {
    ("transform", ("expiration_timestamp_ms",)): (DUE_AT, F.timestamp_millis),
    ("transform", ("value", "ttlExpirationMs")): ("expires_at", F.timestamp_millis),
    ("transform", ("user_map_value", "ttlExpirationMs")): ("expires_at", F.timestamp_millis),
    ("pandas", ("value", "timeoutTimestamp")): (DUE_AT, F.timestamp_millis),
    ("map-groups", ("value", "timeoutTimestamp")): (DUE_AT, F.timestamp_millis),
    ("distinct-within-watermark", ("value", "expiresAtMicros")): ("expires_at", F.timestamp_micros),
}
"""Numbers of Spark's that are times, by kind and path: what they are called here. Below 0 there is none."""
_AROUND = {
    "pandas": (("groupState",), ("groupState", "timeoutTimestamp")),
    "map-groups": (("groupState",), ("groupState", "timeoutTimestamp")),
    "transform": (("value", "ttlExpirationMs"),),
}
"""Of structs of Spark's own around a user's state, the names of their fields, of which the first has it."""
NO_KEY = "row"
"""The key of a table that has one row, such as that of a total: 0."""


@dataclass(frozen=True, slots=True)
class ReaderColumn:
    """One column of a table, within a column of Spark's reader."""

    name: str
    within: str
    place: tuple[int, ...]
    """The field by position, from the outside in: a buffer of an aggregate has several fields of one name."""
    type: pa.DataType
    path: tuple[str, ...]
    """The same by Spark's names, the column first. Empty for a key where Spark has none."""
    exists: bool = False
    """Whether the column says that the field is not null, and not what is in it."""


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
    parts: tuple[ReaderColumn, ...] = field(repr=False)
    spark_types: dict[str, DataType] = field(repr=False)
    """Of the columns that Spark's reader gives."""

    @property
    def schema(self) -> pa.Schema:
        """All columns, the key's first."""
        return pa.schema([*self.key, *self.values])

    @property
    def float_keys(self) -> list[str]:
        """Names of the key's columns that have floats in them."""
        return [column.name for column in self.key if has_floats(column.type)]

    def check_keys(self, rows: pa.Table | pa.RecordBatch) -> None:
        """Raise `Refused` where a key has -0.0: before Spark 4.2 `dropDuplicates` keeps it apart from 0.0."""
        if names := [name for name in self.float_keys if has_negative_zero(rows[name])]:
            raise Refused(
                f"the state {self.name or self.kind!r} has a key with -0.0 in {names[0]!r}: before Spark 4.2 "
                "dropDuplicates keeps it apart from 0.0, which slackwater does not",
                hint=f"with a new checkpoint, run the query on Spark 4.2, or drop duplicates of {names[0]} + 0.0",
            )

    @property
    def registers(self) -> bool:
        """Whether it is one of several in a store, so that Spark opens a whole state before it reads changes."""
        return bool(self.options)

    def columns(self) -> Sequence[Column]:
        """All columns, made of those that Spark's reader gives."""
        return [_select(each, self.spark_types, self.kind) for each in self.parts]

    def flat(self, columns: Mapping[str, pa.Array]) -> pa.Table:
        """All columns, made of those that Spark's reader would give, by name."""
        return pa.table([_flat(each, columns, self.kind) for each in self.parts], self.schema)


def state_table(name: str, operator: Operator, kept: Kept, schema: StructType) -> StateTable:
    """The table of what Spark's reader gives by a schema. Raises `Refused` for a type that no table can have."""
    types = {each.name: each.dataType for each in schema.fields}
    kind = operator.kind
    if kind == "aggregate":
        grouping = getattr(types["key"], "fields", ())
        kind = "total" if not grouping else "window" if any(_is_window(each.dataType) for each in grouping) else kind

    def parts(columns: Iterable[str]) -> Iterator[ReaderColumn]:
        for column in columns:
            if column in types:
                yield from _columns(types[column], column, kind, name or kind)

    key = [*parts(_KEYS)] or [ReaderColumn(NO_KEY, "", (), pa.int64(), ())]
    keys = {each.name for each in key}
    # A session's value has its key once more.
    values = [each for each in parts(_VALUES) if kind != "session" or each.name not in keys]
    found = [*key, *values]
    named = tuple(
        replace(each, name=name) for each, name in zip(found, _unique(part.name for part in found), strict=True)
    )
    columns = [pa.field(each.name, each.type) for each in named]
    return StateTable(
        name,
        operator.id,
        kind,
        kept.store,
        kept.options,
        kept.has_feed,
        pa.schema(columns[: len(key)]),
        pa.schema(columns[len(key) :]),
        named,
        types,
    )


def _is_window(kind: DataType) -> bool:
    return isinstance(kind, StructType) and [(each.name, each.dataType) for each in kind.fields] == _WINDOW


def _columns(of: DataType, column: str, kind: str, table: str) -> Iterator[ReaderColumn]:
    """The columns of one of Spark's reader, of an operator of a kind: the fields of a struct."""
    if not isinstance(of, StructType):
        yield from _column(of, (column,), (), kind, table)
        return
    around = column in _VALUES and tuple(of.names) in _AROUND.get(kind, ())
    for number, each in enumerate(of.fields):
        path = (column, each.name)
        if around and not number and isinstance(each.dataType, StructType):
            for inner, one in enumerate(each.dataType.fields):
                yield from _column(one.dataType, (*path, one.name), (0, inner), kind, table)
            if kind != "transform" and len(of.fields) > 1:
                yield ReaderColumn(EXISTS, column, (0,), pa.bool_(), path, exists=True)
        else:
            yield from _column(each.dataType, path, (number,), kind, table)


def _column(
    of: DataType, path: tuple[str, ...], place: tuple[int, ...], kind: str, table: str
) -> Iterator[ReaderColumn]:
    if isinstance(of, NullType):
        return
    if (time := _TIMES.get((kind, path))) is not None:
        yield ReaderColumn(time[0], path[0], place, _INSTANT, path)
    else:
        yield ReaderColumn(_word(path[-1]), path[0], place, _storable(of, path, table), path)


def _word(name: str) -> str:
    """A column's name of Spark's as one that tables have: one that begins with `_` is not the user's there."""
    return _NO_NAME.sub("_", name).strip("_") or "value"


def _unique(names: Iterable[str]) -> Iterator[str]:
    """The same names, but that all differ: the second of a name is `sum_2`."""
    seen: set[str] = set()
    for each in names:
        name, number = each, 1
        while name.casefold() in seen:
            number += 1
            name = f"{each}_{number}"
        seen.add(name.casefold())
        yield name


def _storable(kind: DataType, path: tuple[str, ...], table: str) -> pa.DataType:
    """The type of a table's column. Raises `Refused` for what none can have, by the field within that it is."""
    if isinstance(kind, StructType) and kind.fields:
        fields = [(each.name, _storable(each.dataType, (*path, each.name), table)) for each in kind.fields]
        return pa.struct([(name, of) for (_, of), name in zip(fields, _field_names(kind), strict=True)])
    try:
        return to_arrow(from_arrow(arrow_of(StructType([StructField(path[-1], _stored(kind))])).field(0).type))
    except (Usage, TypeError, PySparkException) as error:
        raise Refused(
            f"column {'.'.join(path)} of state {table!r} has Spark's type {kind.simpleString()!r}, which no table can "
            "have",
            hint="only a query without this column can be read",
        ) from error


def _field_names(kind: StructType) -> Sequence[str]:
    return [*_unique(map(_word, kind.names))]


def _stored(kind: DataType) -> DataType:
    """The type in which a value is kept: fields of structs have names that differ, and a variant is its JSON text."""
    match kind:
        case StructType():
            fields = zip(_field_names(kind), kind.fields, strict=True)
            return StructType([StructField(name, _stored(each.dataType)) for name, each in fields])
        case ArrayType():
            return ArrayType(_stored(kind.elementType))
        case MapType():
            return MapType(_stored(kind.keyType), _stored(kind.valueType))
        case VariantType():
            return StringType()
        case NullType():
            return BooleanType()
        case _:
            return kind


def rebuilt(column: Column, kind: DataType, leaf: Callable[[Column, DataType], Column | None]) -> Column:
    """The column with what `leaf` makes of values within it; what that is None for stays as it is."""
    if (made := leaf(column, kind)) is not None:
        return made
    inner = partial(rebuilt, leaf=leaf)
    match kind:
        case ArrayType():
            return F.transform(column, lambda each: inner(each, kind.elementType))
        case MapType():
            return F.transform_values(column, lambda _, each: inner(each, kind.valueType))
        case StructType():
            fields = [inner(column.getField(each.name), each.dataType).alias(each.name) for each in kind.fields]
            return F.when(column.isNotNull(), F.struct(*fields))
        case _:
            return column


def has(kind: DataType, wanted: type[DataType]) -> bool:
    """Whether values of a type are of another, or have ones of it within."""
    return isinstance(kind, wanted) or any(has(each, wanted) for each in _inside(kind))


def _inside(kind: DataType) -> Sequence[DataType]:
    match kind:
        case StructType():
            return [each.dataType for each in kind.fields]
        case ArrayType():
            return [kind.elementType]
        case MapType():
            return [kind.keyType, kind.valueType]
        case _:
            return []


def _json(column: Column, kind: DataType) -> Column | None:
    if isinstance(kind, VariantType):
        return F.to_json(column)
    return None if has(kind, VariantType) else column


def _numbered(kind: DataType) -> DataType:
    """The same type with the fields of structs named by their position."""
    match kind:
        case StructType():
            return StructType([StructField(f"_{n}", _numbered(each.dataType)) for n, each in enumerate(kind.fields)])
        case ArrayType():
            return ArrayType(_numbered(kind.elementType))
        case MapType():
            return MapType(_numbered(kind.keyType), _numbered(kind.valueType))
        case _:
            return kind


def _select(part: ReaderColumn, types: Mapping[str, DataType], kind: str) -> Column:
    if not part.path:
        return F.lit(0).cast("long").alias(part.name)
    of = types[part.within]
    column = F.col(in_backticks(part.within)).cast(_numbered(of))
    for number in part.place:
        column, of = column.getField(f"_{number}"), _inside(of)[number]
    if part.exists:
        return column.isNotNull().alias(part.name)
    if (time := _TIMES.get((kind, part.path))) is not None:
        return F.when(column >= 0, time[1](column)).alias(part.name)
    if has(of, VariantType):
        column = rebuilt(column, _numbered(of), _json)
    return column.cast(_stored(of)).alias(part.name)


def _flat(part: ReaderColumn, columns: Mapping[str, pa.Array], kind: str) -> pa.Array:
    """As `_select`."""
    if not part.path:
        return pa.repeat(pa.scalar(0, part.type), len(next(iter(columns.values()))))
    column = columns[part.within]
    for number in part.place:
        column = pc.struct_field(column, [number])
    if (time := _TIMES.get((kind, part.path))) is not None:
        factor = 1_000 if time[1] is F.timestamp_millis else 1
        column = pc.multiply(pc.if_else(pc.greater_equal(column, 0), column, None), factor)
    # The same layout, in which fields of structs may have other names.
    return column.view(part.type)
