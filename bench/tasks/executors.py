"""Cache hits of two executors with separate caches: the share of SSTs for look-ups that a machine already has.

`python -m bench.tasks.executors BOOTSTRAP FOLDER MASTER HOW` runs one side in a fresh process and prints JSON.

The machines are two one-core workers of a local standalone cluster, each with its own cache. The peer runs the same
batches on the same kind of cluster, but Spark alone chooses the executor of a state partition.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TypedDict

from ..support import side
from ..support.events import PARTITIONS, TOPIC, fill
from ..support.row import Row

BATCH = 20_000
BATCHES = 40
WARM_UP = 3
ASKED = 0.95


class Measured(TypedDict):
    """Counts after the warm-up: SSTs that look-ups needed (`looked`), and of these in the machine's cache (`hits`)."""

    hits: int
    looked: int


def rows(bootstrap: str, folder: Path, quick: bool) -> list[Row]:
    """Run the same app with and without preferred executors for state partitions."""
    from tests.end_to_end.under_fire.spark_cluster import standalone

    topic = f"{TOPIC}-executors"
    fill(bootstrap, BATCH * (BATCHES // 2 if quick else BATCHES), topic=topic)
    found: dict[str, Measured] = {}
    for how in ("home", "anywhere"):
        # A separate cluster for each side, so that its caches are empty.
        with standalone(folder / how, workers=2) as cluster:
            words = (bootstrap, folder / f"app-{how}", cluster.url, how)
            found[how] = side.run("tasks.executors", *words, env={"PYSPARK_PYTHON": sys.executable})
    ours, peer = (one["hits"] / one["looked"] for one in (found["home"], found["anywhere"]))
    return [
        Row.at_least(
            f"SSTs that a look-up finds on its machine, two executors, after {WARM_UP} batches",
            f"{ours:.3f} of {found['home']['looked']}",
            f"placed by Spark alone: {peer:.3f} of {found['anywhere']['looked']}",
            ours,
            ASKED,
        )
    ]


def _run(bootstrap: str, folder: Path, master: str, how: str) -> Measured:
    import slackwater as sw
    from pyspark.sql import DataFrame
    from pyspark.sql import functions as F
    from slackwater.pipeline.batch import stage_runner
    from slackwater.store.objects.open import open_store
    from slackwater.store.versions import history

    app = sw.App("executors")

    @app.stage(
        reads=sw.topic(f"{TOPIC}-executors"),
        key="leg",
        state=sw.aggregate(flights=sw.count(), size=sw.sum("size")),
        table=sw.table(partitions=PARTITIONS),
    )
    def legs(flights: DataFrame) -> DataFrame:
        return flights.select(F.col("key").cast("string").alias("leg"), F.length("value").cast("long").alias("size"))

    if how == "anywhere":
        stage_runner.Homes = lambda _count: None  # type: ignore[assignment,misc]
    conf = {"spark.executor.memory": "512m", "spark.driver.host": "127.0.0.1"}
    store = str(folder / "store")
    app.run(store=store, kafka=bootstrap, until_caught_up=True, max_records=BATCH, master=master, spark_conf=conf)
    opened = open_store(store)
    head = history.head(opened, "executors", "legs")
    assert head is not None
    versions = [history.read(opened, "executors", "legs", number) for number in range(1, head.version + 1)]
    stats = [one.stats for one in versions if one.kind == "batch" and one.stats is not None][WARM_UP:]
    hits = sum(one.cache_hits for one in stats)
    return {"hits": hits, "looked": hits + sum(one.cache_misses for one in stats)}


if __name__ == "__main__":
    json.dump(_run(sys.argv[1], Path(sys.argv[2]), sys.argv[3], sys.argv[4]), sys.stdout)
