"""A test app whose tables get new columns.

entries   reads the topic, JSON; publishes all of it
  | by-branch
branches  (aggregate)
  | changes
changes   (aggregate) of the rows that a stage with state sends

latest    (upsert) also reads the topic
accounts  (update) also reads the topic
"""

import os

import pyarrow as pa
import pyarrow.compute as pc
import slackwater as sw
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

MORE = os.environ.get("LEDGER_VARIANT", "") == "more"
ENTRY = "seq long, account string, branch int, amount long"

app = sw.App("counts")


def parsed(raw: DataFrame) -> DataFrame:
    return raw.select(F.from_json(F.col("value").cast("string"), ENTRY).alias("e")).select("e.*")


@app.stage(
    reads=sw.topic(os.environ.get("LEDGER_TOPIC", "ledger")),
    writes=[
        sw.repartition("by-branch", key="branch", partitions=2),
        sw.sink(os.environ.get("CHANGED_TOPIC", "changed"), key="account"),
    ],
)
def entries(raw: DataFrame) -> DataFrame:
    return parsed(raw).where("branch is not null")


TOTALS = {"n": sw.count(), "total": sw.sum("amount")}
ADDED = {
    "high": sw.max("account"),
    "average": sw.mean("amount"),
    "opened_by": sw.first("account", by="seq"),
    "touched_by": sw.last("account", by="seq"),
    "entries": sw.count("amount"),
}


@app.stage(
    reads="by-branch",
    writes=sw.repartition("changes", key="branch", partitions=2),
    state=sw.aggregate(**TOTALS, **(ADDED if MORE else {})),
    table=sw.table(partitions=2),
)
def branches(rows: DataFrame) -> DataFrame:
    return rows


UPDATES = {"updates": sw.count(), "most": sw.max("n")}
AGAIN = {"again": sw.count(), "sum": sw.sum("n")}


@app.stage(
    reads="changes",
    state=sw.aggregate(**UPDATES, **(AGAIN if MORE else {})),
    table=sw.table(partitions=2),
)
def changes(rows: DataFrame) -> DataFrame:
    return rows


@app.stage(
    reads=sw.topic(os.environ.get("LEDGER_TOPIC", "ledger")),
    key="account",
    state=sw.upsert(by="seq"),
    table=sw.table(partitions=2),
)
def latest(raw: DataFrame) -> DataFrame:
    return parsed(raw).where("account is not null").select("seq", "account", "amount", *(["branch"] if MORE else []))


def tally(rows: pa.Table, state: pa.Table) -> pa.Table:
    amounts = pa.table(
        {"key": rows["_key"], "n": rows["amount"], "squares": pc.multiply(rows["amount"], rows["amount"])}
    )
    each = amounts.group_by("key", use_threads=False).aggregate([("n", "count"), ("squares", "sum")])
    made = {"n": pc.add(pc.fill_null(state["n"], 0), each["n_count"])}
    if MORE:
        made["squares"] = pc.add(pc.fill_null(state["squares"], 0), each["squares_sum"])
    return pa.table(made)


@app.stage(
    reads=sw.topic(os.environ.get("LEDGER_TOPIC", "ledger")),
    key="account",
    state=sw.update(tally, state="n long, squares long" if MORE else "n long"),
    table=sw.table(partitions=2),
)
def accounts(raw: DataFrame) -> DataFrame:
    return parsed(raw).where("account is not null").select("account", "amount")
