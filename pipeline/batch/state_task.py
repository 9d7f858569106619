"""The Spark task of one state partition of a micro-batch, in a Python worker.

The task looks up the batch's keys, has `state.step` merge, writes one L0 SST, sends emitted rows to Kafka, and reports.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec.structs import replace

from ...state.kinds.aggregate import num_rows
from ...state.next_version import TaskReport
from ...state.step import Made, Step
from ...store.objects.counting import Reads, looked_up
from ...store.read.multi_get import LookUps
from ...store.sst import sorted_runs, writer
from ...store.sst.hashing import partition_of
from ...store.versions.manifest import Sst
from .task import OutputTopic, Partitions, Task

MARK = "_is_mark"
"""Column in batches where rows may fall due. True for a marker row: no record, only a state partition to check."""


@dataclass(frozen=True, slots=True)
class StateTask(Task):
    """The task of a stage with state. Rows have `_hash`; all rows of a state partition are in one task."""

    step: Step
    """Merges rows into the state; every attempt has the driver's clock, so that all decide alike."""
    ssts: tuple[Sst, ...]
    only_checks: bool = False
    """True to merge rows without writing anything, only to see that it succeeds."""
    late_to: tuple[OutputTopic, Mapping[str, str]] | None = None
    """Output for late rows, and the columns sent, each with its name in the output; None to drop late rows."""

    def _run(self, rows: pa.Table, attempt: str) -> TaskReport:
        marked: frozenset[int] = frozenset()
        if MARK in rows.column_names:
            is_mark = rows[MARK]
            hashes = rows.filter(is_mark)["_hash"].to_numpy()
            marked = frozenset(partition_of(hashes, self.step.table.partitions).tolist())
            rows = rows.filter(pc.invert(is_mark)).drop_columns([MARK])
        in_time, late = self.step.split_late(rows)
        result = self._written(in_time, attempt, marked) if in_time.num_rows or marked else TaskReport(attempt, 0)
        if not late.num_rows:
            return result
        sent, unsent = result.sent, result.unsent
        if self.late_to is not None:
            target, columns = self.late_to
            late_rows = late.select(list(columns)).rename_columns(list(columns.values()))
            more, large = self._send([(target, late_rows, target.partitions_of(late_rows))], attempt)
            sent, unsent = sent | more, (*unsent, *large)
        return replace(result, rows_in=num_rows(rows), sent=sent, unsent=unsent, late=num_rows(late))

    def _written(self, rows: pa.Table, attempt: str, marked: frozenset[int]) -> TaskReport:
        """Merge the rows that are not late, and the rows that fall due in the `marked` state partitions."""
        table, count, reads = self.step.table, self.step.table.partitions, Reads()
        counted, store, cache = self.places.open()
        partitions = partition_of(rows["_hash"].to_numpy(), count)
        steps: list[Made] = []
        ssts: list[Sst] = []
        event_ms: list[int | None] = []
        # Spark's plan has one partition a task; the code works for any number.
        for partition in sorted(marked.union(np.unique(partitions).tolist())):
            part = rows if (partitions == partition).all() else rows.filter(partitions == partition)
            existing = sorted_runs.touching(self.ssts, partition, count)
            stored = LookUps(store, cache, table, existing, self.step.clock_ms, reads)
            step = self.step.made(part, stored, sorted_runs.bounds(partition, count) if partition in marked else None)
            if self.only_checks:
                continue
            steps.append(step)
            if step.new.num_rows:
                new, latest_ms = self.step.with_expiry(step.new)
                app, stage = self.places.app, self.places.stage
                sst = writer.write(store, cache, app=app, stage=stage, table=table, partition=partition, rows=new)
                ssts.append(sst)
                event_ms.append(latest_ms)
        emitted = [step.emitted for step in steps if step.emitted]
        sent, unsent = self._send(self._emitted(emitted), attempt) if self.outputs and emitted else ({}, ())
        return TaskReport(
            attempt,
            num_rows(rows),
            tuple(ssts),
            sent,
            counted.take() + looked_up(reads),
            cache.ranged_objects(),
            max((at for at in event_ms if at is not None), default=None),
            unsent=unsent,
            next_due_ms=min((step.next_ms for step in steps if step.next_ms is not None), default=None),
        )

    def _emitted(self, parts: Sequence[tuple[pa.Table, ...]]) -> Iterator[tuple[OutputTopic, pa.Table, Partitions]]:
        """Yield the rows that the state partitions emitted, for each output."""
        tables = [pa.concat_tables(tables) for tables in zip(*parts, strict=True)]
        # A single table goes to all outputs.
        for target, rows in zip(self.outputs, tables * len(self.outputs) if len(tables) == 1 else tables, strict=True):
            yield target, rows, target.partitions_of(rows)
