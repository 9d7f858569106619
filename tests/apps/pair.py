"""A test app: two stages with state, with rules in a separate file that `--py-files` sends to the tasks.

accounts  reads the topic, JSON
  | by-branch
branches
"""

import os

import pair_rules
import slackwater as sw
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

app = sw.App("pair")


@app.stage(
    reads=sw.topic(os.environ.get("LEDGER_TOPIC", "ledger")),
    key="account",
    state=sw.update(
        pair_rules.book,
        state="n long, balance long",
        emits="account string, branch int, amount long",
    ),
    writes=sw.repartition("by-branch", key="branch", partitions=2),
    table=sw.table(partitions=2),
)
def accounts(raw: DataFrame) -> DataFrame:
    entry = F.from_json(F.col("value").cast("string"), "account string, branch int, amount long")
    return raw.select(entry.alias("e")).select("e.*").where("account is not null")


@app.stage(
    reads="by-branch",
    state=sw.aggregate(n=sw.count(), total=sw.sum("amount")),
    table=sw.table(partitions=2),
)
def branches(entries: DataFrame) -> DataFrame:
    return entries
