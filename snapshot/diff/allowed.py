"""Differences that are meant: a query over those of one table names keys, and these are left out."""

from collections.abc import Iterable, Mapping
from contextlib import closing

import duckdb
import numpy as np
import pyarrow as pa

from ...errors import SlackwaterError, Usage
from ...store.read.duckdb_view import quoted
from ...store.sst.showable import showable
from ...store.sst.types import arrow_schema
from ...store.versions.manifest import Table
from ..query import row_local
from ..query.columns import visible_schema
from ..query.sql import empty_database, in_words, reading, run_query
from .key_changes import KeyChanges
from .moments import TableDiff


def only_in(one: pa.Table, other: pa.Table) -> pa.Table:
    """Return the rows that `one` has more often than `other`: all of them if their columns differ."""
    if not one.num_columns or one.schema.names != other.schema.names:
        return one
    return row_local.only_in(one, other)


def check(queries: Iterable[str], tables: Mapping[str, Table | None]) -> None:
    """See that each query is over the differences of one of these tables, before there are any, and returns its key.

    Of a table with None the columns are not known yet: what is wrong with these, `without` finds. Raises `Usage` where
    a query is wrong or names no single table, and `NotFound` where it names a column that there is not.
    """
    known = {name: table for name, table in tables.items() if table is not None}
    with closing(_database({name: _no_differences(table).flat() for name, table in known.items()})) as con:
        for sql in queries:
            named = _named(sql, tables)
            if len(named) != 1:
                found = f"it names {' and '.join(named)}" if named else "it names none of them"
                raise Usage(
                    f"differences that are meant are told by a query over those of one table, of {', '.join(tables)}; "
                    f"{found}",
                    quoted=f"query: {sql.strip()}",
                )
            if (table := known.get(named[0])) is not None:
                _meant(con, named[0], sql, [column.name for column in table.key])


def without_all(found: tuple[TableDiff, ...], queries: Iterable[str]) -> tuple[tuple[TableDiff, ...], tuple[str, ...]]:
    """The differences of tables but for the keys that queries return, and which of these could not say, and why.

    Such as one over a column that has gone: what was found is not lost for it.
    """
    wrong = []
    for sql in queries:
        try:
            found = tuple(without(each, sql) for each in found)
        except SlackwaterError as error:
            wrong.append(f"{error.sentence} ({sql.strip()})")
    return found, tuple(wrong)


def without(found: TableDiff, sql: str) -> TableDiff:
    """The differences of a table but for the keys that a query returns, if it is over this table.

    It sees the differences as a table of that name: the key, `change` (added, removed or changed) and each value column
    as `before_…` and `after_…`. Raises `Usage` where it is wrong or does not return the key, `NotFound` where it names
    a column that there is not, and `SlackwaterError` where it could not be carried out.
    """
    if not _named(sql, [found.table]):
        return found
    key = found.changes.keys.column_names
    # Keys of any type are told apart by their place.
    with closing(_database({found.table: found.changes.flat()})) as con:
        con.register("_meant", _meant(con, found.table, sql, key))
        con.register(
            "_all", showable(found.changes.keys).append_column("_place", pa.array(np.arange(len(found.changes))))
        )
        same = " AND ".join(f"a.{quoted(name)} IS NOT DISTINCT FROM m.{quoted(name)}" for name in key)
        left = con.sql(f"SELECT _place FROM _all a ANTI JOIN _meant m ON {same} ORDER BY _place").to_arrow_table()
    return found.only(left["_place"].to_numpy())


def _database(tables: Mapping[str, pa.Table]) -> duckdb.DuckDBPyConnection:
    """One that sees these tables, and nothing else of this machine."""
    con = empty_database()
    for name, rows in tables.items():
        con.register(name, showable(rows))
    con.execute("SET enable_external_access = false")
    con.execute("SET lock_configuration = true")
    return con


def _named(sql: str, tables: Iterable[str]) -> list[str]:
    """Those of the tables that a statement is over, which must be one that reads."""
    # DuckDB names only those that it does not have.
    with closing(_database({})) as con:
        try:
            named = {name.casefold() for name in con.get_table_names(reading(con, sql, hint=""))}
        except duckdb.Error as error:
            raise in_words(con, sql, error) from error
    return [name for name in tables if name.casefold() in named]


def _meant(con: duckdb.DuckDBPyConnection, table: str, sql: str, key: list[str]) -> pa.Table:
    rows = run_query(con, sql, hint="")
    if missing := [name for name in key if name not in rows.column_names]:
        raise Usage(
            f"the differences of {table} that are meant are named by their key: {', '.join(missing)} is not among the "
            "columns of this query",
            quoted=f"query: {sql.strip()}",
        )
    return rows.select(key)


def _no_differences(table: Table) -> KeyChanges:
    keys = arrow_schema(table.key).empty_table()
    values = visible_schema(table).empty_table().drop_columns(keys.column_names)
    nothing = np.zeros(0, np.bool_)
    return KeyChanges.between(keys, values, values, nothing, nothing)
