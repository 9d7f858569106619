"""A test app: one stage sends rows to another; each record specifies the size of its row.

events  reads the topic, JSON
  | by-account
sizes
"""

import os
import random

import pyarrow as pa
import slackwater as sw
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

app = sw.App("large")


def text_of(rows: pa.Table, state: pa.Table) -> tuple[pa.Table, pa.Table]:
    sizes = rows["amount"].to_pylist()
    texts = [random.Random(size).randbytes(size // 2).hex() for size in sizes]
    return state, pa.table({"account": rows["account"], "text": texts})


@app.stage(
    reads=sw.topic(os.environ.get("LEDGER_TOPIC", "ledger")),
    key="account",
    state=sw.update(text_of, state="n long", emits="account string, text string"),
    writes=sw.repartition("by-account", key="account", partitions=2),
    table=sw.table(partitions=2),
)
def events(raw: DataFrame) -> DataFrame:
    return raw.select(F.from_json(F.col("value").cast("string"), "account string, amount long").alias("e")).select(
        "e.*"
    )


@app.stage(reads="by-account", key="account", state=sw.aggregate(n=sw.count()), table=sw.table(partitions=2))
def sizes(rows: DataFrame) -> DataFrame:
    return rows
