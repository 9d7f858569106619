"""A test app in which records fail, either in a Spark expression or in a state's function.

moves     reads the topic, JSON, and casts an amount that is text; a sink gets its rows with their records' headers
  | by-account
accounts  refuses moves that would overdraw an account
"""

import os

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import slackwater as sw
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

app = sw.App("poison")


@app.stage(
    reads=sw.topic(os.environ.get("LEDGER_TOPIC", "ledger"), include_headers=True),
    writes=[
        sw.repartition("by-account", key="account", partitions=2),
        sw.sink(os.environ.get("LEDGER_CARRIED", "carried"), key="account", headers="headers"),
    ],
    on_error="reject",
    rejects=os.environ.get("LEDGER_REJECTS") or None,
    max_rejected=20,
)
def moves(raw: DataFrame) -> DataFrame:
    entry = F.from_json(F.col("value").cast("string"), "account string, amount string")
    cast = "try_cast" if os.environ.get("LEDGER_VARIANT") == "tolerant" else "cast"
    moves = raw.select(entry.alias("e"), "headers")
    moves = moves.selectExpr("e.account", f"{cast}(e.amount AS long) AS amount", "headers")
    return moves.where("account is not null")


def book(rows: pa.Table, state: pa.Table) -> pa.Table:
    num = pc.add(pc.fill_null(state["n"], 0), np.bincount(rows["_key"].to_numpy()))
    added = rows.group_by("_key", use_threads=False).aggregate([("amount", "sum")])["amount_sum"]
    balance = pc.add(pc.fill_null(state["balance"], 0), pc.fill_null(added, 0))
    if (least := pc.min(balance).as_py()) < 0:
        raise ValueError(f"an account would stand at {least}")
    return pa.table({"n": num, "balance": balance})


@app.stage(
    reads="by-account",
    state=sw.update(book, state="n long, balance long"),
    table=sw.table(partitions=2),
    on_error="reject",
)
def accounts(entries: DataFrame) -> DataFrame:
    return entries
