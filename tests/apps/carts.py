"""A test app that uses a StatefulProcessor written for Spark's `transformWithState`, unchanged.

accounts    reads the topic, JSON: bookings of each account, emitted when the account has rested
  |  said
counts      of the emitted rows, by a function written for `applyInPandasWithState`
"""

import os
from collections.abc import Iterator
from typing import Any

import pandas as pd
import slackwater as sw
from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle
from pyspark.sql.streaming.state import GroupState
from pyspark.sql.streaming.stateful_processor import ExpiredTimerInfo, TimerValues
from pyspark.sql.types import IntegerType, LongType, StructField, StructType

app = sw.App("carts")
REST_MS = 60_000
SAID = "account string, what string, n long, balance long, said_ms long"


class Accounts(StatefulProcessor):
    """Sum of an account's bookings; emits a row one minute after the last entry."""

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
        yield self._said(key, "booked", timerValues)

    def handleExpiredTimer(
        self,
        key: Any,
        timerValues: TimerValues,
        expiredTimerInfo: ExpiredTimerInfo,
    ) -> Iterator[Row]:
        self._recent.clear()
        yield self._said(key, "rests", timerValues)

    def _said(self, key: Any, what: str, times: TimerValues) -> Row:
        n, balance = self._booked.get() or (0, 0)
        return Row(account=key[0], what=what, n=n, balance=balance, said_ms=times.getCurrentProcessingTimeInMs())


@app.stage(
    reads=sw.topic(os.environ.get("LEDGER_TOPIC", "ledger")),
    writes=sw.repartition("said", key="account", partitions=2),
    key="account",
    state=sw.processor(Accounts(), SAID, time_mode="EventTime", order_by="seq"),
    table=sw.table(partitions=2),
    on_error="reject",
)
def accounts(raw: DataFrame) -> DataFrame:
    entry = F.from_json(F.col("value").cast("string"), "seq long, account string, branch int, amount long")
    rows = raw.select(entry.alias("e")).select("e.*").where("account is not null")
    return rows.withColumn("at", F.timestamp_seconds("seq")).withWatermark("at", "10 seconds")


def tally(key: Any, frames: Iterator[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
    n, balance = state.getOption or (0, 0)
    for frame in frames:
        n, balance = n + len(frame), int(frame["balance"].iloc[-1])
    state.update((n, balance))
    yield pd.DataFrame({"n": [n]})


@app.stage(
    reads="said",
    key=["account", "what"],
    state=sw.pandas_state(tally, "n long", "n long, balance long", order_by="said_ms"),
    table=sw.table(partitions=2),
)
def counts(rows: DataFrame) -> DataFrame:
    return rows
