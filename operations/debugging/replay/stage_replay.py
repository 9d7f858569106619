"""Replay of one version of one stage with any subset of its records, without any effect on the app."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec.structs import replace

from ....errors import NotFound, Refused
from ....pipeline.api.stage import Stage
from ....pipeline.batch.rerun import RecordNumbers
from ....pipeline.batch.schemas import StageSchemas
from ....pipeline.source.spark_types import arrow_schema_of
from ....snapshot.bisect.verdict import RecordLocation
from ....snapshot.diff.equality import flag_unmatched_rows
from ....snapshot.diff.stored_rows import TableSide
from ....state.event_time import Due, Lateness, due_span_after
from ....state.failing import RECORD
from ....state.step import EVERY_HASH, Step, StepResult
from ....store.read.multi_get import TableLookUps
from ....store.sst import ttl
from ....store.sst import writer as sst
from ....store.sst.hashing import hash_keys
from ....store.sst.schema import HASH, OP, arrow_schema, sst_schema
from ....store.versions import history
from ....store.versions.entries.ssts import Sst
from ....store.versions.manifest import Manifest, Table
from ....store.versions.side_tables import as_main_table, table_name
from .inputs import InputRecords, read_input, split_rejected
from .program import LoadedProgram


@dataclass(frozen=True)
class StageReplay:
    """A past batch that can be replayed. Its records are numbered from 0 by time, input, partition and offset."""

    program: LoadedProgram
    before: Manifest
    after: Manifest
    output: str = ""
    loaded: dict[str, InputRecords] | None = None

    def __post_init__(self) -> None:
        hint = "give the program that ran then with --code"
        if (original := self.after.program) is not None:
            hint = f"{original} ran then: give that version of the file with --code"
        if self.after.stage not in self.program.app.stages:
            raise NotFound("stage of the program", self.after.stage, self.program.app.stages, hint=hint)
        declared, stored = (
            table and ([(column.name, column.type) for column in table.columns], table.state)
            for table in (self.shape.table, self.before.table)
        )
        if declared != stored:
            raise Refused(
                f"the program's table of stage {self.after.stage!r} is not the one that the stage had then",
                hint=hint,
            )

    @classmethod
    def for_version(cls, program: LoadedProgram, after: Manifest, output: str = "") -> StageReplay:
        """Return the replay of the batch that committed the version `after`.

        `output` is the channel to replay; empty for the table.

        Raises:
            NotFound: The previous version was collected, or the program has no such stage.
            Refused: The version reads no records, or the program declares a table that the version does not have.
        """
        if not after.traits.reads_records:
            raise Refused(f"{after.stage}@v{after.version} is {after.traits.noun}, which reads no records")
        previous = history.read(program.store, after.app, after.stage, after.version - 1)
        return cls(program, previous, after, output)

    @property
    def stage(self) -> Stage:
        return self.program.app.stages[self.after.stage]

    @property
    def shape(self) -> StageSchemas:
        return self.program.shapes[self.after.stage]

    @property
    def table(self) -> Table:
        assert self.before.table is not None  # noqa: S101
        return self.before.table

    @property
    def schemas(self) -> dict[str, pa.Schema]:
        return {name: arrow_schema_of(schema) for name, schema in self.shape.inputs.items()}

    def for_output(self, name: str) -> StageReplay:
        """Return a copy that replays a channel, or the table if `name` is empty.

        The copy has the records that were already read.
        """
        return self._copy_with(output=name) if self.shape.bound is not None else self._copy_with(output=name, _all=None)

    def with_previous(self, version: Manifest) -> StageReplay:
        """Return a copy that replays the batch on top of another version.

        `version` must have the same columns as the original previous version.
        """
        return self._copy_with(before=version)

    def _copy_with(self, **changes: object) -> StageReplay:
        other = copy.copy(self)
        for name, value in changes.items():
            if value is None:
                other.__dict__.pop(name, None)
            else:
                object.__setattr__(other, name, value)
        return other

    @property
    def records(self) -> dict[str, InputRecords]:
        """Processed records by the input's declared name, without rejected records.

        Raises the errors of `read_input`.
        """
        return self._records[0]

    @property
    def left_out(self) -> dict[str, InputRecords]:
        return self._records[1]

    @cached_property
    def _records(self) -> tuple[dict[str, InputRecords], dict[str, InputRecords]]:
        if self.loaded is not None:
            return self.loaded, {name: records.empty for name, records in self.loaded.items()}
        previous, after = self.before, self.after
        read = {
            name: read_input(self.program, after.app, name, schema, previous.inputs.get(name), after.inputs[name])
            for name, schema in self.schemas.items()
        }
        return split_rejected(self.program, previous, after, self.stage, read)

    @cached_property
    def numbers(self) -> dict[str, RecordNumbers]:
        times = np.concatenate([records.times_ms for records in self.records.values()])
        numbers = np.empty(len(times), np.int64)
        numbers[np.argsort(times, kind="stable")] = np.arange(len(times))
        ends = np.cumsum([records.rows.num_rows for records in self.records.values()])
        return dict(zip(self.records, np.split(numbers, ends[:-1]), strict=True))

    @property
    def count(self) -> int:
        return sum(map(len, self.numbers.values()))

    def find_record(self, number: int) -> tuple[str, InputRecords, int]:
        """Return the input of the record with this number: its name, its records, and the record's index."""
        name = next(name for name, numbers in self.numbers.items() if number in numbers)
        return name, self.records[name], int(np.flatnonzero(self.numbers[name] == number)[0])

    def number_of(self, record: RecordLocation) -> int | None:
        """Return the number of a record within the batch; None if the batch did not process the record."""
        indexes = ((name, records.index_of(record)) for name, records in self.records.items())
        return next((int(self.numbers[name][at]) for name, at in indexes if at is not None), None)

    def inputs(self, chosen: RecordNumbers) -> dict[str, pa.Table]:
        """Return chosen records as the stage's function receives them, by input, ordered by number."""
        rows = {name: np.intersect1d(numbers, chosen, return_indices=True)[1] for name, numbers in self.numbers.items()}
        return {name: records.rows.take(pa.array(rows[name])) for name, records in self.records.items()}

    def take_records(self, chosen: RecordNumbers) -> dict[str, InputRecords]:
        rows = {name: np.flatnonzero(np.isin(numbers, chosen)) for name, numbers in self.numbers.items()}
        return {name: records.take(rows[name]) for name, records in self.records.items()}

    @cached_property
    def _all(self) -> tuple[pa.Table, bool]:
        return self._run_function({name: records.rows for name, records in self.records.items()}, self.numbers)

    @property
    def knows_records(self) -> bool:
        """True if the record behind each row of the function is known."""
        return self._all[1]

    def record_of(self, rows: pa.Table) -> RecordNumbers:
        return np.asarray(rows[RECORD].to_numpy(), np.int64)

    def rows(self, chosen: RecordNumbers | None = None) -> pa.Table:
        """Return the rows that the stage's function makes from the chosen records, by default from all records.

        Runs a Spark job unless `knows_records`.
        """
        all_rows, is_traceable = self._all
        if chosen is None:
            return all_rows
        if not is_traceable:
            return self.run(self.inputs(chosen))
        return all_rows.filter(pa.array(np.isin(self.record_of(all_rows), chosen)))

    def run(self, inputs: Mapping[str, pa.Table]) -> pa.Table:
        numbers = {name: np.zeros(rows.num_rows, np.int64) for name, rows in inputs.items()}
        return self._run_function(inputs, numbers)[0]

    def manifest(self, result: StepResult) -> Manifest:
        """Return the version that the batch commits with this result of `merge`."""
        table, new, clock_ms = self.table, result.new, self.clock_ms
        if new.num_rows:
            new, latest = self.step.with_expiry(new)
            clock_ms = clock_ms if latest is None else max(clock_ms, latest)
        unchanged = {name: self.before.side_tables[name] for name in self.look_ups}
        sides = unchanged | {
            name: replace(side, ssts=side.ssts.plus(self._write(side.table, result.parts[name])))
            for name, side in self.before.side_tables.items()
            if name in result.parts
        }
        return replace(
            self.after,
            table=table,
            ssts=self.before.ssts.plus(self._write(table, new)),
            clock_ms=clock_ms,
            side_tables=self.after.side_tables | sides,
        )

    def _write(self, table: Table, rows: pa.Table) -> list[Sst]:
        if not rows.num_rows:
            return []
        app, stage, scratch = self.after.app, self.after.stage, self.program.scratch
        ssts = sst.write_partitions(scratch, None, app=app, stage=stage, table=table, rows=rows)
        return [replace(written, root=scratch.url) for written in ssts]

    def merge(self, rows: pa.Table, hashes: tuple[int, int] = EVERY_HASH) -> StepResult:
        """Merge the function's rows into the table. The result always has all columns of the table.

        `hashes` is the range (lowest, highest) of key hashes whose rows may fall due.
        """
        step = self.step
        result = step.apply(step.split_late(rows)[0], self.stored, hashes, self.look_ups)
        if result.new.num_columns:
            return result
        return StepResult(
            sst_schema(self.table).empty_table(), tuple(kind.empty_table() for kind in step.state.emitted_schemas)
        )

    @property
    def step(self) -> Step:
        bound, event_time = self.shape.bound, self.after.event_time
        assert bound is not None  # noqa: S101  a stage with a table has one
        lateness = None
        if self.shape.lateness_columns and event_time is not None and event_time.bound_ms is not None:
            lateness = Lateness(self.shape.lateness_columns, self.before.watermark_ms, event_time.bound_ms)
        return Step(self.table, bound, self.after.row_seq, self.clock_ms, lateness, self.due)

    @property
    def stored(self) -> TableLookUps:
        return TableLookUps(self.program.store, self.program.cache, self.table, self.before.ssts, self.clock_ms)

    @property
    def look_ups(self) -> dict[str, TableLookUps]:
        """Look-ups in the side tables of the state."""
        bound, sides = self.shape.bound, self.before.side_tables
        return {
            name: TableLookUps(self.program.store, self.program.cache, sides[name].table, sides[name].ssts, 0)
            for name in (bound.side_tables if bound is not None else ())
        }

    @property
    def due(self) -> Due | None:
        by, after = self.shape.due_by, self.after.event_time
        return due_span_after(self.before.event_time, by, after.wall_ms if after else None) if by is not None else None

    def written_rows(self) -> pa.Table:
        """Return the rows that the version wrote to its table, with internal columns and tombstones."""
        side = TableSide(self.program.store, self.program.cache, self.table, self.after, self.after.clock_ms)
        return side.read_written(self.after.row_seq)

    def written_parts(self, name: str) -> pa.Table:
        """Return the rows that the version wrote to a table of parts, with internal columns and tombstones."""
        version = as_main_table(self.after, table_name(self.after.stage, name))
        side = TableSide(self.program.store, self.program.cache, self.look_ups[name].table, version)
        return side.read_written(self.after.row_seq)

    def differing_keys(self, written: pa.Table, new: pa.Table) -> RecordNumbers:
        """Return the `_hash` of each key whose two rows differ, or that has a row on one side only, ascending.

        Rows are compared by `snapshot.diff.equality`, since a replay may sum floats in a different order.
        """
        key = arrow_schema(self.table.key)
        written = written.select([*key.names, *(column.name for column in self.table.values), OP])
        new = new.select(written.column_names).cast(written.schema)
        sides = zip((written, new), flag_unmatched_rows(written, new), strict=True)
        different = pa.concat_tables([rows.select(key.names).filter(pa.array(flags)) for rows, flags in sides])
        return np.unique(hash_keys(different.cast(key), key.names))

    def sent_rows(self, rows: pa.Table, hashes: tuple[int, int] = EVERY_HASH) -> pa.Table:
        """Return the rows that the stage sends for the function's rows. `hashes` means the same as in `merge`."""
        if self.shape.bound is None:
            return rows
        if self.is_late_output:
            return self.late_rows(rows)
        emitted = self.merge(rows, hashes).emitted
        names = [output.name for output in self.stage.emits_to]
        return emitted[names.index(self.output)] if len(emitted) > 1 else emitted[0]

    def sent_records(self, rows: pa.Table) -> RecordNumbers | None:
        """Return the record number of each row of `sent_rows`; None if unknown, or if the state made the rows."""
        if not self.knows_records:
            return None
        if self.shape.bound is None:
            return self.record_of(rows)
        if self.is_late_output:
            return self.record_of(self.step.split_late(rows)[1])
        return None

    @property
    def is_late_output(self) -> bool:
        return self.stage.late_output is not None and self.output == self.stage.late_output.name

    def records_of_keys(self, keys: pa.Table) -> RecordNumbers:
        """Return the numbers of the records from which the function made rows of these keys, without late rows.

        Requires `knows_records`.
        """
        return np.unique(self.record_of(filter_by_keys(self.step.split_late(self.rows())[0], keys)))

    def late_rows(self, rows: pa.Table) -> pa.Table:
        columns = self.shape.late_columns
        return self.step.split_late(rows)[1].select(list(columns)).rename_columns(list(columns.values()))

    @property
    def clock_ms(self) -> int:
        return ttl.batch_clock_ms(self.before, self.after.clock_ms)

    def _run_function(
        self, inputs: Mapping[str, pa.Table], numbers: Mapping[str, RecordNumbers]
    ) -> tuple[pa.Table, bool]:
        return self.program.run_function(self.after.stage, inputs, numbers, self.output)


def run_together(replays: Sequence[StageReplay]) -> None:
    """Run a stage's function once over the records of several batches, instead of once per batch.

    Does nothing if the function mixes records; each batch must then be replayed separately.
    """
    starts = np.cumsum([0, *(replay.count for replay in replays)])
    inputs = {name: pa.concat_tables([replay.records[name].rows for replay in replays]) for name in replays[0].records}
    numbers = {
        name: np.concatenate([replay.numbers[name] + start for replay, start in zip(replays, starts, strict=False)])
        for name in inputs
    }
    rows, is_traceable = replays[0]._run_function(inputs, numbers)
    if not is_traceable:
        return
    index, records = rows.schema.get_field_index(RECORD), np.asarray(rows[RECORD].to_numpy(), np.int64)
    of_batch = np.searchsorted(starts, records, side="right") - 1
    for at, replay in enumerate(replays):
        own = of_batch == at
        field = rows.schema.field(index)
        renumbered = rows.filter(pa.array(own)).set_column(
            index, field, pa.array(records[own] - starts[at], field.type)
        )
        replay.__dict__["_all"] = renumbered, True


def filter_by_keys(rows: pa.Table, keys: pa.Table | None) -> pa.Table:
    """Return the rows whose key is in `keys`, matched by `_hash`; all rows if `keys` is None."""
    if keys is None:
        return rows
    return rows.filter(pc.is_in(rows[HASH], pa.array(hash_keys(keys, keys.column_names))))
