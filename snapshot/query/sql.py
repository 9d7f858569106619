"""SQL over the tables of a cut: a read-only DuckDB connection with one view per table.

DuckDB runs in this process over immutable SSTs. Once the views exist, the connection may open only the files of the
views, its settings are locked, and only reading statements are accepted. A user's SQL can neither write to the store
nor read other files of the machine.

There may also be views of a table at a given moment, or at several versions with the `_version` of each row.
"""

import re
import tempfile
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import duckdb
import pyarrow as pa

from ...common import runtime
from ...errors import NotFound, SlackwaterError, TooMuch, Usage
from ...store.objects.protocol import ObjectStore
from ...store.read import duckdb_view
from ...store.read.cache import SstCache
from ...store.read.duckdb_view import quote_identifier
from ...store.sst.arrow_types import make_sql_safe
from ...store.versions.manifest import Table
from ..cut.graph import Cut
from ..cut.stored import ADDRESS_COLUMNS
from .clauses import InputClause, ResolvedClause, Statement, VersionsClause, parse_statement, strip_comments, tokenize
from .columns import visible_schema
from .hidden import PseudonymViews, is_hidden_table

CHANNEL_SCHEMA = "inflight"
"""Name of the DuckDB schema with the channels' views, and of the table macro that looks up a view."""

VERSION_COLUMNS = ("_version", "_committed_at")
IN_FLIGHT_COLUMNS = (*ADDRESS_COLUMNS, "_receiver")

_READING_KINDS = ("SELECT", "EXPLAIN", "MULTI")
"""Kinds of statements that may run. DuckDB reports a PIVOT as MULTI."""

_OUT_HINT = "--out writes a result to a file"
_EXPLAIN = re.compile(r"\s*EXPLAIN\s+(ANALYZE\s+)?(\([^)]*\)\s*)?", re.IGNORECASE)
_NO_TABLE = re.compile(r"Table with name \"?(.+?)\"? does not exist")
_NO_COLUMN = re.compile(
    r"Referenced (?:update )?column \"?([^\"]+?)\"? not found|does not have a column named \"([^\"]+)\""
)


@dataclass(frozen=True, slots=True)
class Bounds:
    """Limits on time, memory and visible tables for the statements of untrusted users."""

    seconds: float = 10.0
    """Seconds after which a statement is interrupted. A single function call is not interrupted."""
    memory_mb: int = 512
    """Memory limit of DuckDB in MiB; DuckDB does not spill to disk."""
    max_bytes: int = 64 << 20
    tables: frozenset[str] | None = None
    app: str = ""
    secret: bytes = b""
    """Secret of the pseudonyms (`hidden`) that replace values; empty if values are shown."""

    def allows(self, table: str) -> bool:
        return self.tables is None or table in self.tables

    def check_app(self, app: str) -> None:
        if self.app and app != self.app:
            raise NotFound("app", app, {self.app})

    def check_statement(self, statement: Statement) -> None:
        """Raise `Usage` if a statement uses files or settings of the machine, and `NotFound` for a hidden table."""
        for word in tokenize(statement.sql):
            name = word.value.casefold()
            if word.kind in ("name", "quoted") and (name in _FORBIDDEN_NAMES or name.startswith(_FORBIDDEN_PREFIXES)):
                raise Usage(f"{word.value} is not allowed in remote queries", hint="a query sees the app's tables only")
        if self.tables is None:
            return
        for clause in statement.clauses:
            if isinstance(clause, InputClause):
                raise NotFound("table", "input", self.tables)
            if clause.table not in self.tables:
                raise NotFound("table", clause.table, self.tables)
        if names_channels(statement.text_without_clauses):
            raise NotFound("table", CHANNEL_SCHEMA, self.tables)


_FORBIDDEN_NAMES = frozenset(
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
_FORBIDDEN_PREFIXES = (
    "duckdb_",
    "pragma_",
    "pg_",
    "sqlite_",
    "read_",
    "sniff_",
    "parquet_",
    "write_log",
    "from_substrait",
)
"""Prefixes of functions that read files, or that show settings or the files behind views.

Such functions are refused, in addition to DuckDB's own locks.
"""


def names_channels(sql: str) -> bool:
    return re.search(rf"\b{CHANNEL_SCHEMA}\b", sql, re.IGNORECASE) is not None


def connect(
    store: ObjectStore,
    cache: SstCache,
    cut: Cut,
    *,
    only: Collection[str] | None = None,
    empty: Mapping[str, Table] | None = None,
    channels: Mapping[str, pa.Table] | None = None,
    clause_tables: Sequence[ResolvedClause] = (),
    table_with_internals: str = "",
    memory: str = "",
    bounds: Bounds | None = None,
) -> duckdb.DuckDBPyConnection:
    """Open a connection with one view per table of the cut, named as the table. The caller closes it.

    The views use the cache, which must outlive the connection. Only the tables in `only` (a result of `named_tables`;
    None for all) have rows. Tables of `empty` that the cut lacks are added without rows. The `channels` (as from
    `channel_tables`) are visible as `inflight('by-route')` or `inflight."by-route"`. `clause_tables` are resolved
    clauses. The view of `table_with_internals` also has internal columns. `memory`, such as "1 GiB", is DuckDB's limit
    before spilling to disk; empty for DuckDB's default. With `bounds`, hidden tables do not exist.
    """
    con = empty_database()
    cover = pseudonym_views(con, bounds)
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
                files |= duckdb_view.register_table(
                    con,
                    cover.hidden_table(name),
                    store,
                    cache,
                    manifest,
                    clock_ms=clock_ms,
                    internal=name == table_with_internals,
                )
            else:
                con.register(cover.hidden_table(name), visible_schema(table).empty_table())
            cover.create_view(
                quote_identifier(name), cover.hidden_table(name), order=[column.name for column in table.key]
            )
        if channels is not None:
            _register_channels(con, channels, cover)
        for clause_table in clause_tables:
            files |= register_clause(con, store, cache, clause_table, cover)
        if bounds is not None:
            _set_bounds(con, bounds)
        elif memory:
            con.execute("SET memory_limit = $memory", {"memory": memory})
        con.execute("SET allowed_paths = $files", {"files": sorted(map(str, files))})
        con.execute("SET enable_external_access = false")
        con.execute("SET lock_configuration = true")
    except BaseException:
        con.close()
        raise
    return con


def _set_bounds(con: duckdb.DuckDBPyConnection, bounds: Bounds) -> None:
    con.execute("SET threads = 1")
    con.execute("SET enable_progress_bar = false")  # a forked process inherits that of the shell
    con.execute("SET max_temp_directory_size = '0 B'")
    con.execute("SET memory_limit = $memory", {"memory": f"{bounds.memory_mb} MiB"})


def _register_channels(con: duckdb.DuckDBPyConnection, channels: Mapping[str, pa.Table], cover: PseudonymViews) -> None:
    con.execute(f"CREATE SCHEMA {CHANNEL_SCHEMA}")
    for number, (name, rows) in enumerate(channels.items()):
        view, hidden = f"{CHANNEL_SCHEMA}.{quote_identifier(name)}", cover.hidden_table(f"_channel_{number}")
        con.register(hidden, rows)
        con.execute(f"CREATE VIEW {view} AS SELECT * FROM {quote_identifier(hidden)}")
        cover.create_view(view, hidden, shown=IN_FLIGHT_COLUMNS)
    # In a shell's quotes, a string is easier to write than a quoted name.
    con.execute(
        f"CREATE MACRO {CHANNEL_SCHEMA}(channel) AS TABLE "
        f"""SELECT * FROM query_table('{CHANNEL_SCHEMA}."' || replace(channel, '"', '""') || '"')"""
    )


def pseudonym_views(con: duckdb.DuckDBPyConnection, bounds: Bounds | None) -> PseudonymViews:
    return PseudonymViews(con, bounds.secret if bounds is not None else b"")


def empty_database() -> duckdb.DuckDBPyConnection:
    """Open an in-memory database. The caller closes it."""
    # DuckDB makes this folder when a query does not fit into memory, and removes it with the connection.
    spill = Path(tempfile.gettempdir()) / f"slackwater-duckdb-{runtime.random_hex()}"
    # Without replacements, Python variables are not visible as tables.
    return duckdb.connect(config={"python_enable_replacements": "false", "temp_directory": str(spill)})


def sandboxed_database(tables: Mapping[str, pa.Table], bounds: Bounds | None = None) -> duckdb.DuckDBPyConnection:
    """Open a database in memory with these tables, without access to files and settings. The caller closes it."""
    con = empty_database()
    if bounds is not None:
        _set_bounds(con, bounds)
    for name, rows in tables.items():
        con.register(name, make_sql_safe(rows))
    con.execute("SET enable_external_access = false")
    con.execute("SET lock_configuration = true")
    return con


def named_tables(sql: str, cut: Cut, *, or_all: bool = True) -> frozenset[str]:
    """Return the tables on which a statement's result may depend: the named tables, or all if it may compute names.

    The remaining tables need not be opened, so damage to them does not matter. With `or_all`, a statement that names no
    table is assumed to read all tables.
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
    hint: str = _OUT_HINT,
    bounds: Bounds | None = None,
) -> pa.Table:
    """Return the rows of one reading statement, at most `max_rows` if given.

    `hint` suggests an alternative to a statement that writes. Raises `Usage` (DuckDB rejects the SQL, it is not exactly
    one statement, or does not only read), `NotFound` (a table or column does not exist; names the nearest),
    `SlackwaterError` (DuckDB failed, for example for lack of memory) and, with `bounds`, `TooMuch` (a bound was
    exceeded).
    """
    statement = parse_reading_statement(con, sql, hint=hint)
    try:
        if bounds is not None:
            return _run_within_bounds(con, statement, max_rows, bounds)
        rows = con.sql(statement)
        return (rows if max_rows is None else rows.limit(max_rows)).to_arrow_table()
    except duckdb.Error as error:
        raise as_user_error(con, sql, error) from error


def _run_within_bounds(
    con: duckdb.DuckDBPyConnection, statement: str, max_rows: int | None, bounds: Bounds
) -> pa.Table:
    is_over = runtime.event()

    def interrupt() -> None:
        is_over.set()
        con.interrupt()

    cancel = runtime.timer(bounds.seconds, interrupt)
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
        cancel()


def parse_reading_statement(con: duckdb.DuckDBPyConnection, sql: str, *, hint: str = _OUT_HINT) -> str:
    """Return the text of the one statement in `sql`, without looking up tables.

    Raises `Usage` (the SQL is wrong, or does not only read).
    """
    try:
        statements, query = con.extract_statements(sql), f"query: {sql.strip()}"
    except duckdb.Error as error:
        usage_error = as_user_error(con, sql, error)
        if is_condition(sql):
            usage_error.hint = f"this is a condition; write a whole query: FROM TABLE WHERE {sql.strip()}"
        raise usage_error from error
    if len(statements) != 1:
        raise Usage(f"expected one SQL statement, found {len(statements)}", quoted=query)
    kind = statements[0].type.name
    if kind == "EXPLAIN":
        # EXPLAIN ANALYZE runs the statement.
        explained, num_replaced = _EXPLAIN.subn("", strip_comments(statements[0].query), count=1)
        parse_reading_statement(con, explained if num_replaced else "", hint=hint)
    elif kind not in _READING_KINDS:
        raise Usage(
            f"this is a {kind} statement; a query can only read, with SELECT, FROM, DESCRIBE, SUMMARIZE or EXPLAIN",
            quoted=query,
            hint=hint,
        )
    return strip_comments(statements[0].query)


def is_condition(sql: str) -> bool:
    """Return True if a text is a condition that could follow WHERE; False if it is a statement.

    Raises the errors of `parse_statement`.
    """
    return not is_statement(sql) and is_statement(f"SELECT ({strip_comments(sql)})", max_statements=1)


def is_statement(sql: str, *, max_statements: int = 1_000) -> bool:
    """Return True if DuckDB parses a text as 1 to `max_statements` statements.

    Raises the errors of `parse_statement`.
    """
    with duckdb.connect() as con, suppress(duckdb.Error):
        return 0 < len(con.extract_statements(parse_statement(sql).sql)) <= max_statements
    return False


def check_parses(sql: str, *, hint: str) -> None:
    """Raise `Usage` with DuckDB's message and `hint` if DuckDB cannot parse a text."""
    with duckdb.connect() as con:
        try:
            con.extract_statements(sql)
        except duckdb.ParserException as error:
            sentence, _, details = str(error).strip().partition("\n")
            raise Usage(sentence, quoted=details.strip("\n"), hint=hint) from None


def as_user_error(con: duckdb.DuckDBPyConnection, sql: str, error: duckdb.Error) -> SlackwaterError:
    """Convert a DuckDB error to `Usage`, to `NotFound` with the nearest name, or to `SlackwaterError`."""
    message, query = str(error).strip(), f"query: {sql.strip()}"
    if isinstance(error, duckdb.CatalogException) and (match := _NO_TABLE.search(message)):
        return NotFound("table", match[1], _visible_columns(con), hint=query)
    if isinstance(error, duckdb.BinderException) and (match := _NO_COLUMN.search(message)):
        tables, text = _visible_columns(con), sql.casefold()
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


def _visible_columns(con: duckdb.DuckDBPyConnection) -> dict[str, list[str]]:
    rows = con.execute("SELECT table_name, column_name FROM duckdb_columns() WHERE NOT internal").fetchall()
    columns: dict[str, list[str]] = {}
    for table, column in rows:
        if not is_hidden_table(table):
            columns.setdefault(table, []).append(column)
    return columns


def register_clause(
    con: duckdb.DuckDBPyConnection,
    store: ObjectStore,
    cache: SstCache,
    clause_table: ResolvedClause,
    cover: PseudonymViews,
) -> frozenset[Path]:
    """Create the view of a clause, unless its table is unknown. Returns the files that the view reads.

    For several versions, each row has `_version` and `_committed_at`, and an unchanged row is repeated for each
    version.
    """
    schema, name = clause_table.clause.view
    con.execute(f"CREATE SCHEMA IF NOT EXISTS {quote_identifier(schema)}")
    if clause_table.table is None:
        return frozenset()
    table, hidden_view = clause_table.clause.table, cover.hidden_table(f"{schema} {clause_table.clause.table}")
    cuts = [cut for cut in clause_table.cuts if table in cut.tables]
    manifests = [cut.tables[table] for cut in cuts]
    is_numbered = isinstance(clause_table.clause, VersionsClause)
    files: frozenset[Path] = frozenset()
    if not any(manifest.ssts for manifest in manifests):
        numbers = (pa.field("_version", pa.int64()), pa.field("_committed_at", pa.timestamp("us", "UTC")))
        columns = (*visible_schema(clause_table.table), *(numbers if is_numbered else ()))
        con.register(hidden_view, pa.schema(columns).empty_table())
    elif is_numbered:
        files = duckdb_view.register_versions(con, hidden_view, store, cache, manifests)
    else:
        files = duckdb_view.register_table(
            con, hidden_view, store, cache, manifests[0], clock_ms=cuts[0].clock_ms(table)
        )
    view = f"{quote_identifier(schema)}.{quote_identifier(name)}"
    con.execute(f"CREATE OR REPLACE VIEW {view} AS SELECT * FROM {quote_identifier(hidden_view)}")
    order = [*(column.name for column in clause_table.table.key), *VERSION_COLUMNS[:1] * is_numbered]
    cover.create_view(view, hidden_view, VERSION_COLUMNS if is_numbered else (), order)
    return files
