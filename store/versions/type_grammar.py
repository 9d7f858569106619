"""The grammar of column types in manifests, as a tree: pure, so that reading a manifest needs no Arrow.

A plain type is its name. Nested ones are `struct<origin: string, at: timestamp[us]>`, `list<int64>` and
`map<string, double>`; a field's name that is no plain word stands between backticks, as in SQL.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from ...errors import Usage

__all__ = ["DECIMAL", "PLAIN", "ListOf", "MapOf", "StructOf", "Tree", "check_field_names", "parse", "unknown"]

PLAIN = (
    "string",
    "binary",
    "bool",
    "int8",
    "int16",
    "int32",
    "int64",
    "float",
    "double",
    "date32[day]",
    "date32",
    "timestamp[us]",
    "timestamp[us, tz=UTC]",
)
"""Arrow's names of the types that are not made of others, but for decimals."""
DECIMAL = re.compile(r"decimal128\((\d{1,2}), ?(\d{1,2})\)")
_KNOWN = ", ".join([*(name for name in PLAIN if name != "date32"), "decimal128(p, s)"])
_TOKEN = re.compile(r"\s*(`(?:[^`]|``)+`|[<>:,]|[A-Za-z_]\w*(?:\[[^\]]*\]|\([^)]*\))?)", re.ASCII)
_MAX_DEPTH = 32
"""Of types within types; what a damaged manifest could hold must not exhaust the stack."""


@dataclass(frozen=True, slots=True)
class ListOf:
    """A list."""

    element: "Tree"


@dataclass(frozen=True, slots=True)
class MapOf:
    """A map."""

    key: "Tree"
    value: "Tree"


@dataclass(frozen=True, slots=True)
class StructOf:
    """A struct: its fields' names and types."""

    fields: tuple[tuple[str, "Tree"], ...]


Tree = str | ListOf | MapOf | StructOf


@lru_cache(maxsize=1024)
def parse(name: str) -> Tree:
    """The type that a manifest's `Column.type` names.

    Raises:
        Usage: no column of a state table can have this type.
    """
    return _Parser(name).whole()


class _Parser:
    """Reads one name from its beginning to its end."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._at = 0

    def whole(self) -> Tree:
        found = self._type(0)
        if self._name[self._at :].strip():
            raise unknown(self._name)
        return found

    def _type(self, depth: int) -> Tree:
        kind = self._take()
        if depth < _MAX_DEPTH and kind in ("struct", "list", "map"):
            self._take("<")
            made: Tree = getattr(self, f"_{kind}")(depth + 1)
            self._take(">")
            return made
        if kind not in PLAIN and not _is_decimal(kind):
            raise unknown(self._name)
        return kind

    def _struct(self, depth: int) -> StructOf:
        fields = [self._field(depth)]
        while self._next() == ",":
            self._take(",")
            fields.append(self._field(depth))
        check_field_names(self._name, [name for name, _ in fields])
        return StructOf(tuple(fields))

    def _list(self, depth: int) -> ListOf:
        return ListOf(self._type(depth))

    def _map(self, depth: int) -> MapOf:
        key = self._type(depth)
        self._take(",")
        return MapOf(key, self._type(depth))

    def _field(self, depth: int) -> tuple[str, Tree]:
        name = self._take()
        self._take(":")
        return (name[1:-1].replace("``", "`") if name.startswith("`") else name), self._type(depth)

    def _next(self) -> str:
        match = _TOKEN.match(self._name, self._at)
        return match[1] if match else ""

    def _take(self, expected: str = "") -> str:
        match = _TOKEN.match(self._name, self._at)
        if match is None or (expected and match[1] != expected):
            raise unknown(self._name)
        self._at = match.end()
        return match[1]


def _is_decimal(kind: str) -> bool:
    decimal = DECIMAL.fullmatch(kind)
    return decimal is not None and 1 <= int(decimal[1]) <= 38 and int(decimal[2]) <= int(decimal[1])


def check_field_names(what: str, names: Sequence[str]) -> None:
    """Raise `Usage` for a struct that Parquet or DuckDB could not hold."""
    if not names or not all(names) or len({name.casefold() for name in names}) < len(names):
        raise Usage(
            f"type {what!r} cannot be a column of a state table: "
            "expected a struct with fields whose names differ, not in case alone"
        )


def unknown(name: str) -> Usage:
    """The error for a type that no column can have."""
    return Usage(
        f"type {name!r} cannot be a column of a state table: expected one of {_KNOWN}, "
        "or a struct, list or map of these"
    )
