"""Queries of a whole table through merge-on-read, beside DuckDB on one plain Parquet file of the same rows.

`python -m bench.duckdb_scan [FOLDER] [--quick]` prints its rows alone; `--quick` takes 1 M keys instead of 5 M.

Twice: compacted, one SST a state partition; and with 8 batches of level 0, 70,000 random keys each, over that. The
plain file is what `COPY t TO` writes of the same rows: DuckDB's own row groups and compression. Both sides have the
machine's cores and files that were read before, and take turns.

Before the first query of a version its view is made: what is dead is searched for, and every SST's checksum looked at.
The time of that is told beside the figures; it counts once a session, however many queries follow.
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
    # By its first characters: few groups, so that the grouping itself hides nothing.
    "aggregate grouped by key": "SELECT left(leg, 6) AS part, sum(flights), sum(delay) FROM {} GROUP BY part",
    SCAN: "FROM {}",
}
ASKED = {
    "compacted": {"bare sum": 1.2, "aggregate grouped by key": 1.2, SCAN: 1.2},
    "with 8 L0 files a partition": {"bare sum": 4.0, "aggregate grouped by key": 2.0},
}


def rows(folder: Path, quick: bool) -> list[Row]:
    """Build the table in the folder and measure; about a minute at full scale.

    Args:
        folder: an empty one, for some 1 GB.
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
    """Seconds that the view took; median seconds of each query, ours and on the plain file."""
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
