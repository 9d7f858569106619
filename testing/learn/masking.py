"""Masking of records: text and numbers become pseudonyms of the same form. Equal values get equal pseudonyms.

Field names, booleans, ISO times, and single characters and digits are kept, because programs compute with them. A
field's values are also kept if masking would change the reached branches.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

from ...errors import Refused
from ...state.failing import minimize_failing
from .. import Record
from .number_mask import NumberMask, number_of_text
from .runs import TopicRecord

_DATE = r"\d{4}-(?:0[1-9]|1[0-2])-(?:0[1-9]|[12]\d|3[01])"
_TIME = r"(?:[01]\d|2[0-3]):[0-5]\d(?::[0-5]\d(?:[.,]\d{1,9})?)?(?: ?(?:Z|[-+](?:[01]\d|2[0-3])(?::?[0-5]\d)?))?"
_KEPT = re.compile(rf"{_DATE}(?:[T ]{_TIME})?|{_TIME}|.|true|false|null", re.DOTALL | re.ASCII)
_CHARACTERS = re.compile(r"[^\W_]")
_MAX_TRIED = 10_000
_Value = TypeVar("_Value", str, float)


@dataclass
class RecordMask:
    """Mask of some records. `kept` has the paths of unmasked fields, such as `customer.country`."""

    kept: Collection[str] = ()
    fields: dict[str, None] = field(default_factory=dict)
    """Paths of fields with masked values."""
    _numbers: NumberMask = field(default_factory=NumberMask)
    _names: dict[str, str] = field(default_factory=dict)
    _taken: set[str] = field(default_factory=set)

    def records(self, records: Sequence[TopicRecord]) -> list[TopicRecord]:
        """Return records with masked values, keys and headers.

        Raises `Refused`, with the topic, if a record is not text.
        """
        for record in records:  # so that all numbers are known
            self._in_topic(record)
        return [*map(self._in_topic, records)]

    def _in_topic(self, record: TopicRecord) -> TopicRecord:
        try:
            return record._replace(record=self._record(record.record))
        except Refused as error:
            error.begin_with(f"topic {record.topic!r}")
            raise

    def _record(self, record: Record) -> Record:
        headers = [(name, self._data("headers", value)) for name, value in record.headers or ()]
        value = record.value if isinstance(record.value, bytes) else None
        return record._replace(value=self._data("", value), key=self._data("key", record.key), headers=headers)

    def _data(self, path: str, data: bytes | None) -> bytes | None:
        if data is None:
            return None
        text = _decode(data)
        with suppress(ValueError, RecursionError):
            document = json.loads(text, object_pairs_hook=_once)
            if isinstance(document, dict | list | str):
                masked = self._value(path, document)
                return data if masked == document else json.dumps(masked, ensure_ascii=False).encode()
        # A number alone may be a key of digits, such as a telephone number.
        return self._text(path or "value", text).encode()

    def _value(self, path: str, value: Any) -> Any:
        if isinstance(value, dict):
            return {name: self._value(f"{path}.{name}".lstrip("."), item) for name, item in value.items()}
        if isinstance(value, list):
            return [self._value(path, item) for item in value]
        if isinstance(value, str):
            return self._text(path or "value", value)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return self._shown(path or "value", value, self._numbers.pseudonym(value)) if is_number else value

    def _text(self, path: str, text: str) -> str:
        number = number_of_text(text)
        if number is not None:
            return self._shown(path, text, json.dumps(self._numbers.pseudonym(number)))
        return text if _KEPT.fullmatch(text) else self._shown(path, text, self._name(text))

    def _shown(self, path: str, value: _Value, pseudonym: _Value) -> _Value:
        if value != pseudonym:
            self.fields[path] = None
        return value if path in self.kept else pseudonym

    def _name(self, text: str) -> str:
        """Return a pseudonym of a text, with replaced letters and digits. Different texts get different pseudonyms."""
        if text not in self._names:
            number = len(self._names)
            name = _spell(number, text)
            while self._is_used(name) and number < len(self._names) + _MAX_TRIED:
                number += 1
                name = _spell(number, text)
            self._names[text] = name
            self._taken.add(name)
        return self._names[text]

    def _is_used(self, name: str) -> bool:
        """Return True if another text may have this pseudonym, or if the same text is shown unmasked."""
        return name in self._taken or _KEPT.fullmatch(name) is not None or number_of_text(name) is not None


def mask_records(
    records: Sequence[TopicRecord],
    is_enough: Callable[[Sequence[TopicRecord]], bool],
    *,
    max_tries: int,
    instead: str,
) -> tuple[Sequence[TopicRecord], RecordMask]:
    """Return masked records for which `is_enough` returns True, and the mask. Only a few fields stay unmasked.

    `is_enough` must return True for the unmasked records; it is called up to `max_tries` times after the first call.
    Raises `Refused`, with the hint `instead`, if a record is not text.
    """

    def masked(kept: Collection[str]) -> tuple[Sequence[TopicRecord], RecordMask]:
        mask = RecordMask(kept)
        try:
            return mask.records(records), mask
        except Refused as error:
            error.hint = instead
            raise

    all_masked = masked(())
    if is_enough(all_masked[0]):
        return all_masked
    fields = [*all_masked[1].fields]
    return masked(minimize_failing(fields, lambda kept: is_enough(masked(kept)[0]), max_tries=max_tries)[0])


def _once(fields: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the object of a JSON document.

    Raises `ValueError` for a duplicate field, of which Python keeps the last.
    """
    if len(fields) > len(dict(fields)):
        raise ValueError("a field is there twice")
    return dict(fields)


def _decode(data: bytes) -> str:
    """Return data as text. Raises `Refused` for data that requires a schema, such as Avro or Protobuf."""
    with suppress(UnicodeDecodeError):
        text = data.decode()
        if "\0" not in text:
            return text
    raise Refused("a value, key or header is not text in UTF-8, so it cannot be masked")


def _spell(number: int, like: str) -> str:
    """Return a text with the form of `like`, whose letters and digits encode `number`, last digit first."""
    characters = list(like)
    for at in range(len(characters) - 1, -1, -1):
        old = characters[at]
        if _CHARACTERS.fullmatch(old):
            base, first = (10, "0") if old.isdecimal() else (26, "A" if old.isupper() else "a")
            number, digit = divmod(number, base)
            characters[at] = chr(ord(first) + digit)
    return "".join(characters)
