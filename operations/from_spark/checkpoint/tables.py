"""Tables of a query's state and their columns: one table for each store or state variable.

Fields of keys and values become columns. A nested struct stays one column, because a null struct and a struct of nulls
are different keys.
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
from ....pipeline.source.spark_types import arrow_schema_of
from ....store.sst.arrow_types import from_arrow, to_arrow
from ....store.sst.hashing import has_floats, has_negative_zero
from ....store.versions.column_types import quote_for_spark
from ...attach.protocol import DUE_AT, EXISTS
from .operators import Operator, OperatorTable

_NOT_IN_COLUMN_NAMES = re.compile(r"\W+", re.ASCII)
_INSTANT = pa.timestamp("us", "UTC")
_WINDOW = [("start", TimestampType()), ("end", TimestampType())]
_KEYS = ("key", "user_map_key", "expiration_timestamp_ms")
_VALUES = ("value", "user_map_value", "list_value")
"""Names of value columns in Spark's state reader."""
_TIMES = {
    ("transform", ("expiration_timestamp_ms",)): (DUE_AT, F.timestamp_millis),
    ("transform", ("value", "ttlExpirationMs")): ("expires_at", F.timestamp_millis),
    ("transform", ("user_map_value", "ttlExpirationMs")): ("expires_at", F.timestamp_millis),
    ("pandas", ("value", "timeoutTimestamp")): (DUE_AT, F.timestamp_millis),
    ("map-groups", ("value", "timeoutTimestamp")): (DUE_AT, F.timestamp_millis),
    ("distinct-within-watermark", ("value", "expiresAtMicros")): ("expires_at", F.timestamp_micros),
}
"""Numeric columns that contain times, by kind and path, with new name and conversion. Negative values mean no time."""
_WRAPPERS = {
    "pandas": (("groupState",), ("groupState", "timeoutTimestamp")),
    "map-groups": (("groupState",), ("groupState", "timeoutTimestamp")),
    "transform": (("value", "ttlExpirationMs"),),
}
"""Field names of the structs that Spark wraps around a user's state. The first field is the state."""
SINGLE_ROW_KEY = "row"
"""Key column of a table with a single row, such as the table of a total; always 0."""


@dataclass(frozen=True, slots=True)
class ReaderColumn:
    """One column of a table, with its location in the columns of Spark's state reader."""

    name: str
    reader_column: str
    field_indices: tuple[int, ...]
    """Path of field indexes, outermost level first. Field names are ambiguous, because a buffer may repeat them."""
    type: pa.DataType
    path: tuple[str, ...]
    """Names of the fields, beginning with the column of Spark's state reader.

    Empty for `SINGLE_ROW_KEY`, which Spark does not store.
    """
    is_existence_flag: bool = False


@dataclass(frozen=True, slots=True)
class StateTable:
    """One table of a query's state.

    Attributes:
        name: Distinguishes the query's tables; empty for the first one.
        operator: Spark's number of the operator.
        kind: Kind of the operator.
        store: Name of the store with the table.
        options: Options of Spark's state reader that select the table in the store.
        has_change_feed: True if changes of a batch can be read; otherwise two whole states are compared.
        key: Columns that identify a row.
        values: Other columns; all names are unique.
    """

    name: str
    operator: int
    kind: str
    store: str
    options: tuple[tuple[str, str], ...]
    has_change_feed: bool
    key: pa.Schema
    values: pa.Schema
    reader_columns: tuple[ReaderColumn, ...] = field(repr=False)
    spark_types: dict[str, DataType] = field(repr=False)

    @property
    def schema(self) -> pa.Schema:
        return pa.schema([*self.key, *self.values])

    @property
    def float_keys(self) -> list[str]:
        return [column.name for column in self.key if has_floats(column.type)]

    def check_keys(self, rows: pa.Table | pa.RecordBatch) -> None:
        """Raise `Refused` if a key has -0.0. `dropDuplicates` before Spark 4.2 distinguishes -0.0 from 0.0."""
        if names := [name for name in self.float_keys if has_negative_zero(rows[name])]:
            raise Refused(
                f"the state {self.name or self.kind!r} has a key with -0.0 in {names[0]!r}: before Spark 4.2 "
                "dropDuplicates distinguishes it from 0.0, and slackwater does not",
                hint=f"with a new checkpoint, run the query on Spark 4.2, or drop duplicates of {names[0]} + 0.0",
            )

    @property
    def is_in_shared_store(self) -> bool:
        """True if the store has several tables. To read changes of such a store, Spark first opens a whole state."""
        return bool(self.options)

    def select_columns(self) -> Sequence[Column]:
        return [_select(part, self.spark_types, self.kind) for part in self.reader_columns]

    def from_reader_arrays(self, columns: Mapping[str, pa.Array]) -> pa.Table:
        """Convert arrays of Spark's state reader, by column name, to the table's columns."""
        return pa.table([_select_array(part, columns, self.kind) for part in self.reader_columns], self.schema)


def make_state_table(name: str, operator: Operator, stored: OperatorTable, schema: StructType) -> StateTable:
    """Return the table that has a given schema in Spark's state reader. Raises `Refused` for an unsupported type."""
    types = {reader_field.name: reader_field.dataType for reader_field in schema.fields}
    kind = operator.kind
    if kind == "aggregate":
        grouping = getattr(types["key"], "fields", ())
        kind = (
            "total"
            if not grouping
            else "window"
            if any(_is_window(reader_field.dataType) for reader_field in grouping)
            else kind
        )

    def parts(columns: Iterable[str]) -> Iterator[ReaderColumn]:
        for column in columns:
            if column in types:
                yield from _columns(types[column], column, kind, name or kind)

    key = [*parts(_KEYS)] or [ReaderColumn(SINGLE_ROW_KEY, "", (), pa.int64(), ())]
    keys = {column.name for column in key}
    # A session's value repeats its key.
    values = [column for column in parts(_VALUES) if kind != "session" or column.name not in keys]
    all_columns = [*key, *values]
    named = tuple(
        replace(column, name=name)
        for column, name in zip(all_columns, _unique(part.name for part in all_columns), strict=True)
    )
    columns = [pa.field(column.name, column.type) for column in named]
    return StateTable(
        name,
        operator.id,
        kind,
        stored.store,
        stored.options,
        stored.has_change_feed,
        pa.schema(columns[: len(key)]),
        pa.schema(columns[len(key) :]),
        named,
        types,
    )


def _is_window(kind: DataType) -> bool:
    return isinstance(kind, StructType) and [(part.name, part.dataType) for part in kind.fields] == _WINDOW


def _columns(reader_type: DataType, column: str, kind: str, table: str) -> Iterator[ReaderColumn]:
    if not isinstance(reader_type, StructType):
        yield from _column(reader_type, (column,), (), kind, table)
        return
    is_wrapped = column in _VALUES and tuple(reader_type.names) in _WRAPPERS.get(kind, ())
    for number, part in enumerate(reader_type.fields):
        path = (column, part.name)
        if is_wrapped and not number and isinstance(part.dataType, StructType):
            for inner_number, nested in enumerate(part.dataType.fields):
                yield from _column(nested.dataType, (*path, nested.name), (0, inner_number), kind, table)
            if kind != "transform" and len(reader_type.fields) > 1:
                yield ReaderColumn(EXISTS, column, (0,), pa.bool_(), path, is_existence_flag=True)
        else:
            yield from _column(part.dataType, path, (number,), kind, table)


def _column(
    spark_type: DataType, path: tuple[str, ...], place: tuple[int, ...], kind: str, table: str
) -> Iterator[ReaderColumn]:
    if isinstance(spark_type, NullType):
        return
    if (time := _TIMES.get((kind, path))) is not None:
        yield ReaderColumn(time[0], path[0], place, _INSTANT, path)
    else:
        yield ReaderColumn(_column_name(path[-1]), path[0], place, _column_type(spark_type, path, table), path)


def _column_name(name: str) -> str:
    return _NOT_IN_COLUMN_NAMES.sub("_", name).strip("_") or "value"


def _unique(names: Iterable[str]) -> Iterator[str]:
    seen: set[str] = set()
    for base in names:
        name, number = base, 1
        while name.casefold() in seen:
            number += 1
            name = f"{base}_{number}"
        seen.add(name.casefold())
        yield name


def _column_type(kind: DataType, path: tuple[str, ...], table: str) -> pa.DataType:
    """Return the column type for a Spark type. Raises `Refused`, with the `path` of the field, if unsupported."""
    if isinstance(kind, StructType) and kind.fields:
        fields = [(part.name, _column_type(part.dataType, (*path, part.name), table)) for part in kind.fields]
        return pa.struct([(name, part_type) for (_, part_type), name in zip(fields, _field_names(kind), strict=True)])
    try:
        return to_arrow(
            from_arrow(arrow_schema_of(StructType([StructField(path[-1], _stored_type(kind))])).field(0).type)
        )
    except (Usage, TypeError, PySparkException) as error:
        raise Refused(
            f"column {'.'.join(path)} of state {table!r} has Spark's type {kind.simpleString()!r}, which slackwater "
            "cannot store",
            hint="remove the column from the query's state",
        ) from error


def _field_names(kind: StructType) -> Sequence[str]:
    return [*_unique(map(_column_name, kind.names))]


def _stored_type(kind: DataType) -> DataType:
    match kind:
        case StructType():
            fields = zip(_field_names(kind), kind.fields, strict=True)
            return StructType([StructField(name, _stored_type(part.dataType)) for name, part in fields])
        case ArrayType():
            return ArrayType(_stored_type(kind.elementType))
        case MapType():
            return MapType(_stored_type(kind.keyType), _stored_type(kind.valueType))
        case VariantType():
            return StringType()
        case NullType():
            return BooleanType()
        case _:
            return kind


def map_nested(column: Column, kind: DataType, leaf: Callable[[Column, DataType], Column | None]) -> Column:
    if (replaced := leaf(column, kind)) is not None:
        return replaced
    inner = partial(map_nested, leaf=leaf)
    match kind:
        case ArrayType():
            return F.transform(column, lambda element: inner(element, kind.elementType))
        case MapType():
            return F.transform_values(column, lambda _, element: inner(element, kind.valueType))
        case StructType():
            fields = [inner(column.getField(part.name), part.dataType).alias(part.name) for part in kind.fields]
            return F.when(column.isNotNull(), F.struct(*fields))
        case _:
            return column


def contains_type(kind: DataType, contained: type[DataType]) -> bool:
    return isinstance(kind, contained) or any(contains_type(child, contained) for child in _children(kind))


def _children(kind: DataType) -> Sequence[DataType]:
    match kind:
        case StructType():
            return [part.dataType for part in kind.fields]
        case ArrayType():
            return [kind.elementType]
        case MapType():
            return [kind.keyType, kind.valueType]
        case _:
            return []


def _json(column: Column, kind: DataType) -> Column | None:
    if isinstance(kind, VariantType):
        return F.to_json(column)
    return None if contains_type(kind, VariantType) else column


def _numbered(kind: DataType) -> DataType:
    match kind:
        case StructType():
            return StructType([StructField(f"_{n}", _numbered(part.dataType)) for n, part in enumerate(kind.fields)])
        case ArrayType():
            return ArrayType(_numbered(kind.elementType))
        case MapType():
            return MapType(_numbered(kind.keyType), _numbered(kind.valueType))
        case _:
            return kind


def _select(part: ReaderColumn, types: Mapping[str, DataType], kind: str) -> Column:
    if not part.path:
        return F.lit(0).cast("long").alias(part.name)
    spark_type = types[part.reader_column]
    column = F.col(quote_for_spark(part.reader_column)).cast(_numbered(spark_type))
    for number in part.field_indices:
        column, spark_type = column.getField(f"_{number}"), _children(spark_type)[number]
    if part.is_existence_flag:
        return column.isNotNull().alias(part.name)
    if (time := _TIMES.get((kind, part.path))) is not None:
        return F.when(column >= 0, time[1](column)).alias(part.name)
    if contains_type(spark_type, VariantType):
        column = map_nested(column, _numbered(spark_type), _json)
    return column.cast(_stored_type(spark_type)).alias(part.name)


def _select_array(part: ReaderColumn, columns: Mapping[str, pa.Array], kind: str) -> pa.Array:
    if not part.path:
        return pa.repeat(pa.scalar(0, part.type), len(next(iter(columns.values()))))
    column = columns[part.reader_column]
    for number in part.field_indices:
        column = pc.struct_field(column, [number])
    if (time := _TIMES.get((kind, part.path))) is not None:
        factor = 1_000 if time[1] is F.timestamp_millis else 1
        column = pc.multiply(pc.if_else(pc.greater_equal(column, 0), column, None), factor)
    # Same layout; the fields of structs may have other names.
    return column.view(part.type)
