"""Aggregates of a batch's rows alone, one value for each key; also of rows that stand for several of a key.

Such a row was added up by Spark before it was brought to its state partition. It has the key, how many rows it stands
for (`ROWS`), in which tasks these were read (`TASKS`), and of each aggregate the columns of `part`.
"""

from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from .kind import Groups

Function = Literal["count", "sum", "min", "max", "mean", "first", "last"]
Array = Any  # pyarrow's compute functions take and return Array or ChunkedArray alike


class Aggregate(Struct, frozen=True, omit_defaults=True):
    """One aggregate of one column; `by` orders `first` and `last`."""

    function: Function
    column: str | None = None
    by: str | None = None

    def __str__(self) -> str:
        inside = ", ".join(part for part in (self.column, self.by and f"by={self.by}") if part)
        return f"{self.function}({inside})"


_LOW = (1 << 32) - 1
ROWS = "_slackwater_rows"
"""A column of rows that stand for several of a key each: how many. They have the columns of `part` besides."""


def part(what: str, name: str) -> str:
    """The column with a part of what the aggregate `name` keeps of several rows, in the one that stands for them.

    `what` is `count`, `sum` (of integers of 64 bits that of their upper halves, and `low` that of the lower ones),
    `value` (of min, max, first and last) or `by` (of first and last).
    """
    return f"_{what}:{name}"


TASKS = "_slackwater_tasks"
"""An int64 whose bit n says whether task n, modulo `MOST_TASKS`, had one of the rows."""
MOST_TASKS = 63


class PerKey:
    """Aggregates of a batch alone, one value per key, in the keys' order."""

    def __init__(self, rows: pa.Table, groups: Groups) -> None:
        self._rows, self._groups = rows, groups
        self._ids = pa.array(groups.ids)
        self._parts = ROWS in rows.column_names

    def kept(self, name: str, made: Aggregate, schema: pa.Schema) -> dict[str, Array]:
        """What the aggregate keeps, in columns of this schema. Raises `ArrowInvalid` where a sum has no room."""
        kind = schema.field(name).type
        match made.function:
            case "count":
                return {name: self._count(name, made)}
            case "sum":
                return {name: self._total(name, made, kind)}
            case "mean":
                total = self._total(name, made, schema.field(f"_{name}_sum").type)
                # Of the mean itself, merging makes nothing.
                return {name: total, f"_{name}_sum": total, f"_{name}_count": self._count(name, made)}
            case "min" | "max":
                column = self._column("value", name, made.column)
                if not self._parts and pa.types.is_floating(kind):
                    column = pc.if_else(pc.is_nan(column), pa.scalar(None, kind), column)
                return {name: self._reduce(column, made.function)}
        values, bys = self._column("value", name, made.column), self._column("by", name, made.by)
        value, by = self._pick(values, bys, largest=made.function == "last")
        return {name: value, f"_{name}_by": by}

    def _column(self, what: str, name: str, column: str | None) -> Array:
        """A column of the rows, or the part of it that rows have that stand for several."""
        return self._rows[part(what, name) if self._parts else column]

    def _count(self, name: str, made: Aggregate) -> Array:
        if made.column is None and not self._parts:
            return pa.array(np.diff(self._groups.starts, append=self._rows.num_rows))
        return self._reduce(self._column("count", name, made.column), "sum" if self._parts else "count")

    def _total(self, name: str, made: Aggregate, kind: pa.DataType) -> Array:
        if (low := part("low", name)) in self._rows.column_names:
            return self._whole(self._rows[part("sum", name)], self._rows[low])
        values = self._column("sum", name, made.column).cast(kind)
        if not self._parts and pa.types.is_integer(kind):
            least, most = (each.as_py() or 0 for each in pc.min_max(values).values())
            if max(-least, most) * len(values) >= 1 << 63:
                # Arrow's sums of integers wrap around. Those of halves do not, for less than 2^31 rows.
                return self._whole(pc.shift_right(values, 32), pc.bit_wise_and(values, _LOW))
        return self._reduce(values, "sum").cast(kind)

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
        """Value and `by` of each key's first or last row; nulls for a key whose `by` is null everywhere."""
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
        return values.take(pa.array(picked, mask=picked < 0)), edge


def num_rows(rows: pa.Table) -> int:
    """How many rows these are, or stand for."""
    return int(pc.sum(rows[ROWS]).as_py() or 0) if ROWS in rows.column_names else int(rows.num_rows)


def num_partials(rows: pa.Table) -> int:
    """How many rows of several each task of Spark's made at most, before those of a key were made one; else 0."""
    tasks = pc.fill_null(rows[TASKS], 0).to_numpy() if TASKS in rows.column_names else np.empty(0, np.int64)
    return int(np.unpackbits(tasks.view(np.uint8)).sum())
