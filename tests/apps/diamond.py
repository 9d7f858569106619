"""A test app: a diamond, whose last stage reads two channels. Its topic and faults come from the environment.

             moves    reads the topic, JSON
           | by-account
   .-------+--------.
debits          deposits   (update: each reads half of the moves)
   | debited        | credited
   '-------+--------'
        branches  (update over both)
"""

import os

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import slackwater as sw
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

VARIANT = os.environ.get("LEDGER_VARIANT", "")
ENTRY = "seq long, account string, branch int, amount long"

if os.environ.get("SABOTAGE"):
    import sabotage  # noqa: F401  it does what it does when it is imported

TOPIC = sw.topic(os.environ.get("LEDGER_TOPIC", "ledger"))

app = sw.App("diamond")


def entries(raw: DataFrame) -> DataFrame:
    entry = F.from_json(F.col("value").cast("string"), ENTRY)
    return raw.select(entry.alias("e")).select("e.*").where("account is not null")


@app.stage(
    reads=TOPIC,
    writes=sw.repartition("by-account", key="account", partitions=3),
)
def moves(raw: DataFrame) -> DataFrame:
    return entries(raw)


def book(rows: pa.Table, state: pa.Table) -> tuple[pa.Table, pa.Table]:
    key = rows["_key"].to_numpy()
    num = pc.add(pc.fill_null(state["n"], 0), np.bincount(key))
    added = rows.group_by("_key", use_threads=False).aggregate([("amount", "sum")])["amount_sum"]
    return pa.table({"n": num, "balance": pc.add(pc.fill_null(state["balance"], 0), added)}), rows


BOOK = sw.update(book, state="n long, balance long", emits="seq long, branch int, amount long")


@app.stage(
    reads="by-account",
    state=BOOK,
    writes=sw.repartition("debited", key="branch", partitions=2),
    table=sw.table(partitions=3),
)
def debits(moves: DataFrame) -> DataFrame:
    return moves.where("amount < 0")


@app.stage(
    reads="by-account",
    state=BOOK,
    writes=sw.repartition("credited", key="account" if VARIANT == "other key" else "branch", partitions=3),
    table=sw.table(partitions=2),
)
def deposits(moves: DataFrame) -> DataFrame:
    return moves.where("amount >= 0")


def settle(debited: pa.Table, credited: pa.Table, state: pa.Table) -> pa.Table:
    def plus(name: str, rows: pa.Table, values: np.ndarray | None) -> pa.ChunkedArray:
        added = np.bincount(rows["_key"].to_numpy(), values, minlength=state.num_rows).astype(np.int64)
        return pc.add(pc.fill_null(state[name], 0), pa.array(added))

    return pa.table(
        {
            "debits": plus("debits", debited, None),
            "credits": plus("credits", credited, None),
            "debited": plus("debited", debited, debited["amount"].to_numpy()),
            "credited": plus("credited", credited, credited["amount"].to_numpy()),
        }
    )


@app.stage(
    reads=("debited", TOPIC if VARIANT == "topic beside channel" else "credited"),
    key="branch" if VARIANT == "topic beside channel" else None,
    state=sw.update(settle, state="debits long, credits long, debited long, credited long", order_by="seq"),
    table=sw.table(partitions=2),
)
def branches(debited: DataFrame, credited: DataFrame) -> tuple[DataFrame, DataFrame] | DataFrame:
    if VARIANT == "topic beside channel":
        return debited, entries(credited).where("amount >= 0").select("seq", "branch", "amount")
    if VARIANT == "stream-stream join":
        return debited.join(credited, "branch")
    if VARIANT == "an input unused":
        return debited
    if VARIANT == "other type":
        return debited, credited.withColumn("branch", F.col("branch").cast("string"))
    if VARIANT == "swapped":
        return credited, debited
    return debited, credited
