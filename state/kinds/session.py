"""Session windows: aggregates over `F.session_window` in a stage's key. Sessions grow with their events.

Each row has a separate session at first, from its time to a gap after it. Overlapping or touching sessions of a key are
merged, as in Spark. The table's key consists of the other key columns, because a session grows. A key's row has a list
of the key's open sessions. When the watermark has passed the end of a session, the session is emitted and leaves the
list.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from msgspec.structs import force_setattr

from ...errors import Refused, Usage
from ...store.sst.schema import DUE
from ...store.versions.manifest import is_internal
from .aggregate import BoundAggregates, SumOverflow
from .kind import BatchMoment, BoundState, Groups, Kind, MergeResult, decode_nested_kind

Numbers = npt.NDArray[np.int64]
TIMES = ("start", "end")
_PARTIALS = "_partials"
"""Internal column with the internal fields of sessions. A rename of the session column does not change its name."""


class Sessions(Kind, frozen=True, tag="sessions"):
    """Aggregates that are emitted once per session. `column` is the session window in the stage's key."""

    state: Any
    column: str = ""
    """Name of the session column. It is not stored, because the column may be renamed."""
    migrates: ClassVar[bool] = False
    key_column: ClassVar[bool] = True
    waiting_rows: ClassVar[str] = "sessions that are open"
    emission: ClassVar[Literal["rows"]] = "rows"

    def __post_init__(self) -> None:
        force_setattr(self, "state", decode_nested_kind(self.state))

    def __str__(self) -> str:
        return f"sessions({self.state})"

    @property
    def declaration(self) -> Kind:
        return Sessions(self.state.declaration)

    def copied_column(self, column: str) -> str | None:
        kind: Kind = self.state
        return kind.copied_column(column)

    def bind(self, rows: Sequence[pa.Schema], key: tuple[str, ...]) -> BoundState:
        inner = self.state.core.bind(rows, key)
        if not isinstance(inner, BoundAggregates):
            raise Usage(
                f"sessions ({self.column!r} in the key) need state=aggregate(...), not {self.state}",
                hint="remove the session from the key, and keep sessions as a list in state=slackwater.update(...)",
            )
        if reserved := sorted({*TIMES} & {*inner.values.names}):
            raise Usage(f"{reserved[0]!r} is a field of each session; give the aggregate another name")
        return BoundSessions(inner, self.column)


@dataclass(frozen=True, slots=True)
class _Spans:
    """Sessions of several keys, sorted by key and start. Sessions of one key neither overlap nor touch."""

    ids: Numbers
    start: Numbers
    """int64[sessions], start of each session in microseconds since 1970 UTC; `end` is in the same unit."""
    end: Numbers
    parts: pa.Table

    def filter(self, mask: npt.NDArray[np.bool_]) -> "_Spans":
        return _Spans(self.ids[mask], self.start[mask], self.end[mask], self.parts.filter(pa.array(mask)))


@dataclass(frozen=True, slots=True)
class BoundSessions(BoundState):
    """Session aggregates, bound to the schema of the rows.

    The table has these value columns: the session column, a list of open sessions with their visible aggregates;
    `_partials`, a list of the same length with their internal fields, if there are any; and `_due_at`, the earliest end
    of an open session.
    """

    due_by = "watermark"
    inner: BoundAggregates
    column: str
    until_ms: int | None = None

    def lateness_columns(self, _window: str | None) -> tuple[str, ...]:
        return (self.column,)

    @property
    def values(self) -> pa.Schema:
        lists = [pa.field(name, pa.list_(pa.struct(fields))) for name, fields in self._lists.items()]
        return pa.schema([*lists, pa.field(DUE, pa.int64())])

    @property
    def needed_columns(self) -> tuple[str, ...]:
        return (self.column, *self.inner.needed_columns)

    @property
    def emitted_schemas(self) -> tuple[pa.Schema, ...]:
        (schema,) = self.inner.emitted_schemas
        index = schema.get_field_index(self.column)
        return (schema.set(index, schema.field(index).remove_metadata()),)

    def at_moment(self, moment: BatchMoment) -> BoundState:
        return replace(self, until_ms=moment.until_ms)

    def merge(self, rows: pa.Table, groups: Groups, keys: pa.Table, old: pa.Table) -> MergeResult:
        stored = self._stored_sessions(old)
        has_ended = (
            _whole_ms(stored.end) <= self.until_ms if self.until_ms is not None else np.zeros(len(stored.end), bool)
        )
        try:
            sessions = self._merge_rows(rows, groups, stored.filter(~has_ended))
        except SumOverflow as error:
            raise error.to_bad_record(keys) from None
        counts = np.bincount(sessions.ids, minlength=groups.num)
        ended = stored.filter(has_ended)
        columns: dict[str, pa.Array | pa.ChunkedArray] = dict(self._columns(ended))
        of = keys.take(pa.array(ended.ids))
        times = pa.StructArray.from_arrays([columns[name] for name in TIMES], fields=list(self._kind))
        columns |= {name: of[name] for name in of.column_names} | {self.column: times}
        (schema,) = self.emitted_schemas
        emitted = pa.table([columns[name] for name in schema.names], schema=schema)
        return MergeResult(self._values(sessions, counts), deleted=counts == 0, emitted=(emitted,))

    @property
    def _lists(self) -> dict[str, list[pa.Field]]:
        times = [pa.field(name, self._kind.field(name).type) for name in TIMES]
        visible = [field for field in self.inner.values if not is_internal(field.name)]
        inside = [field for field in self.inner.values if is_internal(field.name)]
        return {self.column: [*times, *visible]} | ({_PARTIALS: inside} if inside else {})

    @property
    def _kind(self) -> pa.StructType:
        return self.inner.emitted_schemas[0].field(self.column).type

    def _stored_sessions(self, old: pa.Table) -> _Spans:
        columns: dict[str, pa.Array] = {}
        for name in self._lists:
            flat = pc.list_flatten(old[name].combine_chunks())
            columns |= {field.name: part for field, part in zip(flat.type, flat.flatten(), strict=True)}
        lengths = pc.fill_null(pc.list_value_length(old[self.column]), 0).to_numpy()
        ids = np.repeat(np.arange(old.num_rows), lengths)
        parts = pa.table([columns[name] for name in self.inner.values.names], schema=self.inner.values)
        return _Spans(ids, _us(columns["start"]), _us(columns["end"]), parts)

    def _merge_rows(self, rows: pa.Table, groups: Groups, stored: _Spans) -> _Spans:
        if not rows.num_rows:
            return stored
        spans = rows[self.column].combine_chunks()
        starts, ends = (pc.struct_field(spans, name) for name in TIMES)
        if starts.null_count or ends.null_count:
            raise Refused(
                f"a row has no session in {self.column!r}",
                hint="filter such rows out: F.session_window is null if the time is null",
            )
        ids = np.concatenate([stored.ids, groups.ids.astype(np.int64)])
        start, end = np.concatenate([stored.start, _us(starts)]), np.concatenate([stored.end, _us(ends)])
        order, first, number = _sessions(ids, start, end)
        try:
            parts = self._parts(rows, number, stored)
        except SumOverflow as error:
            error.row = int(ids[order][first][error.row])
            raise
        return _Spans(ids[order][first], start[order][first], np.maximum.reduceat(end[order], first), parts)

    def _parts(self, rows: pa.Table, number: Numbers, stored: _Spans) -> pa.Table:
        old_numbers, old = _combine_parts(number[: len(stored.ids)], stored.parts, self.inner)
        # Aggregates take rows sorted by group, which is a session here, with the stored row of each group.
        new = number[len(stored.ids) :]
        order = np.argsort(new, kind="stable")
        new_numbers, begins, ids_of_rows = np.unique(new[order], return_index=True, return_inverse=True)
        index = np.searchsorted(old_numbers, new_numbers)
        exists = np.append(old_numbers, -1)[index] == new_numbers
        previous = old.take(pa.array(index, mask=~exists))
        sorted_rows = rows.take(pa.array(order)).combine_chunks()
        try:
            added = self.inner.add_rows(sorted_rows, Groups(ids_of_rows.astype(np.int32), begins), previous)
        except SumOverflow as error:
            error.row = int(new_numbers[error.row])
            raise
        alone = ~np.isin(old_numbers, new_numbers)
        all_numbers = np.concatenate([old_numbers[alone], new_numbers])
        return pa.concat_tables([old.filter(pa.array(alone)), added]).take(pa.array(np.argsort(all_numbers)))

    def _values(self, sessions: _Spans, counts: Numbers) -> pa.Table:
        offsets = pa.array(np.concatenate([[0], np.cumsum(counts)]), pa.int32())
        columns = self._columns(sessions)
        lists = []
        for fields in self._lists.values():
            structs = pa.StructArray.from_arrays([columns[field.name] for field in fields], fields=fields)
            lists.append(pa.ListArray.from_arrays(offsets, structs))
        nonempty = np.flatnonzero(counts)
        due = np.zeros(len(counts), np.int64)
        if nonempty.size:
            due[nonempty] = np.minimum.reduceat(_whole_ms(sessions.end), (np.cumsum(counts) - counts)[nonempty])
        return pa.table([*lists, pa.array(due, mask=counts == 0)], schema=self.values)

    def _columns(self, sessions: _Spans) -> dict[str, pa.Array]:
        bounds = {"start": sessions.start, "end": sessions.end}
        times = {name: pa.array(at).cast(self._kind.field(name).type) for name, at in bounds.items()}
        return times | {name: sessions.parts[name].combine_chunks() for name in sessions.parts.column_names}


def _sessions(ids: Numbers, start: Numbers, end: Numbers) -> tuple[Numbers, Numbers, Numbers]:
    order = np.lexsort((start, ids))
    ids, start, end = ids[order], start[order], end[order]
    # One running maximum serves all keys: ends are replaced by ranks, offset so that later keys have larger ones.
    ends, rank = np.unique(end, return_inverse=True)
    base = ids * len(ends)
    reached = ends[np.maximum.accumulate(base + rank) - base]
    begins = np.ones(len(ids), bool)
    begins[1:] = (ids[1:] != ids[:-1]) | (start[1:] > reached[:-1])
    number = np.empty(len(ids), np.int64)
    number[order] = np.cumsum(begins) - 1
    return order, np.flatnonzero(begins), number


def _combine_parts(numbers: Numbers, parts: pa.Table, aggregates: BoundAggregates) -> tuple[Numbers, pa.Table]:
    while (repeats := numbers[1:] == numbers[:-1]).any():
        begins = np.flatnonzero(np.append(True, ~repeats))
        place = np.arange(len(numbers)) - np.repeat(begins, np.diff(begins, append=len(numbers)))
        later = place % 2 == 1
        earlier = np.append(later[1:], False)
        try:
            both = aggregates.combine(parts.filter(pa.array(earlier)), parts.filter(pa.array(later)))
        except SumOverflow as error:
            error.row = int(numbers[later][error.row])
            raise
        alone = ~earlier & ~later
        order = np.argsort(np.concatenate([np.flatnonzero(alone), np.flatnonzero(earlier)]))
        parts = pa.concat_tables([parts.filter(pa.array(alone)), both]).take(pa.array(order))
        numbers = numbers[~later]
    return numbers, parts


def _us(times: pa.Array) -> Numbers:
    return np.asarray(times.cast(pa.int64()).to_numpy(), np.int64)


def _whole_ms(times: Numbers) -> Numbers:
    return -(times // -1000)
