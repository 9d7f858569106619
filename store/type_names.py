"""Names of column types in manifests, to Arrow types and back.

A plain type has Arrow's own name. Nested ones are `struct<origin: string, at: timestamp[us]>`, `list<int64>` and
`map<string, double>`; a field's name that is no plain word stands between backticks, as in SQL.
"""

import re
from collections.abc import Sequence

import pyarrow as pa

from .errors import Usage

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
_DECIMAL = re.compile(r"decimal128\((\d+), ?(\d+)\)")
_KNOWN = ", ".join([*(str(t) for t in _TYPES), "decimal128(p, s)"]) + ", or a struct, list or map of these"
_WORD = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_TOKEN = re.compile(r"\s*(`(?:[^`]|``)+`|[<>:,]|[A-Za-z_]\w*(?:\[[^\]]*\]|\([^)]*\))?)", re.ASCII)
_MAX_DEPTH = 32
"""Of types within types; what a damaged manifest could hold must not exhaust the stack."""


def to_arrow(name: str) -> pa.DataType:
    """The Arrow type that a manifest's `Column.type` names.

    Raises:
        Usage: no column of a state table can have this type.
    """
    return _Parser(name).whole()


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
        _check_names(str(arrow_type), [field.name for field in fields])
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
        raise _unknown(name)
    return str(plain)


def _plain(name: str) -> pa.DataType | None:
    known = _BY_NAME.get(name)
    decimal = _DECIMAL.fullmatch(name)
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


class _Parser:
    """Reads one name from its beginning to its end."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._at = 0

    def whole(self) -> pa.DataType:
        found = self._type(0)
        if self._name[self._at :].strip():
            raise _unknown(self._name)
        return found

    def _type(self, depth: int) -> pa.DataType:
        kind = self._take()
        if depth < _MAX_DEPTH and kind in ("struct", "list", "map"):
            self._take("<")
            made = getattr(self, f"_{kind}")(depth + 1)
            self._take(">")
            return made
        plain = _plain(kind)
        if plain is None:
            raise _unknown(self._name)
        return plain

    def _struct(self, depth: int) -> pa.DataType:
        fields = [self._field(depth)]
        while self._next() == ",":
            self._take(",")
            fields.append(self._field(depth))
        _check_names(self._name, [field.name for field in fields])
        return pa.struct(fields)

    def _list(self, depth: int) -> pa.DataType:
        return pa.list_(self._type(depth))

    def _map(self, depth: int) -> pa.DataType:
        key = self._type(depth)
        self._take(",")
        return pa.map_(key, self._type(depth))

    def _field(self, depth: int) -> pa.Field:
        name = self._take()
        self._take(":")
        return pa.field(name[1:-1].replace("``", "`") if name.startswith("`") else name, self._type(depth))

    def _next(self) -> str:
        match = _TOKEN.match(self._name, self._at)
        return match[1] if match else ""

    def _take(self, expected: str = "") -> str:
        match = _TOKEN.match(self._name, self._at)
        if match is None or (expected and match[1] != expected):
            raise _unknown(self._name)
        self._at = match.end()
        return match[1]


def _quoted(name: str) -> str:
    return name if _WORD.fullmatch(name) else f"`{name.replace('`', '``')}`"


def _check_names(what: str, names: Sequence[str]) -> None:
    """Raise `Usage` for a struct that Parquet or DuckDB could not hold."""
    if not names or not all(names) or len({name.casefold() for name in names}) < len(names):
        raise Usage(
            f"type {what!r} cannot be a column of a state table: "
            "expected a struct with fields whose names differ, not in case alone"
        )


def _unknown(name: str) -> Usage:
    return Usage(f"type {name!r} cannot be a column of a state table: expected one of {_KNOWN}")
