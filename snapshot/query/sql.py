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
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Timer
from uuid import uuid4

import duckdb
import pyarrow as pa

from ...errors import NotFound, SlackwaterError, TooMuch, Usage
from ...store.objects.protocol import ObjectStore
from ...store.read import duckdb_versions, duckdb_view
from ...store.read.cache import SstCache
from ...store.read.duckdb_view import quoted
from ...store.versions.manifest import Table
from ..cut.graph import Cut
from ..cut.stored import ADDRESS
from .clauses import InputOf, Statement, Versions, bare, understand, words
from .columns import visible_schema
from .hidden import Cover, is_behind
from .moments import ClauseTable

SCHEMA_NAME = "inflight"
"""DuckDB schema of the channels' views, and name of the table macro that finds them."""

VERSIONS = ("_version", "_committed_at")
"""Columns of a table at several versions that have no values."""
PLACES = (*ADDRESS, "_receiver")
"""Those of records on their way."""

_READING = ("SELECT", "EXPLAIN", "MULTI")
"""Kinds of statements that may run. MULTI is how DuckDB sees a PIVOT."""

_TO_A_FILE = "--out writes a result to a file"
_EXPLAIN = re.compile(r"\s*EXPLAIN\s+(ANALYZE\s+)?(\([^)]*\)\s*)?", re.IGNORECASE)
_NO_TABLE = re.compile(r"Table with name \"?(.+?)\"? does not exist")
_NO_COLUMN = re.compile(
    r"Referenced (?:update )?column \"?([^\"]+?)\"? not found|does not have a column named \"([^\"]+)\""
)


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a statement of somebody who is not to be trusted may take and see."""

    seconds: float = 10.0
    """After so long it is interrupted; not within one call of a function."""
    memory_mb: int = 512
    """MiB that DuckDB may take; it does not go to disk."""
    max_bytes: int = 64 << 20
    """Of the rows that it returns."""
    tables: frozenset[str] | None = None
    """The tables that it may see; None for any, and for the records on the way and of the archive."""
    app: str = ""
    """The app of which alone it may name moments; empty for any."""
    secret: bytes = b""
    """What it sees names in the place of values by (`hidden`); empty where it may see values."""

    def allows(self, table: str) -> bool:
        """Whether a table may be seen."""
        return self.tables is None or table in self.tables

    def check_app(self, app: str) -> None:
        """Raise `NotFound` unless moments of that app may be named."""
        if self.app and app != self.app:
            raise NotFound("app", app, {self.app})

    def check(self, statement: Statement) -> None:
        """Raise `Usage` where a statement asks for something of the machine, and `NotFound` for a hidden table."""
        for word in words(statement.sql):
            name = word.value.casefold()
            if word.kind in ("name", "quoted") and (name in _OF_THE_MACHINE or name.startswith(_ABOUT_DUCKDB)):
                raise Usage(
                    f"{word.value} is not for queries from elsewhere", hint="a query sees the app's tables only"
                )
        if self.tables is None:
            return
        for clause in statement.clauses:
            if isinstance(clause, InputOf):
                raise NotFound("table", "input", self.tables)
            if clause.table not in self.tables:
                raise NotFound("table", clause.table, self.tables)
        if names_channels(statement.rest):
            raise NotFound("table", SCHEMA_NAME, self.tables)


_OF_THE_MACHINE = frozenset(
    # Those that take SQL or names as data would get round this very check; others take addresses of memory.
    {
        "query",
        "query_table",
        "json_execute_serialized_sql",
        "json_serialize_plan",
        "current_setting",
        "getenv",
        "explain",
        "which_secret",
    }
    | {"checkpoint", "force_checkpoint", "information_schema", "truncate_duckdb_logs", "seq_scan", "pandas_scan"}
    | {"arrow_scan", "arrow_scan_dumb", "python_arrow_scan", "python_map_function", "enable_logging"}
    | {"disable_logging", "enable_profiling", "disable_profiling", "create_external_resource"}
    | {"register_external_resource", "register_external_resource_type", "deregister_external_resource"}
    | {"destroy_external_resource"}
)
_ABOUT_DUCKDB = ("duckdb_", "pragma_", "pg_", "sqlite_", "read_", "sniff_", "parquet_", "write_log", "from_substrait")
"""What tells of settings and of the files behind views, and what reads files: these are refused once more."""


def names_channels(sql: str) -> bool:
    """Whether a query may ask for records in flight."""
    return re.search(rf"\b{SCHEMA_NAME}\b", sql, re.IGNORECASE) is not None


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
    bounds: Bounds | None = None,
) -> duckdb.DuckDBPyConnection:
    """A connection with one view per table of the cut, named as its stage; for the caller to close.

    The views use the cache, so it must outlive the connection. Tables that are not among `only`, as `named_tables`
    finds it, are shown without rows (None opens all), and so are those in `empty` that the cut does not hold. The
    `channels`, as `channel_tables` gives them, are seen as `inflight('by-route')`, or as `inflight."by-route"`. Tables
    at other moments are in `others`. The table `whole` has its internal columns, too. `memory` is what DuckDB may take
    before it goes to disk, such as "1 GiB"; empty for its own bound. With `bounds`, tables beyond them are not there.
    """
    con = empty_database()
    cover = cover_of(con, bounds)
    try:
        seen = {name: each for name, each in cut.tables.items() if bounds is None or bounds.allows(name)}
        opened = {name: manifest for name, manifest in seen.items() if only is None or name in only}
        files: set[Path] = set()
        for name, manifest in opened.items():
            files |= duckdb_view.register(
                con, cover.behind(name), store, cache, manifest, clock_ms=cut.clock_ms(name), internal=name == whole
            )
        declared = {name: manifest.table for name, manifest in seen.items() if manifest.table is not None}
        for name, table in {**(empty or {}), **declared}.items():
            if bounds is None or bounds.allows(name):
                if name not in opened:
                    con.register(cover.behind(name), visible_schema(table).empty_table())
                cover.put(quoted(name), cover.behind(name), order=[column.name for column in table.key])
        if channels is not None:
            con.execute(f"CREATE SCHEMA {SCHEMA_NAME}")
            for number, (name, rows) in enumerate(channels.items()):
                con.register(cover.behind(f"_channel_{number}"), rows)
                view = f"{SCHEMA_NAME}.{quoted(name)}"
                con.execute(f"CREATE VIEW {view} AS SELECT * FROM {quoted(cover.behind(f'_channel_{number}'))}")
                cover.put(view, cover.behind(f"_channel_{number}"), shown=PLACES)
            # Between the quotes of a shell, a string is easier to write than a quoted name.
            con.execute(
                f"CREATE MACRO {SCHEMA_NAME}(channel) AS TABLE "
                f"""SELECT * FROM query_table('{SCHEMA_NAME}."' || replace(channel, '"', '""') || '"')"""
            )
        for each in others:
            files |= register(con, store, cache, each, cover)
        if bounds is not None:
            con.execute("SET threads = 1")
            con.execute("SET enable_progress_bar = false")  # which a process that was forked has, as a shell's
            con.execute("SET max_temp_directory_size = '0 B'")
        if memory := f"{bounds.memory_mb} MiB" if bounds is not None else memory:
            con.execute("SET memory_limit = $memory", {"memory": memory})
        con.execute("SET allowed_paths = $files", {"files": sorted(map(str, files))})
        con.execute("SET enable_external_access = false")
        con.execute("SET lock_configuration = true")
    except BaseException:
        con.close()
        raise
    return con


def cover_of(con: duckdb.DuckDBPyConnection, bounds: Bounds | None) -> Cover:
    """How the views of a connection show values."""
    return Cover(con, bounds.secret if bounds is not None else b"")


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
    con: duckdb.DuckDBPyConnection,
    sql: str,
    *,
    max_rows: int | None = None,
    hint: str = _TO_A_FILE,
    bounds: Bounds | None = None,
) -> pa.Table:
    """The rows of one reading statement; at most `max_rows` of them, when that is given.

    `hint` is what to do instead of a statement that writes. With `bounds`, `TooMuch` where it goes beyond
    them. Raises `Usage` (the SQL is wrong, more than one statement
    or none, or one that does not only read: in DuckDB's own words), `NotFound` (it names a table or column that the cut
    does not have; tells the nearest) and `SlackwaterError` (duckDB could not carry it out (for example for want of
    memory)).
    """
    statement = reading(con, sql, hint=hint)
    try:
        if bounds is not None:
            return _bounded(con, statement, max_rows, bounds)
        rows = con.sql(statement)
        return (rows if max_rows is None else rows.limit(max_rows)).to_arrow_table()
    except duckdb.Error as error:
        raise in_words(con, sql, error) from error


def _bounded(con: duckdb.DuckDBPyConnection, statement: str, max_rows: int | None, bounds: Bounds) -> pa.Table:
    is_over = Event()

    def interrupt() -> None:
        is_over.set()
        con.interrupt()

    timer = Timer(bounds.seconds, interrupt)
    timer.daemon = True
    timer.start()
    try:
        rows = con.sql(statement)
        reader = (rows if max_rows is None else rows.limit(max_rows)).to_arrow_reader(2_048)
        parts, size = [], 0
        for part in reader:
            parts.append(part)
            size += part.nbytes
            if size > bounds.max_bytes:
                raise TooMuch(
                    f"the rows take more than {bounds.max_bytes >> 20} MiB", hint="ask for fewer columns or rows"
                )
        return pa.Table.from_batches(parts, reader.schema)
    except (duckdb.Error, OSError) as error:
        if is_over.is_set():
            raise TooMuch(f"the query took more than {bounds.seconds:g} s", hint="ask for less at once") from None
        if isinstance(error, OSError):  # Arrow's, of an error while rows came
            raise SlackwaterError(str(error).partition("\n")[0]) from None
        raise
    finally:
        timer.cancel()


def reading(con: duckdb.DuckDBPyConnection, sql: str, *, hint: str = _TO_A_FILE) -> str:
    """The text of the one statement in `sql`, which no table is looked up for.

    Raises `Usage` where it is wrong, or not one that only reads.
    """
    try:
        statements, query = con.extract_statements(sql), f"query: {sql.strip()}"
    except duckdb.Error as error:
        said = in_words(con, sql, error)
        if is_condition(sql):
            said.hint = f"this is a condition; write a whole query: FROM TABLE WHERE {sql.strip()}"
        raise said from error
    if len(statements) != 1:
        raise Usage(f"expected one SQL statement, found {len(statements)}", quoted=query)
    kind = statements[0].type.name
    if kind == "EXPLAIN":
        # EXPLAIN ANALYZE carries out what it explains.
        explained, found = _EXPLAIN.subn("", bare(statements[0].query), count=1)
        reading(con, explained if found else "", hint=hint)
    elif kind not in _READING:
        raise Usage(
            f"this is a {kind} statement; a query can only read, with SELECT, FROM, DESCRIBE, SUMMARIZE or EXPLAIN",
            quoted=query,
            hint=hint,
        )
    return bare(statements[0].query)


def is_condition(sql: str) -> bool:
    """Say if a text is a condition, such as stands behind WHERE, and no statement. Raises `Usage` as `understand`."""
    return not is_statement(sql) and is_statement(f"SELECT ({bare(sql)})", most=1)


def is_statement(sql: str, *, most: int = 1_000) -> bool:
    """Say if DuckDB can parse a text, as up to `most` statements. Raises `Usage` as `understand`."""
    with duckdb.connect() as con, suppress(duckdb.Error):
        return 0 < len(con.extract_statements(understand(sql).sql)) <= most
    return False


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
        if not is_behind(table):
            columns.setdefault(table, []).append(column)
    return columns


def register(
    con: duckdb.DuckDBPyConnection, store: ObjectStore, cache: SstCache, other: ClauseTable, cover: Cover
) -> frozenset[Path]:
    """Make the view of a clause, and none for a table that nobody knows. Returns the files that it reads.

    At several versions each row has `_version` and `_committed_at`, and a row that did not change is there once for
    each of them.
    """
    schema, name = other.clause.view
    con.execute(f"CREATE SCHEMA IF NOT EXISTS {quoted(schema)}")
    if other.table is None:
        return frozenset()
    table, behind = other.clause.table, cover.behind(f"{schema} {other.clause.table}")
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
    view = f"{quoted(schema)}.{quoted(name)}"
    con.execute(f"CREATE OR REPLACE VIEW {view} AS SELECT * FROM {quoted(behind)}")
    order = [*(column.name for column in other.table.key), *VERSIONS[:1] * is_numbered]
    cover.put(view, behind, VERSIONS if is_numbered else (), order)
    return files
