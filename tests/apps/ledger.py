"""A test app: a chain and a fan-out, with every kind of state. Its topic and faults come from the environment.

entries   reads the topic, JSON
  | by-account --------.
accounts  (update)    latest  (upsert)
  | by-branch
branches  (aggregate)
"""

import ctypes
import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import slackwater as sw
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

VARIANT = os.environ.get("LEDGER_VARIANT", "")
BETWEEN = VARIANT in ("migrated, with a stage between", "migrated, under other names")
MIGRATED = VARIANT == "migrated" or BETWEEN
RENAMED = VARIANT == "migrated, under other names"
ENTRY = "seq long, account string, branch int, amount long"

if os.environ.get("SABOTAGE"):
    import sabotage  # noqa: F401  it does what it does when it is imported

app = sw.App("ledger")


def wait(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        (Path(os.environ["SLACKWATER_CACHE"]).parent / "held").touch()
        time.sleep(60)  # a task that the test gives up
        yield batch


BY_ACCOUNT = sw.repartition("by-account", key="branch" if VARIANT == "wrong key column" else "account", partitions=3)


@app.stage(
    reads=sw.topic(os.environ.get("LEDGER_TOPIC", "ledger")),
    writes=[BY_ACCOUNT, sw.sink(os.environ["ALERTS_TOPIC"], key="account")] if VARIANT == "publishes" else BY_ACCOUNT,
)
def entries(raw: DataFrame) -> DataFrame:
    entry = F.from_json(F.col("value").cast("string"), ENTRY)
    columns = ["e.*", "at"] if VARIANT == "latest expires" else ["e.*"]
    rows = raw.select(entry.alias("e"), F.col("timestamp").alias("at")).select(*columns).where("account is not null")
    if VARIANT == "streaming aggregation":
        return rows.groupBy("account").agg(F.count("*").alias("n"))
    if VARIANT == "two uses of the stream":
        return rows.union(rows)
    if VARIANT == "whole batches":
        return rows.mapInArrow(lambda batches: batches, ENTRY)
    if VARIANT == "waits in a task":
        return rows.mapInArrow(wait, ENTRY)
    if VARIANT == "fails on a row":
        return rows.withColumn("branch", F.raise_error(F.lit("the branch is closed")).cast("int"))
    return rows


def book(rows: pa.Table, state: pa.Table) -> tuple[pa.Table, pa.Table]:
    if VARIANT == "crashes":
        ctypes.string_at(0)
    key = rows["_key"].to_numpy()
    num = pc.add(pc.fill_null(state["n"], 0), np.bincount(key))
    added = rows.group_by("_key", use_threads=False).aggregate([("amount", "sum")])["amount_sum"]
    balance = pc.add(pc.fill_null(state["balance"], 0), added)
    told = rows.select([name for name in rows.column_names if name != "at"])
    if VARIANT == "books double":
        told = told.set_column(told.column_names.index("amount"), "amount", pc.multiply(rows["amount"], 2))
    after = pa.table({"n": num, "balance": balance})
    if MIGRATED:
        latest = rows.group_by("_key", use_threads=False).aggregate([("seq", "max")])["seq_max"]
        after = after.append_column("newest", pc.max_element_wise(state["newest"], latest))
    return after, told


@app.stage(
    reads="by-account",
    key="branch" if VARIANT == "changed key" else None,
    state=sw.update(
        book,
        state="n long, balance long, newest long"
        if MIGRATED
        else "n long, balance double"
        if VARIANT == "changed value type"
        else "n long, balance long",
        emits="seq long, account string, branch int, amount long",
        order_by="seq",
    ),
    writes=sw.repartition("by-branch", key="branch", partitions=2),
    table=sw.table(partitions=3, defaults={"newest": -1} if MIGRATED else None),
    name="books" if RENAMED else "accounts",
)
def accounts(entries: DataFrame) -> DataFrame:
    return entries


if VARIANT != "without latest":
    EXPIRES = {"ttl": "30 minutes", "ttl_by": "at"} if VARIANT == "latest expires" else {}

    @app.stage(reads="by-account", state=sw.upsert(by="seq"), table=sw.table(partitions=2, **EXPIRES))
    def latest(entries: DataFrame) -> DataFrame:
        return entries


if BETWEEN:

    @app.stage(reads="by-branch", writes=sw.repartition("checked", key="branch", partitions=2))
    def checks(entries: DataFrame) -> DataFrame:
        return entries


TOTALS = {
    "n": sw.count(),
    "total": sw.sum("amount"),
    "average": sw.mean("amount"),
    "low": sw.min("amount"),
    "high": sw.max("account"),
    "opened_by": sw.first("account", by="seq"),
    "touched_by": sw.last("account", by="seq"),
}
if MIGRATED:
    del TOTALS["high"]
    TOTALS = {"amounts": TOTALS.pop("total"), "mean": TOTALS.pop("average"), **TOTALS, "since": sw.count()}


@app.stage(
    reads="checked" if BETWEEN else "by-branch",
    state=sw.aggregate(**TOTALS),
    table=sw.table(partitions=2),
    name="offices" if RENAMED else "branches",
)
def branches(entries: DataFrame) -> DataFrame:
    return entries
