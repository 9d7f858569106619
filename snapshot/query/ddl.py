"""A channel's columns, from the DDL string of its manifest: Spark's names for types, as Arrow types.

The types are those in which pyspark hands these columns to Arrow.
"""

import pyarrow as pa

from ...errors import Corruption
from ...store.versions import spark_ddl
from ...store.versions.spark_ddl import Fields, Type

__all__ = ["arrow_of"]

_PLAIN = {
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
    "void": pa.null(),
}


def arrow_of(ddl: str) -> pa.Schema:
    """The schema of "`name` type, `name` type". Raises `Corruption` for anything else."""
    try:
        columns = spark_ddl.parse(ddl)
    except ValueError:
        raise Corruption(f"a channel's columns are {ddl!r}; expected a Spark DDL string", object_key="") from None
    return pa.schema(_fields(columns))


def _fields(columns: Fields) -> list[pa.Field]:
    return [pa.field(name, _arrow(kind)) for name, kind in columns]


def _arrow(kind: Type) -> pa.DataType:
    match kind:
        case Type("array", (element,)):
            return pa.list_(_arrow(element))
        case Type("map", (key, value)):
            return pa.map_(_arrow(key), _arrow(value))
        case Type("struct", fields=fields):
            return pa.struct(_fields(fields))
        case Type("decimal", numbers=(precision, scale)) if 0 < precision <= 38 and scale <= precision:
            return pa.decimal128(precision, scale)
        case Type("char" | "varchar"):
            return pa.string()
    if kind.name not in _PLAIN:
        raise Corruption(f"a channel has a column of type {kind.name!r}, which is not known here", object_key="")
    return _PLAIN[kind.name]
