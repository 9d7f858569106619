"""SQL over the tables of a cut: a read-only DuckDB connection with one view per table.

DuckDB runs in this process over immutable SSTs. Once the views exist, the connection may open only the files behind
them, its settings are locked, and only reading statements are accepted. A user's SQL can neither write to the store nor
read other files of the machine.

There may also be views of a table at a given moment, or at several versions with the `_version` of each row.
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
from ...store.read import duckdb_view
from ...store.read.cache import SstCache
from ...store.read.duckdb_view import quoted
from ...store.versions.manifest import Table
from ..cut.graph import Cut
from ..cut.stored import ADDRESS
from .clauses import ClauseTable, InputOf, Statement, Versions, bare, understand, words
from .columns import visible_schema
from .hidden import Cover, is_behind

SCHEMA_NAME = "inflight"
"""DuckDB schema of the channels' views, and name of the table macro that looks them up."""

VERSIONS = ("_version", "_committed_at")
PLACES = (*ADDRESS, "_receiver")

_READING = ("SELECT", "EXPLAIN", "MULTI")
"""Kinds of statements that may run. DuckDB reports a PIVOT as MULTI."""

_TO_A_FILE = "--out writes a result to a file"
_EXPLAIN = re.compile(r"\s*EXPLAIN\s+(ANALYZE\s+)?(\([^)]*\)\s*)?", re.IGNORECASE)
_NO_TABLE = re.compile(r"Table with name \"?(.+?)\"? does not exist")
_NO_COLUMN = re.compile(
    r"Referenced (?:update )?column \"?([^\"]+?)\"? not found|does not have a column named \"([^\"]+)\""
)


@dataclass(frozen=True, slots=True)
class Bounds:
    """Limits on time, memory and visibility for the statements of untrusted users."""

    seconds: float = 10.0
    """Seconds after which a statement is interrupted. A single function call is not interrupted."""
    memory_mb: int = 512
    """Memory limit of DuckDB in MiB; DuckDB does not spill to disk."""
    max_bytes: int = 64 << 20
    tables: frozenset[str] | None = None
    app: str = ""
    secret: bytes = b""
    """Secret of the pseudonyms that are shown in place of values (`hidden`); empty if values are shown."""

    def allows(self, table: str) -> bool:
        return self.tables is None or table in self.tables

    def check_app(self, app: str) -> None:
        if self.app and app != self.app:
            raise NotFound("app", app, {self.app})

    def check(self, statement: Statement) -> None:
        """Raise `Usage` if a statement uses files or settings of the machine, and `NotFound` for a hidden table."""
        for word in words(statement.sql):
            name = word.value.casefold()
            if word.kind in ("name", "quoted") and (name in _OF_THE_MACHINE or name.startswith(_ABOUT_DUCKDB)):
                raise Usage(f"{word.value} is not allowed in remote queries", hint="a query sees the app's tables only")
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
    # Functions that take SQL or names as data would bypass this check; others take memory addresses.
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
"""Prefixes of functions that show settings or the files behind views, or read files.

Such functions are refused, in addition to DuckDB's own locks.
"""


def names_channels(sql: str) -> bool:
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
    """Open a connection with one view per table of the cut, named as the table. The caller closes it.

    The views use the cache, which must outlive the connection. Only tables in `only` (as `named_tables` returns it;
    None for all) are opened; the others are empty, and so are tables in `empty` that the cut lacks. The `channels` (as
    from `channel_tables`) are visible as `inflight('by-route')` or `inflight."by-route"`. `clause_tables` are resolved
    clauses. The view of `table_with_internals` also has internal columns. `memory` is DuckDB's limit before spilling to
    disk, such as "1 GiB"; empty for DuckDB's default. With `bounds`, hidden tables do not exist.
    """
    con = empty_database()
    cover = cover_of(con, bounds)
    try:
        declared = {name: manifest.table for name, manifest in cut.tables.items() if manifest.table is not None}
        shown = {
            name: table
            for name, table in {**(empty or {}), **declared}.items()
            if bounds is None or bounds.allows(name)
        }
        files: set[Path] = set()
        for name, table in shown.items():
            if name in declared and (only is None or name in only):
                clock_ms, manifest = cut.clock_ms(name), cut.tables[name]
                files |= duckdb_view.register(
                    con, cover.behind(name), store, cache, manifest, clock_ms=clock_ms, internal=name == whole
                )
            else:
                con.register(cover.behind(name), visible_schema(table).empty_table())
            cover.put(quoted(name), cover.behind(name), order=[column.name for column in table.key])
        if channels is not None:
            _register_channels(con, channels, cover)
        for clause_table in others:
            files |= register(con, store, cache, clause_table, cover)
        if bounds is not None:
            con.execute("SET threads = 1")
            con.execute("SET enable_progress_bar = false")  # a forked process inherits that of the shell
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


def _register_channels(con: duckdb.DuckDBPyConnection, channels: Mapping[str, pa.Table], cover: Cover) -> None:
    con.execute(f"CREATE SCHEMA {SCHEMA_NAME}")
    for number, (name, rows) in enumerate(channels.items()):
        view, behind = f"{SCHEMA_NAME}.{quoted(name)}", cover.behind(f"_channel_{number}")
        con.register(behind, rows)
        con.execute(f"CREATE VIEW {view} AS SELECT * FROM {quoted(behind)}")
        cover.put(view, behind, shown=PLACES)
    # In a shell's quotes, a string is easier to write than a quoted name.
    con.execute(
        f"CREATE MACRO {SCHEMA_NAME}(channel) AS TABLE "
        f"""SELECT * FROM query_table('{SCHEMA_NAME}."' || replace(channel, '"', '""') || '"')"""
    )


def cover_of(con: duckdb.DuckDBPyConnection, bounds: Bounds | None) -> Cover:
    return Cover(con, bounds.secret if bounds is not None else b"")


def empty_database() -> duckdb.DuckDBPyConnection:
    """Open a database in memory. The caller closes it."""
    # DuckDB makes this folder when a query does not fit into memory, and removes it with the connection.
    spill = Path(tempfile.gettempdir()) / f"slackwater-duckdb-{uuid4().hex}"
    # Without replacements, Python variables are not visible as tables.
    return duckdb.connect(config={"python_enable_replacements": "false", "temp_directory": str(spill)})


def named_tables(sql: str, cut: Cut, *, or_all: bool = True) -> frozenset[str]:
    """Return the tables that decide a statement's result: the named ones, or all if names may be computed.

    The remaining tables need not be opened, so damage to them does not matter. With `or_all`, a statement that names no
    table is taken to read all.
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
    """Return the rows of one reading statement, at most `max_rows` if given.

    `hint` suggests an alternative to a statement that writes. Raises `Usage` (the SQL is wrong in DuckDB's words,
    is not exactly one statement, or does not only read), `NotFound` (a table or column does not exist; names the
    nearest), `SlackwaterError` (DuckDB failed, for example for lack of memory) and, with `bounds`, `TooMuch` (a
    bound was exceeded).
    """
    statement = reading_statement(con, sql, hint=hint)
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
                    f"the result is larger than {bounds.max_bytes >> 20} MiB", hint="select fewer columns or rows"
                )
        return pa.Table.from_batches(parts, reader.schema)
    except (duckdb.Error, OSError) as error:
        if is_over.is_set():
            raise TooMuch(f"the query took more than {bounds.seconds:g} s", hint="select less data") from None
        if isinstance(error, OSError):  # raised by Arrow while rows are read
            raise SlackwaterError(str(error).partition("\n")[0]) from None
        raise
    finally:
        timer.cancel()


def reading_statement(con: duckdb.DuckDBPyConnection, sql: str, *, hint: str = _TO_A_FILE) -> str:
    """Return the text of the one statement in `sql`, without looking up tables.

    Raises `Usage` (the SQL is wrong, or does not only read).
    """
    try:
        statements, query = con.extract_statements(sql), f"query: {sql.strip()}"
    except duckdb.Error as error:
        usage_error = in_words(con, sql, error)
        if is_condition(sql):
            usage_error.hint = f"this is a condition; write a whole query: FROM TABLE WHERE {sql.strip()}"
        raise usage_error from error
    if len(statements) != 1:
        raise Usage(f"expected one SQL statement, found {len(statements)}", quoted=query)
    kind = statements[0].type.name
    if kind == "EXPLAIN":
        # EXPLAIN ANALYZE runs the statement.
        explained, num_replaced = _EXPLAIN.subn("", bare(statements[0].query), count=1)
        reading_statement(con, explained if num_replaced else "", hint=hint)
    elif kind not in _READING:
        raise Usage(
            f"this is a {kind} statement; a query can only read, with SELECT, FROM, DESCRIBE, SUMMARIZE or EXPLAIN",
            quoted=query,
            hint=hint,
        )
    return bare(statements[0].query)


def is_condition(sql: str) -> bool:
    """Return True if a text is a condition, as after WHERE, and not a statement.

    Raises the errors of `parse_statement`.
    """
    return not is_statement(sql) and is_statement(f"SELECT ({bare(sql)})", most=1)


def is_statement(sql: str, *, most: int = 1_000) -> bool:
    """Return True if DuckDB parses a text as 1 to `max_statements` statements.

    Raises the errors of `parse_statement`.
    """
    with duckdb.connect() as con, suppress(duckdb.Error):
        return 0 < len(con.extract_statements(understand(sql).sql)) <= most
    return False


def in_words(con: duckdb.DuckDBPyConnection, sql: str, error: duckdb.Error) -> SlackwaterError:
    """Convert a DuckDB error to `Usage`, to `NotFound` with the nearest name, or to `SlackwaterError`."""
    message, query = str(error).strip(), f"query: {sql.strip()}"
    if isinstance(error, duckdb.CatalogException) and (match := _NO_TABLE.search(message)):
        return NotFound("table", match[1], _columns(con), hint=query)
    if isinstance(error, duckdb.BinderException) and (match := _NO_COLUMN.search(message)):
        tables, text = _columns(con), sql.casefold()
        # Columns of other tables, such as those of rejected records, are poor suggestions.
        relevant = [names for table, names in tables.items() if table.casefold() in text] or list(tables.values())
        columns = {column for names in relevant for column in names}
        return NotFound("column", match[1] or match[2], columns, hint=query)
    sentence, _, details = message.partition("\n")
    quoted = "\n".join(filter(None, (details.strip("\n"), query)))
    if isinstance(error, duckdb.PermissionException):
        return SlackwaterError(
            sentence, quoted=quoted, hint="a query can read the app's tables only, no files and no settings"
        )
    if isinstance(error, duckdb.ProgrammingError | duckdb.DataError | duckdb.NotSupportedError):
        return Usage(sentence, quoted=quoted)
    return SlackwaterError(sentence, quoted=quoted)


def _columns(con: duckdb.DuckDBPyConnection) -> dict[str, list[str]]:
    rows = con.execute("SELECT table_name, column_name FROM duckdb_columns() WHERE NOT internal").fetchall()
    columns: dict[str, list[str]] = {}
    for table, column in rows:
        if not is_behind(table):
            columns.setdefault(table, []).append(column)
    return columns


def register(
    con: duckdb.DuckDBPyConnection, store: ObjectStore, cache: SstCache, other: ClauseTable, cover: Cover
) -> frozenset[Path]:
    """Create the view of a clause, unless its table is unknown. Returns the files that the view reads.

    At several versions, each row has `_version` and `_committed_at`, and an unchanged row occurs once per version.
    """
    schema, name = other.clause.view
    con.execute(f"CREATE SCHEMA IF NOT EXISTS {quoted(schema)}")
    if other.table is None:
        return frozenset()
    table, hidden_view = other.clause.table, cover.behind(f"{schema} {other.clause.table}")
    cuts = [cut for cut in other.cuts if table in cut.tables]
    manifests = [cut.tables[table] for cut in cuts]
    is_numbered = isinstance(other.clause, Versions)
    files: frozenset[Path] = frozenset()
    if not any(manifest.ssts for manifest in manifests):
        numbers = (pa.field("_version", pa.int64()), pa.field("_committed_at", pa.timestamp("us", "UTC")))
        columns = (*visible_schema(other.table), *(numbers if is_numbered else ()))
        con.register(hidden_view, pa.schema(columns).empty_table())
    elif is_numbered:
        files = duckdb_view.register_versions(con, hidden_view, store, cache, manifests)
    else:
        files = duckdb_view.register(con, hidden_view, store, cache, manifests[0], clock_ms=cuts[0].clock_ms(table))
    view = f"{quoted(schema)}.{quoted(name)}"
    con.execute(f"CREATE OR REPLACE VIEW {view} AS SELECT * FROM {quoted(hidden_view)}")
    order = [*(column.name for column in other.table.key), *VERSIONS[:1] * is_numbered]
    cover.put(view, hidden_view, VERSIONS if is_numbered else (), order)
    return files
