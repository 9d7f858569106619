"""State of a join of two streams by key and time: `join("orders", "payments", within="1 hour")`.

The table keeps the rows of each side that wait for a match. A vectorised search by key and time finds the pairs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import ClassVar, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ...common.arguments import check_arguments
from ...common.durations import format_ms, parse_ms
from ...errors import NotFound, Refused, Usage
from ...store.sst.arrow_types import from_arrow, to_arrow
from ...store.sst.hashing import hash_values
from ...store.sst.schema import DUE
from ...store.versions.limits import MAX_TTL_MS
from .. import multi_input
from .kind import BatchMoment, BoundState, Groups, Kind, MergeResult, check_value_names, field_of, input_and_time_of

Numbers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

_FAR_US = 1 << 61
"""Limit to which times (in microseconds) are clipped, so that adding to a time cannot overflow."""
How: TypeAlias = Literal["inner", "left"]
_MATCHED = "_matched"
"""List column of a left outer join: True for each waiting left row that has been matched."""
_NEVER = np.iinfo(np.int64)


@check_arguments
def join(left: str, right: str, *, within: str, how: How = "inner") -> "Join":
    """Declare a join of a stage's two inputs, by the stage's key and within a span of time.

    The stage's function returns one DataFrame for each input, as a tuple in the order of `reads`. Each has
    `withWatermark`, whose column is the time of its rows. Two rows match if their keys are equal and their times differ
    by at most `within`, in either order. In Spark, the condition is `right.at BETWEEN left.at - INTERVAL … AND left.at
    + INTERVAL …`. For each pair, the stage emits one row in the batch of the later row. The emitted row has the key,
    then the other columns of the left row, then the other columns of the right row.

    The table has the waiting rows: for each key, two lists of structs named after the inputs. A row is removed when the
    stage's watermark has passed the row's time by more than `within`: from then on, only late rows could match the row.
    A key without waiting rows is removed. As in Spark, a row is late if its time is not after the watermark of the
    previous version; see `event_time(late=...)`.

    Args:
        left: Name of one of the two inputs. A left outer join keeps its rows.
        right: Name of the other input.
        within: Largest difference of the two times, inclusive, such as `"1 hour"`.
        how: `"inner"` or `"left"`. A left outer join emits an unmatched row of the left once, with nulls for the right,
            when the row is removed. A row with a null in its key or time matches nothing: it does not wait, and is
            emitted at once.

    Raises:
        Usage: The names are equal, `within` is no duration below a million days, or `how` is something else.
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
    """Declared join of two streams."""

    left: str
    right: str
    within_ms: int
    how: How
    migrates: ClassVar[bool] = False
    waiting_rows: ClassVar[str] = "rows that wait for a join"
    emission: ClassVar[Literal["rows"]] = "rows"
    in_any_order: ClassVar[bool] = True
    no_late_table: ClassVar[str] = "a join of one stream"
    no_ttl: ClassVar[tuple[str, str]] = (
        "keeps rows that wait for a join, which would expire too soon",
        "rows leave when the watermark has passed them",
    )
    not_final: ClassVar[tuple[str, str]] = (
        "join(...), which emits each pair only once",
        "leave emits= out; how='left' emits rows without a match when nothing can match them any more",
    )

    def __str__(self) -> str:
        return f"join({self.left}, {self.right}, within={format_ms(self.within_ms)}, how={self.how})"

    def copied_column(self, column: str) -> str:
        return column

    def bind(self, rows: Sequence[pa.Schema], key: tuple[str, ...]) -> BoundState:
        if len(rows) != 2:
            raise Usage(
                f"the stage's function returns {len(rows)} DataFrame{'s' * (len(rows) != 1)}, and join(...) takes two",
                hint="read two inputs, and return a DataFrame for each, as a tuple in the order of reads=",
            )
        sides = tuple(_side(name, rows, key) for name in (self.left, self.right))
        left, right = (side.columns.names for side in sides)
        # Spark's column names are case-insensitive.
        left_names = {name.casefold() for name in left}
        if both := [name for name in right if name.casefold() in left_names]:
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
    """One of the two joined streams."""

    name: str
    part: int
    columns: pa.Schema
    time: str


def _side(name: str, rows: Sequence[pa.Schema], key: tuple[str, ...]) -> JoinSide:
    times = dict(map(input_and_time_of, rows))
    if name not in times:
        raise NotFound("input", name, times, hint="join(...) names the two inputs of its stage")
    part, time = list(times).index(name), times[name]
    if not time:
        raise Refused(
            f"join: the rows of {name!r} have no watermark: a join needs their time, and how long to wait for matches",
            hint=f'add .withWatermark("at", "10 minutes") to the DataFrame that is returned for {name!r}',
        )
    if time in key:
        raise Refused(
            f"join: the time of {name!r} is {time!r}, which is part of the key",
            hint="remove it from key=: the join compares the times itself",
        )
    # In the table, fields of structs in lists are nullable, so they are nullable here as well.
    columns = [pa.field(field.name, to_arrow(from_arrow(field.type))) for field in rows[part] if field.name not in key]
    return JoinSide(name, part, pa.schema(columns), time)


@dataclass(frozen=True, slots=True)
class WaitingRows:
    """Waiting rows of one side, ordered by key and time. At equal times, stored rows come before new rows."""

    rows: pa.Table
    row_index: Numbers
    keys: Numbers
    times_us: Numbers
    """int64[n], time of each row in microseconds since 1970 UTC; ascending within a key."""
    new: Flags
    unmatchable: Flags
    """bool[n], True for rows that cannot match, because their key or time is null."""

    def due_ms(self, within_ms: int) -> Numbers:
        """Return int64[n]: the first watermark, in ms since 1970, at which each row can no longer match."""
        return np.asarray(-(-self.times_us // 1000) + within_ms + 1)

    def lists(self, stays: Flags, num: int) -> pa.ListArray:
        """Return the rows where `stays` is True, as a list of structs for each of `num` keys."""
        positions = np.flatnonzero(stays)
        columns = self.rows.take(pa.array(self.row_index[positions])).columns
        structs = pa.StructArray.from_arrays(
            [column.combine_chunks() for column in columns], fields=list(self.rows.schema)
        )
        return by_key(structs, self.keys[positions], num)


def gather_side(
    stored: pa.ChunkedArray, batch_rows: pa.Table, schema: pa.Schema, time: str, keyless: Flags
) -> WaitingRows:
    """Return the stored rows and the batch's rows of one side together, ordered by key and time.

    `stored` has a list of structs for each key, ordered by time, null for no rows. `batch_rows` has the index of the
    key as `_key`. `schema` has the stored columns, including `time`. `keyless` is bool[keys], True for keys with a null
    column.
    """
    lists = stored.combine_chunks()
    old = pa.Table.from_arrays(pc.list_flatten(lists).flatten(), schema=schema)
    sizes = pc.fill_null(pc.list_value_length(lists), 0).to_numpy()
    new = batch_rows.select(schema.names).cast(schema)
    rows = pa.concat_tables([old, new]).combine_chunks()
    keys = np.concatenate((np.repeat(np.arange(len(sizes)), sizes), batch_rows["_key"].to_numpy())).astype(np.int64)
    at_us = np.clip(pc.fill_null(rows[time].cast(pa.int64()), 0).to_numpy(), -_FAR_US, _FAR_US)
    count = old.num_rows
    new_keys, new_us = keys[count:], at_us[count:]
    order = np.lexsort((new_us, new_keys))
    equal = np.flatnonzero((np.diff(new_keys[order]) == 0) & (np.diff(new_us[order]) == 0))
    if equal.size:
        # Rows arrive in no fixed order. A digest of all columns decides between equal rows, so that a replay gives the
        # same order.
        tied = order[np.union1d(equal, equal + 1)]
        digest = np.zeros(len(order), np.uint64)
        digest[tied] = hash_values(new.take(pa.array(tied)).to_struct_array())
        order = np.lexsort((digest, new_us, new_keys))
    age = np.arange(rows.num_rows)
    age[count + order] = np.arange(count, rows.num_rows)
    place = np.lexsort((age, at_us, keys))
    is_new = place >= count
    alone = is_new & (keyless[keys] | np.asarray(rows[time].is_null()))[place]
    return WaitingRows(rows, place, keys[place], at_us[place], is_new, alone)


def by_key(values: pa.Array, keys: Numbers, num: int) -> pa.ListArray:
    """Group the values into a list for each of `num` keys. `keys` has the key index of each value, ascending."""
    offsets = np.searchsorted(keys, np.arange(num + 1)).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), values)


def find_pairs(left: WaitingRows, right: WaitingRows, within_us: int) -> tuple[Numbers, Numbers]:
    """Return the matching pairs, as row numbers on the left side and row numbers on the right side.

    Two rows match if their keys are equal, their times differ by at most `within_us`, and at least one of them is new.
    Pairs are ordered by left row, then by right row.
    """
    every, fresh = np.flatnonzero(~right.unmatchable), np.flatnonzero(right.new & ~right.unmatchable)
    coming, stored = np.flatnonzero(left.new & ~left.unmatchable), np.flatnonzero(~left.new)
    halves = [_find_pairs(left, coming, right, every, within_us), _find_pairs(left, stored, right, fresh, within_us)]
    lefts, rights = (np.concatenate(side) for side in zip(*halves, strict=True))
    order = np.argsort(lefts, kind="stable")
    return lefts[order], rights[order]


def _find_pairs(
    left: WaitingRows, lefts: Numbers, right: WaitingRows, rights: Numbers, within_us: int
) -> tuple[Numbers, Numbers]:
    # With times replaced by their ranks, (key, time) becomes one ascending number.
    times = np.unique(right.times_us[rights])
    ranks = len(times) + 1
    composites = right.keys[rights] * ranks + np.searchsorted(times, right.times_us[rights])
    keys, at_us = left.keys[lefts] * ranks, left.times_us[lefts]
    first = np.searchsorted(composites, keys + np.searchsorted(times, at_us - within_us))
    counts = np.searchsorted(composites, keys + np.searchsorted(times, at_us + within_us, side="right")) - first
    preceding = np.cumsum(counts) - counts
    nth = np.arange(counts.sum()) - np.repeat(preceding, counts)
    return np.repeat(lefts, counts), rights[np.repeat(first, counts) + nth]


@dataclass(frozen=True, slots=True)
class BoundJoin(BoundState):
    """Declared join, bound to the schemas of the two inputs."""

    due_by = "watermark"
    key: tuple[str, ...]
    inputs: tuple[pa.Schema, ...]
    left: JoinSide
    right: JoinSide
    within_ms: int
    outer: bool
    emitted: pa.Schema
    until_ms: int | None = None

    @property
    def values(self) -> pa.Schema:
        lists = [pa.field(side.name, pa.list_(pa.struct(list(side.columns)))) for side in (self.left, self.right)]
        matched = [pa.field(_MATCHED, pa.list_(pa.bool_()))] if self.outer else []
        return pa.schema([*lists, *matched, pa.field(DUE, pa.int64())])

    @property
    def needed_columns(self) -> tuple[str, ...]:
        return multi_input.union_columns(self.inputs, self.key)

    @property
    def emitted_schemas(self) -> tuple[pa.Schema, ...]:
        return (self.emitted,)

    @property
    def behind_ms(self) -> int:
        return self.within_ms + 1

    def lateness_columns(self, _window: str | None) -> tuple[str, ...]:
        return tuple(multi_input.tagged_name(side.part, side.time) for side in (self.left, self.right))

    @property
    def late_rows(self) -> tuple[pa.Schema, Mapping[str, str]]:
        """Schema of late rows of both sides, and the schema's column for each column of the batch."""
        columns = {name: name for name in self.key}
        for side in (self.left, self.right):
            columns |= {multi_input.tagged_name(side.part, name): name for name in side.columns.names}
        return self.emitted, columns

    def at_moment(self, moment: BatchMoment) -> BoundState:
        return replace(self, until_ms=moment.until_ms)

    def merge(self, rows: pa.Table, groups: Groups, keys: pa.Table, old: pa.Table) -> MergeResult:
        came = multi_input.split_with_keys(rows, self.inputs, self.key, groups.ids)
        keyless = reduce(np.logical_or, (np.asarray(keys[name].is_null()) for name in self.key))
        left, right = (
            gather_side(old[side.name], came[side.part], side.columns, side.time, keyless)
            for side in (self.left, self.right)
        )
        lefts, rights = find_pairs(left, right, self.within_ms * 1000)
        matched = np.zeros(len(left.keys), bool)
        if self.outer:
            # Stored rows come first in `rows`.
            stored_flags = pc.list_flatten(old[_MATCHED].combine_chunks()).to_numpy(zero_copy_only=False)
            matched = np.append(stored_flags, matched[len(stored_flags) :]).astype(bool)[left.row_index]
        matched[lefts] = True
        due_left, due_right = left.due_ms(self.within_ms), right.due_ms(self.within_ms)
        # Rows that a later row may still match.
        stays = ~left.unmatchable & (self.until_ms is None or due_left > self.until_ms)
        stays_right = ~right.unmatchable & (self.until_ms is None or due_right > self.until_ms)
        gone = np.flatnonzero(~stays & ~matched) if self.outer else np.empty(0, np.int64)
        # int64[num]: due time of each key, the least number for a key without waiting rows. The rows of a key are
        # removed together, at the last row's time or in a batch with the key; but unmatched rows are emitted at their
        # own time.
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
        return MergeResult(pa.table(columns, schema=self.values), deleted, emitted=(emitted,))

    def _emitted(
        self, keys: pa.Table, left: WaitingRows, right: WaitingRows, lefts: Numbers, rights: Numbers, gone: Numbers
    ) -> pa.Table:
        both = np.concatenate((lefts, gone))
        met = np.concatenate((right.row_index[rights], np.zeros(len(gone), np.int64)))
        unmatched = np.arange(len(both)) >= len(lefts)
        columns = [
            *keys.take(pa.array(left.keys[both])).columns,
            *left.rows.take(pa.array(left.row_index[both])).columns,
            *right.rows.take(pa.array(met, mask=unmatched)).columns,
        ]
        return pa.table(columns, schema=self.emitted)
