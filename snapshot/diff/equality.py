"""Equality of rows from two programs, with a tolerance for floats; for `check`, `trial`, `diff` and `promote`.

Floats are compared with a tolerance, since a sum of floats depends on the order of its terms. Two floats are equal if
they differ by less than 2^-42 (32-bit floats: 2^-18) of a reference: the largest number in their column, or the
largest number known to have gone into them, if that is larger. All other types are compared exactly, by digests.
NaN equals NaN, null equals null, and -0.0 equals 0.0.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ...store.sst.hashing import has_floats, hash_values
from ...store.sst.xxh64 import U64, hash_u64

Flags = npt.NDArray[np.bool_]
Numbers = npt.NDArray[np.int64]
_BITS, _BITS_OF_32 = 42, 18
TOLERANCE = f"2^-{_BITS} of the largest number in the column (32-bit floats: 2^-{_BITS_OF_32})"


def surplus_rows(ours: pa.Table, theirs: pa.Table) -> pa.Table:
    """Return the multiset difference `ours` minus `theirs`, unordered; all of `ours` if the columns differ."""
    if not ours.num_columns or ours.schema.names != theirs.schema.names:
        return ours
    return ours.filter(pa.array(_flag_surplus(*_exact_digests(ours, theirs))))


def find_row_numbers(wanted: pa.Table, rows: pa.Table) -> Numbers:
    """Return the row numbers, ascending, at which `rows` has a row of `wanted`. Compares the columns of `wanted`."""
    return np.flatnonzero(np.isin(*_exact_digests(rows.select(wanted.column_names), wanted)))


def pair_equal_rows(ours: pa.Table, theirs: pa.Table) -> tuple[Numbers, Numbers]:
    """Pair equal rows of two tables. Returns the row numbers in `ours`, ascending, and those of their partners.

    Duplicate rows are paired in order: the first of one table with the first of the other, and so on. Only the columns
    of `theirs` are compared.
    """
    own, other = _pair_digests(*_exact_digests(ours.select(theirs.column_names), theirs))
    order = np.argsort(own)
    return own[order], other[order]


def _exact_digests(ours: pa.Table, theirs: pa.Table) -> tuple[U64, U64]:
    try:
        values = row_digests(pa.concat_tables([ours, theirs], promote_options="permissive"))
    except (pa.ArrowInvalid, pa.ArrowTypeError):  # no common type, as of times in two zones: their digests may be equal
        return row_digests(ours), row_digests(theirs)
    return values[: ours.num_rows], values[ours.num_rows :]


def row_digests(rows: pa.Table) -> U64:
    """Return a digest of each row. Rows with equal digests are equal: a chance of 2^-64 is not considered."""
    if not rows.num_columns:
        return np.zeros(rows.num_rows, np.uint64)
    return np.concatenate([np.zeros(0, np.uint64), *map(hash_values, rows.to_struct_array().chunks)])


def _pair_digests(ours: U64, theirs: U64) -> tuple[Numbers, Numbers]:
    own, other = _number_repeats(ours), _number_repeats(theirs)
    return np.intersect1d(own, other, assume_unique=True, return_indices=True)[1:]


def flag_unmatched_rows(ours: pa.Table, theirs: pa.Table, largest: float = 0.0) -> tuple[Flags, Flags]:
    """Flag the rows of each table that have no partner in the other, regardless of order, within the tolerance.

    Both tables have the same columns. The tolerance follows from `largest`, the largest number that may have gone into
    the floats, or from the largest number of the column if that is larger.
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


def _number_repeats(values: U64) -> U64:
    """Pair each value with a counter of its occurrences (0, 1, …), so that all pairs are distinct."""
    order = np.argsort(values, kind="stable")
    ascending, numbers = values[order], np.empty(len(values), np.uint64)
    numbers[order] = np.arange(len(values)) - np.searchsorted(ascending, ascending)
    return hash_u64(values, numbers)


def flag_near_values(ours: pa.ChunkedArray, theirs: pa.ChunkedArray) -> Flags:
    """Flag the rows in which two columns of one type are equal within the tolerance."""
    count = len(ours)
    both = pa.table([pa.chunked_array([*ours.chunks, *theirs.chunks], ours.type)], names=["value"])
    equal = np.zeros(count, bool)
    for values in _grid_digests(both, 0.0):
        equal |= values[:count] == values[count:]
    return equal


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

    The second grid is shifted by half a step: two near floats may be rounded apart by one of the grids, but not by
    both.
    """
    if not any(map(has_floats, rows.schema.types)):
        yield row_digests(rows)
        return
    for offset in (0.5, 0.0):
        columns = [_round_floats(column.combine_chunks(), largest, offset) for column in rows.columns]
        yield row_digests(pa.table(columns, names=rows.column_names))


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
    step = 2.0 ** (np.frexp(top)[1] - (_BITS if pa.types.is_float64(kind) else _BITS_OF_32))
    with np.errstate(invalid="ignore"):
        steps = np.where(finite, np.floor(values / step + offset), values) + 0.0
    return pa.array(steps, mask=np.asarray(column.is_null()))


def _with_list_values(lists: pa.Array, values: pa.Array) -> pa.Array:
    lengths = pc.fill_null(pc.list_value_length(lists), 0).to_numpy()
    ends = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(ends), values, mask=lists.is_null())


def _flag_surplus(ours: U64, theirs: U64) -> Flags:
    return ~np.isin(_number_repeats(ours), _number_repeats(theirs))


def _refine_flags(chosen: Flags, some: Flags) -> Flags:
    narrowed = chosen.copy()
    narrowed[np.flatnonzero(chosen)] = some
    return narrowed


_VALUE = "value"


@dataclass
class _RecordGroup:
    row_numbers: tuple[list[int], list[int]] = field(default_factory=lambda: ([], []))
    floats: list[list[float]] = field(default_factory=list)
    """Floats of each record; the records of the first side precede those of the second."""


def unequal_records(ours: pa.Table, theirs: pa.Table) -> tuple[pa.Table, pa.Table]:
    """Return the records of each table that have no equal record in the other, within the tolerance for floats.

    Both tables hold only rows without an exactly equal row. If the column `value` holds JSON on both sides, its
    content is compared: fields in any order, floats within the tolerance.
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
        if not rows.num_columns:  # no floats: the records are equal but for the order of names
            rows = pa.table({"nothing": pa.nulls(len(group.floats), pa.int8())})
        unmatched[0][our_rows], unmatched[1][their_rows] = flag_unmatched_rows(
            rows.slice(0, len(our_rows)), rows.slice(len(our_rows))
        )
    return ours.filter(pa.array(unmatched[0])), theirs.filter(pa.array(unmatched[1]))


def _split_floats(row: dict[str, object]) -> tuple[bytes, list[float]]:
    """Return the content of a record without its floats, as bytes, and the floats in order.

    A value that is not JSON is returned whole.
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
