"""Starts the Spark query of one stage, and runs the Spark job of each micro-batch.

Also defines the configuration of a stage's runner (`StageConfig`).
"""

import dataclasses
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pyarrow as pa
from msgspec.structs import replace
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from ...common import instants
from ...state.event_time import BatchTimes, EventTimeScan, Lateness, due_span_after
from ...state.failing import StateFailed
from ...state.multi_input import INPUT_COLUMN, tagged_name
from ...state.next_version import BatchResult, TaskReport, rows_until
from ...state.records import Position
from ...state.step import Step
from ...store.objects.protocol import ObjectStore
from ...store.objects.s3_settings import S3Access, aws_variables
from ...store.read.cache import SstCache
from ...store.sst import sorted_runs, ttl
from ...store.versions.codec import register_type
from ...store.versions.column_types import quote_for_spark
from ...store.versions.entries import hash_ranges
from ...store.versions.manifest import Manifest
from ..api.stage import Stage
from ..source.data_source import open_stream
from ..source.options import PrivateOptions, ScratchCheckpoint, SourceOptions
from ..source.wake import PlannerFiles
from ..spark.placement import Homes, repartition_by_number
from ..spark.plans import (
    RecordCounts,
    analysed_plan,
    first_column_id,
    needed_columns,
    needed_shares,
    optimised_stream_paths,
)
from ..spark.session import with_settings
from ..spark.worker_resources import WorkerResources
from ..telemetry.spans import Tracing
from ..upkeep.upkeep import StallTriggers
from .pre_aggregation import SHUFFLE_TASKS, Forecast, can_pre_aggregate, pre_aggregate
from .schemas import StageSchemas
from .task import IS_PROBE, RESULT_SCHEMA, OutputTopic, StateTask, Task, WriteTask, output_topic_of
from .task_count import TaskCount
from .transform import apply_to_streams, select_batch_columns, union_tagged
from .turns import Turns

_LONG_MIN = -(1 << 63)
_START_S = 60.0


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """Limits of a stage's batches: size, interval, write stalls, and number of unflushed versions.

    `end_offsets` maps users' topics to the offsets at which reading stops. All other topics are read to their ends.
    """

    max_records: int | None
    trigger_ms: int
    stall_triggers: StallTriggers = field(default_factory=StallTriggers)
    max_unflushed: int = 0
    end_offsets: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StageConfig:
    """Configuration of one stage's runner. Unflushed versions need a spool folder in `resources`."""

    stage: Stage
    schemas: StageSchemas
    resources: WorkerResources
    limits: BatchLimits
    checkpoint: ScratchCheckpoint
    planners: PlannerFiles
    turns: Turns | None = None
    """Turns of the runner's stages; None if batches start at once."""
    compaction_threads: int = 1
    """Number of concurrent merges, in the background; 0 if another process merges."""
    prefetch: bool = False
    rescue: Callable[["Batch", Exception], BatchResult] | None = None
    """Computes a failed batch without its bad records, or raises its error; None if the stage rejects no records."""
    reject_too_large: Callable[["Batch", BatchResult], BatchResult] | None = None
    """Moves records that are too large for a sink's topic to the table of rejected records; None to do nothing."""
    published_topics: Mapping[str, str] = field(default_factory=dict)
    retry_rejected: Callable[["Batch"], BatchResult] | None = None
    input_spools: Mapping[str, str] = field(default_factory=dict)
    tracing: Tracing | None = None


@dataclass(slots=True)
class StageJob:
    """Computes the batches of one stage. Writes SSTs to `store`, which may be a spool."""

    config: StageConfig
    store: ObjectStore
    cache: SstCache
    homes: Homes | None
    """Assignment of hash ranges to executors; None if all tasks run on this machine."""
    access: Callable[[], S3Access | None]
    """Returns S3 credentials for the workers; called for each batch because credentials may be temporary."""
    stopping: Callable[[], bool]
    query: Future[StreamingQuery] | None = None
    """Future of the stage's streaming query, which counts the records read; None to count no records."""
    _forecast: Forecast = field(default_factory=Forecast)
    _task_count: TaskCount = field(default_factory=TaskCount)

    def batch_times(self, base: Manifest) -> BatchTimes:
        now_ms, by = instants.now_ms(), self.config.schemas.due_by
        due = due_span_after(base.event_time, by, self.config.planners.clock_ms(now_ms)) if by is not None else None
        return BatchTimes(ttl.batch_clock_ms(base, now_ms), now_ms + self.config.stage.event_time.ahead_ms, due)

    def compute_batch(
        self, rows: DataFrame, base: Manifest, after: Mapping[str, Position], times: BatchTimes
    ) -> BatchResult:
        """Compute a batch. If it fails and the stage rejects records, compute it without the bad records."""
        counts = self._record_counter(base, after)
        counts_before = counts.read() if counts is not None else {}
        batch, set_aside = Batch(self, base, after, times), self.config.reject_too_large
        try:
            results = self._compute_rows(rows, base, times, records=batch.num_records, few_keys=self._forecast.few_keys)
        except Exception as error:
            if self.config.rescue is None or self.stopping():
                raise
            written = self.config.rescue(batch, error)
        else:
            self._forecast.learn(results)
            self._task_count.learn(batch.num_records, results)
            written = BatchResult(results)
            if counts is not None:
                read = {name: count - counts_before[name] for name, count in counts.read().items()}
                written = BatchResult(results, read=read)
        return set_aside(batch, written) if set_aside is not None else written

    def _record_counter(self, base: Manifest, after: Mapping[str, Position]) -> RecordCounts | None:
        users = any(not base.inputs[name].upstream and end.offsets for name, end in after.items())
        return RecordCounts.from_query(self.query.result(_START_S)) if users and self.query is not None else None

    def _compute_rows(
        self,
        rows: DataFrame,
        base: Manifest,
        times: BatchTimes,
        *,
        records: int | None = None,
        dry_run: bool = False,
        few_keys: bool | None = None,
    ) -> tuple[TaskReport, ...]:
        config, shape, stage = self.config, self.config.schemas, self.config.stage
        targets = tuple(output_topic_of(output, base, config.published_topics) for output in stage.emits_to)
        writer, version = base.writer, base.version + 1
        seen = EventTimeScan(shape.watermarks, times.bound_ms)
        if shape.bound is None or base.table is None:
            return run_write_task(
                rows, WriteTask(config.resources, writer, version, targets, shape.output_schemas, times=seen)
            )
        late_by, late = shape.lateness_columns, stage.late_output
        # How many rows fall due is unknown.
        is_due_pending = times.due is not None and times.due.pending
        tasks = self._task_count.choose(base.table.ranges, None if is_due_pending else records)
        task = StateTask(
            dataclasses.replace(config.resources, s3=self.access()),
            writer,
            version,
            targets,
            Step(
                base.table,
                shape.bound,
                version,
                times.clock_ms,
                Lateness(late_by, base.watermark_ms, times.bound_ms) if late_by else None,
                times.due,
                max_reported=stage.max_rejected if config.rescue is not None else None,
            ),
            base.ssts,
            dry_run,
            {name: base.side_tables[name] for name in shape.bound.side_tables},
            late_output=(output_topic_of(late, base, config.published_topics), shape.late_columns)
            if late and not dry_run
            else None,
            times=seen,
        )
        # A check need not run where the SSTs are cached.
        return run_state_task(rows, _with_tasks(task, tasks), None if dry_run else self.homes, few_keys)


@dataclass(frozen=True, slots=True)
class Batch:
    """A micro-batch on top of the version `base`. Can be computed over all of its rows, or over some of them."""

    job: StageJob
    base: Manifest
    after: Mapping[str, Position]
    times: BatchTimes

    @property
    def num_records(self) -> int | None:
        """Number of records that the batch reads, or rows of channels; None if it is unknown."""
        counts = [rows_until(self.base.inputs[name], end) for name, end in self.after.items()]
        numbers = [count for count in counts if count is not None]
        return sum(numbers) if counts and len(numbers) == len(counts) else None

    def compute(self, rows: DataFrame) -> tuple[TaskReport, ...]:
        return self.job._compute_rows(rows, self.base, self.times, records=self.num_records)

    def check(self, rows: DataFrame) -> None:
        """Compute the batch over the given rows without writing anything. Raises the errors of `compute`."""
        due = dataclasses.replace(self.times.due, pending=False) if self.times.due is not None else None
        times = dataclasses.replace(self.times, due=due)
        self.job._compute_rows(rows, self.base, times, records=self.num_records, dry_run=True)


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
    rows: DataFrame, task: StateTask, homes: Homes | None = None, few_keys: bool | None = None
) -> tuple[TaskReport, ...]:
    """Shuffle rows to the hash ranges of the task's table and merge them there.

    With several machines, `homes` places the tasks. If stored rows may fall due, each non-empty hash range gets a probe
    row, so that a task looks for due rows there. If `few_keys` is not None and the task allows it, rows are
    pre-aggregated before the shuffle.
    """
    if few_keys is not None and can_pre_aggregate(task, rows.schema):
        if few_keys and homes is None:
            task = _with_tasks(task, 1)
        count = task.step.table.ranges
        with with_settings(rows.sparkSession, {SHUFFLE_TASKS: str(count)}):
            parts, task = pre_aggregate(rows, task)
            return _run(_place_rows(parts, task, homes, alone=count == 1 and homes is None), task)
    late = task.late_output[1] if task.late_output is not None else ()
    hashed = select_batch_columns(
        rows, [column.name for column in task.step.table.key], task.step.state.needed_columns, task.times, late
    )
    return _run(_place_rows(hashed, task, homes), task)


def _with_tasks(task: StateTask, count: int) -> StateTask:
    step = dataclasses.replace(task.step, table=replace(task.step.table, tasks=count))
    return dataclasses.replace(task, step=step)


def _place_rows(hashed: DataFrame, task: StateTask, homes: Homes | None, *, alone: bool = False) -> DataFrame:
    count = task.step.table.ranges
    if task.step.due is not None and task.step.due.pending and task.ssts:
        partitions = sorted_runs.by_partition(task.ssts, count)
        hashes = ", ".join(f"({hash_ranges.hash_bounds(number, count)[1]}L)" for number in partitions)
        marks = hashed.sparkSession.sql(f"SELECT * FROM VALUES {hashes} AS marks(_hash)")
        columns = [
            F.col("_hash") if field.name == "_hash" else F.lit(None).cast(field.dataType).alias(field.name)
            for field in hashed.schema
        ]
        hashed = hashed.withColumn(IS_PROBE, F.lit(False)).union(marks.select(*columns, F.lit(True)))
    if alone:
        return hashed.coalesce(1)
    partition = _state_partition(F.col("_hash"), count)
    return homes.place(hashed, partition, count) if homes else repartition_by_number(hashed, partition, count)


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
    # Adaptive execution runs the part before a shuffle as a job of its own: a bad record would fail there, before it
    # could be rejected, and a small batch would take longer.
    "spark.sql.adaptive.streaming.stateless.enabled": "false",
    "spark.sql.adaptive.enabled": "false",
    # Number of keys in Spark's hash table, for aggregates whose values cannot be updated in place, before it sorts.
    "spark.sql.objectHashAggregate.sortBased.fallbackThreshold": "50000",
}
"""Spark settings with which a stage's query is started. The query and the jobs of its batches keep them."""


def start_query(
    spark: SparkSession,
    config: StageConfig,
    head: Manifest,
    on_batch: Callable[[DataFrame, int], None],
    *,
    counts: Path,
) -> StreamingQuery:
    """Start a stage's query at the positions of `head`. Raises `Refused` if the function's result is unusable.

    `on_batch` gets each batch's rows and number. Sources count their store requests in files of the folder `counts`.
    """
    stage, resources = config.stage, config.resources
    private = PrivateOptions(resources.kafka, resources.s3_settings, aws_variables(os.environ))
    streams: dict[str, DataFrame] = {}
    for name in stage.inputs:
        at, is_first = head.inputs[name], not streams
        # Snapshot requests come by the first topic; a stage that reads channels gets them by markers.
        asks = is_first and not stage.channels
        options = SourceOptions(
            input=name,
            topic=at.topic,
            topic_id="" if at.upstream else at.topic_id,
            upstream=at.upstream,
            patience_s=resources.patience_s,
            max_records=config.limits.max_records,
            tasks=spark.sparkContext.defaultParallelism,
            in_any_order=stage.state is not None and stage.state.emission != "function" and not stage.late_output,
            trigger_ms=config.limits.trigger_ms,
            app=head.app,
            stage=stage.name,
            store=resources.store,
            spool=config.input_spools.get(at.topic, ""),
            counts_folder=str(counts) if at.upstream else "",
            planner_folder=str(config.planners.folder),
            starts_woken_batches=is_first and config.schemas.due_by is not None,
            starts_snapshot_batches=asks,
            handled_snapshots=tuple(head.recorded) if asks else (),
            end_offsets=config.limits.end_offsets.get(at.topic),
        )
        streams[name] = open_stream(spark, options, private, config.schemas.inputs[name])
    applied = apply_to_streams(stage, streams)
    ends = ((name, head.inputs[name]) for name in applied.sources)  # an input that is read twice occurs twice
    positions = [Position(name, at.offsets, at.version, at.rows_passed, (), at.watermark_ms) for name, at in ends]
    config.checkpoint.write(head.version, positions)
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
    """Wrap `on_batch`: if a task of the batch fails, Spark cancels the other tasks without an interrupt.

    A task that is interrupted while it waits for a Python worker assumes that the worker daemon is dead, and Spark then
    kills the daemon with the workers of all other stages (Spark 4.3, `PythonWorkerFactory`). So one stage's poison
    record would fail the batches of all stages. A task cancelled without an interrupt ends at its next row, or, after
    four seconds, together with its worker.
    """

    def called(rows: DataFrame, batch: int) -> None:
        rows.sparkSession.sparkContext.setLocalProperty("spark.job.interruptOnCancel", "false")
        on_batch(rows, batch)

    return called
