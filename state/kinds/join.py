"""State as a join of two streams by key within a span of time: `join("orders", "payments", within="1 hour")`.

The table keeps rows of each side that wait for the other side's; which of them meet is found by key and time at once.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import ClassVar, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ...common.argument_types import checked
from ...common.durations import format_ms, parse_ms
from ...errors import NotFound, Refused, Usage
from ...store.sst.arrow_types import from_arrow, to_arrow
from ...store.sst.hashing import digests
from ...store.sst.types import DUE
from ...store.versions.limits import MAX_TTL_MS
from .. import multi_input
from .kind import BatchMoment, Bound, Groups, Kind, Merged, check_value_names, field_of, input_of

Numbers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

_FAR_US = 1 << 61
"""Times beyond are as late as this: what is added to a time fits."""
How: TypeAlias = Literal["inner", "left"]
_MATCHED = "_matched"
"""Of a left outer join, for each row that waits on the left whether it has met one."""
_NEVER = np.iinfo(np.int64)


@checked
def join(left: str, right: str, *, within: str, how: How = "inner") -> "Join":
    """Declare a join of a stage's two inputs, by its key and within a span of time.

    The stage's function returns one DataFrame for each input, as a tuple in the order of `reads`, and says
    `withWatermark` of each: that column is the time of its rows. Two rows meet when their keys are equal and their
    times differ by no more than `within`, whichever came first; Spark's words for it are
    `right.at BETWEEN left.at - INTERVAL … AND left.at + INTERVAL …`. For each pair the stage emits one row, in the
    batch in which the later of the two came: the key, the other columns of the left, and those of the right.

    The table has the rows that still wait: for each key, two lists of structs named after the inputs. Each row is
    forgotten when the stage's watermark has passed its time by more than `within`, so that nothing which is not late
    could match it; where no row of a key waits, the key is gone. A row whose own time is not after the watermark that
    the version before left is late, as in Spark: see `event_time(late=...)`.

    Args:
        left: The name of one of the two inputs, whose rows a left outer join keeps.
        right: The name of the other.
        within: How far apart the times may be, `"1 hour"`; the bounds are included.
        how: `"inner"`, or `"left"`: rows of the left that met none are emitted once, with nulls for the right, when
            they are forgotten. A null in the key or in the time meets nothing: such a row never waits, and is emitted
            at once.

    Raises:
        Usage: The names are the same, `within` is no span of time below a million days, or `how` is something else.
    """
    within_ms = parse_ms("join: within", within)
    if not 0 <= within_ms < MAX_TTL_MS:
        raise Usage(f"join: within is {within!r}; expected 0 seconds to less than 1,000,000 days")
    if how not in ("inner", "left"):
        raise Usage(
            f"join: how is {how!r}; expected 'inner' or 'left'",
            hint="for a right outer join, name the inputs in the other order",
        )
    if left == right:
        raise Usage(f"join: both sides are {left!r}; expected the names of two inputs of the stage")
    return Join(left, right, within_ms, how)


class Join(Kind, frozen=True, tag="join"):
    """A declared join."""

    left: str
    right: str
    within_ms: int
    how: How
    migrates: ClassVar[bool] = False
    waiting: ClassVar[str] = "rows that wait for a join"
    emission: ClassVar[Literal["rows"]] = "rows"
    in_any_order: ClassVar[bool] = True
    no_late_table: ClassVar[str] = "a join of one stream"
    no_ttl: ClassVar[tuple[str, str]] = (
        "keeps what waits for a join, which would be gone too soon",
        "rows leave when the watermark has passed them",
    )
    not_final: ClassVar[tuple[str, str]] = (
        "join(...), which emits each pair once, when it is there",
        "leave emits= out; how='left' emits rows without a match when nothing can match them any more",
    )

    def __str__(self) -> str:
        return f"join({self.left}, {self.right}, within={format_ms(self.within_ms)}, how={self.how})"

    def carried(self, column: str) -> str:
        return column

    def bind(self, rows: Sequence[pa.Schema], key: tuple[str, ...]) -> Bound:
        """Fix the table's columns. Raises as well `Refused` where a side has no time, or columns have one name."""
        if len(rows) != 2:
            raise Usage(
                f"the stage's function returns {len(rows)} DataFrame{'s' * (len(rows) != 1)}, and join(...) takes two",
                hint="read two inputs, and return a DataFrame for each, as a tuple in the order of reads=",
            )
        sides = tuple(_side(name, rows, key) for name in (self.left, self.right))
        left, right = (side.columns.names for side in sides)
        # Spark does not tell capitals from small letters.
        theirs = {name.casefold() for name in left}
        if both := [name for name in right if name.casefold() in theirs]:
            raise Refused(
                f"{self.left!r} and {self.right!r} both have a column {both[0]!r}, and a pair has the columns of both",
                hint="rename it in the stage's function: .withColumnRenamed(...)",
            )
        check_value_names([self.left, self.right, *left, *right], key)
        emits = pa.schema([*(field_of(rows[0], name) for name in key), *sides[0].columns, *sides[1].columns])
        outer, emitted = self.how == "left", emits.remove_metadata()
        return BoundJoin(key, tuple(rows), sides[0], sides[1], self.within_ms, outer, emitted)


@dataclass(frozen=True, slots=True)
class JoinSide:
    """One of the two streams."""

    name: str
    part: int
    columns: pa.Schema
    """Its columns but for the key."""
    time: str
    """The one that is its rows' time."""


def _side(name: str, rows: Sequence[pa.Schema], key: tuple[str, ...]) -> JoinSide:
    times = dict(map(input_of, rows))
    if name not in times:
        raise NotFound("input", name, times, hint="join(...) names the two inputs of its stage")
    part, time = list(times).index(name), times[name]
    if not time:
        raise Refused(
            f"join: the rows of {name!r} have no watermark, which says their time and how long others wait for them",
            hint=f'say .withWatermark("at", "10 minutes") of the DataFrame that is returned for {name!r}',
        )
    if time in key:
        raise Refused(
            f"join: the time of {name!r} is {time!r}, which is part of the key",
            hint="leave it out of key=: the join compares the times of the two sides itself",
        )
    # As the table has them: what is inside may always be null.
    columns = [pa.field(one.name, to_arrow(from_arrow(one.type))) for one in rows[part] if one.name not in key]
    return JoinSide(name, part, pa.schema(columns), time)


@dataclass(frozen=True, slots=True)
class Waiting:
    """Rows of one side, by key and time; of the same time, those that were stored come first."""

    rows: pa.Table
    """Their columns, in an order of their own."""
    place: Numbers
    """int64[n], where each is in `rows`."""
    keys: Numbers
    """int64[n], the position of its key; ascending."""
    at_us: Numbers
    """int64[n], its time, microseconds since 1970 UTC; ascending within a key."""
    new: Flags
    """bool[n], whether it came with this batch."""
    alone: Flags
    """bool[n], whether it can match nothing, as its key or its time is null."""

    def due_ms(self, within_ms: int) -> Numbers:
        """int64[n]: the first millisecond since 1970 that a watermark has with which each row matches nothing more."""
        return np.asarray(-(-self.at_us // 1000) + within_ms + 1)

    def lists(self, stays: Flags, num: int) -> pa.ListArray:
        """The rows that stay as a list of structs for each of so many keys."""
        kept = np.flatnonzero(stays)
        columns = self.rows.take(pa.array(self.place[kept])).columns
        structs = pa.StructArray.from_arrays([one.combine_chunks() for one in columns], fields=list(self.rows.schema))
        return by_key(structs, self.keys[kept], num)


def gathered(stored: pa.ChunkedArray, came: pa.Table, schema: pa.Schema, time: str, keyless: Flags) -> Waiting:
    """One side's rows, those that the table has (`stored`) and those of the batch (`came`).

    `stored` has for each key a list of structs, ordered by time, null for none; `came` the key's position as `_key`.
    `schema` has the columns that are stored, of which `time` is one; `keyless` is bool[keys], whether a column of each
    key is null.
    """
    lists = stored.combine_chunks()
    old = pa.Table.from_arrays(pc.list_flatten(lists).flatten(), schema=schema)
    sizes = pc.fill_null(pc.list_value_length(lists), 0).to_numpy()
    new = came.select(schema.names).cast(schema)
    rows = pa.concat_tables([old, new]).combine_chunks()
    keys = np.concatenate((np.repeat(np.arange(len(sizes)), sizes), came["_key"].to_numpy())).astype(np.int64)
    at_us = np.clip(pc.fill_null(rows[time].cast(pa.int64()), 0).to_numpy(), -_FAR_US, _FAR_US)
    count = old.num_rows
    new_keys, new_us = keys[count:], at_us[count:]
    order = np.lexsort((new_us, new_keys))
    equal = np.flatnonzero((np.diff(new_keys[order]) == 0) & (np.diff(new_us[order]) == 0))
    if equal.size:
        # Rows arrive in no fixed order: the rest of them decides among equals.
        tied = order[np.union1d(equal, equal + 1)]
        digest = np.zeros(len(order), np.uint64)
        digest[tied] = digests(new.take(pa.array(tied)).to_struct_array())
        order = np.lexsort((digest, new_us, new_keys))
    age = np.arange(rows.num_rows)
    age[count + order] = np.arange(count, rows.num_rows)
    place = np.lexsort((age, at_us, keys))
    is_new = place >= count
    alone = is_new & (keyless[keys] | np.asarray(rows[time].is_null()))[place]
    return Waiting(rows, place, keys[place], at_us[place], is_new, alone)


def by_key(values: pa.Array, keys: Numbers, num: int) -> pa.ListArray:
    """Values as a list for each of so many keys; `keys` says the key of each, and ascends."""
    offsets = np.searchsorted(keys, np.arange(num + 1)).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), values)


def pairs(left: Waiting, right: Waiting, within_us: int) -> tuple[Numbers, Numbers]:
    """The rows that meet, by their numbers on each side: of one key, with times so near, and one of the two is new.

    They come in the order of the left side, and then of the right.
    """
    every, fresh = np.flatnonzero(~right.alone), np.flatnonzero(right.new & ~right.alone)
    coming, stored = np.flatnonzero(left.new & ~left.alone), np.flatnonzero(~left.new)
    found = [_near(left, coming, right, every, within_us), _near(left, stored, right, fresh, within_us)]
    lefts, rights = (np.concatenate(side) for side in zip(*found, strict=True))
    order = np.argsort(lefts, kind="stable")
    return lefts[order], rights[order]


def _near(left: Waiting, lefts: Numbers, right: Waiting, rights: Numbers, within_us: int) -> tuple[Numbers, Numbers]:
    """Of some rows of each side those that meet."""
    # With ranks in the place of times, key and time are one number that ascends.
    times = np.unique(right.at_us[rights])
    ranks = len(times) + 1
    places = right.keys[rights] * ranks + np.searchsorted(times, right.at_us[rights])
    keys, at_us = left.keys[lefts] * ranks, left.at_us[lefts]
    first = np.searchsorted(places, keys + np.searchsorted(times, at_us - within_us))
    counts = np.searchsorted(places, keys + np.searchsorted(times, at_us + within_us, side="right")) - first
    before = np.cumsum(counts) - counts
    nth = np.arange(counts.sum()) - np.repeat(before, counts)
    return np.repeat(lefts, counts), rights[np.repeat(first, counts) + nth]


@dataclass(frozen=True, slots=True)
class BoundJoin(Bound):
    """A join that knows its rows' schemas."""

    due_by = "watermark"
    key: tuple[str, ...]
    inputs: tuple[pa.Schema, ...]
    """The schemas of the function's DataFrames, in their order."""
    left: JoinSide
    right: JoinSide
    within_ms: int
    outer: bool
    """Whether rows of the left are emitted that met none."""
    emitted: pa.Schema
    until_ms: int | None = None
    """The watermark by which rows are forgotten; None where there is none yet."""

    @property
    def values(self) -> pa.Schema:
        lists = [pa.field(side.name, pa.list_(pa.struct(list(side.columns)))) for side in (self.left, self.right)]
        matched = [pa.field(_MATCHED, pa.list_(pa.bool_()))] if self.outer else []
        return pa.schema([*lists, *matched, pa.field(DUE, pa.int64())])

    @property
    def needs(self) -> tuple[str, ...]:
        return multi_input.columns(self.inputs, self.key)

    @property
    def emits(self) -> tuple[pa.Schema, ...]:
        return (self.emitted,)

    @property
    def behind_ms(self) -> int:
        return self.within_ms + 1

    def late_by(self, _window: str | None) -> tuple[str, ...]:
        return tuple(multi_input.name_of(side.part, side.time) for side in (self.left, self.right))

    @property
    def late_rows(self) -> tuple[pa.Schema, Mapping[str, str]]:
        """Rows of either side, with what a pair has of it."""
        columns = {name: name for name in self.key}
        for side in (self.left, self.right):
            columns |= {multi_input.name_of(side.part, name): name for name in side.columns.names}
        return self.emitted, columns

    def at_moment(self, moment: BatchMoment) -> Bound:
        return replace(self, until_ms=moment.until_ms)

    def merge(self, rows: pa.Table, groups: Groups, keys: pa.Table, old: pa.Table) -> Merged:
        """Pairs first; then what no row that comes later could match is forgotten."""
        came = multi_input.untag(rows, self.inputs, self.key, groups.ids)
        keyless = reduce(np.logical_or, (np.asarray(keys[name].is_null()) for name in self.key))
        left, right = (
            gathered(old[side.name], came[side.part], side.columns, side.time, keyless)
            for side in (self.left, self.right)
        )
        lefts, rights = pairs(left, right, self.within_ms * 1000)
        matched = np.zeros(len(left.keys), bool)
        if self.outer:
            # The rows that were stored are the first in `rows`.
            before = pc.list_flatten(old[_MATCHED].combine_chunks()).to_numpy(zero_copy_only=False)
            matched = np.append(before, matched[len(before) :]).astype(bool)[left.place]
        matched[lefts] = True
        due_left, due_right = left.due_ms(self.within_ms), right.due_ms(self.within_ms)
        # Those that may still match one that comes.
        stays = ~left.alone & (self.until_ms is None or due_left > self.until_ms)
        stays_right = ~right.alone & (self.until_ms is None or due_right > self.until_ms)
        gone = np.flatnonzero(~stays & ~matched) if self.outer else np.empty(0, np.int64)
        # int64[num]: when something is to be done for each key though no row comes; the least number where none waits.
        # A key's rows are forgotten together, by the last of them or when others come; but what is to be emitted has
        # its own time.
        due = np.full(groups.num, _NEVER.min)
        np.maximum.at(due, left.keys[stays], due_left[stays])
        np.maximum.at(due, right.keys[stays_right], due_right[stays_right])
        if self.outer:
            first = np.full(groups.num, _NEVER.max)
            open_ = stays & ~matched
            np.minimum.at(first, left.keys[open_], due_left[open_])
            due = np.where(first < _NEVER.max, first, due)
        deleted = due == _NEVER.min
        columns = [
            left.lists(stays, groups.num),
            right.lists(stays_right, groups.num),
            *([by_key(pa.array(matched[stays]), left.keys[stays], groups.num)] if self.outer else []),
            pa.array(due, mask=deleted),
        ]
        emitted = self._emitted(keys, left, right, lefts, rights, gone)
        return Merged(pa.table(columns, schema=self.values), deleted, emitted=(emitted,))

    def _emitted(
        self, keys: pa.Table, left: Waiting, right: Waiting, lefts: Numbers, rights: Numbers, gone: Numbers
    ) -> pa.Table:
        """The pairs, and the rows of the left that are gone without one."""
        both = np.concatenate((lefts, gone))
        met = np.concatenate((right.place[rights], np.zeros(len(gone), np.int64)))
        nobody = np.arange(len(both)) >= len(lefts)
        columns = [
            *keys.take(pa.array(left.keys[both])).columns,
            *left.rows.take(pa.array(left.place[both])).columns,
            *right.rows.take(pa.array(met, mask=nobody)).columns,
        ]
        return pa.table(columns, schema=self.emitted)
