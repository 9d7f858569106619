"""Masks for requested keys in texts of users: statements and messages of edits, entries of the log of operations.

These forms of a key are masked: an equal SQL literal, `TABLE=KEY`, `TABLE KEY`, and a number that is compared with the
key's column. A word in a sentence is masked only if it has at least three characters, because shorter words occur in
too many unrelated sentences.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from ..key_search.matching import KeyRows

MASK = "(forgotten)"
_MIN_WORD_LENGTH = 3
_LITERAL = re.compile(r"'((?:[^']|'')*)'|\"((?:[^\"]|\"\")*)\"")
_TOKEN = re.compile(r"(?<![\w.])-?\d+(?:\.\d+)?(?![\w.])")
_LISTS = re.compile(r"\bVALUES\s*\([^;]*", re.IGNORECASE)


@dataclass(frozen=True)
class TextMasker:
    """Masks the requested keys of all tables in texts."""

    keys: Mapping[str, KeyRows]

    @cached_property
    def _words(self) -> frozenset[str]:
        every = (column for rows in self.keys.values() for column in rows.columns)
        return frozenset(text for column in every for text in column.texts if text)

    @cached_property
    def _numbers(self) -> dict[str, frozenset[str]]:
        numbers: dict[str, set[str]] = {}
        for rows in self.keys.values():
            for name, column in zip(rows.rows.column_names, rows.columns, strict=True):
                if column.kind in ("number", "float", "float32"):
                    numbers.setdefault(name, set()).update(map(str, column.values.drop_null().to_pylist()))
        return {name: frozenset(some) for name, some in numbers.items()}

    def contain_key(self, *texts: str) -> bool:
        return any(self.mask_keys(text) != text for text in texts)

    def mask_keys(self, text: str) -> str:
        masked_text = _LITERAL.sub(self._literal, text)
        for name, numbers in self._numbers.items():
            masked_text = self._without_numbers(masked_text, name, numbers)
        for word in [*self._words_in(masked_text)]:
            masked_text = re.sub(rf"(?<![\w@+-]){re.escape(word)}(?![\w@+-]|\.\w)", MASK, masked_text)
        for table, rows in self.keys.items():
            for column in rows.columns:
                values_of_column = (
                    {str(value) for value in column.values.drop_null().to_pylist()} if table in masked_text else ()
                )
                for value in values_of_column:
                    argument = rf"(?<![\w]){re.escape(table)}([= ]['\"]?){re.escape(value)}(?![\w])"
                    masked_text = re.sub(argument, lambda match, table=table: f"{table}{match[1]}{MASK}", masked_text)  # type: ignore[misc]
        return masked_text

    def _literal(self, match: re.Match[str]) -> str:
        quote = match[0][0]
        inside = match[0][1:-1].replace(quote * 2, quote)
        return f"{quote}{MASK}{quote}" if inside in self._words else match[0]

    def _without_numbers(self, text: str, column: str, numbers: frozenset[str]) -> str:
        def mask(match: re.Match[str]) -> str:
            return _TOKEN.sub(lambda number: MASK if number[0] in numbers else number[0], match[0])

        name = rf'(?<!\w)"?{re.escape(column)}"?\s*'
        compared = re.compile(
            rf"{name}(?:=|==|<>|!=|<=?|>=?|\bIN\s*\([^)]*\)|\bBETWEEN\b[^;]*)\s*-?[\d.]*", re.IGNORECASE
        )
        return _LISTS.sub(mask, compared.sub(mask, text))

    def _words_in(self, text: str) -> Iterator[str]:
        some = (word for word in self._words if len(word) >= _MIN_WORD_LENGTH and word in text)
        return iter(sorted(some, key=len, reverse=True))
