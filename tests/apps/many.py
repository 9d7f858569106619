"""A test app: twelve stages over one topic, named a to l. Alphabetical order must not decide which one runs first."""

import os

import slackwater as sw
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

app = sw.App("many")


def entries(raw: DataFrame) -> DataFrame:
    entry = F.from_json(F.col("value").cast("string"), "seq long, account string, branch int, amount long")
    return raw.select(entry.alias("e")).select("e.*")


for letter in "abcdefghijkl":
    app.stage(
        name=f"{letter}_counts",
        reads=sw.topic(os.environ["LEDGER_TOPIC"]),
        key="account",
        state=sw.aggregate(n=sw.count()),
        table=sw.table(partitions=2),
    )(entries)
