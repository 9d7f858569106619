"""What differs between two runs of a version: rows of the table, and rows that were sent.

Floats are equal but for their last bits. A sum of floats depends on the order of what is summed, also of an innocent
program. So two floats are the same that differ by less than 2^-42 of the largest number that can have gone into them;
of 32 bits, by 2^-18 of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ...errors import Refused
from ...moments.diff.key_changes import KeyChanges
from ...store.read.multi_get import LookUps
from ...store.sst.hashing import digests, hash_keys, normalise_keys, sort_keys
from ...store.sst.ttl import BEFORE_ALL_MS
from ...store.sst.types import HASH
from ...store.versions.manifest import is_internal
from ..api.topic import Repartition
from ..replay.stage_replay import StageReplay
from .outcomes import RunOutcome

Flags = npt.NDArray[np.bool_]
_BITS, _BITS_OF_32 = 42, 18


def unlike(ours: pa.Table, theirs: pa.Table, largest: float = 0.0) -> tuple[Flags, Flags]:
    """Which rows each of two tables has more often than the other, in any order; the columns are the same.

    `largest` is the largest number that may have gone into theirs; each column's own counts as well.
    """
    both = pa.concat_tables([ours, theirs])
    count = ours.num_rows
    left = np.ones(count, bool), np.ones(theirs.num_rows, bool)
    # Of two numbers that are near, one may lie beyond an edge of the grid that they are rounded to: then not of the
    # other grid's, which is half a step off.
    for offset in (0.5, 0.0) if any(_has_floats(kind) for kind in both.schema.types) else (0.5,):
        values = _digests(both, largest, offset)
        mine, other = values[:count][left[0]], values[count:][left[1]]
        left = _within(left[0], _more_often(mine, other)), _within(left[1], _more_often(other, mine))
    return left


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


def _digests(rows: pa.Table, largest: float, offset: float) -> npt.NDArray[np.uint64]:
    columns = [_rounded(column.combine_chunks(), largest, offset) for column in rows.columns]
    if not columns:
        return np.zeros(rows.num_rows, np.uint64)
    return digests(pa.StructArray.from_arrays(columns, names=[str(at) for at in range(len(columns))]))


def _rounded(column: pa.Array, largest: float, offset: float) -> pa.Array:
    """The values with each float as a step of a grid."""
    kind = column.type
    if not _has_floats(kind):
        return column
    if pa.types.is_struct(kind):
        parts = [_rounded(part, largest, offset) for part in column.flatten()]
        return pa.StructArray.from_arrays(parts, names=[field.name for field in kind], mask=column.is_null())
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


def _has_floats(kind: pa.DataType) -> bool:
    if pa.types.is_struct(kind):
        return any(_has_floats(field.type) for field in kind)
    if pa.types.is_list(kind):
        return _has_floats(kind.value_type)
    return bool(pa.types.is_float32(kind) or pa.types.is_float64(kind))


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


@dataclass(frozen=True, slots=True)
class SentDifference:
    """Rows of one output that differ."""

    first: pa.Table
    """Those that only the first run sends, or more often."""
    second: pa.Table


@dataclass(frozen=True, slots=True)
class Differences:
    """What differs between two runs of a version; empty where nothing does."""

    keys: KeyChanges | None = None
    """The keys whose rows differ, with their rows after the first run and after the second; None where none do."""
    sent: dict[str, SentDifference] = field(default_factory=dict)
    """By output, where rows differ."""
    failed: str = ""
    """Why the second run failed, where it did."""

    def __bool__(self) -> bool:
        return bool(self.keys or self.sent or self.failed)


def differences(replay: StageReplay, first: RunOutcome, second: RunOutcome) -> Differences:
    """What differs of what is known of both, where nothing that is promised does.

    Floats are compared as `near.unlike` says. Where the second run has several batches, what the stage emits is
    compared by what its kind of state says (`Kind.emission`): the rows of its table that a batch changed are those of
    the table. Of what a function emits, which may be a row for each batch, the rows of each key's last batch must be
    among those of the first run.
    """
    largest = max(first.largest, second.largest)
    keys = None
    if first.keys is not None and second.keys is not None:
        keys = _keys(replay, first, second, largest)
    sent = {}
    for name in first.sent.keys() & second.sent.keys():
        different = _sent(replay, name, first.sent[name], second.sent[name], largest)
        if different.first.num_rows or different.second.num_rows:
            sent[name] = different
    return Differences(keys or None, dict(sorted(sent.items())))


def _keys(replay: StageReplay, first: RunOutcome, second: RunOutcome, largest: float) -> KeyChanges | None:
    every = pa.concat_tables([one.keys for one in (first, second) if one.keys is not None])
    order, repeats = sort_keys(every[HASH].to_numpy(), every.drop_columns([HASH]))
    every = every.take(pa.array(order[~repeats]))
    keys = every.drop_columns([HASH])
    state = replay.stage.state
    sides, there = [], []
    for one in (first, second):
        # What has expired by now, was there when the batch had merged it.
        stored = LookUps(replay.program.store, replay.program.cache, replay.table, one.ssts, BEFORE_ALL_MS)
        values, present, _ = stored.of_keys(every[HASH].to_numpy(), keys)
        values = values.select([name for name in values.column_names if not is_internal(name)])
        sides.append(in_order(values) if state is not None and state.in_any_order else values)
        there.append(present)
    rows = [
        pa.Table.from_arrays([*keys.columns, *side.columns, pa.array(is_there)], names=_names(keys, side))
        for side, is_there in zip(sides, there, strict=True)
    ]
    different = np.flatnonzero(unlike(rows[0], rows[1], largest)[0])
    found = KeyChanges.between(keys, *sides, *there).take(different).changed()
    return found.in_order() if len(found) else None


def _names(keys: pa.Table, values: pa.Table) -> list[str]:
    return [str(at) for at in range(keys.num_columns + values.num_columns + 1)]


def _sent(
    replay: StageReplay, name: str, first: Sequence[pa.Table], second: Sequence[pa.Table], largest: float
) -> SentDifference:
    ours = pa.concat_tables(first)
    batches = [_as(ours.schema, each) for each in second]
    theirs, state = pa.concat_tables(batches), replay.stage.state
    nothing = SentDifference(ours.slice(0, 0), ours.slice(0, 0))
    late = replay.stage.late
    is_by_batch = state is not None and len(batches) > 1 and (late is None or late.name != name)
    if state is not None and is_by_batch and state.emission == "table":
        return nothing
    mine, others = unlike(ours, theirs, largest)
    if not mine.any() and not others.any():
        return nothing
    if state is not None and is_by_batch and state.emission == "function":
        output = next(one for one in replay.stage.writes if one.name == name)
        candidates = [[column.name for column in replay.table.key]]
        candidates += [list(output.key)] if isinstance(output, Repartition) else []
        key = next((names for names in candidates if {*names} <= {*ours.column_names}), [])
        theirs = _of_last_batches(batches, key)
        mine, others = _of_no_key(ours, theirs, key), unlike(ours, theirs, largest)[1]
    return SentDifference(ours.filter(pa.array(mine)), theirs.filter(pa.array(others)))


def _as(schema: pa.Schema, rows: pa.Table) -> pa.Table:
    """The rows, with the columns that the other run's have. Raises `Refused` where they have others."""
    try:
        return rows.select(schema.names).cast(schema)
    except (KeyError, pa.ArrowException):
        raise Refused(
            f"the program sends columns ({rows.schema.to_string()}), and others were sent ({schema.to_string()})",
            hint="check the program that ran, or a clone that runs this one",
        ) from None


def _of_last_batches(batches: Sequence[pa.Table], key: Sequence[str]) -> pa.Table:
    """Of each key the rows of the last batch that sent any."""
    found = [batches[-1]]
    for rows in reversed(batches[:-1]):
        found.append(rows.filter(pa.array(_of_no_key(rows, pa.concat_tables(found), key))))
    return pa.concat_tables(reversed(found))


def _of_no_key(rows: pa.Table, others: pa.Table, key: Sequence[str]) -> Flags:
    """Which rows are of a key of which there are no others."""
    if not key:
        return np.full(rows.num_rows, not others.num_rows)
    hashes = [hash_keys(normalise_keys(each.select(list(key)), key), key) for each in (rows, others)]
    return ~np.asarray(pc.is_in(pa.array(hashes[0]), pa.array(hashes[1])))
