"""Migration of a large table: the migration itself, look-ups in SSTs from before it, and the first batch after it.

`python -m bench.tasks.migrating BOOTSTRAP FOLDER SMALL LARGE` measures in a fresh process and prints JSON. One column
is added, one renamed, one widened. Each figure is compared with the same app without a migration.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from ..support import side
from ..support.events import PARTITIONS, fill_ranges, names
from ..support.large_state import APP, STAGE, begun, copy, legs_of
from ..support.row import Row

if TYPE_CHECKING:
    import slackwater as sw
    from pyspark.sql import DataFrame, SparkSession
    from slackwater.store.objects.protocol import ObjectStore
    from slackwater.store.read.cache import SstCache
    from slackwater.store.versions.manifest import Manifest

SIZES = (10_000, 10_000_000)
TOPIC = "bench-migrating"
BATCH = 100_000
ASKED = 100_000
ROUNDS = 5
BY = "bench@here"


@dataclass
class Measured:
    """Figures for a table of one size."""

    seconds: float
    """Seconds to plan and commit the migration, once Spark is up."""
    requests: int
    moved: int
    """Bytes read and written during the migration, for manifests and other small objects; SSTs are not touched."""
    lookup_before: float
    lookup_after: float
    """Seconds that a look-up of `ASKED` keys takes."""
    batch_before: float
    batch_after: float
    """Milliseconds of a run's first batch."""


def rows(bootstrap: str, folder: Path, quick: bool) -> list[Row]:
    """Compare a migration of 10 million keys with one of 10,000, and a migrated table with an unchanged table."""
    small, large = (SIZES[0], SIZES[1] // 20) if quick else SIZES
    found = side.run("tasks.migrating", bootstrap, folder, small, large)
    few, many = (Measured(**found[str(size)]) for size in (small, large))
    what = f"{large:,} keys, a column added, one renamed, one widened"
    return [
        Row(f"migrate {what}", f"{many.seconds:.2f} s", "limit: 2 s", many.seconds / 2, "< 1", many.seconds < 2),
        Row.at_most(
            f"migrate {what}: bytes read and written",
            f"{many.moved:,}",
            f"{small:,} keys: {few.moved:,}",
            many.moved / few.moved,
            1.1,
        ),
        Row(
            f"migrate {what}: store requests",
            f"{many.requests}",
            f"{small:,} keys: {few.requests}",
            many.requests / few.requests,
            "= 1",
            many.requests == few.requests,
        ),
        Row.at_most(
            f"look-up of {ASKED:,} keys over SSTs from before, {what}",
            f"{many.lookup_after * 1000:.0f} ms",
            f"not migrated: {many.lookup_before * 1000:.0f} ms",
            many.lookup_after / many.lookup_before,
            1.1,
        ),
        Row.at_most(
            f"first batch after it, {BATCH:,} rows, {what}",
            f"{many.batch_after / 1000:.2f} s",
            f"not migrated: {many.batch_before / 1000:.2f} s",
            many.batch_after / many.batch_before,
            1.1,
        ),
    ]


def _app(keys: int, *, changed: bool) -> sw.App:
    """Return the program from before the change, or from after it."""
    import slackwater as sw
    from pyspark.sql import functions as F

    app = sw.App(APP)
    state = (
        sw.aggregate(legs=sw.count(), worst=sw.max("delay"), total=sw.sum("minutes"))
        if changed
        else sw.aggregate(flights=sw.count(), worst=sw.max("delay"))
    )

    @app.stage(name=STAGE, reads=sw.topic(TOPIC), key="leg", state=state, table=sw.table(partitions=PARTITIONS))
    def legs(messages: DataFrame) -> DataFrame:
        delay = F.col("delay").cast("long" if changed else "int").alias("delay")
        return legs_of(messages, keys).select("leg", delay, F.col("delay").alias("minutes"))

    return app


def _measure(spark: SparkSession, bootstrap: str, folder: Path, keys: int) -> Measured:
    from slackwater.operations.program_changes import declared
    from slackwater.pipeline.batch.schemas import derive_schemas
    from slackwater.snapshot.change.migrate import find_plan, migrate
    from slackwater.store.objects.counting import CountingStore
    from slackwater.store.objects.open import open_store
    from slackwater.store.read.cache import SstCache
    from slackwater.store.versions import history

    before, after = _app(keys, changed=False), _app(keys, changed=True)
    _write(open_store(str(folder / "old")), before, spark, bootstrap, keys)
    copy(folder / "old", folder / "new")
    store = CountingStore(open_store(str(folder / "new")))
    began = time.perf_counter()
    plan = find_plan(store, declared(after, derive_schemas(after, spark)), {"flights": "legs"})
    migrate(store, plan, {}, by=BY, now_ms=time.time_ns() // 1_000_000)
    seconds = time.perf_counter() - began
    requests, moved = store.requests, store.bytes_read + store.bytes_written
    heads = [history.head(open_store(str(folder / name)), APP, STAGE) for name in ("old", "new")]
    cache = SstCache(folder / "looked-up", 1 << 34)
    lookups = _look_ups([(store, cache, head) for head in heads if head is not None], keys)
    cache.close()
    batches: dict[str, list[float]] = {"old": [], "new": []}
    for number in range(ROUNDS):
        fill_ranges(
            bootstrap, TOPIC, [(at, at + BATCH // PARTITIONS - 1) for at in range(0, BATCH, BATCH // PARTITIONS)]
        )
        for name, app in (("old", before), ("new", after))[:: 1 if number % 2 else -1]:
            root = str(folder / name)
            side.commits_ms(app, bootstrap, root, folder / f"cache-{name}", PARTITIONS)
            newest = history.head(open_store(root), APP, STAGE)
            assert newest is not None
            assert newest.kind == "batch"
            batches[name].append(newest.duration_ms)
    # The first of all compiles.
    return Measured(seconds, requests, moved, *lookups, *(median(each[1:]) for each in batches.values()))


def _write(store: ObjectStore, app: sw.App, spark: SparkSession, bootstrap: str, keys: int) -> None:
    """Write the table with all of its keys, as a compaction would leave it."""
    from msgspec.structs import replace
    from slackwater.store.versions import commit

    from ..support.written import ssts

    first = begun(store, app, spark, bootstrap)
    assert first.table is not None
    numbers = np.arange(keys)
    rows = pa.table(
        {
            "leg": names(numbers).cast(pa.string()),
            "flights": np.ones(keys, np.int64),
            "worst": (numbers % 60).astype(np.int32),
        }
    )
    made = commit.successor(first, kind="batch", epoch=1, writer="bench", by="bench", now_ms=first.time_ms + 1)
    commit.commit(store, replace(made, ssts=ssts(store, None, APP, STAGE, first.table, rows, 2, level=1)))


def _look_ups(sides: list[tuple[ObjectStore, SstCache, Manifest]], keys: int) -> list[float]:
    """Look up keys on all sides in turn. Returns the median seconds of each, without warm-up."""
    from slackwater.store.read.multi_get import multi_get
    from slackwater.store.sst.hashing import hash_keys

    seconds: list[list[float]] = [[] for _ in sides]
    random = np.random.default_rng(4)
    for _ in range(2 + ROUNDS):
        asked = pa.table({"leg": names(random.integers(0, keys, ASKED)).cast(pa.string())})
        hashes = hash_keys(asked, ["leg"])
        for taken, (store, cache, head) in zip(seconds, sides, strict=True):
            assert head.table is not None
            started = time.perf_counter()
            _, there = multi_get(store, cache, head.ssts, head.table, hashes, asked)
            taken.append(time.perf_counter() - started)
            assert there.all()
    return [median(each[2:]) for each in seconds]


if __name__ == "__main__":
    from slackwater.pipeline.spark.session import spark_session

    bootstrap, folder, *sizes = sys.argv[1:]
    fill_ranges(bootstrap, TOPIC, [])
    with spark_session("bench", master="local[2]") as spark:
        found = {size: _measure(spark, bootstrap, Path(folder) / size, int(size)) for size in sizes}
    print(json.dumps({size: asdict(each) for size, each in found.items()}))
