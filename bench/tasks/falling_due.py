"""Cost of closing windows: a large table of open windows, of which a few become final in every second batch.

Every record of a batch changes a window that stays open. The watermark is so far behind that each batch moves it past
the end of exactly one hour. `python -m bench.tasks.falling_due BOOTSTRAP FOLDER OPEN BATCH` runs the app in a fresh
process until it has read the topic, and prints a JSON list: for each batch, the number of rows that fell due and its
seconds.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from ..support import side
from ..support.events import PARTITIONS, fill_ranges, names
from ..support.large_state import begun
from ..support.row import Row

if TYPE_CHECKING:
    import slackwater as sw
    from pyspark.sql import DataFrame

OPEN = 5_000_000
DUE = 1_000
BATCH = 400_000
WARM_UP = 4
MEASURED = 16
TOPIC, ENDED = "bench-falling-due", "bench-ended"
_BEGIN_S = 1_356_998_400
"""2013-01-01, in seconds since 1970."""
_HOUR_S = 3_600
_BEHIND = 100
"""Number of hours between the watermark and the windows that records change."""
_STAYING = WARM_UP + MEASURED + 1
"""Number of hours whose windows records change, one hour per batch. The open windows are spread evenly over them."""


def rows(bootstrap: str, folder: Path, quick: bool) -> list[Row]:
    """Compare batches that close 1,000 of 5 M open windows with batches that close none."""
    num_open, batch = (OPEN // 20, BATCH // 20) if quick else (OPEN, BATCH)
    found: list[tuple[int, float]] = side.run("tasks.falling_due", bootstrap, folder, num_open, batch)
    warm = found[WARM_UP:]
    ending, other = ([seconds for ended, seconds in warm if ended == expected] for expected in (DUE, 0))
    assert len(ending) + len(other) == len(warm), found
    assert len(ending) >= MEASURED // 2, found
    return [
        Row.at_most(
            f"batch of {batch:,} rows, {num_open:,} open windows, of which {DUE:,} end, median of {len(ending)}",
            f"{median(ending):.2f} s",
            f"batches in which none does: {median(other):.2f} s",
            median(ending) / median(other),
            1.2,
        )
    ]


def app_of(num_open: int, batch: int) -> sw.App:
    """Return an app that counts and sums by hour and leg, and emits a window when it closes."""
    import slackwater as sw

    app = sw.App("bench")

    @app.stage(
        reads=sw.topic(TOPIC),
        key=("hour", "leg"),
        state=sw.aggregate(flights=sw.count(), delay=sw.sum("delay")),
        writes=sw.sink(ENDED, key="leg"),
        table=sw.table(partitions=PARTITIONS),
        event_time=sw.event_time(emits="final"),
    )
    def hours(messages: DataFrame) -> DataFrame:
        return _flights(messages, num_open // _STAYING, batch)

    return app


def _flights(messages: DataFrame, legs: int, batch: int) -> DataFrame:
    """Return one row for each number of the topic's ranges. A batch covers one hour."""
    from pyspark.sql import functions as F

    ends = F.split(F.col("value").cast("string"), ",").cast("array<long>")
    number = F.col("number")
    # The step is coprime to the number of legs, so that neighbours are far apart.
    leg = F.concat(F.lit("leg-"), F.lpad(((number * 7_919) % legs).cast("string"), 7, "0"))
    seconds = _HOUR_S * _BEHIND + (number * _HOUR_S / batch).cast("long") + _BEGIN_S
    return (
        messages.select(F.explode(F.sequence(ends[0], ends[1])).alias("number"))
        .select(leg.alias("leg"), (number % 60).cast("double").alias("delay"), F.timestamp_seconds(seconds).alias("at"))
        .withWatermark("at", f"{_BEHIND} hours")
        .withColumn("hour", F.window("at", "1 hour"))
    )


def _write(root: Path, app: sw.App, bootstrap: str, num_open: int) -> None:
    """Write the app, with its offsets at the beginning of its topic and its open windows in large SSTs."""
    from msgspec.structs import replace
    from slackwater.pipeline.spark.session import spark_session
    from slackwater.store.objects.open import open_store
    from slackwater.store.versions import commit
    from slackwater.store.versions.manifest import EventTime

    from ..support.written import ssts

    store = open_store(str(root))
    with spark_session("bench", master="local[2]") as spark:
        claimed = begun(store, app, spark, bootstrap)
    assert claimed.table is not None
    legs = num_open // _STAYING
    # Each second of the first hours has rows that end; all other rows stay.
    hours = [(hour, DUE) for hour in range(0, _STAYING, 2)]
    hours += [(_BEHIND + hour, legs) for hour in range(_STAYING)]
    table = pa.concat_tables(_windows(hour, num) for hour, num in hours)
    written = ssts(store, None, claimed.app, claimed.stage, claimed.table, table, 1, level=1)
    made = commit.successor(claimed, kind="batch", epoch=1, writer="bench", by="bench", now_ms=claimed.time_ms + 1)
    first_end = (_BEGIN_S + _HOUR_S) * 1_000
    commit.commit(store, replace(made, ssts=written, event_time=EventTime(next_due_ms=first_end)))


def _windows(hour: int, num: int) -> pa.Table:
    """Return rows of one hour, with one row per leg."""
    us = 1_000_000 * (_BEGIN_S + _HOUR_S * hour)
    bounds = [pa.array(np.full(num, at), pa.timestamp("us", "UTC")) for at in (us, us + 1_000_000 * _HOUR_S)]
    legs = np.arange(num)
    return pa.table(
        {
            "hour": pa.StructArray.from_arrays(bounds, ["start", "end"]),
            "leg": names(legs).cast(pa.string()),
            "flights": np.ones(num, np.int64),
            "delay": (legs % 60).astype(np.float64),
            "_due_at": np.full(num, us // 1_000 + 1_000 * _HOUR_S),
        }
    )


def _measure(bootstrap: str, folder: Path, num_open: int, batch: int) -> list[tuple[int, float]]:
    from slackwater.pipeline.kafka.open import open_kafka

    open_kafka(bootstrap).create_topics({ENDED: PARTITIONS})
    step = batch // PARTITIONS
    numbers = range(0, (WARM_UP + MEASURED) * batch, step)
    fill_ranges(bootstrap, TOPIC, [(first, first + step - 1) for first in numbers])
    app, root = app_of(num_open, batch), folder / "store"
    _write(root, app, bootstrap, num_open)
    found = side.reports(app, bootstrap, str(root), folder / "cache", PARTITIONS)
    return [(report.rows_out, report.seconds) for report in found]


if __name__ == "__main__":
    bootstrap, name, num_open, batch = sys.argv[1:]
    Path(name).mkdir(parents=True, exist_ok=True)
    print(json.dumps(_measure(bootstrap, Path(name), int(num_open), int(batch))))
