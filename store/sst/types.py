"""Schemas of state tables and of their SSTs, in Arrow's types."""

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
"""Column of an SST whose table has, or had, a time to live: when the row expires, milliseconds since 1970 UTC. Null,
and in SSTs without the column: never."""
PREV = "_prev_seq"
"""Column of an SST: `_seq` of the row that was stored of the key when this one was made, be it a tombstone or expired;
0 where none was. Null: not known."""
DUE = "_due_at"
"""An internal value column, of tables whose rows fall due: when the row does, milliseconds since 1970 UTC; null: never.
"""
PUT = 0
TOMBSTONE = 1
FIELD_ID = b"PARQUET:field_id"
"""Where Arrow keeps the field ids of Parquet, in the metadata of a field."""
OWN_IDS = {HASH: 1 << 30, SEQ: (1 << 30) + 1, OP: (1 << 30) + 2, PREV: (1 << 30) + 3, EXPIRES: (1 << 30) + 4}
"""Field ids of an SST's own columns. Iceberg's readers want one of each column, and keep those above 2^31 - 201."""
_FIRST_INSIDE = (1 << 30) + 16
_INSIDE = 1 << 29
"""How many ids there are for what lies in structs, lists and maps."""


def arrow_schema(columns: Iterable[Column]) -> pa.Schema:
    """The Arrow schema of these columns, all nullable.

    Raises `Usage` where a column's type is not one that state tables have.
    """
    return pa.schema([pa.field(column.name, to_arrow(column.type)) for column in columns])


def visible_columns(table: Table) -> tuple[Column, ...]:
    """Return the columns that users see, the key first: all of the key, and the values that are not internal."""
    return (*table.key, *(column for column in table.values if not is_internal(column.name)))


@lru_cache(maxsize=256)
def sst_schema(table: Table) -> pa.Schema:
    """The schema of the table's SSTs: `_hash`, its columns, `_seq`, `_op`, `_prev_seq`, and with a ttl `_expires_at`.

    Key and value columns carry their ids (`Table.ids`), all others and what lies in nested ones ids that they have for
    good. Those written before the table got a ttl lack `_expires_at`: see `stored_schema`; those from before it was
    migrated have other columns: see `evolution`.

    Raises `Usage` where a column's type is not one that state tables have.
    """
    columns = zip(table.ids, arrow_schema(table.columns), strict=True)
    fields = [pa.field(HASH, pa.int64(), nullable=False)]
    fields += (with_ids(field, number) for number, field in columns)
    fields += [pa.field(SEQ, pa.int64(), nullable=False), pa.field(OP, pa.int8(), nullable=False)]
    fields += [pa.field(PREV, pa.int64()), *([pa.field(EXPIRES, pa.int64())] if table.ttl is not None else [])]
    return pa.schema([with_ids(each, OWN_IDS[each.name]) if each.name in OWN_IDS else each for each in fields])


def stored_schema(schema: pa.Schema, found: pa.Schema) -> pa.Schema:
    """The schema of a table's SSTs (`sst_schema`) as one has it: with `_expires_at` or without."""
    at, has = schema.get_field_index(EXPIRES), EXPIRES in found.names
    if has and at < 0:
        return schema.append(with_ids(pa.field(EXPIRES, pa.int64()), OWN_IDS[EXPIRES]))
    return schema.remove(at) if at >= 0 and not has else schema


def completed(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """The rows with the columns of an SST (`sst_schema`): nulls, where they lack `_prev_seq` or `_expires_at`."""
    for name in (PREV, EXPIRES):
        if name in schema.names and name not in rows.column_names:
            rows = rows.append_column(name, pa.nulls(rows.num_rows, pa.int64()))
    return rows.select(schema.names)


def with_ids(field: pa.Field, number: int, path: str = "") -> pa.Field:
    """The field with a field id, and so all that lies in it.

    What lies in a column keeps its name for as long as it is there, so its id follows from the column's and its path.
    """
    kind, types, inside = field.type, pa.types, f"{path or number}"

    def child(each: pa.Field, name: str = "") -> pa.Field:
        below = f"{inside}\0{name or each.name}"
        return with_ids(each, _FIRST_INSIDE + zlib.crc32(below.encode()) % _INSIDE, below)

    if types.is_struct(kind):
        kind = pa.struct([child(kind.field(place)) for place in range(kind.num_fields)])
    elif types.is_list(kind):
        kind = pa.list_(child(kind.value_field, "element"))
    elif types.is_map(kind):
        kind = pa.map_(child(kind.key_field, "key"), child(kind.item_field, "value"))
    return field.with_type(kind).with_metadata({FIELD_ID: str(number).encode()})


def field_id(field: pa.Field) -> int:
    """The Parquet field id of a column, 0 for none."""
    return int((field.metadata or {}).get(FIELD_ID, b"0"))


def shape(schema: pa.Schema) -> str:
    """The columns and their types, for errors."""
    return ", ".join(f"{field.name} {field.type}" for field in schema)
