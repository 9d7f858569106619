"""A test app that publishes every record that it reads; its topics come from the environment."""

import os

import slackwater as sw
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

app = sw.App("publishing")


@app.stage(
    reads=sw.topic(os.environ.get("LEDGER_TOPIC", "ledger")),
    writes=[sw.repartition("by-branch", "branch"), sw.sink(os.environ.get("ALERTS_TOPIC", "alerts"), key="account")],
)
def entries(raw: DataFrame) -> DataFrame:
    entry = F.from_json(F.col("value").cast("string"), "seq long, account string, branch int, amount long")
    return raw.select(entry.alias("e")).select("e.*")


@app.stage(reads="by-branch", state=sw.aggregate(n=sw.count()))
def branches(rows: DataFrame) -> DataFrame:
    return rows
