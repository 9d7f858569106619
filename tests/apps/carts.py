"""An app for tests: a class written for Spark's `transformWithState`, as it is.

accounts  reads the topic, JSON: what each account books, and when it has rested
  | said
counts    (aggregate) of what the class gives
"""

import os
from collections.abc import Iterator
from typing import Any

import slackwater as sw
from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle
from pyspark.sql.streaming.stateful_processor import ExpiredTimerInfo, TimerValues
from pyspark.sql.types import IntegerType, LongType, StructField, StructType

app = sw.App("carts")
REST_MS = 60_000


class Accounts(StatefulProcessor):
    """What an account has booked; a minute after its last entry, that it rests."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        self._booked = handle.getValueState("booked", "n long, balance long")
        self._recent = handle.getListState("recent", StructType([StructField("amount", LongType())]))
        branch = StructType([StructField("branch", IntegerType())])
        self._branches = handle.getMapState("branches", branch, "n long")

    def handleInputRows(
        self,
        key: Any,
        rows: Iterator[Row],
        timerValues: TimerValues,
    ) -> Iterator[Row]:
        n, balance = self._booked.get() or (0, 0)
        for row in rows:
            n, balance = n + 1, balance + row.amount
            self._recent.put([*list(self._recent.get())[-2:], (row.amount,)])
            known = self._branches.getValue((row.branch,))
            self._branches.updateValue((row.branch,), ((known[0] if known else 0) + 1,))
            last = int(row.at.timestamp() * 1000)
        self._booked.update((n, balance))
        for timer in list(self._handle.listTimers()):
            self._handle.deleteTimer(timer)
        self._handle.registerTimer(last + REST_MS)
        yield Row(account=key[0], what="booked", n=n, balance=balance)

    def handleExpiredTimer(
        self,
        key: Any,
        timerValues: TimerValues,
        expiredTimerInfo: ExpiredTimerInfo,
    ) -> Iterator[Row]:
        booked = self._booked.get()
        assert booked is not None
        self._recent.clear()
        yield Row(account=key[0], what="rests", n=booked[0], balance=booked[1])


@app.stage(
    reads=sw.topic(os.environ.get("LEDGER_TOPIC", "ledger")),
    writes=sw.repartition("said", key="account", partitions=2),
    key="account",
    state=sw.processor(
        Accounts(), "account string, what string, n long, balance long", time_mode="EventTime", order_by="seq"
    ),
    table=sw.table(partitions=2),
    on_error="reject",
)
def accounts(raw: DataFrame) -> DataFrame:
    entry = F.from_json(F.col("value").cast("string"), "seq long, account string, branch int, amount long")
    rows = raw.select(entry.alias("e")).select("e.*").where("account is not null")
    return rows.withColumn("at", F.timestamp_seconds("seq")).withWatermark("at", "10 seconds")


@app.stage(
    reads="said", key=["account", "what"], state=sw.aggregate(n=sw.count(), balance=sw.last("balance", by="n")),
    table=sw.table(partitions=2),
)  # fmt: skip
def counts(rows: DataFrame) -> DataFrame:
    return rows
