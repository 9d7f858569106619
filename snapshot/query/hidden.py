"""Pseudonyms in place of values, for SQL of users who may not see values.

Each column of a view becomes a column of UUIDs, computed from the values with a secret before the statement sees them.
Equal values have equal pseudonyms, and nothing else of a value is revealed, whatever the statement does. DuckDB
compares UUIDs only with UUIDs, and has no arithmetic and no function on a UUID that reveals the value.
"""

import re
import secrets
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time
from decimal import Decimal
from functools import lru_cache
from hashlib import blake2b
from threading import Lock
from typing import Any

import duckdb
import pyarrow as pa
from cachetools import LRUCache
from duckdb.func import PythonUDFType

from ...store.read.duckdb_view import quoted
from ...store.sst.arrow_types import hexadecimal, python_values

NAME = r"0{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"
"""Regular expression of pseudonyms. No UUID that a program generates has this prefix."""
_BEGIN = "00000000-"
_BEHIND = re.compile(r"[0-9a-f]{32} ")
_REMEMBERED = 50_000
_REMEMBERED_BYTES = 1_000


@dataclass(frozen=True, slots=True)
class Names:
    """Pseudonyms by one secret. The values behind the newest pseudonyms are remembered. Thread-safe."""

    secret: bytes = field(default_factory=lambda: secrets.token_bytes(32))
    values: LRUCache[str, object] = field(default_factory=lambda: LRUCache(_REMEMBERED))
    lock: Lock = field(default_factory=Lock)

    def name(self, value: object) -> str | None:
        """Return the pseudonym of a value; None for null. Bytes must be given in hexadecimal."""
        if value is None:
            return None
        value = hexadecimal(value)
        data = _canonical(value)
        digest = blake2b(data, digest_size=12, key=self.secret).hexdigest()
        name = f"{_BEGIN}{digest[:4]}-{digest[4:8]}-{digest[8:12]}-{digest[12:]}"
        if len(data) <= _REMEMBERED_BYTES:
            with self.lock:
                self.values[name] = value
        return name

    def named(self, column: pa.Array | pa.ChunkedArray) -> pa.Array:
        try:
            return pa.array(map(self.name, python_values(column)), pa.string())
        except Exception:
            # The error may quote a value.
            raise ValueError("a value cannot be named") from None

    def known(self, rows: pa.Table) -> dict[str, object]:
        """Return the remembered values behind the pseudonyms in these rows, by pseudonym."""
        texts = {text for column in rows.columns if pa.types.is_string(column.type) for text in column.to_pylist()}
        with self.lock:
            return {name: self.values[name] for name in texts if name is not None and name in self.values}

    def learn(self, named: Mapping[str, object]) -> None:
        with self.lock:
            self.values.update(named)

    def restored(self, rows: pa.Table) -> pa.Table:
        """Return the rows with values in place of pseudonyms, without columns that have an unknown pseudonym."""
        values_by_name = self.known(rows)
        for index in reversed(range(rows.num_columns)):
            column = rows.column(index)
            if not pa.types.is_string(column.type):
                continue
            texts = column.to_pylist()
            if not any(text is not None and text.startswith(_BEGIN) for text in texts):
                continue
            try:
                values = pa.array([None if text is None else values_by_name[text] for text in texts])
                rows = rows.set_column(index, rows.field(index).name, values)
            except (KeyError, pa.ArrowException):  # values of several types are no column
                rows = rows.remove_column(index)
        return rows


@lru_cache(maxsize=100)
def names_of(secret: bytes) -> Names:
    return Names(secret)


def is_behind(table: str) -> bool:
    return _BEHIND.match(table) is not None


class Cover:
    """Views of one connection that show pseudonyms. Statements cannot name the hidden tables behind the views.

    Args:
        con: connection.
        secret: secret of the pseudonyms; empty if values are shown.
    """

    def __init__(self, con: duckdb.DuckDBPyConnection, secret: bytes) -> None:
        self._con, self._names = con, names_of(secret) if secret else None
        self._salt = secrets.token_hex(16)
        self._functions: dict[tuple[str, bool], str] = {}

    def behind(self, name: str) -> str:
        """Return the name of the hidden table for the view `name`; `name` itself if values are shown."""
        return name if self._names is None else f"{self._salt} {name}"

    def selected(
        self,
        columns: Mapping[str, Any],
        shown: Collection[str] = (),
        order: Collection[str] = (),
        *,
        texts: bool = False,
    ) -> tuple[str, str]:
        """Return the SELECT list of a view, given the columns' types by name, and its ORDER BY clause.

        `shown` are columns that are not masked, since they reveal no values. With `texts`, bytes are decoded as text if
        possible.
        """
        if self._names is None:
            return "*", ""
        chosen = {
            name: quoted(name) if name in shown else f"{self._function(str(kind), texts=texts)}({quoted(name)})::UUID"
            for name, kind in columns.items()
        }
        # The stored order would reveal values: rows are stored by a hash that anyone can compute.
        by = f" ORDER BY {', '.join(chosen[name] for name in order)}" if order else ""
        return ", ".join(f"{expression} AS {quoted(name)}" for name, expression in chosen.items()), by

    def put(
        self, view: str, behind: str, shown: Collection[str] = (), order: Collection[str] = (), **how: bool
    ) -> None:
        """Create the view `view`, an SQL name, over a hidden table. Does nothing if values are shown.

        `order` are columns that identify a row.
        """
        if self._names is None:
            return
        relation = self._con.sql(f"FROM {quoted(behind)}")
        columns = dict(zip(relation.columns, relation.types, strict=True))
        chosen, by = self.selected(columns, shown, order, **how)
        self._con.execute(f"CREATE OR REPLACE VIEW {view} AS SELECT {chosen} FROM (SELECT * FROM {quoted(behind)}{by})")

    def _function(self, kind: str, *, texts: bool) -> str:
        names = self._names
        assert names is not None  # noqa: S101  only called with a secret
        if (kind, texts) not in self._functions:
            function = f"{self._salt}_{len(self._functions)}"
            named = (lambda column: names.named(_texts(column))) if texts and kind == "BLOB" else names.named
            self._con.create_function(function, named, [kind], "VARCHAR", type=PythonUDFType.ARROW)
            self._functions[kind, texts] = quoted(function)
        return self._functions[kind, texts]


def _texts(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    return pa.array([None if data is None else _utf8_or_hex(data) for data in column.to_pylist()], pa.string())


def _utf8_or_hex(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data.hex()


def _canonical(value: object) -> bytes:
    """Return bytes that are equal for values that SQL treats as equal: numbers of any type, times in any zone."""
    match value:
        case bool():
            return b"b%d" % value
        case int():
            return b"n%d" % value
        case float() | Decimal():
            try:
                numerator, denominator = value.as_integer_ratio()
            except (ValueError, OverflowError):  # NaN, infinity
                return f"n{value}".lower().encode()
            return b"n%d" % numerator if denominator == 1 else b"n%d/%d" % (numerator, denominator)
        case str():
            return b"s" + value.encode(errors="surrogatepass")
        case datetime():
            return b"t" + (value.astimezone(UTC) if value.tzinfo else value).isoformat().encode()
        case date() | time():
            return b"t" + value.isoformat().encode()
        case dict():
            return b"{%b}" % b",".join(_part(name) + _part(inner) for name, inner in value.items())
        case list() | tuple():
            return b"[%b]" % b",".join(map(_part, value))
        case _:
            return f"{type(value).__name__}:{value!r}".encode(errors="surrogatepass")


def _part(value: object) -> bytes:
    data = _canonical(value)
    return b"%d:%b" % (len(data), data)
