"""State logic in Python, beside Spark's two APIs for it: count, sum, maximum and last value by key.

`python -m bench.custom_state SIDE BOOTSTRAP FOLDER TOPIC BATCH` runs one side in a fresh process until it has read the
topic, and prints a JSON list: rows per second of each warm batch.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from .support import side
from .support.events import KEYS, PARTITIONS, cycles, fill
from .support.row import Row

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.state import GroupState

BATCH = {"slackwater": 400_000, "transformWithState": 10_000, "applyInPandasWithState": 10_000}
"""Number of rows of a batch, which each side processes in some seconds.

All sides are more efficient with large batches.
"""
WARM_UP = {"slackwater": 3, "transformWithState": 1, "applyInPandasWithState": 1}
MEASURED = {"slackwater": 5, "transformWithState": 3, "applyInPandasWithState": 3}
EVENT = "carrier string, origin string, dest string, dep_delay double, arr_delay double"
STATE = "n long, total double, largest double, last double"


def rows(bootstrap: str, folder: Path, quick: bool) -> list[Row]:
    """Compare Python state logic with transformWithState and applyInPandasWithState."""
    found: dict[str, list[float]] = {}
    # Our side is measured before each peer and at the end, because the speed of machines drifts.
    for turn, name in enumerate(("slackwater", "transformWithState", "applyInPandasWithState", "slackwater")):
        topic = f"bench-custom-{turn}"
        fill(bootstrap, (1 + WARM_UP[name] + MEASURED[name]) * BATCH[name], topic=topic, seed=turn)
        words = (name, bootstrap, folder / str(turn), topic, BATCH[name])
        found.setdefault(name, []).extend(side.run("custom_state", *words, peer=name != "slackwater"))
        if quick and turn == 2:
            break
    rates = {name: median(each) for name, each in found.items()}
    return [
        Row.at_least(
            f"count, sum, largest and last of {KEYS:,} keys in Python, {BATCH['slackwater']:,} rows a batch",
            f"{rates['slackwater']:,.0f} rows/s",
            f"{peer}, pandas, RocksDB, {BATCH[peer]:,} rows a batch: {rates[peer]:,.0f} rows/s",
            rates["slackwater"] / rates[peer],
            30,
        )
        for peer in ("transformWithState", "applyInPandasWithState")
    ]


def _events(flights: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F

    event = F.from_json(F.col("value").cast("string"), EVENT)
    return flights.select(F.col("key").cast("string").alias("leg"), event["arr_delay"].alias("delay"), "offset")


def _slackwater(bootstrap: str, folder: Path, topic: str, batch: int) -> list[int]:
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc
    import slackwater as sw

    app = sw.App("bench")

    def update(rows: pa.Table, state: pa.Table) -> pa.Table:
        starts = np.flatnonzero(np.diff(rows["_key"].to_numpy(), prepend=-1))
        ends = np.append(starts[1:], rows.num_rows)
        delay = rows["delay"].to_numpy()
        return pa.table(
            {
                "n": pc.add(pc.fill_null(state["n"], 0), ends - starts),
                "total": pc.add(pc.fill_null(state["total"], 0.0), np.add.reduceat(delay, starts)),
                "largest": pc.max_element_wise(state["largest"], np.maximum.reduceat(delay, starts)),
                "last": delay[ends - 1],
            }
        )

    @app.stage(
        reads=sw.topic(topic),
        key="leg",
        state=sw.update(update, state=STATE, order_by="offset"),
        table=sw.table(partitions=PARTITIONS),
    )
    def legs(flights: DataFrame) -> DataFrame:
        return _events(flights)

    return side.commits_ms(app, bootstrap, str(folder / "store"), folder / "cache", batch)


def _merge(rows: pd.DataFrame, state: tuple[Any, ...]) -> tuple[Any, ...]:
    """Update the state of one key by some of its rows. Both peers call this."""
    n, total, largest, _last = state
    delay = rows["delay"]
    last = delay.loc[rows["offset"].idxmax()]
    # Spark takes Python's numbers for the state, not numpy's.
    return (n + len(rows), float(total + delay.sum()), float(max(largest, delay.max())), float(last))


NEW = (0, 0.0, float("-inf"), None)


def _transform(events: DataFrame) -> DataFrame:
    import pandas as pd
    from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle

    class Legs(StatefulProcessor):
        def init(self, handle: StatefulProcessorHandle) -> None:
            self._state = handle.getValueState("leg", STATE)

        def handleInputRows(  # noqa: N802  Spark's name
            self,
            key: tuple[Any, ...],
            rows: Iterator[pd.DataFrame],
            timerValues: object,  # noqa: N803  Spark's name
        ) -> Iterator[pd.DataFrame]:
            state = self._state.get() if self._state.exists() else NEW
            for some in rows:
                state = _merge(some, state)
            self._state.update(state)
            yield pd.DataFrame([(*key, *state)], columns=["leg", "n", "total", "largest", "last"])

        def close(self) -> None:
            """Do nothing: there is nothing to close."""

    return events.groupBy("leg").transformWithStateInPandas(
        statefulProcessor=Legs(), outputStructType=f"leg string, {STATE}", outputMode="Update", timeMode="None"
    )


def _apply(events: DataFrame) -> DataFrame:
    import pandas as pd

    def legs(key: tuple[Any, ...], rows: Iterable[pd.DataFrame], group: GroupState) -> Iterator[pd.DataFrame]:
        state = group.get if group.exists else NEW
        for some in rows:
            state = _merge(some, state)
        group.update(state)
        yield pd.DataFrame([(*key, *state)], columns=["leg", "n", "total", "largest", "last"])

    return events.groupBy("leg").applyInPandasWithState(legs, f"leg string, {STATE}", STATE, "update", "NoTimeout")


PEERS = {"transformWithState": _transform, "applyInPandasWithState": _apply}


def _spark(name: str, bootstrap: str, folder: Path, topic: str, batch: int) -> list[int]:
    from slackwater.pipeline.spark.session import spark_session

    conf = {**side.SPARK_STATE, "spark.sql.shuffle.partitions": str(PARTITIONS)}
    with spark_session("bench", master="local[2]", conf=conf) as spark:
        source = side.topic_stream(spark, bootstrap, topic, batch)
        return side.worked_off(side.started(PEERS[name](_events(source)), folder / "checkpoint"))


if __name__ == "__main__":
    name, bootstrap, folder, topic, batch = sys.argv[1:]
    work = Path(folder)
    work.mkdir(parents=True, exist_ok=True)
    if name == "slackwater":
        stamps = _slackwater(bootstrap, work, topic, int(batch))
    else:
        stamps = _spark(name, bootstrap, work, topic, int(batch))
    print(json.dumps([int(batch) / seconds for seconds in cycles(stamps, WARM_UP[name])]))
