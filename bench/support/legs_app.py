"""The program for the benchmark of bisect: number of flights, and worst delay, by leg."""

import slackwater as sw
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

app = sw.App("bench")


@app.stage(
    reads=sw.topic("bench-finding"),
    key="leg",
    state=sw.aggregate(flights=sw.count(), worst=sw.max("delay")),
    table=sw.table(partitions=4),
)
def legs(messages: DataFrame) -> DataFrame:
    """Take the leg from the record's key and the delay from its value."""
    return messages.select(
        F.col("key").cast("string").alias("leg"), F.col("value").cast("string").cast("long").alias("delay")
    )
