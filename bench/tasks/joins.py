"""Joins of two streams, inner and left outer, beside Spark's own: the same sources, rows and machine.

One hour of event time is six batches. A row joins rows of the other side whose event times differ by at most 20
minutes; the watermark delay is ten minutes.

`python -m bench.tasks.joins slackwater|spark inner|left BOOTSTRAP FOLDER ORDERS PAYMENTS` runs one side in a fresh
process until it has read both topics, and prints JSON: the seconds from batch to batch, the number of joined rows, and
the sums of their values.
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
from ..support.row import Row

if TYPE_CHECKING:
    import slackwater as sw
    from pyspark.sql import DataFrame
    from slackwater.state.kinds.join import How

BATCH = 200_000
"""Number of records of each topic in a batch."""
WARM_UP = 6
"""Number of batches after which as many rows are removed from the state as are added."""
MEASURED = 5
DELAY, WITHIN = "10 minutes", "20 minutes"
_BEGIN_US = 1_356_998_400_000_000
"""2013-01-01, in microseconds since 1970."""
_STEP_US = 3_600_000_000 * PARTITIONS // (6 * BATCH)
"""Event time between two records of a partition."""
_SAID = ("order", "payment")
"""Each side's column with a number, which is summed over the pairs."""
SIDES = ("slackwater", "spark")
HOWS: dict[How, str] = {"inner": "joined", "left": "left outer joined"}


class Found(NamedTuple):
    """Result of one side: seconds from batch to batch, number of rows, and sums of their values."""

    seconds: list[float]
    sums: list[float]


def rows(bootstrap: str, folder: Path, quick: bool) -> list[Row]:
    """Compare joins of two streams, inner and left outer, with Spark's on RocksDB."""
    warm_up, measured = (2, 3) if quick else (WARM_UP, MEASURED)
    topics = ("bench-orders", "bench-payments")
    for seed, topic in enumerate(topics):
        fill(bootstrap, (1 + warm_up + measured) * BATCH, topic=topic, seed=seed)
    return [_row(bootstrap, folder, how, topics, warm_up) for how in HOWS]


def _row(bootstrap: str, folder: Path, how: How, topics: tuple[str, str], warm_up: int) -> Row:
    each = {}
    for name in SIDES:
        words = (name, how, bootstrap, folder / how / name, *topics)
        each[name] = Found(*side.run("tasks.joins", *words, peer=name != "slackwater"))
    if each["slackwater"].sums != each["spark"].sums:
        raise RuntimeError(f"the sides gave other rows: {each}")
    seconds = {name: found.seconds[warm_up:] for name, found in each.items()}
    ours, spark = (median(seconds[name]) for name in SIDES)
    return Row.at_least(
        f"batch of {BATCH:,} rows of each of two streams, {HOWS[how]} by {KEYS:,} keys within {WITHIN}, watermark of "
        f"{DELAY}, median of {len(seconds['slackwater'])}",
        f"{ours:.2f} s",
        f"Spark's stream-stream join, RocksDB with changelog: {spark:.2f} s",
        spark / ours,
        1,
    )


def app_of(orders: str, payments: str, how: How) -> sw.App:
    """Return an app that joins flights of the same leg and writes the pairs to a repartition topic."""
    import slackwater as sw

    app = sw.App("bench")

    @app.stage(
        reads=(sw.topic(orders), sw.topic(payments)),
        writes=sw.repartition("pairs", "leg", partitions=PARTITIONS),
        key="leg",
        state=sw.join(orders, payments, within=WITHIN, how=how),
        table=sw.table(partitions=PARTITIONS),
    )
    def waiting(first: DataFrame, second: DataFrame) -> tuple[DataFrame, DataFrame]:
        return _timed(first, "order"), _timed(second, "payment")

    return app


def _slackwater(how: How, bootstrap: str, folder: Path, *topics: str) -> Found:
    store = str(folder / "store")
    reports = side.reports(app_of(*topics, how=how), bootstrap, store, folder / "cache", BATCH)
    seconds = cycles([report.time_ms for report in reports if report.rows_in], 0)
    return Found(seconds, side.sums_in_flight(bootstrap, store, _SAID))


def _spark(how: How, bootstrap: str, folder: Path, *topics: str) -> Found:
    from pyspark.sql import functions as F
    from slackwater.pipeline.spark.session import spark_session

    conf = {**side.SPARK_STATE, "spark.sql.shuffle.partitions": str(PARTITIONS)}
    with spark_session("bench", master="local[2]", conf=conf) as spark:
        first, second = (
            _timed(side.topic_stream(spark, bootstrap, topic, BATCH), said)
            for topic, said in zip(topics, _SAID, strict=True)
        )
        near = F.expr(f"paid_at BETWEEN at - INTERVAL {WITHIN} AND at + INTERVAL {WITHIN}")
        given = first.alias("o").join(second.alias("p"), (F.col("o.leg") == F.col("p.leg")) & near, how)
        ends_ms, sums = side.worked_off_with_sums(given, folder / "checkpoint", _SAID)
        return Found(cycles(ends_ms, 0), sums)


def _timed(flights: DataFrame, said: str) -> DataFrame:
    """Return legs, delays and event times. Event time grows by a constant step between records of a partition."""
    from pyspark.sql import functions as F

    event = F.from_json(F.col("value").cast("string"), "arr_delay double")
    at = "at" if said == "order" else "paid_at"
    return flights.select(
        F.col("key").cast("string").alias("leg"),
        event["arr_delay"].alias(said),
        F.timestamp_micros(F.lit(_BEGIN_US) + F.col("offset") * _STEP_US).alias(at),
    ).withWatermark(at, DELAY)


if __name__ == "__main__":
    name, how, bootstrap, folder, *topics = sys.argv[1:]
    work = Path(folder)
    work.mkdir(parents=True, exist_ok=True)
    sides: dict[str, Callable[..., Found]] = {"slackwater": _slackwater, "spark": _spark}
    print(json.dumps(sides[name](how, bootstrap, work, *topics)))
