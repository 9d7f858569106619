"""Export of a moment to a DuckDB file with tables, which any DuckDB client opens without slackwater.

`serve_ui` shows such a file in DuckDB's web UI, whose extension `ui` is downloaded once from DuckDB's servers.
"""

from collections.abc import Collection, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import duckdb
import pyarrow as pa

from ...common.whole_file import atomic_file, check_parent_folder
from ...errors import Refused, SlackwaterError, Unavailable
from ...store.objects.protocol import ObjectStore
from ...store.read import duckdb_view
from ...store.read.cache import SstCache
from ...store.read.duckdb_view import quote_identifier
from ...store.versions.manifest import Table
from ..cut.graph import Cut
from ..cut.moments import require_tables
from ..cut.resolve import report_if_collected
from .columns import visible_schema
from .sql import empty_database

DESCRIPTION_TABLE = "_slackwater"

FILE_SUFFIXES = (".duckdb", ".ddb", ".db")
"""File name suffixes of DuckDB files, which distinguish a file from a folder (`operations.exchange`)."""
_DATABASE = "exported"
_FORMAT = "v1.0.0"
"""DuckDB's storage format: that of DuckDB's first stable release, which all later clients read."""


@dataclass(frozen=True, slots=True)
class ExportedDatabase:
    """Exported DuckDB file, with row counts and versions by table."""

    path: Path
    bytes: int
    rows: Mapping[str, int]
    versions: Mapping[str, int]


def export(
    store: ObjectStore,
    cache: SstCache,
    cut: Cut,
    ref: str,
    path: Path,
    *,
    only: Collection[str] | None = None,
    force: bool = False,
) -> ExportedDatabase:
    """Write the tables of a cut to a DuckDB file. Atomic.

    The file also has the table `_slackwater` with one row per stage: `app`, `ref`, `stage`, `version`, `committed_at`,
    and two columns about its table: `key` (the key columns in their order) and `rows` (the row count). Both are null if
    the file does not have the table. `ref` is the requested ref. `only` lists the tables to write, by their names at
    the cut or their present names; by default, all tables are written under their names at the cut. With `force`, an
    existing file is overwritten. Raises `NotFound` (no such table, or the cut was collected meanwhile) and `Refused`
    (the file exists, or cannot be written).
    """
    cut = require_tables(store, cut, only or ())
    check_writable(path, force=force)
    try:
        with atomic_file(path, "file") as temporary:
            try:
                with report_if_collected(store, cut), create_file(temporary) as con:
                    tables = [name for name in cut.tables if only is None or name in only]
                    rows = {name: write_table(con, store, cache, cut, name) for name in tables}
                    con.register("about", _description_rows(cut, ref, rows))
                    con.execute(f"CREATE TABLE {_DATABASE}.{DESCRIPTION_TABLE} AS SELECT * FROM about")
            finally:
                temporary.with_name(f"{temporary.name}.wal").unlink(missing_ok=True)
            check_writable(path, force=force)
            # DuckDB would apply a leftover write-ahead log of the old file to the new one.
            path.with_name(f"{path.name}.wal").unlink(missing_ok=True)
    except duckdb.Error as error:
        sentence, _, more = str(error).strip().partition("\n")
        raise SlackwaterError(f"{path} cannot be written: {sentence}", quoted=more) from error
    return ExportedDatabase(path, path.stat().st_size, rows, {name: cut.tables[name].version for name in rows})


def check_writable(path: Path, *, force: bool) -> None:
    """Raise `Refused` if the folder does not exist, or if the file exists and `force` is not set."""
    check_parent_folder(path, "file")
    if path.is_dir():
        raise Refused(f"{path} cannot be written: it is a folder", hint="choose another file")
    if path.exists() and not force:
        raise Refused(f"{path} already exists", hint="choose another file, or pass --force to overwrite it")


@contextmanager
def create_file(path: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    """Context manager for a connection that writes tables of a new DuckDB file, which is complete at the end."""
    with closing(empty_database()) as con:
        # Preserving the order of rows takes memory, and no order is promised.
        con.execute("SET preserve_insertion_order = false")
        file = str(path).replace("'", "''")
        con.execute(f"ATTACH '{file}' AS {_DATABASE} (STORAGE_VERSION '{_FORMAT}')")
        yield con
        con.execute(f"DETACH {_DATABASE}")


def write_table(con: duckdb.DuckDBPyConnection, store: ObjectStore, cache: SstCache, cut: Cut, name: str) -> int:
    """Write a table of a cut to the DuckDB file of a connection. Returns the number of rows written.

    Raises the errors of `export`.
    """
    duckdb_view.register_table(con, name, store, cache, cut.tables[name], clock_ms=cut.clock_ms(name))
    return _copy_table(con, name)


def write_empty(con: duckdb.DuckDBPyConnection, name: str, table: Table) -> None:
    con.from_arrow(visible_schema(table).empty_table()).create_view(name)
    _copy_table(con, name)


def _copy_table(con: duckdb.DuckDBPyConnection, name: str) -> int:
    sql = f"CREATE TABLE {_DATABASE}.{quote_identifier(name)} AS SELECT * FROM memory.{quote_identifier(name)}"
    return int(con.execute(sql).fetchall()[0][0])


def _description_rows(cut: Cut, ref: str, rows: Mapping[str, int]) -> pa.Table:
    fields = {
        "app": pa.string(),
        "ref": pa.string(),
        "stage": pa.string(),
        "version": pa.int64(),
        "committed_at": pa.timestamp("ms", "UTC"),
        "key": pa.list_(pa.string()),
        "rows": pa.int64(),
    }
    lines = []
    for stage, version in cut.versions.items():
        manifest = cut.stages[stage]
        key = [column.name for column in manifest.table.key] if stage in rows and manifest.table is not None else None
        line = (cut.app, ref, stage, version, manifest.time_ms, key, rows.get(stage))
        lines.append(dict(zip(fields, line, strict=True)))
    return pa.Table.from_pylist(lines, pa.schema(fields))


_HINT = "`slackwater export REF out.duckdb` writes the same tables to a file that any DuckDB client opens"


def check_ui_available() -> None:
    """Check that DuckDB's web UI can be loaded, before a file is written for it. Raises `Unavailable`."""
    with closing(duckdb.connect()) as con:
        load_ui_extension(con)


@contextmanager
def serve_ui(path: Path) -> Iterator[str]:
    """Context manager that serves DuckDB's web UI over a DuckDB file, and opens a browser if there is one.

    Yields DuckDB's message. The UI is reachable from this machine only, and is served until the end of the block.
    Raises `Unavailable` (the extension cannot be loaded, or the UI does not start).
    """
    with closing(duckdb.connect(str(path))) as con:
        load_ui_extension(con)
        try:
            started = con.execute("CALL start_ui()").fetchone()
        except duckdb.Error as error:
            raise Unavailable(f"DuckDB's UI does not start: {_first_line(error)}", hint=_HINT) from error
        try:
            yield str(started[0]) if started else ""
        finally:
            con.execute("CALL stop_ui_server()")


def load_ui_extension(con: duckdb.DuckDBPyConnection) -> None:
    """Load DuckDB's extension `ui`. Downloads it if this machine lacks it. Raises `Unavailable`."""
    try:
        con.load_extension("ui")
    except duckdb.Error:
        try:
            con.install_extension("ui")
            con.load_extension("ui")
        except duckdb.Error as error:
            raise Unavailable(
                f"DuckDB's extension `ui` is not on this machine and cannot be downloaded: {_first_line(error)}",
                hint=_HINT,
            ) from error


def _first_line(error: duckdb.Error) -> str:
    return str(error).strip().partition("\n")[0]
