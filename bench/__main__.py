"""All measurements in one run: `python -m bench`. `--quick` is for trying the benchmark itself."""

from __future__ import annotations

import json
import os
import platform
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from statistics import median

import numpy as np
from rich.console import Console
from rich.table import Table
from slackwater.pipeline.broker import EmbeddedKafka

from . import capturing, command_line, diamond, snapshots, throughput
from .events import KEYS, fill
from .row import Row

OUT = Path(__file__).parent / "out"
RECORDS = 4_000_000


def main() -> None:
    """Measure, print, write `bench/out/results.json`; exit 1 when a figure is not reached."""
    console = Console()
    records = 1_600_000 if "--quick" in sys.argv else RECORDS
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="slackwater-bench-") as name:
        folder = Path(name)
        with EmbeddedKafka(folder / "kafka") as broker:
            console.print(f"filling a topic with {records:,} events, {KEYS:,} keys …")
            fill(broker.bootstrap, records)
            console.print("stateful aggregation, Spark and slackwater in turns …")
            rows.append(_throughput(broker.bootstrap, folder))
            console.print("a running job with and without snapshots …")
            rows += _snapshots(broker.bootstrap, folder)
            console.print("records in flight, written and kept …")
            rows.append(_capturing(broker.bootstrap, folder))
        console.print("store requests at 10,000 and at 5,000,000 keys …")
        rows += _requests(folder)
        rows += _command_line(folder)
    _print(console, rows)
    OUT.mkdir(exist_ok=True)
    machine = {"cpus": os.cpu_count(), "python": platform.python_version(), "machine": platform.machine()}
    (OUT / "results.json").write_text(json.dumps({"machine": machine, "rows": [asdict(row) for row in rows]}, indent=2))
    raise SystemExit(0 if all(row.reached for row in rows) else 1)


def _throughput(bootstrap: str, folder: Path) -> Row:
    seconds = throughput.compare(bootstrap, folder, rounds=1 if "--quick" in sys.argv else 2)
    ours, spark = median(seconds["slackwater"]), median(seconds["spark"])
    return Row(
        f"batch of {throughput.BATCH:,} rows, count and sum on {KEYS:,} keys, median",
        f"{ours:.2f} s",
        f"Spark groupBy().agg(), RocksDB: {spark:.2f} s",
        spark / ours,
        ">= 1.2",
        spark / ours >= 1.2,
    )


def _snapshots(bootstrap: str, folder: Path) -> list[Row]:
    found = diamond.measure(bootstrap, folder / "diamond")
    with_, without = (float(np.percentile(seconds, 95)) for seconds in (found["with_"], found["without"]))
    latency, limit = median(found["latencies"]), 2 * sum(found["batches"].values())
    return [
        Row(
            f"p95 batch time of a diamond with a snapshot every {diamond.EVERY_S:.0f} s "
            f"({len(found['with_'])} batches)",
            f"{with_:.2f} s",
            f"without: {without:.2f} s",
            with_ / without,
            "<= 1.1",
            with_ / without <= 1.1,
        ),
        Row(
            f"snapshot of the running diamond complete after, median of {len(found['latencies'])}",
            f"{latency:.2f} s",
            f"two batches of each stage on the longest path: {limit:.2f} s",
            latency / limit,
            "<= 1",
            latency <= limit,
        ),
    ]


def _capturing(bootstrap: str, folder: Path) -> Row:
    written, kept = capturing.measure(bootstrap, folder / "capturing")
    return Row(
        "records in flight kept with a snapshot",
        f"{kept:,.0f} rows/s",
        f"written to the channel: {written:,.0f} rows/s",
        kept / written,
        ">= 1",
        kept >= written,
    )


def _requests(folder: Path) -> list[Row]:
    small, large = snapshots.requests(folder, 10_000), snapshots.requests(folder, 5_000_000)
    return [
        Row(
            f"store requests of a {verb}, 5,000,000 keys",
            str(large[verb]),
            f"10,000 keys: {small[verb]}",
            large[verb] / small[verb],
            "= 1",
            large[verb] == small[verb],
        )
        for verb in ("snapshot", "clone")
    ]


def _command_line(folder: Path) -> list[Row]:
    store = str(folder / "requests-10000")
    verbs = {
        "slackwater --help": (command_line.seconds("--help"), 0.4),
        "slackwater query, local store": (
            command_line.seconds("query", "bench", "SELECT count(*) FROM legs", "--store", store),
            1.0,
        ),
    }
    return [
        Row(what, f"{seconds:.2f} s", f"limit: {limit} s", seconds / limit, "< 1", seconds < limit)
        for what, (seconds, limit) in verbs.items()
    ]


def _print(console: Console, rows: list[Row]) -> None:
    table = Table("what", "slackwater", "beside", "ratio", "asked", "reached")
    for row in rows:
        verdict = "yes" if row.reached else "[red]no"
        table.add_row(row.what, row.ours, row.peer, f"{row.ratio:.2f}", row.asked, verdict)
    console.print(table)


if __name__ == "__main__":
    main()
