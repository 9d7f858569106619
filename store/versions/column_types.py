"""Types of columns as manifests spell them, read into one tree: a table's by Arrow's names, a channel's as Spark DDL.

Both spell `struct<name: type, …>` and `map<type, type>`; a list is `list<type>` or `array<type>`. A plain type is its
name (`int64` or `bigint`), perhaps with numbers behind it. A field's name stands between backticks where it is no word;
Spark leaves them out within a struct. Pure, so that reading a manifest needs no Arrow.
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
"""Arrow's names of the types that a table's columns are made of, but for decimals."""
_DECIMAL = re.compile(r"decimal(?:128)?\((\d{1,2}), ?(\d{1,2})\)")
_KNOWN = ", ".join([*_NAMES, "decimal128(p, s)"])
# Spark does not quote the fields of a struct, which may have spaces inside.
_TOKEN = re.compile(r"`(?:[^`]|``)*`|(?!\s)(?:\[us, tz=UTC\]|[^<>(),:`])+(?:\([\d, ]*\))?|\S")
_NESTED = {"struct": "struct", "map": "map", "list": "list", "array": "list"}
_MAX_DEPTH = 64
"""Of types within types; what a damaged manifest could hold must not exhaust the stack."""
_MAX_CACHED = 1 << 16


@dataclass(frozen=True, slots=True)
class Type:
    """A type by its name, and the types inside."""

    name: str
    """`struct`, `map`, `list`, or a plain type as it is spelled."""
    inside: tuple["Type", ...] = ()
    """Of a struct's fields, a map's key and value, a list's elements."""
    fields: tuple[str, ...] = ()
    """The names of a struct's fields."""


@lru_cache(maxsize=1024)
def parse(name: str) -> Type:
    """The type that a `Column.type` names. Raises `Usage` where no column of a state table can have it."""
    try:
        tokens = _Tokens(name)
        kind = tokens.type(0)
        tokens.take("")
        _check_storable(name, kind)
    except ValueError:
        raise unknown(name) from None
    return kind


def parse_ddl(ddl: str) -> tuple[tuple[str, Type], ...]:
    """The columns of "`name` type, `name` type", as Spark's `simpleString` writes them, whatever types they have.

    Raises `ValueError` where it is something else.
    """
    return _parse_ddl(ddl) if len(ddl) <= _MAX_CACHED else _parse_ddl.__wrapped__(ddl)


@lru_cache(maxsize=256)
def _parse_ddl(ddl: str) -> tuple[tuple[str, Type], ...]:
    tokens = _Tokens(ddl)
    columns = []
    while tokens.next:
        columns.append((tokens.column(), tokens.type(0)))
        if tokens.next:
            tokens.take(",")
    return tuple(columns)


def in_backticks(name: str) -> str:
    """Return a name as Spark's SQL, DDL and `F.col` take it, whatever it is: without them a dot means a field."""
    return "`" + name.replace("`", "``") + "`"


class _Tokens:
    """Reads a text from its beginning to its end; `next` is "" there. Raises `ValueError` for what is not expected."""

    def __init__(self, text: str) -> None:
        self._rest = (match[0].strip() for match in _TOKEN.finditer(text))
        self.next = next(self._rest, "")

    def take(self, expected: str) -> None:
        if self.next != expected:
            raise ValueError(f"expected {expected or 'the end'}, found {self.next or 'the end'}")
        self.next = next(self._rest, "")

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
        """A name at the top of DDL, where one without quotes ends with a space."""
        name, _, rest = self.next.partition(" ")
        if name and rest and not name.startswith("`"):
            self.next = rest.strip()
            return name
        return self.name()

    def type(self, depth: int) -> Type:
        word = self.word()
        name = _NESTED.get(word)
        if name is None:
            return Type(word)
        if depth > _MAX_DEPTH:
            raise ValueError("types within types within types")
        fields: list[str] = []
        inside: list[Type] = []
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
        return Type(name, tuple(inside), tuple(fields))


def _check_storable(what: str, kind: Type) -> None:
    if kind.name == "struct":
        check_field_names(what, kind.fields)
    elif not kind.inside and not is_plain(kind.name):
        raise unknown(what)
    for each in kind.inside:
        _check_storable(what, each)


def is_plain(name: str) -> bool:
    """Whether this is Arrow's name of a plain type that a table's columns can have."""
    return name in _PLAIN or (name.startswith("decimal128") and decimal(name) is not None)


def decimal(name: str) -> tuple[int, int] | None:
    """Precision and scale of `decimal128(p, s)` or `decimal(p,s)`; None for what is no decimal, or none that exists."""
    found = _DECIMAL.fullmatch(name)
    precision, scale = (int(found[1]), int(found[2])) if found else (0, 0)
    return (precision, scale) if 1 <= precision <= 38 and scale <= precision else None


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


class FieldSource(Struct, frozen=True):
    """A field of an input's records from which values of a column come."""

    input: limits.Topic
    """The input's name as declared."""
    field: limits.Line = ""
    """Where it is in a record, as `snapshot.query.fields` reads it; empty where only the program knows."""
    by: Annotated[tuple[limits.Line, ...], limits.RENAMES] = ()
    """The functions that make the column's value of the field's, in SQL's names, the first one first."""
    format: limits.Line = ""
    """How the bytes are decoded, as `pipeline.messages.decode.described` writes it; empty for JSON and text."""


Lineage: TypeAlias = dict[limits.Line, tuple[FieldSource, ...]]
"""Sources of columns, by name. Columns that are not in it may come from anything."""
