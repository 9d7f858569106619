"""Masks for keys in text that people wrote: statements and messages of edits, entries of the log of operations.

A key is masked where it is said to be one: as a literal of SQL that equals it, as `TABLE=KEY` and `TABLE KEY`, and as a
number that is compared with the key's column. As a word in a sentence it is masked from three characters on: a shorter
one stands in too many sentences that are of nobody.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from .matching import KeyRows

MASK = "(forgotten)"
"""In the place of a key."""
_SHORTEST = 3
"""Characters of a word that is taken for the key."""
_LITERAL = re.compile(r"'((?:[^']|'')*)'|\"((?:[^\"]|\"\")*)\"")
_TOKEN = re.compile(r"(?<![\w.])-?\d+(?:\.\d+)?(?![\w.])")
_LISTS = re.compile(r"\bVALUES\s*\([^;]*", re.IGNORECASE)


@dataclass(frozen=True)
class Texts:
    """Keys, by table, as texts may have them."""

    keys: Mapping[str, KeyRows]

    @cached_property
    def _words(self) -> frozenset[str]:
        every = (column for rows in self.keys.values() for column in rows.columns)
        return frozenset(text for column in every for text in column.texts if text)

    @cached_property
    def _numbers(self) -> dict[str, frozenset[str]]:
        """By key column, how its values that are no text are written."""
        found: dict[str, set[str]] = {}
        for rows in self.keys.values():
            for name, column in zip(rows.rows.column_names, rows.columns, strict=True):
                if column.kind in ("number", "float", "float32"):
                    found.setdefault(name, set()).update(map(str, column.values.drop_null().to_pylist()))
        return {name: frozenset(some) for name, some in found.items()}

    def stand_in(self, *texts: str) -> bool:
        """Whether a key stands in one of some texts."""
        return any(self.masked(text) != text for text in texts)

    def masked(self, text: str) -> str:
        """A text without the keys."""
        made = _LITERAL.sub(self._literal, text)
        for name, numbers in self._numbers.items():
            made = self._without_numbers(made, name, numbers)
        for word in [*self._in(made)]:
            made = re.sub(rf"(?<![\w@+-]){re.escape(word)}(?![\w@+-]|\.\w)", MASK, made)
        for table, rows in self.keys.items():
            for column in rows.columns:
                said = {str(value) for value in column.values.drop_null().to_pylist()} if table in made else ()
                for value in said:
                    argument = rf"(?<![\w]){re.escape(table)}([= ]['\"]?){re.escape(value)}(?![\w])"
                    made = re.sub(argument, lambda found, table=table: f"{table}{found[1]}{MASK}", made)  # type: ignore[misc]
        return made

    def _literal(self, found: re.Match[str]) -> str:
        quote = found[0][0]
        inside = found[0][1:-1].replace(quote * 2, quote)
        return f"{quote}{MASK}{quote}" if inside in self._words else found[0]

    def _without_numbers(self, text: str, column: str, numbers: frozenset[str]) -> str:
        def mask(found: re.Match[str]) -> str:
            return _TOKEN.sub(lambda number: MASK if number[0] in numbers else number[0], found[0])

        name = rf'(?<!\w)"?{re.escape(column)}"?\s*'
        compared = re.compile(
            rf"{name}(?:=|==|<>|!=|<=?|>=?|\bIN\s*\([^)]*\)|\bBETWEEN\b[^;]*)\s*-?[\d.]*", re.IGNORECASE
        )
        return _LISTS.sub(mask, compared.sub(mask, text))

    def _in(self, text: str) -> Iterator[str]:
        """The words that stand in a text, the longest first."""
        some = (word for word in self._words if len(word) >= _SHORTEST and word in text)
        return iter(sorted(some, key=len, reverse=True))
