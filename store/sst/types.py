"""Arrow schemas of state tables and of their SSTs."""

import zlib
from collections.abc import Iterable
from functools import lru_cache

import pyarrow as pa

from ..versions.manifest import Column, Table, is_internal
from .arrow_types import to_arrow

HASH = "_hash"
"""Column of an SST: Spark's `xxhash64` of the key columns, signed."""
SEQ = "_seq"
"""Column of an SST: the version that wrote the row."""
OP = "_op"
"""Column of an SST: `PUT` or `TOMBSTONE`."""
EXPIRES = "_expires_at"
"""Column of an SST whose table has, or had, a time to live: expiry time of the row, milliseconds since 1970 UTC. Null,
and a missing column: never."""
PREV = "_prev_seq"
"""Column of an SST: `_seq` of the key's previous row, even a tombstone or expired; 0 for none, null for unknown."""
DUE = "_due_at"
"""Internal value column of tables whose rows fall due: due time in milliseconds since 1970 UTC; null: never."""
PUT = 0
TOMBSTONE = 1
FIELD_ID = b"PARQUET:field_id"
"""Arrow's metadata key of Parquet field ids."""
OWN_IDS = {HASH: 1 << 30, SEQ: (1 << 30) + 1, OP: (1 << 30) + 2, PREV: (1 << 30) + 3, EXPIRES: (1 << 30) + 4}
"""Field ids of an SST's own columns. Iceberg's readers need an id for each column; above 2^31 - 201 is reserved."""
_FIRST_INSIDE = (1 << 30) + 16
_INSIDE = 1 << 29
"""Number of ids for fields inside structs, lists and maps."""


def arrow_schema(columns: Iterable[Column]) -> pa.Schema:
    """Return the Arrow schema of these columns, all nullable.

    Raises `Usage` for a type that state tables do not support.
    """
    return pa.schema([pa.field(column.name, to_arrow(column.type)) for column in columns])


def visible_columns(table: Table) -> tuple[Column, ...]:
    """Return the columns that users see: all key columns first, then the values that are not internal."""
    return (*table.key, *(column for column in table.values if not is_internal(column.name)))


@lru_cache(maxsize=256)
def sst_schema(table: Table) -> pa.Schema:
    """Return the schema of a table's SSTs: `_hash`, its columns, `_seq`, `_op`, `_prev_seq`, `_expires_at` with a ttl.

    Key and value columns carry their ids (`Table.ids`); own columns and nested fields have fixed ids. SSTs from before
    the table got a ttl lack `_expires_at` (see `stored_schema`); SSTs from before a migration have other columns (see
    `evolution`).

    Raises `Usage` for a type that state tables do not support.
    """
    columns = zip(table.ids, arrow_schema(table.columns), strict=True)
    fields = [pa.field(HASH, pa.int64(), nullable=False)]
    fields += (with_ids(field, number) for number, field in columns)
    fields += [pa.field(SEQ, pa.int64(), nullable=False), pa.field(OP, pa.int8(), nullable=False)]
    fields += [pa.field(PREV, pa.int64()), *([pa.field(EXPIRES, pa.int64())] if table.ttl is not None else [])]
    return pa.schema([with_ids(field, OWN_IDS[field.name]) if field.name in OWN_IDS else field for field in fields])


def stored_schema(schema: pa.Schema, stored: pa.Schema) -> pa.Schema:
    """Return the schema of a table's SSTs (`sst_schema`) with `_expires_at` if `stored` has it, else without."""
    at, has = schema.get_field_index(EXPIRES), EXPIRES in stored.names
    if has and at < 0:
        return schema.append(with_ids(pa.field(EXPIRES, pa.int64()), OWN_IDS[EXPIRES]))
    return schema.remove(at) if at >= 0 and not has else schema


def completed(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return the rows with all columns of an SST (`sst_schema`): nulls for a missing `_prev_seq` or `_expires_at`."""
    for name in (PREV, EXPIRES):
        if name in schema.names and name not in rows.column_names:
            rows = rows.append_column(name, pa.nulls(rows.num_rows, pa.int64()))
    return rows.select(schema.names)


def with_ids(field: pa.Field, number: int, path: str = "") -> pa.Field:
    """Return the field with a field id, nested fields included.

    A nested field keeps its name for ever, so its id is derived from the column's id and the path.
    """
    kind, types, inside = field.type, pa.types, f"{path or number}"

    def child(nested: pa.Field, name: str = "") -> pa.Field:
        below = f"{inside}\0{name or nested.name}"
        return with_ids(nested, _FIRST_INSIDE + zlib.crc32(below.encode()) % _INSIDE, below)

    if types.is_struct(kind):
        kind = pa.struct([child(kind.field(place)) for place in range(kind.num_fields)])
    elif types.is_list(kind):
        kind = pa.list_(child(kind.value_field, "element"))
    elif types.is_map(kind):
        kind = pa.map_(child(kind.key_field, "key"), child(kind.item_field, "value"))
    return field.with_type(kind).with_metadata({FIELD_ID: str(number).encode()})


def field_id(field: pa.Field) -> int:
    """Return the Parquet field id of a column, 0 for none."""
    return int((field.metadata or {}).get(FIELD_ID, b"0"))


def shape(schema: pa.Schema) -> str:
    """Return the columns and their types as text, for errors."""
    return ", ".join(f"{field.name} {field.type}" for field in schema)
