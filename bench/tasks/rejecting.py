"""Batches with poison records beside batches without: in Spark expressions, Python functions and a state function.

`python -m bench.tasks.rejecting BOOTSTRAP FOLDER WHERE BATCH COUNTS` measures in a fresh process and prints JSON.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import numpy as np

from ..support import side
from ..support.events import KEYS, PARTITIONS, names, send
from ..support.row import Row

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa
    import slackwater as sw
    from pyspark.sql import DataFrame

WARM_UP = 3
CHUNK = 50_000
SEVERAL = {10: 5.0, 100: 10.0, 1_000: 30.0}
ASKED = {10_000: {1: 5.0, **SEVERAL}, 400_000: {1: 3.0, **SEVERAL}}
"""Maximum ratio of batch times with and without poison records, by the size of a batch and the number of these records.
"""
COUNTS = (1, *SEVERAL)
EACH = 2
"""Number of batches for each number of poison records. The first is not counted, because the JVM compiles then."""
FIRST = 2
"""Number of additional batches with one poison record at the start, when the search for records is not compiled yet."""
WHERE = ("json", "cast", "raise_error", "UDF", "mapInPandas", "state")
IN_LARGE = ("json", "mapInPandas", "state")
"""Kinds of failures that are also measured in large batches: an expression, a function over rows, and a function of a
state.
"""


def rows(bootstrap: str, folder: Path, quick: bool) -> Iterator[Row]:
    """Compare batches with poison records with batches without."""
    counts = [COUNTS[0]] * FIRST + [count for count in COUNTS for _ in range(EACH)]
    for where in WHERE[-1:] if quick else WHERE:
        for batch, limits in [*ASKED.items()][: 2 if where in IN_LARGE and not quick else 1]:
            measured = side.run(
                "tasks.rejecting", bootstrap, folder / f"{where}-{batch}", where, batch, ",".join(map(str, counts))
            )
            without = median(measured["clean"])
            for count, asked in limits.items():
                with_some = median(measured["poison"][str(count)][1 - EACH :])
                yield Row.at_most(
                    f"{where}: {count:,} poison record{'s' if count > 1 else ''} among {batch:,}",
                    f"{with_some:.2f} s, {measured['rejected']} rejected, {measured['expected']} sent",
                    f"a batch without: {without:.2f} s",
                    with_some / without if measured["rejected"] == measured["expected"] else float("inf"),
                    asked,
                )


def _fill(bootstrap: str, topic: str, where: str, batch: int, counts: Sequence[int]) -> None:
    """Write warm-up batches, then batches with these numbers of poison records, each followed by a clean batch."""
    random = np.random.default_rng(3)
    bad = b'{"delay":' if where == "json" else b'{"delay":"none"}'
    for count in (*[0] * WARM_UP, *(more for each in counts for more in (each, 0))):
        keys = names(random.integers(0, KEYS, batch)).to_pylist()
        values = [b'{"delay":"%d"}' % each for each in random.integers(-20, 90, batch).tolist()]
        for at in random.choice(batch, count, replace=False).tolist():
            values[at] = bad
        pairs = list(zip(keys, values, strict=True))
        send(bootstrap, topic, [pairs[at : at + CHUNK] for at in range(0, batch, CHUNK)])


def _app(topic: str, where: str) -> sw.App:
    import pandas as pd
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

    def in_pandas(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        for frame in frames:
            yield pd.DataFrame({"leg": frame["leg"], "delay": frame["delay"].astype("int64")})

    @app.stage(
        reads=sw.topic(topic),
        key="leg",
        state=sw.update(strict if where == "state" else update, state="flights long, delay long"),
        table=sw.table(partitions=PARTITIONS),
        on_error="reject",
        max_rejected=1_000_000,
    )
    def legs(flights: DataFrame) -> DataFrame:
        value, leg = F.col("value").cast("string"), F.col("key").cast("string").alias("leg")
        text = F.get_json_object(value, "$.delay")
        if where == "mapInPandas":
            return flights.select(leg, text.alias("delay")).mapInPandas(in_pandas, "leg string, delay long")
        delay = {
            "json": lambda: F.from_json(value, "delay string", {"mode": "FAILFAST"})["delay"].cast("long"),
            "cast": lambda: text.cast("long"),
            "raise_error": lambda: F.when(text == "none", F.raise_error("no delay")).otherwise(text).cast("long"),
            "UDF": lambda: F.udf(lambda each: int(each), "long", useArrow=True)(text),
            "state": lambda: text,
        }[where]()
        return flights.select(leg, delay.alias("delay"))

    return app


def _measure(bootstrap: str, folder: Path, where: str, batch: int, counts: Sequence[int]) -> dict[str, object]:
    topic = f"bench-rejecting-{where}-{batch}"
    _fill(bootstrap, topic, where, batch, counts)
    reports = side.reports(_app(topic, where), bootstrap, str(folder / "store"), folder / "cache", batch)
    warm = reports[WARM_UP:]
    poison: dict[int, list[float]] = {}
    for report in warm:
        if report.rejected:
            poison.setdefault(report.rejected, []).append(report.seconds)
    return {
        "poison": poison,
        "clean": [report.seconds for report in warm if not report.rejected],
        "rejected": sum(report.rejected for report in reports),
        "expected": sum(counts),
    }


if __name__ == "__main__":
    bootstrap, folder, where, batch, counts = sys.argv[1:]
    Path(folder).mkdir(parents=True)
    print(json.dumps(_measure(bootstrap, Path(folder), where, int(batch), [int(each) for each in counts.split(",")])))
