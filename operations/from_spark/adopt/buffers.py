"""Mapping of Spark's aggregation buffers to the columns of declared aggregates, by position.

A buffer has the fields of each aggregate in the order of `agg(...)`, and field names may repeat. The fields `sum,
count` may belong to a sum and a count, or to an average. The declaration decides: its aggregates are matched with the
fields in order.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Context, Decimal
from functools import partial
from itertools import takewhile
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ....errors import Refused
from ....snapshot.query.row_source import is_convertible
from ....state.kinds.aggregate import Aggregate
from ....store.sst.arrow_types import to_arrow
from ....store.sst.schema import arrow_schema
from ....store.versions.manifest import Column, Table
from ...attach.protocol import DELETED

Array = Any  # pyarrow's compute functions accept and return both Array and ChunkedArray


@dataclass(frozen=True, slots=True)
class MappedColumn:
    """One column of a stage's table, and the state columns from which it is computed."""

    column: str
    sources: tuple[str, ...]
    compute: Callable[[pa.Table], Array]
    how: str = ""


def concat_changes(put: pa.Table, deleted: pa.Table, table: Table) -> pa.Table:
    """Combine a batch's changed rows and deleted keys in one table with the column `DELETED`."""
    null_values = [pa.nulls(deleted.num_rows, value.type) for value in arrow_schema(table.values)]
    deleted_rows = pa.table([*deleted.columns, *null_values], schema=put.schema)
    flags = pa.array([False] * put.num_rows + [True] * deleted_rows.num_rows, pa.bool_())
    return pa.concat_tables([put, deleted_rows]).append_column(DELETED, flags)


@dataclass(slots=True)
class ColumnMapper:
    """Collects the columns that can be mapped, and the problems of other columns."""

    columns: list[MappedColumn] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    @property
    def used(self) -> set[str]:
        return {name for mapped in self.columns for name in mapped.sources}

    def copy_column(self, column: str, source: pa.Field, kind: pa.DataType, how: str = "") -> None:
        """Map a table column to the state column `source`.

        If the values cannot be converted to the type `kind`, a problem is added instead.
        """
        if is_convertible(source.type, kind):
            self.columns.append(MappedColumn(column, (source.name,), lambda rows: rows[source.name], how))
        else:
            self.problems.append(f"column {column!r} is {kind}, but {source.name!r} of the state is {source.type}")


def map_by_name_or_position(columns: Sequence[Column], state: pa.Schema, search: ColumnMapper, label: str) -> None:
    """Map table columns to state columns of the same name, and the remaining columns by position.

    Positions are used only if table and state have equally many remaining columns. Otherwise problems are added to
    `search`.
    """
    unmatched = {state_field.name.casefold(): state_field for state_field in state}
    sources = {
        declared.name: unmatched.pop(declared.name.casefold())
        for declared in columns
        if declared.name.casefold() in unmatched
    }
    missing = [declared for declared in columns if declared.name not in sources]
    if len(missing) == len(unmatched):
        # Spark chooses the names of expressions, so these are mapped by position.
        sources |= zip((declared.name for declared in missing), unmatched.values(), strict=True)
    elif missing:
        stored = ", ".join(f"{state_field.name} {state_field.type}" for state_field in state) or "none"
        search.problems += [
            f"{label} {declared.name!r} ({to_arrow(declared.type)}) is missing in the state, which has: {stored}"
            for declared in missing
        ]
        return
    else:
        search.problems += [
            f"{label} {state_field.name!r} ({state_field.type}) of the state is missing in the table"
            for state_field in unmatched.values()
        ]
    for column in columns:
        kind, source = to_arrow(column.type), sources[column.name]
        if is_convertible(source.type, kind):
            how = "" if column.name.casefold() == source.name.casefold() else "by position"
            search.columns.append(MappedColumn(column.name, (source.name,), partial(_cast, source.name, kind), how))
        else:
            search.problems.append(
                f"{label} {column.name!r} is {kind}, but {source.name!r} of the state is {source.type}"
            )


def _cast(name: str, kind: pa.DataType, rows: pa.Table) -> Array:
    return rows[name].cast(kind)


_NUMBERED = re.compile(r"(.*?)(?:_\d+)?")
_Make = Callable[[str, Mapping[str, pa.DataType], Sequence[str]], list[MappedColumn]]
"""Function that maps an aggregate's buffer fields to columns. Parameters: column name, column types, field names."""


@dataclass(frozen=True, slots=True)
class _Buffer:
    """Fields of an aggregate in Spark's buffer, in order, and the function that maps them to columns."""

    fields: tuple[str, ...]
    make: _Make
    spark_name: str = ""
    """Spark's name of the aggregate, if it differs from slackwater's name."""


def _map_value(name: str, _types: Mapping[str, pa.DataType], fields: Sequence[str]) -> list[MappedColumn]:
    (value,) = fields
    return [MappedColumn(name, (value,), lambda rows: rows[value])]


def _map_minimum(name: str, types: Mapping[str, pa.DataType], fields: Sequence[str]) -> list[MappedColumn]:
    (value,) = fields
    if not pa.types.is_floating(types[name]):
        return _map_value(name, types, fields)
    return [MappedColumn(name, (value,), lambda rows: _null_where(pc.is_nan(rows[value]), rows[value]), "null for NaN")]


def _largest_value(name: str, types: Mapping[str, pa.DataType], fields: Sequence[str]) -> list[MappedColumn]:
    (value,) = fields

    def largest(rows: pa.Table) -> Array:
        if pa.types.is_floating(rows[value].type) and (count := pc.sum(pc.is_nan(rows[value])).as_py()):
            raise Refused(
                f"column {name!r}: the maximum of {count:,} keys is NaN ({value!r} of the state); slackwater's max "
                "ignores NaN and would need their largest number, which the state does not have",
                hint="filter NaN out and restart the query with a new checkpoint, or declare the column as update(...)",
            )
        return rows[value]

    return [MappedColumn(name, (value,), largest)]


def _sum(name: str, types: Mapping[str, pa.DataType], fields: Sequence[str]) -> list[MappedColumn]:
    (total,) = fields
    return [MappedColumn(name, (total,), lambda rows: _scaled(rows[total], types[name]), _unscaled(total, types[name]))]


def _unscaled(total: str, kind: pa.DataType) -> str:
    return f"{total} / 10^{kind.scale}" if pa.types.is_decimal(kind) else ""


def _scaled(total: Array, kind: pa.DataType) -> Array:
    if not pa.types.is_decimal(kind) or pa.types.is_decimal(total.type):
        return total
    if pa.types.is_floating(total.type) and not kind.scale:
        # Spark stores the sum of a mean of integers as a double.
        return total.cast(kind)
    whole = total.cast(pa.int64()).cast(pa.decimal128(19, 0))
    return pc.multiply(whole, pa.scalar(Decimal(1).scaleb(-kind.scale), pa.decimal128(kind.scale + 1, kind.scale)))


def _decimal_sum(name: str, _types: Mapping[str, pa.DataType], fields: Sequence[str]) -> list[MappedColumn]:
    total, is_empty = fields

    def nonempty(rows: pa.Table) -> Array:
        # Spark's sum of decimals becomes null when it overflows.
        if count := pc.sum(pc.and_not(pc.is_null(rows[total]), rows[is_empty])).as_py():
            raise Refused(
                f"column {name!r}: the sums of {count:,} keys overflowed Spark's decimals and became null: the state "
                "does not have them",
                hint="restart the query with a new checkpoint and fewer digits, or declare the column as update(...)",
            )
        return _null_where(rows[is_empty], rows[total])

    return [MappedColumn(name, (total, is_empty), nonempty, "null if it is empty")]


def _mean(name: str, types: Mapping[str, pa.DataType], fields: Sequence[str]) -> list[MappedColumn]:
    total, number = fields

    kind = types[f"_{name}_sum"]

    def mean(rows: pa.Table) -> Array:
        nonzero = _null_where(pc.equal(rows[number], 0), rows[number]).cast(pa.float64())
        return pc.divide(_scaled(rows[total], kind).cast(pa.float64(), safe=False), nonzero)

    def nonempty_total(rows: pa.Table) -> Array:
        return _null_where(pc.equal(rows[number], 0), _scaled(rows[total], kind))

    return [
        MappedColumn(name, (total, number), mean, f"{total} / {number}"),
        MappedColumn(
            f"_{name}_sum", (total, number), nonempty_total, f"{_unscaled(total, kind) or total}, null without values"
        ),
        MappedColumn(f"_{name}_count", (number,), lambda rows: rows[number]),
    ]


def _by_arrival(*, first: bool) -> _Make:
    def make(name: str, types: Mapping[str, pa.DataType], fields: Sequence[str]) -> list[MappedColumn]:
        value, is_set = fields
        by = f"_{name}_by"
        # Any new row is later than null, and no new row is earlier than the smallest value.
        edge = _smallest_value(types[by]) if first else None
        how = "the smallest value: no later row is earlier" if first else "null: every later row replaces it"
        return [
            MappedColumn(
                name,
                (value, is_set),
                lambda rows: pc.if_else(rows[is_set], rows[value], None),
                "null if it is not set",
            ),
            MappedColumn(by, (is_set,), lambda rows: pc.if_else(rows[is_set], pa.scalar(edge, types[by]), None), how),
        ]

    return make


def _by_order(name: str, _types: Mapping[str, pa.DataType], fields: Sequence[str]) -> list[MappedColumn]:
    value, by = fields
    return [
        MappedColumn(name, (value,), lambda rows: rows[value]),
        MappedColumn(f"_{name}_by", (by,), lambda rows: rows[by]),
    ]


_EXTREMUM = ("valueWithExtremumOrdering", "extremumOrdering")
_BUFFERS: Mapping[str, tuple[_Buffer, ...]] = {
    "count": (_Buffer(("count",), _map_value),),
    "sum": (_Buffer(("sum", "isEmpty"), _decimal_sum), _Buffer(("sum",), _sum)),
    "mean": (_Buffer(("sum", "count"), _mean, "avg"),),
    "min": (_Buffer(("min",), _map_minimum),),
    "max": (_Buffer(("max",), _largest_value),),
    "first": (_Buffer(("first", "valueSet"), _by_arrival(first=True)), _Buffer(_EXTREMUM, _by_order, "min_by")),
    "last": (_Buffer(("last", "valueSet"), _by_arrival(first=False)), _Buffer(_EXTREMUM, _by_order, "max_by")),
}
_UNSUPPORTED = {
    "MS": "approx_count_distinct",
    "buf": "an aggregate over all values, such as collect_list",
    "m2": "a variance, a deviation or the like",
}
"""Aggregates that cannot be adopted, by the names of their buffer fields in Spark."""


def map_aggregates(
    declarations: Sequence[tuple[str, Aggregate]], state: pa.Schema, values: pa.Schema, search: ColumnMapper
) -> None:
    """Map the fields `state` of a buffer to the columns of declared aggregates.

    `values` are the table's columns. Mapped columns and problems are added to `search`.
    """
    types = {column.name: column.type for column in values}
    fields, at = list(state), 0
    for name, declared in declarations:
        remaining = fields[at:]
        candidates = _BUFFERS[declared.function]
        buffer = next(
            (
                candidate
                for candidate in candidates
                if _unnumbered_names(remaining[: len(candidate.fields)]) == candidate.fields
            ),
            None,
        )
        if buffer is None:
            expected = " or ".join(
                f"{candidate.spark_name or declared.function} ({', '.join(candidate.fields)})"
                for candidate in candidates
            )
            actual = (
                f"{remaining[0].name} {remaining[0].type}{_unsupported_hint(remaining[0].name)}"
                if remaining
                else "nothing"
            )
            search.problems.append(
                f"column {name!r} is {declared}: expected {expected} at position {at + 1} of the state, found {actual}"
            )
            return
        own_fields = remaining[: len(buffer.fields)]
        at += len(own_fields)
        for mapped in buffer.make(name, types, [source.name for source in own_fields]):
            # The sum of a mean of integers is a double with an integral value.
            unfit = [
                source
                for source in own_fields
                if mapped.sources == (source.name,) and not mapped.how
                if not is_convertible(source.type, types[mapped.column])
            ]
            search.problems += [
                f"column {mapped.column!r} is {types[mapped.column]}, but {source.name!r} of the state is {source.type}"
                for source in unfit
            ]
            search.columns.append(mapped)
    if remaining := fields[at:]:
        more = ", ".join(f"{extra.name} {extra.type}" for extra in remaining[:4]) + (
            ", …" if len(remaining) > 4 else ""
        )
        search.problems.append(
            f"the state has {len(remaining)} more fields than the declared aggregates: {more}"
            f"{_unsupported_hint(remaining[0].name)}"
        )


def guess_aggregates(state: pa.Schema) -> tuple[list[tuple[str, str, pa.DataType]], list[str]]:
    """Guess which aggregates produced a buffer. Returns the aggregates, and descriptions of unknown fields.

    An aggregate is a tuple of its function, and the name and type of its first field. If several aggregates match, the
    aggregate with the most fields is chosen: `sum, count` is a mean.
    """
    fields, declarations, unknown, at = list(state), [], [], 0
    all_buffers = sorted(
        ((function, candidate) for function, buffers in reversed([*_BUFFERS.items()]) for candidate in buffers),
        key=lambda entry: -len(entry[1].fields),
    )
    while at < len(fields):
        for function, buffer in all_buffers:
            own_fields = fields[at : at + len(buffer.fields)]
            if _unnumbered_names(own_fields) == buffer.fields:
                declarations.append((function, own_fields[0].name, own_fields[0].type))
                at += len(own_fields)
                break
        else:
            # Aggregates such as approx_count_distinct have fifty fields.
            first_field, guess = fields[at], _unsupported_hint(fields[at].name)
            same_hint = takewhile(lambda other: _unsupported_hint(other.name) == guess, fields[at:])  # noqa: B023
            similar = [*same_hint] if guess else [first_field]
            unknown.append(f"{first_field.name} {first_field.type}{' and others' if len(similar) > 1 else ''}{guess}")
            at += len(similar)
    return declarations, unknown


def _unnumbered_names(fields: Sequence[pa.Field]) -> tuple[str, ...]:
    return tuple(_NUMBERED.fullmatch(buffer_field.name)[1] for buffer_field in fields)  # type: ignore[index]


def _unsupported_hint(name: str) -> str:
    guess = next((noun for start, noun in _UNSUPPORTED.items() if re.fullmatch(rf"{start}(_\d+)*_?", name)), "")
    return f" (of {guess}, which no aggregate of slackwater can continue: declare it as update(...))" if guess else ""


def _null_where(mask: Array, values: Array) -> Array:
    return pc.if_else(mask, pa.scalar(None, values.type), values)


def _smallest_value(kind: pa.DataType) -> object:
    types = pa.types
    if types.is_integer(kind):
        return -(1 << (kind.bit_width - 1))
    if types.is_floating(kind):
        return float("-inf")
    if types.is_timestamp(kind):
        return -62_135_596_800_000_000  # the year 1
    if types.is_date(kind):
        return -719_162
    if types.is_decimal(kind):
        return Decimal(1 - 10**kind.precision).scaleb(-kind.scale, Context(prec=kind.precision))
    return False if types.is_boolean(kind) else b"" if types.is_binary(kind) else ""
