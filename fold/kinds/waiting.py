"""Rows of one side of a join that wait for the other side's: from a table's lists and back, and which of them meet."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ...store.sst.hashing import digests

Numbers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

_FAR_US = 1 << 61
"""Times beyond are as late as this: what is added to a time fits."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """Rows of one side, by key and time; of the same time, those that were stored come first."""

    rows: pa.Table
    """Their columns, in an order of their own."""
    place: Numbers
    """Int64[n], where each is in `rows`."""
    keys: Numbers
    """Int64[n], the position of its key; ascending."""
    at_us: Numbers
    """Int64[n], its time, microseconds since 1970 UTC; ascending within a key."""
    new: Flags
    """Bool[n], whether it came with this batch."""
    alone: Flags
    """Bool[n], whether it can match nothing, as its key or its time is null."""

    def due_ms(self, within_ms: int) -> Numbers:
        """int64[n]: the first millisecond since 1970 that a watermark has with which each row matches nothing more."""
        return np.asarray(-(-self.at_us // 1000) + within_ms + 1)

    def lists(self, stays: Flags, num: int) -> pa.ListArray:
        """The rows that stay as a list of structs for each of so many keys."""
        kept = np.flatnonzero(stays)
        columns = self.rows.take(pa.array(self.place[kept])).columns
        structs = pa.StructArray.from_arrays([one.combine_chunks() for one in columns], fields=list(self.rows.schema))
        return by_key(structs, self.keys[kept], num)


def gathered(stored: pa.ChunkedArray, came: pa.Table, schema: pa.Schema, time: str, keyless: Flags) -> Waiting:
    """One side's rows, those that the table has (`stored`) and those of the batch (`came`).

    `stored` has for each key a list of structs, ordered by time, null for none; `came` the key's position as `_key`.
    `schema` has the columns that are stored, of which `time` is one; `keyless` is bool[keys], whether a column of each
    key is null.
    """
    lists = stored.combine_chunks()
    old = pa.Table.from_arrays(pc.list_flatten(lists).flatten(), schema=schema)
    sizes = pc.fill_null(pc.list_value_length(lists), 0).to_numpy()
    new = came.select(schema.names).cast(schema)
    rows = pa.concat_tables([old, new]).combine_chunks()
    keys = np.concatenate((np.repeat(np.arange(len(sizes)), sizes), came["_key"].to_numpy())).astype(np.int64)
    at_us = np.clip(pc.fill_null(rows[time].cast(pa.int64()), 0).to_numpy(), -_FAR_US, _FAR_US)
    count = old.num_rows
    age = np.arange(rows.num_rows)
    age[count + _order(new, keys[count:], at_us[count:])] = np.arange(count, rows.num_rows)
    place = np.lexsort((age, at_us, keys))
    is_new = place >= count
    alone = is_new & (keyless[keys] | np.asarray(rows[time].is_null()))[place]
    return Waiting(rows, place, keys[place], at_us[place], is_new, alone)


def by_key(values: pa.Array, keys: Numbers, num: int) -> pa.ListArray:
    """Values as a list for each of so many keys; `keys` says the key of each, and ascends."""
    offsets = np.searchsorted(keys, np.arange(num + 1)).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), values)


def pairs(left: Waiting, right: Waiting, within_us: int) -> tuple[Numbers, Numbers]:
    """The rows that meet, by their numbers on each side: of one key, with times so near, and one of the two is new.

    They come in the order of the left side, and then of the right.
    """
    every, fresh = np.flatnonzero(~right.alone), np.flatnonzero(right.new & ~right.alone)
    coming, stored = np.flatnonzero(left.new & ~left.alone), np.flatnonzero(~left.new)
    found = [_near(left, coming, right, every, within_us), _near(left, stored, right, fresh, within_us)]
    lefts, rights = (np.concatenate(side) for side in zip(*found, strict=True))
    order = np.argsort(lefts, kind="stable")
    return lefts[order], rights[order]


def _near(left: Waiting, lefts: Numbers, right: Waiting, rights: Numbers, within_us: int) -> tuple[Numbers, Numbers]:
    """Of some rows of each side those that meet."""
    # With ranks in the place of times, key and time are one number that ascends.
    times = np.unique(right.at_us[rights])
    ranks = len(times) + 1
    places = right.keys[rights] * ranks + np.searchsorted(times, right.at_us[rights])
    keys, at_us = left.keys[lefts] * ranks, left.at_us[lefts]
    first = np.searchsorted(places, keys + np.searchsorted(times, at_us - within_us))
    counts = np.searchsorted(places, keys + np.searchsorted(times, at_us + within_us, side="right")) - first
    before = np.cumsum(counts) - counts
    nth = np.arange(counts.sum()) - np.repeat(before, counts)
    return np.repeat(lefts, counts), rights[np.repeat(first, counts) + nth]


def _order(rows: pa.Table, keys: Numbers, at_us: Numbers) -> Numbers:
    """The order by key and time. Rows arrive in no fixed one: what else they say decides among equals."""
    order = np.lexsort((at_us, keys))
    equal = np.flatnonzero((np.diff(keys[order]) == 0) & (np.diff(at_us[order]) == 0))
    if not equal.size:
        return order
    tied = order[np.union1d(equal, equal + 1)]
    said = np.zeros(len(order), np.uint64)
    said[tied] = digests(rows.take(pa.array(tied)).to_struct_array())
    return np.lexsort((said, at_us, keys))
