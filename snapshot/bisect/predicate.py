"""Predicates of bisect: a query that returns wrong rows, a condition that must hold, or a person's answers."""

import re
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import ClassVar, Literal, Protocol

import duckdb
import pyarrow as pa

from ...errors import NotFound, SlackwaterError, Usage
from ...store.objects.protocol import ObjectStore
from ...store.read.cache import SstCache
from ...store.read.duckdb_view import quote_identifier
from ...store.versions.manifest import Manifest
from ..cut.graph import Cut
from ..cut.kafka_topics import KafkaTopics
from ..cut.moments import read_line
from ..query.answers import run_statement
from ..query.clauses import InputClause, parse_statement, strip_comments
from ..query.columns import visible_schema
from ..query.hidden import pseudonyms_for
from ..query.sql import (
    Bounds,
    as_user_error,
    check_parses,
    is_condition,
    is_statement,
    named_tables,
    names_channels,
    sandboxed_database,
)


@dataclass(frozen=True, slots=True)
class Context:
    """Cut at which a predicate is evaluated, with the store, the cache and the reader of in-flight records."""

    store: ObjectStore
    cache: SstCache
    cut: Cut
    later: Mapping[str, Manifest] = field(default_factory=dict)
    """Newer versions, by stage. Tables and channels that only these versions have are shown as empty."""
    only: Collection[str] | None = None
    reader: KafkaTopics | None = None
    ref: str = ""


class Predicate(Protocol):
    """Predicate of a search: returns the wrong rows at a cut. The result may depend only on the rows of the cut."""

    @property
    def text(self) -> str:
        """Text of the predicate as the user entered it, for messages."""
        ...

    @property
    def sql(self) -> str:
        """Query that returns the wrong rows; empty if the moments are judged by the user's code or by a person."""
        ...

    @property
    def reads_channels(self) -> bool: ...

    @property
    def inputs(self) -> frozenset[str]:
        """Topics, or inputs of stages, whose archived records the predicate reads."""
        ...

    def tables(self, cut: Cut) -> frozenset[str]: ...

    def names_table(self, table: str) -> bool: ...

    def rows(self, at: Context, max_rows: int) -> pa.Table:
        """Return the wrong rows at a cut, at most `max_rows`; no rows if nothing is wrong.

        Raises:
            Skip: the predicate cannot judge this cut.
            Usage: the predicate is malformed, or fails on the data of the cut.
            NotFound: the cut lacks a table or column that the predicate names.
            Gone: in-flight records are deleted from Kafka.
            Corruption: an SST does not match its manifest.
            Unavailable: storage did not answer.
        """
        ...


class Skip(Exception):
    """Error raised by a predicate that cannot judge a cut, although the search request is valid."""

    def __init__(self, why: str, *, is_column_missing: bool = False) -> None:
        super().__init__(why)
        self.lacks = is_column_missing


class AnswerNeeded(Exception):
    """Error raised when a person has to judge the moment `ref` before the search can continue.

    An empty `ref` is the moment before the first commit. `left` is the estimated number of further moments to judge.
    """

    def __init__(self, cut: Cut, ref: str = "", left: int = 0) -> None:
        super().__init__(ref)
        self.cut, self.ref, self.left = cut, ref, left


@dataclass(frozen=True, slots=True)
class AnyTablePredicate:
    """Base of predicates that may read any table, because a person or the user's code judges each moment."""

    text: str
    sql: ClassVar[str] = ""
    reads_channels: ClassVar[bool] = False
    inputs: ClassVar[frozenset[str]] = frozenset()

    def tables(self, cut: Cut) -> frozenset[str]:
        return frozenset(cut.tables)

    def names_table(self, table: str) -> bool:
        return False


@dataclass(frozen=True, slots=True)
class ManualPredicate(AnyTablePredicate):
    """Predicate answered by a person, who judges each moment from the rows of all stages and the in-flight records."""

    text: str = "by hand"
    reads_channels: ClassVar[bool] = True

    def rows(self, at: Context, max_rows: int) -> pa.Table:
        raise AnswerNeeded(at.cut)


@dataclass(frozen=True, slots=True)
class SqlPredicate:
    """Predicate in SQL: a query that returns wrong rows. Key columns in its result identify the wrong keys."""

    sql: str
    typed: str = ""
    bounds: Bounds | None = None
    """Limits on the resources and the visible columns of the query; None for a trusted user."""

    @property
    def text(self) -> str:
        return self.typed or self.sql

    @property
    def reads_channels(self) -> bool:
        return names_channels(self.sql)

    @property
    def inputs(self) -> frozenset[str]:
        clauses = parse_statement(self.sql).clauses
        return frozenset(clause.topic for clause in clauses if isinstance(clause, InputClause))

    def tables(self, cut: Cut) -> frozenset[str]:
        # A topic and a table may have the same name.
        text = parse_statement(self.sql).text_without_clauses if self.inputs else self.sql
        return named_tables(text, cut, or_all=not self.inputs)

    def names_table(self, table: str) -> bool:
        return re.search(rf"\b{re.escape(table)}\b", self.sql, re.IGNORECASE) is not None

    def rows(self, at: Context, max_rows: int) -> pa.Table:
        rows = run_statement(
            at.store,
            at.cache,
            at.cut,
            self.sql,
            later=at.later,
            only=at.only,
            reader=at.reader,
            max_rows=max_rows,
            bounds=self.bounds,
        )
        # The search looks up these keys in tables, so masked values are restored.
        return pseudonyms_for(self.bounds.secret).unmask(rows) if self.bounds and self.bounds.secret else rows


_CONDITION_WITHOUT_TABLE = "SELECT ({condition}) AS holds"
_CONDITION_ON_TABLE = _CONDITION_WITHOUT_TABLE + " FROM {table}"
"""SQL that evaluates a condition on a table. The result has one row for an aggregate, else one per row of the table."""
_SELECT_WRONG_ROWS = "SELECT * FROM {table} WHERE {wrong}({condition})"
_SELECT_FAILED_CHECKS = "SELECT * FROM ({query}) AS checked(holds) WHERE {wrong}holds"
_NEGATIONS = {"check": "NOT ", "where": ""}
"""SQL prefix, by option, that turns a condition into a test for wrong rows: a row that fails a `check` is wrong."""
_CONDITION = re.compile(
    r"[\s(]*(?!select|from|with|values)[\w.\"]+\s*([<>=!+*/%(-]|(is|in|between|i?like|and|or|not)\b)", re.IGNORECASE
)
"""Pattern of the beginning of a condition: a name, then an operator or the parenthesis of a function call."""
_EXAMPLES = {
    "check": '"min(balance) >= 0", or a SELECT that returns one',
    "where": '"balance < 0", or a SELECT that returns rows',
}


def parse_where(store: ObjectStore, app: str, sql: str, table: str = "") -> SqlPredicate:
    """Return a predicate for a query that returns wrong rows, or for a condition that is true for wrong rows.

    `balance < 0` selects rows of the one table that has this column; `max(balance) > 100` is a condition on an
    aggregate of that table. A NULL result is not wrong. Raises the errors of `parse_check`, and `Usage` if `table` is
    given together with a whole query.
    """
    if is_condition(sql):
        return _parse_condition(store, app, sql, table, "where")
    if not is_statement(sql) and _CONDITION.match(strip_comments(sql)):
        check_parses(f"SELECT ({strip_comments(sql)})", hint=f"expected a condition, such as {_EXAMPLES['where']}")
    if table and is_statement(sql):
        raise Usage(
            f"the table {table} is given with a whole query, which names its own tables",
            hint=f"write a condition over the columns of {table}, or omit the table",
        )
    return SqlPredicate(sql)


def parse_check(store: ObjectStore, app: str, condition: str, table: str = "") -> SqlPredicate:
    """Return a predicate for a condition that must hold.

    A condition is about each row of one table (`balance >= 0`), or about an aggregate (`min(balance) >= 0`). It may
    also be a SELECT over any tables that returns one boolean, or a combination of such SELECTs. As with CHECK in SQL,
    the condition holds if the result is NULL, for example for `min(balance)` of an empty table.

    The app's newest versions define the columns. `table` names the condition's table; if empty, it is the one table
    that has all columns of the condition.

    Raises:
        Usage: the condition is malformed, or its columns are in no table or in several tables.
        NotFound: the app or table does not exist.
    """
    return _parse_condition(store, app, condition, table, "check")


def _parse_condition(
    store: ObjectStore, app: str, condition: str, table: str, option: Literal["check", "where"]
) -> SqlPredicate:
    typed, condition, wrong = condition, strip_comments(condition), _NEGATIONS[option]
    tables = {name: head.table for name, head in read_line(store, app).heads.tables.items() if head.table is not None}
    if table and table not in tables:
        raise NotFound("table", table, tables)
    with sandboxed_database({name: visible_schema(table).empty_table() for name, table in tables.items()}) as con:
        if (query := _standalone_query(con, condition)) is not None:
            _check_is_condition(con, query, condition)
            return SqlPredicate(_SELECT_FAILED_CHECKS.format(query=query, wrong=wrong), typed)
        matches, failures = list[str](), dict[str, SlackwaterError]()
        for name in (table,) if table else tables:
            query = _CONDITION_ON_TABLE.format(condition=condition, table=quote_identifier(name))
            try:
                _check_is_condition(con, query, condition)
                matches.append(name)
            except duckdb.Error as error:
                failures[name] = as_user_error(con, query, error)
        if len(matches) == 1:
            over = {"condition": condition, "table": quote_identifier(matches[0])}
            query = _SELECT_WRONG_ROWS.format(**over, wrong=wrong)
            try:
                con.sql(query)
            except duckdb.BinderException:  # WHERE takes no aggregates or window functions
                query = _SELECT_FAILED_CHECKS.format(query=_CONDITION_ON_TABLE.format(**over), wrong=wrong)
            return SqlPredicate(query, typed)
    if matches:
        hint = f"name the table: {app}/{matches[0]}"
        raise Usage(f"the {option} {typed!r} is ambiguous: its columns are in {' and '.join(matches)}", hint=hint)
    hint = f"a {option} is a condition over one table's columns, such as {_EXAMPLES[option]}"
    missing = {error.name for error in failures.values() if isinstance(error, NotFound)}
    if len(missing) == 1 and all(isinstance(error, NotFound) for error in failures.values()):
        columns = {field.name for name in failures for field in visible_schema(tables[name])}
        raise NotFound("column", missing.pop(), columns, hint=hint)
    reasons = "\n".join(f"{name}: {error.message}" for name, error in failures.items())
    raise Usage(f"the {option} {typed!r} fits no table of {app}", quoted=reasons, hint=hint)


def _standalone_query(con: duckdb.DuckDBPyConnection, condition: str) -> str | None:
    try:
        statements = con.extract_statements(condition)
    except duckdb.ParserException:
        statements = []
    if statements:
        if len(statements) > 1 or statements[0].type.name != "SELECT":
            raise Usage(f"a check only reads: expected a condition or one SELECT, found {condition!r}")
        return condition
    alone = _CONDITION_WITHOUT_TABLE.format(condition=condition)
    if re.search(r"\b(select|from)\b", condition, re.IGNORECASE):
        with suppress(duckdb.Error):
            con.sql(alone)
            return alone
    return None


def _check_is_condition(con: duckdb.DuckDBPyConnection, query: str, condition: str) -> None:
    if len(con.extract_statements(query)) != 1:
        raise Usage(f"a check only reads: expected a condition or one SELECT, found {condition!r}")
    types = [str(column_type) for column_type in con.sql(query).types]
    if types != ["BOOLEAN"]:
        raise Usage(
            f"the check {condition!r} returns {', '.join(types)}; expected one BOOLEAN",
            hint='compare it with something: "min(balance) >= 0"',
        )
