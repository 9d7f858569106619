"""Moves rows to numbered partitions, and runs each partition on the executor that ran it in the last batch.

From version 4.1 on, Spark can move rows to a partition by its number. Spark 4.0 can only partition by a hash, so the
number of a partition is replaced by a number whose hash selects the partition.

The executor that ran a hash range in the last batch has the SSTs of the range on its machine. Spark runs a task on the
executor that caches the task's input. So each hash range has a home: one cached row, on the executor that first
computed the row. The rows of a batch are joined with the homes, partition by partition, without a shuffle. If an
executor is lost, Spark computes its homes again on the remaining executors.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import count as count_from
from operator import itemgetter
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
from cachetools import cached
from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

_HAS_REPARTITION_BY_ID = hasattr(DataFrame, "repartitionById")
_SEED = 42
T = TypeVar("T")

_POOL = "spark.scheduler.pool"
MERGE_POOL = "slackwater-merges"
"""Spark's scheduler pool for background jobs. `pools.xml` gives the pool a low weight."""


def address_column(partition: Column, count: int) -> Column:
    """Return the column of partition addresses that `repartition_by_address` takes.

    The address is the number in `partition`, an int from 0 to `count` - 1, never null; on Spark 4.0, it is a number
    that hashes to that partition.
    """
    if _HAS_REPARTITION_BY_ID:
        return partition
    return F.element_at(F.array(*map(F.lit, _preimages(count))), partition + 1)


def repartition_by_address(frame: DataFrame, address: Column, count: int) -> DataFrame:
    """Return the rows in `count` partitions, by a column with the addresses of `address_column`."""
    return frame.repartitionById(count, address) if _HAS_REPARTITION_BY_ID else frame.repartition(count, address)


def repartition_by_number(frame: DataFrame, partition: Column, count: int) -> DataFrame:
    """Return the rows in `count` partitions, each row in the partition whose number is in `partition`."""
    return repartition_by_address(frame, address_column(partition, count), count)


@cached({})
def _preimages(count: int) -> tuple[int, ...]:
    """Return, for each of `count` partitions, the least number that Spark's hash partitioning puts into it."""
    numbers = np.empty(count, np.int64)
    missing, start, at_once = np.ones(count, np.bool_), 0, 16 * count
    while missing.any():
        partitions, first = np.unique(_hash_int(np.arange(start, start + at_once)) % count, return_index=True)
        is_new = missing[partitions]
        numbers[partitions[is_new]] = first[is_new] + start
        missing[partitions], start = False, start + at_once
    return tuple(numbers.tolist())


def _hash_int(numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.int32]:
    """Hash ints as Spark does: Murmur3 (Austin Appleby, MurmurHash3_x86_32) of four bytes, with seed 42."""

    def rotated(bits: npt.NDArray[np.uint32], by: int) -> npt.NDArray[np.uint32]:
        return bits << np.uint32(by) | bits >> np.uint32(32 - by)

    mixed = rotated(numbers.astype(np.uint32) * np.uint32(0xCC9E2D51), 15) * np.uint32(0x1B873593)
    mixed = rotated(mixed ^ np.uint32(_SEED), 13) * np.uint32(5) + np.uint32(0xE6546B64)
    mixed ^= np.uint32(4)
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35), (16, 1)):
        mixed = (mixed ^ mixed >> np.uint32(shift)) * np.uint32(factor)
    return mixed.view(np.int32)


_HOME = "_home"
_PARTITION = "_partition"
_range_starts = count_from(0, 1 << 20)
_numbers = count_from()
_TRIES = 5
"""Maximum attempts to spread homes evenly. The first tasks run on the executors that have free cores."""
_WAIT_MS = 25
"""Time in ms that each task waits, doubled with each attempt. Otherwise one warm executor would run all tasks."""
_WAIT_ALL_MS = 1_000


class Homes:
    """Remembers the executors of `count` partitions of one stage's batches. Call `place` from one thread only."""

    def __init__(self, count: int) -> None:
        self._homes: DataFrame | None = None
        self._count, self._executors = count, 0
        self._group = f"slackwater-homes-{next(_numbers)}"

    def place(self, rows: DataFrame, partition: Column, count: int) -> DataFrame:
        """Return the rows of a micro-batch, each partition on the executor that had it in the last batch.

        `partition` is the number of a row's partition, an int from 0 to `count` - 1 that is never null. The number of
        homes is a multiple of `count`. A partition that has several homes is placed at the first one.
        """
        address = address_column(partition * (self._count // count), self._count)
        at_home = repartition_by_address(rows.withColumn(_HOME, address), F.col(_HOME), self._count)
        context: Any = rows.sparkSession.sparkContext._jsc.sc()
        executors = len(context.statusTracker().getExecutorInfos()) - 1  # without the driver
        # A new executor has no homes yet, so the homes are spread again.
        if self._homes is None or executors > self._executors:
            if self._homes is not None:
                self._homes.unpersist()
            self._homes = _spread(rows.sparkSession, self._count, executors)
        self._executors = executors
        # Both sides have the same partitioning, so there is no shuffle; the hint keeps Spark from broadcasting the
        # smaller side.
        return at_home.join(self._homes.select(_HOME).hint("shuffle_hash"), _HOME).drop(_HOME)

    @property
    def are_known(self) -> bool:
        return self._homes is not None

    def run_at_homes(self, work: Callable[[Iterable[int]], Iterator[T]], partitions: Sequence[int]) -> list[T]:
        """Run a function as one task for each of these partitions, and return what the tasks yield. Thread-safe.

        A task runs at its partition's home, or elsewhere if the home has had no free slot for `spark.locality.wait`.
        Before the first batch, a task runs on any executor. `work` gets the partition's number. Tasks of batches start
        first, if Spark knows the pool `MERGE_POOL`. Raises `Py4JError` or `PySparkException` if Spark ended, if
        `cancel` was called, or if the function failed.
        """
        homes, count, context = self._homes, self._count, SparkContext._active_spark_context
        if context is None:
            raise Py4JError("Spark has ended")
        with self._job_group(context):
            if homes is not None and max(partitions) < count:
                return context.runJob(homes.select(_PARTITION).rdd.map(itemgetter(0)), work, partitions)
            return context.runJob(context.parallelize(partitions, len(partitions)), work)

    @contextmanager
    def _job_group(self, context: SparkContext) -> Iterator[None]:
        """Put the jobs of this thread into the job group that `cancel` ends, and into the pool of merges."""
        # `job.without_interrupts` explains why a cancelled task is not interrupted.
        context.setJobGroup(self._group, "beside the batches", interruptOnCancel=False)
        context.setLocalProperty(_POOL, MERGE_POOL)
        try:
            yield
        finally:
            context.setLocalProperty(_POOL, None)  # type: ignore[arg-type]
            jvm: Any = context._jsc
            jvm.clearJobGroup()

    def cancel(self) -> None:
        """Cancel the jobs of `run_at_homes`, including jobs that threads are about to start.

        Does not wait for tasks.
        """
        # A Spark that has ended runs no job.
        with suppress(Py4JError):
            if (context := SparkContext._active_spark_context) is not None:
                jvm: Any = context._jsc
                jvm.sc().cancelJobGroupAndFutureJobs(self._group)

    def close(self) -> None:
        self.cancel()
        if self._homes is not None:
            self._homes.unpersist()
            self._homes = None


def _spread(spark: SparkSession, count: int, executors: int) -> DataFrame:
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
    """Return a DataFrame with one cached row for each partition, and the maximum number of these rows on one executor.

    Each task that computes a row waits for `wait_ms`.
    """
    # Spark caches equal plans once: two stages would share their homes.
    first = next(_range_starts)
    number = (F.col("id") - first).cast("int")
    homes = spark.range(first, first + count).select(
        number.alias(_PARTITION), address_column(number, count).alias(_HOME)
    )
    homes = repartition_by_address(homes, F.col(_HOME), count)
    if wait_ms:
        # Always true, but Spark cannot know.
        homes = homes.where(f"coalesce(reflect('java.lang.Thread', 'sleep', {wait_ms}L), '') != 'slept'")
    homes = homes.cache()
    homes.count()
    return homes, max(_count_by_executor(homes).values(), default=0)


def _count_by_executor(cached: DataFrame) -> Counter[str]:
    context: Any = cached.sparkSession.sparkContext._jsc.sc()
    rdd = cached._jdf.queryExecution().toRdd()
    locations = (context.getPreferredLocs(rdd, part) for part in range(rdd.getNumPartitions()))
    return Counter(seq.head().toString() for seq in locations if not seq.isEmpty())
