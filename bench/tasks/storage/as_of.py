"""As-of join of labels with the history of a table, beside DuckDB's ASOF JOIN on one file with all changes."""

from __future__ import annotations

import time
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from slackwater.snapshot.diff.asof import read_as_of
from slackwater.store.objects.open import open_store
from slackwater.store.read.cache import SstCache
from slackwater.store.versions import apps, commit
from slackwater.store.versions.manifest import AppInfo, Column, Manifest, Table

from ...support.row import Row
from ...support.written import Stage, ssts

KEYS, VERSIONS, BATCH, LABELS = 1_000_000, 10_000, 200, 1_000_000
TABLE = Table((Column("k", "int64"),), (Column("v", "int64"),), 4)
STEP_MS = 1_000

ASOF_JOIN = """
    SELECT labels.label, changes.v
    FROM labels ASOF LEFT JOIN changes ON labels.k = changes.k AND labels.at >= changes.at ORDER BY labels.label
"""


def rows(folder: Path, quick: bool) -> list[Row]:
    """Join a million labels with ten thousand versions of a million keys. The cache is empty."""
    versions, count = (VERSIONS // 50, LABELS // 50) if quick else (VERSIONS, LABELS)
    root = str(folder / "store")
    _write(root, folder, versions)
    random = np.random.default_rng(2)
    at = pa.array(random.integers(STEP_MS, (versions + 1) * STEP_MS, count), pa.timestamp("ms"))
    labels = pa.table({"label": np.arange(count), "k": random.integers(0, KEYS, count), "at": at})
    began = time.monotonic()
    joined = read_as_of(open_store(root), SstCache(folder / "cold", 8 << 30), "bench", "t", labels, time="at")
    ours = time.monotonic() - began
    began = time.monotonic()
    with duckdb.connect() as con:
        con.register("labels", labels)
        con.execute(f"CREATE VIEW changes AS FROM '{folder}/changes.parquet'")
        expected = con.sql(ASOF_JOIN).to_arrow_table()
    peer = time.monotonic() - began
    assert joined.rows.column("v").to_numpy().tolist() == expected.column("v").to_numpy().tolist()
    what = f"asof: {count:,} labels, {versions:,} versions of {KEYS:,} keys"
    beside = f"DuckDB over one file: {peer:.1f} s"
    return [Row.at_most(f"{what}: seconds", f"{ours:.1f} s", beside, ours, 120)]


def _write(root: str, folder: Path, versions: int) -> None:
    store, cache = open_store(root), SstCache(folder / "writer", 8 << 30)
    apps.create_app(store, AppInfo("bench", 1))
    base = pa.table({"k": np.arange(KEYS), "v": np.zeros(KEYS, np.int64)})
    level = ssts(store, cache, "bench", "t", TABLE, base, 1, 1)
    first = Manifest("bench", "t", 1, 1, "w", STEP_MS, "claim", table=TABLE, ssts=level)
    commit.commit(store, first)
    stage, random, changes = Stage(store, cache, first), np.random.default_rng(1), [_changes(base, STEP_MS)]
    while stage.head.version < versions:
        keys = np.sort(random.choice(KEYS, BATCH, replace=False))
        batch = pa.table({"k": keys, "v": random.integers(1, 1 << 40, BATCH)})
        stage.put(batch)
        changes.append(_changes(batch, stage.head.time_ms))
        stage.compact()
    pq.write_table(pa.concat_tables(changes), folder / "changes.parquet")


def _changes(rows: pa.Table, time_ms: int) -> pa.Table:
    return rows.append_column("at", pa.array(np.full(rows.num_rows, time_ms), pa.timestamp("ms")))
