"""Cost of a batch by number of state partitions: time, puts, and bytes of the manifest.

The state is the same table in 4 and in 512 state partitions, on two cores. A batch writes one SST for each of its
tasks, so neither its puts nor its manifest may grow with the number of state partitions.

`python -m bench.tasks.scale BOOTSTRAP TOPIC FOLDER PARTITIONS BATCH` runs one side in a fresh process and prints a JSON
object: seconds from commit to commit, puts by version, and bytes of the last manifest.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from statistics import median
from typing import Any

from ..support import side
from ..support.events import TOPIC, cycles, fill
from ..support.row import Row
from ..throughput import app_of
from .storage import manifests

PARTITIONS = (4, 512)
SMALL = 1_000
"""Rows of a small batch."""
BATCHES = 24
WARM_UP = 6
STAGE = "legs"


def rows(bootstrap: str, folder: Path, quick: bool) -> list[Row]:
    """A small batch over 512 state partitions beside the same batch over 4."""
    folder.mkdir(parents=True, exist_ok=True)
    topic = f"{TOPIC}-scale"
    fill(bootstrap, SMALL * BATCHES, topic=topic)
    few, many = (
        side.run("tasks.scale", bootstrap, topic, folder / str(partitions), partitions, SMALL)
        for partitions in PARTITIONS
    )
    few_s, many_s = median(few["seconds"]), median(many["seconds"])
    return [
        Row.at_most(
            f"batch of {SMALL:,} rows, {PARTITIONS[1]} state partitions, median of {len(many['seconds'])}",
            f"{many_s:.2f} s",
            f"{PARTITIONS[0]} state partitions: {few_s:.2f} s",
            many_s / few_s,
            1.3,
        ),
        Row.at_most(
            f"puts a commit, {PARTITIONS[1]} state partitions, {many['tasks']} tasks, median",
            f"{median(many['puts']):.0f}",
            f"{PARTITIONS[0]} state partitions: {median(few['puts']):.0f}",
            median(many["puts"]) / (many["tasks"] + 2),
            1,
        ),
        Row.at_most(
            f"bytes of a manifest after {BATCHES} batches, {PARTITIONS[1]} state partitions",
            f"{many['manifest_bytes']:,}",
            f"{PARTITIONS[0]} state partitions: {few['manifest_bytes']:,}",
            many["manifest_bytes"] / (64 << 10),
            1,
        ),
        *manifests.rows(quick),
    ]


def _side(bootstrap: str, topic: str, folder: Path, partitions: int, batch: int) -> dict[str, Any]:
    from slackwater.store.objects.local import LocalStore
    from slackwater.store.versions import history, keys

    reports = side.reports(app_of(topic, partitions), bootstrap, str(folder / "store"), folder / "cache", batch)
    store = LocalStore(folder / "store")
    head = history.head(store, "bench", STAGE)
    assert head is not None
    assert head.table is not None
    stats = (history.read(store, "bench", STAGE, number).stats for number in range(2, head.version + 1))
    return {
        "seconds": cycles([report.time_ms for report in reports], WARM_UP),
        "puts": [counted.puts for counted in stats if counted is not None][WARM_UP:],
        "tasks": head.table.ranges,
        "manifest_bytes": len(store.get(keys.manifest("bench", STAGE, head.version))),
    }


if __name__ == "__main__":
    bootstrap, topic, folder, partitions, batch = sys.argv[1:]
    work = Path(folder)
    work.mkdir(parents=True, exist_ok=True)
    print(json.dumps(_side(bootstrap, topic, work, int(partitions), int(batch))))
