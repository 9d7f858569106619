"""Types of columns in manifests (`column_types`) to Arrow types and back."""

import re
from functools import lru_cache

import pyarrow as pa

from ..versions.column_types import Type, check_field_names, decimal, is_plain, parse, parse_ddl, unknown

_PLAIN: dict[str, pa.DataType] = {
    **{
        name: pa.type_for_alias(name)
        for name in ("string", "binary", "bool", "int8", "int16", "int32", "int64", "float", "double", "date32")
    },
    "date32[day]": pa.date32(),
    "timestamp[us]": pa.timestamp("us"),
    "timestamp[us, tz=UTC]": pa.timestamp("us", "UTC"),
    # Spark's names, as the types in which pyspark hands such columns to Arrow.
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
    "void": pa.null(),
}
_TEXT = re.compile(r"(?:var)?char(?:\(\d+\))?")
_WORD = re.compile(r"[A-Za-z_]\w*", re.ASCII)


def schema_of(ddl: str) -> pa.Schema:
    """The columns of a channel, from a Spark DDL string, "`name` type, `name` type".

    Raises:
        ValueError: it is no such string.
        KeyError: as `arrow_type`.
    """
    return pa.schema([(name, arrow_type(kind)) for name, kind in parse_ddl(ddl)])


@lru_cache(maxsize=1024)
def to_arrow(name: str) -> pa.DataType:
    """The Arrow type that a `Column.type` names.

    Raises:
        Usage: no column of a state table can have this type.
    """
    return arrow_type(parse(name))


def arrow_type(kind: Type) -> pa.DataType:
    """The Arrow type of a tree.

    Raises:
        KeyError: a plain type in it is neither one of a table's columns nor one of Spark's.
    """
    inside = [arrow_type(each) for each in kind.inside]
    match kind.name:
        case "struct":
            return pa.struct(list(zip(kind.fields, inside, strict=True)))
        case "map":
            return pa.map_(*inside)
        case "list":
            return pa.list_(*inside)
    if digits := decimal(kind.name):
        return pa.decimal128(*digits)
    return pa.string() if _TEXT.fullmatch(kind.name) else _PLAIN[kind.name]


def from_arrow(arrow_type: pa.DataType) -> str:
    """The name under which a manifest keeps `arrow_type`.

    Types that hold the same values in another layout get one name: large and view variants of string, binary and list
    the plain one's, a timestamp in any time zone UTC's (an Arrow timestamp with a zone counts from UTC anyway). Fields
    of a struct and elements of a list may always be null.

    Raises:
        Usage: no column of a state table can have this type.
    """
    types = pa.types
    if types.is_struct(arrow_type):
        fields = [arrow_type.field(number) for number in range(arrow_type.num_fields)]
        check_field_names(str(arrow_type), [field.name for field in fields])
        return f"struct<{', '.join(f'{_quoted(field.name)}: {from_arrow(field.type)}' for field in fields)}>"
    if types.is_map(arrow_type):
        return f"map<{from_arrow(arrow_type.key_type)}, {from_arrow(arrow_type.item_type)}>"
    if _is_list(arrow_type):
        return f"list<{from_arrow(arrow_type.value_type)}>"
    if types.is_large_string(arrow_type) or types.is_string_view(arrow_type):
        return "string"
    if types.is_large_binary(arrow_type) or types.is_binary_view(arrow_type):
        return "binary"
    if types.is_timestamp(arrow_type) and arrow_type.unit == "us" and arrow_type.tz is not None:
        return "timestamp[us, tz=UTC]"
    if not is_plain(str(arrow_type)):
        raise unknown(str(arrow_type))
    return str(arrow_type)


def _is_list(kind: pa.DataType) -> bool:
    of = pa.types
    kinds = (of.is_list, of.is_large_list, of.is_list_view, of.is_large_list_view, of.is_fixed_size_list)
    return any(is_one(kind) for is_one in kinds)


def _quoted(name: str) -> str:
    return name if _WORD.fullmatch(name) else f"`{name.replace('`', '``')}`"
