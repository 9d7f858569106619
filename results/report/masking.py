"""The user's values, or their shapes: what a report shows of keys, payloads, headers, rows and SQL.

Hidden values leave their type and length, and nothing else: two reports of values with the same shapes are the same.
Names (of columns, topics, headers, stages, snapshots) are no values, nor are offsets, times and counts.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, time, timedelta
from decimal import Decimal

from .. import formats
from ..document import Line, Name, Span, Value
from ..values import word

DOTS = "••••"
"""In the place of a value."""
_MOST = 4_000
"""Characters of a value that are shown."""

# Everything in SQL that may hold a value. A comment in slashes and stars may hold others, so it hides all that follows.
_LITERAL = re.compile(
    r"""
    [eE]'(?:[^'\\]|\\.|'')*' | '(?:[^']|'')*' | \$(?P<tag>\w*)\$.*?\$(?P=tag)\$
    | (?P<kept> "(?:[^"]|"")*" | [^\W\d][\w$]* )
    | --[^\n]* | /\*.*
    | \.?\d[\w.]*
    """,
    re.VERBOSE | re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class Mask:
    """Shows values, or hides them."""

    show: bool

    def value(self, value: object) -> Value:
        """A value of a row or a key."""
        return Value(_cut(word(value))) if self.show or value is None else Value(_shape(value), hidden=True)

    def data(self, data: bytes | None) -> Value:
        """A record's key, header or value: text if it is any, else hexadecimal."""
        return Value(readable(data)) if self.show and data is not None else self.value(data)

    def key(self, key: Mapping[str, object]) -> Line:
        """A key's columns: `carrier = UA`."""
        spans: list[Span] = []
        for name, value in key.items():
            spans += [", "] * bool(spans) + [Name(name), " = ", self.value(value)]
        return tuple(spans)

    def sql(self, sql: str) -> str:
        """SQL; where values are hidden, on one line and without literals and comments."""
        return sql if self.show else " ".join(_LITERAL.sub(lambda found: found["kept"] or DOTS, sql).split())

    def reason(self, sentence: str) -> str:
        """Why something failed. What stands behind a colon may be of the user's program, and quote a value."""
        first, colon, _ = sentence.partition(": ")
        return sentence if self.show or not colon else f"{first}: {DOTS}"


def readable(data: bytes, most: int = _MOST, more: str = "") -> str:
    """Bytes as the text that they are, else hexadecimal; of what is longer than `most` characters `more` says so."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        text = data.hex()
    return _cut(text, most, more)


def _cut(text: str, most: int = _MOST, more: str = "") -> str:
    left = len(text) - most
    return text if left <= 0 else text[:most] + (more or f"… and {formats.plural(left, 'character')} more")


def _shape(value: object) -> str:
    match value:
        case str():
            return f'"{DOTS}" ({formats.plural(len(value), "character")})'
        case bytes():
            return f'"{DOTS}" ({formats.plural(len(value), "byte")})'
        case list() | tuple():
            return f"[{DOTS}] ({formats.plural(len(value), 'item')})"
        case dict():
            return f"{{{DOTS}}} ({formats.plural(len(value), 'field')})"
        case bool():
            return f"{DOTS} (boolean)"
        case int() | float() | Decimal():
            return f"{DOTS} (number)"
        case date() | time() | timedelta():
            return f"{DOTS} (time)"
        case _:
            return DOTS
