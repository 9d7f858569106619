"""What a statement may say beyond DuckDB's SQL: a table at another moment, the versions of a table, an input archive.

    FROM carriers JOIN carriers AT '-1h' AS before USING (carrier)
    SELECT _committed_at, sum(flights) FROM versions('carriers', '-1h') GROUP BY ALL
    SELECT decode(value) FROM input('flights') WHERE "offset" = 17

Neither is SQL as DuckDB parses it, so no statement changes its meaning by them: each becomes the name of a view before
it is parsed, and the clauses say which views. Text to values: what exists is found out by `moments.py`.

The words are those of SQL as it is typed: names, strings, signs; and the statements of a text, up to one that has not
ended. DuckDB's tokenizer wants whole statements and tells places in bytes. This looks at no more than what hides a word
or a `;`: quotes, dollar quotes and comments, as PostgreSQL's lexer has them and so DuckDB's.
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


def words(text: str) -> tuple[Word, ...]:
    """All words of a text, without comments. What is not closed goes up to the end, and is of the kind `open`."""
    found: list[Word] = []
    at = 0
    while match := _PATTERN.match(text, at):
        kind, value, start = str(match.lastgroup), match[0], at
        at = match.end()
        if kind == "comment":
            at = _end_of_comment(text, at)
            if at < 0:
                found.append(Word("open", "", start, len(text)))
                break
        elif kind in ("string", "quoted", "escaped"):
            quote = value[-1]
            found.append(Word(kind, value.partition(quote)[2][:-1].replace(quote * 2, quote), start, at))
        elif kind != "space":
            found.append(Word(kind, "" if kind in ("dollars", "open") else value, start, at))
    return tuple(found)


def bare(sql: str) -> str:
    """Return one statement, or a condition, without comments around it and without `;` at its end.

    What is to be put inside another statement goes through here: a comment at its end would hide what follows.
    """
    found = words(sql)
    end = len(found)
    while end and found[end - 1].is_sign(";"):
        end -= 1
    return sql[found[0].start : found[end - 1].end] if end else ""


def _end_of_comment(text: str, at: int) -> int:
    """Where a comment ends that began before `at`; they nest. -1 where it does not."""
    depth = 1
    for edge in _COMMENT_EDGE.finditer(text, at):
        depth += 1 if edge[0] == "/*" else -1
        if not depth:
            return edge.end()
    return -1


_VERSIONS = "write versions('TABLE'), or versions('TABLE', 'FROM', 'TO', 'STEP'), each a string"


@dataclass(frozen=True, slots=True)
class TableAt:
    """A table as it was at another moment."""

    table: str
    """In small letters, as tables are named; SQL takes any."""
    moment: str
    """What stands behind the `@` of a ref, or a whole ref."""

    @property
    def view(self) -> tuple[str, str]:
        """Schema and name of the view. No other schema begins like this; without an alias it is called as its table."""
        return f"@{self.moment}", self.table


@dataclass(frozen=True, slots=True)
class Versions:
    """The rows of a table at each of its versions, from one moment to another."""

    table: str
    since: str = ""
    """As `TableAt.moment`; empty for the beginning of the history."""
    until: str = "now"
    step: str = ""
    """A span of time, of which the last version is meant; empty for all versions."""

    @property
    def view(self) -> tuple[str, str]:
        """Schema and name of the view."""
        return f"@{self.since}..{self.until} {self.step} of {self.table}", "versions"


@dataclass(frozen=True, slots=True)
class InputOf:
    """The records of a topic that the app had read, as far as its input archive has them."""

    topic: str
    """In Kafka, or as the program declares it."""

    @property
    def view(self) -> tuple[str, str]:
        """Schema and name of the view."""
        return f"@input {self.topic}", "input"


Clause = TableAt | Versions | InputOf


@dataclass(frozen=True, slots=True)
class Statement:
    """A statement, and the clauses that it had."""

    sql: str
    """As DuckDB takes it."""
    rest: str
    """What was written, without the clauses."""
    clauses: tuple[Clause, ...] = ()


def understand(sql: str) -> Statement:
    """The clauses of a statement. Raises `Usage` where one is not as it must be written."""
    all_words = words(sql)
    all_clauses = (*_table_ats(all_words), *_versions(all_words), *_inputs(all_words))
    found = sorted(all_clauses, key=lambda each: each[0])
    parts, rest, done = [], [], 0
    for start, end, clause in found:
        parts += [sql[done:start], ".".join(map(quoted, clause.view))]
        rest += [sql[done:start], " "]
        done = end
    clauses = tuple(dict.fromkeys(clause for _, _, clause in found))
    return Statement("".join((*parts, sql[done:])), "".join((*rest, sql[done:])), clauses)


def _table_ats(found: Sequence[Word]) -> Iterator[tuple[int, int, Clause]]:
    """Where each AT begins and ends, its table included."""
    for number, word in enumerate(found):
        if word.kind != "string" or not number or not found[number - 1].says("at"):
            continue
        table = found[number - 2] if number > 1 else None
        is_part = number > 2 and found[number - 3].is_sign(".")
        if table is None or table.kind not in ("name", "quoted") or not table.value or is_part:
            raise Usage(
                f"AT '{word.value}' follows no table",
                hint="write FROM TABLE AT 'MOMENT', the table by its name alone; an alias comes after it",
            )
        yield table.start, word.end, TableAt(table.value.lower(), word.value)


def _versions(found: Sequence[Word]) -> Iterator[tuple[int, int, Clause]]:
    """Where each versions(…) begins and ends. One whose first argument is no string is somebody else's."""
    for number, word in enumerate(found):
        inside = found[number + 2 : number + 10]
        if not (word.says("versions") and inside and found[number + 1].is_sign("(") and inside[0].kind == "string"):
            continue
        close = next((at for at, each in enumerate(inside) if each.is_sign(")")), 0)
        arguments, signs = inside[:close:2], inside[1:close:2]
        strings = [each.value for each in arguments if each.kind == "string"]
        if not close % 2 or len(strings) < len(arguments) or not all(each.is_sign(",") for each in signs):
            raise Usage("versions() takes strings: a table, two moments and a span of time", hint=_VERSIONS)
        yield word.start, inside[close].end, Versions(strings[0].lower(), *strings[1:])


def _inputs(found: Sequence[Word]) -> Iterator[tuple[int, int, Clause]]:
    """Where each input(…) begins and ends. One whose argument is no string is somebody else's."""
    for number, word in enumerate(found):
        inside = found[number + 1 : number + 4]
        if not (word.says("input") and len(inside) == 3 and inside[0].is_sign("(") and inside[1].kind == "string"):
            continue
        if not inside[2].is_sign(")"):
            raise Usage("input() takes one string: a topic", hint="write input('TOPIC')")
        yield word.start, inside[2].end, InputOf(inside[1].value)
