"""A plain Spark query, which does not use slackwater: totals by customer. `slackwater attach` follows it.

Orders come from Spark's rate source, so no other input is needed:

    python examples/spark_totals.py checkpoints/totals
    slackwater attach checkpoints/totals --app shop

From a certain order on, amounts are in the wrong unit: a fault to look for. The query prints how long each batch took.
"""

import argparse
import json
import math
import time

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


def main() -> None:
    """Run the query until it is stopped, or for some seconds."""
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("checkpoint", help="the query's checkpoint")
    options.add_argument("--orders-per-second", type=int, default=10_000)
    options.add_argument("--customers", type=int, default=100_000)
    options.add_argument("--wrong-from", type=int, default=300_000, help="the first order with a wrong amount")
    options.add_argument("--every", default="1 second", help="a batch so often")
    options.add_argument("--seconds", type=float, default=3_600, help="for so long from its first batch on")
    options.add_argument("--provider", choices=("rocksdb", "hdfs"), default="rocksdb")
    said = options.parse_args()

    builder = SparkSession.builder.appName("totals").master("local[2]")
    for name, value in {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "4",
        "spark.log.level": "ERROR",
    }.items():
        builder = builder.config(name, value)
    if said.provider == "rocksdb":
        builder = builder.config("spark.sql.streaming.stateStore.providerClass", ROCKSDB)
        builder = builder.config("spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled", "true")
    spark = builder.getOrCreate()

    orders = spark.readStream.format("rate").option("rowsPerSecond", said.orders_per_second).load()
    cents = F.col("value") % 97 + 1
    orders = orders.select(
        (F.col("value") % said.customers).alias("customer"),
        F.when(F.col("value") == said.wrong_from, cents * 10_000_000).otherwise(cents).alias("cents"),
    )
    totals = orders.groupBy("customer").agg(
        F.count("*").alias("orders"), F.sum("cents").alias("cents"), F.max("cents").alias("largest")
    )
    query = (
        totals.writeStream.outputMode("update")
        .format("noop")
        .option("checkpointLocation", said.checkpoint)
        .trigger(processingTime=said.every)
        .start()
    )
    ends, shown = math.inf, -1
    while time.monotonic() < ends and not query.awaitTermination(1):
        for batch in query.recentProgress:
            if batch["batchId"] > shown:
                ends = min(ends, time.monotonic() + said.seconds)
                shown = batch["batchId"]
                took_ms = batch["durationMs"]["triggerExecution"]
                print(json.dumps({"batch": shown, "orders": batch["numInputRows"], "took_ms": took_ms}), flush=True)
    query.stop()
    spark.stop()


if __name__ == "__main__":
    main()
