"""A channel's columns, from the DDL string of its manifest: Spark's names for types, as Arrow types.

Written by Spark's `simpleString`; only what that writes is understood. The types are those in which pyspark hands
these columns to Arrow.
"""

import re
from collections.abc import Iterator

import pyarrow as pa

from ..store.errors import Corruption

__all__ = ["arrow_of"]

_TOKEN = re.compile(r"`(?:[^`]|``)*`|[^\s<>(),:`][^<>(),:`]*|[<>(),:]")
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
    tokens = _Tokens(ddl)
    fields = []
    while tokens.next:
        fields.append(pa.field(tokens.name(), tokens.type()))
        if tokens.next:
            tokens.take(",")
    return pa.schema(fields)


class _Tokens:
    def __init__(self, ddl: str) -> None:
        self._ddl = ddl
        # Fields of a struct are not quoted, and may have spaces inside.
        self._rest: Iterator[str] = (token.strip() for token in _TOKEN.findall(ddl))
        self.next = next(self._rest, "")

    def take(self, *expected: str) -> str:
        taken, self.next = self.next, next(self._rest, "")
        if not taken or (expected and taken not in expected):
            raise Corruption(f"a channel's columns are {self._ddl!r}; expected a Spark DDL string", object_key="")
        return taken

    def name(self) -> str:
        token = self.take()
        return token[1:-1].replace("``", "`") if token.startswith("`") else token

    def type(self) -> pa.DataType:
        kind = self.take().casefold()
        if kind == "array":
            self.take("<")
            element = self.type()
            self.take(">")
            return pa.list_(element)
        if kind == "map":
            self.take("<")
            key = self.type()
            self.take(",")
            value = self.type()
            self.take(">")
            return pa.map_(key, value)
        if kind == "struct":
            return self._struct()
        if kind in ("decimal", "char", "varchar"):
            numbers = self._numbers()
            return pa.decimal128(*numbers) if kind == "decimal" else pa.string()
        if kind not in _PLAIN:
            raise Corruption(f"a channel has a column of type {kind!r}, which is not known here", object_key="")
        return _PLAIN[kind]

    def _struct(self) -> pa.DataType:
        fields = []
        self.take("<")
        while self.next != ">":
            name = self.name()
            self.take(":")
            fields.append(pa.field(name, self.type()))
            if self.next != ">":
                self.take(",")
        self.take(">")
        return pa.struct(fields)

    def _numbers(self) -> list[int]:
        self.take("(")
        numbers = []
        while self.next != ")":
            numbers.append(int(self.take()))
            if self.next != ")":
                self.take(",")
        self.take(")")
        return numbers
