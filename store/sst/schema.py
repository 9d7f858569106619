"""Arrow schemas of tables and SSTs, and conversion of SSTs whose columns differ from the table's current ones.

A column has a permanent id (`Table.column_ids`), which SSTs store as Parquet's field id. The id maps a renamed column
to its former name. A widened column is cast, an added column gets its default, and a removed column is not read.

Only this module maps an SST's columns to a table's columns. All code that reads rows uses a `ColumnConversion`, or None
if the SST has the table's own columns.
"""

import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ...common.durations import DAY_MS
from ..versions.manifest import Column, Table, Ttl, is_internal
from .arrow_types import to_arrow

HASH = "_hash"
SEQ = "_seq"
OP = "_op"
EXPIRES = "_expires_at"
"""SST column with the row's expiry time in ms since 1970 UTC, null for never. Exists if the table has or had a ttl."""
PREV = "_prev_seq"
"""SST column: `_seq` of the key's previous row, including tombstones and expired rows; 0 for none, null for unknown."""
DUE = "_due_at"
"""Internal value column of tables whose rows fall due: the due time in ms since 1970 UTC; null for never."""
PUT = 0
TOMBSTONE = 1
FIELD_ID = b"PARQUET:field_id"
INTERNAL_FIELD_IDS = {HASH: 1 << 30, SEQ: (1 << 30) + 1, OP: (1 << 30) + 2, PREV: (1 << 30) + 3, EXPIRES: (1 << 30) + 4}
"""Field ids of internal columns, for Iceberg's readers. Iceberg reserves ids above 2^31 - 201."""
_FIRST_NESTED_ID = (1 << 30) + 16
_NESTED_IDS = 1 << 29


def arrow_schema(columns: Iterable[Column]) -> pa.Schema:
    """Return the Arrow schema of these columns, all nullable. Raises `Usage` for an unsupported type."""
    return pa.schema([pa.field(column.name, to_arrow(column.type)) for column in columns])


def visible_columns(table: Table) -> tuple[Column, ...]:
    """Return the columns that users see: key columns, then value columns that are not internal."""
    return (*table.key, *(column for column in table.values if not is_internal(column.name)))


@lru_cache(maxsize=256)
def sst_schema(table: Table) -> pa.Schema:
    """Return the schema of a table's new SSTs: `_hash`, the table's columns, `_seq`, `_op` and `_prev_seq`.

    A table with a ttl also has `_expires_at`. Columns carry field ids (`Table.column_ids`); internal columns and nested
    fields have fixed ids. SSTs from before the ttl lack `_expires_at` (`stored_schema`), and SSTs from before a
    migration have other columns (`ColumnConversion`). Raises `Usage` for an unsupported type.
    """
    columns = zip(table.column_ids, arrow_schema(table.columns), strict=True)
    fields = [pa.field(HASH, pa.int64(), nullable=False)]
    fields += (with_field_ids(field, number) for number, field in columns)
    fields += [pa.field(SEQ, pa.int64(), nullable=False), pa.field(OP, pa.int8(), nullable=False)]
    fields += [pa.field(PREV, pa.int64()), *([pa.field(EXPIRES, pa.int64())] if table.ttl is not None else [])]
    return pa.schema(
        [
            with_field_ids(field, INTERNAL_FIELD_IDS[field.name]) if field.name in INTERNAL_FIELD_IDS else field
            for field in fields
        ]
    )


def stored_schema(schema: pa.Schema, stored: pa.Schema) -> pa.Schema:
    """Return `schema` with the column `_expires_at` if `stored` has this column, and without it otherwise."""
    at, has = schema.get_field_index(EXPIRES), EXPIRES in stored.names
    if has and at < 0:
        return schema.append(with_field_ids(pa.field(EXPIRES, pa.int64()), INTERNAL_FIELD_IDS[EXPIRES]))
    return schema.remove(at) if at >= 0 and not has else schema


def add_missing_columns(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return the rows with all columns of `schema`: a missing `_prev_seq` or `_expires_at` is null."""
    for name in (PREV, EXPIRES):
        if name in schema.names and name not in rows.column_names:
            rows = rows.append_column(name, pa.nulls(rows.num_rows, pa.int64()))
    return rows.select(schema.names)


def with_field_ids(field: pa.Field, number: int, path: str = "") -> pa.Field:
    """Return the field with Parquet field ids on itself and on its nested fields.

    The id of a nested field is derived from the column's id and the path of names, which never change.
    """
    kind, types, inside = field.type, pa.types, f"{path or number}"

    def child(nested: pa.Field, name: str = "") -> pa.Field:
        below = f"{inside}\0{name or nested.name}"
        return with_field_ids(nested, _FIRST_NESTED_ID + zlib.crc32(below.encode()) % _NESTED_IDS, below)

    if types.is_struct(kind):
        kind = pa.struct([child(kind.field(place)) for place in range(kind.num_fields)])
    elif types.is_list(kind):
        kind = pa.list_(child(kind.value_field, "element"))
    elif types.is_map(kind):
        kind = pa.map_(child(kind.key_field, "key"), child(kind.item_field, "value"))
    return field.with_type(kind).with_metadata({FIELD_ID: str(number).encode()})


def field_id(field: pa.Field) -> int:
    return int((field.metadata or {}).get(FIELD_ID, b"0"))


def describe_schema(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)


_INTERNAL_COLUMNS = (HASH, SEQ, OP, PREV, EXPIRES)

Rows = TypeVar("Rows", pa.RecordBatch, pa.Table)


@dataclass(frozen=True, slots=True)
class ColumnSource:
    """A table column's source in an SST: the SST's column `name`, or the constant `default` if `name` is None."""

    type: pa.DataType
    name: str | None
    stored_type: pa.DataType
    default: pa.Scalar


@dataclass(frozen=True, slots=True)
class ColumnConversion:
    """Conversion of an SST's rows to the table's current columns."""

    sources: dict[str, ColumnSource]
    schema: pa.Schema
    """Schema of the converted rows: the table's SST schema, with `_expires_at` only if the SST has it."""

    def stored_names(self, names: Sequence[str]) -> list[str]:
        stored = (name if name in _INTERNAL_COLUMNS else self.sources[name].name for name in names)
        return [name for name in stored if name is not None]

    def convert(self, rows: Rows, names: Sequence[str]) -> Rows:
        columns = []
        for name in names:
            if name in _INTERNAL_COLUMNS:
                columns.append(rows.column(name))
            elif (source := self.sources[name]).name is None:
                columns.append(pa.repeat(source.default, rows.num_rows))
            else:
                column = rows.column(source.name)
                columns.append(column if source.stored_type == source.type else column.cast(source.type))
        return type(rows).from_arrays(columns, schema=pa.schema([self.schema.field(name) for name in names]))


def column_conversion(stored: pa.Schema, table: Table) -> ColumnConversion | None:
    """Return the conversion from an SST's columns to the table's columns; None if they are equal.

    Raises `ValueError` if the table never had the SST's columns.
    """
    schema = sst_schema(table)
    if not table.schema:
        if stored != stored_schema(schema, stored):
            raise ValueError(f"expected columns {describe_schema(schema)}; found {describe_schema(stored)}")
        return None
    return _column_conversion(
        tuple((field.name, field.type, field_id(field), field.nullable) for field in stored), table
    )


@lru_cache(maxsize=256)
def _column_conversion(stored: tuple[tuple[str, pa.DataType, int, bool], ...], table: Table) -> ColumnConversion | None:
    own = pa.schema([pa.field(name, kind, nullable) for name, kind, _, nullable in stored if name in _INTERNAL_COLUMNS])
    schema = stored_schema(sst_schema(table), own)
    if own != (expected := pa.schema([field for field in schema if field.name in _INTERNAL_COLUMNS])):
        raise ValueError(f"expected columns {describe_schema(expected)}; found {describe_schema(own)}")
    stored_by_id = {number: (name, kind) for name, kind, number, _ in stored if name not in _INTERNAL_COLUMNS}
    sources = {}
    for number, column in zip(table.column_ids, table.columns, strict=True):
        kind = to_arrow(column.type)
        name, was = stored_by_id.get(number, (None, kind))
        if name is None and column in table.key:
            raise ValueError(f"expected key column {column.name}, of id {number}; found none")
        if not can_widen(was, kind):
            raise ValueError(
                f"expected column {column.name} to be {kind}, or a type that was widened to it; found {was}"
            )
        sources[column.name] = ColumnSource(kind, name, was, default_value(column))
    as_it_is = [(name, name, kind, kind) for name, kind in stored_by_id.values()]
    if [(name, source.name, source.stored_type, source.type) for name, source in sources.items()] == as_it_is:
        return None
    return ColumnConversion(sources, schema)


def default_value(column: Column) -> pa.Scalar:
    """Return the default of a column, for rows older than the column.

    Raises `ValueError` if it does not fit the type.
    """
    kind = to_arrow(column.type)
    if column.default is None:
        return pa.scalar(None, kind)
    return pa.array([column.default], pa.string()).cast(kind)[0]


def default_text(value: object, kind: pa.DataType) -> str:
    """Return a column's default as text for the manifest, rounded to the type `kind`.

    Raises `ValueError` or `TypeError` if the value is not of the type, or if the type is nested or binary.
    """
    if pa.types.is_nested(kind) or pa.types.is_binary(kind):
        raise TypeError(f"a column of type {kind} can have no default but null")
    if pa.types.is_integer(kind) and not isinstance(value, int | pa.Scalar):
        raise TypeError("Arrow would drop the fraction")
    scalar = value if isinstance(value, pa.Scalar) else pa.array([value], kind)[0]
    text = pa.array([scalar.as_py()], scalar.type).cast(pa.string())[0].as_py()
    if pa.array([text]).cast(kind)[0].as_py() != scalar.cast(kind).as_py() and scalar.as_py() == scalar.as_py():
        raise ValueError(f"{value!r} is not a {kind}")
    return str(text)


def can_read_rows_of(was: pa.Schema, schema: pa.Schema) -> bool:
    """Return True if rows of the schema `was` can be read with the schema `schema`.

    Types may have been widened, and columns added or removed. If columns were both added and removed, returns False,
    because some may have been renamed.
    """
    had, has = set(was.names), set(schema.names)
    return not (had - has and has - had) and all(can_widen(was.field(n).type, schema.field(n).type) for n in had & has)


def can_widen(was: pa.DataType, kind: pa.DataType) -> bool:
    """Return True if every value of the type `was` fits the type `kind`: wider integers, floats, decimals and structs.

    A wider struct keeps all fields and may have more, which are null in older rows.
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
        return all(field.name in now and can_widen(field.type, now[field.name]) for field in fields)
    if types.is_list(was) and types.is_list(kind):
        return can_widen(was.value_type, kind.value_type)
    if types.is_map(was) and types.is_map(kind):
        return bool(was.key_type == kind.key_type) and can_widen(was.item_type, kind.item_type)
    return False


def expired_mask(rows: pa.Table | pa.RecordBatch, clock_ms: int | None) -> npt.NDArray[np.bool_] | None:
    """Return a mask of the rows that have expired at `clock_ms`; None if no row can expire."""
    if clock_ms is None or EXPIRES not in rows.schema.names:
        return None
    expires = rows.column(EXPIRES)
    if expires.null_count == len(expires):
        return None
    return np.asarray(pc.fill_null(pc.less_equal(expires, clock_ms), False))


def with_expiry(rows: pa.Table, table: Table, clock_ms: int) -> pa.Table:
    """Return the rows with their expiry times as `_expires_at` (ms since 1970 UTC), if the table has a ttl.

    `_expires_at` is null for tombstones, for rows without an event time, and while the ttl is off. `rows` has the value
    columns and `_op`. `clock_ms` is the batch's clock, for expiry by write time.
    """
    ttl = table.ttl
    if ttl is None:
        return rows
    if not ttl.ms:
        return rows.append_column(EXPIRES, pa.nulls(rows.num_rows, pa.int64()))
    never = pa.scalar(None, pa.int64())
    written = event_ms(rows.column(ttl.column)) if ttl.column else pa.scalar(clock_ms, pa.int64())
    put = pc.equal(rows.column(OP), PUT)
    return rows.append_column(EXPIRES, pc.if_else(put, pc.add(written, ttl.ms), never))


def latest_event_ms(rows: pa.Table, ttl: Ttl | None) -> int | None:
    """Return the largest event time of the rows, without tombstones, in ms since 1970 UTC.

    Returns None without such rows, or if the table does not expire rows by event time.
    """
    if ttl is None or not ttl.ms or not ttl.column:
        return None
    times = event_ms(rows.column(ttl.column)).filter(pc.equal(rows.column(OP), PUT))
    latest: int | None = pc.max(times).as_py()
    return latest


def event_ms(times: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """Convert timestamps (in microseconds) or dates to ms since 1970 UTC. A date stands for its first instant."""
    if pa.types.is_date32(times.type):
        return pc.multiply(times.cast(pa.int32()).cast(pa.int64()), DAY_MS)
    return pc.divide(times.cast(pa.int64()), 1000)
