"""What one run of a version gives: the table after it, and what it sends; and what the version itself gave.

What is late, what falls due and what expires stays as it was, in how many batches the records may come: it depends on
where batches end, and the version says where that was.
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
    """What a run gave."""

    sent: Mapping[str, tuple[pa.Table, ...]]
    """By output, the rows of each batch. What is not known is left out."""
    keys: pa.Table | None = None
    """`_hash` and key of the rows that it wrote, some of them twice; None for a stage without a table."""
    ssts: tuple[Sst, ...] = ()
    """The table after it."""
    largest: float = 0.0
    """The largest of all numbers in its function's rows that are floats."""


@dataclass(frozen=True)
class _StepAt(Step):
    """A step whose state is called at a time."""

    at_ms: int = 0

    @property
    def state_now(self) -> Bound:
        return _Called(super().state_now, self.at_ms)


@dataclass(frozen=True, slots=True)
class _Called(Bound):
    state: Bound
    at_ms: int

    def merge(self, rows: pa.Table, groups: Groups, keys: pa.Table, old: pa.Table) -> Merged:
        # Only here: whoever asks a store signs with the time that it is.
        with stopped(self.at_ms):
            return self.state.merge(rows, groups, keys, old)


def outcome(replay: StageReplay, made: Mapping[str, Sequence[pa.Table]], partitions: int, at_ms: int) -> RunOutcome:
    """What a run gives with these rows of the stage's function, of each batch.

    They are those of each output (of a stage without state), or under "" of all. Raises `Refused` where the state's
    function fails, and as looking up state does.
    """
    if replay.shape.bound is None:
        return RunOutcome(
            {one.name: tuple(map(without_record, made.get(one.name, made.get("", ())))) for one in replay.stage.writes}
        )
    with as_user_error(f"the state of stage {replay.after.stage!r}"):
        return _Run(replay, partitions, at_ms).of(made[""])


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
            # Whatever falls due, does so when all records are there: a key of the batch never falls due with it.
            due = step.due and dataclasses.replace(step.due, pending=step.due.pending and is_last)
            self._batch(rows, dataclasses.replace(step, seq=step.seq + number, due=due))
        sent = {name: tuple(each) for name, each in self.sent.items()}
        keys = pa.concat_tables([_keys(replay).empty_table(), *self.keys])
        return RunOutcome(sent, keys, self.ssts, largest(batches))

    def _batch(self, rows: pa.Table, step: Step) -> None:
        replay, program = self.replay, self.replay.program
        at = _StepAt(**{each.name: getattr(step, each.name) for each in dataclasses.fields(step)}, at_ms=self.at_ms)
        in_time, late = at.split_late(rows)
        stored = LookUps(program.store, program.cache, replay.table, self.ssts, step.clock_ms)
        of_partition = partition_of(in_time[HASH].to_numpy(), self.partitions)
        made = []
        for partition in range(self.partitions):
            mine = in_time.filter(pa.array(of_partition == partition))
            if mine.num_rows or (at.due is not None and at.due.pending):
                made.append(at.made(mine, stored, sorted_runs.bounds(partition, self.partitions)))
        new = [one.new for one in made if one.new.num_columns]
        self._emitted([one.emitted for one in made if one.emitted])
        if replay.stage.late is not None:
            columns = replay.shape.late
            rows = late.select(list(columns)).rename_columns(list(columns.values()))
            self.sent.setdefault(replay.stage.late.name, []).append(rows)
        if new and (written := pa.concat_tables(new)).num_rows:
            # As they are never expired, a later batch finds them, as one of all records would.
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
        each = [
            pa.concat_tables([schema.empty_table(), *(part[at] for part in parts)]) for at, schema in enumerate(schemas)
        ]
        for output, rows in zip(outputs, each if len(each) > 1 else each * len(outputs), strict=False):
            self.sent.setdefault(output.name, []).append(rows)


def committed(replay: StageReplay, sent: Mapping[str, SentRows]) -> RunOutcome:
    """What the version gave."""
    known = {name: (each.rows,) for name, each in sent.items() if each.rows is not None}
    if replay.shape.bound is None:
        return RunOutcome(known)
    schema = _keys(replay)
    return RunOutcome(known, replay.written().select(schema.names).cast(schema), replay.after.ssts)


def largest(tables: Sequence[pa.Table]) -> float:
    """The largest absolute value of all columns of floats, which nobody can count on to the last bit."""
    found = [0.0]
    for column in (column for table in tables for column in table.columns if pa.types.is_floating(column.type)):
        values = np.abs(column.drop_null().to_numpy().astype(np.float64))
        found.append(float(values[np.isfinite(values)].max(initial=0.0)))
    return max(found)


def _keys(replay: StageReplay) -> pa.Schema:
    return pa.schema([(HASH, pa.int64()), *arrow_schema(replay.table.key)])
