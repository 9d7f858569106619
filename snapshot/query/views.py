"""Views beside a cut's own tables: one at another moment, or one at several versions with `_version` of each row."""

from pathlib import Path

import duckdb
import pyarrow as pa

from ...store.objects.protocol import ObjectStore
from ...store.read import duckdb_versions, duckdb_view
from ...store.read.cache import SstCache
from ...store.read.duckdb_view import quoted
from ...store.versions.manifest import Table
from .clauses import Versions
from .columns import visible_schema
from .moments import Beside


def register(con: duckdb.DuckDBPyConnection, store: ObjectStore, cache: SstCache, beside: Beside) -> frozenset[Path]:
    """Make the view of a clause, and none for a table that nobody knows. Returns the files that it reads.

    At several versions each row has `_version` and `_committed_at`, and a row that did not change is there once for
    each of them.

    Raises:
        Corruption: an SST is not what its manifest promises.
        Unavailable: storage did not answer.
    """
    schema, name = beside.clause.view
    con.execute(f"CREATE SCHEMA IF NOT EXISTS {quoted(schema)}")
    if beside.table is None:
        return frozenset()
    table, behind = beside.clause.table, f"{schema} {beside.clause.table}"
    cuts = [cut for cut in beside.cuts if table in cut.tables]
    manifests = [cut.tables[table] for cut in cuts]
    is_numbered = isinstance(beside.clause, Versions)
    files: frozenset[Path] = frozenset()
    if not any(manifest.ssts for manifest in manifests):
        con.register(behind, _empty(beside.table, is_numbered=is_numbered))
    elif is_numbered:
        files = duckdb_versions.register(con, behind, store, cache, manifests)
    else:
        files = duckdb_view.register(con, behind, store, cache, manifests[0], clock_ms=cuts[0].clock_ms(table))
    con.execute(f"CREATE OR REPLACE VIEW {quoted(schema)}.{quoted(name)} AS SELECT * FROM {quoted(behind)}")
    return files


def _empty(table: Table, *, is_numbered: bool) -> pa.Table:
    fields = [("_version", pa.int64()), ("_committed_at", pa.timestamp("us", "UTC"))] if is_numbered else []
    return pa.schema([*visible_schema(table), *(pa.field(*each) for each in fields)]).empty_table()
