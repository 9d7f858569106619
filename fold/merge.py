"""Merging a batch's rows into the rows that their keys have: what a state makes of them. Arrow tables in and out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ..store.objects.protocol import ObjectStore
from ..store.read import multi_get
from ..store.read.cache import SstCache
from ..store.read.read_stats import Reads
from ..store.sst.hashing import normalise_keys, same_keys, sort_keys
from ..store.versions.manifest import Sst, Table
from .failing import RECORD, merge_or_tell
from .kinds.kind import Bound, Groups, Merged


@dataclass(frozen=True, slots=True)
class Base:
    """The table that a batch's rows are merged into.

    Attributes:
        table: Its columns.
        ssts: Where the rows of the batch's keys are looked up.
        clock_ms: By which of these are expired.
    """

    table: Table
    ssts: Sequence[Sst]
    clock_ms: int


def merge(
    rows: pa.Table,
    base: Base,
    state: Bound,
    seq: int,
    store: ObjectStore,
    cache: SstCache,
    reads: Reads,
    *,
    tells: int | None = None,
) -> tuple[pa.Table, tuple[pa.Table, ...]]:
    """The rows that a table gets, and what the state emits.

    Args:
        rows: `_hash`, the key and the columns that the state needs, in any order; at least one row.
        base: What they are merged into.
        state: How.
        seq: `_seq` of the rows that are made.
        store: The store of the app.
        cache: Where its SSTs come to lie.
        reads: Counts the look-ups.
        tells: How many keys an error of the user's function may be told with, as `StateFailed`; None for raising it as
            it is. Where rows have their records' numbers, it is told with records.

    Returns:
        `_hash`, key, values, `_seq`, `_op` and `_prev_seq` of each key that changed, by `_hash`; and one table of
        emitted rows for all outputs, or one for each.

    Raises:
        Corruption: An SST is not what its manifest promises.
        Unavailable: The store did not answer. Others as the user's function raises.
    """
    key = [column.name for column in base.table.key]
    rows, groups = group(rows, key)
    starts = pa.array(groups.starts)
    hashes = rows["_hash"].take(starts).combine_chunks()
    keys = rows.select(key).take(starts)
    before = np.zeros(groups.num, np.int64)
    old, found = multi_get.multi_get(
        store, cache, base.ssts, base.table, hashes.to_numpy(), keys, reads, clock_ms=base.clock_ms, seqs=before
    )
    wanted = rows.select([*key, *state.needs])
    if tells is None:
        merged = state.merge(wanted, groups, keys, old)
    else:
        records = rows[RECORD].to_numpy() if RECORD in rows.column_names else None
        merged = merge_or_tell(state, wanted, groups, keys, old, hashes.to_numpy(), records=records, most=tells)
    return stored(hashes, keys, merged, found, before, seq), merged.emitted


def stored(
    hashes: pa.Array | pa.ChunkedArray,
    keys: pa.Table,
    merged: Merged,
    found: npt.NDArray[np.bool_],
    before: npt.NDArray[np.int64],
    seq: int,
) -> pa.Table:
    """The rows that a table gets of what a state made of these keys.

    Args:
        hashes: Of the keys.
        keys: One row a key.
        merged: What the state gave.
        found: Whether each key had a row.
        before: `_seq` of the row that was stored of each, 0 for none.
        seq: `_seq` of the rows that are made.
    """
    count = keys.num_rows
    deleted = merged.deleted if merged.deleted is not None else np.zeros(count, bool)
    # Nothing to remember of a key that was not there and is deleted.
    write = ~(deleted & ~found) if merged.changed is None else merged.changed & ~(deleted & ~found)
    new = pa.table(
        [
            hashes,
            *keys.columns,
            *merged.values.columns,
            pa.repeat(pa.scalar(seq, pa.int64()), count),
            pa.array(deleted.astype(np.uint8)),
            pa.array(before),
        ],
        names=["_hash", *keys.column_names, *merged.values.column_names, "_seq", "_op", "_prev_seq"],
    )
    return new if write.all() else new.filter(pa.array(write))


def group(rows: pa.Table, key: Sequence[str]) -> tuple[pa.Table, Groups]:
    """Sort rows by (`_hash`, key) and tell which belong together. Keys are normalised: -0.0 is 0.0, NaN is one."""
    rows = normalise_keys(rows, key)
    hashes = rows["_hash"].to_numpy()
    order = np.argsort(hashes, kind="stable")
    rows = rows.take(pa.array(order)).combine_chunks()
    hashes = hashes[order]
    same_hash = hashes[1:] == hashes[:-1]
    same_key = _same_as_before(rows, key, np.flatnonzero(same_hash) + 1)
    if not same_key.all():
        # Two keys share a hash somewhere: rare enough to sort all rows again, by the key too.
        rows = rows.take(pa.array(sort_keys(hashes, rows.select(list(key)))[0]))
        candidates = np.flatnonzero(same_hash) + 1
        same_key = _same_as_before(rows, key, candidates)
        begins = np.ones(rows.num_rows, bool)
        begins[candidates[same_key]] = False
    else:
        begins = np.concatenate(([True], ~same_hash))
    ids = (np.cumsum(begins) - 1).astype(np.int32)
    return rows, Groups(ids, np.flatnonzero(begins))


def _same_as_before(rows: pa.Table, key: Sequence[str], at: npt.NDArray[np.intp]) -> npt.NDArray[np.bool_]:
    """Whether the rows at these positions have the key of the row before."""
    keys = rows.select(list(key))
    return same_keys(keys.take(pa.array(at)), keys.take(pa.array(at - 1)), key)
