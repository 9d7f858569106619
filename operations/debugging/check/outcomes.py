"""Outcome of one run of a version (table rows and sent rows), and the comparison of the outcomes of two runs.

All runs use the original batch's times for lateness, due rows and expiry, because these times depend on batch
boundaries.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from msgspec.structs import replace

from ....pipeline.api.topic import Repartition
from ....pipeline.spark.clock import running_clocks, stopped_clocks
from ....pipeline.spark.user_errors import as_user_error
from ....snapshot.diff.candidates import changed_keys
from ....snapshot.diff.equality import Flags, flag_unmatched_rows, sort_list_elements
from ....snapshot.diff.key_changes import KeyChanges
from ....snapshot.diff.stored_rows import distinct_keys
from ....state.kinds.kind import BatchMoment, BoundState, FindParts, Groups, MergeResult
from ....state.step import Step
from ....store.read.multi_get import TableLookUps
from ....store.sst import writer as sst
from ....store.sst.hashing import hash_keys, normalise_keys, partition_of
from ....store.sst.schema import HASH, arrow_schema
from ....store.sst.ttl import BEFORE_FIRST_EVENT_MS
from ....store.versions.entries import hash_ranges
from ....store.versions.entries.ssts import Sst, Ssts
from ....store.versions.manifest import Table
from ....store.versions.side_tables import part_tables, table_name
from ..replay.compare import RowDifferences, SentRows, cast_to_sent, drop_record_numbers
from ..replay.stage_replay import StageReplay


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """Rows that one run of a version sent, and the table that it left."""

    sent: Mapping[str, tuple[pa.Table, ...]]
    keys: pa.Table | None = None
    """`_hash` and key of the rows written, possibly with duplicates; None for a stage without a table."""
    ssts: Ssts = field(default_factory=Ssts)
    sides: Mapping[str, Ssts] = field(default_factory=dict)
    """SSTs of the tables of parts, by side-table name."""
    max_abs_float: float = 0.0


@dataclass(frozen=True, slots=True)
class _FixedTimeState(BoundState):
    state: BoundState
    at_ms: int

    @property
    def needed_columns(self) -> tuple[str, ...]:
        return self.state.needed_columns

    @property
    def side_tables(self) -> Mapping[str, tuple[pa.Schema, pa.Schema]]:
        return self.state.side_tables

    def at_moment(self, moment: BatchMoment) -> BoundState:
        return dataclasses.replace(self, state=self.state.at_moment(moment))

    def with_parts(self, find: FindParts) -> BoundState:
        def find_in_time(name: str, keys: pa.Table) -> tuple[npt.NDArray[np.int64], pa.Table]:
            with running_clocks():
                return find(name, keys)

        return dataclasses.replace(self, state=self.state.with_parts(find_in_time))

    def merge(self, rows: pa.Table, groups: Groups, keys: pa.Table, old: pa.Table) -> MergeResult:
        # Stop the clock only during the merge: requests to the store are signed with the current time.
        with stopped_clocks(self.at_ms):
            return self.state.merge(rows, groups, keys, old)


def compute_outcome(
    replay: StageReplay, rows_by_output: Mapping[str, Sequence[pa.Table]], partitions: int, at_ms: int
) -> RunOutcome:
    """Return the outcome of a run, computed from the rows that the user's function returned.

    `rows_by_output` has one table for each batch, by output; for a stage with state, all rows have the key "". Raises
    `Refused` if the state's function fails, and the errors of look-ups in the state.
    """
    if replay.shape.bound is None:
        common = rows_by_output.get("", ())
        sent = {output.name: rows_by_output.get(output.name, common) for output in replay.stage.writes}
        return RunOutcome({name: tuple(map(drop_record_numbers, batches)) for name, batches in sent.items()})
    with as_user_error(f"the state of stage {replay.after.stage!r}"):
        return _Run(replay, partitions, at_ms).run(rows_by_output[""])


@dataclass
class _Run:
    replay: StageReplay
    partitions: int
    at_ms: int
    ssts: Ssts = field(default_factory=Ssts)
    sides: dict[str, Ssts] = field(default_factory=dict)
    keys: list[pa.Table] = field(default_factory=list)
    sent: dict[str, list[pa.Table]] = field(default_factory=dict)

    def run(self, batches: Sequence[pa.Table]) -> RunOutcome:
        replay, step = self.replay, self.replay.step
        self.ssts = replay.before.ssts
        self.sides = {name: replay.before.side_tables[name].ssts for name in replay.look_ups}
        for number, rows in enumerate(batches):
            is_last = number == len(batches) - 1
            # Rows fall due in the last batch only: a key that the original batch wrote never falls due in it.
            due = step.due and dataclasses.replace(step.due, pending=step.due.pending and is_last)
            state = _FixedTimeState(step.state, self.at_ms)
            self._merge_batch(rows, dataclasses.replace(step, state=state, seq=step.seq + number, due=due))
        sent = {name: tuple(rows) for name, rows in self.sent.items()}
        keys = pa.concat_tables([_key_schema(replay).empty_table(), *self.keys])
        return RunOutcome(sent, keys, self.ssts, self.sides, find_max_abs_float(batches))

    @property
    def look_ups(self) -> dict[str, TableLookUps]:
        return {
            name: dataclasses.replace(stored, ssts=self.sides[name]) for name, stored in self.replay.look_ups.items()
        }

    def _merge_batch(self, rows: pa.Table, step: Step) -> None:
        replay, program = self.replay, self.replay.program
        in_time, late = step.split_late(rows)
        stored = TableLookUps(program.store, program.cache, replay.table, self.ssts, step.clock_ms)
        partition_numbers = partition_of(in_time[HASH].to_numpy(), self.partitions)
        results = []
        for partition in range(self.partitions):
            partition_rows = in_time.filter(pa.array(partition_numbers == partition))
            if partition_rows.num_rows or (step.due is not None and step.due.pending):
                hashes = hash_ranges.hash_bounds(partition, self.partitions)
                results.append(step.apply(partition_rows, stored, hashes, self.look_ups))
        new = [result.new for result in results if result.new.num_columns]
        self._add_emitted([result.emitted for result in results if result.emitted])
        if replay.stage.late_output is not None:
            columns = replay.shape.late_columns
            rows = late.select(list(columns)).rename_columns(list(columns.values()))
            self.sent.setdefault(replay.stage.late_output.name, []).append(rows)
        for name, stored in self.look_ups.items():
            if parts := [result.parts[name] for result in results if name in result.parts]:
                self.sides[name] = self.sides[name].plus(self._write(stored.table, pa.concat_tables(parts)))
        if new and (written := pa.concat_tables(new)).num_rows:
            # Without time to live, later batches see these rows, as a single batch of all records would.
            self.ssts = self.ssts.plus(self._write(replay.table, written))
            schema = _key_schema(replay)
            self.keys.append(written.select(schema.names).cast(schema))

    def _write(self, table: Table, rows: pa.Table) -> tuple[Sst, ...]:
        after, scratch = self.replay.after, self.replay.program.scratch
        whole = replace(table, partitions=1, ttl=None)
        written = sst.write_sst(scratch, None, app=after.app, stage=after.stage, table=whole, partition=0, rows=rows)
        return (replace(written, root=scratch.url),)

    def _add_emitted(self, parts: Sequence[tuple[pa.Table, ...]]) -> None:
        outputs, schemas = self.replay.stage.emits_to, self.replay.step.state.emitted_schemas
        tables = [
            pa.concat_tables([schema.empty_table(), *(part[at] for part in parts)]) for at, schema in enumerate(schemas)
        ]
        for output, rows in zip(outputs, tables if len(tables) > 1 else tables * len(outputs), strict=False):
            self.sent.setdefault(output.name, []).append(rows)


def committed(replay: StageReplay, sent: Mapping[str, SentRows]) -> RunOutcome:
    sent_tables = {name: (sent_rows.rows,) for name, sent_rows in sent.items() if sent_rows.rows is not None}
    if replay.shape.bound is None:
        return RunOutcome(sent_tables)
    schema = _key_schema(replay)
    sides = {name: side.ssts for name, side in part_tables(replay.after).items()}
    return RunOutcome(sent_tables, replay.written_rows().select(schema.names).cast(schema), replay.after.ssts, sides)


def find_max_abs_float(tables: Sequence[pa.Table]) -> float:
    """Return the largest absolute value in all float columns. The tolerance for sums depends on it."""
    maxima = [0.0]
    for column in (column for table in tables for column in table.columns if pa.types.is_floating(column.type)):
        values = np.abs(column.drop_null().to_numpy().astype(np.float64))
        maxima.append(float(values[np.isfinite(values)].max(initial=0.0)))
    return max(maxima)


def _key_schema(replay: StageReplay) -> pa.Schema:
    return pa.schema([(HASH, pa.int64()), *arrow_schema(replay.table.key)])


@dataclass(frozen=True, slots=True)
class Differences:
    """Differences between two runs of a version; falsy without differences."""

    keys: KeyChanges | None = None
    sent: dict[str, RowDifferences] = field(default_factory=dict)
    parts: dict[str, RowDifferences] = field(default_factory=dict)
    """Differences between tables of parts, by table name."""
    failed: str = ""

    def __bool__(self) -> bool:
        return bool(self.keys or self.sent or self.parts or self.failed)


def compare_outcomes(replay: StageReplay, first: RunOutcome, second: RunOutcome) -> Differences:
    """Return the differences between two runs that a deterministic program cannot have.

    Floats are compared by `snapshot.diff.equality`. If the second run has several batches, the state's kind
    (`Kind.emission`) decides how emitted rows are compared. Emitted rows that are also rows of the table are not
    compared. If a function emits rows in each batch, the rows from the last batch of each key must also occur in the
    first run.
    """
    largest = max(first.max_abs_float, second.max_abs_float)
    keys = None
    if first.keys is not None and second.keys is not None:
        keys = _differing_keys(replay, first, second, largest)
    sent = {}
    for name in first.sent.keys() & second.sent.keys():
        if different := _sent_differences(replay, name, first.sent[name], second.sent[name], largest):
            sent[name] = different
    parts = _part_differences(replay, first, second, largest)
    return Differences(keys or None, dict(sorted(sent.items())), parts)


def _differing_keys(replay: StageReplay, first: RunOutcome, second: RunOutcome, largest: float) -> KeyChanges | None:
    touched = pa.concat_tables([run.keys for run in (first, second) if run.keys is not None])
    # Rows that have expired since were visible when the batch merged them.
    first_version, second_version = (
        replace(replay.after, table=replay.table, ssts=run.ssts, clock_ms=BEFORE_FIRST_EVENT_MS)
        for run in (first, second)
    )
    changes = changed_keys(replay.program.store, replay.program.cache, first_version, second_version, touched)
    assert changes is not None  # noqa: S101  it has a table
    state = replay.stage.state
    arrange = sort_list_elements if state is not None and state.in_any_order else lambda rows: rows
    rows = [
        pa.Table.from_arrays([*changes.keys.columns, *arrange(side).columns, pa.array(present)], names=_names(changes))
        for side, present in ((changes.before, changes.had_row), (changes.after, changes.has_row))
    ]
    changes = changes.take(np.flatnonzero(flag_unmatched_rows(rows[0], rows[1], largest)[0])).changed()
    return changes.sorted_by_key() if len(changes) else None


def _part_differences(
    replay: StageReplay, first: RunOutcome, second: RunOutcome, largest: float
) -> dict[str, RowDifferences]:
    touched = [run.keys for run in (first, second) if run.keys is not None and run.keys.num_rows]
    if not touched:
        return {}
    keys = distinct_keys(pa.concat_tables(touched)).drop_columns([HASH])
    differences = {}
    for name, look_ups in replay.look_ups.items():
        first_parts, second_parts = (
            dataclasses.replace(look_ups, ssts=run.sides[name]).get_parts(keys)[1] for run in (first, second)
        )
        if different := RowDifferences.compare(first_parts, second_parts, largest):
            differences[table_name(replay.after.stage, name)] = different
    return differences


def _names(changes: KeyChanges) -> list[str]:
    return [str(at) for at in range(changes.keys.num_columns + changes.before.num_columns + 1)]


def _sent_differences(
    replay: StageReplay, name: str, first: Sequence[pa.Table], second: Sequence[pa.Table], largest: float
) -> RowDifferences:
    first_rows = pa.concat_tables(first)
    batches = [cast_to_sent(batch, first_rows.schema, name) for batch in second]
    second_rows, state = pa.concat_tables(batches), replay.stage.state
    late = replay.stage.late_output
    is_by_batch = state is not None and len(batches) > 1 and (late is None or late.name != name)
    if state is not None and is_by_batch and state.emission == "table":
        return RowDifferences(first_rows.slice(0, 0), first_rows.slice(0, 0))
    unlike_rows = RowDifferences.compare(first_rows, second_rows, largest)
    if unlike_rows and state is not None and is_by_batch and state.emission == "function":
        output = next(candidate for candidate in replay.stage.writes if candidate.name == name)
        candidates = [[column.name for column in replay.table.key]]
        candidates += [list(output.key)] if isinstance(output, Repartition) else []
        key = next((names for names in candidates if {*names} <= {*first_rows.column_names}), [])
        second_rows = _last_rows_by_key(batches, key)
        alone = first_rows.filter(pa.array(_unmatched_flags(first_rows, second_rows, key)))
        return RowDifferences(alone, RowDifferences.compare(first_rows, second_rows, largest).added)
    return unlike_rows


def _last_rows_by_key(batches: Sequence[pa.Table], key: Sequence[str]) -> pa.Table:
    parts = [batches[-1]]
    for rows in reversed(batches[:-1]):
        parts.append(rows.filter(pa.array(_unmatched_flags(rows, pa.concat_tables(parts), key))))
    return pa.concat_tables(reversed(parts))


def _unmatched_flags(rows: pa.Table, other_rows: pa.Table, key: Sequence[str]) -> Flags:
    if not key:
        return np.full(rows.num_rows, not other_rows.num_rows)
    hashes = [hash_keys(normalise_keys(side.select(list(key)), key), key) for side in (rows, other_rows)]
    return ~np.asarray(pc.is_in(pa.array(hashes[0]), pa.array(hashes[1])))
