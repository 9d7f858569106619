"""Placement of a batch's tasks: rows reach their state partitions, and partitions stay on their executors."""

import numpy as np
import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from slackwater.pipeline.spark.placement import Homes, _cached, _hash_int, _preimages

pytestmark = pytest.mark.spark


def test_integers_are_hashed_as_by_spark_and_one_hashes_to_each_partition(spark: SparkSession) -> None:
    numbers = np.array([*range(300), 2**31 - 1])
    rows = spark.createDataFrame([(number,) for number in numbers.tolist()], "id int").select(F.hash("id")).collect()
    assert _hash_int(numbers).tolist() == [row[0] for row in rows]
    for count in (1, 2, 7, 512):
        assert (_hash_int(np.array(_preimages(count))) % count).tolist() == list(range(count))
    assert _preimages(2) == (2, 0)


def test_partitions_run_on_their_preferred_executor_with_all_their_rows(one_spark: None) -> None:
    spark = SparkSession.getActiveSession()
    assert spark is not None
    kept = set(spark.sparkContext._jsc.getPersistentRDDs())  # type: ignore[union-attr]
    homes = Homes(6)
    for count in (3, 6, 6, 1):
        rows = spark.range(1000).withColumn("name", F.concat(F.lit("r"), "id"))
        placed = homes.place(rows, (F.col("id") % count).cast("int"), count)
        assert placed.columns == ["id", "name"]
        found = placed.withColumn("at", F.spark_partition_id()).collect()
        first = 6 // count
        assert sorted((row.id, row.name, row.at) for row in found) == [
            (n, f"r{n}", n % count * first) for n in range(1000)
        ]
        rdd = placed._jdf.queryExecution().toRdd()
        places = [spark.sparkContext._jsc.sc().getPreferredLocs(rdd, n).toString() for n in range(6)]  # type: ignore[union-attr]
        assert all("executor_" in place for place in places), places
        plan = placed._jdf.queryExecution().toString()
        # The rows are shuffled in every batch, the homes once before the first.
        assert plan.partition("== Physical Plan ==")[2].partition("InMemoryRelation")[0].count("Exchange") <= 2
    # What makes tasks take equally long takes no home away.
    waiting, most = _cached(spark, 5, 1)
    assert (sorted(row[0] for row in waiting.collect()), most) == ([0, 1, 2, 3, 4], 5)
    waiting.unpersist()
    assert homes.run_at_homes(lambda partitions: iter(partitions), [1, 4]) == [1, 4]
    homes.close()
    with pytest.raises(Py4JJavaError, match="cancelled"):
        homes.run_at_homes(lambda partitions: iter(partitions), [1])
    # Before a first batch, partitions have no home.
    assert Homes(5).run_at_homes(lambda partitions: iter(partitions), [3]) == [3]
    # Other tests of this session may have kept some.
    assert set(spark.sparkContext._jsc.getPersistentRDDs()) <= kept  # type: ignore[union-attr]
