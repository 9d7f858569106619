"""Display of values in answers to agents: the value, or a pseudonym if values are hidden.

Equal values have equal pseudonyms in every table and answer. A pseudonym can be used as a key in place of the value.
SQL sees only pseudonyms (`snapshot.query.hidden`).
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ...client.show.report import Mask
from ...client.show.values import NOT_TEXT, format_bytes, shorten
from ...errors import NotFound, SlackwaterError, Usage
from ...snapshot.query.hidden import PSEUDONYM_PATTERN, Pseudonyms
from ...snapshot.query.key_text import parse_key_text
from ...store.sst.arrow_types import bytes_to_hex
from ...store.versions.manifest import Table
from ..errors import problem

_NAME = re.compile(PSEUDONYM_PATTERN)
_MAX_DATA = 1 << 20
_MAX_TEXT = 2_000
_SQL_ERRORS = ("Parser Error", "Binder Error", "Catalog Error", "Conversion Error")
"""Prefixes of DuckDB's errors about SQL, which quote no values if values are hidden."""
_SAFE_ERRORS = ("Denied", "NotKnown", "TooOften", "TooMuch", "NotYet", "NotFound", "MomentGone", "Unavailable")
"""Classes of errors whose messages contain names, times and counts, but no values."""
_HINT = (
    "values are hidden: a column can be counted, grouped, joined, and compared with itself or with pseudonyms "
    "from answers"
)


@dataclass(frozen=True, slots=True)
class Masking:
    """Display of values in the answer to one call."""

    show: bool
    names: Pseudonyms = field(default_factory=Pseudonyms)

    @property
    def mask(self) -> Mask:
        return Mask(self.show)

    @property
    def secret(self) -> bytes:
        return b"" if self.show else self.names.secret

    def value(self, value: object) -> object:
        """Return a value of a row or a key; if values are hidden, the value's pseudonym."""
        return self.sql_value(value) if self.show else self.names.pseudonym(value)

    def sql_value(self, value: object) -> object:
        """Return a value of a SQL result, or the pseudonym that SQL returned, shortened and JSON-safe."""
        value = bytes_to_hex(value)
        return shorten(value, _MAX_TEXT) if isinstance(value, str) else value

    def row(self, row: Mapping[str, object] | None) -> dict[str, object] | None:
        return None if row is None else {name: self.value(value) for name, value in row.items()}

    def data(self, data: bytes | None) -> object:
        """Return bytes of a record as text or hexadecimal; if values are hidden, the pseudonym of that text."""
        text = format_bytes(data, _MAX_DATA) if data is not None else None
        return self.value(text if text is None or self.show else text.removeprefix(NOT_TEXT))

    def key(self, table: str, declared: Table, text: str) -> tuple[Any, ...]:
        """Parse a key from its text, or from pseudonyms if values are hidden. Raises `Usage` and `NotFound`."""
        values = tuple(parse_key_text(table, declared, text))
        if self.show:
            return values
        return tuple(None if name is None else self._value(str(name)) for name in values)

    def problem(self, error: Exception, root: str) -> dict[str, Any]:
        """Return the JSON document of an error, without the parts that quote hidden values."""
        document = problem(error, root)
        if self.show or not isinstance(error, SlackwaterError):
            return document | {"message": shorten(str(document["message"]), _MAX_TEXT)}
        sentence, is_of_sql = str(document["message"]).partition("\n")[0], False
        if document["error"] not in _SAFE_ERRORS:
            is_of_sql = sentence.startswith(_SQL_ERRORS)
            sentence = sentence if is_of_sql else self.mask.reason(sentence)
        hint = "" if str(document["hint"]).startswith("query: ") else str(document["hint"])
        return document | {"message": shorten(sentence, _MAX_TEXT), "hint": hint or (_HINT if is_of_sql else "")}

    def _value(self, name: str) -> object:
        if _NAME.fullmatch(name) is None:
            raise Usage(
                "values are hidden, so the key must be its pseudonym (a UUID from an answer), not its value",
                hint="query, diff and history return pseudonyms",
            )
        with self.names.lock:
            if name not in self.names.values:
                raise NotFound(
                    "hidden value",
                    name,
                    found="this instance knows only pseudonyms from its own answers: query the rows again",
                )
            return self.names.values[name]
