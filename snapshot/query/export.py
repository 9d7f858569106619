"""A moment as a DuckDB file of its own: tables, not views, so any DuckDB client opens it without slackwater.

DuckDB's own page shows one in a browser. Its extension `ui` comes from DuckDB's servers, once.
"""

from collections.abc import Collection, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import duckdb
import pyarrow as pa

from ...common.whole_file import check_folder, whole_file
from ...errors import Refused, SlackwaterError, Unavailable
from ...store.objects.protocol import ObjectStore
from ...store.read import duckdb_view
from ...store.read.cache import SstCache
from ...store.read.duckdb_view import quoted
from ...store.versions.manifest import Table
from ..cut.graph import Cut
from ..cut.moments import having
from ..cut.resolve import telling_if_collected
from .columns import visible_schema
from .sql import empty_database

ABOUT = "_slackwater"
"""Name of the table that says what the others are. No stage can have it."""

ENDINGS = (".duckdb", ".ddb", ".db")
"""What the name of such a file ends in, by which it is told from a folder (`operations.exchange`)."""
_FILE = "exported"
_FORMAT = "v1.0.0"
"""DuckDB's storage format: the one of its first release, which all its clients since then read."""


@dataclass(frozen=True, slots=True)
class Exported:
    """A file that was written."""

    path: Path
    bytes: int
    rows: Mapping[str, int]
    """By table; so are the versions."""
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
) -> Exported:
    """Write the tables of a cut to a DuckDB file, which appears whole or not at all.

    Besides them is `_slackwater`, with a row for each stage: `app`, `ref`, `stage`, `version`, `committed_at`, and of
    its table `key` (the columns, in their order) and `rows`; both null where there is none in the file. `ref` is how
    the moment was asked for. `only` has the tables to write, by the names of then or of now; default all, by those of
    then. With `force`, a file that is there is overwritten. Raises `NotFound` (there is no such table; or the cut was
    collected meanwhile), and `Refused` (there is such a file already, or it cannot be written).
    """
    cut = having(store, cut, only or ())
    check_free(path, force=force)
    try:
        with whole_file(path, "file") as temporary:
            try:
                with telling_if_collected(store, cut), new_file(temporary) as con:
                    tables = [name for name in cut.tables if only is None or name in only]
                    rows = {name: write_table(con, store, cache, cut, name) for name in tables}
                    con.register("about", _about(cut, ref, rows))
                    con.execute(f"CREATE TABLE {_FILE}.{ABOUT} AS SELECT * FROM about")
            finally:
                temporary.with_name(f"{temporary.name}.wal").unlink(missing_ok=True)
            check_free(path, force=force)
            # What a client had not yet put into the file that was there would be put into this one.
            path.with_name(f"{path.name}.wal").unlink(missing_ok=True)
    except duckdb.Error as error:
        sentence, _, more = str(error).strip().partition("\n")
        raise SlackwaterError(f"{path} cannot be written: {sentence}", quoted=more) from error
    return Exported(path, path.stat().st_size, rows, {name: cut.tables[name].version for name in rows})


def check_free(path: Path, *, force: bool) -> None:
    """Raise `Refused` when there is such a file, unless `force`, or no folder for it."""
    check_folder(path, "file")
    if path.is_dir():
        raise Refused(f"{path} cannot be written: it is a folder", hint="choose another file")
    if path.exists() and not force:
        raise Refused(f"{path} is there already", hint="choose another file, or say --force to overwrite it")


@contextmanager
def new_file(path: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    """A connection to write tables of a new DuckDB file with, which is whole when the context ends."""
    with closing(empty_database()) as con:
        # Nobody has promised an order, and to keep one takes memory.
        con.execute("SET preserve_insertion_order = false")
        file = str(path).replace("'", "''")
        con.execute(f"ATTACH '{file}' AS {_FILE} (STORAGE_VERSION '{_FORMAT}')")
        yield con
        con.execute(f"DETACH {_FILE}")


def write_table(con: duckdb.DuckDBPyConnection, store: ObjectStore, cache: SstCache, cut: Cut, name: str) -> int:
    """Write a table of a cut to the file of a connection; how many rows it has. Raises as `export`."""
    duckdb_view.register(con, name, store, cache, cut.tables[name], clock_ms=cut.clock_ms(name))
    return _copied(con, name)


def write_empty(con: duckdb.DuckDBPyConnection, name: str, table: Table) -> None:
    """Write a table without rows."""
    con.from_arrow(visible_schema(table).empty_table()).create_view(name)
    _copied(con, name)


def _copied(con: duckdb.DuckDBPyConnection, name: str) -> int:
    sql = f"CREATE TABLE {_FILE}.{quoted(name)} AS SELECT * FROM memory.{quoted(name)}"
    return int(con.execute(sql).fetchall()[0][0])


def _about(cut: Cut, ref: str, rows: Mapping[str, int]) -> pa.Table:
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
        each = cut.stages[stage]
        key = [column.name for column in each.table.key] if stage in rows and each.table is not None else None
        line = (cut.app, ref, stage, version, each.time_ms, key, rows.get(stage))
        lines.append(dict(zip(fields, line, strict=True)))
    return pa.Table.from_pylist(lines, pa.schema(fields))


_HINT = "`slackwater export REF out.duckdb` writes the file that the page would show; any DuckDB client opens it"


def check_page() -> None:
    """See that the page can be had, before anything is written for it. Raises `Unavailable` as `load`."""
    with closing(duckdb.connect()) as con:
        load(con)


@contextmanager
def page(path: Path) -> Iterator[str]:
    """The page over a DuckDB file, opened in the user's browser where there is one. Gives DuckDB's words about it.

    It is served by this process, to this machine only, up to the end of the block. Raises `Unavailable` (it cannot be
    had).
    """
    with closing(duckdb.connect(str(path))) as con:
        load(con)
        try:
            started = con.execute("CALL start_ui()").fetchone()
        except duckdb.Error as error:
            raise Unavailable(f"DuckDB's page does not start: {_sentence(error)}", hint=_HINT) from error
        try:
            yield str(started[0]) if started else ""
        finally:
            con.execute("CALL stop_ui_server()")


def load(con: duckdb.DuckDBPyConnection) -> None:
    """Give a connection the extension: from this machine, else from DuckDB's servers.

    Raises `Unavailable` (it is not on this machine, and cannot be fetched).
    """
    try:
        con.load_extension("ui")
    except duckdb.Error:
        try:
            con.install_extension("ui")
            con.load_extension("ui")
        except duckdb.Error as error:
            raise Unavailable(
                f"DuckDB's extension `ui` is not on this machine and cannot be fetched: {_sentence(error)}", hint=_HINT
            ) from error


def _sentence(error: duckdb.Error) -> str:
    return str(error).strip().partition("\n")[0]
