"""A stage with rows that become due, without Spark: batches are computed as in Spark's tasks, on a store in memory."""

import dataclasses
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
from msgspec.structs import replace
from slackwater.pipeline.batch.task import IS_PROBE, StateTask
from slackwater.pipeline.spark.worker_resources import WorkerResources
from slackwater.snapshot.change.migrate import describe_stage_change, find_plan, migrate
from slackwater.state.event_time import EventTimeScan, Lateness, Watermark, due_span_after
from slackwater.state.fits import Declared, DeclaredStage, declare_parts, reconcile_parts
from slackwater.state.kinds.due import window_of
from slackwater.state.kinds.kind import BoundState, Kind
from slackwater.state.next_version import TaskReport
from slackwater.state.step import Step, StepResult
from slackwater.store.objects.counting import CountingStore
from slackwater.store.objects.memory import MemoryStore
from slackwater.store.objects.protocol import ObjectStore
from slackwater.store.read.cache import SstCache
from slackwater.store.sst import sorted_runs
from slackwater.store.sst.arrow_types import from_arrow
from slackwater.store.sst.hashing import hash_keys
from slackwater.store.versions import history
from slackwater.store.versions.entries import hash_ranges
from slackwater.store.versions.manifest import Column, Declaration, Table

from tests.state.event_time.committing import Committing

MINUTE_MS = 60_000
DELAY = 10
"""Delay of the watermark, in minutes."""
WATERMARK = Watermark(("at",), DELAY * MINUTE_MS, ("t",))


@dataclass(frozen=True)
class Noting(Step):
    """An output that records emitted rows."""

    noted: list[dict[str, object]] = field(default_factory=list)

    def apply(self, *args: object) -> StepResult:  # type: ignore[override]
        made_rows = super().apply(*args)  # type: ignore[arg-type]
        self.noted.extend(row for table in made_rows.emitted for row in table.to_pylist())
        return made_rows


@dataclass(frozen=True)
class InMemory(WorkerResources):
    """Worker resources with a store in memory."""

    memory: MemoryStore = field(default_factory=MemoryStore)
    kept: SstCache = field(default_factory=lambda: SstCache(Path(os.devnull) / "cache", 0))

    def open(self) -> tuple[CountingStore, ObjectStore, SstCache]:
        return CountingStore(self.memory), self.memory, self.kept


@dataclass
class Stage(Committing):
    """A stage whose batches are computed as in Spark's tasks, but without Spark."""

    bound: BoundState
    key: tuple[str, ...]
    rows: pa.Schema
    state: Declaration = field(default_factory=dict)
    jobs: int = 0
    max_reported: int | None = None

    def __post_init__(self) -> None:
        self.table = self.declared(self.bound, self.state)
        self.resources = InMemory("a", "s", "", {}, ("", 0, 0), 1.0)
        parts = reconcile_parts(declare_parts(self.bound, self.table), self.table, {})
        self.begin(self.resources.memory, self.table, side_tables=parts)

    def declared(self, bound: BoundState, state: Declaration) -> Table:
        values = tuple(Column(one.name, from_arrow(one.type)) for one in bound.values)
        columns = tuple(Column(name, from_arrow(self.rows.field(name).type)) for name in self.key)
        return Table(columns, values, 3, state, tasks=2)

    def migrate(self, state: Kind, renames: Mapping[str, str] | None = None) -> tuple[str, ...]:
        """Migrate to another state, and return the reported changes."""
        self.bound = state.bind([self.rows], self.key)
        declared = self.declared(self.bound, state.stored)
        stages = {"s": DeclaredStage("s", {"t": ""}, {}, declared, declare_parts(self.bound, declared))}
        found = find_plan(self.store, Declared("a", stages), renames or {})
        done = migrate(self.store, found, {}, by="ada@host", now_ms=self.head.time_ms + 1)
        self.head = history.read(self.store, "a", "s", done.versions["s"])
        assert self.head.table is not None
        self.table = self.head.table
        return tuple(line for change in found.changes for line in describe_stage_change(change))

    def batch(self, rows: list[dict[str, object]], clock_ms: int = 0) -> list[dict[str, object]]:
        """Commit a version, and return its emitted rows."""
        by = self.bound.due_by
        falling = due_span_after(self.head.event_time, by, clock_ms) if by is not None else None
        made = pa.Table.from_pylist(rows, schema=self.rows)
        made = made.append_column("_hash", pa.array(hash_keys(made, self.key)))
        if falling is not None and falling.pending:
            count = self.table.ranges
            hashes = [
                hash_ranges.hash_bounds(number, count)[1] for number in sorted_runs.by_partition(self.head.ssts, count)
            ]
            marks = pa.Table.from_pylist([{"_hash": hash_} for hash_ in hashes], schema=made.schema)
            is_mark = pa.array([False] * made.num_rows + [True] * marks.num_rows)
            made = pa.concat_tables([made, marks]).append_column(IS_PROBE, is_mark)
        late_by = self.bound.lateness_columns(window_of(self.rows))
        late = Lateness(late_by, self.head.watermark_ms, 1 << 50) if late_by else None
        step = Noting(self.table, self.bound, self.head.version + 1, 0, late, falling, self.max_reported)
        task = StateTask(
            dataclasses.replace(self.resources, app=self.head.app),
            "w",
            self.head.version + 1,
            (),
            step,
            self.head.ssts,
            side_tables={name: self.head.side_tables[name] for name in self.bound.side_tables},
            times=EventTimeScan((WATERMARK,), 1 << 50),
        )
        results: list[TaskReport] = []
        if made.num_rows:
            self.jobs += 1
            # As Spark has it, a state partition's rows are in one task; here one task has all of them.
            results = [replace(task._run(made, "w.1"), seen=task.times.scan(made))]
        self.batch_done(len(rows), results, WATERMARK, due_by=by, due=falling)
        return step.noted

    @property
    def owed(self) -> bool:
        return self.head.event_time is not None and self.head.event_time.has_unemitted_due_rows
