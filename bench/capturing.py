"""Throughput of copying in-flight records into a snapshot, relative to writing the records.

`python -m bench.capturing BOOTSTRAP FOLDER` runs it in a fresh process and prints a JSON list: the rows per second of
both.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from .support import side
from .support.events import PARTITIONS, fill
from .support.row import Row

if TYPE_CHECKING:
    from slackwater.pipeline.listener import BatchReport

TOPIC = "bench-capturing"
RECORDS = 1_000_000
BATCH = 100_000


def rows(bootstrap: str, folder: Path, quick: bool) -> list[Row]:
    """Measure in-flight records: written to a channel by a warm stage, then copied into a snapshot."""
    fill(bootstrap, RECORDS, topic=TOPIC)
    written, kept = side.run("capturing", bootstrap, folder)
    return [
        Row.at_least(
            "records in flight kept with a snapshot",
            f"{kept:,.0f} rows/s",
            f"written to the channel: {written:,.0f} rows/s",
            kept / written,
            1,
        )
    ]


def _run(bootstrap: str, folder: Path) -> tuple[float, float]:
    import slackwater as sw
    from pyspark.sql import DataFrame
    from pyspark.sql import functions as F
    from slackwater.pipeline.kafka.channels import KafkaChannels
    from slackwater.pipeline.kafka.open import open_kafka
    from slackwater.pipeline.listener import Callbacks
    from slackwater.pipeline.run.options import Options
    from slackwater.pipeline.run.runner import run
    from slackwater.pipeline.spark.session import spark_session
    from slackwater.snapshot.cut.resolve import resolve
    from slackwater.snapshot.take import snapshots
    from slackwater.store.objects.open import open_store

    app = sw.App("bench")

    by_leg = sw.repartition("by-leg", "leg")

    @app.stage(reads=sw.topic(TOPIC), writes=by_leg)
    def events(flights: DataFrame) -> DataFrame:
        key = F.col("key").cast("string").alias("leg")
        return flights.select(key, F.col("value").cast("string").alias("event"), "timestamp")

    @app.stage(reads=by_leg, state=sw.aggregate(n=sw.count()), table=sw.table(partitions=PARTITIONS))
    def legs(rows: DataFrame) -> DataFrame:
        return rows

    kafka = open_kafka(bootstrap)
    commits: list[BatchReport] = []
    with spark_session("bench", master="local[2]"):
        # The reader stores its position and stops; then the writer runs ahead of it.
        for stage in ("legs", "events"):
            options = Options(
                store=str(folder / "store"),
                kafka=kafka.properties,
                stages=(stage,),
                until_caught_up=True,
                max_records=BATCH,
                cache_folder=folder / "cache",
            )
            run(app, options, Callbacks(committed=commits.append))
    warm = [commit for commit in commits if commit.rows_out][2:]
    written = sum(commit.rows_out for commit in warm[1:]) / ((warm[-1].time_ms - warm[0].time_ms) / 1000)
    store = open_store(str(folder / "store"))
    cut = resolve(store, "bench", now_ms=time.time_ns() // 1_000_000)
    began = time.monotonic()
    pinned = snapshots.pin_cut(store, cut, "kept", reader=KafkaChannels(kafka))
    kept = sum(channel.rows for channel in pinned.channels)
    assert kept == RECORDS
    return written, kept / (time.monotonic() - began)


if __name__ == "__main__":
    print(json.dumps(_run(sys.argv[1], Path(sys.argv[2]))))
