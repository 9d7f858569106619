"""Column types of state tables: Arrow types, and the names manifests keep for them."""

import re
from collections.abc import Iterable
from functools import lru_cache

import pyarrow as pa

from .errors import Usage
from .manifest import Column, Table

__all__ = [
    "EXPIRES",
    "HASH",
    "OP",
    "PUT",
    "SEQ",
    "TOMBSTONE",
    "arrow_schema",
    "from_arrow",
    "sst_schema",
    "stored_schema",
    "to_arrow",
]

HASH = "_hash"
"""Column of an SST: Spark's `xxhash64` of the key columns, signed."""
SEQ = "_seq"
"""Column of an SST: the version that wrote the row."""
OP = "_op"
"""Column of an SST: `PUT` or `TOMBSTONE`."""
EXPIRES = "_expires_at"
"""Column of an SST whose table has, or had, a time to live: when the row expires, milliseconds since 1970 UTC. Null,
and in SSTs without the column: never."""
PUT = 0
TOMBSTONE = 1

_TYPES: tuple[pa.DataType, ...] = (
    pa.string(),
    pa.binary(),
    pa.bool_(),
    pa.int8(),
    pa.int16(),
    pa.int32(),
    pa.int64(),
    pa.float32(),
    pa.float64(),
    pa.date32(),
    pa.timestamp("us"),
    pa.timestamp("us", tz="UTC"),
)
_BY_NAME: dict[str, pa.DataType] = {str(t): t for t in _TYPES} | {"date32": pa.date32()}
_DECIMAL = re.compile(r"decimal128\((\d+), ?(\d+)\)")
_KNOWN = ", ".join([*(str(t) for t in _TYPES), "decimal128(p, s)"])


def to_arrow(name: str) -> pa.DataType:
    """The Arrow type that a manifest's `Column.type` names.

    Raises:
        Usage: no column of a state table can have this type.
    """
    known = _BY_NAME.get(name)
    if known is not None:
        return known
    decimal = _DECIMAL.fullmatch(name)
    if decimal:
        precision, scale = int(decimal[1]), int(decimal[2])
        if 1 <= precision <= 38 and scale <= precision:
            return pa.decimal128(precision, scale)
    raise Usage(f"type {name!r} cannot be a column of a state table: expected one of {_KNOWN}")


def from_arrow(arrow_type: pa.DataType) -> str:
    """The name under which a manifest keeps `arrow_type`.

    Types that hold the same values in another layout get one name: large and view variants of string and
    binary the plain one's, a timestamp in any time zone UTC's (an Arrow timestamp with a zone counts from UTC
    anyway).

    Raises:
        Usage: no column of a state table can have this type.
    """
    types = pa.types
    if types.is_large_string(arrow_type) or types.is_string_view(arrow_type):
        return "string"
    if types.is_large_binary(arrow_type) or types.is_binary_view(arrow_type):
        return "binary"
    if types.is_timestamp(arrow_type) and arrow_type.unit == "us" and arrow_type.tz is not None:
        return "timestamp[us, tz=UTC]"
    name = str(arrow_type)
    return str(to_arrow(name))


def arrow_schema(columns: Iterable[Column]) -> pa.Schema:
    """The Arrow schema of these columns, all nullable.

    Raises:
        Usage: a column's type is not one that state tables have.
    """
    return pa.schema([pa.field(column.name, to_arrow(column.type)) for column in columns])


@lru_cache(maxsize=256)
def sst_schema(table: Table) -> pa.Schema:
    """The schema of the table's SSTs: `_hash`, key columns, value columns, `_seq`, `_op`, and with a ttl `_expires_at`.

    Those written before the table got a ttl lack `_expires_at`: see `stored_schema`.

    Raises:
        Usage: a column's type is not one that state tables have.
    """
    return pa.schema(
        [
            pa.field(HASH, pa.int64(), nullable=False),
            *arrow_schema(table.key),
            *arrow_schema(table.values),
            pa.field(SEQ, pa.int64(), nullable=False),
            pa.field(OP, pa.uint8(), nullable=False),
            *([pa.field(EXPIRES, pa.int64())] if table.ttl is not None else []),
        ]
    )


def stored_schema(schema: pa.Schema, found: pa.Schema) -> pa.Schema:
    """The schema of a table's SSTs (`sst_schema`) in the form of one SST: with `_expires_at` if that one has it."""
    at = schema.get_field_index(EXPIRES)
    has = found.get_field_index(EXPIRES) >= 0
    if has == (at >= 0):
        return schema
    return schema.append(pa.field(EXPIRES, pa.int64())) if has else schema.remove(at)
