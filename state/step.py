"""What a batch makes of a table: rows and look-ups in; new rows, what is emitted, what is late and what falls due out.

A task asks for the rows of its state partition, a replay for those of a whole batch of history.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ..store.read.multi_get import DueRows, LookUps
from ..store.sst import expiry
from ..store.sst.hashing import normalise_keys, same_keys, sort_keys
from ..store.sst.sorted_runs import bounds
from ..store.sst.types import DUE, HASH, OP, PUT, SEQ
from ..store.versions.manifest import Table
from .event_time import Due, Lateness
from .failing import RECORD, merge_or_tell
from .kinds.kind import Bound, Groups, Merged

EVERY_HASH = bounds(0, 1)
_PREVIOUS = "_prev_seq"


@dataclass(frozen=True, slots=True)
class Made:
    """The rows to write and to send, of a table or of a part of it."""

    new: pa.Table
    """`_hash`, key, values, `_seq`, `_op` and `_prev_seq` of each key that changed; by `_hash` but for those that fell
    due, which come first. Without columns where there is nothing."""
    emitted: tuple[pa.Table, ...] = ()
    """What the state emits: one table for all outputs, or one for each, or nothing."""
    next_ms: int | None = None
    """When the next row falls due at the earliest, as far as was looked at; None for never."""


@dataclass(frozen=True, slots=True)
class Step:
    """The rules of one batch of a stage with state: which rows are late, how the others are merged, which fall due."""

    table: Table
    state: Bound
    seq: int
    """`_seq` of the rows that are made."""
    clock_ms: int
    """By which rows of the table are expired."""
    lateness: Lateness | None = None
    """Which rows are late; None where none can be."""
    due: Due | None = None
    """Up to when rows fall due; None for a table whose rows never do."""
    tells: int | None = None
    """How many keys an error of the user's function may be told with, as `StateFailed`; None for raising it as it is.
    Where rows have their records' numbers, it is told with records."""

    def split_late(self, rows: pa.Table) -> tuple[pa.Table, pa.Table]:
        """The rows that are in time, and those that are late."""
        if self.lateness is None or not (late := self.lateness.mask(rows)).any():
            return rows, rows.slice(0, 0)
        return rows.filter(pa.array(~late)), rows.filter(pa.array(late))

    def made(self, rows: pa.Table, stored: LookUps, hashes: tuple[int, int] | None = EVERY_HASH) -> Made:
        """Merge rows that are in time, none perhaps, and then let the other rows fall due whose time has come.

        A key of the batch never falls due with it: its row is written with a time after `due.until_ms`, so it does next
        time. A row that falls due and keeps a time that has passed does not fall due again.

        `rows` has `_hash`, the key and the columns that the state needs, in any order; `hashes` the lowest and the
        highest hash of the rows that may fall due, None for none of them. Raises `StateFailed` (see `tells`), and as
        the user's function and `stored` do.
        """
        if self.due is None:
            return Made(*self._merged(rows, stored)) if rows.num_rows else Made(pa.table({}))
        made: list[tuple[pa.Table, tuple[pa.Table, ...]]] = []
        times: list[int | None] = []
        if self.due.pending and hashes is not None:
            found = stored.due(self.due.span, hashes)
            times.append(found.next_ms)
            other = _others(found.keys, rows, self._key)
            if other.any():
                new, emitted = self._fallen_due(found, other, rows.schema)
                made.append((_timed(new, self.due.until_ms, again=False), emitted))
        if rows.num_rows:
            new, emitted = self._merged(rows, stored)
            made.append((_timed(new, self.due.until_ms, again=True), emitted))
        if not made:
            return Made(pa.table({}), (), *times)
        new = pa.concat_tables([each for each, _ in made])
        times.append(pc.min(new[DUE]).as_py())
        parts = [emitted for _, emitted in made if emitted]
        next_ms = min((at for at in times if at is not None), default=None)
        return Made(new, tuple(map(pa.concat_tables, zip(*parts, strict=True))), next_ms)

    def with_expiry(self, new: pa.Table) -> tuple[pa.Table, int | None]:
        """New rows as SSTs have them, and the largest event time by which they expire, if they do by one."""
        new = expiry.with_expiry(new, self.table, self.clock_ms)
        return new, expiry.latest_event_ms(new, self.table.ttl)

    @property
    def state_now(self) -> Bound:
        """The state for a batch in which rows fall due."""
        return self.state.at_moment(self.due.moment) if self.due is not None else self.state

    @property
    def _key(self) -> list[str]:
        return [column.name for column in self.table.key]

    def _merged(self, rows: pa.Table, stored: LookUps) -> tuple[pa.Table, tuple[pa.Table, ...]]:
        rows, groups = group(rows, self._key)
        starts = pa.array(groups.starts)
        hashes = rows[HASH].take(starts).combine_chunks()
        keys = rows.select(self._key).take(starts)
        numbers = hashes.to_numpy()
        old, found, before = stored.of_keys(numbers, keys)
        needed = rows.select([*self._key, *self.state.needs])
        if self.tells is None:
            merged = self.state_now.merge(needed, groups, keys, old)
        else:
            records = rows[RECORD].to_numpy() if RECORD in rows.column_names else None
            merged = merge_or_tell(self.state_now, needed, groups, keys, old, numbers, records=records, most=self.tells)
        return self._new(hashes, keys, merged, found, before), merged.emitted

    def _fallen_due(
        self, found: DueRows, chosen: npt.NDArray[np.bool_], schema: pa.Schema
    ) -> tuple[pa.Table, tuple[pa.Table, ...]]:
        """What the state makes of some of the rows that fall due, without records."""
        mine, nothing = pa.array(chosen), schema.empty_table()
        keys = found.keys.filter(mine).select(self._key).cast(nothing.select(self._key).schema)
        groups = Groups(np.empty(0, np.int32), np.zeros(keys.num_rows, np.int64))
        needed = nothing.select([*self._key, *self.state.needs])
        merged = self.state_now.merge(needed, groups, keys, found.values.filter(mine))
        there, hashes = np.ones(keys.num_rows, bool), found.keys[HASH].filter(mine)
        return self._new(hashes, keys, merged, there, found.seqs[chosen]), merged.emitted

    def _new(
        self,
        hashes: pa.Array | pa.ChunkedArray,
        keys: pa.Table,
        merged: Merged,
        found: npt.NDArray[np.bool_],
        before: npt.NDArray[np.int64],
    ) -> pa.Table:
        """The rows that the table gets of what the state made of these keys; `found` and `before` as of `of_keys`."""
        count = keys.num_rows
        deleted = merged.deleted if merged.deleted is not None else np.zeros(count, bool)
        # Nothing to remember of a key that was not there and is deleted.
        write = ~(deleted & ~found) if merged.changed is None else merged.changed & ~(deleted & ~found)
        new = pa.table(
            [
                hashes,
                *keys.columns,
                *merged.values.columns,
                pa.repeat(pa.scalar(self.seq, pa.int64()), count),
                pa.array(deleted.astype(np.int8)),
                pa.array(before),
            ],
            names=[HASH, *keys.column_names, *merged.values.column_names, SEQ, OP, _PREVIOUS],
        )
        return new if write.all() else new.filter(pa.array(write))


def group(rows: pa.Table, key: Sequence[str]) -> tuple[pa.Table, Groups]:
    """Sort rows by (`_hash`, key) and tell which belong together. Keys are normalised: -0.0 is 0.0, NaN is one."""
    rows = normalise_keys(rows, key)
    hashes = rows[HASH].to_numpy()
    order = np.argsort(hashes, kind="stable")
    rows = rows.take(pa.array(order)).combine_chunks()
    hashes = hashes[order]
    # Rows of one hash, but for the first of them; nearly always they are of one key.
    following = np.flatnonzero(hashes[1:] == hashes[:-1]) + 1
    begins = np.ones(rows.num_rows, bool)
    begins[following] = False
    if not _same_as_before(rows, key, following).all():
        # Two keys share a hash somewhere: rare enough to sort all rows again, by the key too.
        rows = rows.take(pa.array(sort_keys(hashes, rows.select(list(key)))[0]))
        begins[following[~_same_as_before(rows, key, following)]] = True
    ids = (np.cumsum(begins) - 1).astype(np.int32)
    return rows, Groups(ids, np.flatnonzero(begins))


def _same_as_before(rows: pa.Table, key: Sequence[str], at: npt.NDArray[np.intp]) -> npt.NDArray[np.bool_]:
    keys = rows.select(list(key))
    return same_keys(keys.take(pa.array(at)), keys.take(pa.array(at - 1)), key)


def _others(keys: pa.Table, rows: pa.Table, names: list[str]) -> npt.NDArray[np.bool_]:
    """Which of these keys the batch has no row of."""
    # Nearly no row of a batch has the hash of one that falls due, and these few are compared.
    alike = np.isin(rows[HASH].to_numpy(), keys[HASH].to_numpy())
    if not alike.any():
        return np.ones(keys.num_rows, bool)
    batch = normalise_keys(rows.select([HASH, *names]).filter(pa.array(alike)), names).cast(keys.schema)
    both = pa.concat_tables([batch, keys])
    order, repeats = sort_keys(both[HASH].to_numpy(), both.select(names))
    same = np.zeros(both.num_rows, bool)
    same[order] = repeats
    return ~same[batch.num_rows :]


def _timed(rows: pa.Table, until_ms: int | None, *, again: bool) -> pa.Table:
    """The rows, none of which falls due up to then: they do right after it or not at all; those deleted never."""
    never = pa.scalar(None, pa.int64())
    due = pc.if_else(pc.equal(rows[OP], PUT), rows[DUE], never)
    if until_ms is not None:
        due = pc.if_else(pc.less_equal(due, until_ms), pa.scalar(until_ms + 1) if again else never, due)
    at = rows.schema.get_field_index(DUE)
    return rows.set_column(at, rows.schema.field(DUE), due)
