"""Values for whoever may not see them: names, by which they are known again.

Equal values have the same name, in every table and answer. Given back as a key it stands for its value; SQL sees names
alone (`snapshot.query.hidden`).
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ...client.show.report import Mask
from ...client.show.values import NOT_TEXT, readable, shortened
from ...errors import NotFound, SlackwaterError, Usage
from ...snapshot.query.hidden import NAME, Names
from ...snapshot.query.key_text import key_of
from ...store.sst.arrow_types import hexadecimal
from ...store.versions.manifest import Table
from ..errors import problem

_NAME = re.compile(NAME)
_MOST_DATA = 1 << 20
_MOST_TEXT = 2_000
"""Characters of a value that is shown."""
_OF_SQL = ("Parser Error", "Binder Error", "Catalog Error", "Conversion Error")
"""What DuckDB says of SQL, which sees no values where they are hidden."""
_OF_OURS = ("Denied", "NotKnown", "TooOften", "TooMuch", "NotYet", "NotFound", "MomentGone", "Unavailable")
"""Errors whose words have names, times and counts, and no values."""
_HINT = (
    "values are hidden: a column can be counted, grouped, joined and compared with itself, or with a name it has shown"
)


@dataclass(frozen=True, slots=True)
class Masking:
    """How values are shown in the answer to one call."""

    show: bool
    names: Names = field(default_factory=Names)

    @property
    def mask(self) -> Mask:
        """As reports take it."""
        return Mask(self.show)

    @property
    def secret(self) -> bytes:
        """For SQL; empty where values are shown."""
        return b"" if self.show else self.names.secret

    def value(self, value: object) -> object:
        """A value of a row or a key, for a document."""
        return self.plain(value) if self.show else self.names.name(value)

    def plain(self, value: object) -> object:
        """What SQL returned, which sees no values that are hidden."""
        value = hexadecimal(value)
        return shortened(value, _MOST_TEXT) if isinstance(value, str) else value

    def row(self, row: Mapping[str, object] | None) -> dict[str, object] | None:
        """A row by column."""
        return None if row is None else {name: self.value(value) for name, value in row.items()}

    def data(self, data: bytes | None) -> object:
        """Bytes of a record as the text that they are, else hexadecimal: so a key is what it is in a table."""
        text = readable(data, _MOST_DATA) if data is not None else None
        return self.value(text if text is None or self.show else text.removeprefix(NOT_TEXT))

    def key(self, table: str, declared: Table, text: str) -> tuple[Any, ...]:
        """The values of a key, as text, or by its name where values are hidden. Raises `Usage` and `NotFound`."""
        values = tuple(key_of(table, declared, text))
        if self.show:
            return values
        return tuple(None if each is None else self._value(str(each)) for each in values)

    def problem(self, error: Exception, root: str) -> dict[str, Any]:
        """The document of an error, of which no part can quote a value that is hidden."""
        found = problem(error, root)
        if self.show or not isinstance(error, SlackwaterError):
            return found | {"message": shortened(str(found["message"]), _MOST_TEXT)}
        sentence, is_of_sql = str(found["message"]).partition("\n")[0], False
        if found["error"] not in _OF_OURS:
            is_of_sql = sentence.startswith(_OF_SQL)
            sentence = sentence if is_of_sql else self.mask.reason(sentence)
        hint = "" if str(found["hint"]).startswith("query: ") else str(found["hint"])
        return found | {"message": shortened(sentence, _MOST_TEXT), "hint": hint or (_HINT if is_of_sql else "")}

    def _value(self, name: str) -> object:
        if _NAME.fullmatch(name) is None:
            raise Usage("values are hidden, so a key is given by its name", hint="query, diff or history show names")
        with self.names.lock:
            if name not in self.names.values:
                raise NotFound(
                    "hidden value",
                    name,
                    found="an instance knows a name once it has shown it: ask again for the rows with it",
                )
            return self.names.values[name]
