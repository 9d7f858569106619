"""Names of column types in manifests, to Arrow types and back.

`type_grammar` says how they are written.
"""

import re
from functools import lru_cache

import pyarrow as pa

from ..versions import type_grammar
from ..versions.type_grammar import ListOf, MapOf, StructOf, Tree, check_field_names, unknown

__all__ = ["from_arrow", "to_arrow"]

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
_WORD = re.compile(r"[A-Za-z_]\w*", re.ASCII)


@lru_cache(maxsize=1024)
def to_arrow(name: str) -> pa.DataType:
    """The Arrow type that a manifest's `Column.type` names.

    Raises:
        Usage: no column of a state table can have this type.
    """
    return _made(type_grammar.parse(name))


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
    name = str(arrow_type)
    plain = _plain(name)
    if plain is None:
        raise unknown(name)
    return str(plain)


def _made(tree: Tree) -> pa.DataType:
    match tree:
        case ListOf(element):
            return pa.list_(_made(element))
        case MapOf(key, value):
            return pa.map_(_made(key), _made(value))
        case StructOf(fields):
            return pa.struct([pa.field(name, _made(kind)) for name, kind in fields])
        case _:
            return _plain(tree)


def _plain(name: str) -> pa.DataType | None:
    known = _BY_NAME.get(name)
    decimal = type_grammar.DECIMAL.fullmatch(name)
    if known is None and decimal:
        precision, scale = int(decimal[1]), int(decimal[2])
        if 1 <= precision <= 38 and scale <= precision:
            return pa.decimal128(precision, scale)
    return known


def _is_list(kind: pa.DataType) -> bool:
    types = pa.types
    return bool(
        types.is_list(kind)
        or types.is_large_list(kind)
        or types.is_list_view(kind)
        or types.is_large_list_view(kind)
        or types.is_fixed_size_list(kind)
    )


def _quoted(name: str) -> str:
    return name if _WORD.fullmatch(name) else f"`{name.replace('`', '``')}`"
