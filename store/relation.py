"""A table at one version, as a DuckDB view over its SSTs: the newest row of each key, without deleted ones.

Merge on read. Of the runs over some hashes the oldest holds nearly all rows; the newer ones, the deltas, are
small. A row is shadowed when a delta has its key with a larger `_seq`, so one anti join of all runs with the
deltas leaves the newest rows. DuckDB builds its hash table over the deltas only and streams all runs past it,
reading of them the columns the query asks for, the key, `_hash` and `_seq`. The join is by `_hash`, which is
cheap and nearly always decides; where hashes meet the keys are compared, because hashes do collide.
"""

from pathlib import Path

import duckdb

from .cache import SstCache
from .errors import Usage
from .manifest import Manifest, Sst, Table
from .objects import ObjectStore
from .runs import deltas
from .ttl import may_have_expired
from .types import EXPIRES, HASH, OP, PUT, SEQ, arrow_schema, sst_schema

__all__ = ["register"]


def register(
    con: duckdb.DuckDBPyConnection,
    name: str,
    store: ObjectStore,
    cache: SstCache,
    manifest: Manifest,
    *,
    with_seq: bool = False,
    clock_ms: int | None = None,
) -> None:
    """Make the manifest's table a temporary view of the connection, in the place of one of the same name.

    Its columns are the key and value columns whose names do not start with `_`. The files behind the view are
    those of `cache.parquet_path`, so the cache must stay open while it is queried.

    Args:
        con: the connection; needs no extension that DuckDB does not bring along.
        name: what the view is called.
        store: the store of the app.
        cache: holds local copies of a remote store's SSTs.
        manifest: the version to show.
        with_seq: add `_hash` and `_seq`, the version that wrote the row.
        clock_ms: rows that expire at this time or before are not shown; default the manifest's own clock.

    Raises:
        Usage: the stage keeps no table.
        Corruption: an SST is missing or damaged.
        Unavailable: the store did not answer.
    """
    table = manifest.table
    if table is None:
        raise Usage(f"stage {manifest.stage!r} keeps no state, so there is no table to query")
    columns = _visible(table, with_seq=with_seq)
    con.execute(f"DROP VIEW IF EXISTS temp.{_quoted(name)}")
    if not manifest.ssts:
        con.register(name, sst_schema(table).empty_table().select(columns))
        return
    paths = {sst.object: cache.parquet_path(store, sst) for sst in manifest.ssts}
    sql = _newest_rows(table, columns, manifest.ssts, paths, manifest.clock_ms if clock_ms is None else clock_ms)
    con.execute(f"CREATE TEMP VIEW {_quoted(name)} AS {sql}")


def _visible(table: Table, *, with_seq: bool) -> list[str]:
    names = [name for name in arrow_schema((*table.key, *table.values)).names if not name.startswith("_")]
    return [*names, HASH, SEQ] if with_seq else names


def _newest_rows(table: Table, columns: list[str], ssts: tuple[Sst, ...], paths: dict[str, Path], clock_ms: int) -> str:
    gone = any(may_have_expired(sst, clock_ms) for sst in ssts)
    selected = ", ".join(f"run.{_quoted(column)}" for column in columns)
    sql = f"SELECT {selected} FROM {_scan(ssts, paths, mixed=gone and not all(sst.expiring for sst in ssts))} run"
    newer = deltas(ssts)
    if newer:
        # Written with NOT it filters rows of the same hash; IS NOT DISTINCT FROM would be one more column to hash.
        same_key = " AND ".join(
            f"NOT (newer.{key} IS DISTINCT FROM run.{key})" for key in (_quoted(column.name) for column in table.key)
        )
        sql += (
            f" ANTI JOIN {_scan(newer, paths)} newer"
            f" ON newer.{HASH} = run.{HASH} AND newer.{SEQ} > run.{SEQ} AND {same_key}"
        )
    conditions = [f"run.{OP} = {PUT}"] if any(sst.tombstones for sst in ssts) else []
    # Only when they are read: an expired row still shadows those before it.
    conditions += [f"(run.{EXPIRES} IS NULL OR run.{EXPIRES} > {clock_ms})"] if gone else []
    return f"{sql} WHERE {' AND '.join(conditions)}" if conditions else sql


def _scan(ssts: tuple[Sst, ...], paths: dict[str, Path], *, mixed: bool = False) -> str:
    files = ", ".join(_literal(str(paths[sst.object])) for sst in ssts)
    # A folder named a=b is no column.
    # SSTs from before the table got a ttl lack a column; by name, it is null there.
    by_name = ", union_by_name = true" if mixed else ""
    return f"read_parquet([{files}], hive_partitioning = false{by_name})"


def _quoted(identifier: str) -> str:
    return '"' + identifier.replace('"', '""') + '"'


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
