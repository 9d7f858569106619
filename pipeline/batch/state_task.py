"""What a Spark task does with one state partition of a micro-batch, in its Python worker.

Look up the batch's keys, have `state.step` merge, write one L0 SST, write what the state emits to Kafka, and report.
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
from ...store.objects.stats import Reads, looked_up
from ...store.read.multi_get import LookUps
from ...store.sst import sorted_runs, writer
from ...store.sst.hashing import partition_of
from ...store.versions.manifest import Sst
from .task import OutputTopic, Partitions, Task

MARK = "_is_mark"
"""A column that is there where rows may fall due. True marks a row that is no record: it only says in which state
partition to look for them."""


@dataclass(frozen=True, slots=True)
class StateTask(Task):
    """A stage with state. Rows come with `_hash`, all rows of a state partition in one task."""

    step: Step
    """What becomes of rows; every attempt has the driver's clock, so that all decide alike."""
    ssts: tuple[Sst, ...]
    only_checks: bool = False
    """Whether rows are merged only to see that it can be done: nothing is written."""
    late_to: tuple[OutputTopic, Mapping[str, str]] | None = None
    """Where late rows go, with which columns, each with its name there; None for nowhere."""

    def _run(self, rows: pa.Table, attempt: str) -> TaskReport:
        marked: frozenset[int] = frozenset()
        if MARK in rows.column_names:
            mark = rows[MARK]
            hashes = rows.filter(mark)["_hash"].to_numpy()
            marked = frozenset(partition_of(hashes, self.step.table.partitions).tolist())
            rows = rows.filter(pc.invert(mark)).drop_columns([MARK])
        in_time, late = self.step.split_late(rows)
        result = self._written(in_time, attempt, marked) if in_time.num_rows or marked else TaskReport(attempt, 0)
        if not late.num_rows:
            return result
        sent, unsent = result.sent, result.unsent
        if self.late_to is not None:
            target, columns = self.late_to
            gone = late.select(list(columns)).rename_columns(list(columns.values()))
            more, large = self._send([(target, gone, target.partitions_of(gone))], attempt)
            sent, unsent = sent | more, (*unsent, *large)
        return replace(result, rows_in=num_rows(rows), sent=sent, unsent=unsent, late=num_rows(late))

    def _written(self, rows: pa.Table, attempt: str, marked: frozenset[int]) -> TaskReport:
        """What becomes of rows that are not late, and in the `marked` state partitions of those that fall due."""
        table, count, reads = self.step.table, self.step.table.partitions, Reads()
        counted, store, cache = self.places.open()
        partitions = partition_of(rows["_hash"].to_numpy(), count)
        made: list[Made] = []
        ssts: list[Sst] = []
        event_ms: list[int | None] = []
        # One partition a task is what Spark's plan gives; correct for any number of them.
        for partition in sorted(marked.union(np.unique(partitions).tolist())):
            mine = rows if (partitions == partition).all() else rows.filter(partitions == partition)
            ours = sorted_runs.touching(self.ssts, partition, count)
            stored = LookUps(store, cache, table, ours, self.step.clock_ms, reads)
            one = self.step.made(mine, stored, sorted_runs.bounds(partition, count) if partition in marked else None)
            if self.only_checks:
                continue
            made.append(one)
            if one.new.num_rows:
                new, latest_ms = self.step.with_expiry(one.new)
                app, stage = self.places.app, self.places.stage
                sst = writer.write(store, cache, app=app, stage=stage, table=table, partition=partition, rows=new)
                ssts.append(sst)
                event_ms.append(latest_ms)
        emitted = [one.emitted for one in made if one.emitted]
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
            next_due_ms=min((one.next_ms for one in made if one.next_ms is not None), default=None),
        )

    def _emitted(self, parts: Sequence[tuple[pa.Table, ...]]) -> Iterator[tuple[OutputTopic, pa.Table, Partitions]]:
        """What state partitions emitted, for each output."""
        tables = [pa.concat_tables(each) for each in zip(*parts, strict=True)]
        # One table is for all outputs.
        for target, rows in zip(self.outputs, tables * len(self.outputs) if len(tables) == 1 else tables, strict=True):
            yield target, rows, target.partitions_of(rows)
