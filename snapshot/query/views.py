"""Views beside a cut's own tables: one at another moment, or one at several versions with `_version` of each row."""

import duckdb

from ...store.objects.protocol import ObjectStore
from ...store.read import duckdb_view
from ...store.read.cache import SstCache
from ...store.versions.manifest import Sst
from ..cut.graph import Cut
from .clauses import Versions, quoted
from .columns import visible_schema
from .moments import Beside


def register(con: duckdb.DuckDBPyConnection, store: ObjectStore, cache: SstCache, beside: Beside) -> tuple[Sst, ...]:
    """Make the view of a clause, and none for a table that nobody knows. Returns the SSTs behind it.

    At several versions each row has `_version` and `_committed_at`, and a row that did not change is there once for
    each. Of SSTs that versions share, which rows are hidden is found once (`visible_rows`), but all are scanned anew.

    Raises:
        Corruption: an SST is not what its manifest promises.
        Unavailable: storage did not answer.
    """
    schema, name = beside.clause.view
    con.execute(f"CREATE SCHEMA IF NOT EXISTS {quoted(schema)}")
    table, is_numbered = beside.clause.table, isinstance(beside.clause, Versions)
    selects = []
    there = [cut for cut in beside.cuts if table in cut.tables]
    for cut in there:
        manifest = cut.tables[table]
        part = f"{schema} {table} v{manifest.version}"
        duckdb_view.register(con, part, store, cache, manifest, clock_ms=cut.clock_ms(table))
        selects.append(_select(part, cut, table) if is_numbered else f"SELECT * FROM temp.{quoted(part)}")
    if not there and beside.table is not None:
        part = f"{schema} {table}"
        con.register(part, visible_schema(beside.table).empty_table())
        selects.append(_no_version(part) if is_numbered else f"SELECT * FROM {quoted(part)}")
    if selects:
        sql = " UNION ALL BY NAME ".join(selects)
        con.execute(f"CREATE OR REPLACE VIEW {quoted(schema)}.{quoted(name)} AS {sql}")
    return tuple(sst for cut in there for sst in cut.tables[table].ssts)


def _select(part: str, cut: Cut, table: str) -> str:
    manifest = cut.tables[table]
    committed = f"make_timestamp({manifest.time_ms * 1_000}) AT TIME ZONE 'UTC'"
    return f"SELECT *, {manifest.version}::BIGINT AS _version, {committed} AS _committed_at FROM temp.{quoted(part)}"


def _no_version(part: str) -> str:
    return f"SELECT *, NULL::BIGINT AS _version, NULL::TIMESTAMPTZ AS _committed_at FROM {quoted(part)}"
