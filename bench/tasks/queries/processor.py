"""One StatefulProcessor, run by Spark's `transformWithState` and by `sw.processor`, with many keys and with few.

`python -m bench.tasks.queries.processor SIDE BOOTSTRAP FOLDER TOPIC BATCH` runs one side in a fresh process until it
has read the topic, and prints a JSON list: rows a second of each warm batch.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np

from ...support import side
from ...support.events import KEYS, PARTITIONS, cycles, fill_legs
from ...support.row import Row

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming import StatefulProcessor

BATCH = {"slackwater": 100_000, "transformWithState": 4_000}
"""Number of rows of a batch, which each side processes in some seconds. Both are more efficient with large batches."""
WARM_UP = {"slackwater": 2, "transformWithState": 1}
MEASURED = {"slackwater": 5, "transformWithState": 3}
FEW = 1_000
EVENT = "carrier string, origin string, dest string, dep_delay double, arr_delay double"
OUTPUT = "leg string, n long, largest double, carriers long"


def rows(bootstrap: str, folder: Path, quick: bool) -> list[Row]:
    """Compare the same class on Spark's transformWithState and on sw.processor."""
    found = []
    for keys in (KEYS,) if quick else (KEYS, FEW):
        rates: dict[str, list[float]] = {}
        # Ours before and after: machines drift.
        for turn, name in enumerate(("slackwater", "transformWithState", "slackwater")[: 2 if quick else 3]):
            topic = f"bench-processor-{keys}-{turn}"
            count = (1 + WARM_UP[name] + MEASURED[name]) * BATCH[name]
            fill_legs(bootstrap, topic, np.random.default_rng(turn).integers(0, keys, count))
            words = (name, bootstrap, folder / f"{keys}-{turn}", topic, BATCH[name])
            peer = name != "slackwater"
            rates.setdefault(name, []).extend(side.run("tasks.queries.processor", *words, peer=peer))
        ours, theirs = median(rates["slackwater"]), median(rates["transformWithState"])
        found.append(
            Row.at_least(
                f"a class with a value, a list, a map and timers, {keys:,} keys, {BATCH['slackwater']:,} rows a batch",
                f"{ours:,.0f} rows/s",
                f"transformWithState, RocksDB, {BATCH['transformWithState']:,} rows a batch: {theirs:,.0f} rows/s",
                ours / theirs,
                5,
            )
        )
    return found


def _events(flights: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F

    event = F.from_json(F.col("value").cast("string"), EVENT).alias("e")
    return flights.select(F.col("key").cast("string").alias("leg"), event).select("leg", "e.carrier", "e.arr_delay")


def _processor() -> StatefulProcessor:
    from pyspark.sql import Row as SparkRow
    from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle

    class Legs(StatefulProcessor):
        """Keeps a leg's count, largest delay, last three delays and flights by carrier.

        Sets a timer for the next day.
        """

        def init(self, handle: StatefulProcessorHandle) -> None:
            self._handle = handle
            self._all = handle.getValueState("all", "n long, largest double")
            self._last = handle.getListState("last", "delay double")
            self._carriers = handle.getMapState("carriers", "carrier string", "n long")

        def handleInputRows(  # noqa: N802  Spark's name
            self,
            key: Any,
            rows: Iterator[Any],
            timerValues: Any,  # noqa: N803  Spark's name
        ) -> Iterator[Any]:
            n, largest = self._all.get() or (0, float("-inf"))
            last = list(self._last.get())
            for row in rows:
                n, largest = n + 1, max(largest, row.arr_delay)
                last = [*last[-2:], (row.arr_delay,)]
                flown = self._carriers.getValue((row.carrier,))
                self._carriers.updateValue((row.carrier,), ((flown[0] if flown else 0) + 1,))
            self._all.update((n, largest))
            self._last.put(last)
            if n == 1:
                self._handle.registerTimer(timerValues.getCurrentProcessingTimeInMs() + 86_400_000)
            carriers = len(list(self._carriers.keys()))
            yield SparkRow(leg=key[0], n=n, largest=largest, carriers=carriers)

        def close(self) -> None:
            """Do nothing: there is nothing to close."""

    return Legs()


def _slackwater(bootstrap: str, folder: Path, topic: str, batch: int) -> list[int]:
    import slackwater as sw

    app = sw.App("bench")
    state = sw.processor(_processor(), OUTPUT, time_mode="ProcessingTime")

    @app.stage(
        reads=sw.topic(topic),
        writes=sw.repartition("legs-seen", key="leg", partitions=PARTITIONS),
        key="leg",
        state=state,
        table=sw.table(partitions=PARTITIONS),
    )
    def legs(flights: DataFrame) -> DataFrame:
        return _events(flights)

    return side.commits_ms(app, bootstrap, str(folder / "store"), folder / "cache", batch)


def _spark(bootstrap: str, folder: Path, topic: str, batch: int) -> list[int]:
    from slackwater.pipeline.spark.session import spark_session

    conf = {**side.SPARK_STATE, "spark.sql.shuffle.partitions": str(PARTITIONS)}
    with spark_session("bench", master="local[2]", conf=conf) as spark:
        source = _events(side.topic_stream(spark, bootstrap, topic, batch))
        made = source.groupBy("leg").transformWithState(_processor(), OUTPUT, "Update", "ProcessingTime")
        query = side.started(made, folder / "checkpoint")
        # By processing time, each batch is followed by another batch: the query is never idle.
        wanted = 1 + WARM_UP["transformWithState"] + MEASURED["transformWithState"]
        while len(found := side.ends_ms(query)) < wanted:
            query.awaitTermination(1)
        query.stop()
        return found


if __name__ == "__main__":
    name, bootstrap, folder, topic, batch = sys.argv[1:]
    work = Path(folder)
    work.mkdir(parents=True, exist_ok=True)
    stamps = (_slackwater if name == "slackwater" else _spark)(bootstrap, work, topic, int(batch))
    print(json.dumps([int(batch) / seconds for seconds in cycles(stamps, WARM_UP[name])]))
