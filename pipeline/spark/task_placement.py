"""Tasks go to the executor that had their partition in the batch before, where its machine has the state's SSTs.

Spark schedules a task to where a cached partition is that it reads. So each state partition has a home: one cached row,
on the executor that first computed it. A batch's rows are joined with the homes, partition by partition and without
moving. Where an executor is lost, Spark computes its homes anew on others.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import count as count_from
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from .exchange import addressed, exchanged

_HOME = "_home"
"""By which rows meet their home: what `exchange.addressed` gives of their partition."""
_PARTITION = "_partition"
"""The number of a home's partition."""
_firsts = count_from(0, 1 << 20)
_TRIES = 5
"""The first tasks of all go where there is room first. These are small, so another try costs little."""
_WAIT_MS = 25
"""Doubled with each further try: tasks of a few milliseconds all go to the executor that is warm first, and those that
take equally long go round."""
_WAIT_ALL_MS = 1_000
"""The longest that a try waits in all."""


class Homes:
    """Where the partitions of one stage's batches are at home. `place` is for one thread."""

    def __init__(self) -> None:
        self._homes: DataFrame | None = None
        self._partitions = self._executors = 0
        self._tag = f"slackwater-homes-{id(self)}"
        self._closed = False

    def place(self, rows: DataFrame, partition: Column, count: int) -> DataFrame:
        """The rows of one micro-batch in `count` partitions, each where it was the last time.

        `partition` is the number of a row's partition, an int that is never null.
        """
        home = addressed(rows.sparkSession, partition, count)
        at_home = exchanged(rows.withColumn(_HOME, home), F.col(_HOME), count)
        context: Any = rows.sparkSession.sparkContext._jsc.sc()
        executors = len(context.statusTracker().getExecutorInfos()) - 1  # the driver is among them
        # An executor that has come has no homes: they are spread anew.
        if self._homes is None or count != self._partitions or executors > self._executors:
            if self._homes is not None:
                self._homes.unpersist()
            self._homes = _spread(rows.sparkSession, count, executors)
        self._partitions, self._executors = count, executors
        # Both sides are partitioned alike, so nothing moves; the hint keeps Spark from broadcasting the smaller one.
        return at_home.join(self._homes.select(_HOME).hint("shuffle_hash"), _HOME).drop(_HOME)

    def visit(self, work: Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]) -> None:
        """Run something at each partition's home, beside the batches and from any thread; nothing before the first.

        `work` gets the partitions' numbers, and gives them back. Raises `Py4JError` where Spark ended or the homes were
        closed, and `PySparkException` where the work failed.
        """
        homes = self._homes
        if homes is None or self._closed:
            return
        context = homes.sparkSession.sparkContext
        # A thread's jobs have its tags.
        context.addJobTag(self._tag)
        try:
            homes.select(_PARTITION).mapInArrow(work, f"{_PARTITION} int").collect()
        finally:
            context.removeJobTag(self._tag)

    def close(self) -> None:
        """Forget the homes, and end the visits under way."""
        self._closed = True
        if self._homes is not None:
            self._homes.sparkSession.sparkContext.cancelJobsWithTag(self._tag)
            self._homes.unpersist()
            self._homes = None


def _spread(spark: SparkSession, count: int, executors: int) -> DataFrame:
    """One row a partition, cached, as evenly over the executors as the best of a few tries gives."""
    fair = -(-count // max(1, executors))
    best, most = _cached(spark, count, 0)
    for tries in range(1, _TRIES):
        if most <= fair:
            break
        homes, largest = _cached(spark, count, min(_WAIT_MS << tries, _WAIT_ALL_MS // fair))
        worse = best if largest < most else homes
        best, most = (homes, largest) if largest < most else (best, most)
        worse.unpersist()
    return best


def _cached(spark: SparkSession, count: int, wait_ms: int) -> tuple[DataFrame, int]:
    """One row a partition, each cached by a task that takes so long, and how many the executor has that has most."""
    # Spark takes equal plans for one: these homes would go with those of another stage.
    first = next(_firsts)
    number = (F.col("id") - first).cast("int")
    homes = spark.range(first, first + count).select(
        number.alias(_PARTITION), addressed(spark, number, count).alias(_HOME)
    )
    homes = exchanged(homes, F.col(_HOME), count)
    if wait_ms:
        # True whatever it gives, which Spark cannot know.
        homes = homes.where(f"coalesce(reflect('java.lang.Thread', 'sleep', {wait_ms}L), '') != 'slept'")
    homes = homes.cache()
    homes.count()
    return homes, max(_located(homes).values(), default=0)


def _located(cached: DataFrame) -> Counter[str]:
    """How many of its partitions each executor has."""
    context: Any = cached.sparkSession.sparkContext._jsc.sc()
    rdd = cached._jdf.queryExecution().toRdd()
    places = (context.getPreferredLocs(rdd, part) for part in range(rdd.getNumPartitions()))
    return Counter(seq.head().toString() for seq in places if not seq.isEmpty())
