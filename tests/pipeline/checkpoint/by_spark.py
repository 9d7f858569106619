"""The state of a query as Spark's own reader gives it."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, Row, SparkSession
from slackwater.pipeline.checkpoint.checkpoint import Checkpoint
from slackwater.pipeline.checkpoint.tables import StateTable

State = dict[tuple[Any, ...], tuple[Any, ...]]


def by_spark(spark: SparkSession, folder: Path, checkpoint: Checkpoint, table: StateTable, batch: int) -> State:
    """A table at the end of a batch, by key: read where the query has it, put flat without the code under test."""
    session = spark.newSession()
    session.conf.set("spark.sql.streaming.stateStore.checkpointFormatVersion", checkpoint.files.format_of(batch))
    options = {"path": str(folder), "batchId": batch, "operatorId": table.operator, "storeName": table.store}
    frame = session.read.format("statestore").options(**options, **dict(table.options)).load()
    found = [_flat(table, frame, row) for row in frame.collect()]
    return {row[: len(table.key)]: row[len(table.key) :] for row in found}


def _flat(table: StateTable, frame: DataFrame, row: Row) -> tuple[Any, ...]:
    values = []
    for part in table.parts:
        value: Any = row[frame.columns.index(part.within)] if part.path else 0
        for number in part.place:
            value = value[number] if value is not None else None
        if part.name in ("due_at", "expires_at") and isinstance(value, int):
            value = datetime.fromtimestamp(value / (1e6 if part.path[-1] == "expiresAtMicros" else 1e3), UTC)
        values.append(plain(value))
    return tuple(values)


def plain(value: Any) -> Any:
    """A value of Spark's or of Arrow's as one that can be compared, and be a key."""
    if isinstance(value, datetime):
        return value.astimezone(UTC)
    if isinstance(value, Row | list | tuple):
        return tuple(map(plain, value))
    if isinstance(value, dict):
        return tuple(map(plain, value.values()))
    return bytes(value) if isinstance(value, bytearray) else value
