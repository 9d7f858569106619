"""The rule by which two values are equal, wherever two programs are compared: check, trial, diff, promote.

Floats are equal but for their last bits, since a sum of floats depends on the order of what is summed. Two floats are
equal if they differ by less than 2^-42 of the largest number in their column (32-bit floats: 2^-18); where larger
numbers are known to have gone into them, of the largest of those. All else is compared exactly: NaN equals NaN, null
equals null, -0.0 equals 0.0.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ...store.sst.hashing import digests
from ..query.row_local import pairs

Flags = npt.NDArray[np.bool_]
Numbers = npt.NDArray[np.int64]
_BITS, _BITS_OF_32 = 42, 18
TOLERANCE = f"2^-{_BITS} of the largest number in the column (32-bit floats: 2^-{_BITS_OF_32})"
"""How far two floats may be apart, in words."""


def unlike(ours: pa.Table, theirs: pa.Table, largest: float = 0.0) -> tuple[Flags, Flags]:
    """Flag the rows that each of two tables has more often than the other, in any order; the columns are the same.

    `largest` is the largest number that may have gone into the floats; each column's own counts as well.
    """
    both = pa.concat_tables([ours, theirs])
    count = ours.num_rows
    left = np.ones(count, bool), np.ones(theirs.num_rows, bool)
    for values in _on_grids(both, largest):
        own, other = values[:count][left[0]], values[count:][left[1]]
        left = _within(left[0], _more_often(own, other)), _within(left[1], _more_often(other, own))
    return left


def like(ours: pa.Table, theirs: pa.Table) -> tuple[Numbers, Numbers]:
    """Rows of two tables that are equal by the rule, in pairs: their places in each, ascending in `ours`.

    Each row is in one pair at most; rows that are exactly the same are paired first. The columns of `theirs` count.
    """
    ours = ours.select(theirs.column_names)
    mine, others = pairs(ours, theirs)
    if min(ours.num_rows, theirs.num_rows) == len(mine) or not any(map(has_floats, theirs.schema.types)):
        return mine, others
    count = ours.num_rows
    for values in _on_grids(pa.concat_tables([ours, theirs.cast(ours.schema)]), 0.0):
        left, right = np.setdiff1d(np.arange(count), mine), np.setdiff1d(np.arange(theirs.num_rows), others)
        own, other = (_nth(values[side]) for side in (left, count + right))
        _, at, there = np.intersect1d(own, other, assume_unique=True, return_indices=True)
        mine, others = np.concatenate([mine, left[at]]), np.concatenate([others, right[there]])
    order = np.argsort(mine)
    return mine[order], others[order]


def _nth(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.void]:
    """Each value with how many of the same are before it: no two of these are equal."""
    order = np.argsort(values, kind="stable")
    found = np.empty(len(values), [("value", np.uint64), ("nth", np.int64)])
    found["value"] = values
    ascending = values[order]
    found["nth"][order] = np.arange(len(values)) - np.searchsorted(ascending, ascending)
    return found


def near(ours: pa.ChunkedArray, theirs: pa.ChunkedArray) -> Flags:
    """Flag the places at which two columns of one type are equal by the rule."""
    count = len(ours)
    both = pa.table([pa.chunked_array([*ours.chunks, *theirs.chunks], ours.type)], names=["value"])
    equal = np.zeros(count, bool)
    for values in _on_grids(both, 0.0):
        equal |= values[:count] == values[count:]
    return equal


def has_floats(kind: pa.DataType) -> bool:
    """Return whether values of a type contain floats, at any depth."""
    if pa.types.is_struct(kind):
        return any(has_floats(field.type) for field in kind)
    if pa.types.is_map(kind):
        return has_floats(kind.key_type) or has_floats(kind.item_type)
    if pa.types.is_list(kind):
        return has_floats(kind.value_type)
    return bool(pa.types.is_floating(kind))


def in_order(table: pa.Table) -> pa.Table:
    """The rows, with lists whose order means nothing in one that is always the same."""
    columns = []
    for column in table.columns:
        lists = column.combine_chunks()
        if pa.types.is_list(lists.type):
            values, parents = pc.list_flatten(lists), pc.list_parent_indices(lists).to_numpy()
            order = np.lexsort((digests(values), parents))
            lists = _list(lists, values.take(pa.array(order)))
        columns.append(lists)
    return pa.table(columns, schema=table.schema)


def _on_grids(rows: pa.Table, largest: float) -> Iterator[npt.NDArray[np.uint64]]:
    """Yield the rows' digests with floats rounded to a grid; if there are floats, again with one half a step off.

    Two floats that are near may lie on both sides of an edge of one grid: then they do not on the other.
    """
    yield _digests(rows, largest, 0.5)
    if any(has_floats(kind) for kind in rows.schema.types):
        yield _digests(rows, largest, 0.0)


def _digests(rows: pa.Table, largest: float, offset: float) -> npt.NDArray[np.uint64]:
    columns = [_rounded(column.combine_chunks(), largest, offset) for column in rows.columns]
    if not columns:
        return np.zeros(rows.num_rows, np.uint64)
    return digests(pa.StructArray.from_arrays(columns, names=[str(at) for at in range(len(columns))]))


def _rounded(column: pa.Array, largest: float, offset: float) -> pa.Array:
    """The values with each float as a step of a grid."""
    kind = column.type
    if not has_floats(kind):
        return column
    if pa.types.is_struct(kind):
        parts = [_rounded(part, largest, offset) for part in column.flatten()]
        return pa.StructArray.from_arrays(parts, names=[field.name for field in kind], mask=column.is_null())
    if pa.types.is_map(kind):
        entries = pa.StructArray.from_arrays([column.keys, column.items], names=["key", "value"])
        lists = pa.ListArray.from_arrays(column.offsets, entries, mask=column.is_null() if column.null_count else None)
        return _rounded(lists, largest, offset)
    if pa.types.is_list(kind):
        return _list(column, _rounded(pc.list_flatten(column), largest, offset))
    values = pc.fill_null(column, 0.0).to_numpy(zero_copy_only=False).astype(np.float64)
    finite = np.isfinite(values)
    top = max(largest, np.abs(values[finite]).max(initial=0.0))
    step = 2.0 ** (np.frexp(top)[1] - (_BITS if pa.types.is_float64(kind) else _BITS_OF_32))
    with np.errstate(invalid="ignore"):
        steps = np.where(finite, np.floor(values / step + offset), values) + 0.0
    return pa.array(steps, mask=np.asarray(column.is_null()))


def _list(lists: pa.Array, values: pa.Array) -> pa.Array:
    """Lists as long as these, of other values."""
    lengths = pc.fill_null(pc.list_value_length(lists), 0).to_numpy()
    ends = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(ends), values, mask=lists.is_null())


def _more_often(ours: npt.NDArray[np.uint64], theirs: npt.NDArray[np.uint64]) -> Flags:
    """Of each of ours, whether it is beyond those that there are among theirs."""
    order, other = np.argsort(ours, kind="stable"), np.sort(theirs)
    mine = ours[order]
    place = np.arange(len(mine)) - np.searchsorted(mine, mine)
    there = np.searchsorted(other, mine, side="right") - np.searchsorted(other, mine)
    found = np.empty(len(mine), bool)
    found[order] = place >= there
    return found


def _within(chosen: Flags, some: Flags) -> Flags:
    """Of those that are chosen some."""
    found = chosen.copy()
    found[np.flatnonzero(chosen)] = some
    return found
