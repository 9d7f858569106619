"""What a running job pays for a snapshot, and what a snapshot and a clone cost in store requests."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from itertools import cycle
from pathlib import Path

import numpy as np
import pyarrow as pa

from .events import PARTITIONS, TOPIC

PHASE_S = 25.0
EVERY_S = 5.0


def cost(bootstrap: str, folder: Path) -> dict[str, list[float]]:
    """Seconds of each batch of one running job, in turns `without` and `with` a snapshot every five seconds."""
    command = [sys.executable, "-m", "bench.snapshots", bootstrap, str(folder)]
    return dict(json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout))


def _run(bootstrap: str, folder: Path) -> dict[str, list[float]]:
    import slackwater as sw
    from pyspark.sql import DataFrame
    from pyspark.sql import functions as F
    from slackwater.pipeline.progress import Progress
    from slackwater.pipeline.runner import Options, run
    from slackwater.snapshot import snapshots, taking
    from slackwater.store.open import open_store

    app = sw.App("bench")

    @app.stage(reads=sw.topic(TOPIC), writes=sw.repartition("by-leg", "leg"))
    def events(flights: DataFrame) -> DataFrame:
        return flights.select(F.col("key").cast("string").alias("leg"), F.length("value").alias("size"))

    @app.stage(reads="by-leg", state=sw.aggregate(n=sw.count(), size=sw.sum("size")), partitions=PARTITIONS)
    def legs(rows: DataFrame) -> DataFrame:
        return rows

    store = open_store(str(folder / "store"))
    seconds: dict[str, list[float]] = {"without": [], "with": []}
    phase = {"name": "warm up", "taken": 0}
    done = threading.Event()

    def conduct() -> None:
        # The JVM compiles what is hot in its first minute.
        done.wait(40)
        for name in cycle(("without", "with")):
            phase["name"] = name
            until = time.monotonic() + PHASE_S
            while time.monotonic() < until:
                if name == "with":
                    phase["taken"] += 1
                    taking.request(store, "bench", f"s{phase['taken']}", "bench")
                if done.wait(EVERY_S):
                    return

    def note(progress: Progress) -> None:
        if progress.stage == "legs" and progress.rows_in and phase["name"] in seconds:
            seconds[str(phase["name"])].append(progress.seconds)

    conductor = threading.Thread(target=conduct)
    conductor.start()
    options = Options(
        store=str(folder / "store"),
        kafka={"bootstrap.servers": bootstrap},
        until_caught_up=True,
        max_records=25_000,
        cache_folder=folder / "cache",
        master="local[2]",
    )
    run(app, options, note)
    done.set()
    conductor.join()
    assert len(snapshots.list_snapshots(store, "bench")) >= phase["taken"] - 1
    return seconds


def requests(folder: Path, num_keys: int) -> dict[str, int]:
    """Store requests of a pinned snapshot and of a clone of an app whose table has so many keys."""
    from slackwater.snapshot import snapshots
    from slackwater.snapshot.clone import clone
    from slackwater.snapshot.cut import resolve
    from slackwater.store import apps, commit, sst
    from slackwater.store.counting import CountingStore
    from slackwater.store.hashing import hash_keys, partition_of
    from slackwater.store.manifest import AppInfo, Column, Manifest, Table
    from slackwater.store.open import open_store

    store = CountingStore(open_store(str(folder / f"requests-{num_keys}")))
    table = Table((Column("k", "int64"),), (Column("n", "int64"),), PARTITIONS, "bench")
    apps.create_app(store, AppInfo("bench", 1))
    keys = pa.table({"k": pa.array(np.arange(num_keys))})
    hashes = hash_keys(keys, ["k"])
    partitions = partition_of(hashes, PARTITIONS)
    runs = []
    for partition in range(PARTITIONS):
        mine = np.flatnonzero(partitions == partition)
        mine = mine[np.argsort(hashes[mine])]
        rows = pa.table(
            {
                "_hash": hashes[mine],
                "k": keys["k"].to_numpy()[mine],
                "n": mine,
                "_seq": np.ones(len(mine), np.int64),
                "_op": np.zeros(len(mine), np.uint8),
            }
        )
        runs.append(sst.write(store, None, app="bench", stage="legs", table=table, partition=partition, rows=rows))
    commit.commit(store, Manifest("bench", "legs", 1, 1, "w", 1, "batch", table=table, ssts=tuple(runs)))
    store.reset()
    cut = resolve(store, "bench", now_ms=time.time_ns() // 1_000_000)
    snapshots.pin(store, cut, "s1", "instant", by="bench")
    taken = store.requests
    store.reset()
    clone(store, "bench@s1", "staging", topics={}, channels=_NoChannels(), by="bench")
    return {"snapshot": taken, "clone": store.requests}


class _NoChannels:
    """The app of this measurement has none."""

    def check_topic(self, topic: str, offsets: tuple[int, ...], /) -> None:
        raise AssertionError(topic)

    def ends(self, topic: str, /) -> tuple[int, ...] | None:
        raise AssertionError(topic)

    def copy(self, in_flight: object, topic: str, app: str, /) -> tuple[tuple[int, ...], str, tuple[int, ...]]:
        raise AssertionError(topic)


if __name__ == "__main__":
    print(json.dumps(_run(sys.argv[1], Path(sys.argv[2]))))
