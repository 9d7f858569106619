"""State as running aggregates, one row per key: `aggregate(flights=count(), delay=sum("arr_delay"))`.

Nulls count as SQL says: `count("x")`, `sum`, `min`, `max` and `mean` pass them over; a key without any value is null.
NaN is passed over by `min` and `max`, too. Sums of integers are 64 bits wide and an overflow is an error; sums of
decimals keep their scale.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...errors import Usage
from .kind import BoundState, Groups, Merged, State, check_value_names, field_of, only
from .partials import Columns, merged

Function = Literal["count", "sum", "min", "max", "mean", "first", "last"]
Array = Any  # pyarrow's compute functions take and return Array or ChunkedArray alike


@dataclass(frozen=True, slots=True)
class Aggregate:
    """One aggregate of one column; `by` orders `first` and `last`."""

    function: Function
    column: str | None = None
    by: str | None = None

    def __str__(self) -> str:
        inside = ", ".join(part for part in (self.column, self.by and f"by={self.by}") if part)
        return f"{self.function}({inside})"


def count(column: str | None = None) -> Aggregate:
    """Number of rows, or of rows in which `column` is not null."""
    return Aggregate("count", column)


def sum(column: str) -> Aggregate:  # noqa: A001  named as SQL and pyspark.sql.functions name it
    """Sum of a numeric column."""
    return Aggregate("sum", column)


def min(column: str) -> Aggregate:  # noqa: A001
    """Smallest value."""
    return Aggregate("min", column)


def max(column: str) -> Aggregate:  # noqa: A001
    """Largest value."""
    return Aggregate("max", column)


def mean(column: str) -> Aggregate:
    """Mean of a numeric column, a double."""
    return Aggregate("mean", column)


def first(column: str, *, by: str) -> Aggregate:
    """The column's value in the row with the smallest `by`; of equals, the one that came first."""
    return Aggregate("first", column, by)


def last(column: str, *, by: str) -> Aggregate:
    """The column's value in the row with the largest `by`; of equals, the one that came last."""
    return Aggregate("last", column, by)


def aggregate(**columns: Aggregate) -> State:
    """Declare a table with one row per key and these aggregates as its columns.

    A stage with outputs emits the key and the columns of every key that a batch touched, as they are after it.

    Raises:
        Usage: No column is given, or one is not an aggregate.
    """
    if not columns:
        raise Usage("aggregate() needs at least one column, such as rows=slackwater.count()")
    for name, made in columns.items():
        if not isinstance(made, Aggregate):
            raise Usage(f"aggregate column {name!r} is {made!r}; expected count(), sum(...), min(...), …")
    return _Aggregates(tuple(columns.items()))


_LOW = (1 << 32) - 1
ROWS = "_slackwater_rows"
"""A column of rows that stand for several of a key each: how many. They have the columns of `part` besides."""


def part(what: str, name: str) -> str:
    """The column with a part of what the aggregate `name` keeps of several rows, in the one that stands for them.

    `what` is `count`, `sum` (of integers of 64 bits that of their upper halves, and `low` that of the lower ones),
    `value` (of min, max, first and last) or `by` (of first and last).
    """
    return f"_{what}:{name}"


def narrowed(state: State, columns: Collection[str]) -> State:
    """The same declaration with these aggregates alone; itself where it is of another kind."""
    if not isinstance(state, _Aggregates):
        return state
    return _Aggregates(tuple((name, made) for name, made in state.columns if name in columns))


@dataclass(frozen=True, slots=True)
class _Aggregates:
    columns: tuple[tuple[str, Aggregate], ...]

    def describe(self) -> str:
        return f"aggregate({', '.join(f'{name}={made}' for name, made in self.columns)})"

    def bind(self, rows: Sequence[pa.Schema], key: tuple[str, ...]) -> BoundState:
        schema = only(rows, "aggregate(...)")
        check_value_names([name for name, _ in self.columns], key)
        fields: list[pa.Field] = []
        needs: dict[str, None] = {}
        for name, made in self.columns:
            source = field_of(schema, made.column).type if made.column else None
            by = field_of(schema, made.by).type if made.by else None
            fields += _fields(name, made, source, by)
            needs.update(dict.fromkeys(column for column in (made.column, made.by) if column and column not in key))
        values = pa.schema(fields)
        visible = [field for field in values if not field.name.startswith("_")]
        emits = pa.schema([*(field_of(schema, column) for column in key), *visible])
        return BoundAggregates(self.columns, values, tuple(needs), (emits,))


def _fields(name: str, made: Aggregate, source: pa.DataType | None, by: pa.DataType | None) -> list[pa.Field]:
    """The stored columns of one aggregate: what users see, and internally what merging needs."""
    if made.function == "count":
        return [pa.field(name, pa.int64())]
    assert source is not None  # noqa: S101  every other function takes a column
    if made.function in ("sum", "mean"):
        total = _sum_type(name, made, source)
        if made.function == "sum":
            return [pa.field(name, total)]
        return [pa.field(name, pa.float64()), pa.field(f"_{name}_sum", total), pa.field(f"_{name}_count", pa.int64())]
    if pa.types.is_nested(source):
        raise Usage(f"{name}={made}: column {made.column!r} is {source}; expected a plain value, not a nested one")
    if made.function in ("min", "max"):
        return [pa.field(name, source)]
    return [pa.field(name, source), pa.field(f"_{name}_by", by)]


def _sum_type(name: str, made: Aggregate, source: pa.DataType) -> pa.DataType:
    if pa.types.is_integer(source):
        return pa.int64()
    if pa.types.is_floating(source):
        return pa.float64()
    if pa.types.is_decimal(source):
        return pa.decimal128(38, source.scale)
    raise Usage(f"{name}={made}: column {made.column!r} is {source}; expected a number")


@dataclass(frozen=True, slots=True)
class BoundAggregates:
    """Aggregates over rows of a known schema."""

    columns: tuple[tuple[str, Aggregate], ...]
    values: pa.Schema
    needs: tuple[str, ...]
    emits: tuple[pa.Schema, ...]

    def merge(self, rows: pa.Table, groups: Groups, keys: pa.Table, old: pa.Table) -> Merged:
        """As of any state."""
        values = self.added(rows, groups, old)
        visible = values.select([field.name for field in self.values if not field.name.startswith("_")])
        emitted = pa.table([*keys.columns, *visible.columns], schema=self.emits[0])
        return Merged(values, emitted=(emitted,))

    def added(self, rows: pa.Table, groups: Groups, old: pa.Table) -> pa.Table:
        """The value columns of `old`, one row a group, with each group's rows in them, or what was made of them."""
        batch = _PerKeyOfParts(rows, groups) if ROWS in rows.column_names else _PerKey(rows, groups)
        return self._table(old, lambda name, made: _of_batch(name, made, batch, self.values))

    def together(self, earlier: pa.Table, later: pa.Table) -> pa.Table:
        """The value columns of keys whose records are in two parts, from those of the parts, row by row."""
        return self._table(earlier, lambda _name, _made: later)

    def _table(self, earlier: pa.Table, later: Callable[[str, Aggregate], Columns]) -> pa.Table:
        stored: dict[str, Array] = {}
        for name, made in self.columns:
            stored |= merged(made.function, name, earlier, later(name, made))
        return pa.table([stored[field.name] for field in self.values], schema=self.values)


def _may_overflow(values: Array) -> bool:
    """Whether a sum of some of these integers may have no room in 64 bits."""
    least, most = (each.as_py() or 0 for each in pc.min_max(values).values())
    return any(edge * len(values) >= 1 << 63 for edge in (-least, most))


class _PerKey:
    """Aggregates of the batch alone, one value per key, in the keys' order."""

    def __init__(self, rows: pa.Table, groups: Groups) -> None:
        self.rows = rows
        self._groups = groups
        self._ids = pa.array(groups.ids)

    def count(self, _name: str, made: Aggregate) -> Array:
        if made.column is None:
            return pa.array(np.diff(self._groups.starts, append=self.rows.num_rows))
        return self._reduce(self.rows[made.column], "count")

    def total(self, _name: str, made: Aggregate, kind: pa.DataType) -> Array:
        """Sums of this type. Raises `ArrowInvalid` where one has no room."""
        values = self.rows[made.column].cast(kind)
        if pa.types.is_integer(kind) and _may_overflow(values):
            # Arrow's sums of integers wrap around. Those of halves do not, for less than 2^31 rows.
            return self._whole(pc.shift_right(values, 32), pc.bit_wise_and(values, _LOW))
        return self._reduce(values, "sum").cast(kind)

    def edge(self, _name: str, made: Aggregate, kind: pa.DataType) -> Array:
        """The smallest or largest values."""
        column = self.rows[made.column]
        if pa.types.is_floating(kind):
            column = pc.if_else(pc.is_nan(column), pa.scalar(None, kind), column)
        return self._reduce(column, made.function)

    def pick(self, _name: str, made: Aggregate) -> tuple[Array, Array]:
        """Value and `by` of each key's first or last row; nulls for a key whose `by` is null everywhere."""
        return self._pick(self.rows[made.column], self.rows[made.by], largest=made.function == "last")

    def _reduce(self, values: Array, function: str) -> Array:
        # Ids ascend, so Arrow's groups come out in the keys' order, and none is missing.
        grouped = pa.table({"id": self._ids, "v": values}).group_by("id", use_threads=False)
        return grouped.aggregate([("v", function)])[f"v_{function}"]

    def _whole(self, high: Array, low: Array) -> Array:
        """Sums of integers whose upper and lower halves these are. Raises `ArrowInvalid` where one has no room."""
        high, low = self._reduce(high, "sum"), self._reduce(low, "sum")
        high = pc.add(high, pc.shift_right(low, 32))
        return pc.add(pc.multiply_checked(high, 1 << 32), pc.bit_wise_and(low, _LOW))

    def _pick(self, values: Array, bys: Array, *, largest: bool) -> tuple[Array, Array]:
        edge = self._reduce(bys, "max" if largest else "min")
        at_edge = pc.equal(bys, edge.take(self._ids))
        ties = pc.indices_nonzero(pc.fill_null(at_edge, False))
        ids, values = self._ids.take(ties), values.take(ties)
        # Equal rows arrive in no fixed order; the largest value makes a replay give the same.
        order = pc.sort_indices(pa.table({"id": ids, "v": values}), [("id", "ascending"), ("v", "descending")])
        ids_sorted = ids.take(order).to_numpy()
        firsts = np.flatnonzero(np.diff(ids_sorted, prepend=-1))
        picked = np.full(self._groups.num, -1, np.int64)
        picked[ids_sorted[firsts]] = order.to_numpy()[firsts]
        take = pa.array(picked, mask=picked < 0)
        return values.take(take), edge


class _PerKeyOfParts(_PerKey):
    """The same of rows of which each stands for several of a key, with what aggregates keep of these."""

    def count(self, name: str, _made: Aggregate) -> Array:
        return self._reduce(self.rows[part("count", name)], "sum")

    def total(self, name: str, _made: Aggregate, kind: pa.DataType) -> Array:
        low = part("low", name)
        if low in self.rows.column_names:
            return self._whole(self.rows[part("sum", name)], self.rows[low])
        return self._reduce(self.rows[part("sum", name)].cast(kind), "sum").cast(kind)

    def edge(self, name: str, made: Aggregate, _kind: pa.DataType) -> Array:
        return self._reduce(self.rows[part("value", name)], made.function)

    def pick(self, name: str, made: Aggregate) -> tuple[Array, Array]:
        values, bys = self.rows[part("value", name)], self.rows[part("by", name)]
        return self._pick(values, bys, largest=made.function == "last")


def _of_batch(name: str, made: Aggregate, batch: _PerKey, schema: pa.Schema) -> dict[str, Array]:
    """What the aggregate keeps of the batch alone."""
    kind = schema.field(name).type
    match made.function:
        case "count":
            return {name: batch.count(name, made)}
        case "sum":
            return {name: batch.total(name, made, kind)}
        case "mean":
            total = batch.total(name, made, schema.field(f"_{name}_sum").type)
            # Of the mean itself, merging makes nothing.
            return {name: total, f"_{name}_sum": total, f"_{name}_count": batch.count(name, made)}
        case "min" | "max":
            return {name: batch.edge(name, made, kind)}
    value, by = batch.pick(name, made)
    return {name: value, f"_{name}_by": by}
