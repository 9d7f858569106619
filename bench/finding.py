"""From a wrong total to the input record: bisect over a long history, beside plain delta debugging.

`python -m bench.finding prepare BOOTSTRAP FOLDER VERSIONS KEYS WINDOW` writes the history and its topic, and prints
where the faults are.

Versions between the first and the last are written directly, as a runner would write them, because an app would take
too long for a thousand batches. The replays are real.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa
from msgspec.structs import replace
from slackwater.snapshot.bisect.predicate import Context, SqlPredicate
from slackwater.snapshot.cut.resolve import resolve
from slackwater.snapshot.query.sql import connect
from slackwater.state.failing import minimize_failing
from slackwater.store.objects.open import open_store
from slackwater.store.read.cache import SstCache

from .support import side
from .support.events import PARTITIONS, names, send
from .support.row import Row

VERSIONS = 1_024
KEYS = 1_000_000
WINDOW = 20_000
TOPIC = "bench-finding"
PROGRAM = Path(__file__).parent / "support" / "legs_app.py"
OUTLIER, HOT = 77, 4_242
"""The legs with the two faults: one has a delay of a week, and the other too many flights."""
WEEK = 10_080
HOT_FLIGHTS = 200
MOST_FLIGHTS = 150
FAULTS = {
    "one record with a wrong value": f"SELECT leg, worst FROM legs WHERE worst >= {WEEK}",
    "a total that is too large": f"SELECT leg, flights FROM legs WHERE flights > {MOST_FLIGHTS}",
}
PREDICATES = {
    "rows": f"SELECT leg, worst FROM legs WHERE worst > {WEEK} OR worst < 0 OR flights % 1000 = 999",
    "groups": "SELECT left(leg, 7) AS region FROM legs GROUP BY region HAVING sum(flights) < 0",
}
ROUNDS = 7
EVALUATIONS, REPLAYS, SECONDS = 11, 20, 60


def rows(bootstrap: str, folder: Path, quick: bool) -> list[Row]:
    """Bisect from a query to the record. Compare replays with delta debugging, and a predicate with plain Parquet."""
    scale = 16 if quick else 1
    versions, keys, window = VERSIONS // scale, KEYS // scale, WINDOW // scale // PARTITIONS * PARTITIONS
    places = side.run("finding", "prepare", bootstrap, folder, versions, keys, window)
    found = []
    for (name, where), place in zip(FAULTS.items(), places, strict=True):
        what = f"bisect to the record, {versions:,} versions, {keys:,} keys, windows of {window:,} records: {name}"
        seconds, verdict = _bisect(bootstrap, folder, where)
        assert verdict["record"]["address"] in place["addresses"], (verdict["record"], place)
        replays, plain = max(1, verdict["record"]["hops"][0]["replays"]), _delta_debugging(place, window)
        found += [
            Row.at_most(
                f"{what}, Spark's start included", f"{seconds:.1f} s", f"limit: {SECONDS} s", seconds / SECONDS, 1
            ),
            Row.at_most(
                f"{what}: evaluations",
                f"{verdict['evaluations']}",
                f"limit: {EVALUATIONS}",
                verdict["evaluations"] / EVALUATIONS,
                1,
            ),
            Row.at_most(f"{what}: replays", f"{replays}", f"limit: {REPLAYS}", replays / REPLAYS, 1),
            Row.at_least(
                f"{what}: replays", f"{replays}", f"plain ddmin over the window: {plain:,}", plain / replays, 10
            ),
        ]
    return found + _predicates(folder, keys)


def _bisect(bootstrap: str, folder: Path, where: str) -> tuple[float, dict[str, Any]]:
    """Run `slackwater bisect` with an empty cache. Returns its seconds and its JSON."""
    cache = folder / f"cache-{time.monotonic_ns()}"
    command = [str(Path(sys.executable).with_name("slackwater")), "bisect", "bench", "--where", where, "--json"]
    settings = {"STORE": str(folder / "store"), "KAFKA": bootstrap, "CACHE": str(cache)}
    environment = os.environ | {f"SLACKWATER_{name}": value for name, value in settings.items()}
    began = time.perf_counter()
    done = subprocess.run([*command, "--code", str(PROGRAM)], env=environment, stdout=subprocess.PIPE, check=True)
    return time.perf_counter() - began, json.loads(done.stdout)


def _delta_debugging(place: dict[str, Any], window: int) -> int:
    """Count the replays that ddmin needs if the batch's records are known, and a replay only tells good from bad.

    Instead of running replays, this counts the faulty records in the chosen subset, which gives the same result at
    once.
    """
    guilty, needed, asked = set(place["guilty"]), place["needed"], 0

    def is_bad(chosen: Sequence[int]) -> bool:
        nonlocal asked
        asked += 1
        return len(guilty.intersection(chosen)) >= needed

    minimize_failing(range(window), is_bad, max_tries=sys.maxsize)
    return asked


def _predicates(folder: Path, keys: int) -> list[Row]:
    """Run predicates on the newest version with cached SSTs, alternating with the same SQL on one Parquet file."""
    store, cache = open_store(str(folder / "store")), SstCache(folder / "cache", 1 << 34)
    cut = resolve(store, "bench", now_ms=0)
    plain = folder / "legs.parquet"
    with connect(store, cache, cut) as connection, duckdb.connect() as writer:
        # In the format of `COPY t TO`: with row groups that both cores can read.
        writer.from_arrow(connection.sql("FROM legs").to_arrow_table()).write_parquet(str(plain))
    found = []
    for name, sql in PREDICATES.items():

        def ours(sql: str = sql) -> None:
            assert SqlPredicate(sql).rows(Context(store, cache, cut), 1).num_rows == 0

        def theirs(sql: str = sql) -> None:
            with duckdb.connect() as connection:
                connection.execute(f"CREATE VIEW legs AS FROM read_parquet('{plain}')")
                assert not connection.sql(sql).limit(1).fetchall()

        mine, parquet = _in_turns(ours, theirs)
        found.append(
            Row.at_most(
                f"predicate over {name} of {keys:,} keys, {len(cut.stages['legs'].ssts)} SSTs in the cache",
                f"{mine * 1000:.0f} ms",
                f"the same SQL on one Parquet file: {parquet * 1000:.0f} ms",
                mine / parquet,
                1.5,
            )
        )
    return found


def _in_turns(*sides: Callable[[], None]) -> tuple[float, ...]:
    """Run the sides in turn. Returns the median seconds of each after two warm-up rounds."""
    seconds: list[list[float]] = [[] for _ in sides]
    for _ in range(2 + ROUNDS):
        for side_, run in zip(seconds, sides, strict=True):
            began = time.perf_counter()
            run()
            side_.append(time.perf_counter() - began)
    return tuple(median(each[2:]) for each in seconds)


class _History:
    """The records of each batch, and the table after the batch.

    Args:
        versions: number of batches, two of which contain a fault.
        keys: number of legs.
        window: number of records per batch.
    """

    def __init__(self, versions: int, keys: int, window: int) -> None:
        self._random = np.random.default_rng(5)
        self._window = window
        self.at = {OUTLIER: versions // 2, HOT: versions * 3 // 5}
        """For each leg with a fault, the number of the batch that contains the fault."""
        self.guilty: dict[int, npt.NDArray[np.int64]] = {}
        """For each leg with a fault, the positions in the batch of the records that cause it."""
        self.flights = np.ones(keys, np.int64)
        self.worst = np.zeros(keys, np.int64)

    def batch(self, number: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return the legs and delays of a batch."""
        legs = self._random.integers(0, len(self.flights), self._window)
        # Only a fault writes to these.
        legs[np.isin(legs, (OUTLIER, HOT))] = 0
        delays = np.arange(self._window) % 60
        if number == self.at[OUTLIER]:
            self.guilty[OUTLIER] = np.array([self._window * 3 // 5])
            legs[self.guilty[OUTLIER]], delays[self.guilty[OUTLIER]] = OUTLIER, WEEK
        if number == self.at[HOT]:
            self.guilty[HOT] = np.sort(self._random.choice(self._window, HOT_FLIGHTS, replace=False))
            legs[self.guilty[HOT]] = HOT
        np.add.at(self.flights, legs, 1)
        np.maximum.at(self.worst, legs, delays)
        return legs, delays

    def rows(self, legs: npt.NDArray[np.int64]) -> pa.Table:
        """Return the table's rows of these legs."""
        legs = np.unique(legs)
        return pa.table(
            {"leg": names(legs).cast(pa.string()), "flights": self.flights[legs], "worst": self.worst[legs]}
        )


def _prepare(bootstrap: str, folder: Path, versions: int, keys: int, window: int) -> list[dict[str, Any]]:
    """Write the topic and the versions. Returns, for each fault, the addresses of its records and how many cause it."""
    from slackwater.pipeline.run.program import load_app
    from slackwater.pipeline.spark.session import spark_session

    from .support.large_state import begun
    from .support.written import Stage

    send(bootstrap, TOPIC, [])
    store, cache = open_store(str(folder / "store")), SstCache(folder / "cache", 1 << 34)
    with spark_session("bench", master="local[2]") as spark:
        first = begun(store, load_app(str(PROGRAM), name="bench"), spark, bootstrap)
    assert first.table is not None
    history = _History(versions, keys, window)
    stage = Stage(store, cache, first)
    stage.put(history.rows(np.arange(keys)))
    stage.compact(full=True)

    def batches() -> Iterator[list[tuple[bytes, bytes]]]:
        number = 0
        while stage.head.version < versions:
            legs, delays = history.batch(number)
            number += 1
            inputs = {
                name: replace(one, offsets=(number * window // PARTITIONS,) * PARTITIONS, rows=window)
                for name, one in stage.head.inputs.items()
            }
            stage.put(history.rows(legs), inputs)
            if stage.head.version < versions:
                stage.compact()
            yield list(zip(names(legs).to_pylist(), [b"%d" % delay for delay in delays.tolist()], strict=True))

    send(bootstrap, TOPIC, batches())
    return [_place(history, OUTLIER, 1, window), _place(history, HOT, MOST_FLIGHTS, window)]


def _place(history: _History, leg: int, needed: int, window: int) -> dict[str, Any]:
    guilty, first = history.guilty[leg].tolist(), history.at[leg] * window // PARTITIONS
    # Several records have the same millisecond, so the last record that causes the fault is not determined.
    addresses = [f"{TOPIC}[{place % PARTITIONS}]@{first + place // PARTITIONS}" for place in guilty]
    return {"addresses": addresses, "guilty": guilty, "needed": needed}


if __name__ == "__main__":
    verb, bootstrap, name, *words = sys.argv[1:]
    assert verb == "prepare", verb
    Path(name).mkdir(parents=True, exist_ok=True)
    print(json.dumps(_prepare(bootstrap, Path(name), *map(int, words))))
