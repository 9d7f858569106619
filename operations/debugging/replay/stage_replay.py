"""One version of one stage, run again with any of the records that it read. The app sees nothing of it."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec.structs import replace

from ....errors import NotFound, Refused
from ....pipeline.api.stage import Stage
from ....pipeline.batch.rerun import Numbers, Rerun, records_of
from ....pipeline.batch.schemas import Shape
from ....pipeline.source.spark_types import arrow_of
from ....snapshot.bisect.verdict import Address
from ....snapshot.diff.equality import unlike
from ....snapshot.diff.stored_rows import TableSide
from ....state.event_time import Due, Lateness, due_after
from ....state.failing import RECORD
from ....state.step import Step
from ....store.read.multi_get import LookUps
from ....store.sst import ttl
from ....store.sst import writer as sst
from ....store.sst.hashing import hash_keys
from ....store.sst.schema import HASH, OP, SEQ, arrow_schema, sst_schema
from ....store.versions import history
from ....store.versions.manifest import Manifest, Table
from .inputs import Records, as_taken, read_input
from .program import LoadedProgram


@dataclass(frozen=True)
class StageReplay:
    """A batch of history, and the records that it read, numbered from 0 in the order of their time.

    Of one time, they are in the order of inputs, partitions and offsets.
    """

    program: LoadedProgram
    before: Manifest
    """The version before it."""
    after: Manifest
    """The version that it committed."""
    output: str = ""
    """The channel that is asked about; empty where the table is."""
    read: dict[str, Records] | None = None
    """What it took, where that is at hand; else Kafka is asked."""

    def __post_init__(self) -> None:
        hint = "with --code and the program that ran then it goes on"
        if (ran := self.after.program) is not None:
            hint = f"{ran} ran then; with --code and that file as it was then it goes on"
        if self.after.stage not in self.program.app.stages:
            raise NotFound("stage of the program", self.after.stage, self.program.app.stages, hint=hint)
        declared, then = (
            table and ([(each.name, each.type) for each in table.columns], table.state)
            for table in (self.shape.table, self.before.table)
        )
        if declared != then:
            raise Refused(
                f"the program declares stage {self.after.stage!r} with another table than it had then",
                hint=hint,
            )

    @classmethod
    def of(cls, program: LoadedProgram, after: Manifest, output: str = "") -> StageReplay:
        """The replay of a version. `output` is the channel that is asked about, if it is not the table.

        Raises:
            NotFound: The version before it was collected, or the program has no such stage.
            Refused: The version is not that of a batch; or the program is not the one that made it.
        """
        if not after.traits.reads_records:
            raise Refused(f"{after.stage}@v{after.version} is {after.traits.noun}, which reads no records")
        before = history.read(program.store, after.app, after.stage, after.version - 1)
        return cls(program, before, after, output)

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
        return {name: arrow_of(schema) for name, schema in self.shape.inputs.items()}

    def of_output(self, name: str) -> StageReplay:
        """The same, asked about a channel; empty for the table. It has what was read already."""
        return self._like(output=name) if self.shape.bound is not None else self._like(output=name, _all=None)

    def based_on(self, before: Manifest) -> StageReplay:
        """The same batch after another version, which has the same columns."""
        return self._like(before=before)

    def _like(self, **changes: object) -> StageReplay:
        """A copy with what is known already, but for fields that change, and cached values that are None."""
        other = copy.copy(self)
        for name, value in changes.items():
            if value is None:
                other.__dict__.pop(name, None)
            else:
                object.__setattr__(other, name, value)
        return other

    @property
    def records(self) -> dict[str, Records]:
        """What it took, by the input's declared name: without what it rejected. Raises as `read_input` does."""
        return self._records[0]

    @property
    def left_out(self) -> dict[str, Records]:
        """What it read and rejected, by the input's declared name. Raises as `read_input` does."""
        return self._records[1]

    @cached_property
    def _records(self) -> tuple[dict[str, Records], dict[str, Records]]:
        if self.read is not None:
            return self.read, {name: records.none for name, records in self.read.items()}
        before, after = self.before, self.after
        found = {
            name: read_input(self.program, after.app, name, schema, before.inputs.get(name), after.inputs[name])
            for name, schema in self.schemas.items()
        }
        return as_taken(self.program, before, after, self.stage, found)

    @cached_property
    def numbers(self) -> dict[str, Numbers]:
        """By the input's declared name, the number of each record that it took."""
        times = np.concatenate([each.times_ms for each in self.records.values()])
        numbers = np.empty(len(times), np.int64)
        numbers[np.argsort(times, kind="stable")] = np.arange(len(times))
        ends = np.cumsum([each.rows.num_rows for each in self.records.values()])
        return dict(zip(self.records, np.split(numbers, ends[:-1]), strict=True))

    @property
    def count(self) -> int:
        """How many records it read."""
        return sum(map(len, self.numbers.values()))

    def address(self, number: int) -> Address:
        """The address in Kafka of a record that it took."""
        _, records, at = self._at(number)
        partition, offset, row = (int(records.place[name][at].as_py()) for name in records.place.column_names[:3])
        return Address(records.topic, partition, offset, row if records.upstream else None)

    def sender(self, number: int) -> tuple[str, str, int]:
        """The input of a record, the stage that wrote it and its version; empty and 0 for a user's topic."""
        name, records, at = self._at(number)
        return name, records.upstream, int(records.versions[at])

    def _at(self, number: int) -> tuple[str, Records, int]:
        """The input of a record, and its row there."""
        name = next(name for name, mine in self.numbers.items() if number in mine)
        return name, self.records[name], int(np.flatnonzero(self.numbers[name] == number)[0])

    def inputs(self, chosen: Numbers) -> dict[str, pa.Table]:
        """Some records, in the order of their numbers, as the function gets them."""
        rows = {name: np.intersect1d(mine, chosen, return_indices=True)[1] for name, mine in self.numbers.items()}
        return {name: records.rows.take(pa.array(rows[name])) for name, records in self.records.items()}

    def taken(self, chosen: Numbers) -> dict[str, Records]:
        """Some records with their places, in the order in which the batch had them."""
        rows = {name: np.flatnonzero(np.isin(mine, chosen)) for name, mine in self.numbers.items()}
        return {name: records.take(rows[name]) for name, records in self.records.items()}

    @cached_property
    def _all(self) -> tuple[pa.Table, bool]:
        return self._function({name: records.rows for name, records in self.records.items()}, self.numbers)

    @property
    def knows_records(self) -> bool:
        """Whether it is known which record each of the function's rows comes from."""
        return self._all[1]

    def record_of(self, rows: pa.Table) -> Numbers:
        """The record of each of the function's rows; where it is known."""
        return np.asarray(rows[RECORD].to_numpy(), np.int64)

    def rows(self, chosen: Numbers | None = None) -> pa.Table:
        """What the function makes of these records, of all by default. A Spark job, where they are not known apart."""
        made, known = self._all
        if chosen is None:
            return made
        if not known:
            return self.run(self.inputs(chosen))
        return made.filter(pa.array(np.isin(self.record_of(made), chosen)))

    def run(self, inputs: Mapping[str, pa.Table]) -> pa.Table:
        """What the function makes of records that it need not have read: one Spark job."""
        numbers = {name: np.zeros(rows.num_rows, np.int64) for name, rows in inputs.items()}
        return self._function(inputs, numbers)[0]

    def manifest(self, new: pa.Table) -> Manifest:
        """The version that the stage would have committed, had its table got these rows."""
        table, program = self.table, self.program
        clock_ms = self.clock_ms
        written = []
        if new.num_rows:
            new, latest = self.step.with_expiry(new)
            clock_ms = clock_ms if latest is None else max(clock_ms, latest)
            app, stage = self.after.app, self.after.stage
            made = sst.write_partitions(program.scratch, None, app=app, stage=stage, table=table, rows=new)
            written = [replace(one, root=program.scratch.url) for one in made]
        return replace(self.after, table=table, ssts=(*self.before.ssts, *written), clock_ms=clock_ms)

    def merged(self, rows: pa.Table) -> tuple[pa.Table, tuple[pa.Table, ...]]:
        """The rows that the table gets, and what the state emits: one table for all outputs, or one for each."""
        step = self.step
        made = step.made(step.split_late(rows)[0], self.stored)
        if made.new.num_columns:
            return made.new, made.emitted
        return sst_schema(self.table).empty_table(), tuple(kind.empty_table() for kind in step.state.emits)

    @property
    def step(self) -> Step:
        """The rules by which the batch was merged."""
        bound, event_time = self.shape.bound, self.after.event_time
        assert bound is not None  # noqa: S101  a stage with a table has one
        lateness = None
        if self.shape.late_by and event_time is not None and event_time.bound_ms is not None:
            lateness = Lateness(self.shape.late_by, self.before.watermark_ms, event_time.bound_ms)
        return Step(self.table, bound, self.after.row_seq, self.clock_ms, lateness, self.due)

    @property
    def stored(self) -> LookUps:
        """The rows before the batch."""
        return LookUps(self.program.store, self.program.cache, self.table, self.before.ssts, self.clock_ms)

    @property
    def due(self) -> Due | None:
        """What fell due with the batch; None for a table whose rows never do."""
        by, after = self.shape.due_by, self.after.event_time
        return due_after(self.before.event_time, by, after.wall_ms if after else None) if by is not None else None

    def written(self) -> pa.Table:
        """The rows that the version wrote to its table, as SSTs hold them: internal columns and tombstones included."""
        table, seq = self.table, self.after.row_seq
        side = TableSide(self.program.store, self.program.cache, table, self.after, self.after.clock_ms)
        mine = (side.stored(sst, SEQ, seq, seq, values=True) for sst in side.ssts if sst.seq_min <= seq <= sst.seq_max)
        return pa.concat_tables([side.no_rows(values=True), *mine])

    def differing_keys(self, written: pa.Table, new: pa.Table) -> Numbers:
        """The `_hash` of each key, ascending, that has another row in one of these than in the other, or none.

        Rows are compared by the one rule of `equality`, since a replay may sum floats in another order.
        """
        key = arrow_schema(self.table.key)
        written = written.select([*key.names, *(column.name for column in self.table.values), OP])
        new = new.select(written.column_names).cast(written.schema)
        sides = zip((written, new), unlike(written, new), strict=True)
        wrong = pa.concat_tables([rows.select(key.names).filter(pa.array(flags)) for rows, flags in sides])
        return np.unique(hash_keys(wrong.cast(key), key.names))

    def sent(self, rows: pa.Table) -> pa.Table:
        """What the stage sends on `output` with these rows of its function."""
        if self.shape.bound is None:
            return rows
        if self.stage.late is not None and self.output == self.stage.late.name:
            return self.late(rows)
        emitted = self.merged(rows)[1]
        names = [one.name for one in self.stage.emits_to]
        return emitted[names.index(self.output)] if len(emitted) > 1 else emitted[0]

    def sent_records(self, rows: pa.Table) -> Numbers | None:
        """The record of each row that `sent` gives of these; None where it is not known, or a state made the rows."""
        if not self.knows_records:
            return None
        if self.shape.bound is None:
            return self.record_of(rows)
        if self.stage.late is not None and self.output == self.stage.late.name:
            return self.record_of(self.step.split_late(rows)[1])
        return None

    def late(self, rows: pa.Table) -> pa.Table:
        """Those of the function's rows that were late, as they went where the program says; it says so."""
        columns = self.shape.late
        return self.step.split_late(rows)[1].select(list(columns)).rename_columns(list(columns.values()))

    @property
    def clock_ms(self) -> int:
        """By which rows of the table are expired while the batch is merged."""
        return ttl.batch_clock_ms(self.before, self.after.clock_ms)

    def _function(self, inputs: Mapping[str, pa.Table], numbers: Mapping[str, Numbers]) -> tuple[pa.Table, bool]:
        """What the function makes of records by number, as `Rerun.table`. Spark's errors where it fails in a task."""
        with tempfile.TemporaryDirectory(prefix="slackwater-") as folder:
            records = [
                records_of(self.program.spark, rows, numbers[name], Path(folder) / name)
                for name, rows in inputs.items()
            ]
            return Rerun(self.stage, self.shape, records, self.output).table()


def of_keys(rows: pa.Table, keys: pa.Table | None) -> pa.Table:
    """Of rows with a `_hash` those of these keys; all for None."""
    if keys is None:
        return rows
    return rows.filter(pc.is_in(rows[HASH], pa.array(hash_keys(keys, keys.column_names))))
