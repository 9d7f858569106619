"""A table at one version, as a DuckDB view over its SSTs: the newest row of each key, without deleted ones.

Merge on read, by position: which rows of an SST are hidden (`visible_rows`) is known before the view is made, and a
bitmap of them a variable of the connection. So a query is a scan of the columns that it asks for and one bit a row; no
key, hash or version is read, and nothing is joined.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import duckdb
import numpy as np
import numpy.typing as npt

from ...errors import Usage
from ..objects.protocol import ObjectStore
from ..sst.ttl import may_have_expired
from ..sst.types import EXPIRES, HASH, SEQ, sst_schema
from ..versions.manifest import Manifest, Sst
from .cache import SstCache
from .duckdb_columns import alike, from_files, literal, quoted
from .visible_rows import hidden_rows

_BITMAP_ROWS = 1 << 30
"""Rows of all SSTs that share a bitmap: DuckDB numbers its bits by 32-bit integers."""


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
        with_seq: add `_hash` and `_seq`, which tells the version that wrote the row (`Manifest.row_seq`).
        clock_ms: rows that expire at this time or before are not shown; default the manifest's own clock.

    Raises:
        Usage: the stage keeps no table.
        Corruption: an SST is missing or damaged.
        Unavailable: the store did not answer.
    """
    table = manifest.table
    if table is None:
        raise Usage(f"stage {manifest.stage!r} keeps no state, so there is no table to query")
    columns = [column.name for column in (*table.key, *table.values) if not column.name.startswith("_")]
    columns += [HASH, SEQ] if with_seq else []
    con.execute(f"DROP VIEW IF EXISTS temp.{quoted(name)}")
    if not manifest.ssts:
        con.register(name, sst_schema(table).empty_table().select(columns))
        return
    paths = {sst.object: cache.parquet_path(store, sst) for sst in manifest.ssts}
    dead = hidden_rows(store, cache, manifest.ssts, table)
    clock_ms = manifest.clock_ms if clock_ms is None else clock_ms
    # Only when they are read: an expired row still hides those before it.
    expiring = [sst for sst in manifest.ssts if may_have_expired(sst, clock_ms)]
    others = [sst for sst in manifest.ssts if sst not in expiring]
    # Of the others, some may be from before the table got a ttl, and lack the column.
    by_name = table.ttl is not None
    alive = f"({EXPIRES} IS NULL OR {EXPIRES} > {clock_ms})"
    selects = [
        select
        for letter, ssts, condition in (("a", others, "true"), ("b", expiring, alive))
        for number, some in enumerate(alike(ssts, paths, table))
        for select in _newest_rows(
            con,
            f"{name}_{letter}{number}",
            some.select(con, columns),
            paths,
            [ssts[place] for place in some.places],
            dead,
            by_name=by_name,
            condition=condition,
        )
    ]
    con.execute(f"CREATE TEMP VIEW {quoted(name)} AS {' UNION ALL '.join(selects)}")


def _newest_rows(
    con: duckdb.DuckDBPyConnection,
    name: str,
    selected: str,
    paths: dict[str, Path],
    ssts: Sequence[Sst],
    dead: Mapping[Sst, npt.NDArray[np.int64]],
    *,
    by_name: bool,
    condition: str,
) -> list[str]:
    """The SELECTs of the view for some SSTs; sets the variables that they need."""
    whole = [sst for sst in ssts if sst not in dead]
    selects = []
    if whole:
        files = from_files([paths[sst.object] for sst in whole], by_name=by_name)
        selects.append(f"SELECT {selected} FROM {files} WHERE {condition}")
    for number, chunk in enumerate(_chunks([sst for sst in ssts if sst in dead])):
        ends = np.cumsum([sst.rows for sst in chunk])
        starts = (ends - [sst.rows for sst in chunk]).tolist()
        bits = np.zeros(int(ends[-1]), np.bool_)
        for sst, start in zip(chunk, starts, strict=True):
            bits[start + dead[sst]] = True
        variable = f"_dead_{number}_{name}"
        con.execute(f"SET VARIABLE {quoted(variable)} = $bits::BLOB::BIT", {"bits": np.packbits(bits).tobytes()})
        position = f"(file_row_number + {starts}[file_index::BIGINT + 1])::INTEGER"
        selects.append(
            f"SELECT {selected} FROM {from_files([paths[sst.object] for sst in chunk], by_name=by_name)}"
            f" WHERE get_bit(getvariable({literal(variable)}), {position}) = 0 AND {condition}"
        )
    return selects


def _chunks(ssts: Sequence[Sst]) -> list[list[Sst]]:
    """The SSTs, in order, such that those of a chunk have no more rows together than a bitmap has bits."""
    chunks: list[list[Sst]] = []
    rows = _BITMAP_ROWS
    for sst in ssts:
        rows += sst.rows
        if rows > _BITMAP_ROWS:
            chunks.append([])
            rows = sst.rows
        chunks[-1].append(sst)
    return chunks
