"""Small engine that replaces Spark in a simulation: plans batches, runs tasks in attempts, loses some attempts.

Planners, readers and tasks are the product's own. A stage's function gets Arrow tables and returns Arrow tables.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Protocol

import pyarrow as pa
from pyspark.sql.types import StructType

from ...common import runtime
from ...pipeline.api.app import App
from ...pipeline.api.stage import Stage
from ...pipeline.batch.job import Query, StageConfig, start_positions
from ...pipeline.batch.schemas import StageSchemas, schemas_of
from ...pipeline.batch.task import IS_PROBE, StateTask, Task, WriteTask
from ...pipeline.batch.transform import AppliedFunction
from ...pipeline.source.options import PrivateOptions
from ...pipeline.source.readers import ChannelSourceReader, TopicSourceReader
from ...pipeline.source.spark_types import arrow_schema_of, spark_schema_of
from ...pipeline.spark.placement import Homes
from ...state.multi_input import INPUT_COLUMN, tagged_name
from ...state.next_version import TaskReport
from ...store.sst import sorted_runs
from ...store.sst.hashing import hash_keys, partition_of
from ...store.sst.schema import HASH
from ...store.versions.entries import hash_ranges
from ...store.versions.manifest import Manifest

_POLL_S = 0.1
Function = Callable[..., pa.Table | tuple[pa.Table, ...]]


class ExecutorLost(Exception):
    """Raised in an attempt whose executor is lost. Spark then starts a new attempt."""


class TaskFate(Protocol):
    """Decides what happens to the attempts of a task."""

    def lost(self) -> bool:
        """Return True if the executor is lost after the attempt, so that the attempt's report does not arrive."""

    def ended_late(self) -> None:
        """Record that an attempt ended after a second attempt whose report counts."""

    def twin_delay_s(self) -> float | None:
        """Return the seconds after which a second attempt starts beside the first; None for no second attempt."""


@dataclass(frozen=True, slots=True)
class BatchRows:
    """Rows of a batch that tasks read: the ranges of each input, and the stage's function."""

    stage: Stage
    parts: Mapping[str, Sequence[tuple[Any, Any]]]
    """Reader and range of each reading task, by input."""
    schemas: Mapping[str, pa.Schema]
    key: tuple[str, ...]

    def frames(self) -> tuple[pa.Table, ...]:
        """Read all ranges, and call the stage's function."""
        tables = []
        for name, schema in self.schemas.items():
            batches = [batch for reader, part in self.parts.get(name, ()) for batch in reader.read(part)]
            tables.append(pa.Table.from_batches(batches, schema))
        return call(self.stage, tables)


def call(stage: Stage, inputs: Sequence[pa.Table]) -> tuple[pa.Table, ...]:
    result: Any = stage.transform(*inputs)
    return tuple(result) if isinstance(result, tuple | list) else (result,)


def union_tagged(frames: Sequence[pa.Table], key: Sequence[str]) -> pa.Table:
    """Return the union of tagged Arrow tables; see `pipeline.batch.transform.union_tagged`."""
    if len(frames) == 1:
        return frames[0]
    columns = {INPUT_COLUMN: pa.int32()} | {name: frames[0].schema.field(name).type for name in key}
    for number, frame in enumerate(frames):
        columns |= {tagged_name(number, field.name): field.type for field in frame.schema if field.name not in key}
    schema, parts = pa.schema(columns.items()), []
    for number, frame in enumerate(frames):
        named = {name if name in key else tagged_name(number, name): frame[name] for name in frame.column_names}
        named[INPUT_COLUMN] = pa.array([number] * frame.num_rows, pa.int32())
        parts.append(pa.table([named.get(f.name, pa.nulls(frame.num_rows, f.type)) for f in schema], schema))
    return pa.concat_tables(parts)


class SimulatedEngine:
    """Implements `Engine` for stages whose functions work on Arrow tables."""

    master, version = "local[2]", "simulated"

    def __init__(self, fate: TaskFate, cores: int = 2) -> None:
        self.cores = cores
        self._fate = fate
        self._attempts = 0
        self.queries: list[SimulatedQuery] = []

    @contextmanager
    def opened(self, *_: object) -> Iterator[SimulatedEngine]:
        yield self
        for query in self.queries:
            query.stop()

    def derive_schemas(self, app: App) -> dict[str, StageSchemas]:
        def apply(stage: Stage, inputs: Mapping[str, StructType]) -> AppliedFunction:
            frames = call(stage, [arrow_schema_of(schema).empty_table() for schema in inputs.values()])
            shown = tuple(SimpleNamespace(schema=spark_schema_of(frame.schema)) for frame in frames)
            return AppliedFunction(shown, tuple(inputs), (None,) * len(frames), ({},) * len(frames))

        return schemas_of(app, apply)

    def start_query(
        self, config: StageConfig, head: Manifest, on_batch: Callable[[Any, int], None], counts: Path
    ) -> SimulatedQuery:
        query = SimulatedQuery(config, head, on_batch, self.cores, counts)
        self.queries.append(query)
        query.thread.start()
        return query

    def count_records(self, query: Query) -> None:
        return None

    def run_tasks(
        self, rows: Any, task: Task, homes: Homes | None = None, few_keys: bool | None = None
    ) -> tuple[TaskReport, ...]:
        pool = runtime.shared_executor(2 * self.cores, "executors")
        futures = [pool.submit(self._run_task, task, part) for part in _rows_by_task(rows, task)]
        return tuple(future.result() for future in futures)

    def _run_task(self, task: Task, rows: pa.Table) -> TaskReport:
        """Run attempts of a task until an attempt ends; two attempts may run at the same time.

        The report of the first attempt that ends counts.
        """
        done = runtime.event()
        reports: list[TaskReport] = []
        errors: list[BaseException] = []

        def attempt(delay_s: float) -> None:
            if delay_s:
                runtime.sleep(delay_s)
            try:
                reports.append(self._attempt(task, rows))
                if len(reports) > 1:
                    self._fate.ended_late()
            except Exception as error:
                errors.append(error)
            done.set()

        twin_s = self._fate.twin_delay_s()
        if twin_s is not None:
            runtime.thread(attempt, twin_s, name="twin").start()
        runtime.thread(attempt, 0.0, name="task").start()
        done.wait()
        if errors and not reports:
            raise errors[0]
        return reports[0]

    def _attempt(self, task: Task, rows: pa.Table) -> TaskReport:
        while True:
            self._attempts += 1
            with suppress(ExecutorLost):
                report = task.run(rows, self._attempts)
                if not self._fate.lost():
                    return report


def _rows_by_task(rows: BatchRows, task: Task) -> list[pa.Table]:
    frames = rows.frames()
    if isinstance(task, WriteTask):
        table = frames[0] if len(frames) == 1 else union_tagged(frames, ())
        for number, output in enumerate(task.outputs):
            if task.row_schemas:
                continue
            table = table.append_column(f"_to_{number}", pa.array(output.partitions_of(table), pa.int32()))
        if task.row_schemas:
            targets = zip(task.outputs, frames, strict=True)
            table = table.append_column(
                "_to", pa.concat_arrays([pa.array(output.partitions_of(part), pa.int32()) for output, part in targets])
            )
        # Like Spark's reading tasks, which divide a batch by offsets.
        half = -(-table.num_rows // 2)
        return [part for part in (table.slice(0, half), table.slice(half)) if part.num_rows]
    assert isinstance(task, StateTask)  # noqa: S101  the other kind
    count, key = task.step.table.ranges, [column.name for column in task.step.table.key]
    table = union_tagged(frames, rows.key)
    table = table.append_column(HASH, pa.array(hash_keys(table, key)))
    if task.step.due is not None and task.step.due.pending and task.ssts:
        marks = [hash_ranges.hash_bounds(n, count)[1] for n in sorted_runs.by_partition(task.ssts, count)]
        table = table.append_column(IS_PROBE, pa.array([False] * table.num_rows, pa.bool_()))
        probes = {HASH: pa.array(marks, pa.int64()), IS_PROBE: pa.array([True] * len(marks), pa.bool_())}
        blank = [probes.get(f.name, pa.nulls(len(marks), f.type)) for f in table.schema]
        table = pa.concat_tables([table, pa.table(blank, table.schema)])
    numbers = partition_of(table[HASH].to_numpy(), count)
    parts = [table.filter(pa.array(numbers == number)) for number in range(count)]
    return [part for part in parts if part.num_rows]


@dataclass(eq=False)
class SimulatedQuery:
    """Streaming query of one stage: plans a batch, logs its end, runs it, and repeats these steps."""

    config: StageConfig
    head: Manifest
    on_batch: Callable[[Any, int], None]
    cores: int
    counts: Path
    status: Mapping[str, Any] = field(default_factory=lambda: {"message": "Running"})
    error: Exception | None = None

    def __post_init__(self) -> None:
        self.runId = runtime.uuid()
        self._stopping = runtime.event()
        self.thread = runtime.thread(self._run, name=f"query-{self.head.stage}")
        resources = self.config.resources
        private = PrivateOptions(resources.kafka, resources.s3_settings)
        self.readers = {}
        for options in self.config.source_options(self.head, self.cores, self.counts):
            kind = ChannelSourceReader if options.upstream else TopicSourceReader
            self.readers[options.input] = kind(options, self.config.schemas.inputs[options.input], private)
        positions = start_positions(self.head, self.readers)
        self.config.checkpoint.write(self.head.version, positions)
        self._at = {position.input: position.to_json() for position in positions}

    @property
    def isActive(self) -> bool:  # noqa: N802  Spark's name
        return self.thread.is_alive()

    def exception(self) -> Exception | None:
        return self.error

    def stop(self) -> None:
        self._stopping.set()
        self.thread.join()

    def _run(self) -> None:
        batch = self.head.version
        try:
            while not self._stopping.is_set():
                ends = {name: reader.latestOffset(self._at[name]) for name, reader in self.readers.items()}
                if ends == self._at:
                    self._stopping.wait(_POLL_S)
                    continue
                batch += 1
                log = "\n".join(json.dumps(end) for end in ends.values())
                (self.config.checkpoint.folder / "offsets" / str(batch)).write_text(f"v1\n{{}}\n{log}")
                parts = {
                    name: [(reader, part) for part in reader.partitions(self._at[name], ends[name])]
                    for name, reader in self.readers.items()
                }
                shapes = self.config.schemas
                schemas = {name: arrow_schema_of(shapes.inputs[name]) for name in self.readers}
                self.on_batch(BatchRows(self.config.stage, parts, schemas, shapes.key), batch)
                self._at = ends
        except Exception as error:
            self.error = error
