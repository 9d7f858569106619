"""A plain Spark query whose `transformWithState` keeps seven tables: each kind of state variable, and timers.

`python -m tests.operations.attach.seven_tables CHECKPOINT` runs it until it is killed, over rows of
Spark's rate source.
"""

import argparse
import os
import sys

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from tests.operations.from_spark.checkpoint.queries import PROVIDERS, Everything


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("checkpoint", help="the query's checkpoint")
    options.add_argument("--rows-per-second", type=int, default=20)
    options.add_argument("--keys", type=int, default=200)
    options.add_argument("--every", default="2 seconds", help="time between two batches")
    said = options.parse_args()

    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.appName("seven tables").master("local[2]")
    settings = {"spark.ui.enabled": "false", "spark.log.level": "ERROR", "spark.sql.shuffle.partitions": "2"}
    for name, value in (PROVIDERS["changelog"] | settings).items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    number = F.col("value")
    rows = spark.readStream.format("rate").option("rowsPerSecond", said.rows_per_second).load()
    rows = rows.select(
        F.concat(F.lit("k"), number % said.keys).alias("k"),
        (number % 97).alias("v"),
        (number % 5).alias("o"),
        F.col("timestamp").alias("t"),
    )
    states = rows.groupBy("k").transformWithStateInPandas(Everything(), "k string, n long", "Update", "ProcessingTime")
    writer = states.writeStream.outputMode("update").format("noop").option("checkpointLocation", said.checkpoint)
    writer.trigger(processingTime=said.every).start().awaitTermination()


if __name__ == "__main__":
    main()
