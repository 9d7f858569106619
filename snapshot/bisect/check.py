"""A condition that must hold, as the query that returns rows when it does not."""

import re

import duckdb

from ...errors import NotFound, Usage
from ...store.objects.protocol import ObjectStore
from ...store.read.duckdb_view import quoted
from ..cut.moments import line_of
from ..query.columns import visible_schema
from .predicate import Where

_ALONE = "SELECT ({condition}) AS holds"
_OVER = _ALONE + " FROM {table}"
"""Of an aggregate one row, else one for each of the table's."""
_ROWS = "SELECT * FROM {table} WHERE NOT ({condition})"
"""The rows for which it does not hold, with their keys."""
_FAILS = "SELECT * FROM ({query}) AS checked(holds) WHERE NOT holds"


def check(store: ObjectStore, app: str, condition: str, table: str = "") -> Where:
    """The predicate that a condition does not hold.

    A condition is over the rows of one table: each of them (`balance >= 0`), or an aggregate (`min(balance) >= 0`).
    Or it is a whole SELECT that returns it, or made of those, over any tables. As with CHECK in SQL, one that is
    NULL holds: so it does for a table without rows, where `min(balance)` is NULL.

    Args:
        store: the store of the app.
        app: name of the app; its newest versions say which columns there are.
        condition: the condition, in SQL.
        table: the table whose columns it names; default the only one that has them all.

    Raises:
        Usage: it is no condition, or no table or several have its columns.
        NotFound: there is no such app or table.
    """
    said = condition
    if "--" in condition:
        condition += "\n"  # a comment ends there
    tables = {name: head.table for name, head in line_of(store, app).heads.tables.items() if head.table is not None}
    if table and table not in tables:
        raise NotFound("table", table, tables)
    with duckdb.connect(config={"python_enable_replacements": "false", "enable_external_access": "false"}) as con:
        for name, declared in tables.items():
            con.register(name, visible_schema(declared).empty_table())
        if (query := _whole_query(con, condition)) is not None:
            _bind(con, query, condition)
            return Where(_FAILS.format(query=query), said)
        failures = {}
        for name in (table,) if table else tables:
            try:
                _bind(con, _OVER.format(condition=condition, table=quoted(name)), condition)
            except duckdb.Error as error:
                failures[name] = error
        found = [name for name in ((table,) if table else tables) if name not in failures]
        if len(found) == 1:
            return Where(_of_table(con, condition, quoted(found[0])), said)
    if found:
        raise Usage(f"the check {condition!r} may be over {' or '.join(found)}", hint=f"say which: --table {found[0]}")
    reasons = "\n".join(f"{name}: {str(error).partition(chr(10))[0]}" for name, error in failures.items())
    raise Usage(
        f"the check {condition!r} fits no table of {app}",
        quoted=reasons,
        hint='a check is a condition over one table\'s columns, as "min(balance) >= 0", or a SELECT that returns one',
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
        return condition.rstrip().rstrip(";")
    alone = _ALONE.format(condition=condition)
    if re.search(r"\b(select|from)\b", condition, re.IGNORECASE):
        try:
            con.sql(alone)
        except duckdb.Error:
            return None
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


def _of_table(con: duckdb.DuckDBPyConnection, condition: str, table: str) -> str:
    rows = _ROWS.format(condition=condition, table=table)
    try:
        con.sql(rows)
    except duckdb.BinderException:  # aggregates and windows have no place behind WHERE
        return _FAILS.format(query=_OVER.format(condition=condition, table=table))
    return rows
