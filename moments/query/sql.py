"""SQL over the tables of a cut: one DuckDB connection, one view a table, and no way to change anything.

DuckDB runs in this process over the immutable SSTs. Once the views stand, the connection may open exactly the files
behind them, its settings are locked, and only statements that read are let through: a user's SQL cannot write into the
store or look around on the machine.

Besides a cut's own tables there may be views of one at another moment, or at several versions with `_version` of each
row.
"""

import re
import tempfile
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from uuid import uuid4

import duckdb
import pyarrow as pa

from ...errors import NotFound, SlackwaterError, Usage
from ...store.objects.protocol import ObjectStore
from ...store.read import duckdb_versions, duckdb_view
from ...store.read.cache import SstCache
from ...store.read.duckdb_view import quoted
from ...store.versions.manifest import Table
from ..cut.graph import Cut
from .clauses import Versions
from .columns import visible_schema
from .moments import ClauseTable

SCHEMA_NAME = "inflight"
"""DuckDB schema of the channels' views, and name of the table macro that finds them."""

_READING = ("SELECT", "EXPLAIN", "MULTI")
"""Kinds of statements that may run. MULTI is how DuckDB sees a PIVOT."""

_TO_A_FILE = "--out writes a result to a file"
_EXPLAIN = re.compile(r"\s*EXPLAIN\s+(ANALYZE\s+)?(\([^)]*\)\s*)?", re.IGNORECASE)
_NO_TABLE = re.compile(r"Table with name \"?(.+?)\"? does not exist")
_NO_COLUMN = re.compile(
    r"Referenced (?:update )?column \"?([^\"]+?)\"? not found|does not have a column named \"([^\"]+)\""
)


def connect(
    store: ObjectStore,
    cache: SstCache,
    cut: Cut,
    *,
    only: Collection[str] | None = None,
    empty: Mapping[str, Table] | None = None,
    channels: Mapping[str, pa.Table] | None = None,
    others: Sequence[ClauseTable] = (),
    whole: str = "",
    memory: str = "",
) -> duckdb.DuckDBPyConnection:
    """A connection with one view per table of the cut, named as its stage; for the caller to close.

    The views use the cache, so it must outlive the connection. Tables that are not among `only`, as `named_tables`
    finds it, are shown without rows (None opens all), and so are those in `empty` that the cut does not hold. The
    `channels`, as `channel_tables` gives them, are seen as `inflight('by-route')`, or as `inflight."by-route"`. Tables
    at other moments are in `others`. The table `whole` has its internal columns, too. `memory` is what DuckDB may take
    before it goes to disk, such as "1 GiB"; empty for its own bound.

    Raises `Corruption` (an SST is not what its manifest promises) and `Unavailable`.
    """
    con = empty_database()
    try:
        opened = {name: manifest for name, manifest in cut.tables.items() if only is None or name in only}
        files: set[Path] = set()
        for name, manifest in opened.items():
            files |= duckdb_view.register(
                con, name, store, cache, manifest, clock_ms=cut.clock_ms(name), internal=name == whole
            )
        declared = {name: manifest.table for name, manifest in cut.tables.items() if manifest.table is not None}
        for name, table in {**(empty or {}), **declared}.items():
            if name not in opened:
                con.register(name, visible_schema(table).empty_table())
        if channels is not None:
            con.execute(f"CREATE SCHEMA {SCHEMA_NAME}")
            for number, (name, rows) in enumerate(channels.items()):
                con.register(f"_channel_{number}", rows)
                con.execute(f"CREATE VIEW {SCHEMA_NAME}.{quoted(name)} AS SELECT * FROM _channel_{number}")
            # Between the quotes of a shell, a string is easier to write than a quoted name.
            con.execute(
                f"CREATE MACRO {SCHEMA_NAME}(channel) AS TABLE "
                f"""SELECT * FROM query_table('{SCHEMA_NAME}."' || replace(channel, '"', '""') || '"')"""
            )
        for each in others:
            files |= register(con, store, cache, each)
        if memory:
            con.execute("SET memory_limit = $memory", {"memory": memory})
        con.execute("SET allowed_paths = $files", {"files": sorted(map(str, files))})
        con.execute("SET enable_external_access = false")
        con.execute("SET lock_configuration = true")
    except BaseException:
        con.close()
        raise
    return con


def empty_database() -> duckdb.DuckDBPyConnection:
    """A database in memory, for the caller to close."""
    # DuckDB makes this folder when a query does not fit into memory, and removes it with the connection.
    spill = Path(tempfile.gettempdir()) / f"slackwater-duckdb-{uuid4().hex}"
    # Python's own variables are no tables of anybody's app.
    return duckdb.connect(config={"python_enable_replacements": "false", "temp_directory": str(spill)})


def named_tables(sql: str, cut: Cut, *, or_all: bool = True) -> frozenset[str]:
    """The tables that decide what a statement returns: those it names; all, if it may name them otherwise.

    The others need not be opened, and damage to them does no harm. `or_all` is whether a statement that names none has
    others in mind.
    """
    text = sql.casefold()
    named = frozenset(name for name in cut.tables if name.casefold() in text)
    # The table functions query() and query_table() take names as data.
    return frozenset(cut.tables) if (or_all and not named) or "query" in text else named


def run_query(
    con: duckdb.DuckDBPyConnection, sql: str, *, max_rows: int | None = None, hint: str = _TO_A_FILE
) -> pa.Table:
    """The rows of one reading statement; at most `max_rows` of them, when that is given.

    `hint` is what to do instead of a statement that writes. Raises `Usage` (the SQL is wrong, more than one statement
    or none, or one that does not only read: in DuckDB's own words), `NotFound` (it names a table or column that the cut
    does not have; tells the nearest) and `SlackwaterError` (duckDB could not carry it out (for example for want of
    memory)).
    """
    statement = reading(con, sql, hint=hint)
    try:
        rows = con.sql(statement)
        return (rows if max_rows is None else rows.limit(max_rows)).to_arrow_table()
    except duckdb.Error as error:
        raise in_words(con, sql, error) from error


def reading(con: duckdb.DuckDBPyConnection, sql: str, *, hint: str = _TO_A_FILE) -> str:
    """The text of the one statement in `sql`, which no table is looked up for.

    Raises `Usage` where it is wrong, or not one that only reads.
    """
    try:
        statements, query = con.extract_statements(sql), f"query: {sql.strip()}"
    except duckdb.Error as error:
        raise in_words(con, sql, error) from error
    if len(statements) != 1:
        raise Usage(f"expected one SQL statement, found {len(statements)}", quoted=query)
    kind = statements[0].type.name
    if kind == "EXPLAIN":
        # EXPLAIN ANALYZE carries out what it explains.
        explained, found = _EXPLAIN.subn("", statements[0].query, count=1)
        reading(con, explained if found else "", hint=hint)
    elif kind not in _READING:
        raise Usage(
            f"this is a {kind} statement; a query can only read, with SELECT, FROM, DESCRIBE, SUMMARIZE or EXPLAIN",
            quoted=query,
            hint=hint,
        )
    return str(statements[0].query)


def in_words(con: duckdb.DuckDBPyConnection, sql: str, error: duckdb.Error) -> SlackwaterError:
    """DuckDB's error as one of ours: `Usage`, `NotFound` with the nearest name, or what says that it could not."""
    words, query = str(error).strip(), f"query: {sql.strip()}"
    if isinstance(error, duckdb.CatalogException) and (match := _NO_TABLE.search(words)):
        return NotFound("table", match[1], _columns(con), hint=query)
    if isinstance(error, duckdb.BinderException) and (match := _NO_COLUMN.search(words)):
        tables, text = _columns(con), sql.casefold()
        # What another table has is no help, such as what is kept of rejected records.
        named = [names for table, names in tables.items() if table.casefold() in text] or list(tables.values())
        known = {column for names in named for column in names}
        return NotFound("column", match[1] or match[2], known, hint=query)
    sentence, _, more = words.partition("\n")
    quoted = "\n".join(filter(None, (more.strip("\n"), query)))
    if isinstance(error, duckdb.PermissionException):
        return SlackwaterError(
            sentence, quoted=quoted, hint="a query sees the app's tables only, no file and no setting"
        )
    if isinstance(error, duckdb.ProgrammingError | duckdb.DataError | duckdb.NotSupportedError):
        return Usage(sentence, quoted=quoted)
    return SlackwaterError(sentence, quoted=quoted)


def _columns(con: duckdb.DuckDBPyConnection) -> dict[str, list[str]]:
    """The visible columns of each table."""
    found = con.execute("SELECT table_name, column_name FROM duckdb_columns() WHERE NOT internal").fetchall()
    columns: dict[str, list[str]] = {}
    for table, column in found:
        columns.setdefault(table, []).append(column)
    return columns


def register(
    con: duckdb.DuckDBPyConnection, store: ObjectStore, cache: SstCache, other: ClauseTable
) -> frozenset[Path]:
    """Make the view of a clause, and none for a table that nobody knows. Returns the files that it reads.

    At several versions each row has `_version` and `_committed_at`, and a row that did not change is there once for
    each of them. Raises `Corruption` (an SST is not what its manifest promises) and `Unavailable`.
    """
    schema, name = other.clause.view
    con.execute(f"CREATE SCHEMA IF NOT EXISTS {quoted(schema)}")
    if other.table is None:
        return frozenset()
    table, behind = other.clause.table, f"{schema} {other.clause.table}"
    cuts = [cut for cut in other.cuts if table in cut.tables]
    manifests = [cut.tables[table] for cut in cuts]
    is_numbered = isinstance(other.clause, Versions)
    files: frozenset[Path] = frozenset()
    if not any(manifest.ssts for manifest in manifests):
        numbers = (pa.field("_version", pa.int64()), pa.field("_committed_at", pa.timestamp("us", "UTC")))
        columns = (*visible_schema(other.table), *(numbers if is_numbered else ()))
        con.register(behind, pa.schema(columns).empty_table())
    elif is_numbered:
        files = duckdb_versions.register(con, behind, store, cache, manifests)
    else:
        files = duckdb_view.register(con, behind, store, cache, manifests[0], clock_ms=cuts[0].clock_ms(table))
    con.execute(f"CREATE OR REPLACE VIEW {quoted(schema)}.{quoted(name)} AS SELECT * FROM {quoted(behind)}")
    return files
