"""State of running aggregates, one row per key: `aggregate(flights=count(), delay=sum("arr_delay"))`.

Nulls follow SQL: `count("x")`, `sum`, `min`, `max` and `mean` ignore them; a key without any value is null. `min` and
`max` also ignore NaN. Sums of integers are 64 bits wide. Sums of decimals keep their scale and have 38 digits; the
internal sums of integer means have 38 digits, too. No sum wraps around: an overflow raises `SumOverflow`, which
`BoundAggregates.merge` turns into a `BadRecord` that names the key.

Spark may pre-aggregate rows before the shuffle. A pre-aggregated row has the key, the number of rows (`ROWS_COLUMN`),
the tasks that read these rows (`TASKS_COLUMN`), and for each aggregate the columns of `partial_column`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any, ClassVar, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from ...common.arguments import check_arguments
from ...errors import BadRecord, Usage
from ...store.sst.arrow_types import python_rows
from ...store.versions.manifest import is_internal
from .kind import BoundState, Columns, Groups, Kind, MergeResult, check_value_names, field_of, single_schema

Function = Literal["count", "sum", "min", "max", "mean", "first", "last"]
Array = Any  # pyarrow's compute functions accept and return both Array and ChunkedArray


class Aggregate(Struct, frozen=True, omit_defaults=True):
    """Aggregate of one column. For `first` and `last`, the column `by` orders the rows."""

    function: Function
    column: str | None = None
    by: str | None = None

    def __str__(self) -> str:
        inside = ", ".join(part for part in (self.column, self.by and f"by={self.by}") if part)
        return f"{self.function}({inside})"


_LOW = (1 << 32) - 1
_DIGITS = 38
ROWS_COLUMN = "_slackwater_rows"
"""Column of pre-aggregated rows: number of rows that were combined into the row."""


def partial_column(content: str, name: str) -> str:
    """Return the name of the column of pre-aggregated rows with one part of the aggregate `name`.

    `content` is the part: `count` or `sum`; `value` of a min, max, first or last; `by` of a first or last. A sum of
    64-bit integers may be split in halves: `sum` has the sum of the upper halves, and `low` the sum of the lower
    halves.
    """
    return f"_{content}:{name}"


TASKS_COLUMN = "_slackwater_tasks"
"""Column of pre-aggregated rows, int64. Bit n is set if task n (modulo `MAX_TASKS`) read one of the combined rows."""
MAX_TASKS = 63


@check_arguments
def count(column: str | None = None) -> Aggregate:
    """Number of rows, or of rows in which `column` is not null."""
    return Aggregate("count", column)


@check_arguments
def sum(column: str) -> Aggregate:  # noqa: A001  named as SQL and pyspark.sql.functions name it
    """Sum of a numeric column."""
    return Aggregate("sum", column)


@check_arguments
def min(column: str) -> Aggregate:  # noqa: A001
    """Smallest value of a column."""
    return Aggregate("min", column)


@check_arguments
def max(column: str) -> Aggregate:  # noqa: A001
    """Largest value of a column."""
    return Aggregate("max", column)


@check_arguments
def mean(column: str) -> Aggregate:
    """Mean of a numeric column, as a double."""
    return Aggregate("mean", column)


@check_arguments
def first(column: str, *, by: str) -> Aggregate:
    """Value of `column` in the row with the smallest `by`.

    Of rows with an equal `by`, rows of the earliest batch win; within this batch, the largest value wins.
    """
    return Aggregate("first", column, by)


@check_arguments
def last(column: str, *, by: str) -> Aggregate:
    """Value of `column` in the row with the largest `by`.

    Of rows with an equal `by`, rows of the latest batch win; within this batch, the largest value wins.
    """
    return Aggregate("last", column, by)


def aggregate(**columns: Aggregate) -> "Aggregates":
    """Declare a table with one row per key and these aggregates as its columns.

    A stage with outputs emits a row for each key that a batch changed, with the key and the new values.

    Raises `Usage` if there is no column, or if a value is not an aggregate.
    """
    if not columns:
        raise Usage("aggregate() needs at least one column, such as rows=slackwater.count()")
    for name, declared in columns.items():
        if not isinstance(declared, Aggregate):
            raise Usage(f"aggregate column {name!r} is {declared!r}; expected count(), sum(...), min(...), …")
    return Aggregates(tuple(columns.items()))


class Aggregates(Kind, frozen=True, tag="aggregate"):
    """Declared aggregates of a table, by column."""

    made: tuple[tuple[str, Aggregate], ...]
    emission: ClassVar[Literal["table"]] = "table"

    def __str__(self) -> str:
        return f"aggregate({', '.join(f'{name}={aggregate}' for name, aggregate in self.made)})"

    @property
    def columns(self) -> dict[str, str]:
        return {name: str(aggregate) for name, aggregate in self.made}

    def copied_column(self, column: str) -> str:
        aggregate = dict(self.made).get(column)
        return (
            aggregate.column or ""
            if aggregate is not None and aggregate.function in ("min", "max", "first", "last")
            else ""
        )

    def renamed(self, names: Mapping[str, str]) -> "Aggregates":
        return Aggregates(tuple((names.get(name, name), aggregate) for name, aggregate in self.made))

    def internal_renames(self, names: Mapping[str, str]) -> dict[str, str]:
        return {f"_{old}{part}": f"_{new}{part}" for old, new in names.items() for part in ("_sum", "_count", "_by")}

    def is_compatible_with(self, now: Kind) -> bool:
        return self.tag == now.tag

    def why_not_maskable(self, column: str) -> str:
        aggregate = dict(self.made).get(column)
        replaced = aggregate is None or aggregate.function in ("first", "last")
        return "" if replaced else f"it is {aggregate}, to which later records add"

    def source_columns(self, column: str) -> tuple[str, ...]:
        aggregate = dict(self.made).get(column)
        return (aggregate.column,) if aggregate is not None and aggregate.column else ()

    def bind(self, rows: Sequence[pa.Schema], key: tuple[str, ...]) -> BoundState:
        schema = single_schema(rows, "aggregate(...)")
        check_value_names([name for name, _ in self.made], key)
        fields: list[pa.Field] = []
        needs: dict[str, None] = {}
        for name, aggregate in self.made:
            source = field_of(schema, aggregate.column).type if aggregate.column else None
            by = field_of(schema, aggregate.by).type if aggregate.by else None
            fields += _fields(name, aggregate, source, by)
            needs.update(
                dict.fromkeys(column for column in (aggregate.column, aggregate.by) if column and column not in key)
            )
        values = pa.schema(fields)
        visible = [field for field in values if not is_internal(field.name)]
        emits = pa.schema([*(field_of(schema, column) for column in key), *visible])
        return BoundAggregates(self.made, values, tuple(needs), (emits,))


def _fields(name: str, aggregate: Aggregate, source: pa.DataType | None, by: pa.DataType | None) -> list[pa.Field]:
    if aggregate.function == "count":
        return [pa.field(name, pa.int64())]
    assert source is not None  # noqa: S101  every other function takes a column
    if aggregate.function in ("sum", "mean"):
        if pa.types.is_integer(source):
            # A mean is never larger than its values, but the internal sum behind it needs more digits.
            total = pa.int64() if aggregate.function == "sum" else pa.decimal128(_DIGITS, 0)
        elif pa.types.is_floating(source):
            total = pa.float64()
        elif pa.types.is_decimal(source):
            total = pa.decimal128(_DIGITS, source.scale)
        else:
            raise Usage(f"{name}={aggregate}: column {aggregate.column!r} is {source}; expected a number")
        if aggregate.function == "sum":
            return [pa.field(name, total)]
        return [pa.field(name, pa.float64()), pa.field(f"_{name}_sum", total), pa.field(f"_{name}_count", pa.int64())]
    if pa.types.is_nested(source):
        raise Usage(
            f"{name}={aggregate}: column {aggregate.column!r} is {source}; expected a plain value, not a nested one"
        )
    if aggregate.function in ("min", "max"):
        return [pa.field(name, source)]
    return [pa.field(name, source), pa.field(f"_{name}_by", by)]


class SumOverflow(Exception):
    """A sum does not fit its type. `row` is the index of the key in the summed table."""

    def __init__(self, column: str, total: Decimal, kind: pa.DataType, row: int) -> None:
        self.row = row
        type_name = "long" if pa.types.is_integer(kind) else f"decimal({kind.precision}, {kind.scale})"
        label = f"the sum behind {column[1:-4]}" if is_internal(column) else column
        self._says = label, f"would be {total:f}, which does not fit a {type_name}"
        super().__init__(" ".join(self._says))

    def to_bad_record(self, keys: pa.Table) -> BadRecord:
        (key,) = python_rows(keys.slice(self.row, 1))
        label, problem = self._says
        return BadRecord(f"{label} of key {', '.join(f'{name}={value!r}' for name, value in key.items())} {problem}")


class BatchAggregates:
    """Aggregates of one batch's rows, with one value per key, in the order of the keys."""

    def __init__(self, rows: pa.Table, groups: Groups) -> None:
        self._rows, self._groups = rows, groups
        self._ids = pa.array(groups.ids)
        self._parts = ROWS_COLUMN in rows.column_names

    def stored_columns(self, name: str, aggregate: Aggregate, schema: pa.Schema) -> dict[str, Array]:
        kind = schema.field(name).type
        match aggregate.function:
            case "count":
                return {name: self._count(name, aggregate)}
            case "sum":
                return {name: self._total(name, aggregate, schema)}
            case "mean":
                total = self._total(name, aggregate, schema)
                # A placeholder: merging recomputes the mean from sum and count.
                return {name: total, f"_{name}_sum": total, f"_{name}_count": self._count(name, aggregate)}
            case "min" | "max":
                column = self._column("value", name, aggregate.column)
                if not self._parts and pa.types.is_floating(kind):
                    column = pc.if_else(pc.is_nan(column), pa.scalar(None, kind), column)
                return {name: self._reduce(column, aggregate.function)}
        values, bys = self._column("value", name, aggregate.column), self._column("by", name, aggregate.by)
        value, by = self._pick(values, bys, largest=aggregate.function == "last")
        return {name: value, f"_{name}_by": by}

    def _column(self, content: str, name: str, column: str | None) -> Array:
        return self._rows[partial_column(content, name) if self._parts else column]

    def _count(self, name: str, aggregate: Aggregate) -> Array:
        if aggregate.column is None and not self._parts:
            return pa.array(np.diff(self._groups.starts, append=self._rows.num_rows))
        return self._reduce(self._column("count", name, aggregate.column), "sum" if self._parts else "count")

    def _total(self, name: str, aggregate: Aggregate, schema: pa.Schema) -> Array:
        column = name if aggregate.function == "sum" else f"_{name}_sum"
        kind = schema.field(column).type
        if (low := partial_column("low", name)) in self._rows.column_names:
            return self._whole(column, self._rows[partial_column("sum", name)], self._rows[low], kind)
        values = self._column("sum", name, aggregate.column)
        if pa.types.is_decimal(values.type):
            # Arrow's sums of decimals wrap around at 128 bits; 256 bits suffice for any number of rows.
            return cast_sums(column, self._reduce(values.cast(_wide(kind)), "sum"), kind)
        if not pa.types.is_integer(values.type):
            return self._reduce(values.cast(kind), "sum").cast(kind)
        values = values.cast(pa.int64())
        if not self._parts:
            least, most = (bound.as_py() or 0 for bound in pc.min_max(values).values())
            if any(edge * len(values) >= 1 << 63 for edge in (-least, most)):
                # Arrow's sums of integers wrap around. Sums of 32-bit halves do not wrap around for less than 2^31
                # rows.
                return self._whole(column, pc.shift_right(values, 32), pc.bit_wise_and(values, _LOW), kind)
        return self._reduce(values, "sum").cast(kind)

    def _reduce(self, values: Array, function: str) -> Array:
        # Ids ascend, so Arrow returns the groups in the keys' order, without gaps.
        grouped = pa.table({"id": self._ids, "v": values}).group_by("id", use_threads=False)
        return grouped.aggregate([("v", function)])[f"v_{function}"]

    def _whole(self, column: str, high: Array, low: Array, kind: pa.DataType) -> Array:
        high, low = self._reduce(high, "sum"), self._reduce(low, "sum")
        high, low = pc.add(high, pc.shift_right(low, 32)), pc.bit_wise_and(low, _LOW)
        if pa.types.is_integer(kind):
            try:
                return pc.add(pc.multiply_checked(high, 1 << 32), low)
            except pa.ArrowInvalid:
                pass  # `cast_sums` tells which
        upper = pc.multiply(high.cast(pa.decimal128(19, 0)), pa.scalar(Decimal(1 << 32), pa.decimal128(10, 0)))
        return cast_sums(
            column, pc.add(upper.cast(_wide(kind)), low.cast(pa.decimal128(19, 0)).cast(_wide(kind))), kind
        )

    def _pick(self, values: Array, bys: Array, *, largest: bool) -> tuple[Array, Array]:
        edge = self._reduce(bys, "max" if largest else "min")
        at_edge = pc.equal(bys, edge.take(self._ids))
        ties = pc.indices_nonzero(pc.fill_null(at_edge, False))
        ids, values = self._ids.take(ties), values.take(ties)
        # Rows with equal `by` arrive in no fixed order; taking the largest value makes replays deterministic.
        order = pc.sort_indices(pa.table({"id": ids, "v": values}), [("id", "ascending"), ("v", "descending")])
        ids_sorted = ids.take(order).to_numpy()
        firsts = np.flatnonzero(np.diff(ids_sorted, prepend=-1))
        picked = np.full(self._groups.num, -1, np.int64)
        picked[ids_sorted[firsts]] = order.to_numpy()[firsts]
        return values.take(pa.array(picked, mask=picked < 0)), edge


def num_rows(rows: pa.Table) -> int:
    return int(pc.sum(rows[ROWS_COLUMN]).as_py() or 0) if ROWS_COLUMN in rows.column_names else int(rows.num_rows)


def num_partials(rows: pa.Table) -> int:
    """Return the number of pre-aggregated rows that Spark shuffled; 0 without pre-aggregation."""
    tasks = (
        pc.fill_null(rows[TASKS_COLUMN], 0).to_numpy() if TASKS_COLUMN in rows.column_names else np.empty(0, np.int64)
    )
    return int(np.unpackbits(tasks.view(np.uint8)).sum())


@dataclass(frozen=True, slots=True)
class BoundAggregates(BoundState):
    """Declared aggregates, bound to the schema of the rows."""

    columns: tuple[tuple[str, Aggregate], ...]
    values: pa.Schema
    needed_columns: tuple[str, ...]
    emitted_schemas: tuple[pa.Schema, ...]

    def merge(self, rows: pa.Table, groups: Groups, keys: pa.Table, old: pa.Table) -> MergeResult:
        try:
            values = self.add_rows(rows, groups, old)
        except SumOverflow as error:
            raise error.to_bad_record(keys) from None
        visible = values.select([field.name for field in self.values if not is_internal(field.name)])
        emitted = pa.table([*keys.columns, *visible.columns], schema=self.emitted_schemas[0])
        return MergeResult(values, emitted=(emitted,))

    @property
    def partial_aggregates(self) -> tuple[tuple[str, Aggregate], ...]:
        return self.columns

    def over_partials(self, columns: tuple[str, ...]) -> BoundState:
        return replace(self, needed_columns=columns)

    def add_rows(self, rows: pa.Table, groups: Groups, old: pa.Table) -> pa.Table:
        """Add each group's rows, possibly pre-aggregated, to the group's row in `old`. Raises `SumOverflow`."""
        batch = BatchAggregates(rows, groups)
        return self._table(old, lambda name, aggregate: batch.stored_columns(name, aggregate, self.values))

    def combine(self, earlier: pa.Table, later: pa.Table) -> pa.Table:
        """Combine the value columns of earlier records and later records of the same keys, row by row.

        Raises `SumOverflow`.
        """
        return self._table(earlier, lambda _name, _aggregate: later)

    def _table(self, earlier: pa.Table, later: Callable[[str, Aggregate], Columns]) -> pa.Table:
        stored: dict[str, Array] = {}
        for name, aggregate in self.columns:
            stored |= combine_aggregates(aggregate.function, name, earlier, later(name, aggregate))
        return pa.table([stored[field.name] for field in self.values], schema=self.values)


def combine_aggregates(function: str, name: str, earlier: Columns, later: Columns) -> dict[str, Array]:
    """Combine the columns of the aggregate `name` over earlier and later records of the same keys, row by row.

    Both sides have all columns of the aggregate: `name`; for a mean also `_name_sum` and `_name_count`; for first and
    last also `_name_by`. Null stands for no records. Raises `SumOverflow`.
    """
    old, new = earlier[name], later[name]
    match function:
        case "count":
            return {name: pc.add(pc.fill_null(old, 0), pc.fill_null(new, 0))}
        case "sum":
            return {name: add_sums(name, old, new)}
        case "mean":
            total = add_sums(f"_{name}_sum", earlier[f"_{name}_sum"], later[f"_{name}_sum"])
            number = pc.add(pc.fill_null(earlier[f"_{name}_count"], 0), pc.fill_null(later[f"_{name}_count"], 0))
            divisor = pc.if_else(pc.equal(number, 0), pa.scalar(None, pa.int64()), number).cast(pa.float64())
            # Sums beyond 2^53 are rounded to the nearest double.
            average = pc.divide(total.cast(pa.float64(), safe=False), divisor)
            return {name: average, f"_{name}_sum": total, f"_{name}_count": number}
        case "min" | "max":
            # By comparison, because Arrow's min_element_wise supports neither times with a zone nor strings.
            better = pc.less(new, old) if function == "min" else pc.greater(new, old)
            return {name: pc.if_else(pc.fill_null(better, pc.is_null(old)), new, old)}
        case "first" | "last":
            by, old_by = later[f"_{name}_by"], earlier[f"_{name}_by"]
            newer = pc.greater_equal(by, old_by) if function == "last" else pc.less(by, old_by)
            use_new = pc.fill_null(newer, pc.and_(pc.is_null(old_by), pc.is_valid(by)))
            return {name: pc.if_else(use_new, new, old), f"_{name}_by": pc.if_else(use_new, by, old_by)}
    raise ValueError(f"unknown aggregate function {function!r}")


def add_sums(name: str, old: Array, new: Array) -> Array:
    """Add two columns of sums as SQL does: a total is null only if both sums are null. Raises `SumOverflow`."""
    kind = old.type
    if pa.types.is_floating(kind):
        return pc.coalesce(pc.add(old, new), old, new)
    if pa.types.is_integer(kind):
        try:
            return pc.coalesce(pc.add_checked(old, new), old, new)
        except pa.ArrowInvalid:
            pass  # `cast_sums` tells which
    wide = _wide(kind)
    return pc.coalesce(cast_sums(name, pc.add(_widened(old, wide), _widened(new, wide)), kind), old, new)


def _wide(kind: pa.DataType) -> pa.DataType:
    # Arrow adds a digit to the type of a sum of decimals, and 76 digits is the maximum.
    return pa.decimal256(75, kind.scale if pa.types.is_decimal(kind) else 0)


def _widened(values: Array, wide: pa.DataType) -> Array:
    return values.cast(pa.decimal128(19, 0)).cast(wide) if pa.types.is_integer(values.type) else values.cast(wide)


def cast_sums(name: str, totals: Array, kind: pa.DataType) -> Array:
    """Cast the sums of the column `name` to the type `kind`. Raises `SumOverflow` for a sum that does not fit."""
    narrow = pa.decimal128(_DIGITS, totals.type.scale)
    try:
        return totals.cast(narrow).cast(kind)
    except pa.ArrowInvalid:
        for row, total in enumerate(totals.to_pylist()):
            try:
                pa.array([total], narrow).cast(kind)
            except pa.ArrowInvalid:
                raise SumOverflow(name, total, kind, row) from None
        raise
