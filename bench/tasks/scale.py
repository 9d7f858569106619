"""Cost of a batch by number of state partitions: time, puts, and size of the manifest.

The same table is stored in 4 and in 512 state partitions, and processed on two cores. A batch writes one SST per task,
so neither its puts nor its manifest may grow with the number of state partitions.

Small batches have fewer tasks than there are hash ranges. The saving is counted without Spark: the puts and bytes of
batches and merges, with one task per range and with the number of tasks that the runner chooses.

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
"""Number of rows in a small batch."""
BATCHES = 24
WARM_UP = 6
STAGE = "legs"
RANGES = 16
SMALL_BATCHES = 200
KEYS = 500_000


def rows(bootstrap: str, folder: Path, quick: bool) -> list[Row]:
    """Compare a small batch over 512 state partitions with the same batch over 4."""
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
        *manifests.simulated_rows(quick),
        *_small_batches(folder),
    ]


def _small_batches(folder: Path) -> list[Row]:
    from slackwater.pipeline.batch.task_count import TaskCount

    chosen = TaskCount().choose(RANGES, SMALL)
    (fewer, fewer_bytes), (all_, all_bytes) = (_written(folder / f"tasks-{tasks}", tasks) for tasks in (chosen, RANGES))
    peer = f"{RANGES} tasks: "
    what = f"{SMALL_BATCHES} batches of {SMALL:,} rows, {RANGES} hash ranges, {chosen} tasks"
    return [
        Row.at_most(
            f"puts a batch and of merges, {what}",
            f"{fewer[0] / SMALL_BATCHES:.1f} and {fewer[1]}",
            f"{peer}{all_[0] / SMALL_BATCHES:.1f} and {all_[1]}",
            sum(fewer) / sum(all_),
            0.25,
        ),
        Row.at_most(
            f"MB of batches and merges, {what}",
            " and ".join(f"{size / 1e6:.1f}" for size in fewer_bytes),
            peer + " and ".join(f"{size / 1e6:.1f}" for size in all_bytes),
            sum(fewer_bytes) / sum(all_bytes),
            1,
        ),
    ]


def _written(folder: Path, tasks: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """Write small batches with this many tasks to a table of `KEYS` keys. Runs the merges that are due after each.

    Returns puts, then bytes, each as a pair: those of batches and those of merges.
    """
    import numpy as np
    import pyarrow as pa
    from msgspec.structs import replace
    from slackwater.store.compaction.merge import run_compaction
    from slackwater.store.compaction.picker import pick
    from slackwater.store.compaction.plan import apply_results
    from slackwater.store.objects.counting import CountingStore, Stats
    from slackwater.store.objects.memory import MemoryStore
    from slackwater.store.read.cache import SstCache
    from slackwater.store.versions.manifest import Column, Table

    from ..support.written import ssts

    table = Table((Column("k", "int64"),), (Column("n", "int64"), Column("x", "double")), RANGES)
    store, cache, random = CountingStore(MemoryStore()), SstCache(folder, 1 << 30), np.random.default_rng(5)

    def batch(keys: Any, seq: int, table: Table, level: int = 0) -> tuple[Any, ...]:
        values = {"n": random.integers(1 << 40, size=len(keys)), "x": random.random(len(keys))}
        return ssts(store, cache, "bench", STAGE, table, pa.table({"k": keys, **values}), seq, level)

    current = batch(np.arange(KEYS), 1, table, level=1)
    store.take_stats()
    flushed, merged = Stats(), Stats()
    for seq in range(2, SMALL_BATCHES + 2):
        keys = random.choice(KEYS, SMALL, replace=False)
        current = (*batch(keys, seq, replace(table, tasks=tasks)), *current)
        flushed += store.take_stats()
        due = pick(current, table.ranges, table.compaction)
        done = [run_compaction(store, cache, "bench", STAGE, table, one) for one in due]
        current = apply_results(current, done)
        merged += store.take_stats()
    return (flushed.puts, merged.puts), (flushed.bytes_written, merged.bytes_written)


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
