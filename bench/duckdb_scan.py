"""Full-table queries through merge-on-read, beside DuckDB on one plain Parquet file of the same rows.

`python -m bench.duckdb_scan [FOLDER] [--quick]` prints its rows alone; `--quick` uses 1 M keys instead of 5 M.

The table is measured in two states: compacted, with one SST per state partition; and with 8 level-0 batches of 70,000
random keys on top. `COPY t TO` writes the plain file from the same rows, with DuckDB's own row groups and compression.
Both sides use all cores, and read files that are in the page cache; they alternate.

The first query of a version creates its view: it finds dead rows and verifies the checksum of every SST. This time is
reported beside the figures, because it is spent once per session, however many queries follow.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import duckdb
from slackwater.store.read import duckdb_view
from slackwater.store.versions.entries.ssts import Sst
from slackwater.store.versions.manifest import Manifest

from .multi_get import TABLE, Keyed
from .support.row import Row

KEYS = 5_000_000
QUICK_KEYS = 1_000_000
ROUNDS = 5
SCAN = "scan of all columns"
QUERIES = {
    "bare sum": "SELECT sum(flights), sum(delay) FROM {}",
    # By the first characters: few groups, so that the time of the grouping itself is small.
    "aggregate grouped by key": "SELECT left(leg, 6) AS part, sum(flights), sum(delay) FROM {} GROUP BY part",
    SCAN: "FROM {}",
}
ASKED = {
    "compacted": {"bare sum": 1.2, "aggregate grouped by key": 1.2, SCAN: 1.2},
    "with 8 L0 files a partition": {"bare sum": 4.0, "aggregate grouped by key": 2.0},
}


def rows(folder: Path, quick: bool) -> list[Row]:
    """Build the table in the folder, and measure. Takes about a minute at full scale.

    Args:
        folder: an empty folder on a disk with 1 GB.
        quick: 1 M keys instead of 5 M.
    """
    table = Keyed.build(folder / "duckdb", QUICK_KEYS if quick else KEYS)
    shapes = {"compacted": tuple(one for one in table.ssts if one.level), "with 8 L0 files a partition": table.ssts}
    return [
        _row(shape, name, seconds, made_s, sum(one.rows for one in ssts if one.level))
        for shape, ssts in shapes.items()
        for made_s, measured in [_measure(table, ssts, folder, list(ASKED[shape]))]
        for name, seconds in measured.items()
    ]


def _row(shape: str, name: str, seconds: tuple[float, float], made_s: float, num_keys: int) -> Row:
    ours, plain = seconds
    asked = ASKED[shape][name]
    return Row(
        f"DuckDB, {name} of {num_keys:,} rows, {shape} (view made in {made_s * 1000:.0f} ms)",
        f"{ours * 1000:.0f} ms",
        f"one plain Parquet file: {plain * 1000:.0f} ms",
        ours / plain,
        f"<= {asked}",
        ours / plain <= asked,
    )


def _measure(
    table: Keyed, ssts: tuple[Sst, ...], folder: Path, names: list[str]
) -> tuple[float, dict[str, tuple[float, float]]]:
    """Return the seconds to create the view, and each query's median seconds on our table and on the plain file."""
    manifest = Manifest("bench", "legs", 1, 1, "bench", 1, "batch", table=TABLE, ssts=ssts)
    with duckdb.connect() as con:
        started = time.perf_counter()
        duckdb_view.register_table(con, "merged", table.store, table.cache, manifest)
        made_s = time.perf_counter() - started
        plain = folder / f"plain-{len(ssts)}.parquet"
        con.execute(f"COPY merged TO '{plain}'")
        con.execute(f"CREATE TEMP VIEW plain AS FROM '{plain}'")
        found = {}
        for name in names:
            seconds: dict[str, list[float]] = {"merged": [], "plain": []}
            for _ in range(1 + ROUNDS):
                for view, taken in seconds.items():
                    started = time.perf_counter()
                    con.sql(QUERIES[name].format(view)).to_arrow_table()
                    taken.append(time.perf_counter() - started)
            found[name] = (median(seconds["merged"][1:]), median(seconds["plain"][1:]))
    return made_s, found


if __name__ == "__main__":
    named = [argument for argument in sys.argv[1:] if not argument.startswith("-")]
    with tempfile.TemporaryDirectory(prefix="slackwater-bench-", dir=named[0] if named else None) as work:
        for row in rows(Path(work), "--quick" in sys.argv):
            print(row)
