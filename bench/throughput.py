"""Stateful aggregation beside Spark's own: the same source, the same query, the same machine, one after the other.

`python -m bench.throughput slackwater|spark BOOTSTRAP FOLDER` runs one side in a fresh process and prints a JSON list:
seconds from batch to batch.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from .events import PARTITIONS, TOPIC, cycles

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BATCH = 400_000
WARM_UP = 2
EVENT = "carrier string, origin string, dest string, dep_delay double, arr_delay double"


def compare(bootstrap: str, folder: Path, *, rounds: int = 2) -> dict[str, list[float]]:
    """Seconds a batch of either side, warm; the sides take turns, since machines drift."""
    seconds: dict[str, list[float]] = {"slackwater": [], "spark": []}
    for number in range(rounds):
        for side, found in seconds.items():
            command = [
                sys.executable,
                "-m",
                "bench.throughput",
                side,
                bootstrap,
                str(folder / f"{side}-{number}"),
            ]
            found += json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
    return seconds


def _slackwater(bootstrap: str, folder: Path) -> list[float]:
    import slackwater as sw
    from pyspark.sql import DataFrame
    from pyspark.sql import functions as F
    from slackwater.pipeline.runner import Options, run

    app = sw.App("bench")

    @app.stage(
        reads=sw.topic(TOPIC),
        key="leg",
        partitions=PARTITIONS,
        state=sw.aggregate(flights=sw.count(), delay=sw.sum("arr_delay")),
    )
    def legs(flights: DataFrame) -> DataFrame:
        event = F.from_json(F.col("value").cast("string"), EVENT)
        return flights.select(F.col("key").cast("string").alias("leg"), event["arr_delay"].alias("arr_delay"))

    stamps: list[int] = []
    options = Options(
        store=str(folder / "store"),
        kafka={"bootstrap.servers": bootstrap},
        until_caught_up=True,
        max_records=BATCH,
        cache_folder=folder / "cache",
        master="local[2]",
    )
    run(app, options, lambda progress: stamps.append(progress.time_ms))
    return cycles(stamps, WARM_UP)


def _spark(bootstrap: str, folder: Path) -> list[float]:
    from slackwater.pipeline.session import spark_session

    conf = {
        "spark.sql.streaming.stateStore.providerClass": (
            "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
        ),
        "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
        "spark.sql.shuffle.partitions": str(PARTITIONS),
    }
    with spark_session("bench", master="local[2]", conf=conf) as spark:
        return _aggregate(spark, bootstrap, folder)


def _aggregate(spark: SparkSession, bootstrap: str, folder: Path) -> list[float]:
    from datetime import datetime

    from pyspark.sql import functions as F

    source = spark.readStream.format("slackwater-topic").options(
        **{"kafka.bootstrap.servers": bootstrap, "subscribe": TOPIC, "maxOffsetsPerTrigger": str(BATCH)}
    )
    event = F.from_json(F.col("value").cast("string"), EVENT)
    rows = source.load().select(F.col("key").cast("string").alias("leg"), event["arr_delay"].alias("arr_delay"))
    query = (
        rows.groupBy("leg")
        .agg(F.count("*").alias("flights"), F.sum("arr_delay").alias("delay"))
        .writeStream.outputMode("update")
        .format("noop")
        .option("checkpointLocation", str(folder / "checkpoint"))
        .start()
    )
    query.processAllAvailable()
    batches = [one for one in query.recentProgress if one["numInputRows"] > 0]
    ends = [
        round(datetime.fromisoformat(one["timestamp"]).timestamp() * 1000) + one["durationMs"]["triggerExecution"]
        for one in batches
    ]
    query.stop()
    return cycles(ends, WARM_UP)


if __name__ == "__main__":
    side, bootstrap, folder = sys.argv[1:]
    work = Path(folder)
    work.mkdir(parents=True, exist_ok=True)
    print(json.dumps({"slackwater": _slackwater, "spark": _spark}[side](bootstrap, work)))
