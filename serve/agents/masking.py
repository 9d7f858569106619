"""Values for whoever may not see them: the stand-ins of reports, each with a name by which it is known again.

Equal values have the same name, in every table and answer. Given back, as a key or a string in SQL, it stands for its
value.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from fractions import Fraction
from hashlib import blake2b
from typing import Any

from ...errors import NotFound, SlackwaterError, Usage
from ...moments.query.clauses import words
from ...moments.query.key_text import key_of
from ...results.report import Mask
from ...results.values import NOT_TEXT, hexadecimal, readable, shortened
from ...store.versions.manifest import Table
from ..errors import problem
from .naming import NamedValues

_NAME = re.compile(r"#[0-9a-f]{12}")
_NAMED = re.compile(r".*(#[0-9a-f]{12})")
"""A whole stand-in will do, too."""
_REMEMBERED_BYTES = 1_000
"""Of a value whose name is understood when it is given back, at most."""
_MOST_DATA = 1 << 20
_MOST_TEXT = 2_000
"""Characters of a value that is shown."""
_SAFE = ("Parser Error", "Binder Error", "Catalog Error")
"""What DuckDB says of SQL itself, before it has read a row."""
_OF_OURS = ("Denied", "NotKnown", "TooOften", "TooMuch", "NotYet", "NotFound", "MomentGone", "Unavailable")
"""Errors whose words have names, times and counts, and no values."""


@dataclass(frozen=True, slots=True)
class Masking:
    """How values are shown in the answer to one call."""

    show: bool
    names: NamedValues = field(default_factory=NamedValues)
    _used: dict[str, str] = field(default_factory=dict)
    """Values that the call has in the place of their names, by which errors and columns may be called."""

    @property
    def mask(self) -> Mask:
        """As reports take it."""
        return Mask(self.show, self._name)

    def value(self, value: object) -> object:
        """A value of a row or a key, for a document."""
        value = hexadecimal(value)
        if self.show:
            return shortened(value, _MOST_TEXT) if isinstance(value, str) else value
        return value if value is None else self.mask.value(value).text

    def row(self, row: Mapping[str, object] | None, known: Iterable[str] = ()) -> dict[str, object] | None:
        """A row by column; `known` are the columns that have no values in them."""
        if row is None:
            return None
        return {name: value if name in known else self.value(value) for name, value in row.items()}

    def data(self, data: bytes | None) -> object:
        """Bytes of a record as the text that they are, else hexadecimal: so a key is what it is in a table."""
        text = readable(data, _MOST_DATA) if data is not None else None
        return self.value(text if text is None or self.show else text.removeprefix(NOT_TEXT))

    def key(self, table: str, declared: Table, text: str) -> tuple[Any, ...]:
        """The values of a key, as text or by its name. Raises `Usage` and `NotFound`."""
        if (name := _NAMED.fullmatch(text)) and not text.startswith("["):
            return (self._value(name[1]),)
        values = tuple(key_of(table, declared, text))
        return tuple(self._value(name[1]) if (name := _of_text(each)) else each for each in values)

    def sql(self, sql: str) -> str:
        """SQL in which names of values, as strings, are those values. Raises `NotFound`."""
        if self.show or _NAME.search(sql) is None:
            return sql
        parts, done = [], 0
        for word in words(sql):
            if word.kind == "string" and (name := _NAMED.fullmatch(word.value)):
                parts += [sql[done : word.start], _literal(self._value(name[1]))]
                done = word.end
        return "".join((*parts, sql[done:]))

    def problem(self, error: Exception, root: str) -> dict[str, Any]:
        """The document of an error, of which no part can quote a value that is hidden."""
        found = problem(error, root)
        if self.show or not isinstance(error, SlackwaterError):
            return found | {"message": shortened(str(found["message"]), _MOST_TEXT)}
        sentence = str(found["message"]).partition("\n")[0]
        if found["error"] not in _OF_OURS and not sentence.startswith(_SAFE):
            sentence = self.mask.reason(sentence)
        hint = "" if str(found["hint"]).startswith("query: ") else str(found["hint"])
        return found | {"message": self.words(shortened(sentence, _MOST_TEXT)), "hint": self.words(hint)}

    def words(self, text: str) -> str:
        """Words that may quote the call's own SQL, with names again where it has values for them."""
        for value, name in self._used.items():
            text = text.replace(value, name).replace(value.replace("'", "''"), name)
        return text

    def _name(self, value: object) -> str:
        data = _canonical(value)
        name = "#" + blake2b(data, digest_size=6, key=self.names.secret).hexdigest()
        if len(data) <= _REMEMBERED_BYTES:
            with self.names.lock:
                self.names.values[name] = value
        return name

    def _value(self, name: str) -> object:
        with self.names.lock:
            if name not in self.names.values:
                raise NotFound(
                    "hidden value",
                    name,
                    found="an instance knows a name once it has shown it: ask again for the rows with it",
                )
            value = self.names.values[name]
        self._used[str(value)] = name
        return value


def _of_text(value: object) -> re.Match[str] | None:
    return _NAMED.fullmatch(value) if isinstance(value, str) else None


def _canonical(value: object) -> bytes:
    """The same for values that SQL has as equal: numbers of whatever type."""
    if isinstance(value, int | float | Decimal) and not isinstance(value, bool):
        try:
            return b"n" + str(Fraction(value)).encode()
        except (ValueError, OverflowError):  # NaN, infinity
            return b"n" + str(value).lower().encode()
    return f"{type(value).__name__}:{value!r}".encode(errors="surrogatepass")


def _literal(value: object) -> str:
    if isinstance(value, str | int | float | Decimal) and not isinstance(value, bool):
        return "'" + str(value).replace("'", "''") + "'"
    raise Usage("a hidden value of this type stands in no SQL", hint="only names of texts and numbers do")
