"""`slackwater init` of 10 M rows, beside DuckDB, which writes the same rows to Parquet, sorted by key.

`python -m bench.init [FOLDER] [--quick]` prints its row alone; `--quick` uses 1 M rows.

Both sides read the same unsorted Parquet file, with a string key and two numbers, on all cores, and write to the same
disk. DuckDB writes as `COPY … TO` does by default; we also fsync each SST and write look-up filters, checksums and the
commit. Each side runs in a process of its own, and they alternate.

Not included are the starts of Python and of Spark, from which the verb gets the declared columns. They take about five
seconds for any number of rows.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path
from resource import RUSAGE_SELF, getrusage
from statistics import median

import duckdb

from .multi_get import TABLE
from .support import side
from .support.row import Row

ROWS = 10_000_000
QUICK_ROWS = 1_000_000
ROUNDS = 3


def rows(folder: Path, quick: bool) -> list[Row]:
    """Make the rows in the folder, and measure. Takes about four minutes at full scale.

    Args:
        folder: an empty folder on a disk with 2 GB.
        quick: 1 M rows instead of 10 M.
    """
    count = QUICK_ROWS if quick else ROWS
    source = folder / "rows.parquet"
    with duckdb.connect() as con:
        # In no order of their keys.
        con.execute(
            f"COPY (SELECT lpad((hash(n) % 1000000000)::VARCHAR, 9, '0') || n AS leg, n % 97 AS flights, "
            f"n * 0.37 AS delay FROM range({count}) AS r(n)) TO '{source}'"
        )
    seconds: dict[str, list[float]] = {"ours": [], "duckdb": []}
    memory = 0
    for _ in range(1 if quick else ROUNDS):
        for name, taken in seconds.items():
            found = side.run("init", name, source, folder / name, peer=name == "duckdb")
            taken.append(found["seconds"])
            memory = max(memory, found["memory"]) if name == "ours" else memory
    ours, peer = median(seconds["ours"]), median(seconds["duckdb"])
    return [
        Row.at_least(
            f"init of {count:,} rows from Parquet (peak memory {memory >> 20:,} MiB)",
            f"{ours:.1f} s ({count / ours:,.0f} rows/s)",
            f"DuckDB, the same rows sorted to Parquet: {peer:.1f} s",
            peer / ours,
            0.5,
        )
    ]


def _ours(source: Path, folder: Path) -> None:
    from slackwater.operations.exchange.initialise import initialise
    from slackwater.snapshot.query.row_source import RowSource
    from slackwater.store.objects.open import open_store
    from slackwater.store.versions.manifest import Input, Manifest

    with tempfile.TemporaryDirectory(dir=folder.parent) as store:
        first = Manifest("bench", "legs", 1, 1, "bench", 1, "init", {"legs": Input("legs", (0,))}, table=TABLE)
        initialise(open_store(store), first, RowSource(str(source)))


def _duckdb(source: Path, folder: Path) -> None:
    with tempfile.TemporaryDirectory(dir=folder.parent) as out, duckdb.connect() as con:
        con.execute(f"COPY (FROM '{source}' ORDER BY leg) TO '{out}/sorted.parquet'")


def _run(name: str, source: Path, folder: Path) -> dict[str, float]:
    started = time.perf_counter()
    (_ours if name == "ours" else _duckdb)(source, folder)
    # KiB on Linux.
    return {"seconds": time.perf_counter() - started, "memory": getrusage(RUSAGE_SELF).ru_maxrss << 10}


if __name__ == "__main__":
    if sys.argv[1:2] in (["ours"], ["duckdb"]):
        print(json.dumps(_run(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))))
    else:
        named = [argument for argument in sys.argv[1:] if not argument.startswith("-")]
        with tempfile.TemporaryDirectory(prefix="slackwater-bench-", dir=named[0] if named else None) as work:
            for row in rows(Path(work), "--quick" in sys.argv):
                print(row)
