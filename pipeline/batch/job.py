"""The Spark job of one micro-batch: from the stage's rows to what its tasks report."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa
from pyspark.sql import functions as F

from ..api.app import Repartition
from ..spark.homes import Homes
from ..state.multi_input import TAG, name_of
from .task import RESULT_SCHEMA, Result, StateTask, Task, ToSink, WriteTask

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_LONG_MIN = -(1 << 63)


def run_write(rows: DataFrame, task: WriteTask) -> tuple[Result, ...]:
    """Write the rows of a stage without state to its channels, without a shuffle."""
    if task.rows:
        return _run(rows.select("*", _target(task).alias("_to")), task)
    targets = [
        _to(channel, lambda column: F.col(f"`{column}`"), count).alias(f"_to_{n}")
        for n, (channel, _, count) in enumerate(task.outputs)
    ]
    return _run(rows.select("*", *targets), task)


def _target(task: WriteTask) -> Column:
    """Where each row goes in the channel that its tag names."""
    columns = []
    for n, (channel, _, count) in enumerate(task.outputs):
        place = _to(channel, lambda column, n=n: F.col(f"`{name_of(n, column)}`"), count)  # type: ignore[misc]
        columns.append(F.when(F.col(TAG) == n, place))
    return F.coalesce(*columns)


def _to(channel: Repartition | ToSink, column: Callable[[str], Column], count: int) -> Column:
    """The Kafka partition of a row. Sinks have one."""
    if isinstance(channel, ToSink):
        return F.lit(0)
    return _partition(F.xxhash64(*map(column, channel.key)), count)


def run_state(rows: DataFrame, task: StateTask, homes: Homes | None = None) -> tuple[Result, ...]:
    """Bring the rows to their state partitions and merge them there, at their `homes` if there are several machines."""
    key = [column.name for column in task.table.key]
    late = task.late_to[1] if task.late_to is not None else ()
    names = dict.fromkeys((*key, *task.state.needs, *task.times.names, *late))
    hashed = rows.select(*(F.col(f"`{name}`") for name in names), F.xxhash64(*key).alias("_hash"))
    count = task.table.partitions
    partition = _partition(F.col("_hash"), count)
    return _run(homes.place(hashed, partition, count) if homes else hashed.repartitionById(count, partition), task)


def _partition(hashed: Column, partitions: int) -> Column:
    """`store.sst.hashing.partition_of`, in Spark."""
    upper = F.shiftrightunsigned(hashed.bitwiseXOR(F.lit(_LONG_MIN)), 32)
    return F.shiftright(upper * F.lit(partitions), 32).cast("int")


def _run(rows: DataFrame, task: Task) -> tuple[Result, ...]:
    def work(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return task(batches)

    collected = rows.mapInArrow(work, RESULT_SCHEMA).collect()
    return tuple(msgspec.msgpack.decode(bytes(row.result), type=Result) for row in collected)
