"""Adoption of a Spark query with a large state and a hundred batches, beside Spark, which reads the same state.

`python -m bench.tasks.queries.adopting [FOLDER] [--quick]` prints its rows alone; `--quick` uses 200,000 keys instead
of 10 M.

The query counts and sums by key: the first batch has all keys, and each of the hundred others has ten thousand. The
peer is Spark, which reads what an adoption needs: the whole state at the oldest available batch, the changes of all
later batches, and the whole state at the last batch. `adopt` reads the same through Spark, and also writes sorted SSTs,
commits a version per batch, merges, and compares the result. One batch contains a sum that is out of range, which
bisect must find. The start of Python and Spark is not included. Memory is the peak of the process and its JVM together.
"""

from __future__ import annotations

import json
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from ...support import side
from ...support.row import Row

KEYS, QUICK_KEYS = 10_000_000, 200_000
BATCHES, PER_BATCH = 100, 10_000
PLANTED = 41
"""Number of the batch that has an amount out of range."""
SCHEMA = "k string, v bigint"


def rows(folder: Path, quick: bool) -> list[Row]:
    """Run a query, adopt it, and let Spark read its state as the peer. Takes 15 minutes at full scale.

    Args:
        folder: an empty folder on a disk with 6 GB.
        quick: 200,000 keys instead of 10 M.
    """
    keys = QUICK_KEYS if quick else KEYS
    checkpoint = folder / "checkpoint"
    side.run("tasks.queries.adopting", "query", checkpoint, folder / "source", keys, peer=True, env=_heap("3g"))
    spark = side.run("tasks.queries.adopting", "spark", checkpoint, peer=True, env=_heap("1g"))
    ours = side.run("tasks.queries.adopting", "ours", checkpoint, folder / "store", env=_heap("1g"))
    assert ours["found"] == PLANTED, ours
    what = f"adopting {keys:,} keys with {ours['batches']:,} batches of history"
    return [
        Row.at_least(
            what,
            f"{ours['seconds']:.1f} s, in {ours['evaluations']} steps bisect finds the planted batch",
            f"Spark reading the same: {spark['seconds']:.1f} s",
            spark["seconds"] / ours["seconds"],
            1 / 3,
        ),
        Row.at_most(
            f"{what}: peak memory",
            f"{ours['memory'] >> 20:,} MiB, of which {ours['jvm'] >> 20:,} MiB are Spark's JVM",
            "2,000 MiB of our own",
            (ours["memory"] - ours["jvm"]) / (2_000 << 20),
            1.0,
        ),
    ]


def _heap(size: str) -> dict[str, str]:
    return {"PYSPARK_SUBMIT_ARGS": f"--driver-memory {size} pyspark-shell"}


def _query(checkpoint: Path, source: Path, keys: int) -> dict[str, object]:
    """Run the query: all keys in the first batch, then ten thousand keys in each of a hundred batches."""
    import duckdb
    from pyspark.sql import functions as F

    source.mkdir()
    with duckdb.connect() as con:
        con.execute(f"COPY (SELECT 'k' || i AS k, i % 97 AS v FROM range({keys}) r(i)) TO '{source}/000.parquet'")
        for number in range(1, BATCHES + 1):
            v = "CASE WHEN i = 7 THEN 1000000000 ELSE i % 89 END" if number == PLANTED else "i % 89"
            some = (
                f"SELECT 'k' || (hash(i + {number * PER_BATCH}) % {keys}) AS k, {v} AS v FROM range({PER_BATCH}) r(i)"
            )
            con.execute(f"COPY ({some}) TO '{source}/{number:03}.parquet'")
    spark = side.plain_session(**side.SPARK_STATE, **{"spark.sql.streaming.minBatchesToRetain": str(BATCHES + 1)})
    read = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(source))
    kept = read.groupBy("k").agg(F.count("*").alias("n"), F.sum("v").alias("s"))
    writer = kept.writeStream.outputMode("update").format("noop").option("checkpointLocation", str(checkpoint))
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    return {"batches": len(list((checkpoint / "commits").glob("[0-9]*")))}


def _available(checkpoint: Path) -> range:
    """Return the batches whose whole state can be read, from a snapshot and all changes after it."""
    from slackwater.operations.from_spark.checkpoint.files import CheckpointFiles
    from slackwater.store.objects.open import open_store

    return CheckpointFiles(open_store(str(checkpoint))).readable_batches()


def _spark(checkpoint: Path) -> dict[str, object]:
    spark = side.plain_session()
    there = _available(checkpoint)
    read = spark.read.format("statestore").option("path", str(checkpoint))
    started = time.perf_counter()
    for batch in (there[0], there[-1]):
        read.option("batchId", batch).load().write.format("noop").mode("overwrite").save()
    feed = spark.read.format("statestore").option("path", str(checkpoint)).option("readChangeFeed", "true")
    feed = feed.option("changeStartBatchId", there[0] + 1).option("changeEndBatchId", there[-1])
    feed.load().write.format("noop").mode("overwrite").save()
    return {"seconds": time.perf_counter() - started}


def _ours(checkpoint: Path, folder: Path) -> dict[str, object]:
    import pyarrow as pa
    import slackwater as sw
    from slackwater.operations.from_spark.adopt.adoption import Adoption
    from slackwater.operations.from_spark.adopt.mapping import map_tables
    from slackwater.operations.from_spark.checkpoint.checkpoint import open_with_new_session
    from slackwater.snapshot.bisect.predicate import SqlPredicate
    from slackwater.snapshot.bisect.search import bisect
    from slackwater.state.event_time import TimeRules
    from slackwater.store.objects.open import open_store
    from slackwater.store.read.cache import SstCache
    from slackwater.store.sst.arrow_types import from_arrow
    from slackwater.store.versions.manifest import AppInfo, Column, Input, Manifest, Table

    kind = sw.aggregate(n=sw.count(), s=sw.sum("v"))
    values = kind.bind([pa.schema([("k", pa.string()), ("v", pa.int64())])], ("k",)).values
    columns = tuple(Column(each.name, from_arrow(each.type)) for each in values)
    table = Table((Column("k", "string"),), columns, 4, kind.stored)
    store, cache = open_store(str(folder)), SstCache(folder.parent / "cache", 4 << 30)
    with open_with_new_session(str(checkpoint), master="local[2]", conf={}) as found, _memory() as peak:
        started = time.perf_counter()
        batches = found.readable_batches()
        first = Manifest("bench", "totals", 1, 1, "bench", 1, "init", {"t": Input("t", ())}, table=table, by="bench")
        adoption = Adoption(
            store,
            cache,
            found,
            first,
            lambda: map_tables(found.tables, table, "bench/totals"),
            batches=batches,
            time_rules=TimeRules(),
            info=AppInfo("bench", 1),
            constant_offsets={"t": (0,)},
        )
        adoption.run()
        seconds = time.perf_counter() - started
    verdict = bisect(store, cache, "bench", SqlPredicate("SELECT k FROM totals WHERE s > 500000000"))
    version = verdict.bad.stages["totals"]
    assert version.adopted is not None
    return {
        "seconds": seconds,
        "batches": len(batches),
        "memory": peak["all"],
        "jvm": peak["jvm"],
        "found": version.adopted.next_batch - 1,
        "evaluations": verdict.evaluations,
    }


@contextmanager
def _memory() -> Iterator[dict[str, int]]:
    """Record the peak of the resident bytes of this process and its children, and the JVM's share."""
    peak, stop, me = {"all": 0, "jvm": 0}, threading.Event(), psutil.Process()

    def look() -> None:
        while not stop.wait(0.1):
            with suppress(psutil.Error):
                below = [(each.name(), each.memory_info().rss) for each in me.children(recursive=True)]
                jvm = sum(rss for name, rss in below if name == "java")
                every = me.memory_info().rss + sum(rss for _, rss in below)
                if every - jvm > peak["all"] - peak["jvm"]:
                    peak.update(all=every, jvm=jvm)

    watching = threading.Thread(target=look, daemon=True)
    watching.start()
    try:
        yield peak
    finally:
        stop.set()
        watching.join()


if __name__ == "__main__":
    what, *words = sys.argv[1:] or [""]
    if what == "query":
        print(json.dumps(_query(Path(words[0]), Path(words[1]), int(words[2]))))
    elif what == "spark":
        print(json.dumps(_spark(Path(words[0]))))
    elif what == "ours":
        print(json.dumps(_ours(Path(words[0]), Path(words[1]))))
    else:
        named = [argument for argument in sys.argv[1:] if not argument.startswith("-")]
        with tempfile.TemporaryDirectory(prefix="slackwater-bench-", dir=named[0] if named else None) as work:
            for row in rows(Path(work), "--quick" in sys.argv):
                print(row)
