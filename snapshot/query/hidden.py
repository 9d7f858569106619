"""Pseudonyms in place of values, for SQL of users who may not see values.

Each column of a view becomes a column of UUIDs, computed from the values and a secret before the statement sees them.
Equal values have equal pseudonyms. A statement can learn only whether values are equal. DuckDB compares UUIDs only with
UUIDs, and has no arithmetic and no function on UUIDs that reveals the value.
"""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time
from decimal import Decimal
from functools import lru_cache
from hashlib import blake2b

import duckdb
import pyarrow as pa
from cachetools import LRUCache
from duckdb.func import PythonUDFType

from ...common import runtime
from ...common.runtime import Lock
from ...store.read.duckdb_view import quote_identifier
from ...store.sst.arrow_types import bytes_to_hex, python_values

PSEUDONYM_PATTERN = r"0{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"
"""Regular expression that matches pseudonyms. No UUID that a program generates has this prefix."""
_PSEUDONYM_PREFIX = "00000000-"
_HIDDEN_TABLE_PATTERN = re.compile(r"[0-9a-f]{32} ")
_MAX_REMEMBERED = 50_000
_MAX_REMEMBERED_BYTES = 1_000


@dataclass(frozen=True, slots=True)
class Pseudonyms:
    """Pseudonyms of values, computed with one secret. Remembers which values the newest pseudonyms stand for.

    Thread-safe.
    """

    secret: bytes = field(default_factory=lambda: runtime.random_bytes(32))
    values: LRUCache[str, object] = field(default_factory=lambda: LRUCache(_MAX_REMEMBERED))
    lock: Lock = field(default_factory=runtime.lock)

    def pseudonym(self, value: object) -> str | None:
        """Return the pseudonym of a value; None for null. Bytes must be given in hexadecimal."""
        if value is None:
            return None
        value = bytes_to_hex(value)
        data = _canonical(value)
        digest = blake2b(data, digest_size=12, key=self.secret).hexdigest()
        name = f"{_PSEUDONYM_PREFIX}{digest[:4]}-{digest[4:8]}-{digest[8:12]}-{digest[12:]}"
        if len(data) <= _MAX_REMEMBERED_BYTES:
            with self.lock:
                self.values[name] = value
        return name

    def mask_column(self, column: pa.Array | pa.ChunkedArray) -> pa.Array:
        try:
            return pa.array(map(self.pseudonym, python_values(column)), pa.string())
        except Exception:
            # The error may quote a value.
            raise ValueError("a value cannot be named") from None

    def remembered_values(self, rows: pa.Table) -> dict[str, object]:
        """Return the remembered values behind the pseudonyms in these rows, by pseudonym."""
        texts = {text for column in rows.columns if pa.types.is_string(column.type) for text in column.to_pylist()}
        with self.lock:
            return {name: self.values[name] for name in texts if name is not None and name in self.values}

    def remember(self, named: Mapping[str, object]) -> None:
        with self.lock:
            self.values.update(named)

    def unmask(self, rows: pa.Table) -> pa.Table:
        """Return the rows with values in place of pseudonyms, without columns that have an unknown pseudonym."""
        values_by_name = self.remembered_values(rows)
        for index in reversed(range(rows.num_columns)):
            column = rows.column(index)
            if not pa.types.is_string(column.type):
                continue
            texts = column.to_pylist()
            if not any(text is not None and text.startswith(_PSEUDONYM_PREFIX) for text in texts):
                continue
            try:
                values = pa.array([None if text is None else values_by_name[text] for text in texts])
                rows = rows.set_column(index, rows.field(index).name, values)
            except (KeyError, pa.ArrowException):  # values of several types are no column
                rows = rows.remove_column(index)
        return rows


@lru_cache(maxsize=100)
def pseudonyms_for(secret: bytes) -> Pseudonyms:
    return Pseudonyms(secret)


def is_hidden_table(table: str) -> bool:
    return _HIDDEN_TABLE_PATTERN.match(table) is not None


class PseudonymViews:
    """Views of one connection that show pseudonyms. Statements cannot name the hidden tables behind the views.

    Args:
        con: connection.
        secret: secret of the pseudonyms; empty if values are shown.
    """

    def __init__(self, con: duckdb.DuckDBPyConnection, secret: bytes) -> None:
        self._con, self._names = con, pseudonyms_for(secret) if secret else None
        self._salt = runtime.random_hex(16)
        self._functions: dict[tuple[str, bool], str] = {}

    def hidden_table(self, name: str) -> str:
        """Return the name of the hidden table for the view `name`; `name` itself if values are shown."""
        return name if self._names is None else f"{self._salt} {name}"

    def create_view(
        self,
        view: str,
        hidden_table: str,
        shown: Collection[str] = (),
        order: Collection[str] = (),
        *,
        texts: bool = False,
    ) -> None:
        """Create the view `view`, an SQL name, over a hidden table. Does nothing if values are shown.

        `shown` are columns that are not masked, since they reveal no values. `order` are columns that identify a row.
        With `texts`, bytes are decoded as text if possible.
        """
        if self._names is None:
            return
        relation = self._con.sql(f"FROM {quote_identifier(hidden_table)}")
        chosen = {
            name: quote_identifier(name)
            if name in shown
            else f"{self._pseudonym_function(str(kind), texts=texts)}({quote_identifier(name)})::UUID"
            for name, kind in zip(relation.columns, relation.types, strict=True)
        }
        columns = ", ".join(f"{expression} AS {quote_identifier(name)}" for name, expression in chosen.items())
        # The stored order would reveal values, because rows are sorted by a hash that anyone can compute.
        by = f" ORDER BY {', '.join(chosen[name] for name in order)}" if order else ""
        self._con.execute(
            f"CREATE OR REPLACE VIEW {view} AS SELECT {columns} FROM (SELECT * FROM "
            f"{quote_identifier(hidden_table)}{by})"
        )

    def _pseudonym_function(self, kind: str, *, texts: bool) -> str:
        names = self._names
        assert names is not None  # noqa: S101  only called with a secret
        if (kind, texts) not in self._functions:
            function = f"{self._salt}_{len(self._functions)}"
            named = (
                (lambda column: names.mask_column(_decode_column(column)))
                if texts and kind == "BLOB"
                else names.mask_column
            )
            self._con.create_function(function, named, [kind], "VARCHAR", type=PythonUDFType.ARROW)
            self._functions[kind, texts] = quote_identifier(function)
        return self._functions[kind, texts]


def _decode_column(column: pa.Array | pa.ChunkedArray) -> pa.Array:
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
            return b"{%b}" % b",".join(
                _length_prefixed(name) + _length_prefixed(inner) for name, inner in value.items()
            )
        case list() | tuple():
            return b"[%b]" % b",".join(map(_length_prefixed, value))
        case _:
            return f"{type(value).__name__}:{value!r}".encode(errors="surrogatepass")


def _length_prefixed(value: object) -> bytes:
    data = _canonical(value)
    return b"%d:%b" % (len(data), data)
