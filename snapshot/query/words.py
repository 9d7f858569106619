"""The words of SQL as it is typed: names, strings, signs; and the statements of a text, up to one that has not ended.

DuckDB's tokenizer wants whole statements and tells places in bytes. This looks at no more than what hides a word or a
`;`: quotes, dollar quotes and comments, as PostgreSQL's lexer has them and so DuckDB's.
"""

import re
from typing import NamedTuple

_PATTERN = re.compile(
    r"""
      (?P<space>\s+|--[^\n]*)
    | (?P<comment>/\*)
    | (?P<escaped>[eE]'(?:[^'\\]|\\.|'')*'?)
    | (?P<string>'(?:[^']|'')*'?)
    | (?P<dollars>\$(?P<tag>(?:[^\W\d]\w*)?)\$(?:.*?\$(?P=tag)\$|.*))
    | (?P<quoted>"(?:[^"]|"")*"?)
    | (?P<name>[^\W\d][\w$]*)
    | (?P<number>\d[\w.]*)
    | (?P<sign>.)
    """,
    re.VERBOSE | re.DOTALL,
)
_COMMENT_EDGE = re.compile(r"/\*|\*/")


class Word(NamedTuple):
    """A word, and where it stands."""

    kind: str
    """`name`, `quoted` (a name in quotes), `string`, `sign`; or else one that only hides what is in it."""
    value: str
    """Of names and strings without quotes."""
    start: int
    end: int

    def says(self, word: str) -> bool:
        """Whether it is this word, in capitals or not, and not in quotes."""
        return self.kind == "name" and self.value.casefold() == word

    def is_sign(self, sign: str) -> bool:
        """Whether it is this sign."""
        return self.kind == "sign" and self.value == sign

    @property
    def is_name(self) -> bool:
        """Whether it may be the name of a table."""
        return self.kind in ("name", "quoted") and bool(self.value)


def words(text: str) -> tuple[Word, ...]:
    """All words of a text, without comments. What is not closed goes up to the end, and is of the kind `open`."""
    found: list[Word] = []
    at = 0
    while match := _PATTERN.match(text, at):
        kind, said, start = str(match.lastgroup), match[0], at
        at = match.end()
        if kind == "comment":
            at = _end_of_comment(text, at)
            if at < 0:
                found.append(Word("open", "", start, len(text)))
                break
        elif kind in ("string", "quoted", "escaped", "dollars"):
            found.append(_of_quotes(kind, said, match["tag"], start, at))
        elif kind != "space":
            found.append(Word(kind, said, start, at))
    return tuple(found)


def split(text: str) -> tuple[tuple[str, ...], str]:
    """The statements of a text that end with `;`, without that, and what comes after the last `;`."""
    statements, start = [], 0
    for word in words(text):
        if word.is_sign(";"):
            statements.append(text[start : word.start].strip())
            start = word.end
    return tuple(each for each in statements if words(each)), text[start:]


def _of_quotes(kind: str, said: str, tag: str | None, start: int, end: int) -> Word:
    if kind == "dollars":
        closing = f"${tag}$"
        return Word(kind if len(said) >= 2 * len(closing) and said.endswith(closing) else "open", "", start, end)
    mark = '"' if kind == "quoted" else "'"
    inside = said[2:] if kind == "escaped" else said[1:]
    # Marks within come in pairs, so what ends with one that is not half of a pair is closed.
    pairs = re.sub(r"\\.", "", inside, flags=re.DOTALL) if kind == "escaped" else inside
    if not (pairs.endswith(mark) and (len(pairs) - len(pairs.rstrip(mark))) % 2):
        return Word("open", "", start, end)
    return Word(kind, inside[:-1].replace(mark * 2, mark), start, end)


def _end_of_comment(text: str, at: int) -> int:
    """Where a comment ends that began before `at`; they nest. -1 where it does not."""
    depth = 1
    for edge in _COMMENT_EDGE.finditer(text, at):
        depth += 1 if edge[0] == "/*" else -1
        if not depth:
            return edge.end()
    return -1
