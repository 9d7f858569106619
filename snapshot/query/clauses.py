"""Clauses in addition to DuckDB's SQL: a table at a given moment, the versions of a table, an input archive.

    FROM carriers JOIN carriers AT '-1h' AS before USING (carrier)
    SELECT _committed_at, sum(flights) FROM versions('carriers', '-1h') GROUP BY ALL
    SELECT decode(value) FROM input('flights') WHERE "offset" = 17

DuckDB itself rejects these clauses, so every valid DuckDB statement keeps its meaning. Each clause is replaced by the
name of a view before DuckDB parses the statement. `MomentResolver` resolves clauses to cuts, each moment once.

The lexer also splits a text into statements; the last statement may be unfinished. DuckDB's tokenizer cannot do this:
it needs complete statements and reports positions in bytes. This lexer only recognises tokens that can hide a keyword
or a `;`: quotes, dollar quotes and comments, by the rules of PostgreSQL's lexer, which DuckDB uses.
"""

import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ...common.durations import parse_ms
from ...errors import NotFound, Usage
from ...store.objects.protocol import ObjectStore
from ...store.read.duckdb_view import quote_identifier
from ...store.read.fetch import request_pool
from ...store.versions import apps, history, horizon
from ...store.versions.manifest import FormerName, Manifest, Table
from ...store.versions.side_tables import find_owner
from ..cut.graph import Cut
from ..cut.moments import current_name, later_stages, name_at, stage_of_table
from ..cut.refs import AtTime, NamedSnapshot, Ref, parse_ref
from ..cut.resolve import resolve
from ..cut.stored import find_snapshot

_TOKEN_PATTERN = re.compile(
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


class SqlToken(NamedTuple):
    """SQL token with its position."""

    kind: str
    """Kind: `name`, `quoted` (a name in quotes), `string`, `sign` (a character), or another kind that is not parsed."""
    value: str
    """Text of the token; names and strings without their quotes."""
    start: int
    end: int

    def is_keyword(self, word: str) -> bool:
        """Return True if the token is the keyword `word` without quotes, ignoring case. `word` is in lower case."""
        return self.kind == "name" and self.value.casefold() == word

    def is_sign(self, sign: str) -> bool:
        return self.kind == "sign" and self.value == sign


def tokenize(text: str) -> tuple[SqlToken, ...]:
    """Return the tokens of a text without comments. An unclosed quote is a token of kind `open` to the text's end."""
    tokens: list[SqlToken] = []
    at = 0
    while match := _TOKEN_PATTERN.match(text, at):
        kind, value, start = str(match.lastgroup), match[0], at
        at = match.end()
        if kind == "comment":
            at = _end_of_comment(text, at)
            if at < 0:
                tokens.append(SqlToken("open", "", start, len(text)))
                break
        elif kind in ("string", "quoted", "escaped"):
            quote = value[-1]
            tokens.append(SqlToken(kind, value.partition(quote)[2][:-1].replace(quote * 2, quote), start, at))
        elif kind != "space":
            tokens.append(SqlToken(kind, "" if kind in ("dollars", "open") else value, start, at))
    return tuple(tokens)


def strip_comments(sql: str) -> str:
    """Return one statement or condition without surrounding comments and without a final `;`.

    The result can be nested in a statement, where a final comment would hide the text that follows.
    """
    tokens = tokenize(sql)
    end = len(tokens)
    while end and tokens[end - 1].is_sign(";"):
        end -= 1
    return sql[tokens[0].start : tokens[end - 1].end] if end else ""


def _end_of_comment(text: str, at: int) -> int:
    depth = 1
    for edge in _COMMENT_EDGE.finditer(text, at):
        depth += 1 if edge[0] == "/*" else -1
        if not depth:
            return edge.end()
    return -1


_VERSIONS_HINT = "write versions('TABLE'), or versions('TABLE', 'FROM', 'TO', 'STEP'), each a string"


@dataclass(frozen=True, slots=True)
class TableAtClause:
    """Clause for a table at a given moment."""

    table: str
    moment: str

    @property
    def view(self) -> tuple[str, str]:
        """Schema and name of the clause's view. The name is the default alias of the table.

        Only schemas of clauses begin with `@`.
        """
        return f"@{self.moment}", self.table


@dataclass(frozen=True, slots=True)
class VersionsClause:
    """Clause for the rows of a table at each version between two moments."""

    table: str
    since: str = ""
    """First moment, in the format of `TableAtClause.moment`; empty for the beginning of the history."""
    until: str = "now"
    step: str = ""
    """Duration of a step. Only the last version of each step is included; empty for all versions."""

    @property
    def view(self) -> tuple[str, str]:
        return f"@{self.since}..{self.until} {self.step} of {self.table}", "versions"


@dataclass(frozen=True, slots=True)
class InputClause:
    """Clause for the records of a topic that the app had read, as far as the app's input archive has them."""

    topic: str
    """Name of the topic in Kafka, or of the stage's input that reads it."""

    @property
    def view(self) -> tuple[str, str]:
        return f"@input {self.topic}", "input"


Clause = TableAtClause | VersionsClause | InputClause


@dataclass(frozen=True, slots=True)
class Statement:
    """SQL statement with its clauses."""

    sql: str
    text_without_clauses: str
    clauses: tuple[Clause, ...] = ()


def parse_statement(sql: str) -> Statement:
    """Parse a statement with its clauses. Raises `Usage` (a clause is malformed)."""
    all_words = tokenize(sql)
    all_clauses = (
        *_find_table_at_clauses(all_words),
        *_find_versions_clauses(all_words),
        *_find_input_clauses(all_words),
    )
    ordered = sorted(all_clauses, key=lambda item: item[0])
    parts, other_text, end_of_last = [], [], 0
    for start, end, clause in ordered:
        parts += [sql[end_of_last:start], ".".join(map(quote_identifier, clause.view))]
        other_text += [sql[end_of_last:start], " "]
        end_of_last = end
    clauses = tuple(dict.fromkeys(clause for _, _, clause in ordered))
    return Statement("".join((*parts, sql[end_of_last:])), "".join((*other_text, sql[end_of_last:])), clauses)


def _find_table_at_clauses(tokens: Sequence[SqlToken]) -> Iterator[tuple[int, int, Clause]]:
    for number, word in enumerate(tokens):
        if word.kind != "string" or not number or not tokens[number - 1].is_keyword("at"):
            continue
        table = tokens[number - 2] if number > 1 else None
        is_part = number > 2 and tokens[number - 3].is_sign(".")
        if table is None or table.kind not in ("name", "quoted") or not table.value or is_part:
            raise Usage(
                f"AT '{word.value}' does not follow a table name",
                hint="write FROM TABLE AT 'MOMENT' AS ALIAS; the table name has no schema, and the alias is optional",
            )
        yield table.start, word.end, TableAtClause(table.value.lower(), word.value)


def _find_versions_clauses(tokens: Sequence[SqlToken]) -> Iterator[tuple[int, int, Clause]]:
    for number, word in enumerate(tokens):
        inside = tokens[number + 2 : number + 10]
        if not (
            word.is_keyword("versions") and inside and tokens[number + 1].is_sign("(") and inside[0].kind == "string"
        ):
            continue
        close = next((at for at, token in enumerate(inside) if token.is_sign(")")), 0)
        arguments, signs = inside[:close:2], inside[1:close:2]
        strings = [argument.value for argument in arguments if argument.kind == "string"]
        if not close % 2 or len(strings) < len(arguments) or not all(sign.is_sign(",") for sign in signs):
            raise Usage("versions() takes strings: a table, two moments and a duration", hint=_VERSIONS_HINT)
        yield word.start, inside[close].end, VersionsClause(strings[0].lower(), *strings[1:])


def _find_input_clauses(tokens: Sequence[SqlToken]) -> Iterator[tuple[int, int, Clause]]:
    for number, word in enumerate(tokens):
        inside = tokens[number + 1 : number + 4]
        if not (
            word.is_keyword("input") and len(inside) == 3 and inside[0].is_sign("(") and inside[1].kind == "string"
        ):
            continue
        if not inside[2].is_sign(")"):
            raise Usage("input() takes one string: a topic", hint="write input('TOPIC')")
        yield word.start, inside[2].end, InputClause(inside[1].value)


MAX_VERSIONS = 1_000
"""Maximum number of versions in one `versions()` clause, each with all rows of the table."""

_VERSION_PATTERN = re.compile(r"v\d{1,19}")

OnMoment = Callable[[str, Cut], None]


@dataclass(frozen=True, slots=True)
class ResolvedClause:
    """Resolved clause: a table at one version or at several versions."""

    clause: TableAtClause | VersionsClause
    cuts: tuple[Cut, ...]
    """Cuts, oldest first; empty if the table did not exist yet. For `VersionsClause`, each has a single stage."""
    table: Table | None


@dataclass(frozen=True, slots=True)
class MomentResolver:
    """Resolves clauses to cuts, one cut for each distinct moment."""

    store: ObjectStore
    app: str
    now_ms: int
    fixed_moments_only: bool
    """True to refuse moments whose meaning may change, for statements that run repeatedly."""
    on_moment: OnMoment
    _cuts_by_ref: dict[str, Cut] = field(default_factory=dict)

    def resolve_clauses(self, clauses: Sequence[TableAtClause | VersionsClause]) -> tuple[ResolvedClause, ...]:
        """Resolve clauses to tables at cuts.

        Raises `Usage` (a moment is malformed; its meaning may change and `fixed_moments_only` is set; or there are too
        many versions) and `NotFound` (no such app, snapshot, version or table, or the history begins later).
        """
        return tuple(
            self._resolve_table_at(clause) if isinstance(clause, TableAtClause) else self._resolve_versions(clause)
            for clause in clauses
        )

    def _resolve_table_at(self, clause: TableAtClause) -> ResolvedClause:
        cut, newest = self._with_table(clause.table, self._cut(clause.moment, clause.table))
        return ResolvedClause(clause, (cut,), newest.table if newest is not None else None)

    def _with_table(self, table: str, cut: Cut) -> tuple[Cut, Manifest | None]:
        """Return two values: the cut, and the version that declares the table's columns (None if no version does).

        If the cut lacks a table of this name, the returned cut has the stages under their current names.
        """
        if table not in cut.tables:
            later = later_stages(self.store, cut)
            cut = cut.with_renamed_stages(later)
            if table not in cut.tables:
                return cut, later.get(table)
        return cut, cut.tables[table]

    def _resolve_versions(self, clause: VersionsClause) -> ResolvedClause:
        until, newest = self._with_table(clause.table, self._cut(clause.until, clause.table))
        since = Cut(until.app, {})
        try:
            since = self._cut(clause.since, clause.table) if clause.since else since
        except NotFound:
            # Before its first version, the app has an empty cut.
            ref = self._ref(clause.since, clause.table)
            if not isinstance(ref.moment, AtTime) or horizon.newest(self.store, ref.app).number:
                raise
            since = Cut(ref.app, {})
        if since.app != until.app:
            raise Usage(f"versions(): {clause.since} is a moment of {since.app}, and {clause.until} one of {until.app}")
        if newest is None:
            name = current_name(self.store, until.app, clause.table)
            hint = f"it was renamed to {name}; versions('{name}', …) includes the versions from before" if name else ""
            raise NotFound(f"table of app {until.app!r}", clause.table, until.tables, hint=hint)
        stage = find_owner(clause.table, until.stages)
        manifests = _version_manifests(self.store, clause, stage, self._with_table(clause.table, since)[0], until)
        return ResolvedClause(
            clause, tuple(Cut(manifest.app, {stage: manifest}) for manifest in manifests), newest.table
        )

    def _cut(self, moment: str, table: str) -> Cut:
        ref, cuts = self._ref(moment, table), self._cuts_by_ref
        if ref.text not in cuts:
            if self.fixed_moments_only and ref.is_relative:
                raise Usage(
                    f"{moment!r} may mean a different moment each time", hint="name a snapshot, a time or a version"
                )
            cuts[ref.text] = resolve(self.store, ref.text, now_ms=self.now_ms)
            self.on_moment(ref.text, cuts[ref.text])
        return cuts[ref.text]

    def _ref(self, moment: str, table: str) -> Ref:
        # A version belongs to a stage, and side tables have other names than their stage.
        stage = stage_of_table(self.store, self.app, table) if _VERSION_PATTERN.fullmatch(moment) else ""
        text = complete_ref(self.store, self.app, moment, now_ms=self.now_ms, stage=stage)
        return parse_ref(text, now_ms=self.now_ms)


def complete_ref(store: ObjectStore, app: str, text: str, *, now_ms: int, stage: str = "") -> str:
    """Return the complete ref for a moment that a user names while working with an app.

    A complete ref is returned unchanged. Otherwise `text` is the part after `@`; `v42` is a version of `stage`, if
    given. If `text` is the name of a different app and of no snapshot of this app, returns the ref to that app's newest
    moment. Raises `Usage` (`text` is none of these).
    """
    if "@" in text or "/" in text:
        return text
    if stage and _VERSION_PATTERN.fullmatch(text):
        return f"{app}/{stage}@{text}"
    ref = f"{app}@{text}"
    is_name = isinstance(parse_ref(ref, now_ms=now_ms).moment, NamedSnapshot)
    if is_name and find_snapshot(store, app, text) is None and apps.find_app(store, text) is not None:
        return text
    return ref


def _version_manifests(
    store: ObjectStore, clause: VersionsClause, stage: str, since: Cut, until: Cut
) -> tuple[Manifest, ...]:
    """Return the version at the clause's first moment, and each later version whose rows may have changed.

    If the clause has a step, returns only the last version of each step.
    """
    last, begin = until.stages.get(stage), since.stages.get(stage)
    if last is None:
        return ()
    if begin is not None and begin.version > last.version:
        raise Usage(f"versions(): {clause.since} is after {clause.until}", hint="write the earlier moment first")
    first = begin.version if begin is not None else 1
    limit = horizon.newest(store, until.app)
    numbers: list[int] = []
    # A renamed stage continues its version numbers.
    for former in (*last.formerly, FormerName(last.stage, last.version + 1)):
        name, end = former.stage, former.version
        if (first_whole := history.first_version(store, until.app, name)) and first < end:
            first_whole, kept_versions = max(first, first_whole), limit.kept.get(name, ())
            numbers += (
                *(version for version in kept_versions if first <= version < min(first_whole, end)),
                *range(first_whole, end),
            )
            first = end

    def read(number: int) -> Manifest:
        return history.read(store, until.app, name_at(last, number), number)

    if clause.step:
        begin_ms, end_ms = since.seen_ms or since.time_ms or read(numbers[0]).time_ms, until.seen_ms or until.time_ms
        step_ms = parse_ms("versions(): the step", clause.step)
        if step_ms <= 0:
            raise Usage(f"versions(): the step is {clause.step!r}; expected more than 0")
        ends = range(begin_ms + step_ms, end_ms + step_ms, step_ms)
        if len(ends) >= MAX_VERSIONS:
            raise _too_many_versions_error(clause, f"{len(ends):,} steps")

        def newest(time_ms: int) -> int:
            after = bisect_right(numbers, min(time_ms, end_ms), key=lambda number: read(number).time_ms)
            return numbers[max(after - 1, 0)]

        # A version that changes no rows, such as a compaction, is included: it may be the last version of a step with
        # changes.
        return tuple(request_pool().map(read, sorted({numbers[0], *request_pool().map(newest, ends)})))
    if len(numbers) > MAX_VERSIONS:
        raise _too_many_versions_error(clause, f"{len(numbers):,} versions")
    earliest, *later = request_pool().map(read, numbers)
    return (earliest, *(manifest for manifest in later if manifest.traits.changes_rows))


def _too_many_versions_error(clause: VersionsClause, count: str) -> Usage:
    since = clause.since or "-1h"
    return Usage(
        f"versions() of {clause.table} would return the whole table once for each of {count}; at most {MAX_VERSIONS:,} "
        "are allowed",
        hint="use a shorter period or a longer step: "
        f"versions('{clause.table}', '{since}', '{clause.until}', '10m') returns the last version of every ten minutes",
    )
