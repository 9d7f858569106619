"""A batch with a poison record beside batches without one: in an expression of Spark's, and in a state's function.

`python -m bench.tasks.rejecting BOOTSTRAP FOLDER WHERE BATCH BATCHES` measures in a fresh process and prints JSON.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import numpy as np

from ..support import side
from ..support.events import KEYS, PARTITIONS, names, send
from ..support.row import Row

if TYPE_CHECKING:
    import pyarrow as pa
    import slackwater as sw
    from pyspark.sql import DataFrame

BATCH = 400_000
WARM_UP = 3
CHUNK = 50_000
BATCHES = 19
"""The last of the warm ones begin with one that has a poison record; then every other has one."""
FIRST = 2
"""Poison records until the search is warm as well: the JVM has compiled what it runs."""
WHERE = {"expression": "an expression that fails", "state": "a state's function that fails"}


def rows(bootstrap: str, folder: Path, quick: bool) -> list[Row]:
    """A batch of 400,000 records with a poison record, beside one without."""
    batch, batches = (BATCH // 10, 9) if quick else (BATCH, BATCHES)
    found = []
    for where, what in WHERE.items():
        measured = side.run("tasks.rejecting", bootstrap, folder / where, where, batch, batches)
        poison, without = measured["poison"], median(measured["clean"])
        with_one = median(poison[FIRST:])
        found.append(
            Row.at_most(
                f"a poison record among {batch:,}: {what}, median of {len(poison) - FIRST}",
                f"{with_one:.2f} s, {measured['rejected']} rejected, {measured['expected']} sent",
                f"a batch without: {without:.2f} s; the first two with one: "
                f"{', '.join(f'{seconds:.2f} s' for seconds in poison[:FIRST])}",
                with_one / without if measured["rejected"] == measured["expected"] else float("inf"),
                3,
            )
        )
    return found


def _fill(bootstrap: str, topic: str, batch: int, batches: int) -> int:
    """Write the batches; how many of them have a poison record, each at another place."""
    random = np.random.default_rng(3)
    poisoned = 0
    for number in range(batches):
        keys = names(random.integers(0, KEYS, batch)).to_pylist()
        delays = random.integers(-20, 90, batch).tolist()
        values = [b'{"delay":"%d"}' % delay for delay in delays]
        if number >= WARM_UP and (number - WARM_UP) % 2 == 0:
            values[int(random.integers(0, batch))] = b'{"delay":"none"}'
            poisoned += 1
        pairs = list(zip(keys, values, strict=True))
        send(bootstrap, topic, [pairs[at : at + CHUNK] for at in range(0, batch, CHUNK)])
    return poisoned


def _app(topic: str, where: str) -> sw.App:
    import pyarrow as pa
    import pyarrow.compute as pc
    import slackwater as sw
    from pyspark.sql import functions as F

    app = sw.App("bench")

    def update(rows: pa.Table, state: pa.Table) -> pa.Table:
        added = rows.group_by("_key", use_threads=False).aggregate([("delay", "sum"), ("delay", "count")])
        return pa.table(
            {
                "flights": pc.add(pc.fill_null(state["flights"], 0), added["delay_count"]),
                "delay": pc.add(pc.fill_null(state["delay"], 0), added["delay_sum"]),
            }
        )

    def strict(rows: pa.Table, state: pa.Table) -> pa.Table:
        return update(rows.set_column(1, "delay", rows["delay"].cast(pa.int64())), state)

    fails_in_state = where == "state"

    @app.stage(
        reads=sw.topic(topic),
        key="leg",
        state=sw.update(strict if fails_in_state else update, state="flights long, delay long"),
        table=sw.table(partitions=PARTITIONS),
        on_error="reject",
    )
    def legs(flights: DataFrame) -> DataFrame:
        delay = F.get_json_object(F.col("value").cast("string"), "$.delay")
        return flights.select(
            F.col("key").cast("string").alias("leg"), (delay if fails_in_state else delay.cast("long")).alias("delay")
        )

    return app


def _measure(bootstrap: str, folder: Path, where: str, batch: int, batches: int) -> dict[str, object]:
    topic = f"bench-rejecting-{where}"
    expected = _fill(bootstrap, topic, batch, batches)
    reports = side.reports(_app(topic, where), bootstrap, str(folder / "store"), folder / "cache", batch)
    warm = reports[WARM_UP:]
    return {
        "poison": [report.seconds for report in warm if report.rejected],
        "clean": [report.seconds for report in warm if not report.rejected],
        "rejected": sum(report.rejected for report in reports),
        "expected": expected,
    }


if __name__ == "__main__":
    bootstrap, folder, where, batch, batches = sys.argv[1:]
    Path(folder).mkdir(parents=True)
    print(json.dumps(_measure(bootstrap, Path(folder), where, int(batch), int(batches))))
