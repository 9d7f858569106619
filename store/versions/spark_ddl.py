"""A channel's columns in a manifest: a Spark DDL string, as a tree. Pure, so that reading a manifest needs no Arrow.

Written by Spark's `simpleString`; only what that writes is understood. Which types there are, it does not say.
"""

import re
from dataclasses import dataclass
from functools import lru_cache

__all__ = ["Fields", "Type", "parse"]

_TOKEN = re.compile(r"`(?:[^`]|``)*`|[^\s<>(),:`][^<>(),:`]*|[<>(),:]|\S")
_MAX_DEPTH = 64
"""Of types within types; what a damaged manifest could hold must not exhaust the stack."""
_MAX_CACHED = 1 << 16


@dataclass(frozen=True, slots=True)
class Type:
    """A type by its name, in small letters, with what stands behind it."""

    name: str
    inside: tuple["Type", ...] = ()
    """`array<inside>`, `map<inside, inside>`."""
    fields: "Fields" = ()
    """`struct<name: type, …>`."""
    numbers: tuple[int, ...] = ()
    """`decimal(10,2)`."""


Fields = tuple[tuple[str, Type], ...]


def parse(ddl: str) -> Fields:
    """The columns of "`name` type, `name` type". Raises `ValueError` for anything else."""
    return _cached(ddl) if len(ddl) <= _MAX_CACHED else _parse(ddl)


def _parse(ddl: str) -> Fields:
    tokens = _Tokens(ddl)
    fields = []
    while tokens.next:
        fields.append((tokens.column(), tokens.type(0)))
        if tokens.next:
            tokens.take(",")
    return tuple(fields)


_cached = lru_cache(maxsize=256)(_parse)


class _Tokens:
    def __init__(self, ddl: str) -> None:
        # Fields of a struct are not quoted, and may have spaces inside.
        self._rest = (match[0].strip() for match in _TOKEN.finditer(ddl))
        self.next = next(self._rest, "")

    def take(self, *expected: str) -> str:
        taken, self.next = self.next, next(self._rest, "")
        if not taken or (expected and taken not in expected):
            raise ValueError(f"expected {' or '.join(expected) or 'more'}, found {taken or 'the end'}")
        return taken

    def word(self) -> str:
        taken = self.take()
        if taken in "<>(),:":
            raise ValueError(f"expected a word, found {taken}")
        return taken

    def name(self) -> str:
        token = self.word()
        return token[1:-1].replace("``", "`") if token.startswith("`") else token

    def column(self) -> str:
        """A name at the top, where one without quotes ends with a space."""
        if not self.next.startswith("`"):
            name, *rest = self.next.split(maxsplit=1) or [""]
            if name and rest:
                self.next = rest[0]
                return name
        return self.name()

    def type(self, depth: int) -> Type:
        kind = self.word().casefold()
        if depth > _MAX_DEPTH:
            raise ValueError("types within types within types")
        if kind == "array":
            self.take("<")
            element = self.type(depth + 1)
            self.take(">")
            return Type(kind, (element,))
        if kind == "map":
            self.take("<")
            key = self.type(depth + 1)
            self.take(",")
            value = self.type(depth + 1)
            self.take(">")
            return Type(kind, (key, value))
        if kind == "struct":
            return Type(kind, fields=self._struct(depth + 1))
        return Type(kind, numbers=self._numbers() if self.next == "(" else ())

    def _struct(self, depth: int) -> Fields:
        fields = []
        self.take("<")
        while self.next != ">":
            name = self.name()
            self.take(":")
            fields.append((name, self.type(depth)))
            if self.next != ">":
                self.take(",")
        self.take(">")
        return tuple(fields)

    def _numbers(self) -> tuple[int, ...]:
        self.take("(")
        numbers = [int(self.take())]
        while self.next != ")":
            self.take(",")
            numbers.append(int(self.take()))
        self.take(")")
        return tuple(numbers)
