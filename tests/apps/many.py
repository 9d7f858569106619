"""Twelve stages beside each other over one topic, named by the alphabet: who sorts first must not run first."""

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
