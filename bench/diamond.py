"""A diamond-shaped app that takes snapshots: what they cost a running job, and the time until each is complete.

`python -m bench.diamond BOOTSTRAP FOLDER` runs it in a fresh process and prints one JSON object.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from itertools import cycle
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, TypedDict

import numpy as np

from .support import side
from .support.events import PARTITIONS, TOPIC, fill
from .support.row import Row

if TYPE_CHECKING:
    import slackwater as sw
    from pyspark.sql.streaming.query import StreamingQuery
    from slackwater.pipeline.listener import BatchReport

LONGEST = ("events", "odd", "legs")
"""The stages on one of the two longest paths. The other path has `even` instead of `odd`."""
PHASE_S = 25.0
EVERY_S = 5.0
WARM_UP_S = 40.0
BATCH = 25_000
RECORDS = 6_000_000


class Measured(TypedDict):
    """Seconds per batch of the last stage, per batch of every stage, and from a request to the complete snapshot."""

    without: list[float]
    with_: list[float]
    batches: dict[str, float]
    latencies: list[float]


def rows(bootstrap: str, folder: Path, quick: bool) -> list[Row]:
    """Compare a running job with and without snapshots."""
    fill(bootstrap, RECORDS // 2 if quick else RECORDS)
    found: Measured = side.run("diamond", bootstrap, folder)
    with_, without = (float(np.percentile(seconds, 95)) for seconds in (found["with_"], found["without"]))
    latency, limit = median(found["latencies"]), 2 * sum(found["batches"].values())
    return [
        Row.at_most(
            f"p95 batch time of a diamond with a snapshot every {EVERY_S:.0f} s ({len(found['with_'])} batches)",
            f"{with_:.2f} s",
            f"without: {without:.2f} s",
            with_ / without,
            1.1,
        ),
        Row.at_most(
            f"snapshot of the running diamond complete after, median of {len(found['latencies'])}",
            f"{latency:.2f} s",
            f"two batches of each stage on the longest path: {limit:.2f} s",
            latency / limit,
            1,
        ),
    ]


def _app() -> sw.App:
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc
    import slackwater as sw
    from pyspark.sql import DataFrame
    from pyspark.sql import functions as F

    app = sw.App("diamond")

    by_leg = sw.repartition("by-leg", "leg")

    @app.stage(reads=sw.topic(TOPIC), writes=by_leg)
    def events(flights: DataFrame) -> DataFrame:
        return flights.select(F.col("key").cast("string").alias("leg"), F.length("value").cast("long").alias("size"))

    halves = []
    for name, remainder in (("odd", 1), ("even", 0)):
        half = sw.repartition(f"by-leg-{name}", "leg")
        app.stage(name=name, reads=by_leg, writes=half)(lambda rows, of=remainder: rows.where(f"size % 2 = {of}"))
        halves.append(half)

    def both(odd: pa.Table, even: pa.Table, state: pa.Table) -> pa.Table:
        n, size = pc.fill_null(state["n"], 0), pc.fill_null(state["size"], 0)
        for rows in (odd, even):
            key = rows["_key"].to_numpy()
            n = pc.add(n, np.bincount(key, minlength=state.num_rows))
            sums = np.bincount(key, rows["size"].to_numpy(), minlength=state.num_rows)
            size = pc.add(size, sums.astype(np.int64))
        return pa.table({"n": n, "size": size})

    @app.stage(reads=halves, state=sw.update(both, state="n long, size long"), table=sw.table(partitions=PARTITIONS))
    def legs(odd: DataFrame, even: DataFrame) -> tuple[DataFrame, DataFrame]:
        return odd, even

    return app


def _run(bootstrap: str, folder: Path) -> Measured:
    from slackwater.pipeline.listener import Callbacks
    from slackwater.pipeline.run.options import Options
    from slackwater.pipeline.run.runner import run
    from slackwater.pipeline.spark.session import spark_session
    from slackwater.snapshot.cut.stored import list_snapshots
    from slackwater.snapshot.take import taking
    from slackwater.store.objects.open import open_store

    store = open_store(str(folder / "store"))
    seconds: dict[str, list[float]] = {"without": [], "with": []}
    queries: dict[str, StreamingQuery] = {}
    loaded: list[tuple[float, float]] = []
    phase = {"name": "warm up", "taken": 0}
    done = threading.Event()

    def conduct() -> None:
        # The JVM compiles hot code in its first minute. A stage may start late on a loaded machine, or end early.
        warm = time.monotonic() + WARM_UP_S
        while time.monotonic() < warm and not done.wait(1):
            queries.update((query.name, query) for query in spark.streams.active)
        for name in cycle(("without", "with")):
            phase["name"] = name
            queries.update((query.name, query) for query in spark.streams.active)
            if name == "with":
                loaded.append((time.time(), time.time() + PHASE_S))
            until = time.monotonic() + PHASE_S
            while time.monotonic() < until:
                if name == "with":
                    phase["taken"] += 1
                    taking.request_snapshot(store, "diamond", f"s{phase['taken']}", "bench")
                if done.wait(EVERY_S):
                    return

    def note(progress: BatchReport) -> None:
        if progress.stage == "legs" and progress.rows_in and phase["name"] in seconds:
            seconds[str(phase["name"])].append(progress.seconds)

    conductor = threading.Thread(target=conduct)
    options = Options(
        store=str(folder / "store"),
        kafka={"bootstrap.servers": bootstrap},
        until_caught_up=True,
        max_records=BATCH,
        cache_folder=folder / "cache",
        master="local[2]",
    )
    # Spark's durations of batches include planning and logs, for which a marker has to wait as well.
    kept = {"spark.sql.streaming.numRecentProgressUpdates": "10000"}
    with spark_session("bench", master="local[2]", conf=kept) as spark:
        conductor.start()
        run(_app(), options, Callbacks(committed=note))
        done.set()
        conductor.join()
        batches = {name: side.batches(query) for name, query in queries.items()}
    taken = list_snapshots(store, "diamond")
    assert len(taken) >= int(phase["taken"]) - 1
    latencies = [(one.completed_ms - one.created_ms) / 1000 for one in taken]
    return {
        "without": seconds["without"],
        "with_": seconds["with"],
        "batches": {
            stage: median(
                batch.seconds for batch in batches[stage] if any(first <= batch.start < last for first, last in loaded)
            )
            for stage in LONGEST
        },
        "latencies": latencies,
    }


if __name__ == "__main__":
    print(json.dumps(_run(sys.argv[1], Path(sys.argv[2]))))
