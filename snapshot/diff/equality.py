"""Equality of rows from two programs, with a tolerance for floats; for `check`, `trial`, `diff` and `promote`.

Floats are compared with a tolerance, since a sum of floats depends on the order of its terms. Two floats are equal if
they differ by less than 2^-42 (32-bit floats: 2^-18) times a reference. The reference is the largest number in the
column, or a larger number that is known to have been used to compute the column. All other types are compared exactly,
as DuckDB compares them. NaN equals NaN, null equals null, and -0.0 equals 0.0.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import duckdb
import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ...errors import Usage
from ...store.read.duckdb_view import quote_identifier
from ...store.sst.arrow_types import make_sql_safe
from ...store.sst.hashing import hash_values, one_array
from ...store.sst.xxh64 import U64, hash_u64

Flags = npt.NDArray[np.bool_]
Numbers = npt.NDArray[np.int64]
_BITS, _BITS_OF_32 = 42, 18
TOLERANCE = f"2^-{_BITS} of the largest number in the column (32-bit floats: 2^-{_BITS_OF_32})"


def surplus_rows(ours: pa.Table, theirs: pa.Table) -> pa.Table:
    """Return the multiset difference `ours` minus `theirs`, unordered; all of `ours` if the columns differ."""
    if not ours.num_columns or ours.schema.names != theirs.schema.names:
        return ours
    with duckdb.connect() as con:
        con.register("ours", make_sql_safe(ours))
        con.register("theirs", make_sql_safe(theirs))
        return con.sql("FROM ours EXCEPT ALL FROM theirs").to_arrow_table().cast(ours.schema)


def find_row_numbers(wanted: pa.Table, rows: pa.Table) -> npt.NDArray[np.int64]:
    """Return the row numbers, ascending, of the rows of `rows` that also occur in `wanted`.

    Compares the columns of `wanted`.
    """
    tests = [
        f"r.{quote_identifier(name)} IS NOT DISTINCT FROM o.{quote_identifier(name)}" for name in wanted.column_names
    ]
    with duckdb.connect() as con:
        con.register("o", make_sql_safe(wanted))
        con.register("r", make_sql_safe(rows.append_column("_place", pa.array(np.arange(rows.num_rows)))))
        positions = con.sql(
            f"SELECT DISTINCT r._place FROM r, o WHERE {' AND '.join(tests)} ORDER BY 1"
        ).to_arrow_table()
    return np.asarray(positions["_place"].to_numpy(), np.int64)


def pair_equal_rows(ours: pa.Table, theirs: pa.Table) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Pair equal rows of two tables. Returns row numbers in `ours`, ascending, and their partners in `theirs`.

    Duplicate rows are paired in order: the first of one table with the first of the other, and so on. Only the columns
    of `theirs` are compared.
    """
    ours = ours.select(theirs.column_names)
    if not ours.num_rows or not theirs.num_rows or ours.equals(theirs):  # without opening DuckDB
        every = np.arange(min(ours.num_rows, theirs.num_rows))
        return every, every
    if ours.schema.types == theirs.schema.types:
        with suppress(Usage):  # a type that has no digest
            own, other = _pair_digests(*(_digests_of_columns(rows.columns, rows.num_rows) for rows in (ours, theirs)))
            order = np.argsort(own)
            return own[order], other[order]
    names = [quote_identifier(name) for name in theirs.column_names]
    numbered = f"SELECT *, row_number() OVER (PARTITION BY {', '.join(names)} ORDER BY _place) AS _nth FROM"
    tests = " AND ".join(f"o.{name} IS NOT DISTINCT FROM t.{name}" for name in (*names, "_nth"))
    with duckdb.connect() as con:
        for name, rows in (("ours", ours), ("theirs", theirs)):
            con.register(name, rows.append_column("_place", pa.array(np.arange(rows.num_rows))))
        matches = con.sql(
            f"SELECT o._place AS mine, t._place AS other FROM ({numbered} ours) o JOIN ({numbered} theirs) t "
            f"ON {tests} ORDER BY 1"
        ).to_arrow_table()
    return np.asarray(matches["mine"].to_numpy(), np.int64), np.asarray(matches["other"].to_numpy(), np.int64)


def flag_unmatched_rows(ours: pa.Table, theirs: pa.Table, largest: float = 0.0) -> tuple[Flags, Flags]:
    """Flag the rows of each table that have no equal row in the other table, regardless of order.

    Rows are equal within the tolerance. Both tables have the same columns. The tolerance depends on the largest number
    of the column, or on `largest` if larger. `largest` is the largest number that may have been used to compute the
    floats.
    """
    both = pa.concat_tables([ours, theirs])
    count = ours.num_rows
    unmatched = np.ones(count, bool), np.ones(theirs.num_rows, bool)
    for values in _grid_digests(both, largest):
        own, other = values[:count][unmatched[0]], values[count:][unmatched[1]]
        unmatched = (
            _refine_flags(unmatched[0], _flag_surplus(own, other)),
            _refine_flags(unmatched[1], _flag_surplus(other, own)),
        )
    return unmatched


def pair_similar_rows(ours: pa.Table, theirs: pa.Table) -> tuple[Numbers, Numbers]:
    """Pair rows that are equal within the tolerance. Returns row numbers in `ours`, ascending, and their partners.

    Each row is in one pair at most; rows that are exactly equal are paired first. Only the columns of `theirs` are
    compared.
    """
    ours = ours.select(theirs.column_names)
    our_matches, their_matches = pair_equal_rows(ours, theirs)
    if min(ours.num_rows, theirs.num_rows) == len(our_matches) or not any(map(has_floats, theirs.schema.types)):
        return our_matches, their_matches
    count = ours.num_rows
    for values in _grid_digests(pa.concat_tables([ours, theirs.cast(ours.schema)]), 0.0):
        our_rest, their_rest = (
            np.setdiff1d(np.arange(count), our_matches),
            np.setdiff1d(np.arange(theirs.num_rows), their_matches),
        )
        our_index, their_index = _pair_digests(values[our_rest], values[count + their_rest])
        our_matches, their_matches = (
            np.concatenate([our_matches, our_rest[our_index]]),
            np.concatenate([their_matches, their_rest[their_index]]),
        )
    order = np.argsort(our_matches)
    return our_matches[order], their_matches[order]


def _pair_digests(ours: U64, theirs: U64) -> tuple[Numbers, Numbers]:
    """Pair equal digests: the first of one side with the first of the other, and so on. Returns positions."""
    own, other = _number_repeats(ours), _number_repeats(theirs)
    return np.intersect1d(own, other, assume_unique=True, return_indices=True)[1:]


def _number_repeats(digests: U64) -> U64:
    """Return digests of each digest and the number of earlier equal ones."""
    order = np.argsort(digests, kind="stable")
    ascending, nth = digests[order], np.empty(len(digests), np.uint64)
    nth[order] = np.arange(len(digests)) - np.searchsorted(ascending, ascending)
    return hash_u64(nth, digests)


@dataclass(frozen=True, slots=True)
class Tolerance:
    """Tolerance of a comparison of two sources."""

    absolute: float = 0.0
    """Largest difference at which two numbers count as equal; 0 for the rounding tolerance of floats only."""
    largest: Mapping[str, float] = field(default_factory=dict)
    """Largest number of each float column, by column name. Needed if only some of the column's rows are compared."""


def flag_near_values(
    ours: pa.ChunkedArray, theirs: pa.ChunkedArray, largest: float = 0.0, absolute: float = 0.0
) -> Flags:
    """Flag the rows in which two columns of one type are equal within the tolerance.

    `largest` is the largest number of the whole columns, of which `ours` and `theirs` may be parts. Numbers also count
    as equal if they differ by `absolute` or less.
    """
    count = len(ours)
    both = pa.table([pa.chunked_array([*ours.chunks, *theirs.chunks], ours.type)], names=["value"])
    equal = np.zeros(count, bool)
    for values in _grid_digests(both, largest) if has_floats(ours.type) else ():
        equal |= values[:count] == values[count:]
    if absolute and is_number(ours.type):
        with np.errstate(invalid="ignore"):
            numbers = [side.cast(pa.float64(), safe=False).fill_null(np.nan).to_numpy() for side in (ours, theirs)]
            equal |= np.abs(numbers[0] - numbers[1]) <= absolute
    return equal


def is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def has_floats(kind: pa.DataType) -> bool:
    if pa.types.is_struct(kind):
        return any(has_floats(field.type) for field in kind)
    if pa.types.is_map(kind):
        return has_floats(kind.key_type) or has_floats(kind.item_type)
    if pa.types.is_list(kind):
        return has_floats(kind.value_type)
    return bool(pa.types.is_floating(kind))


def sort_list_elements(table: pa.Table) -> pa.Table:
    """Sort the elements of each list in a table into a canonical order."""
    columns = []
    for column in table.columns:
        lists = column.combine_chunks()
        if pa.types.is_list(lists.type):
            values, parents = pc.list_flatten(lists), pc.list_parent_indices(lists).to_numpy()
            order = np.lexsort((hash_values(values), parents))
            lists = _with_list_values(lists, values.take(pa.array(order)))
        columns.append(lists)
    return pa.table(columns, schema=table.schema)


def _grid_digests(rows: pa.Table, largest: float) -> Iterator[U64]:
    """Yield row digests with floats rounded to a grid; if there are floats, also digests for a shifted grid.

    The second grid is shifted by half a step. At most one of the grids rounds two nearly equal floats to different
    values.
    """
    yield _digests(rows, largest, 0.5)
    if any(has_floats(kind) for kind in rows.schema.types):
        yield _digests(rows, largest, 0.0)


def _digests(rows: pa.Table, largest: float, offset: float) -> U64:
    columns = [_round_floats(column.combine_chunks(), largest, offset) for column in rows.columns]
    return _digests_of_columns(columns, rows.num_rows)


def _digests_of_columns(columns: Sequence[pa.Array | pa.ChunkedArray], num_rows: int) -> U64:
    if not columns:
        return np.zeros(num_rows, np.uint64)
    return hash_values(
        pa.StructArray.from_arrays(list(map(one_array, columns)), names=[str(at) for at in range(len(columns))])
    )


def _round_floats(column: pa.Array, largest: float, offset: float) -> pa.Array:
    kind = column.type
    if not has_floats(kind):
        return column
    if pa.types.is_struct(kind):
        parts = [_round_floats(part, largest, offset) for part in column.flatten()]
        return pa.StructArray.from_arrays(parts, names=[field.name for field in kind], mask=column.is_null())
    if pa.types.is_map(kind):
        entries = pa.StructArray.from_arrays([column.keys, column.items], names=["key", "value"])
        lists = pa.ListArray.from_arrays(column.offsets, entries, mask=column.is_null() if column.null_count else None)
        return _round_floats(lists, largest, offset)
    if pa.types.is_list(kind):
        return _with_list_values(column, _round_floats(pc.list_flatten(column), largest, offset))
    values = pc.fill_null(column, 0.0).to_numpy(zero_copy_only=False).astype(np.float64)
    finite = np.isfinite(values)
    top = max(largest, np.abs(values[finite]).max(initial=0.0))
    # Without this, the step of a column of subnormal numbers would be 0.
    bits = _BITS if pa.types.is_float64(kind) else _BITS_OF_32
    step = max(2.0 ** (np.frexp(top)[1] - bits), np.finfo(np.float64).smallest_subnormal)
    with np.errstate(invalid="ignore"):
        steps = np.where(finite, np.floor(values / step + offset), values) + 0.0
    return pa.array(steps, mask=np.asarray(column.is_null()))


def _with_list_values(lists: pa.Array, values: pa.Array) -> pa.Array:
    lengths = pc.fill_null(pc.list_value_length(lists), 0).to_numpy()
    ends = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(ends), values, mask=lists.is_null())


def _flag_surplus(ours: U64, theirs: U64) -> Flags:
    order, other = np.argsort(ours, kind="stable"), np.sort(theirs)
    ascending = ours[order]
    occurrence = np.arange(len(ascending)) - np.searchsorted(ascending, ascending)
    num_theirs = np.searchsorted(other, ascending, side="right") - np.searchsorted(other, ascending)
    flags = np.empty(len(ascending), bool)
    flags[order] = occurrence >= num_theirs
    return flags


def _refine_flags(chosen: Flags, some: Flags) -> Flags:
    narrowed = chosen.copy()
    narrowed[np.flatnonzero(chosen)] = some
    return narrowed


_VALUE = "value"


@dataclass
class _RecordGroup:
    row_numbers: tuple[list[int], list[int]] = field(default_factory=lambda: ([], []))
    floats: list[list[float]] = field(default_factory=list)
    """Floats of each record: first the records of the first side, then those of the second side."""


def unequal_records(ours: pa.Table, theirs: pa.Table) -> tuple[pa.Table, pa.Table]:
    """Return the records of each table that have no equal record in the other, within the tolerance for floats.

    The caller must have removed all rows that have an exactly equal row in the other table. If the column `value` holds
    JSON on both sides, its content is compared: fields in any order, floats within the tolerance.
    """
    if not ours.num_rows or not theirs.num_rows or ours.schema != theirs.schema:
        return ours, theirs
    if _VALUE in ours.column_names and pa.types.is_binary(ours.schema.field(_VALUE).type):
        return _unequal_json(ours, theirs)
    if not any(has_floats(kind) for kind in ours.schema.types):
        return ours, theirs
    unmatched = flag_unmatched_rows(ours, theirs)
    return ours.filter(pa.array(unmatched[0])), theirs.filter(pa.array(unmatched[1]))


def _unequal_json(ours: pa.Table, theirs: pa.Table) -> tuple[pa.Table, pa.Table]:
    # By content without floats.
    groups: defaultdict[bytes, _RecordGroup] = defaultdict(_RecordGroup)
    sides = ours, theirs
    for side, table in enumerate(sides):
        for place, row in enumerate(table.to_pylist()):
            content, floats = _split_floats(row)
            groups[content].row_numbers[side].append(place)
            groups[content].floats.append(floats)
    unmatched = [np.ones(table.num_rows, bool) for table in sides]
    for group in groups.values():
        our_rows, their_rows = group.row_numbers
        if not our_rows or not their_rows:
            continue
        columns = np.array(group.floats, np.float64).reshape(len(group.floats), -1).T
        rows = pa.table([pa.array(column) for column in columns], names=[str(at) for at in range(len(columns))])
        if not rows.num_columns:  # no floats: the records differ only in the order of names
            rows = pa.table({"nothing": pa.nulls(len(group.floats), pa.int8())})
        unmatched[0][our_rows], unmatched[1][their_rows] = flag_unmatched_rows(
            rows.slice(0, len(our_rows)), rows.slice(len(our_rows))
        )
    return ours.filter(pa.array(unmatched[0])), theirs.filter(pa.array(unmatched[1]))


def _split_floats(row: dict[str, object]) -> tuple[bytes, list[float]]:
    """Return the content of a record without its floats, as bytes, and the floats in order.

    A value that is not JSON is kept unchanged in the content.
    """
    value, floats = row[_VALUE], list[float]()

    def without_floats(node: object) -> object:
        if isinstance(node, float) and math.isfinite(node):
            floats.append(node)
            return ...
        if isinstance(node, dict):
            return tuple((name, without_floats(node[name])) for name in sorted(node))
        return [without_floats(item) for item in node] if isinstance(node, list) else node

    try:
        content = without_floats(msgspec.json.decode(value)) if isinstance(value, bytes) else value
    except msgspec.DecodeError:
        content = value
    return repr((content, {name: row[name] for name in row if name != _VALUE})).encode(), floats
