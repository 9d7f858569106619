"""What "wrong" means: a predicate, asked at any cut; a query that then returns rows, or a condition that fails."""

import re
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import ClassVar, Literal, Protocol

import duckdb
import pyarrow as pa

from ...errors import NotFound, Usage
from ...store.objects.protocol import ObjectStore
from ...store.read.cache import SstCache
from ...store.read.duckdb_view import quoted
from ...store.versions.manifest import Manifest
from ..cut.graph import Cut
from ..cut.kafka_topics import Topics
from ..cut.moments import line_of
from ..query.answers import answer
from ..query.clauses import bare
from ..query.columns import visible_schema
from ..query.hidden import names_of
from ..query.sql import Bounds, is_condition, is_statement, named_tables, names_channels


@dataclass(frozen=True, slots=True)
class Context:
    """Where a predicate is asked: a cut, and what it takes to read it."""

    store: ObjectStore
    """Has the SSTs that the cut's manifests name."""
    cache: SstCache
    cut: Cut
    """Any consistent cut, also one that was never committed."""
    later: Mapping[str, Manifest] = field(default_factory=dict)
    """Later versions of stages: the tables and channels that only they have are shown without rows."""
    only: Collection[str] | None = None
    """The tables to open; None for those that the predicate names."""
    reader: Topics | None = None
    """Reads records in flight."""
    ref: str = ""
    """Names the cut; empty for one that was never committed, or before the first commit."""


class Predicate(Protocol):
    """What is wrong at a cut. Depends on the rows of the cut alone: the same rows, the same answer."""

    @property
    def text(self) -> str:
        """How messages call it: what was typed."""
        ...

    @property
    def sql(self) -> str:
        """A query that returns rows when something is wrong, for whoever wants to look; empty where code decides."""
        ...

    @property
    def channels(self) -> bool:
        """Whether it may ask for records in flight."""
        ...

    def tables(self, cut: Cut) -> frozenset[str]:
        """The tables of a cut that decide what it says."""
        ...

    def names(self, table: str) -> bool:
        """Whether it asks for this table by its name."""
        ...

    def rows(self, at: Context, max_rows: int) -> pa.Table:
        """What is wrong at a cut, up to `max_rows` rows; without rows nothing is.

        Raises:
            Skip: it says itself that it cannot judge this cut.
            Usage: it is malformed, or fails on what is at the cut.
            NotFound: the cut lacks a table or column that it names.
            Gone: records in flight are gone from Kafka.
            Corruption: an SST is not what its manifest promises.
            Unavailable: storage did not answer.
        """
        ...


class Skip(Exception):
    """A predicate cannot judge this cut; the message says why. Nothing is wrong with the request.

    `lacks` when that is for want of a table or column.
    """

    def __init__(self, why: str, *, lacks: bool = False) -> None:
        super().__init__(why)
        self.lacks = lacks


class Wanted(Exception):
    """A person is to say what a moment is; `ref` is empty for the one before the first commit.

    `left` is how many will follow, as far as one can tell.
    """

    def __init__(self, cut: Cut, ref: str = "", left: int = 0) -> None:
        super().__init__(ref)
        self.cut, self.ref, self.left = cut, ref, left


@dataclass(frozen=True, slots=True)
class OfAllTables:
    """What holds of code, and of a person: nobody knows which tables they look at."""

    text: str
    sql: ClassVar[str] = ""
    channels: ClassVar[bool] = False

    def tables(self, cut: Cut) -> frozenset[str]:
        return frozenset(cut.tables)

    def names(self, table: str) -> bool:
        return False


@dataclass(frozen=True, slots=True)
class ByHand(OfAllTables):
    """No predicate: a person looks. Every stage counts then, and what it sent."""

    text: str = "by hand"
    channels: ClassVar[bool] = True

    def rows(self, at: Context, max_rows: int) -> pa.Table:
        raise Wanted(at.cut)


@dataclass(frozen=True, slots=True)
class Where:
    """SQL that returns rows when something is wrong. Rows with a table's key columns name the keys that are."""

    sql: str
    typed: str = ""
    """What was typed, where it was not SQL."""
    bounds: Bounds | None = None
    """What it may take and see; None for what its user may."""

    @property
    def text(self) -> str:
        return self.typed or self.sql

    @property
    def channels(self) -> bool:
        return names_channels(self.sql)

    def tables(self, cut: Cut) -> frozenset[str]:
        return named_tables(self.sql, cut)

    def names(self, table: str) -> bool:
        return re.search(rf"\b{re.escape(table)}\b", self.sql, re.IGNORECASE) is not None

    def rows(self, at: Context, max_rows: int) -> pa.Table:
        rows = answer(
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
        # Its keys are looked for in tables.
        return names_of(self.bounds.secret).restored(rows) if self.bounds and self.bounds.secret else rows


_ALONE = "SELECT ({condition}) AS holds"
_OVER = _ALONE + " FROM {table}"
"""Of an aggregate one row, else one for each of the table's."""
_ROWS = "SELECT * FROM {table} WHERE {wrong}({condition})"
"""The rows that are wrong, with their keys."""
_FAILS = "SELECT * FROM ({query}) AS checked(holds) WHERE {wrong}holds"
_WRONG = {"check": "NOT ", "where": ""}
"""A check must hold; what a where says is wrong."""
_EXAMPLES = {
    "check": '"min(balance) >= 0", or a SELECT that returns one',
    "where": '"balance < 0", or a SELECT that returns rows',
}


def where(store: ObjectStore, app: str, sql: str, table: str = "") -> Where:
    """The predicate that a query returns rows; or that a condition, as `check` takes it, holds: of a row or aggregate.

    So `balance < 0` are the rows of the one table that has this column, `max(balance) > 100` is an aggregate of it, and
    one that is NULL is not wrong. Raises as `check`, and `Usage` where `table` is given beside a whole query.
    """
    if is_condition(sql):
        return _over(store, app, sql, table, "where")
    if table and is_statement(sql):
        raise Usage(
            f"a table is given, {table}, beside a whole query, which names its own tables",
            hint=f"give a condition over the columns of {table}, or leave the table away",
        )
    return Where(sql)


def check(store: ObjectStore, app: str, condition: str, table: str = "") -> Where:
    """The predicate that a condition does not hold.

    A condition is over the rows of one table: each of them (`balance >= 0`), or an aggregate (`min(balance) >= 0`).
    Or it is a whole SELECT that returns it, or made of those, over any tables. As with CHECK in SQL, one that is
    NULL holds: so it does for a table without rows, where `min(balance)` is NULL.

    The app's newest versions say which columns there are; `table` is the table whose columns it names, empty for the
    only one that has them all.

    Raises:
        Usage: it is no condition, or no table or several have its columns.
        NotFound: there is no such app or table.
    """
    return _over(store, app, condition, table, "check")


def _over(store: ObjectStore, app: str, condition: str, table: str, what: Literal["check", "where"]) -> Where:
    typed, condition, wrong = condition, bare(condition), _WRONG[what]
    tables = {name: head.table for name, head in line_of(store, app).heads.tables.items() if head.table is not None}
    if table and table not in tables:
        raise NotFound("table", table, tables)
    with duckdb.connect(config={"python_enable_replacements": "false", "enable_external_access": "false"}) as con:
        for name, declared in tables.items():
            con.register(name, visible_schema(declared).empty_table())
        if (query := _whole_query(con, condition)) is not None:
            _bind(con, query, condition)
            return Where(_FAILS.format(query=query, wrong=wrong), typed)
        found, failures = list[str](), dict[str, duckdb.Error]()
        for name in (table,) if table else tables:
            try:
                _bind(con, _OVER.format(condition=condition, table=quoted(name)), condition)
                found.append(name)
            except duckdb.Error as error:
                failures[name] = error
        if len(found) == 1:
            over = {"condition": condition, "table": quoted(found[0])}
            query = _ROWS.format(**over, wrong=wrong)
            try:
                con.sql(query)
            except duckdb.BinderException:  # aggregates and windows have no place behind WHERE
                query = _FAILS.format(query=_OVER.format(**over), wrong=wrong)
            return Where(query, typed)
    if found:
        hint = f"say which: {app}/{found[0]}"
        raise Usage(f"the {what} {typed!r} may be over {' or '.join(found)}", hint=hint)
    reasons = "\n".join(f"{name}: {str(error).partition(chr(10))[0]}" for name, error in failures.items())
    raise Usage(
        f"the {what} {typed!r} fits no table of {app}",
        quoted=reasons,
        hint=f"a {what} is a condition over one table's columns, as {_EXAMPLES[what]}",
    )


def _whole_query(con: duckdb.DuckDBPyConnection, condition: str) -> str | None:
    """The query that returns the condition, when it is one, or names its tables by queries inside it."""
    try:
        statements = con.extract_statements(condition)
    except duckdb.ParserException:
        statements = []
    if statements:
        if len(statements) > 1 or statements[0].type.name != "SELECT":
            raise Usage(f"a check only reads: expected a condition or one SELECT, found {condition!r}")
        return condition
    alone = _ALONE.format(condition=condition)
    if re.search(r"\b(select|from)\b", condition, re.IGNORECASE):
        with suppress(duckdb.Error):
            con.sql(alone)
            return alone
    return None


def _bind(con: duckdb.DuckDBPyConnection, query: str, condition: str) -> None:
    """Raise `duckdb.Error` when the query does not fit the tables, and `Usage` when it returns no condition."""
    if len(con.extract_statements(query)) != 1:
        raise Usage(f"a check only reads: expected a condition or one SELECT, found {condition!r}")
    types = [str(each) for each in con.sql(query).types]
    if types != ["BOOLEAN"]:
        raise Usage(
            f"the check {condition!r} returns {', '.join(types)}; expected one BOOLEAN",
            hint='compare it with something: "min(balance) >= 0"',
        )
