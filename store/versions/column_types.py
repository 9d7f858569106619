"""Parser of column types: Arrow's names in tables, and Spark DDL in channels. Both become a `ColumnType`.

Both forms write `struct<name: type, …>` and `map<type, type>`; a list is `list<type>` or `array<type>`. A plain type is
a name (`int64` or `bigint`), with or without numbers (`decimal(10, 2)`). A field's name is in backticks unless it is a
word; Spark omits the backticks within a struct. Pure Python, so that reading a manifest does not load Arrow.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, TypeAlias

from msgspec import Struct

from ...errors import Usage
from . import limits

_TIMES = ("date32[day]", "timestamp[us]", "timestamp[us, tz=UTC]")
_NAMES = ("string", "binary", "bool", "int8", "int16", "int32", "int64", "float", "double", *_TIMES)
_PLAIN = frozenset((*_NAMES, "date32"))
_DECIMAL = re.compile(r"decimal(?:128)?\((\d{1,2}), ?(\d{1,2})\)")
_KNOWN = ", ".join([*_NAMES, "decimal128(p, s)"])
# Spark does not quote field names in a struct, even with spaces.
_TOKEN = re.compile(r"`(?:[^`]|``)*`|(?!\s)(?:\[us, tz=UTC\]|[^<>(),:`])+(?:\([\d, ]*\))?|\S")
_NESTED = {"struct": "struct", "map": "map", "list": "list", "array": "list"}
_MAX_DEPTH = 64
_MAX_CACHED = 1 << 16


@dataclass(frozen=True, slots=True)
class ColumnType:
    """A column type with its nested types."""

    name: str
    children: tuple["ColumnType", ...] = ()
    """Types of a struct's fields, of a map's key and value, or of a list's elements."""
    fields: tuple[str, ...] = ()


@lru_cache(maxsize=1024)
def parse_type(name: str) -> ColumnType:
    """Parse the type of a table's column. Raises `Usage` for a type that tables do not support."""
    try:
        tokens = _Tokens(name)
        kind = tokens.type(0)
        tokens.take("")
        _check_storable(name, kind)
    except ValueError:
        raise unknown_type_error(name) from None
    return kind


def parse_ddl(ddl: str) -> tuple[tuple[str, ColumnType], ...]:
    """Parse Spark DDL, "`name` type, `name` type", into columns. Raises `ValueError`."""
    return _parse_ddl(ddl) if len(ddl) <= _MAX_CACHED else _parse_ddl.__wrapped__(ddl)


@lru_cache(maxsize=256)
def _parse_ddl(ddl: str) -> tuple[tuple[str, ColumnType], ...]:
    tokens = _Tokens(ddl)
    columns = []
    while tokens.next:
        columns.append((tokens.column(), tokens.type(0)))
        if tokens.next:
            tokens.take(",")
    return tuple(columns)


def quote_for_spark(name: str) -> str:
    """Return a name in backticks, for Spark's SQL, DDL and `F.col`, where an unquoted dot selects a field."""
    return "`" + name.replace("`", "``") + "`"


class _Tokens:
    """Tokens of a type's text. `next` is "" at the end. Methods raise `ValueError` for an unexpected token."""

    def __init__(self, text: str) -> None:
        self._remaining = (match[0].strip() for match in _TOKEN.finditer(text))
        self.next = next(self._remaining, "")

    def take(self, expected: str) -> None:
        if self.next != expected:
            raise ValueError(f"expected {expected or 'the end'}, found {self.next or 'the end'}")
        self.next = next(self._remaining, "")

    def word(self) -> str:
        word = self.next
        if word in ("", "`", *"<>(),:"):
            raise ValueError(f"expected a word, found {word or 'the end'}")
        self.take(word)
        return word

    def name(self) -> str:
        word = self.word()
        return word[1:-1].replace("``", "`") if word.startswith("`") else word

    def column(self) -> str:
        name, _, remainder = self.next.partition(" ")
        if name and remainder and not name.startswith("`"):
            self.next = remainder.strip()
            return name
        return self.name()

    def type(self, depth: int) -> ColumnType:
        word = self.word()
        name = _NESTED.get(word)
        if name is None:
            return ColumnType(word)
        if depth > _MAX_DEPTH:
            raise ValueError("types within types within types")
        fields: list[str] = []
        inside: list[ColumnType] = []
        self.take("<")
        while self.next != ">":
            if inside:
                self.take(",")
            if name == "struct":
                fields.append(self.name())
                self.take(":")
            inside.append(self.type(depth + 1))
        self.take(">")
        if len(inside) != {"list": 1, "map": 2}.get(name, len(inside)):
            raise ValueError(f"a {name} of {len(inside)} types")
        return ColumnType(name, tuple(inside), tuple(fields))


def _check_storable(name: str, kind: ColumnType) -> None:
    if kind.name == "struct":
        check_field_names(name, kind.fields)
    elif not kind.children and not is_plain(kind.name):
        raise unknown_type_error(name)
    for child in kind.children:
        _check_storable(name, child)


def is_plain(name: str) -> bool:
    return name in _PLAIN or (name.startswith("decimal128") and parse_decimal(name) is not None)


def parse_decimal(name: str) -> tuple[int, int] | None:
    """Return the precision and scale of a decimal type; None if the name is not a valid decimal type."""
    match = _DECIMAL.fullmatch(name)
    precision, scale = (int(match[1]), int(match[2])) if match else (0, 0)
    return (precision, scale) if 1 <= precision <= 38 and scale <= precision else None


def check_field_names(type_name: str, names: Sequence[str]) -> None:
    """Raise `Usage` for field names of a struct that Parquet or DuckDB cannot store."""
    if not names or not all(names) or len({name.casefold() for name in names}) < len(names):
        raise Usage(
            f"type {type_name!r} cannot be a column of a state table: "
            "expected a struct with fields whose names differ, not in case alone"
        )


def unknown_type_error(name: str) -> Usage:
    return Usage(
        f"type {name!r} cannot be a column of a state table: expected one of {_KNOWN}, "
        "or a struct, list or map of these"
    )


class FieldSource(Struct, frozen=True):
    """A field of an input's records from which a column is computed."""

    input: limits.Topic
    field: limits.ShortText = ""
    """Path in a record (`snapshot.query.fields`); empty if only the program knows the field."""
    by: Annotated[tuple[limits.ShortText, ...], limits.AT_MOST_1000] = ()
    """SQL functions that are applied to the field's value, innermost first."""
    format: limits.ShortText = ""
    """Decoding of the record (`pipeline.messages.decode.described`); empty for JSON and text."""


Lineage: TypeAlias = dict[limits.ShortText, tuple[FieldSource, ...]]
"""Sources of columns, by column name. A column that is missing here may depend on anything."""
