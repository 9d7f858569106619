"""The Spark job of one micro-batch: from the stage's rows to what its tasks report, also where records are left out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import msgspec
import pyarrow as pa
from pyspark.sql import functions as F

from ...fold.failing import RECORD, StateFailed
from ...fold.multi_input import TAG, name_of
from ...fold.next_version import Result
from ...fold.records import Position
from ...store.objects.protocol import ObjectStore
from ...store.read.cache import SstCache
from ...store.sst import sorted_runs
from ...store.versions.manifest import Aside, Manifest, Sst
from ..api.topic import Repartition
from ..spark.homes import Homes
from .pre_aggregation import Expected, added_up, can_add_up, settings
from .task import MARK, RESULT_SCHEMA, StateTask, Task, ToSink, WriteTask

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_LONG_MIN = -(1 << 63)


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch that is to be computed, all of it or in part.

    Attributes:
        base: The version that it is built on.
        after: Where it ends on each input, by declared name.
        begin: Its job over its own rows, added up before the shuffle where that is worth it: what the tasks report.
        compute: Its job over rows of the stage's function, none of them added up before.
        check: The same, but nothing is written; raises what computing raises.
        store, cache: Where its SSTs are, on the driver.
        stopping: Whether the stage is to stop, so that nothing more need be tried.
    """

    base: Manifest
    after: Mapping[str, Position]
    begin: Callable[[DataFrame], tuple[Result, ...]]
    compute: Callable[[DataFrame], tuple[Result, ...]]
    check: Callable[[DataFrame], object]
    store: ObjectStore
    cache: SstCache
    stopping: Callable[[], bool]


@dataclass(frozen=True, slots=True)
class Computed:
    """What a batch's tasks report, and the tables beside the stage's own that it changed."""

    results: tuple[Result, ...] = ()
    aside: Mapping[str, Aside] = field(default_factory=dict)


class Rejecter(Protocol):
    """Computes a batch that failed without the records that are to blame."""

    def rescue(self, batch: Batch, error: Exception) -> Computed:
        """The batch without the records for which it fails, which are in the table of those that were rejected.

        Raises:
            Refused: More are rejected than may be, or their topic does not take them.
            Exception: `error` itself, where no record is to blame; or as computing and reading the batch does.
        """
        ...

    def retry(self, batch: Batch) -> Computed:
        """The rejected records that wait, put through as a batch of their own: those that pass are marked as retried.

        Raises:
            Refused: The program does not read what they are of. Others as computing does.
        """
        ...


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


def run_state(
    rows: DataFrame, task: StateTask, homes: Homes | None = None, expected: Expected | None = None
) -> tuple[Result, ...]:
    """Bring the rows to their state partitions and merge them there, at their `homes` if there are several machines.

    Where rows of the table may fall due, each state partition that has any gets a row that is only a mark. Where it is
    `expected` that it is worth it and the task allows it, rows are added up before they are brought anywhere.
    """
    if expected is not None and can_add_up(task, rows.schema):
        count = 1 if expected.few_keys and homes is None else task.table.partitions
        with settings(rows.sparkSession, count):
            parts, task = added_up(rows, task)
            return _run(_placed(parts, task, homes, alone=count == 1), task)
    key = [column.name for column in task.table.key]
    late = task.late_to[1] if task.late_to is not None else ()
    names = dict.fromkeys((*key, *task.step.state.needs, *task.times.names, *late))
    numbered = [RECORD] if RECORD in rows.columns else []
    hashed = rows.select(*(F.col(f"`{name}`") for name in (*names, *numbered)), F.xxhash64(*key).alias("_hash"))
    return _run(_placed(hashed, task, homes), task)


def _placed(hashed: DataFrame, task: StateTask, homes: Homes | None, *, alone: bool = False) -> DataFrame:
    """The rows and the marks, each state partition in one task; `alone`, all in one, in which the rows are already."""
    count = task.table.partitions
    if task.step.due is not None and task.step.due.pending and task.ssts:
        hashed = _marked(hashed, task.ssts, count)
    if alone:
        return hashed.coalesce(1)
    partition = _partition(F.col("_hash"), count)
    return homes.place(hashed, partition, count) if homes else hashed.repartitionById(count, partition)


def _marked(rows: DataFrame, ssts: Sequence[Sst], partitions: int) -> DataFrame:
    """The rows, and a mark for each state partition in which there are others already."""
    places = ", ".join(
        f"({sorted_runs.bounds(each, partitions)[1]}L)" for each in sorted_runs.by_partition(ssts, partitions)
    )
    marks = rows.sparkSession.sql(f"SELECT * FROM VALUES {places} AS marks(_hash)")
    columns = [
        F.col("_hash") if field.name == "_hash" else F.lit(None).cast(field.dataType).alias(field.name)
        for field in rows.schema
    ]
    return rows.withColumn(MARK, F.lit(False)).union(marks.select(*columns, F.lit(True)))


def _partition(hashed: Column, partitions: int) -> Column:
    """`store.sst.hashing.partition_of`, in Spark."""
    upper = F.shiftrightunsigned(hashed.bitwiseXOR(F.lit(_LONG_MIN)), 32)
    return F.shiftright(upper * F.lit(partitions), 32).cast("int")


def _run(rows: DataFrame, task: Task) -> tuple[Result, ...]:
    def work(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return task(batches)

    collected = rows.mapInArrow(work, RESULT_SCHEMA).collect()
    results = tuple(msgspec.msgpack.decode(bytes(row.result), type=Result) for row in collected)
    if failed := [each.failed for each in results if each.failed is not None]:
        raise StateFailed.of(failed)
    return results
