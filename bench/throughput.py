"""Stateful aggregation beside Spark's own: the same source, the same query, the same machine, in turns.

`python -m bench.throughput slackwater|spark BOOTSTRAP FOLDER TOPIC BATCH` runs one side in a fresh process until it
has read the topic, and prints a JSON list: seconds from batch to batch. It goes on where the last one with its folder
ended.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import numpy as np

from .support import side
from .support.events import KEYS, PARTITIONS, cycles, fill, fill_legs
from .support.row import Row

if TYPE_CHECKING:
    import slackwater as sw
    from pyspark.sql import DataFrame, SparkSession

BATCH = 400_000
PRELOAD = 1_250_000
"""Rows of a batch while the state is built."""
WARM_UP = 3
MEASURED = 6
EVENT = "carrier string, origin string, dest string, dep_delay double, arr_delay double"
SIDES = ("slackwater", "spark")


def rows(bootstrap: str, folder: Path, quick: bool) -> list[Row]:
    """Stateful aggregation beside Spark's groupBy().agg() on RocksDB."""
    large = 1_000_000 if quick else 5_000_000
    return [
        _row(bootstrap, folder / "small", KEYS, 1.2, rounds=1),
        _row(bootstrap, folder / "large", large, 1.5, rounds=1 if quick else 2),
    ]


def _row(bootstrap: str, folder: Path, keys: int, limit: float, *, rounds: int) -> Row:
    seconds = _compare(bootstrap, folder, keys, rounds)
    ours, spark = median(seconds["slackwater"]), median(seconds["spark"])
    return Row.at_least(
        f"batch of {BATCH:,} rows, count and sum, state of {keys:,} keys, median of {len(seconds['slackwater'])}",
        f"{ours:.2f} s",
        f"Spark groupBy().agg(), RocksDB with changelog: {spark:.2f} s",
        spark / ours,
        limit,
    )


def _compare(bootstrap: str, folder: Path, keys: int, rounds: int) -> dict[str, list[float]]:
    """Seconds a batch of either side, warm, with all keys in the state before the first of them."""
    topic = f"bench-flights-{keys}"

    def turn(name: str, batch: int) -> list[float]:
        found: list[float] = side.run(
            "throughput", name, bootstrap, folder / name, topic, batch, peer=name != "slackwater"
        )
        return found

    fill_legs(bootstrap, topic, np.random.default_rng(0).permutation(keys))
    for name in SIDES:
        turn(name, PRELOAD)
    seconds: dict[str, list[float]] = {name: [] for name in SIDES}
    for number in range(rounds):
        fill(bootstrap, (1 + WARM_UP + MEASURED) * BATCH, topic=topic, keys=keys, seed=number)
        # First the one, then the other, since machines drift.
        for name in SIDES if number % 2 == 0 else reversed(SIDES):
            seconds[name] += turn(name, BATCH)[WARM_UP:]
    return seconds


def app_of(topic: str) -> sw.App:
    """Counts and sums by leg, of a topic of flights."""
    import slackwater as sw

    app = sw.App("bench")

    @app.stage(
        reads=sw.topic(topic),
        key="leg",
        state=sw.aggregate(flights=sw.count(), delay=sw.sum("arr_delay")),
        table=sw.table(partitions=PARTITIONS),
    )
    def legs(flights: DataFrame) -> DataFrame:
        return _legs(flights)

    return app


def _slackwater(bootstrap: str, folder: Path, topic: str, batch: int) -> list[float]:
    return cycles(side.commits_ms(app_of(topic), bootstrap, str(folder / "store"), folder / "cache", batch), 0)


def _spark(bootstrap: str, folder: Path, topic: str, batch: int) -> list[float]:
    from slackwater.pipeline.spark.session import spark_session

    conf = {**side.SPARK_STATE, "spark.sql.shuffle.partitions": str(PARTITIONS)}
    with spark_session("bench", master="local[2]", conf=conf) as spark:
        return _aggregate(spark, bootstrap, folder, topic, batch)


def _aggregate(spark: SparkSession, bootstrap: str, folder: Path, topic: str, batch: int) -> list[float]:
    from pyspark.sql import functions as F

    source = side.topic_stream(spark, bootstrap, topic, batch)
    rows = _legs(source).groupBy("leg").agg(F.count("*").alias("flights"), F.sum("arr_delay").alias("delay"))
    return cycles(side.worked_off(side.started(rows, folder / "checkpoint")), 0)


def _legs(flights: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F

    event = F.from_json(F.col("value").cast("string"), EVENT)
    return flights.select(F.col("key").cast("string").alias("leg"), event["arr_delay"].alias("arr_delay"))


if __name__ == "__main__":
    name, bootstrap, folder, topic, batch = sys.argv[1:]
    work = Path(folder)
    work.mkdir(parents=True, exist_ok=True)
    sides: dict[str, Callable[[str, Path, str, int], list[float]]] = {"slackwater": _slackwater, "spark": _spark}
    print(json.dumps(sides[name](bootstrap, work, topic, int(batch))))
