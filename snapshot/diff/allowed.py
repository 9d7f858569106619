"""Expected differences: an SQL query over the differences of a table returns keys that are not reported."""

from collections.abc import Iterable, Mapping
from contextlib import closing

import duckdb
import numpy as np
import pyarrow as pa

from ...errors import SlackwaterError, Usage
from ...store.read.duckdb_view import quoted
from ...store.sst.arrow_types import showable
from ...store.sst.schema import arrow_schema
from ...store.versions.manifest import Table
from ..query import row_local
from ..query.columns import visible_schema
from ..query.sql import empty_database, in_words, reading, run_query
from .key_changes import KeyChanges
from .moments import TableDiff


def only_in(rows: pa.Table, other: pa.Table) -> pa.Table:
    """Return the rows that `rows` has more often than `other`: all of them if their columns differ."""
    if not rows.num_columns or rows.schema.names != other.schema.names:
        return rows
    return row_local.only_in(rows, other)


def check(queries: Iterable[str], tables: Mapping[str, Table | None]) -> None:
    """Check that each query reads the differences of exactly one of these tables and returns its key columns.

    Called before any difference exists. A table of None has columns that are not known yet; `without` checks queries
    over such a table. Raises `Usage` (a query is wrong, or does not read exactly one table) and `NotFound` (no such
    column).
    """
    declared = {name: table for name, table in tables.items() if table is not None}
    with closing(_database({name: _no_differences(table).flat() for name, table in declared.items()})) as con:
        for sql in queries:
            queried = _tables_read(sql, tables)
            if len(queried) != 1:
                reason = f"this one reads {' and '.join(queried)}" if queried else "this one reads none of them"
                raise Usage(
                    f"a query for expected differences must read exactly one table, of {', '.join(tables)}; {reason}",
                    quoted=f"query: {sql.strip()}",
                )
            if (table := declared.get(queried[0])) is not None:
                _expected_keys(con, queried[0], sql, [column.name for column in table.key])


def without_all(diffs: tuple[TableDiff, ...], queries: Iterable[str]) -> tuple[tuple[TableDiff, ...], tuple[str, ...]]:
    """Return the differences without the keys that the queries return, and the errors of queries that failed.

    A failed query, such as one over a dropped column, removes nothing.
    """
    wrong = []
    for sql in queries:
        try:
            diffs = tuple(without(table_diff, sql) for table_diff in diffs)
        except SlackwaterError as error:
            wrong.append(f"{error.sentence} ({sql.strip()})")
    return diffs, tuple(wrong)


def without(table_diff: TableDiff, sql: str) -> TableDiff:
    """Return the differences of a table without the keys that a query returns; unchanged if it reads another table.

    The query reads the differences as a table of the same name: the key columns, `change` (added, removed or changed)
    and each value column as `before_…` and `after_…`. Raises `Usage` (the query is wrong, or does not return the key),
    `NotFound` (no such column) and `SlackwaterError` (the query failed).
    """
    if not _tables_read(sql, [table_diff.table]):
        return table_diff
    key = table_diff.changes.keys.column_names
    # The position identifies a key of any type.
    with closing(_database({table_diff.table: table_diff.changes.flat()})) as con:
        con.register("_meant", _expected_keys(con, table_diff.table, sql, key))
        con.register(
            "_all",
            showable(table_diff.changes.keys).append_column("_place", pa.array(np.arange(len(table_diff.changes)))),
        )
        same = " AND ".join(f"a.{quoted(name)} IS NOT DISTINCT FROM m.{quoted(name)}" for name in key)
        unexpected = con.sql(f"SELECT _place FROM _all a ANTI JOIN _meant m ON {same} ORDER BY _place").to_arrow_table()
    return table_diff.only(unexpected["_place"].to_numpy())


def _database(tables: Mapping[str, pa.Table]) -> duckdb.DuckDBPyConnection:
    """Return an in-memory DuckDB connection with these tables and without access to files or the network."""
    con = empty_database()
    for name, rows in tables.items():
        con.register(name, showable(rows))
    con.execute("SET enable_external_access = false")
    con.execute("SET lock_configuration = true")
    return con


def _tables_read(sql: str, tables: Iterable[str]) -> list[str]:
    """Return those of the tables that a SELECT statement reads."""
    # DuckDB lists only tables that the connection does not have.
    with closing(_database({})) as con:
        try:
            named = {name.casefold() for name in con.get_table_names(reading(con, sql, hint=""))}
        except duckdb.Error as error:
            raise in_words(con, sql, error) from error
    return [name for name in tables if name.casefold() in named]


def _expected_keys(con: duckdb.DuckDBPyConnection, table: str, sql: str, key: list[str]) -> pa.Table:
    """Run the query and return its key columns. Raises `Usage` if one is missing."""
    rows = run_query(con, sql, hint="")
    if missing := [name for name in key if name not in rows.column_names]:
        raise Usage(
            f"a query for expected differences of {table} must return its key: {', '.join(missing)} is not among the "
            "columns of this query",
            quoted=f"query: {sql.strip()}",
        )
    return rows.select(key)


def _no_differences(table: Table) -> KeyChanges:
    """Return an empty `KeyChanges` with the columns of a table."""
    keys = arrow_schema(table.key).empty_table()
    values = visible_schema(table).empty_table().drop_columns(keys.column_names)
    nothing = np.zeros(0, np.bool_)
    return KeyChanges.between(keys, values, values, nothing, nothing)
