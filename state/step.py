"""Application of one batch to a table: computes the rows to write, the rows to emit, and the late rows to set aside.

A task applies the rows of its hash range; a replay applies all rows of a past batch.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ..errors import Refused, SlackwaterError
from ..store.read.multi_get import DueRows, TableLookUps
from ..store.sst import schema
from ..store.sst.hashing import hash_keys, normalise_keys, same_keys, sort_keys
from ..store.sst.schema import DUE, HASH, OP, PUT, SEQ
from ..store.versions.entries.hash_ranges import hash_bounds
from ..store.versions.manifest import Table
from .event_time import Due, Lateness
from .failing import RECORD, UnrelatedFailure, merge_reporting_failures
from .kinds.kind import BoundState, Groups, MergeResult

EVERY_HASH = hash_bounds(0, 1)
_PREVIOUS = "_prev_seq"


@dataclass(frozen=True, slots=True)
class StepResult:
    """Rows to write and rows to emit, for a table or for one hash range. `next_ms` is the next due time."""

    new: pa.Table
    """`_hash`, key, values, `_seq`, `_op` and `_prev_seq` of each changed key; empty table if nothing changed.

    Rows that fell due come first, then rows of the batch; each part is sorted by `_hash`.
    """
    emitted: tuple[pa.Table, ...] = ()
    next_ms: int | None = None
    parts: Mapping[str, pa.Table] = field(default_factory=dict)
    """Rows to write to side tables, by the side table's name, with the internal columns of an SST."""


NO_LOOK_UPS: Mapping[str, TableLookUps] = {}


@dataclass(slots=True)
class PartLookUps:
    """Look-ups in tables of parts, by side-table name, while user code runs. Keeps the error of a failed look-up."""

    tables: Mapping[str, TableLookUps]
    error: SlackwaterError | None = None

    def find(self, name: str, keys: pa.Table) -> tuple[npt.NDArray[np.int64], pa.Table]:
        try:
            if name not in self.tables:
                raise Refused(
                    f"the stage has no table of the parts of {name!r}, so they cannot be read",
                    hint="`slackwater migrate` adds it",
                )
            return self.tables[name].get_parts(keys)
        except SlackwaterError as error:
            self.error = error
            raise UnrelatedFailure from error


@dataclass(frozen=True, slots=True)
class Step:
    """Computation of one batch for a table: finds late rows, merges the others, and handles rows that fall due."""

    table: Table
    state: BoundState
    seq: int
    clock_ms: int
    lateness: Lateness | None = None
    due: Due | None = None
    max_reported: int | None = None
    """Maximum number of keys or records in a `StateFailed`. If None, the function's own error is raised."""

    def split_late(self, rows: pa.Table) -> tuple[pa.Table, pa.Table]:
        if self.lateness is None or not (late := self.lateness.mask(rows)).any():
            return rows, rows.slice(0, 0)
        return rows.filter(pa.array(~late)), rows.filter(pa.array(late))

    def apply(
        self,
        rows: pa.Table,
        stored: TableLookUps,
        hashes: tuple[int, int] | None = EVERY_HASH,
        parts: Mapping[str, TableLookUps] = NO_LOOK_UPS,
    ) -> StepResult:
        """Merge a batch's rows into a table, and handle the stored rows that fall due.

        A key with rows in the batch does not fall due in the same batch: the due time of its new row is set after
        `due.until_ms`. A row that fell due, and is written with a due time in the past, does not fall due again.

        `rows` are the rows that are not late, in any order, with `_hash`, the key and the columns that the state needs.
        `hashes` is the lowest and the highest hash of rows that may fall due, None for no rows. `parts` are look-ups in
        the side tables that the state has. Raises `StateFailed` (see `max_reported`), and errors of the user's function
        and of look-ups.
        """
        look_ups = PartLookUps(parts)
        try:
            return self._apply(self.state_with(look_ups), rows, stored, hashes)
        finally:
            # The function may have caught the error, but its own errors count as errors of records.
            if look_ups.error is not None:
                raise look_ups.error

    def _apply(
        self, state: BoundState, rows: pa.Table, stored: TableLookUps, hashes: tuple[int, int] | None
    ) -> StepResult:
        if self.due is None:
            if not rows.num_rows:
                return StepResult(pa.table({}))
            new, merged = self._merged(state, rows, stored)
            return StepResult(new, merged.emitted, parts=self._part_rows([merged]))
        written: list[tuple[pa.Table, MergeResult]] = []
        times: list[int | None] = []
        if self.due.pending and hashes is not None:
            due_rows = stored.get_due_rows(self.due.span, hashes)
            times.append(due_rows.next_ms)
            untouched = _keys_without_rows(due_rows.keys, rows, self._key)
            if untouched.any():
                new, merged = self._merge_due(state, due_rows, untouched, rows.schema)
                written.append((_postpone_due(new, self.due.until_ms, due_again=False), merged))
        if rows.num_rows:
            new, merged = self._merged(state, rows, stored)
            written.append((_postpone_due(new, self.due.until_ms, due_again=True), merged))
        if not written:
            return StepResult(pa.table({}), next_ms=times[0] if times else None)
        new = pa.concat_tables([rows for rows, _ in written])
        times.append(pc.min(new[DUE]).as_py())
        emitted = [merged.emitted for _, merged in written if merged.emitted]
        next_ms = min((at for at in times if at is not None), default=None)
        parts_written = self._part_rows([merged for _, merged in written])
        return StepResult(new, tuple(map(pa.concat_tables, zip(*emitted, strict=True))), next_ms, parts_written)

    def with_expiry(self, new: pa.Table) -> tuple[pa.Table, int | None]:
        """Return new rows with their expiry times, and the largest event time of the rows.

        The event time is None if the table does not expire rows by event time.
        """
        new = schema.with_expiry(new, self.table, self.clock_ms)
        return new, schema.latest_event_ms(new, self.table.ttl)

    def state_with(self, look_ups: PartLookUps) -> BoundState:
        """Return the state with the times of the batch, and with look-ups in its tables of parts."""
        state = self.state.with_parts(look_ups.find) if self.state.side_tables else self.state
        return state.at_moment(self.due) if self.due is not None else state

    def _part_rows(self, merged: Sequence[MergeResult]) -> dict[str, pa.Table]:
        rows: dict[str, pa.Table] = {}
        for name in dict.fromkeys(name for result in merged for name in result.parts):
            new = pa.concat_tables([result.parts[name] for result in merged if name in result.parts])
            hashes, seqs = hash_keys(new, self._key), pa.repeat(pa.scalar(self.seq, pa.int64()), new.num_rows)
            rows[name] = new.add_column(0, HASH, pa.array(hashes)).append_column(SEQ, seqs)
        return rows

    @property
    def _key(self) -> list[str]:
        return [column.name for column in self.table.key]

    def _merged(self, state: BoundState, rows: pa.Table, stored: TableLookUps) -> tuple[pa.Table, MergeResult]:
        rows, groups = group_by_key(rows, self._key)
        starts = pa.array(groups.starts)
        hashes = rows[HASH].take(starts).combine_chunks()
        keys = rows.select(self._key).take(starts)
        numbers = hashes.to_numpy()
        old, exists, seqs = stored.get_rows(numbers, keys)
        needed = rows.select([*self._key, *state.needed_columns])
        if self.max_reported is None:
            merged = state.merge(needed, groups, keys, old)
        else:
            records = rows[RECORD].to_numpy() if RECORD in rows.column_names else None
            merged = merge_reporting_failures(
                state, needed, groups, keys, old, numbers, records=records, max_reported=self.max_reported
            )
        return self._rows_to_write(hashes, keys, merged, exists, seqs), merged

    def _merge_due(
        self, state: BoundState, due_rows: DueRows, chosen: npt.NDArray[np.bool_], schema: pa.Schema
    ) -> tuple[pa.Table, MergeResult]:
        mask, no_rows = pa.array(chosen), schema.empty_table()
        keys = due_rows.keys.filter(mask).select(self._key).cast(no_rows.select(self._key).schema)
        groups = Groups(np.empty(0, np.int32), np.zeros(keys.num_rows, np.int64))
        needed = no_rows.select([*self._key, *state.needed_columns])
        merged = state.merge(needed, groups, keys, due_rows.values.filter(mask))
        exists, hashes = np.ones(keys.num_rows, bool), due_rows.keys[HASH].filter(mask)
        return self._rows_to_write(hashes, keys, merged, exists, due_rows.seqs[chosen]), merged

    def _rows_to_write(
        self,
        hashes: pa.Array | pa.ChunkedArray,
        keys: pa.Table,
        merged: MergeResult,
        exists: npt.NDArray[np.bool_],
        previous_seqs: npt.NDArray[np.int64],
    ) -> pa.Table:
        count = keys.num_rows
        deleted = merged.deleted if merged.deleted is not None else np.zeros(count, bool)
        # A deleted key that was not stored needs no tombstone.
        write = ~(deleted & ~exists) if merged.changed is None else merged.changed & ~(deleted & ~exists)
        new = pa.table(
            [
                hashes,
                *keys.columns,
                *merged.values.columns,
                pa.repeat(pa.scalar(self.seq, pa.int64()), count),
                pa.array(deleted.astype(np.int8)),
                pa.array(previous_seqs),
            ],
            names=[HASH, *keys.column_names, *merged.values.column_names, SEQ, OP, _PREVIOUS],
        )
        return new if write.all() else new.filter(pa.array(write))


def group_by_key(rows: pa.Table, key: Sequence[str]) -> tuple[pa.Table, Groups]:
    """Sort rows by (`_hash`, key), and return them with their groups by key.

    Keys are normalised: -0.0 becomes 0.0, and all NaNs are equal.
    """
    rows = normalise_keys(rows, key)
    hashes = rows[HASH].to_numpy()
    order = np.argsort(hashes, kind="stable")
    rows = rows.take(pa.array(order)).combine_chunks()
    hashes = hashes[order]
    # Rows with the same hash as the row before. Nearly always they also have the same key.
    following = np.flatnonzero(hashes[1:] == hashes[:-1]) + 1
    begins = np.ones(rows.num_rows, bool)
    begins[following] = False
    if not _same_as_before(rows, key, following).all():
        # Two keys share a hash: rare enough to sort all rows again, by hash and key.
        rows = rows.take(pa.array(sort_keys(hashes, rows.select(list(key)))[0]))
        begins[following[~_same_as_before(rows, key, following)]] = True
    ids = (np.cumsum(begins) - 1).astype(np.int32)
    return rows, Groups(ids, np.flatnonzero(begins))


def _same_as_before(rows: pa.Table, key: Sequence[str], at: npt.NDArray[np.intp]) -> npt.NDArray[np.bool_]:
    keys = rows.select(list(key))
    return same_keys(keys.take(pa.array(at)), keys.take(pa.array(at - 1)), key)


def _keys_without_rows(keys: pa.Table, rows: pa.Table, names: list[str]) -> npt.NDArray[np.bool_]:
    # Few rows of a batch share a hash with a due row; only these are compared by key.
    same_hash = np.isin(rows[HASH].to_numpy(), keys[HASH].to_numpy())
    if not same_hash.any():
        return np.ones(keys.num_rows, bool)
    batch = normalise_keys(rows.select([HASH, *names]).filter(pa.array(same_hash)), names).cast(keys.schema)
    both = pa.concat_tables([batch, keys])
    order, repeats = sort_keys(both[HASH].to_numpy(), both.select(names))
    same = np.zeros(both.num_rows, bool)
    same[order] = repeats
    return ~same[batch.num_rows :]


def _postpone_due(rows: pa.Table, until_ms: int | None, *, due_again: bool) -> pa.Table:
    never = pa.scalar(None, pa.int64())
    due = pc.if_else(pc.equal(rows[OP], PUT), rows[DUE], never)
    if until_ms is not None:
        due = pc.if_else(pc.less_equal(due, until_ms), pa.scalar(until_ms + 1) if due_again else never, due)
    index = rows.schema.get_field_index(DUE)
    return rows.set_column(index, rows.schema.field(DUE), due)
