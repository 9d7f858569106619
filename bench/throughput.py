"""Stateful aggregation beside Spark's own, in turn, with the same source, query and machine.

Spark runs twice: with our source in our session, so that only the state differs; and with its own Kafka connector in a
plain session.

`python -m bench.throughput slackwater|spark|connector BOOTSTRAP FOLDER TOPIC BATCH` runs one side in a fresh process
until it has read the topic, and prints a JSON list: seconds from batch to batch. It resumes where the last run with
that folder stopped.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from .support import side
from .support.events import KEYS, PARTITIONS, cycles, fill_legs
from .support.row import Row

if TYPE_CHECKING:
    import slackwater as sw
    from pyspark.sql import DataFrame

BATCH = 400_000
PRELOAD = 1_250_000
"""Number of rows per batch while the state is filled."""
WARM_UP = 8
"""Number of batches of each process that are not counted, because the JVM still compiles."""
MEASURED = 6
EVENT = "carrier string, origin string, dest string, dep_delay double, arr_delay double"
SIDES = ("slackwater", "spark", "connector")


@dataclass(frozen=True)
class Case:
    """A topic, and the speed-up over Spark that is required for it.

    Attributes:
        name: Name of the case, also used in the topic's name.
        keys: Number of keys; all are in the state before the first measured batch.
        limit: Minimum ratio of Spark's time, with either source, to ours.
        hot: Share of all rows that have the same key; the other keys are drawn uniformly.
    """

    name: str
    keys: int
    limit: float
    hot: float = 0.0

    def drawn(self, count: int, seed: int) -> npt.NDArray[np.int64]:
        """Draw the keys of this many rows."""
        random = np.random.default_rng(seed)
        keys = random.integers(0, self.keys, count)
        keys[random.random(count) < self.hot] = 0
        return keys


def rows(bootstrap: str, folder: Path, quick: bool) -> Iterator[Row]:
    """Compare stateful aggregation with Spark's groupBy().agg() on RocksDB."""
    cases = (
        Case("few", 100, 1.2),
        Case("skewed", KEYS, 1.5, hot=0.5),
        Case("small", KEYS, 1.2),
        Case("large", 1_000_000 if quick else 5_000_000, 1.5),
    )
    for case in cases:
        yield from _rows(bootstrap, folder / case.name, case)


def _rows(bootstrap: str, folder: Path, case: Case) -> list[Row]:
    seconds = {name: median(each) for name, each in _compare(bootstrap, folder, case).items()}
    of = f"{case.keys:,} keys" + (f", {case.hot:.0%} of the rows of one" if case.hot else "")
    what = f"batch of {BATCH:,} rows, count and sum, state of {of}, median of {MEASURED}"
    peers = {"spark": "our source", "connector": "its own connector"}
    return [
        Row.at_least(
            what,
            f"{seconds['slackwater']:.2f} s",
            f"Spark groupBy().agg(), RocksDB with changelog, {source}: {seconds[name]:.2f} s",
            seconds[name] / seconds["slackwater"],
            case.limit,
        )
        for name, source in peers.items()
    ]


def _compare(bootstrap: str, folder: Path, case: Case) -> Mapping[str, list[float]]:
    """Return the seconds per batch of each side, without warm-up. All keys are in the state from the start."""
    topic = f"bench-flights-{case.name}"

    def turn(name: str, batch: int) -> list[float]:
        found: list[float] = side.run(
            "throughput", name, bootstrap, folder / name, topic, batch, peer=name != "slackwater"
        )
        return found

    fill_legs(bootstrap, topic, np.random.default_rng(0).permutation(case.keys))
    for name in SIDES:
        turn(name, PRELOAD)
    fill_legs(bootstrap, topic, case.drawn((1 + WARM_UP + MEASURED) * BATCH, 0))
    return {name: turn(name, BATCH)[WARM_UP:] for name in SIDES}


def app_of(topic: str, partitions: int = PARTITIONS) -> sw.App:
    """Return an app that counts and sums a topic's flights by leg, in a table of `partitions` state partitions."""
    import slackwater as sw

    app = sw.App("bench")

    @app.stage(
        reads=sw.topic(topic),
        key="leg",
        state=sw.aggregate(flights=sw.count(), delay=sw.sum("arr_delay")),
        table=sw.table(partitions=partitions),
    )
    def legs(flights: DataFrame) -> DataFrame:
        return _legs(flights)

    return app


def _slackwater(bootstrap: str, folder: Path, topic: str, batch: int) -> list[float]:
    return cycles(side.commits_ms(app_of(topic), bootstrap, str(folder / "store"), folder / "cache", batch), 0)


def _spark(bootstrap: str, folder: Path, topic: str, batch: int, *, connector: bool = False) -> list[float]:
    done = spark_batches(bootstrap, folder, topic, batch, connector=connector)
    return cycles([round(1000 * each.end) for each in done], 0)


def spark_batches(bootstrap: str, folder: Path, topic: str, batch: int, *, connector: bool = False) -> list[side.Batch]:
    """Return the batches of a Spark query until it has read the topic. It counts and sums like `app_of`."""
    from slackwater.pipeline.spark.session import spark_session

    conf = {**side.SPARK_STATE, "spark.sql.shuffle.partitions": str(PARTITIONS)}

    def run(flights: DataFrame) -> list[side.Batch]:
        query = side.started(_aggregate(flights), folder / "checkpoint")
        query.processAllAvailable()
        done = side.batches(query)
        query.stop()
        return done

    if connector:
        plain = side.plain_session(**conf, **{"spark.jars": side.connector_jars()})
        return run(side.connector_stream(plain, bootstrap, topic, batch))
    with spark_session("bench", master="local[2]", conf=conf) as spark:
        return run(side.topic_stream(spark, bootstrap, topic, batch))


def _aggregate(flights: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F

    return _legs(flights).groupBy("leg").agg(F.count("*").alias("flights"), F.sum("arr_delay").alias("delay"))


def _legs(flights: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F

    event = F.from_json(F.col("value").cast("string"), EVENT)
    return flights.select(F.col("key").cast("string").alias("leg"), event["arr_delay"].alias("arr_delay"))


if __name__ == "__main__":
    name, bootstrap, folder, topic, batch = sys.argv[1:]
    work = Path(folder)
    work.mkdir(parents=True, exist_ok=True)
    sides: dict[str, Callable[[str, Path, str, int], list[float]]] = {
        "slackwater": _slackwater,
        "spark": _spark,
        "connector": partial(_spark, connector=True),
    }
    print(json.dumps(sides[name](bootstrap, work, topic, int(batch))))
