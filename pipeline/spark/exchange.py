"""Rows brought to the partition whose number they say: what Spark does by itself from 4.1 on.

Spark 4.0 can only hash. There a row says, instead of its partition's number, a number that Spark hashes to that.
"""

from typing import Any

from cachetools import cached
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

_BY_ITSELF = hasattr(DataFrame, "repartitionById")
_SEED = 42
"""Spark's of the hash by which it distributes rows."""


def addressed(spark: SparkSession, partition: Column, count: int) -> Column:
    """What a row has to say to come to a partition, an int from 0 to `count` - 1 that is never null."""
    if _BY_ITSELF:
        return partition
    return F.element_at(F.array(*map(F.lit, _preimages(spark, count))), partition + 1)


def exchanged(frame: DataFrame, address: Column, count: int) -> DataFrame:
    """The rows in `count` partitions; `address` is what `addressed` gave, or a column that has it."""
    return frame.repartitionById(count, address) if _BY_ITSELF else frame.repartition(count, address)


def to_partitions(frame: DataFrame, partition: Column, count: int) -> DataFrame:
    """The rows in `count` partitions, each row in that of the number: `addressed` and `exchanged`."""
    return exchanged(frame, addressed(frame.sparkSession, partition, count), count)


@cached({}, key=lambda _spark, count: count)
def _preimages(spark: SparkSession, count: int) -> tuple[int, ...]:
    """For each partition, the smallest number that Spark's hash partitioning brings there."""
    jvm: Any = spark._jvm
    hashed, found, number = jvm.org.apache.spark.unsafe.hash.Murmur3_x86_32.hashInt, dict[int, int](), 0
    while len(found) < count:
        found.setdefault(hashed(number, _SEED) % count, number)
        number += 1
    return tuple(found[partition] for partition in range(count))
