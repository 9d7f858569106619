"""One version of one stage, run again with any of the records that it read. The app sees nothing of it."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa
from msgspec.structs import replace
from pyspark.sql.pandas.types import to_arrow_schema

from ...errors import NotFound, Refused
from ...fold.event_time import Due, Lateness, due_after
from ...fold.failing import RECORD
from ...fold.step import EVERY_HASH, Step
from ...moments.diff.side import TableSide
from ...search.verdict import Address
from ...store.read.table_rows import TableRows
from ...store.sst import ttl
from ...store.sst import writer as sst
from ...store.sst.hashing import partition_of
from ...store.sst.types import HASH, SEQ, sst_schema
from ...store.versions import history
from ...store.versions.manifest import Manifest, Table
from ..api.stage import Stage
from ..batch.rerun import Numbers, Rerun, records_of
from ..batch.schemas import Shape
from .inputs import Records, as_taken, read_inputs
from .program import Program


@dataclass(frozen=True)
class StageReplay:
    """A batch of history, and the records that it read, numbered from 0 in the order of their time.

    Of one time, they are in the order of inputs, partitions and offsets.
    """

    program: Program
    before: Manifest
    """The version before it."""
    after: Manifest
    """The version that it committed."""
    output: str = ""
    """The channel that is asked about; empty where the table is."""
    given: dict[str, Records] | None = None
    """What it read, where that is at hand; else Kafka is asked."""

    def __post_init__(self) -> None:
        if self.after.stage not in self.program.app.stages:
            raise NotFound("stage of the program", self.after.stage, self.program.app.stages, hint=self._ran_then)
        if _meaning(self.shape.table) != _meaning(self.before.table):
            raise Refused(
                f"the program declares stage {self.after.stage!r} with another table than it had then",
                hint=self._ran_then,
            )

    @classmethod
    def of(cls, program: Program, after: Manifest, output: str = "") -> StageReplay:
        """The replay of a version. `output` is the channel that is asked about, if it is not the table.

        Raises:
            NotFound: The version before it was collected, or the program has no such stage.
            Refused: The version is not that of a batch; or the program is not the one that made it.
        """
        if after.kind != "batch":
            raise Refused(f"{after.stage}@v{after.version} is a {after.kind}, which reads no records")
        before = history.read(program.store, after.app, after.stage, after.version - 1)
        return cls(program, before, after, output)

    @property
    def _ran_then(self) -> str:
        """The next step of who replays with another program."""
        if self.after.program is None:
            return "with --code and the program that ran then it goes on"
        return f"{self.after.program} ran then; with --code and that file as it was then it goes on"

    def for_output(self, output: str) -> StageReplay:
        """The same batch, asked about another channel; its records are not read again."""
        return dataclasses.replace(self, output=output, given=self.records)

    @property
    def stage(self) -> Stage:
        """As the program declares it."""
        return self.program.app.stages[self.after.stage]

    @property
    def shape(self) -> Shape:
        """The stage's schemas."""
        return self.program.shapes[self.after.stage]

    @property
    def table(self) -> Table:
        """The stage's table as it was then; to be asked of a stage that has one."""
        assert self.before.table is not None  # noqa: S101
        return self.before.table

    @property
    def schemas(self) -> dict[str, pa.Schema]:
        """The columns that the stage's function gets, by the input's declared name."""
        return {name: to_arrow_schema(schema, timezone="UTC") for name, schema in self.shape.inputs.items()}

    @cached_property
    def records(self) -> dict[str, Records]:
        """What it took, by the input's declared name: without what it rejected. Raises as `read_inputs` does."""
        if self.given is not None:
            return self.given
        program = self.program
        found = read_inputs(
            program.kafka, program.store, self.before, self.after, self.schemas, patience_s=program.patience_s
        )
        return as_taken(program, self.before, self.after, self.stage, self.schemas, found)

    @cached_property
    def _order(self) -> tuple[Numbers, Numbers]:
        """Of each record, the place of its input and of its row there."""
        each = list(self.records.values())
        inputs = np.concatenate([np.full(one.rows.num_rows, at, np.int64) for at, one in enumerate(each)])
        rows = np.concatenate([np.arange(one.rows.num_rows, dtype=np.int64) for one in each])
        times = np.concatenate([one.times_ms for one in each])
        order = np.argsort(times, kind="stable")
        return inputs[order], rows[order]

    @property
    def count(self) -> int:
        """How many records it read."""
        return len(self._order[0])

    def address(self, number: int) -> Address:
        """Where a record is in Kafka."""
        records, at = self._at(number)
        partition, offset, row = (int(records.place[name][at].as_py()) for name in records.place.column_names[:3])
        return Address(records.topic, partition, offset, row if records.upstream else None)

    def sender(self, number: int) -> tuple[str, str, int]:
        """The input of a record, the stage that wrote it and its version; empty and 0 for a user's topic."""
        records, at = self._at(number)
        name = list(self.records)[int(self._order[0][number])]
        return name, records.upstream, int(records.versions[at])

    def row(self, number: int) -> pa.Table:
        """A record as the function gets it."""
        records, at = self._at(number)
        return records.rows.slice(at, 1)

    def numbers_of(self, name: str, version: int) -> Numbers:
        """The records that a version sent on an input."""
        place = list(self.records).index(name)
        sent = np.flatnonzero(self._order[0] == place)
        is_its = self.records[name].versions[self._order[1][sent]] == version
        return np.asarray(sent[is_its], np.int64)

    def inputs(self, chosen: Numbers) -> dict[str, pa.Table]:
        """Some records, by number and in that order, as the function gets them."""
        inputs, rows = (each[chosen] for each in self._order)
        return {
            name: records.rows.take(pa.array(rows[inputs == at]))
            for at, (name, records) in enumerate(self.records.items())
        }

    def taken(self, chosen: Numbers) -> dict[str, Records]:
        """Some records, by number, with their places, in the order in which the batch had them."""
        inputs, rows = (each[chosen] for each in self._order)
        each = enumerate(self.records.items())
        return {name: records.take(np.sort(rows[inputs == at])) for at, (name, records) in each}

    @cached_property
    def _all(self) -> tuple[pa.Table, bool]:
        inputs, rows = self._order
        numbers = {}
        for at, (name, records) in enumerate(self.records.items()):
            mine = numbers[name] = np.empty(records.rows.num_rows, np.int64)
            chosen = np.flatnonzero(inputs == at)
            mine[rows[chosen]] = chosen
        return self._function({name: records.rows for name, records in self.records.items()}, numbers)

    @property
    def apart(self) -> bool:
        """Whether it is known which record each of the function's rows comes from."""
        return self._all[1]

    def record_of(self, rows: pa.Table) -> Numbers:
        """The record of each of the function's rows; where it is known."""
        return np.asarray(rows[RECORD].to_numpy(), np.int64)

    def rows(self, chosen: Numbers | None = None) -> pa.Table:
        """What the function makes of these records, of all by default. A Spark job, where they are not known apart."""
        made, apart = self._all
        if chosen is None:
            return made
        if not apart:
            return self.run(self.inputs(chosen))
        return made.filter(pa.array(np.isin(self.record_of(made), chosen)))

    def run(self, inputs: Mapping[str, pa.Table]) -> pa.Table:
        """What the function makes of records that it need not have read: one Spark job."""
        numbers = {name: np.zeros(rows.num_rows, np.int64) for name, rows in inputs.items()}
        return self._function(inputs, numbers)[0]

    def manifest(self, rows: pa.Table) -> Manifest:
        """The version that the stage would have committed with these rows of its function."""
        return self.manifest_with(self.merged(rows)[0])

    def manifest_with(self, new: pa.Table) -> Manifest:
        """The version that the stage would have committed, had its table got these rows."""
        table, program = self.table, self.program
        clock_ms = self.clock_ms
        written = []
        if new.num_rows:
            new, latest = self.step.with_expiry(new)
            clock_ms = clock_ms if latest is None else max(clock_ms, latest)
            partitions = partition_of(new["_hash"].to_numpy(), table.partitions)
            written = [
                replace(
                    sst.write(
                        program.scratch,
                        None,
                        app=self.after.app,
                        stage=self.after.stage,
                        table=table,
                        partition=partition,
                        rows=new.filter(pa.array(partitions == partition)),
                    ),
                    root=program.scratch.url,
                )
                for partition in np.unique(partitions).tolist()
            ]
        return replace(self.after, table=table, ssts=(*self.before.ssts, *written), clock_ms=clock_ms)

    def merged(self, rows: pa.Table) -> tuple[pa.Table, tuple[pa.Table, ...]]:
        """The rows that the table gets, and what the state emits: one table for all outputs, or one for each."""
        step = self.step
        made = step.made(step.apart(rows)[0], self.stored)
        if made.new.num_columns:
            return made.new, made.emitted
        return sst_schema(self.table).empty_table(), tuple(kind.empty_table() for kind in step.state.emits)

    @property
    def step(self) -> Step:
        """What the batch made of rows."""
        bound, event_time = self.shape.bound, self.after.event_time
        assert bound is not None  # noqa: S101  a stage with a table has one
        bound_ms = event_time.bound_ms if event_time is not None else None
        lateness = None
        if self.shape.late_by and bound_ms is not None:
            lateness = Lateness(self.shape.late_by, self.before.watermark_ms, bound_ms)
        return Step(self.table, bound, self.after.row_seq, self.clock_ms, lateness, self.due)

    @property
    def stored(self) -> TableRows:
        """The rows before the batch."""
        return TableRows(self.program.store, self.program.cache, self.table, self.before.ssts, self.clock_ms)

    @property
    def due(self) -> Due | None:
        """What fell due with the batch; None for a table whose rows never do."""
        by, after = self.shape.due_by, self.after.event_time
        return due_after(self.before.event_time, by, after.due_ms if after else None) if by is not None else None

    def fallen_keys(self) -> pa.Table:
        """`_hash` and key of the rows that could fall due with the batch: of all whose time had come."""
        due, program, table = self.due, self.program, self.table
        if due is None or not due.pending:
            return (
                TableSide(program.store, program.cache, table, None)
                .no_rows()
                .select([HASH, *(c.name for c in table.key)])
            )
        return self.stored.due(due.span, EVERY_HASH).keys

    def written(self) -> pa.Table:
        """The rows that the version wrote to its table, as SSTs hold them: internal columns and tombstones included."""
        table, seq = self.table, self.after.row_seq
        side = TableSide(self.program.store, self.program.cache, table, self.after, self.after.clock_ms)
        mine = (side.stored(sst, SEQ, seq, seq, values=True) for sst in side.ssts if sst.seq_min <= seq <= sst.seq_max)
        return pa.concat_tables([side.no_rows(values=True), *mine])

    def sent(self, rows: pa.Table) -> pa.Table:
        """What the stage sends on `output` with these rows of its function."""
        if self.shape.bound is None:
            return rows
        if self.stage.late is not None and self.output == self.stage.late.name:
            return self.late(rows)
        emitted = self.merged(rows)[1]
        names = [one.name for one in self.stage.emits_to]
        return emitted[names.index(self.output)] if len(emitted) > 1 else emitted[0]

    def late(self, rows: pa.Table) -> pa.Table:
        """Those of the function's rows that were late, as they went where the program says; it says so."""
        columns = self.shape.late
        return self.step.apart(rows)[1].select(list(columns)).rename_columns(list(columns.values()))

    @property
    def clock_ms(self) -> int:
        """By which rows of the table are expired while the batch is merged."""
        return ttl.batch_clock_ms(self.before, self.after.clock_ms)

    def _at(self, number: int) -> tuple[Records, int]:
        inputs, rows = self._order
        return list(self.records.values())[int(inputs[number])], int(rows[number])

    def _function(self, inputs: Mapping[str, pa.Table], numbers: Mapping[str, Numbers]) -> tuple[pa.Table, bool]:
        """What the function makes of records by number, as `Rerun.table`. Spark's errors where it fails in a task."""
        with tempfile.TemporaryDirectory(prefix="slackwater-") as folder:
            records = [
                records_of(self.program.spark, rows, numbers[name], Path(folder) / name)
                for name, rows in inputs.items()
            ]
            return Rerun(self.stage, self.shape, records, self.output).table()


def _meaning(table: Table | None) -> tuple[object, ...]:
    return ([(each.name, each.type) for each in table.columns], table.state) if table is not None else ()
