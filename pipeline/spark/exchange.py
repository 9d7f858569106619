"""Moves rows to the partition of a given number, which Spark does itself from 4.1 on.

Spark 4.0 can only partition by a hash. There, the number of a partition is replaced by a number that hashes to it.
"""

from typing import Any

from cachetools import cached
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

_BY_ITSELF = hasattr(DataFrame, "repartitionById")
_SEED = 42
"""Seed of Spark's hash partitioning."""


def addressed(spark: SparkSession, partition: Column, count: int) -> Column:
    """Return the column to partition by, for `exchanged`. `partition` is an int from 0 to `count` - 1, never null."""
    if _BY_ITSELF:
        return partition
    return F.element_at(F.array(*map(F.lit, _preimages(spark, count))), partition + 1)


def exchanged(frame: DataFrame, address: Column, count: int) -> DataFrame:
    """Return the rows in `count` partitions; `address` is the result of `addressed`, or a column with it."""
    return frame.repartitionById(count, address) if _BY_ITSELF else frame.repartition(count, address)


def to_partitions(frame: DataFrame, partition: Column, count: int) -> DataFrame:
    """Return the rows in `count` partitions, each in the one of its number: `addressed` and `exchanged`."""
    return exchanged(frame, addressed(frame.sparkSession, partition, count), count)


@cached({}, key=lambda _spark, count: count)
def _preimages(spark: SparkSession, count: int) -> tuple[int, ...]:
    """Return, for each partition, the smallest number that Spark's hash partitioning maps to it."""
    jvm: Any = spark._jvm
    hashed, numbers, number = jvm.org.apache.spark.unsafe.hash.Murmur3_x86_32.hashInt, dict[int, int](), 0
    while len(numbers) < count:
        numbers.setdefault(hashed(number, _SEED) % count, number)
        number += 1
    return tuple(numbers[partition] for partition in range(count))
