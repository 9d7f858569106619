"""What one stage's batches compute: the Spark job of each, from the stage's rows to what its tasks report.

Also where records are left out; and what is known of a stage before its first batch.
"""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field

import msgspec
import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from ...common import instants
from ...common.learned import learned
from ...state.event_time import BatchTimes, Lateness, Times, due_after
from ...state.failing import StateFailed
from ...state.multi_input import TAG, name_of
from ...state.next_version import TaskReport, Written
from ...state.records import Position
from ...state.step import Step
from ...store.objects.protocol import ObjectStore
from ...store.objects.s3.settings import S3Access
from ...store.read.cache import SstCache
from ...store.sst import sorted_runs, ttl
from ...store.versions.column_types import in_backticks
from ...store.versions.manifest import Manifest
from ..api.stage import Stage
from ..source.checkpoint import ScratchCheckpoint
from ..source.wake import PlannerFiles
from ..spark.exchange import to_partitions
from ..spark.places import Places
from ..spark.plans import RecordCounts
from ..spark.session import with_settings
from ..spark.task_placement import Homes
from ..telemetry.spans import Tracing
from ..upkeep.write_stall import Triggers
from .pre_aggregation import SHUFFLE_TASKS, Forecast, added_up, can_add_up
from .schemas import Shape
from .state_task import MARK, StateTask
from .task import RESULT_SCHEMA, OutputTopic, Task, WriteTask, output_topic_of
from .transform import for_state

_LONG_MIN = -(1 << 63)
_START_S = 60.0
"""For a query to have started, from its first batch on."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How large and how frequent a stage's batches are, and how far they may run ahead of the store.

    `until` is where users' topics end for it, by name: of the others it reads whatever comes.
    """

    max_records: int | None
    trigger_ms: int
    stall: Triggers = field(default_factory=Triggers)
    max_unflushed: int = 0
    until: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StageConfig:
    """What a runner knows of one stage before it starts. With `max_unflushed`, `places` has a spool."""

    stage: Stage
    shape: Shape
    places: Places
    limits: Limits
    checkpoint: ScratchCheckpoint
    planners: PlannerFiles
    compaction_threads: int = 1
    """Merges that go on at once beside the batches; 0 for none, when another process merges."""
    prefetch: bool = False
    """Whether SSTs are fetched beside the batches; for tasks that run on this machine."""
    rescue: Callable[["Batch", Exception], Written] | None = None
    """Computes a batch that failed without the records to blame, or raises its error; None where none are rejected."""
    set_aside: Callable[["Batch", Written], Written] | None = None
    """Puts records that no sink's topic takes into the table of rejected ones; None where no sink rejects any."""
    published: Mapping[str, str] = field(default_factory=dict)
    """The topics of sinks that are not published as they are declared."""
    retry: Callable[["Batch"], Written] | None = None
    """Puts the rejected records that wait through, as a batch of their own."""
    input_spools: Mapping[str, str] = field(default_factory=dict)
    """By the topics that are archived, the folder in which readers leave what they have fetched."""
    tracing: Tracing | None = None
    """What has a span of each batch; None for nothing."""


@dataclass(slots=True)
class StageJob:
    """Computes the batches of one stage, whose SSTs are in the `store`."""

    config: StageConfig
    store: ObjectStore
    cache: SstCache
    homes: Homes | None
    """Where state partitions are, if there are several machines."""
    access: Callable[[], S3Access | None]
    """How workers get to the store, asked before each batch: credentials may be temporary."""
    stopping: Callable[[], bool]
    query: Future[StreamingQuery] | None = None
    """The stage's query once it has started, which counts what is read; its first batch may begin before. None where
    nobody counts."""
    _forecast: Forecast = field(default_factory=Forecast)

    def times(self, base: Manifest) -> BatchTimes:
        """The times of the batch that follows a version, if it starts now."""
        now_ms, by = instants.now_ms(), self.config.shape.due_by
        due = due_after(base.event_time, by, self.config.planners.clock_ms(now_ms)) if by is not None else None
        return BatchTimes(ttl.batch_clock_ms(base, now_ms), now_ms + self.config.stage.event_time.ahead_ms, due)

    def computed(self, rows: DataFrame, base: Manifest, after: Mapping[str, Position], times: BatchTimes) -> Written:
        """What that batch gives; where it fails and the stage rejects, without the records that are to blame."""
        counts = self._counts(base, after)
        before = counts.now() if counts is not None else {}
        batch, set_aside = Batch(self, base, after, times), self.config.set_aside
        try:
            results = self._compute(rows, base, times, few_keys=self._forecast.few_keys)
        except Exception as error:
            if self.config.rescue is None or self.stopping():
                raise
            written = self.config.rescue(batch, error)
        else:
            self._forecast.learn(results)
            written = Written(results)
            if counts is not None:
                read = {name: count - before[name] for name, count in counts.now().items()}
                written = Written(results, read=read)
        return set_aside(batch, written) if set_aside is not None else written

    def _counts(self, base: Manifest, after: Mapping[str, Position]) -> RecordCounts | None:
        """What counts the records of users' topics that a batch reads; None where it reads none."""
        users = any(not base.inputs[name].upstream and end.offsets for name, end in after.items())
        return RecordCounts.of(self.query.result(_START_S)) if users and self.query is not None else None

    def _compute(
        self,
        rows: DataFrame,
        base: Manifest,
        times: BatchTimes,
        *,
        only_checks: bool = False,
        few_keys: bool | None = None,
    ) -> tuple[TaskReport, ...]:
        config, shape, stage = self.config, self.config.shape, self.config.stage
        targets = tuple(output_topic_of(one, base, config.published) for one in stage.emits_to)
        writer, version = base.writer, base.version + 1
        seen = Times(shape.watermarks, times.bound_ms)
        if shape.bound is None or base.table is None:
            return run_write(rows, WriteTask(config.places, writer, version, targets, shape.rows, times=seen))
        late_by, late = shape.late_by, stage.late
        task = StateTask(
            dataclasses.replace(config.places, s3=self.access()),
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
                tells=stage.max_rejected if config.rescue is not None else None,
            ),
            base.ssts,
            only_checks,
            late_to=(output_topic_of(late, base, config.published), shape.late) if late and not only_checks else None,
            times=seen,
        )
        # What is only checked need not be where its SSTs are.
        return run_state(rows, task, None if only_checks else self.homes, few_keys)


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch on the version `base`, to be computed whole or in part."""

    job: StageJob
    base: Manifest
    after: Mapping[str, Position]
    """Where it ends on each input, by declared name."""
    times: BatchTimes

    def compute(self, rows: DataFrame) -> tuple[TaskReport, ...]:
        """Its job over rows of the stage's function, none of them added up before: what the tasks report."""
        return self.job._compute(rows, self.base, self.times)

    def check(self, rows: DataFrame) -> None:
        """The same, but nothing is written; raises what computing raises."""
        due = dataclasses.replace(self.times.due, pending=False) if self.times.due is not None else None
        self.job._compute(rows, self.base, dataclasses.replace(self.times, due=due), only_checks=True)


def run_write(rows: DataFrame, task: WriteTask) -> tuple[TaskReport, ...]:
    """Write the rows of a stage without state to its channels, without a shuffle."""
    outputs = tuple(enumerate(task.outputs))
    if task.rows:
        tagged = (F.when(F.col(TAG) == n, _kafka_partition(one, n)) for n, one in outputs)
        return _run(rows.select("*", F.coalesce(*tagged).alias("_to")), task)
    return _run(rows.select("*", *(_kafka_partition(one).alias(f"_to_{n}") for n, one in outputs)), task)


def _kafka_partition(target: OutputTopic, tag: int | None = None) -> Column:
    """That of a row; of the rows that have a tag, if there is one. Sinks have one partition."""
    if not target.key:
        return F.lit(0)
    names = target.key if tag is None else (name_of(tag, column) for column in target.key)
    return _partition(F.xxhash64(*map(in_backticks, names)), target.partitions)


def run_state(
    rows: DataFrame, task: StateTask, homes: Homes | None = None, few_keys: bool | None = None
) -> tuple[TaskReport, ...]:
    """Bring the rows to their state partitions and merge them there, at their `homes` if there are several machines.

    Where rows of the table may fall due, each state partition that has any gets a row that is only a mark. Where it is
    worth it (`Forecast.few_keys`) and the task allows it, rows are added up before.
    """
    table = task.step.table
    if few_keys is not None and can_add_up(task, rows.schema):
        count = 1 if few_keys and homes is None else table.partitions
        with with_settings(rows.sparkSession, {SHUFFLE_TASKS: str(count)}):
            parts, task = added_up(rows, task)
            return _run(_placed(parts, task, homes, alone=count == 1), task)
    late = task.late_to[1] if task.late_to is not None else ()
    hashed = for_state(rows, [column.name for column in table.key], task.step.state.needs, task.times, late)
    return _run(_placed(hashed, task, homes), task)


def _placed(hashed: DataFrame, task: StateTask, homes: Homes | None, *, alone: bool = False) -> DataFrame:
    """The rows and the marks, each state partition in one task; `alone`, all in one, in which the rows are already."""
    count = task.step.table.partitions
    if task.step.due is not None and task.step.due.pending and task.ssts:
        there = sorted_runs.by_partition(task.ssts, count)
        hashes = ", ".join(f"({sorted_runs.bounds(each, count)[1]}L)" for each in there)
        marks = hashed.sparkSession.sql(f"SELECT * FROM VALUES {hashes} AS marks(_hash)")
        columns = [
            F.col("_hash") if field.name == "_hash" else F.lit(None).cast(field.dataType).alias(field.name)
            for field in hashed.schema
        ]
        hashed = hashed.withColumn(MARK, F.lit(False)).union(marks.select(*columns, F.lit(True)))
    if alone:
        return hashed.coalesce(1)
    partition = _partition(F.col("_hash"), count)
    return homes.place(hashed, partition, count) if homes else to_partitions(hashed, partition, count)


def _partition(hashed: Column, partitions: int) -> Column:
    """`store.sst.hashing.partition_of`, in Spark."""
    upper = F.shiftrightunsigned(hashed.bitwiseXOR(F.lit(_LONG_MIN)), 32)
    return F.shiftright(upper * F.lit(partitions), 32).cast("int")


def _run(rows: DataFrame, task: Task) -> tuple[TaskReport, ...]:
    names = rows.columns

    def work(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return task(batch.rename_columns(names) for batch in batches)

    if any("." in name or "`" in name for name in names):
        # Spark looks for the columns by their names, without backticks.
        rows = rows.toDF(*(f"c{number}" for number in range(len(names))))
    collected = rows.mapInArrow(work, RESULT_SCHEMA).collect()
    results = tuple(msgspec.msgpack.decode(bytes(row.result), type=learned(TaskReport)) for row in collected)
    if failed := [each.failed for each in results if each.failed is not None]:
        raise StateFailed.of(failed)
    return results
