"""Result of one run of a version: the table after it, and the rows that it sends.

Lateness, due rows and expiry stay as they were in the original batch, whatever the number of batches in the run: they
depend on batch boundaries, which the version records.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
from msgspec.structs import replace

from ....pipeline.spark.clock import stopped
from ....pipeline.spark.user_errors import as_user_error
from ....state.kinds.kind import Bound, Groups, Merged
from ....state.step import Step
from ....store.read.multi_get import LookUps
from ....store.sst import sorted_runs
from ....store.sst import writer as sst
from ....store.sst.hashing import partition_of
from ....store.sst.schema import HASH, arrow_schema
from ....store.versions.manifest import Sst
from ..replay.compare import SentRows, without_record
from ..replay.stage_replay import StageReplay


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """Result of a run."""

    sent: Mapping[str, tuple[pa.Table, ...]]
    """Rows of each batch, by output; outputs whose rows are not known are missing."""
    keys: pa.Table | None = None
    """`_hash` and key of the rows written, possibly with duplicates; None for a stage without a table."""
    ssts: tuple[Sst, ...] = ()
    """SSTs of the table after the run."""
    largest: float = 0.0
    """Largest absolute value of all floats in the function's rows."""


@dataclass(frozen=True)
class _StepAt(Step):
    """A step whose state function sees a fixed time."""

    at_ms: int = 0

    @property
    def state_now(self) -> Bound:
        return _Called(super().state_now, self.at_ms)


@dataclass(frozen=True, slots=True)
class _Called(Bound):
    state: Bound
    at_ms: int

    def merge(self, rows: pa.Table, groups: Groups, keys: pa.Table, old: pa.Table) -> Merged:
        # Stop the clock only here: requests to the store are signed with the current time.
        with stopped(self.at_ms):
            return self.state.merge(rows, groups, keys, old)


def outcome(
    replay: StageReplay, rows_by_output: Mapping[str, Sequence[pa.Table]], partitions: int, at_ms: int
) -> RunOutcome:
    """Return the result of a run, given the function's rows of each batch, by output.

    For a stage with state, all rows are under "". Raises `Refused` if the state's function fails, and as looking up
    state does.
    """
    if replay.shape.bound is None:
        return RunOutcome(
            {
                output.name: tuple(map(without_record, rows_by_output.get(output.name, rows_by_output.get("", ()))))
                for output in replay.stage.writes
            }
        )
    with as_user_error(f"the state of stage {replay.after.stage!r}"):
        return _Run(replay, partitions, at_ms).of(rows_by_output[""])


@dataclass
class _Run:
    replay: StageReplay
    partitions: int
    at_ms: int
    ssts: tuple[Sst, ...] = ()
    keys: list[pa.Table] = field(default_factory=list)
    sent: dict[str, list[pa.Table]] = field(default_factory=dict)

    def of(self, batches: Sequence[pa.Table]) -> RunOutcome:
        replay, step = self.replay, self.replay.step
        self.ssts = replay.before.ssts
        for number, rows in enumerate(batches):
            is_last = number == len(batches) - 1
            # Rows fall due in the last batch only: a key that the original batch wrote never falls due with it.
            due = step.due and dataclasses.replace(step.due, pending=step.due.pending and is_last)
            self._batch(rows, dataclasses.replace(step, seq=step.seq + number, due=due))
        sent = {name: tuple(rows) for name, rows in self.sent.items()}
        keys = pa.concat_tables([_keys(replay).empty_table(), *self.keys])
        return RunOutcome(sent, keys, self.ssts, largest(batches))

    def _batch(self, rows: pa.Table, step: Step) -> None:
        replay, program = self.replay, self.replay.program
        step_now = _StepAt(
            **{attribute.name: getattr(step, attribute.name) for attribute in dataclasses.fields(step)},
            at_ms=self.at_ms,
        )
        in_time, late = step_now.split_late(rows)
        stored = LookUps(program.store, program.cache, replay.table, self.ssts, step.clock_ms)
        partition_numbers = partition_of(in_time[HASH].to_numpy(), self.partitions)
        results = []
        for partition in range(self.partitions):
            partition_rows = in_time.filter(pa.array(partition_numbers == partition))
            if partition_rows.num_rows or (step_now.due is not None and step_now.due.pending):
                results.append(step_now.made(partition_rows, stored, sorted_runs.bounds(partition, self.partitions)))
        new = [result.new for result in results if result.new.num_columns]
        self._emitted([result.emitted for result in results if result.emitted])
        if replay.stage.late is not None:
            columns = replay.shape.late
            rows = late.select(list(columns)).rename_columns(list(columns.values()))
            self.sent.setdefault(replay.stage.late.name, []).append(rows)
        if new and (written := pa.concat_tables(new)).num_rows:
            # Without time to live, later batches see these rows, as a single batch of all records would.
            table = replace(replay.table, partitions=1, ttl=None)
            after = replay.after
            made_sst = sst.write(
                program.scratch, None, app=after.app, stage=after.stage, table=table, partition=0, rows=written
            )
            self.ssts = (*self.ssts, replace(made_sst, root=program.scratch.url))
            schema = _keys(replay)
            self.keys.append(written.select(schema.names).cast(schema))

    def _emitted(self, parts: Sequence[tuple[pa.Table, ...]]) -> None:
        outputs, schemas = self.replay.stage.emits_to, self.replay.step.state.emits
        tables = [
            pa.concat_tables([schema.empty_table(), *(part[at] for part in parts)]) for at, schema in enumerate(schemas)
        ]
        for output, rows in zip(outputs, tables if len(tables) > 1 else tables * len(outputs), strict=False):
            self.sent.setdefault(output.name, []).append(rows)


def committed(replay: StageReplay, sent: Mapping[str, SentRows]) -> RunOutcome:
    """Return the original result of the version."""
    sent_tables = {name: (sent_rows.rows,) for name, sent_rows in sent.items() if sent_rows.rows is not None}
    if replay.shape.bound is None:
        return RunOutcome(sent_tables)
    schema = _keys(replay)
    return RunOutcome(sent_tables, replay.written().select(schema.names).cast(schema), replay.after.ssts)


def largest(tables: Sequence[pa.Table]) -> float:
    """Return the largest absolute value of all float columns; such sums are compared with a tolerance."""
    maxima = [0.0]
    for column in (column for table in tables for column in table.columns if pa.types.is_floating(column.type)):
        values = np.abs(column.drop_null().to_numpy().astype(np.float64))
        maxima.append(float(values[np.isfinite(values)].max(initial=0.0)))
    return max(maxima)


def _keys(replay: StageReplay) -> pa.Schema:
    return pa.schema([(HASH, pa.int64()), *arrow_schema(replay.table.key)])
