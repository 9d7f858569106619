"""Computes the micro-batches of one stage on an engine (`Engine`), which is Spark or a simulation.

Also defines the configuration of a stage's runner (`StageConfig`).
"""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from ...common import instants
from ...common.runtime import Future
from ...state.event_time import BatchTimes, EventTimeScan, Lateness, due_span_after
from ...state.next_version import BatchResult, TaskReport, rows_until
from ...state.records import Position
from ...state.step import Step
from ...store.objects.protocol import ObjectStore
from ...store.objects.s3_settings import S3Access
from ...store.read.cache import SstCache
from ...store.sst import ttl
from ...store.versions.keys import is_source
from ...store.versions.manifest import Manifest
from ..api.app import App
from ..api.stage import Stage
from ..source.options import ScratchCheckpoint, SourceOptions
from ..source.wake import PlannerFiles
from ..spark.placement import Homes
from ..spark.plans import RecordCounts
from ..spark.worker_resources import WorkerResources
from ..telemetry.spans import Tracing
from ..upkeep.upkeep import StallTriggers
from .pre_aggregation import Forecast
from .schemas import StageSchemas
from .task import StateTask, Task, WriteTask, output_topic_of
from .task_count import TaskCount
from .turns import Turns

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
    """Turns of the runner's stages; None if a batch may start at any time."""
    compaction_threads: int = 1
    """Maximum number of concurrent merges in the background; 0 if another process merges."""
    prefetch: bool = False
    rescue: Callable[["Batch", Exception], BatchResult] | None = None
    """Computes a failed batch without its bad records, or raises its error; None if the stage rejects no records."""
    reject_too_large: Callable[["Batch", BatchResult], BatchResult] | None = None
    """Moves records that are too large for a sink's topic to the table of rejected records; None to do nothing."""
    published_topics: Mapping[str, str] = field(default_factory=dict)
    retry_rejected: Callable[["Batch"], BatchResult] | None = None
    input_spools: Mapping[str, str] = field(default_factory=dict)
    tracing: Tracing | None = None

    def source_options(self, head: Manifest, tasks: int, counts: Path) -> Iterator[SourceOptions]:
        """Yield the options of the sources of a query that starts at `head`, in the order of the stage's inputs."""
        stage, resources = self.stage, self.resources
        for number, name in enumerate(stage.inputs):
            at = head.inputs[name]
            # Snapshot requests are announced on the first topic. A stage that reads channels gets them as markers
            # instead.
            asks = number == 0 and not stage.channels
            yield SourceOptions(
                input=name,
                topic=at.topic,
                topic_id="" if at.upstream else at.topic_id,
                upstream=at.upstream,
                patience_s=resources.patience_s,
                max_records=self.limits.max_records,
                tasks=tasks,
                in_any_order=stage.state is not None and stage.state.emission != "function" and not stage.late_output,
                trigger_ms=self.limits.trigger_ms,
                app=head.app,
                stage=stage.name,
                store=resources.store,
                spool=self.input_spools.get(at.topic, ""),
                counts_folder=str(counts) if at.upstream or is_source(at.topic) else "",
                planner_folder=str(self.planners.folder),
                starts_woken_batches=number == 0 and self.schemas.due_by is not None,
                starts_snapshot_batches=asks,
                handled_snapshots=tuple(head.recorded) if asks else (),
                end_offsets=self.limits.end_offsets.get(at.topic),
            )


def start_positions(head: Manifest, inputs: Iterable[str]) -> list[Position]:
    """Return the positions at which a query that starts at `head` begins to read these inputs."""
    ends = ((name, head.inputs[name]) for name in inputs)
    return [Position(name, at.offsets, at.version, at.rows_passed, (), at.watermark_ms) for name, at in ends]


class Query(Protocol):
    """Running query of one stage, with the methods of Spark's `StreamingQuery`."""

    @property
    def isActive(self) -> bool: ...  # noqa: N802  Spark's name
    @property
    def runId(self) -> object: ...  # noqa: N802
    @property
    def status(self) -> Mapping[str, Any]: ...
    def exception(self) -> Exception | None: ...
    def stop(self) -> None: ...


class Engine(Protocol):
    """Engine that plans the batches of stages and runs their tasks: Spark, or a simulation of it."""

    @property
    def master(self) -> str: ...
    @property
    def version(self) -> str: ...
    @property
    def cores(self) -> int: ...

    def derive_schemas(self, app: App) -> dict[str, StageSchemas]:
        """Return the schemas of all stages, by name, upstream first. Raises the errors of `derive_schemas`."""

    def start_query(
        self, config: StageConfig, head: Manifest, on_batch: Callable[[Any, int], None], counts: Path
    ) -> Query:
        """Start a stage's query at the positions of `head`. `on_batch` gets each batch's rows and number.

        Sources count their store requests in files of the folder `counts`.
        """

    def run_tasks(
        self, rows: Any, task: Task, homes: Homes | None = None, few_keys: bool | None = None
    ) -> tuple[TaskReport, ...]:
        """Run the tasks of a batch over its rows, and return the reports of the successful attempts."""

    def count_records(self, query: Query) -> RecordCounts | None:
        """Return counts of the records that the query's current batch reads; None if the engine does not count."""


@dataclass(slots=True)
class StageJob:
    """Job that computes the batches of one stage. Writes SSTs to `store`, which may be a spool."""

    config: StageConfig
    engine: Engine
    store: ObjectStore
    cache: SstCache
    homes: Homes | None
    """Assignment of hash ranges to executors; None if all tasks run on this machine."""
    access: Callable[[], S3Access | None]
    """Returns S3 credentials for the workers; called for each batch because credentials may be temporary."""
    stopping: Callable[[], bool]
    query: Future[Query] | None = None
    """Future of the stage's streaming query, which counts the records read; None to count no records."""
    _forecast: Forecast = field(default_factory=Forecast)
    _task_count: TaskCount = field(default_factory=TaskCount)

    def batch_times(self, base: Manifest) -> BatchTimes:
        now_ms, by = instants.now_ms(), self.config.schemas.due_by
        due = due_span_after(base.event_time, by, self.config.planners.clock_ms(now_ms)) if by is not None else None
        return BatchTimes(ttl.batch_clock_ms(base, now_ms), now_ms + self.config.stage.event_time.ahead_ms, due)

    def compute_batch(self, rows: Any, base: Manifest, after: Mapping[str, Position], times: BatchTimes) -> BatchResult:
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
        return self.engine.count_records(self.query.result(_START_S)) if users and self.query is not None else None

    def _compute_rows(
        self,
        rows: Any,
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
            return self.engine.run_tasks(
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
        # A check may run anywhere, not only where the SSTs are cached.
        return self.engine.run_tasks(rows, task.with_tasks(tasks), None if dry_run else self.homes, few_keys)


@dataclass(frozen=True, slots=True)
class Batch:
    """Micro-batch on top of the version `base`. All of its rows or only some of them can be computed."""

    job: StageJob
    base: Manifest
    after: Mapping[str, Position]
    times: BatchTimes

    @property
    def num_records(self) -> int | None:
        """Number of records that the batch reads, and of rows that it reads from channels; None if unknown."""
        counts = [rows_until(self.base.inputs[name], end) for name, end in self.after.items()]
        numbers = [count for count in counts if count is not None]
        return sum(numbers) if counts and len(numbers) == len(counts) else None

    def compute(self, rows: Any) -> tuple[TaskReport, ...]:
        return self.job._compute_rows(rows, self.base, self.times, records=self.num_records)

    def check(self, rows: Any) -> None:
        """Compute the batch over the given rows without writing. Raises the errors of `compute`."""
        due = dataclasses.replace(self.times.due, pending=False) if self.times.due is not None else None
        times = dataclasses.replace(self.times, due=due)
        self.job._compute_rows(rows, self.base, times, records=self.num_records, dry_run=True)
