"""Time to the first commit on a new machine, which has only the app's store, or Spark's checkpoint.

`python -m bench.restart prepare BOOTSTRAP FOLDER SMALL LARGE` creates large states: our tables, and a Spark checkpoint.

`python -m bench.restart slackwater|spark BOOTSTRAP FOLDER KEYS BEGAN` starts in a fresh process, processes the topic,
and prints a JSON list: seconds from BEGAN (a Unix time) until Spark was up, and until the first commit.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from .support import side
from .support.events import PARTITIONS, fill_ranges
from .support.large_state import app_of, copy, legs_of, write
from .support.row import Row

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

SIZES = (100_000, 10_000_000)
FIRST = 100
"""Number of rows in the first batch, each with its own key."""
TOPIC = "bench-restart"
BATCH = 400_000
TAIL = 8
"""Number of batches since the last snapshot in Spark's checkpoint.

Spark writes a snapshot every minute, and a machine is usually lost between two of them.
"""
BUILD = 2_000_000
"""Number of rows per batch while Spark's checkpoint is built."""
SNAPSHOT_S = 120.0
ROUNDS = 3


def rows(bootstrap: str, folder: Path, quick: bool) -> list[Row]:
    """Compare the time to the first commit on a new machine with Spark's restart from its checkpoint."""
    small, large = (100_000, 1_000_000) if quick else SIZES
    side.run("restart", "prepare", bootstrap, folder, small, large, peer=True)
    turns = (("slackwater", large), ("spark", large), ("slackwater", small))
    _fill(bootstrap, 0, TAIL * BATCH, BATCH)
    for name, keys in turns:
        side.run("restart", name, bootstrap, folder / f"{name}-{keys}", keys, time.time(), peer=name == "spark")
    # Keys of the large state that no batch after the snapshot contained.
    _fill(bootstrap, TAIL * BATCH, FIRST, FIRST)
    found: dict[tuple[str, int], list[tuple[float, float]]] = {}
    for number in range(1 if quick else ROUNDS):
        for name, keys in turns if number % 2 == 0 else reversed(turns):
            found.setdefault((name, keys), []).append(_restart(bootstrap, folder, name, keys, number))
    up, ours = _median(found["slackwater", large])
    spark_up, spark = _median(found["spark", large])
    _, few = _median(found["slackwater", small])
    what = f"{FIRST:,} rows, after losing the machine"
    return [
        Row.at_least(
            f"Spark up to first commit, {what}, {large:,} keys",
            f"{ours - up:.2f} s (process start to commit: {ours:.2f} s)",
            f"Spark from its RocksDB checkpoint: {spark - spark_up:.2f} s ({spark:.2f} s)",
            (spark - spark_up) / (ours - up),
            5,
        ),
        Row.at_most(
            f"process start to first commit, {what}, {large:,} keys",
            f"{ours:.2f} s",
            f"{small:,} keys: {few:.2f} s",
            ours / few,
            1.2,
        ),
    ]


def _median(restarts: list[tuple[float, float]]) -> tuple[float, float]:
    """Return the median seconds until Spark was up, and until the first commit."""
    ups, commits = zip(*restarts, strict=True)
    return median(ups), median(commits)


def _restart(bootstrap: str, folder: Path, name: str, keys: int, number: int) -> tuple[float, float]:
    """Restart once from a copy of the store or checkpoint.

    Returns the seconds until Spark was up, and until the first commit.
    """
    work = folder / f"{name}-{keys}-{number}"
    left = "store" if name == "slackwater" else "checkpoint"
    copy(folder / f"{name}-{keys}" / left, work / left)
    up, committed = side.run("restart", name, bootstrap, work, keys, time.time(), peer=name == "spark")
    return up, committed


def _fill(bootstrap: str, start: int, num: int, batch: int) -> None:
    """Write this many consecutive numbers. Each batch is one range per partition."""
    step = batch // PARTITIONS
    fill_ranges(bootstrap, TOPIC, [(first, first + step - 1) for first in range(start, start + num, step)])


def _prepare(bootstrap: str, folder: Path, small: int, large: int) -> None:
    from slackwater.pipeline.spark.session import spark_session

    _fill(bootstrap, 0, large, min(BUILD, large))
    conf = {
        **side.SPARK_STATE,
        "spark.sql.shuffle.partitions": str(PARTITIONS),
        # Spark writes snapshots soon, so that a snapshot of the whole state exists at the end.
        "spark.sql.streaming.stateStore.minDeltasForSnapshot": "1",
        "spark.sql.streaming.stateStore.maintenanceInterval": "2s",
    }
    with spark_session("bench", master="local[2]", conf=conf) as spark:
        checkpoint = folder / f"spark-{large}" / "checkpoint"
        query = _query(spark, bootstrap, checkpoint, large)
        query.processAllAvailable()
        last = query.lastProgress
        assert last is not None
        _await_snapshots(checkpoint, last["batchId"] + 1)
        query.stop()
        for keys in (small, large):
            app = app_of(TOPIC, keys, PARTITIONS)
            write(folder / f"slackwater-{keys}" / "store", app, spark, bootstrap, keys, at_end=True)


def _await_snapshots(checkpoint: Path, version: int) -> None:
    """Wait until the checkpoint has a full state snapshot of each partition at that version, not only the changelog."""
    deadline = time.monotonic() + SNAPSHOT_S
    wanted = [checkpoint / "state" / "0" / str(partition) / f"{version}.zip" for partition in range(PARTITIONS)]
    while not all(snapshot.exists() for snapshot in wanted):
        assert time.monotonic() < deadline, sorted(str(path) for path in (checkpoint / "state").rglob("*.zip"))
        time.sleep(0.2)


def _query(spark: SparkSession, bootstrap: str, checkpoint: Path, keys: int) -> StreamingQuery:
    from pyspark.sql import functions as F

    source = side.topic_stream(spark, bootstrap, TOPIC, PARTITIONS)
    rows = legs_of(source, keys).groupBy("leg").agg(F.count("*").alias("flights"), F.sum("delay").alias("delay"))
    return side.started(rows, checkpoint)


def _slackwater(bootstrap: str, folder: Path, keys: int, began: float) -> tuple[float, float]:
    from slackwater.pipeline.spark.session import spark_session

    with spark_session("bench", master="local[2]"):
        up = time.time() - began
        app = app_of(TOPIC, keys, PARTITIONS)
        stamps = side.commits_ms(app, bootstrap, str(folder / "store"), folder / "cache", PARTITIONS)
    return up, stamps[0] / 1000 - began


def _spark(bootstrap: str, folder: Path, keys: int, began: float) -> tuple[float, float]:
    from slackwater.pipeline.spark.session import spark_session

    conf = {**side.SPARK_STATE, "spark.sql.shuffle.partitions": str(PARTITIONS)}
    with spark_session("bench", master="local[2]", conf=conf) as spark:
        up = time.time() - began
        query = _query(spark, bootstrap, folder / "checkpoint", keys)
        query.processAllAvailable()
        first = side.ends_ms(query)[0]
        query.stop()
    return up, first / 1000 - began


if __name__ == "__main__":
    verb, bootstrap, name, *words = sys.argv[1:]
    folder = Path(name)
    folder.mkdir(parents=True, exist_ok=True)
    if verb == "prepare":
        _prepare(bootstrap, folder, int(words[0]), int(words[1]))
        print("null")
    else:
        restart = {"slackwater": _slackwater, "spark": _spark}[verb]
        print(json.dumps(restart(bootstrap, folder, int(words[0]), float(words[1]))))
