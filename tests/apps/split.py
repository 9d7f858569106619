"""A test app whose stages send different rows to each of their outputs. Its topic comes from the environment.

moves     reads the topic, JSON; one pass over it gives two DataFrames
  | debited    | credited: other columns, another key
paid           earned   (aggregate)
  | large, small: rows that its update emits, in two outputs
bands   (update over both)
"""

import os

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import slackwater as sw
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

ENTRY = "seq long, account string, branch int, amount long"

app = sw.App("split")


@app.stage(
    reads=sw.topic(os.environ.get("LEDGER_TOPIC", "ledger")),
    writes=(
        sw.repartition("debited", key="account", partitions=3),
        sw.repartition("credited", key="branch", partitions=2),
    ),
    on_error="reject",
)
def moves(raw: DataFrame) -> tuple[DataFrame, DataFrame]:
    entry = F.from_json(F.col("value").cast("string"), ENTRY, {"mode": "FAILFAST"})
    entries = raw.select(entry.alias("e")).select("e.*")
    return (
        # Two fields of one JSON value: Spark computes their common part before both.
        entries.where("amount < 0 and account is not null").select("seq", "account", "amount"),
        entries.where("amount >= 0").selectExpr(
            "branch", "named_struct('amount', amount, 'seq', seq) paid", "array(account) who"
        ),
    )


def book(rows: pa.Table, state: pa.Table) -> tuple[pa.Table, pa.Table, pa.Table]:
    key = rows["_key"].to_numpy()
    num = pc.add(pc.fill_null(state["n"], 0), np.bincount(key))
    added = rows.group_by("_key", use_threads=False).aggregate([("amount", "sum")])["amount_sum"]
    is_large = pc.less(rows["amount"], -50)
    after = pa.table({"n": num, "total": pc.add(pc.fill_null(state["total"], 0), added)})
    return after, rows.filter(is_large), rows.filter(pc.invert(is_large))


@app.stage(
    reads="debited",
    state=sw.update(
        book, state="n long, total long", emits=("account string, amount long", "seq long, account string")
    ),
    writes=(
        sw.repartition("large", key="account", partitions=2),
        sw.repartition("small", key="account", partitions=2),
    ),
    table=sw.table(partitions=2),
)
def paid(moves: DataFrame) -> DataFrame:
    return moves


@app.stage(
    reads="credited",
    state=sw.aggregate(n=sw.count(), total=sw.sum("amount"), seq=sw.max("seq")),
    table=sw.table(partitions=2),
)
def earned(moves: DataFrame) -> DataFrame:
    return moves.selectExpr("branch", "paid.amount", "paid.seq")


def band(large: pa.Table, small: pa.Table, state: pa.Table) -> pa.Table:
    def plus(name: str, rows: pa.Table, values: np.ndarray | None = None) -> pa.ChunkedArray:
        added = np.bincount(rows["_key"].to_numpy(), values, minlength=state.num_rows).astype(np.int64)
        return pc.add(pc.fill_null(state[name], 0), pa.array(added))

    return pa.table(
        {
            "large": plus("large", large),
            "lost": plus("lost", large, large["amount"].to_numpy()),
            "small": plus("small", small),
        }
    )


@app.stage(
    reads=("large", "small"),
    state=sw.update(band, state="large long, lost long, small long"),
    table=sw.table(partitions=2),
)
def bands(large: DataFrame, small: DataFrame) -> tuple[DataFrame, DataFrame]:
    return large, small
