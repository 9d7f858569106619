"""Masking of records: texts become pseudonyms that keep their form, equal texts equal ones.

Names of fields, numbers, truth values, and texts that are times, single characters or numbers of up to seven digits are
kept: a program computes with them. `learn` keeps the texts of a field whose masking would change the reached branches.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from .. import Record

_KEPT = re.compile(r"(?!\d{8,}$)[-+]?\d[-+.,:/ \dTZ]*|.|true|false|null", re.DOTALL)
_CHARACTERS = re.compile(r"[^\W_]")
_MAX_TRIED = 10_000


@dataclass
class RecordMask:
    """Mask of some records; `kept` are the paths of fields whose texts are shown, such as `customer.country`."""

    kept: Collection[str] = ()
    fields: dict[str, None] = field(default_factory=dict)
    """Paths of fields with a masked text."""
    _names: dict[str, str] = field(default_factory=dict)

    def record(self, record: Record) -> Record:
        """Return a record with masked value, key and headers."""
        headers = [(name, self._data("headers", value)) for name, value in record.headers or ()]
        value = record.value if isinstance(record.value, bytes) else None
        return record._replace(value=self._data("", value), key=self._data("key", record.key), headers=headers)

    def _data(self, path: str, data: bytes | None) -> bytes | None:
        if data is None:
            return None
        try:
            text = data.decode()
        except UnicodeDecodeError:
            return data  # a format that only its schema can read
        try:
            document = json.loads(text)
        except ValueError:
            return self._text(path or "value", text).encode()
        masked = self._value(path, document)
        return data if masked == document else json.dumps(masked, ensure_ascii=False).encode()

    def _value(self, path: str, value: Any) -> Any:
        if isinstance(value, dict):
            return {name: self._value(f"{path}.{name}".lstrip("."), item) for name, item in value.items()}
        if isinstance(value, list):
            return [self._value(path, item) for item in value]
        return self._text(path or "value", value) if isinstance(value, str) else value

    def _text(self, path: str, text: str) -> str:
        if _KEPT.fullmatch(text):
            return text
        self.fields[path] = None
        return text if path in self.kept else self._name(text)

    def _name(self, text: str) -> str:
        """Return a pseudonym in which letters and digits are replaced, and which is another one for another text."""
        if text not in self._names:
            number, taken = len(self._names), {*self._names.values()}
            name = _spell(number, text)
            while name in taken and number < len(self._names) + _MAX_TRIED:
                number += 1
                name = _spell(number, text)
            self._names[text] = name
        return self._names[text]


def _spell(number: int, like: str) -> str:
    """Return a text of the form of another one whose letters and digits spell a number, the last ones first."""
    characters = list(like)
    for at in range(len(characters) - 1, -1, -1):
        old = characters[at]
        if _CHARACTERS.fullmatch(old):
            base, first = (10, "0") if old.isdecimal() else (26, "A" if old.isupper() else "a")
            number, digit = divmod(number, base)
            characters[at] = chr(ord(first) + digit)
    return "".join(characters)
