"""Spark as the engine of stages: starts their streaming queries, and runs the Spark job of each micro-batch."""

import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import cast

import msgspec
import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from ...state.failing import StateFailed
from ...state.multi_input import INPUT_COLUMN, tagged_name
from ...state.next_version import TaskReport
from ...store.objects.s3_settings import aws_variables
from ...store.sst import sorted_runs
from ...store.versions.codec import register_type
from ...store.versions.column_types import quote_for_spark
from ...store.versions.entries import hash_ranges
from ...store.versions.manifest import Manifest
from ..api.app import App
from ..source.data_source import open_stream
from ..source.options import PrivateOptions
from ..spark.placement import Homes, repartition_by_number
from ..spark.plans import (
    RecordCounts,
    analysed_plan,
    first_column_id,
    needed_columns,
    needed_shares,
    optimised_stream_paths,
)
from ..spark.row_width import NO_BYTE_LIMIT, is_wide_row_error, with_width_check
from ..spark.session import with_settings
from .job import Engine, Query, StageConfig, start_positions
from .pre_aggregation import SHUFFLE_TASKS, can_pre_aggregate, pre_aggregate
from .schemas import StageSchemas, derive_schemas
from .task import IS_PROBE, RESULT_SCHEMA, OutputTopic, StateTask, Task, WriteTask
from .transform import apply_to_streams, select_batch_columns, union_tagged

_LONG_MIN = -(1 << 63)


class SparkEngine(Engine):
    """Implements `Engine` with a Spark session."""

    def __init__(self, spark: SparkSession) -> None:
        self.spark = spark
        self._wide: set[str] = set()
        """Stages with wide rows in this run (`row_width`)."""

    @property
    def master(self) -> str:
        return self.spark.sparkContext.master or ""

    @property
    def version(self) -> str:
        return self.spark.version

    @property
    def cores(self) -> int:
        return self.spark.sparkContext.defaultParallelism

    def derive_schemas(self, app: App) -> dict[str, StageSchemas]:
        return derive_schemas(app, self.spark)

    def start_query(
        self, config: StageConfig, head: Manifest, on_batch: Callable[[DataFrame, int], None], counts: Path
    ) -> StreamingQuery:
        return start_query(self.spark, config, head, on_batch, counts=counts)

    def run_tasks(
        self, rows: DataFrame, task: Task, homes: Homes | None = None, few_keys: bool | None = None
    ) -> tuple[TaskReport, ...]:
        if isinstance(task, StateTask):
            stage = task.resources.stage
            if stage not in self._wide:
                try:
                    return run_state_task(rows, task, homes, few_keys, checks_width=True)
                except Exception as error:
                    if not is_wide_row_error(error):
                        raise
                    self._wide.add(stage)
            return run_state_task(rows, task, homes, few_keys)
        assert isinstance(task, WriteTask)  # noqa: S101  the other kind
        return run_write_task(rows, task)

    def count_records(self, query: Query) -> RecordCounts | None:
        return RecordCounts.from_query(cast("StreamingQuery", query))


def run_write_task(rows: DataFrame, task: WriteTask) -> tuple[TaskReport, ...]:
    outputs = tuple(enumerate(task.outputs))
    if task.row_schemas:
        tagged = (F.when(F.col(INPUT_COLUMN) == n, _kafka_partition(output, n)) for n, output in outputs)
        return _run(rows.select("*", F.coalesce(*tagged).alias("_to")), task)
    return _run(rows.select("*", *(_kafka_partition(output).alias(f"_to_{n}") for n, output in outputs)), task)


def _kafka_partition(target: OutputTopic, tag: int | None = None) -> Column:
    if not target.key:
        return F.lit(0)
    names = target.key if tag is None else (tagged_name(tag, column) for column in target.key)
    return _state_partition(F.xxhash64(*map(quote_for_spark, names)), target.partitions)


def run_state_task(
    rows: DataFrame,
    task: StateTask,
    homes: Homes | None = None,
    few_keys: bool | None = None,
    *,
    checks_width: bool = False,
) -> tuple[TaskReport, ...]:
    """Shuffle rows to the hash ranges of the task's table and merge them there.

    With several machines, `homes` places the tasks. If stored rows may fall due, each non-empty hash range gets a probe
    row, so that a task looks for due rows there. If `few_keys` is not None and the task allows it, rows are
    pre-aggregated before the shuffle. With `checks_width`, a wide row may fail the job (`row_width`).
    """
    if few_keys is not None and can_pre_aggregate(task, rows.schema):
        if few_keys and homes is None:
            task = task.with_tasks(1)
        count = task.step.table.ranges
        with with_settings(rows.sparkSession, {SHUFFLE_TASKS: str(count)}):
            parts, task = pre_aggregate(rows, task)
            if count == 1 and homes is None:
                return _run(_with_probes(parts, task).coalesce(1), task)
            return _run_placed(parts, task, homes, checks_width=checks_width)
    late = task.late_output[1] if task.late_output is not None else ()
    hashed = select_batch_columns(
        rows, [column.name for column in task.step.table.key], task.step.state.needed_columns, task.times, late
    )
    return _run_placed(hashed, task, homes, checks_width=checks_width)


def _with_probes(hashed: DataFrame, task: StateTask) -> DataFrame:
    if task.step.due is not None and task.step.due.pending and task.ssts:
        partitions = sorted_runs.by_partition(task.ssts, task.step.table.ranges)
        hashes = ", ".join(f"({hash_ranges.hash_bounds(number, task.step.table.ranges)[1]}L)" for number in partitions)
        marks = hashed.sparkSession.sql(f"SELECT * FROM VALUES {hashes} AS marks(_hash)")
        columns = [
            F.col("_hash") if field.name == "_hash" else F.lit(None).cast(field.dataType).alias(field.name)
            for field in hashed.schema
        ]
        return hashed.withColumn(IS_PROBE, F.lit(False)).union(marks.select(*columns, F.lit(True)))
    return hashed


def _run_placed(
    hashed: DataFrame, task: StateTask, homes: Homes | None, *, checks_width: bool
) -> tuple[TaskReport, ...]:
    count, hashed = task.step.table.ranges, _with_probes(hashed, task)
    partition = _state_partition(F.col("_hash"), count)
    checked = with_width_check(partition, hashed) if checks_width else None
    number = partition if checked is None else checked
    placed = homes.place(hashed, number, count) if homes else repartition_by_number(hashed, number, count)
    with with_settings(hashed.sparkSession, {} if checked is None else NO_BYTE_LIMIT):
        return _run(placed, task)


def _state_partition(hashed: Column, partitions: int) -> Column:
    """Return a Spark column with the number of the hash range that contains each hash."""
    upper = F.shiftrightunsigned(hashed.bitwiseXOR(F.lit(_LONG_MIN)), 32)
    return F.shiftright(upper * F.lit(partitions), 32).cast("int")


def _run(rows: DataFrame, task: Task) -> tuple[TaskReport, ...]:
    names = rows.columns

    def work(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return task(batch.rename_columns(names) for batch in batches)

    if any("." in name or "`" in name for name in names):
        # Spark looks columns up by name without quoting.
        rows = rows.toDF(*(f"c{number}" for number in range(len(names))))
    collected = rows.mapInArrow(work, RESULT_SCHEMA).collect()
    results = tuple(msgspec.msgpack.decode(bytes(row.result), type=register_type(TaskReport)) for row in collected)
    if failed := [result.failed for result in results if result.failed is not None]:
        raise StateFailed.from_reports(failed)
    return results


QUERY_SETTINGS = {
    # Adaptive execution runs the part before a shuffle as a separate job. A bad record would fail that job before it
    # could be rejected, and a small batch would take longer.
    "spark.sql.adaptive.streaming.stateless.enabled": "false",
    "spark.sql.adaptive.enabled": "false",
    # Number of keys at which Spark sorts rows instead of using its hash table, for aggregates whose values cannot be
    # updated in place.
    "spark.sql.objectHashAggregate.sortBased.fallbackThreshold": "50000",
}
"""Spark settings that are set when a stage's query starts. The query and the jobs of its batches keep them."""


def start_query(
    spark: SparkSession,
    config: StageConfig,
    head: Manifest,
    on_batch: Callable[[DataFrame, int], None],
    *,
    counts: Path,
) -> StreamingQuery:
    """Start a stage's query at the positions of `head`.

    Raises `Refused` if the user's function returns an unusable result.

    `on_batch` gets each batch's rows and number. Sources count their store requests in files of the folder `counts`.
    """
    stage, resources = config.stage, config.resources
    private = PrivateOptions(resources.kafka, resources.s3_settings, aws_variables(os.environ))
    streams: dict[str, DataFrame] = {}
    for options in config.source_options(head, spark.sparkContext.defaultParallelism, counts):
        streams[options.input] = open_stream(spark, options, private, config.schemas.inputs[options.input])
    applied = apply_to_streams(stage, streams)
    config.checkpoint.write(head.version, start_positions(head, applied.sources))  # an input read twice occurs twice
    rows = union_tagged(applied.frames, config.schemas.key)
    used = optimised_stream_paths(rows)
    columns, shares = needed_columns(used), needed_shares(used) if len(used) == len(streams) else {}
    ids = {name: first_column_id(analysed_plan(stream)) for name, stream in streams.items()}
    config.planners.write_needed_columns(
        stage.name, {name: columns[id_] for name, id_ in ids.items() if id_ in columns}
    )
    config.planners.write_key_shares(stage.name, {name: shares[id_] for name, id_ in ids.items() if id_ in shares})
    with with_settings(spark, QUERY_SETTINGS):
        return (
            # A session may run several apps, and query names have to be unique.
            rows.writeStream.queryName(f"{resources.app}/{stage.name}")
            .foreachBatch(without_interrupts(on_batch))
            .option("checkpointLocation", str(config.checkpoint.folder))
            .start()
        )


def without_interrupts(on_batch: Callable[[DataFrame, int], None]) -> Callable[[DataFrame, int], None]:
    """Wrap `on_batch` so that Spark cancels the tasks of a failed batch without interrupting their threads.

    If a task is interrupted while it waits for a Python worker, it assumes that the worker daemon is dead. Spark then
    kills the daemon, together with the workers of all other stages (Spark 4.3, `PythonWorkerFactory`). So one stage's
    poison record would fail the batches of all stages. A task that is cancelled without an interrupt ends at its next
    row, or, after four seconds, together with its worker.
    """

    def called(rows: DataFrame, batch: int) -> None:
        rows.sparkSession.sparkContext.setLocalProperty("spark.job.interruptOnCancel", "false")
        on_batch(rows, batch)

    return called
