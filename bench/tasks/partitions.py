"""Cost of a batch by number of Kafka partitions: time of a small batch and of the first commit.

The input is the same events in 4 and in 1,000 Kafka partitions, read on two cores. Partitions are read in groups, at
most one per core, so a batch has as many tasks with many partitions as with few.

`python -m bench.tasks.partitions BOOTSTRAP TOPIC FOLDER BATCH` runs one side in a fresh process and prints a JSON
object: seconds from commit to commit, from the start of the run to the first commit, and of the first batch. With a
fifth word, `spark`, Spark counts and sums the same topic, and its seconds of the first batch are printed.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

from ..support import side
from ..support.events import TOPIC, cycles, fill
from ..support.row import Row
from ..throughput import app_of, spark_batches

PARTITIONS = (4, 1_000)
SMALL = 2_000
"""Number of rows in a small batch."""
BATCHES = 16
WARM_UP = 4
LARGE = 5_000_000
"""Number of records in a backlog that is read as one batch."""


def rows(bootstrap: str, folder: Path, quick: bool) -> list[Row]:
    """Compare a small batch, and the first commit, on 1,000 Kafka partitions with those on 4."""
    folder.mkdir(parents=True, exist_ok=True)
    few, many = (_small(bootstrap, folder, partitions) for partitions in PARTITIONS)
    few_s, many_s = median(few["seconds"]), median(many["seconds"])
    return [
        Row.at_most(
            f"batch of {SMALL:,} rows from {PARTITIONS[1]:,} Kafka partitions, median of {len(many['seconds'])}",
            f"{many_s:.2f} s",
            f"{PARTITIONS[0]} Kafka partitions: {few_s:.2f} s",
            many_s / few_s,
            1.5,
        ),
        Row.at_most(
            f"first commit of an app that reads {PARTITIONS[1]:,} Kafka partitions",
            f"{many['first']:.1f} s",
            f"{PARTITIONS[0]} Kafka partitions: {few['first']:.1f} s; limit: 20 s",
            many["first"] / 20,
            1,
        ),
        *([] if quick else [_backlog(bootstrap, folder)]),
    ]


def _small(bootstrap: str, folder: Path, partitions: int) -> dict[str, Any]:
    topic = f"{TOPIC}-of-{partitions}"
    fill(bootstrap, SMALL * BATCHES, topic=topic, partitions=partitions)
    measured: dict[str, Any] = side.run("tasks.partitions", bootstrap, topic, folder / str(partitions), SMALL)
    return measured


def _backlog(bootstrap: str, folder: Path) -> Row:
    topic = f"{TOPIC}-backlog"
    fill(bootstrap, LARGE, topic=topic)
    seconds = side.run("tasks.partitions", bootstrap, topic, folder / "backlog", LARGE)["first_batch"]
    spark: float = side.run("tasks.partitions", bootstrap, topic, folder / "spark", LARGE, "spark", peer=True)
    return Row.at_least(
        f"batch of a backlog of {LARGE:,} records in {PARTITIONS[0]} Kafka partitions",
        f"{seconds:.1f} s",
        f"Spark groupBy().agg(), RocksDB with changelog, its own connector: {spark:.1f} s",
        spark / seconds,
        2,
    )


def _side(bootstrap: str, topic: str, folder: Path, batch: int) -> dict[str, object]:
    began_s = time.time()
    found = side.reports(app_of(topic), bootstrap, str(folder / "store"), folder / "cache", batch)
    stamps_ms = [report.time_ms for report in found]
    return {
        "seconds": cycles(stamps_ms, WARM_UP),
        "first": stamps_ms[0] / 1000 - began_s,
        "first_batch": found[0].seconds,
    }


if __name__ == "__main__":
    bootstrap, topic, folder, batch, *peer = sys.argv[1:]
    work = Path(folder)
    work.mkdir(parents=True, exist_ok=True)
    if peer:
        print(json.dumps(spark_batches(bootstrap, work, topic, int(batch), connector=True)[0].seconds))
    else:
        print(json.dumps(_side(bootstrap, topic, work, int(batch))))
