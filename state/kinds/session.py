"""Sessions: aggregates over `F.session_window` in a stage's key, windows that grow with their events.

Each row comes with a session of its own, from its time to a gap after it; those of a key that overlap or touch are one,
as in Spark. So a session is no part of what identifies a row of the table: that is the rest of the key, and its row has
a list of the open sessions. When the watermark has passed the end of one, it is emitted and leaves the list.
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
from ...store.sst.types import DUE
from ...store.versions.manifest import is_internal
from .aggregate import BoundAggregates, NoRoom
from .kind import BatchMoment, Bound, Groups, Kind, Merged, as_kind

Numbers = npt.NDArray[np.int64]
TIMES = ("start", "end")
_PARTIALS = "_partials"
"""The internal column with what aggregates keep of sessions besides; it stays when the session gets another name."""


class Sessions(Kind, frozen=True, tag="sessions"):
    """Aggregates that are emitted once a session, where `column` of the key is the session."""

    state: Any
    """`Final`, of what is kept of each session."""
    column: str = ""
    """Not stored: it may get another name."""
    migrates: ClassVar[bool] = False
    key_column: ClassVar[bool] = True
    waiting: ClassVar[str] = "sessions that are open"
    emission: ClassVar[Literal["rows"]] = "rows"

    def __post_init__(self) -> None:
        force_setattr(self, "state", as_kind(self.state))

    def __str__(self) -> str:
        return f"sessions({self.state})"

    @property
    def declaration(self) -> Kind:
        return Sessions(self.state.declaration)

    def carried(self, column: str) -> str | None:
        kind: Kind = self.state
        return kind.carried(column)

    def bind(self, rows: Sequence[pa.Schema], key: tuple[str, ...]) -> Bound:
        """Fix the columns; `key` has the session. Raises as well `Usage` for a state that is no `aggregate(...)`."""
        inner = self.state.core.bind(rows, key)
        if not isinstance(inner, BoundAggregates):
            raise Usage(
                f"sessions ({self.column!r} of the key) are of state=aggregate(...), not of {self.state}",
                hint="key by what the sessions are of, and keep them as a list in state=slackwater.update(...)",
            )
        if taken := sorted({*TIMES} & {*inner.values.names}):
            raise Usage(f"column {taken[0]!r} of a session is its time already; give the aggregate another name")
        return BoundSessions(inner, self.column)


@dataclass(frozen=True, slots=True)
class _Spans:
    """Sessions of several keys, by key and start; those of a key neither overlap nor touch."""

    ids: Numbers
    """int64[sessions], the position of each one's key."""
    start: Numbers
    """int64[sessions], in microseconds, as is `end`."""
    end: Numbers
    parts: pa.Table
    """What the aggregates keep of each."""

    def filter(self, mask: npt.NDArray[np.bool_]) -> "_Spans":
        return _Spans(self.ids[mask], self.start[mask], self.end[mask], self.parts.filter(pa.array(mask)))


@dataclass(frozen=True, slots=True)
class BoundSessions(Bound):
    """Sessions over rows of a known schema.

    The table's value columns are the sessions with what users see of their aggregates, a list named as the key column;
    `_partials`, where aggregates keep more, a list as long with the rest; and `_due_at`, when the first session ends.
    """

    due_by = "watermark"
    inner: BoundAggregates
    """The aggregates, with the session in their key."""
    column: str
    until_ms: int | None = None
    """The watermark: sessions that end by then are over. None where none is known yet."""

    def late_by(self, _window: str | None) -> tuple[str, ...]:
        return (self.column,)

    @property
    def values(self) -> pa.Schema:
        lists = [pa.field(name, pa.list_(pa.struct(fields))) for name, fields in self._lists.items()]
        return pa.schema([*lists, pa.field(DUE, pa.int64())])

    @property
    def needs(self) -> tuple[str, ...]:
        return (self.column, *self.inner.needs)

    @property
    def emits(self) -> tuple[pa.Schema, ...]:
        """A session that is emitted is a window as any other: it does not grow any more."""
        (schema,) = self.inner.emits
        at = schema.get_field_index(self.column)
        return (schema.set(at, schema.field(at).remove_metadata()),)

    def at_moment(self, moment: BatchMoment) -> Bound:
        return replace(self, until_ms=moment.until_ms)

    def merge(self, rows: pa.Table, groups: Groups, keys: pa.Table, old: pa.Table) -> Merged:
        """With rows for none of the groups, sessions end and nothing else."""
        known = self._known(old)
        over = _whole_ms(known.end) <= self.until_ms if self.until_ms is not None else np.zeros(len(known.end), bool)
        try:
            sessions = self._joined(rows, groups, known.filter(~over))
        except NoRoom as error:
            raise error.of(keys) from None
        counts = np.bincount(sessions.ids, minlength=groups.num)
        ended = known.filter(over)
        columns: dict[str, pa.Array | pa.ChunkedArray] = dict(self._columns(ended))
        of = keys.take(pa.array(ended.ids))
        times = pa.StructArray.from_arrays([columns[name] for name in TIMES], fields=list(self._kind))
        columns |= {name: of[name] for name in of.column_names} | {self.column: times}
        (schema,) = self.emits
        emitted = pa.table([columns[name] for name in schema.names], schema=schema)
        return Merged(self._values(sessions, counts), deleted=counts == 0, emitted=(emitted,))

    @property
    def _lists(self) -> dict[str, list[pa.Field]]:
        times = [pa.field(name, self._kind.field(name).type) for name in TIMES]
        visible = [field for field in self.inner.values if not is_internal(field.name)]
        inside = [field for field in self.inner.values if is_internal(field.name)]
        return {self.column: [*times, *visible]} | ({_PARTIALS: inside} if inside else {})

    @property
    def _kind(self) -> pa.StructType:
        return self.inner.emits[0].field(self.column).type

    def _known(self, old: pa.Table) -> _Spans:
        columns: dict[str, pa.Array] = {}
        for name in self._lists:
            flat = pc.list_flatten(old[name].combine_chunks())
            columns |= {field.name: part for field, part in zip(flat.type, flat.flatten(), strict=True)}
        lengths = pc.fill_null(pc.list_value_length(old[self.column]), 0).to_numpy()
        ids = np.repeat(np.arange(old.num_rows), lengths)
        parts = pa.table([columns[name] for name in self.inner.values.names], schema=self.inner.values)
        return _Spans(ids, _us(columns["start"]), _us(columns["end"]), parts)

    def _joined(self, rows: pa.Table, groups: Groups, known: _Spans) -> _Spans:
        """The sessions with a batch's rows in them: many of these may be in one, and one may make several one.

        Raises `NoRoom`, whose row is that of the key.
        """
        if not rows.num_rows:
            return known
        spans = rows[self.column].combine_chunks()
        starts, ends = (pc.struct_field(spans, name) for name in TIMES)
        if starts.null_count or ends.null_count:
            raise Refused(
                f"a row has no session in {self.column!r}",
                hint="leave such rows out: F.session_window gives none without a time",
            )
        ids = np.concatenate([known.ids, groups.ids.astype(np.int64)])
        start, end = np.concatenate([known.start, _us(starts)]), np.concatenate([known.end, _us(ends)])
        order, first, number = _sessions(ids, start, end)
        try:
            parts = self._parts(rows, number, known)
        except NoRoom as error:
            error.row = int(ids[order][first][error.row])
            raise
        return _Spans(ids[order][first], start[order][first], np.maximum.reduceat(end[order], first), parts)

    def _parts(self, rows: pa.Table, number: Numbers, known: _Spans) -> pa.Table:
        """What the aggregates keep of each session; `number` has that of each known span, and then of each row.

        Raises `NoRoom`, whose row is the session's number.
        """
        old_numbers, old = _as_one(number[: len(known.ids)], known.parts, self.inner)
        # As the aggregates get rows of any key: sorted by it, beside what was stored.
        new = number[len(known.ids) :]
        sort = np.argsort(new, kind="stable")
        new_numbers, begins, ids_of_rows = np.unique(new[sort], return_index=True, return_inverse=True)
        at = np.searchsorted(old_numbers, new_numbers)
        there = np.append(old_numbers, -1)[at] == new_numbers
        before = old.take(pa.array(at, mask=~there))
        sorted_rows = rows.take(pa.array(sort)).combine_chunks()
        try:
            added = self.inner.added(sorted_rows, Groups(ids_of_rows.astype(np.int32), begins), before)
        except NoRoom as error:
            error.row = int(new_numbers[error.row])
            raise
        alone = ~np.isin(old_numbers, new_numbers)
        every = np.concatenate([old_numbers[alone], new_numbers])
        return pa.concat_tables([old.filter(pa.array(alone)), added]).take(pa.array(np.argsort(every)))

    def _values(self, sessions: _Spans, counts: Numbers) -> pa.Table:
        """The table's value columns: each key's sessions in one row."""
        offsets = pa.array(np.concatenate([[0], np.cumsum(counts)]), pa.int32())
        columns = self._columns(sessions)
        lists = []
        for fields in self._lists.values():
            structs = pa.StructArray.from_arrays([columns[field.name] for field in fields], fields=fields)
            lists.append(pa.ListArray.from_arrays(offsets, structs))
        some = np.flatnonzero(counts)
        due = np.zeros(len(counts), np.int64)
        if some.size:
            due[some] = np.minimum.reduceat(_whole_ms(sessions.end), (np.cumsum(counts) - counts)[some])
        return pa.table([*lists, pa.array(due, mask=counts == 0)], schema=self.values)

    def _columns(self, sessions: _Spans) -> dict[str, pa.Array]:
        each = {"start": sessions.start, "end": sessions.end}
        times = {name: pa.array(at).cast(self._kind.field(name).type) for name, at in each.items()}
        return times | {name: sessions.parts[name].combine_chunks() for name in sessions.parts.column_names}


def _sessions(ids: Numbers, start: Numbers, end: Numbers) -> tuple[Numbers, Numbers, Numbers]:
    """Which spans of time are one session: those of one key that overlap or touch, and those that these do.

    `ids` has the position of each span's key. Returns the order of the spans by key and start, where in it each session
    begins, and the number of each span's session, by key and start.
    """
    order = np.lexsort((start, ids))
    ids, start, end = ids[order], start[order], end[order]
    # One running maximum is of all keys: ends are ranks, and those of a later key are larger.
    ends, rank = np.unique(end, return_inverse=True)
    base = ids * len(ends)
    reached = ends[np.maximum.accumulate(base + rank) - base]
    begins = np.ones(len(ids), bool)
    begins[1:] = (ids[1:] != ids[:-1]) | (start[1:] > reached[:-1])
    number = np.empty(len(ids), np.int64)
    number[order] = np.cumsum(begins) - 1
    return order, np.flatnonzero(begins), number


def _as_one(numbers: Numbers, parts: pa.Table, aggregates: BoundAggregates) -> tuple[Numbers, pa.Table]:
    """What the aggregates keep of each number, from what they keep of its parts; `numbers` ascend.

    Neighbours are put together two by two, so that it takes as many rounds as the logarithm of the most parts of one.
    Raises `NoRoom`, whose row is the number.
    """
    while (again := numbers[1:] == numbers[:-1]).any():
        begins = np.flatnonzero(np.append(True, ~again))
        place = np.arange(len(numbers)) - np.repeat(begins, np.diff(begins, append=len(numbers)))
        later = place % 2 == 1
        earlier = np.append(later[1:], False)
        try:
            both = aggregates.together(parts.filter(pa.array(earlier)), parts.filter(pa.array(later)))
        except NoRoom as error:
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
    """The first millisecond that is not before each of these times, as the watermark passes it."""
    return -(times // -1000)
