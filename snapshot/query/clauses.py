"""Clauses beyond DuckDB's SQL: a table at another moment, the versions of a table, an input archive.

    FROM carriers JOIN carriers AT '-1h' AS before USING (carrier)
    SELECT _committed_at, sum(flights) FROM versions('carriers', '-1h') GROUP BY ALL
    SELECT decode(value) FROM input('flights') WHERE "offset" = 17

DuckDB does not parse these clauses, so they do not change the meaning of any valid statement. Each clause is replaced
by the name of a view before parsing. This module only parses text; `moments.py` resolves the clauses.

The lexer also splits a text into statements, including an unfinished last one. DuckDB's tokenizer needs complete
statements and reports positions in bytes. This lexer handles only what can hide a word or a `;`: quotes, dollar quotes
and comments, by the rules of PostgreSQL's lexer, which DuckDB uses.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ...errors import Usage
from ...store.read.duckdb_view import quoted

_PATTERN = re.compile(
    r"""
      (?P<space>\s+|--[^\n]*)
    | (?P<comment>/\*)
    | (?P<escaped>[eE]'(?:[^'\\]|\\.|'')*'(?!'))
    | (?P<string>'(?:[^']|'')*'(?!'))
    | (?P<dollars>\$(?P<tag>(?:[^\W\d]\w*)?)\$.*?\$(?P=tag)\$)
    | (?P<quoted>"(?:[^"]|"")*"(?!"))
    | (?P<open>(?:[eE]?'|"|\$(?:[^\W\d]\w*)?\$).*)
    | (?P<name>[^\W\d][\w$]*)
    | (?P<number>\d[\w.]*)
    | (?P<sign>.)
    """,
    re.VERBOSE | re.DOTALL,
)
_COMMENT_EDGE = re.compile(r"/\*|\*/")


class Word(NamedTuple):
    """A token with its position."""

    kind: str
    """`name`, `quoted` (a name in quotes), `string` or `sign`; other kinds only hide their content."""
    value: str
    """Names and strings without their quotes."""
    start: int
    end: int

    def says(self, word: str) -> bool:
        """Return True if the token is this word, in any case and not in quotes."""
        return self.kind == "name" and self.value.casefold() == word

    def is_sign(self, sign: str) -> bool:
        return self.kind == "sign" and self.value == sign


def words(text: str) -> tuple[Word, ...]:
    """Return all tokens of a text, without comments. Unclosed quotes extend to the end and have the kind `open`."""
    tokens: list[Word] = []
    at = 0
    while match := _PATTERN.match(text, at):
        kind, value, start = str(match.lastgroup), match[0], at
        at = match.end()
        if kind == "comment":
            at = _end_of_comment(text, at)
            if at < 0:
                tokens.append(Word("open", "", start, len(text)))
                break
        elif kind in ("string", "quoted", "escaped"):
            quote = value[-1]
            tokens.append(Word(kind, value.partition(quote)[2][:-1].replace(quote * 2, quote), start, at))
        elif kind != "space":
            tokens.append(Word(kind, "" if kind in ("dollars", "open") else value, start, at))
    return tuple(tokens)


def bare(sql: str) -> str:
    """Return one statement or condition without surrounding comments and without a final `;`.

    Needed before nesting it in another statement, where a comment at its end would hide what follows.
    """
    tokens = words(sql)
    end = len(tokens)
    while end and tokens[end - 1].is_sign(";"):
        end -= 1
    return sql[tokens[0].start : tokens[end - 1].end] if end else ""


def _end_of_comment(text: str, at: int) -> int:
    """Return the end of a comment that began before `at`; comments nest. -1 if it is not closed."""
    depth = 1
    for edge in _COMMENT_EDGE.finditer(text, at):
        depth += 1 if edge[0] == "/*" else -1
        if not depth:
            return edge.end()
    return -1


_VERSIONS = "write versions('TABLE'), or versions('TABLE', 'FROM', 'TO', 'STEP'), each a string"


@dataclass(frozen=True, slots=True)
class TableAt:
    """A table at another moment."""

    table: str
    """Table name in lower case."""
    moment: str
    """The part of a ref after `@`, or a whole ref."""

    @property
    def view(self) -> tuple[str, str]:
        """Schema and name of the view. No other schema begins with `@`; the default alias is the table's name."""
        return f"@{self.moment}", self.table


@dataclass(frozen=True, slots=True)
class Versions:
    """Rows of a table at each of its versions, between two moments."""

    table: str
    since: str = ""
    """Start, in the form of `TableAt.moment`; empty for the beginning of the history."""
    until: str = "now"
    step: str = ""
    """Duration of a step, of which only the last version is included; empty for all versions."""

    @property
    def view(self) -> tuple[str, str]:
        """Schema and name of the view."""
        return f"@{self.since}..{self.until} {self.step} of {self.table}", "versions"


@dataclass(frozen=True, slots=True)
class InputOf:
    """Records of a topic that the app had read, if its input archive has them."""

    topic: str
    """Topic name, in Kafka or as declared."""

    @property
    def view(self) -> tuple[str, str]:
        """Schema and name of the view."""
        return f"@input {self.topic}", "input"


Clause = TableAt | Versions | InputOf


@dataclass(frozen=True, slots=True)
class Statement:
    """A statement with its clauses."""

    sql: str
    """SQL for DuckDB, with views in place of clauses."""
    rest: str
    """The original text without the clauses."""
    clauses: tuple[Clause, ...] = ()


def understand(sql: str) -> Statement:
    """Parse a statement with its clauses. Raises `Usage` (a clause is malformed)."""
    all_words = words(sql)
    all_clauses = (*_table_ats(all_words), *_versions(all_words), *_inputs(all_words))
    ordered = sorted(all_clauses, key=lambda item: item[0])
    parts, other_text, end_of_last = [], [], 0
    for start, end, clause in ordered:
        parts += [sql[end_of_last:start], ".".join(map(quoted, clause.view))]
        other_text += [sql[end_of_last:start], " "]
        end_of_last = end
    clauses = tuple(dict.fromkeys(clause for _, _, clause in ordered))
    return Statement("".join((*parts, sql[end_of_last:])), "".join((*other_text, sql[end_of_last:])), clauses)


def _table_ats(tokens: Sequence[Word]) -> Iterator[tuple[int, int, Clause]]:
    """Yield start, end and clause of each AT '…', its table included."""
    for number, word in enumerate(tokens):
        if word.kind != "string" or not number or not tokens[number - 1].says("at"):
            continue
        table = tokens[number - 2] if number > 1 else None
        is_part = number > 2 and tokens[number - 3].is_sign(".")
        if table is None or table.kind not in ("name", "quoted") or not table.value or is_part:
            raise Usage(
                f"AT '{word.value}' does not follow a table name",
                hint="write FROM TABLE AT 'MOMENT' AS ALIAS; the table name has no schema, and the alias is optional",
            )
        yield table.start, word.end, TableAt(table.value.lower(), word.value)


def _versions(tokens: Sequence[Word]) -> Iterator[tuple[int, int, Clause]]:
    """Yield start, end and clause of each versions('…'). A first argument that is not a string is left to DuckDB."""
    for number, word in enumerate(tokens):
        inside = tokens[number + 2 : number + 10]
        if not (word.says("versions") and inside and tokens[number + 1].is_sign("(") and inside[0].kind == "string"):
            continue
        close = next((at for at, token in enumerate(inside) if token.is_sign(")")), 0)
        arguments, signs = inside[:close:2], inside[1:close:2]
        strings = [argument.value for argument in arguments if argument.kind == "string"]
        if not close % 2 or len(strings) < len(arguments) or not all(sign.is_sign(",") for sign in signs):
            raise Usage("versions() takes strings: a table, two moments and a duration", hint=_VERSIONS)
        yield word.start, inside[close].end, Versions(strings[0].lower(), *strings[1:])


def _inputs(tokens: Sequence[Word]) -> Iterator[tuple[int, int, Clause]]:
    """Yield start, end and clause of each input('…'). An argument that is not a string is left to DuckDB."""
    for number, word in enumerate(tokens):
        inside = tokens[number + 1 : number + 4]
        if not (word.says("input") and len(inside) == 3 and inside[0].is_sign("(") and inside[1].kind == "string"):
            continue
        if not inside[2].is_sign(")"):
            raise Usage("input() takes one string: a topic", hint="write input('TOPIC')")
        yield word.start, inside[2].end, InputOf(inside[1].value)
