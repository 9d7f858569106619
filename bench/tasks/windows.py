"""Windowed aggregation with a watermark, beside Spark's `groupBy(window)`: same source, query and machine.

One hour of event time is six batches, so that batches open windows and the watermark closes some of them. The watermark
delay is ten minutes. `python -m bench.tasks.windows slackwater|spark BOOTSTRAP FOLDER TOPIC` runs one side in a fresh
process until it has read the topic, and prints a JSON list: seconds from batch to batch.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from ..support import side
from ..support.events import KEYS, PARTITIONS, cycles, fill
from ..support.hourly import BATCH, DELAY, timed
from ..support.row import Row

if TYPE_CHECKING:
    import slackwater as sw
    from pyspark.sql import DataFrame

WARM_UP = 9
"""Number of batches after which each side has the windows of two hours in its state."""
MEASURED = 6
SIDES = ("slackwater", "spark")


def rows(bootstrap: str, folder: Path, quick: bool) -> list[Row]:
    """Compare windowed aggregation with Spark's groupBy(window) on RocksDB."""
    warm_up, measured = (2, 2) if quick else (WARM_UP, MEASURED)
    topic = "bench-windows"
    fill(bootstrap, (1 + warm_up + measured) * BATCH, topic=topic)
    seconds: dict[str, list[float]] = {}
    for name in SIDES:
        words = (name, bootstrap, folder / name, topic)
        found: list[float] = side.run("tasks.windows", *words, peer=name != "slackwater")
        seconds[name] = found[warm_up:]
    ours, spark = (median(seconds[name]) for name in SIDES)
    return [
        Row.at_least(
            f"batch of {BATCH:,} rows, count and sum by hour and {KEYS:,} keys, watermark of {DELAY}, median "
            f"of {len(seconds['slackwater'])}",
            f"{ours:.2f} s",
            f"Spark groupBy(window).agg(), RocksDB with changelog: {spark:.2f} s",
            spark / ours,
            1.5,
        )
    ]


def app_of(topic: str) -> sw.App:
    """Return an app that counts and sums flights by leg and hour."""
    import slackwater as sw

    app = sw.App("bench")

    @app.stage(
        reads=sw.topic(topic),
        key=("hour", "leg"),
        state=sw.aggregate(flights=sw.count(), delay=sw.sum("arr_delay")),
        table=sw.table(partitions=PARTITIONS),
    )
    def hours(flights: DataFrame) -> DataFrame:
        from pyspark.sql import functions as F

        return timed(flights).withColumn("hour", F.window("at", "1 hour"))

    return app


def _slackwater(bootstrap: str, folder: Path, topic: str) -> list[float]:
    return cycles(side.commits_ms(app_of(topic), bootstrap, str(folder / "store"), folder / "cache", BATCH), 0)


def _spark(bootstrap: str, folder: Path, topic: str) -> list[float]:
    from pyspark.sql import functions as F
    from slackwater.pipeline.spark.session import spark_session

    conf = {**side.SPARK_STATE, "spark.sql.shuffle.partitions": str(PARTITIONS)}
    with spark_session("bench", master="local[2]", conf=conf) as spark:
        rows = (
            timed(side.topic_stream(spark, bootstrap, topic, BATCH))
            .groupBy(F.window("at", "1 hour"), "leg")
            .agg(F.count("*").alias("flights"), F.sum("arr_delay").alias("delay"))
        )
        return cycles(side.worked_off(side.started(rows, folder / "checkpoint")), 0)


if __name__ == "__main__":
    name, bootstrap, folder, topic = sys.argv[1:]
    work = Path(folder)
    work.mkdir(parents=True, exist_ok=True)
    sides: dict[str, Callable[[str, Path, str], list[float]]] = {"slackwater": _slackwater, "spark": _spark}
    print(json.dumps(sides[name](bootstrap, work, topic)))
