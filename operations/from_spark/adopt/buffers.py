"""Aggregates out of Spark's buffers: which fields each one keeps there, by place, since names come several times.

Spark has one field after the other, of one aggregate after the other in the order of `agg(...)`: `sum, count` is a sum
and a count, or an average; only the declaration can tell, and it is gone through in its order.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Context, Decimal
from itertools import takewhile

import pyarrow as pa
import pyarrow.compute as pc

from ....errors import Refused
from ....snapshot.query.row_source import taken
from ....state.kinds.aggregate import Aggregate
from .columns import Array, ColumnSearch, MadeColumn

_NUMBERED = re.compile(r"(.*?)(?:_\d+)?")
_Make = Callable[[str, Mapping[str, pa.DataType], Sequence[str]], list[MadeColumn]]
"""Gets the aggregate's column, the table's types, and the fields of the buffer."""


@dataclass(frozen=True, slots=True)
class _Buffer:
    """What Spark keeps of an aggregate: its fields, in their order, and what is made of them."""

    fields: tuple[str, ...]
    make: _Make
    of: str = ""
    """The aggregate of Spark's, where it has another name."""


def _same(name: str, _types: Mapping[str, pa.DataType], of: Sequence[str]) -> list[MadeColumn]:
    (value,) = of
    return [MadeColumn(name, (value,), lambda rows: rows[value])]


def _least_value(name: str, types: Mapping[str, pa.DataType], of: Sequence[str]) -> list[MadeColumn]:
    """To Spark NaN is the largest number, and so the least one of nothing but NaN; here it is none."""
    (value,) = of
    if not pa.types.is_floating(types[name]):
        return _same(name, types, of)
    return [MadeColumn(name, (value,), lambda rows: _unless(pc.is_nan(rows[value]), rows[value]), "null for NaN")]


def _largest_value(name: str, types: Mapping[str, pa.DataType], of: Sequence[str]) -> list[MadeColumn]:
    (value,) = of

    def largest(rows: pa.Table) -> Array:
        if pa.types.is_floating(rows[value].type) and (count := pc.sum(pc.is_nan(rows[value])).as_py()):
            raise Refused(
                f"column {name!r}: the largest value of {count:,} keys is NaN in {value!r} of the state, which max "
                "passes over here: what the largest number was, the state does not say",
                hint="leave NaN out of the query's rows, and let it begin anew; or declare the column as update(...)",
            )
        return rows[value]

    return [MadeColumn(name, (value,), largest)]


def _sum(name: str, types: Mapping[str, pa.DataType], of: Sequence[str]) -> list[MadeColumn]:
    (total,) = of
    return [MadeColumn(name, (total,), lambda rows: _scaled(rows[total], types[name]), _unscaled(total, types[name]))]


def _unscaled(total: str, kind: pa.DataType) -> str:
    return f"{total} / 10^{kind.scale}" if pa.types.is_decimal(kind) else ""


def _scaled(total: Array, kind: pa.DataType) -> Array:
    """A sum, where a decimal is wanted and Spark keeps the sum of short decimals as a number without their scale."""
    if not pa.types.is_decimal(kind) or pa.types.is_decimal(total.type):
        return total
    if pa.types.is_floating(total.type) and not kind.scale:
        # Spark keeps the sum behind a mean of integers as a double.
        return total.cast(kind)
    whole = total.cast(pa.int64()).cast(pa.decimal128(19, 0))
    return pc.multiply(whole, pa.scalar(Decimal(1).scaleb(-kind.scale), pa.decimal128(kind.scale + 1, kind.scale)))


def _decimal_sum(name: str, _types: Mapping[str, pa.DataType], of: Sequence[str]) -> list[MadeColumn]:
    total, is_empty = of

    def some(rows: pa.Table) -> Array:
        # Spark's sum of decimals is null from the record on with which it had no room.
        if count := pc.sum(pc.and_not(pc.is_null(rows[total]), rows[is_empty])).as_py():
            raise Refused(
                f"column {name!r}: the sums of {count:,} keys had no room in Spark's decimals, which made them null: "
                "the state does not say what they were",
                hint="let the query begin anew with fewer digits; or declare the column as update(...)",
            )
        return _unless(rows[is_empty], rows[total])

    return [MadeColumn(name, (total, is_empty), some, "null where it is empty")]


def _mean(name: str, types: Mapping[str, pa.DataType], of: Sequence[str]) -> list[MadeColumn]:
    total, number = of

    kind = types[f"_{name}_sum"]

    def mean(rows: pa.Table) -> Array:
        some = _unless(pc.equal(rows[number], 0), rows[number]).cast(pa.float64())
        return pc.divide(_scaled(rows[total], kind).cast(pa.float64(), safe=False), some)

    def total_of_some(rows: pa.Table) -> Array:
        return _unless(pc.equal(rows[number], 0), _scaled(rows[total], kind))

    return [
        MadeColumn(name, (total, number), mean, f"{total} / {number}"),
        MadeColumn(f"_{name}_sum", (total, number), total_of_some, f"{_unscaled(total, kind) or total}, null of none"),
        MadeColumn(f"_{name}_count", (number,), lambda rows: rows[number]),
    ]


def _by_arrival(*, first: bool) -> _Make:
    """A first or last value of Spark's, which has come first or last: nobody knows by what."""

    def make(name: str, types: Mapping[str, pa.DataType], of: Sequence[str]) -> list[MadeColumn]:
        value, is_set = of
        by = f"_{name}_by"
        # Any row that comes is later than a null; none is earlier than the least there is.
        edge = _least(types[by]) if first else None
        how = "the least there is: no row that comes is earlier" if first else "null: any row that comes is later"
        return [
            MadeColumn(
                name,
                (value, is_set),
                lambda rows: pc.if_else(rows[is_set], rows[value], None),
                "null where it is not set",
            ),
            MadeColumn(by, (is_set,), lambda rows: pc.if_else(rows[is_set], pa.scalar(edge, types[by]), None), how),
        ]

    return make


def _by_order(name: str, _types: Mapping[str, pa.DataType], of: Sequence[str]) -> list[MadeColumn]:
    value, by = of
    return [
        MadeColumn(name, (value,), lambda rows: rows[value]),
        MadeColumn(f"_{name}_by", (by,), lambda rows: rows[by]),
    ]


_EXTREMUM = ("valueWithExtremumOrdering", "extremumOrdering")
_BUFFERS: Mapping[str, tuple[_Buffer, ...]] = {
    "count": (_Buffer(("count",), _same),),
    "sum": (_Buffer(("sum", "isEmpty"), _decimal_sum), _Buffer(("sum",), _sum)),
    "mean": (_Buffer(("sum", "count"), _mean, "avg"),),
    "min": (_Buffer(("min",), _least_value),),
    "max": (_Buffer(("max",), _largest_value),),
    "first": (_Buffer(("first", "valueSet"), _by_arrival(first=True)), _Buffer(_EXTREMUM, _by_order, "min_by")),
    "last": (_Buffer(("last", "valueSet"), _by_arrival(first=False)), _Buffer(_EXTREMUM, _by_order, "max_by")),
}
_OTHERS = {
    "MS": "approx_count_distinct",
    "buf": "an aggregate over all values, such as collect_list",
    "m2": "a variance, a deviation or the like",
}
"""Of fields by which other aggregates are known, which these are."""


def aggregates(made: Sequence[tuple[str, Aggregate]], state: pa.Schema, values: pa.Schema, found: ColumnSearch) -> None:
    """What the declared aggregates keep, out of a buffer with these fields; `values` are the table's columns."""
    types = {each.name: each.type for each in values}
    fields, at = list(state), 0
    for name, declared in made:
        rest = fields[at:]
        known = _BUFFERS[declared.function]
        buffer = next((each for each in known if _fields(rest[: len(each.fields)]) == each.fields), None)
        if buffer is None:
            expected = " or ".join(f"{each.of or declared.function} ({', '.join(each.fields)})" for each in known)
            here = f"{rest[0].name} {rest[0].type}{_guess(rest[0].name)}" if rest else "nothing"
            found.problems.append(
                f"column {name!r} is {declared}, and the state has {here} at place {at + 1}, where {expected} should be"
            )
            return
        of = rest[: len(buffer.fields)]
        at += len(of)
        for each in buffer.make(name, types, [one.name for one in of]):
            # A sum of integers is a double in an average, and whole.
            wrong = [
                one for one in of if each.of == (one.name,) and not each.how and not taken(one.type, types[each.column])
            ]
            found.problems += [
                f"column {each.column!r} is {types[each.column]}, and {one.name!r} of the state is {one.type}"
                for one in wrong
            ]
            found.made.append(each)
    if rest := fields[at:]:
        more = ", ".join(f"{each.name} {each.type}" for each in rest[:4]) + (", …" if len(rest) > 4 else "")
        found.problems.append(
            f"the state has {len(rest)} fields more than the declared aggregates keep: {more}{_guess(rest[0].name)}"
        )


def declared_from(state: pa.Schema) -> tuple[list[tuple[str, str, pa.DataType]], list[str]]:
    """Aggregates that a buffer may be of: function, first field and its type, of each; and the fields of no aggregate.

    Where several may be, the longest is meant: `sum, count` is a mean.
    """
    fields, found, others, at = list(state), [], [], 0
    every = sorted(
        ((function, each) for function, known in reversed([*_BUFFERS.items()]) for each in known),
        key=lambda one: -len(one[1].fields),
    )
    while at < len(fields):
        for function, each in every:
            of = fields[at : at + len(each.fields)]
            if _fields(of) == each.fields:
                found.append((function, of[0].name, of[0].type))
                at += len(of)
                break
        else:
            # An aggregate may have fifty of them.
            one, guess = fields[at], _guess(fields[at].name)
            alike = [*takewhile(lambda each: _guess(each.name) == guess, fields[at:])] if guess else [one]  # noqa: B023
            others.append(f"{one.name} {one.type}{' and others' if len(alike) > 1 else ''}{guess}")
            at += len(alike)
    return found, others


def _fields(fields: Sequence[pa.Field]) -> tuple[str, ...]:
    return tuple(_NUMBERED.fullmatch(each.name)[1] for each in fields)  # type: ignore[index]


def _guess(name: str) -> str:
    what = next((what for start, what in _OTHERS.items() if re.fullmatch(rf"{start}(_\d+)*_?", name)), "")
    return f" (of {what}, which no aggregate of slackwater goes on from: keep it as update(...))" if what else ""


def _unless(mask: Array, values: Array) -> Array:
    return pc.if_else(mask, pa.scalar(None, values.type), values)


def _least(kind: pa.DataType) -> object:
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
