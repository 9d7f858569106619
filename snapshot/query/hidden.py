"""Names in the place of values, for statements of somebody who may not see values.

Each column of a view is then one of UUIDs, made of the values with a secret before the statement sees them: equal
values have equal names, and nothing else of a value is left. So it is not the words of a statement that decide. DuckDB
compares a UUID with UUIDs alone, and has no arithmetic and no function for one that tells of the value behind it.
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
"""A regular expression of names. No UUID that a program makes begins so."""
_BEGIN = "00000000-"
_BEHIND = re.compile(r"[0-9a-f]{32} ")
_REMEMBERED = 50_000
"""Values whose names are understood when they are given back, the newest that were hidden."""
_REMEMBERED_BYTES = 1_000
"""Of such a value, at most."""


@dataclass(frozen=True, slots=True)
class Names:
    """How values are named with one secret, and what the latest names stand for. Safe to use from many threads."""

    secret: bytes = field(default_factory=lambda: secrets.token_bytes(32))
    values: LRUCache[str, object] = field(default_factory=lambda: LRUCache(_REMEMBERED))
    lock: Lock = field(default_factory=Lock)

    def name(self, value: object) -> str | None:
        """The name of a value, in which bytes are hexadecimal; None for null."""
        if value is None:
            return None
        value = hexadecimal(value)
        data = _canonical(value)
        of = blake2b(data, digest_size=12, key=self.secret).hexdigest()
        name = f"{_BEGIN}{of[:4]}-{of[4:8]}-{of[8:12]}-{of[12:]}"
        if len(data) <= _REMEMBERED_BYTES:
            with self.lock:
                self.values[name] = value
        return name

    def named(self, column: pa.Array | pa.ChunkedArray) -> pa.Array:
        """The names of the values of a column."""
        try:
            return pa.array(map(self.name, python_values(column)), pa.string())
        except Exception:
            # Its words may quote a value.
            raise ValueError("a value cannot be named") from None

    def known(self, rows: pa.Table) -> dict[str, object]:
        """What the names in these rows stand for, as far as they are known."""
        texts = {each for column in rows.columns if pa.types.is_string(column.type) for each in column.to_pylist()}
        with self.lock:
            return {name: self.values[name] for name in texts if name is not None and name in self.values}

    def learn(self, named: Mapping[str, object]) -> None:
        """Take over what another process knows."""
        with self.lock:
            self.values.update(named)

    def restored(self, rows: pa.Table) -> pa.Table:
        """The rows with values in the place of their names; without columns in which a name is not known."""
        known = self.known(rows)
        for at in reversed(range(rows.num_columns)):
            column = rows.column(at)
            if not pa.types.is_string(column.type):
                continue
            texts = column.to_pylist()
            if not any(each is not None and each.startswith(_BEGIN) for each in texts):
                continue
            try:
                values = pa.array([None if each is None else known[each] for each in texts])
                rows = rows.set_column(at, rows.field(at).name, values)
            except (KeyError, pa.ArrowException):  # values of several types are no column
                rows = rows.remove_column(at)
        return rows


@lru_cache(maxsize=100)
def names_of(secret: bytes) -> Names:
    """The names of a secret, in this process."""
    return Names(secret)


def is_behind(table: str) -> bool:
    """Whether a table is one of those that are behind views."""
    return _BEHIND.match(table) is not None


class Cover:
    """Views of one connection, in which values are names. What is behind them cannot be named by a statement.

    Args:
        con: the connection.
        secret: of the names; empty where values are shown.
    """

    def __init__(self, con: duckdb.DuckDBPyConnection, secret: bytes) -> None:
        self._con, self._names = con, names_of(secret) if secret else None
        self._salt = secrets.token_hex(16)
        self._functions: dict[tuple[str, bool], str] = {}

    def behind(self, name: str) -> str:
        """What a table is called of which `put` makes the view `name`."""
        return name if self._names is None else f"{self._salt} {name}"

    def selected(
        self,
        columns: Mapping[str, Any],
        shown: Collection[str] = (),
        order: Collection[str] = (),
        *,
        texts: bool = False,
    ) -> tuple[str, str]:
        """The columns of such a view, by name and type, and what they are ordered by.

        `shown` have no values; `texts` says that bytes are text, if they can be.
        """
        if self._names is None:
            return "*", ""
        chosen = {
            name: quoted(name) if name in shown else f"{self._function(str(kind), texts=texts)}({quoted(name)})::UUID"
            for name, kind in columns.items()
        }
        # In storage's order rows would tell of the values: it is that of a hash which everybody can compute.
        by = f" ORDER BY {', '.join(chosen[name] for name in order)}" if order else ""
        return ", ".join(f"{each} AS {quoted(name)}" for name, each in chosen.items()), by

    def put(
        self, view: str, behind: str, shown: Collection[str] = (), order: Collection[str] = (), **how: bool
    ) -> None:
        """Make the view, in SQL's words, of what is called `behind`; nothing where values are shown.

        `order` are columns that tell all rows apart.
        """
        if self._names is None:
            return
        relation = self._con.sql(f"FROM {quoted(behind)}")
        columns = dict(zip(relation.columns, relation.types, strict=True))
        chosen, by = self.selected(columns, shown, order, **how)
        self._con.execute(f"CREATE OR REPLACE VIEW {view} AS SELECT {chosen} FROM (SELECT * FROM {quoted(behind)}{by})")

    def _function(self, kind: str, *, texts: bool) -> str:
        names = self._names
        assert names is not None  # noqa: S101  nothing is named else
        if (kind, texts) not in self._functions:
            function = f"{self._salt}_{len(self._functions)}"
            named = (lambda column: names.named(_texts(column))) if texts and kind == "BLOB" else names.named
            self._con.create_function(function, named, [kind], "VARCHAR", type=PythonUDFType.ARROW)
            self._functions[kind, texts] = quoted(function)
        return self._functions[kind, texts]


def _texts(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Bytes as the text that they are, as keys of records are those of tables; else hexadecimal."""
    return pa.array([None if each is None else text_of(each) for each in column.to_pylist()], pa.string())


def text_of(data: bytes) -> str:
    """Bytes as the text that they are, else hexadecimal."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data.hex()


def _canonical(value: object) -> bytes:
    """The same for values that SQL has as equal: numbers of whatever type, times of whatever zone."""
    match value:
        case bool():
            return b"b%d" % value
        case int():
            return b"n%d" % value
        case float() | Decimal():
            try:
                top, bottom = value.as_integer_ratio()
            except (ValueError, OverflowError):  # NaN, infinity
                return f"n{value}".lower().encode()
            return b"n%d" % top if bottom == 1 else b"n%d/%d" % (top, bottom)
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
