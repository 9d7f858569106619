"""Session windows with a watermark, beside Spark's `groupBy(session_window)`: same source, sessions and machine.

One hour of event time is six batches. A leg's session ends after five minutes without an event; the watermark delay is
ten minutes.

`python -m bench.tasks.sessions slackwater|spark BOOTSTRAP FOLDER TOPIC` runs one side in a fresh process until it has
read the topic, and prints JSON: the seconds from batch to batch, the number of closed sessions, and the sums of their
values.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

from ..support import side
from ..support.events import KEYS, PARTITIONS, cycles, fill
from ..support.hourly import BATCH, DELAY, timed
from ..support.row import Row

if TYPE_CHECKING:
    import slackwater as sw
    from pyspark.sql import DataFrame

WARM_UP = 5
"""Number of batches after which as many sessions end as begin."""
MEASURED = 6
GAP = "5 minutes"
_SAID = ("flights", "delay")
"""Columns that are summed for each session."""
SIDES = ("slackwater", "spark")


class Found(NamedTuple):
    """Result of one side: seconds from batch to batch, number of closed sessions, and sums of their values."""

    seconds: list[float]
    sums: list[float]


def rows(bootstrap: str, folder: Path, quick: bool) -> list[Row]:
    """Compare session windows with Spark's groupBy(session_window) on RocksDB."""
    warm_up, measured = (3, 2) if quick else (WARM_UP, MEASURED)
    topic = "bench-sessions"
    fill(bootstrap, (1 + warm_up + measured) * BATCH, topic=topic)
    each = {}
    for name in SIDES:
        words = (name, bootstrap, folder / name, topic)
        each[name] = Found(*side.run("tasks.sessions", *words, peer=name != "slackwater"))
    if each["slackwater"].sums != each["spark"].sums:
        raise RuntimeError(f"the sides gave other sessions: {each}")
    seconds = {name: found.seconds[warm_up:] for name, found in each.items()}
    ours, spark = (median(seconds[name]) for name in SIDES)
    return [
        Row.at_least(
            f"batch of {BATCH:,} rows, count and sum by session of {KEYS:,} keys, gap of {GAP}, watermark of {DELAY}, "
            f"median of {len(seconds['slackwater'])}",
            f"{ours:.2f} s",
            f"Spark groupBy(session_window).agg(), RocksDB with changelog: {spark:.2f} s",
            spark / ours,
            1,
        )
    ]


def app_of(topic: str) -> sw.App:
    """Return an app that counts and sums flights by leg and session. Closed sessions go to a repartition topic."""
    import slackwater as sw

    app = sw.App("bench")

    @app.stage(
        reads=sw.topic(topic),
        writes=sw.repartition("over", ("leg", "session"), partitions=PARTITIONS),
        key=("leg", "session"),
        state=sw.aggregate(flights=sw.count(), delay=sw.sum("arr_delay")),
        table=sw.table(partitions=PARTITIONS),
        event_time=sw.event_time(emits="final"),
    )
    def sessions(flights: DataFrame) -> DataFrame:
        from pyspark.sql import functions as F

        return timed(flights).withColumn("session", F.session_window("at", GAP))

    return app


def _slackwater(bootstrap: str, folder: Path, topic: str) -> Found:
    store = str(folder / "store")
    reports = side.reports(app_of(topic), bootstrap, store, folder / "cache", BATCH)
    seconds = cycles([report.time_ms for report in reports if report.rows_in], 0)
    return Found(seconds, side.sums_in_flight(bootstrap, store, _SAID))


def _spark(bootstrap: str, folder: Path, topic: str) -> Found:
    from pyspark.sql import functions as F
    from slackwater.pipeline.spark.session import spark_session

    conf = {**side.SPARK_STATE, "spark.sql.shuffle.partitions": str(PARTITIONS)}
    with spark_session("bench", master="local[2]", conf=conf) as spark:
        ended = (
            timed(side.topic_stream(spark, bootstrap, topic, BATCH))
            .groupBy(F.session_window("at", GAP), "leg")
            .agg(F.count("*").alias("flights"), F.sum("arr_delay").alias("delay"))
        )
        ends_ms, sums = side.worked_off_with_sums(ended, folder / "checkpoint", _SAID)
        return Found(cycles(ends_ms, 0), sums)


if __name__ == "__main__":
    name, bootstrap, folder, topic = sys.argv[1:]
    work = Path(folder)
    work.mkdir(parents=True, exist_ok=True)
    sides: dict[str, Callable[[str, Path, str], Found]] = {"slackwater": _slackwater, "spark": _spark}
    print(json.dumps(sides[name](bootstrap, work, topic)))
