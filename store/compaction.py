"""Universal compaction: which sorted runs to merge, merging them, and putting the result in their place.

`pick` and `apply` are pure. The choice is RocksDB's universal compaction (wiki page "Universal Compaction";
`db/compaction/compaction_picker_universal.cc`), for each state partition on its own: runs of similar size,
newest first, are merged into one, so each row is rewritten O(log(state / batch)) times and the large oldest
run only when the newer ones have grown to a good part of its size.

After a rescale an SST may reach beyond the partition that is compacted. Of such an input, the part inside is merged,
and the rest is cut at the partitions' bounds, an SST for each: cutting changes the order of nothing, so those
partitions need not be looked at. What was written under another number of partitions so comes apart bit by bit, as it
is merged anyway.

`run` streams: the inputs are memory-mapped and merged one slice of the hash range at a time.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from .cache import SstCache
from .hashing import sort_keys
from .manifest import Sst, Table
from .objects import ObjectStore
from .runs import bounds, by_partition, sorted_runs, touched, touching
from .sst import SstWriter
from .stamps import expired
from .ttl import expired_suffix, without_expired_suffix
from .types import HASH, OP, TOMBSTONE

__all__ = ["Compaction", "Done", "apply", "pick", "run"]

_SLICE_ROWS = 1 << 18
"""Rows of all inputs merged at once: bounds memory."""


@dataclass(frozen=True, slots=True)
class Compaction:
    """Neighbouring runs of one state partition, to become one."""

    partition: int
    partitions: int
    """The table's number of state partitions."""
    inputs: tuple[Sst, ...]
    """At least one; newest first. All SSTs of these runs, also those that reach into other partitions."""
    drops_tombstones: bool
    """Whether the partition's oldest run is among them: nothing is left that a tombstone could shadow. Then expired
    rows are dropped, too; else they stay, for they shadow older rows as well."""
    clock_ms: int | None = None
    """Rows that expire at this time or before are expired: the clock of the manifest that was picked from, which no
    later version's is behind. None drops none."""


@dataclass(frozen=True, slots=True)
class Done:
    """A compaction that was carried out; it counts once a manifest says so."""

    compaction: Compaction
    outputs: tuple[Sst, ...]
    """The merged SST, if a row was left, and one for each piece of an input beyond the partition."""


def pick(
    ssts: Sequence[Sst],
    partitions: int,
    *,
    trigger: int = 8,
    size_ratio: float = 1.0,
    min_merge_width: int = 2,
    max_merge_width: int = 64,
    max_space_amplification: float = 1.0,
    clock_ms: int | None = None,
) -> tuple[Compaction, ...]:
    """What to merge now: at most one compaction for each state partition, and no SST in two of them.

    Where expired rows take at least half of the oldest runs' bytes (`ttl.expired_suffix`), these are merged, however
    few. Apart from that a partition with fewer than `trigger` SSTs is left alone. Else the first of these that applies,
    as in RocksDB:

    1. The runs but the oldest take more than `max_space_amplification` times the oldest's bytes: merge all.
    2. Starting from the newest run that allows it, the longest row of runs in which each takes at most
       `1 + size_ratio` times the bytes of those before it together: merge these, if they are
       `min_merge_width`.
    3. Merge the newest runs, as many as bring the number of SSTs below `trigger`.

    A run is one SST; see `runs.sorted_runs` for the exception. Of an SST that reaches beyond the partition, only its
    share of the bytes counts. Each compaction leaves fewer SSTs in its partition, and no more in any other.

    Args:
        ssts: those of a manifest, in any order.
        partitions: the table's number of state partitions.
        trigger: the number of SSTs from which on a partition is compacted; at least 2.
        size_ratio: how much larger than those before it a run may be; the larger, the fewer and wider merges.
        min_merge_width: fewest runs to merge by rule 2.
        max_merge_width: most runs to merge by rules 2 and 3.
        max_space_amplification: bytes of newer runs, over the oldest's, that are put up with.
        clock_ms: the manifest's; None when no row expires.

    Raises:
        ValueError: `trigger` is below 2.
    """
    if trigger < 2:
        raise ValueError(f"expected a trigger of at least 2 SSTs, found {trigger}")
    picked: list[Compaction] = []
    taken: set[Sst] = set()
    for partition, mine in by_partition(ssts, partitions).items():
        runs = sorted_runs(mine)
        expired_from = None if clock_ms is None else expired_suffix(runs, clock_ms)
        if len(mine) < trigger and expired_from is None:
            continue
        sizes = [sum(_bytes_within(sst, partition, partitions) for sst in run) for run in runs]
        if expired_from is not None:
            start, end = expired_from, len(runs)
        elif sum(sizes[:-1]) > max_space_amplification * sizes[-1]:
            start, end = 0, len(runs)
        else:
            fewest = (0, min(_fewest([len(run) for run in runs], trigger), max_merge_width))
            start, end = _similar(sizes, size_ratio, min_merge_width, max_merge_width) or fewest
        inputs = tuple(sst for run in runs[start:end] for sst in run)
        # What reaches into a partition that was looked at before is left to that one for now.
        if taken.isdisjoint(inputs):
            taken.update(inputs)
            picked.append(Compaction(partition, partitions, inputs, end == len(runs), clock_ms))
    return tuple(picked)


def run(store: ObjectStore, cache: SstCache, app: str, stage: str, table: Table, compaction: Compaction) -> Done:
    """Merge the inputs and put the result into the store, under new names (a request each), and into the cache.

    Keeps the newest row of each key of the partition, and all rows beyond it. Holds in memory one slice of the inputs
    and one encoded result. The oldest inputs, when all that they hold is expired, are not even read.

    Raises:
        Corruption: an input is missing or damaged.
        Unavailable: the store did not answer.
    """
    partitions, inputs = compaction.partitions, compaction.inputs
    if compaction.drops_tombstones and compaction.clock_ms is not None:
        inputs = without_expired_suffix(inputs, partitions, compaction.clock_ms)
    if not inputs:
        return Done(compaction, ())
    rows = [cache.open(store, sst, table).table for sst in inputs]

    def put(parts: Iterable[pa.Table], partition: int, inputs: Sequence[Sst]) -> Iterator[Sst]:
        writer = SstWriter(table)
        for part in parts:
            writer.append(part)
        if writer.num_rows:
            level = max(sst.level for sst in inputs) + 1
            sst, data = writer.finish(app=app, stage=stage, partition=partition, level=level)
            store.put(sst.object, data)
            cache.add_encoded(sst, table, data)
            yield sst

    inside = [_within(all_of_it, compaction.partition, partitions) for all_of_it in rows]
    merged = _merged(inside, table, compaction)
    outputs = [*put(merged, compaction.partition, inputs)]
    for sst, all_of_it in zip(inputs, rows, strict=True):
        for other in touched(sst, partitions):
            if other != compaction.partition:
                outputs += put([_within(all_of_it, other, partitions)], other, [sst])
    return Done(compaction, tuple(outputs))


def apply(ssts: Sequence[Sst], done: Sequence[Done]) -> tuple[Sst, ...]:
    """The SSTs of a manifest with each result in the place of its inputs.

    The manifest may be newer than the one that was compacted: SSTs added since stay, before the result. A
    result that does not fit any more is left out, since its inputs were merged or dropped otherwise: when an
    input is gone, when one came to lie between the inputs, or when tombstones were dropped and there is an
    older one now.
    """
    current = tuple(ssts)
    for one in done:
        if _fits(current, one.compaction):
            first = next(i for i, sst in enumerate(current) if sst in one.compaction.inputs)
            rest = tuple(sst for sst in current[first:] if sst not in one.compaction.inputs)
            current = (*current[:first], *one.outputs, *rest)
    return current


def _fits(ssts: tuple[Sst, ...], compaction: Compaction) -> bool:
    if not set(compaction.inputs) <= set(ssts):
        return False
    oldest = min(sst.seq_min for sst in compaction.inputs)
    newest = max(sst.seq_max for sst in compaction.inputs)
    return all(
        sst.seq_min > newest or (sst.seq_max < oldest and not compaction.drops_tombstones)
        for sst in touching(ssts, compaction.partition, compaction.partitions)
        if sst not in compaction.inputs
    )


def _merged(inputs: Sequence[pa.Table], table: Table, compaction: Compaction) -> Iterator[pa.Table]:
    """The newest row of each key, in the order of an SST; inputs are given newest first."""
    key_names = [column.name for column in table.key]
    for parts in _slices(inputs):
        # SSTs from before the table got a ttl lack a column, which is null there.
        rows = pa.concat_tables(parts, promote_options="default").combine_chunks()
        order, repeats = sort_keys(rows.column(HASH).to_numpy(), rows.select(key_names))
        # Of equal keys the first came from the newest input.
        keep = order[~repeats]
        if compaction.drops_tombstones:
            keep = keep[rows.column(OP).to_numpy()[keep] != TOMBSTONE]
            gone = expired(rows, compaction.clock_ms)
            keep = keep if gone is None else keep[~gone[keep]]
        yield rows.take(pa.array(keep))


def _slices(inputs: Sequence[pa.Table]) -> Iterator[list[pa.Table]]:
    """All inputs cut at the same hashes into slices of about `_SLICE_ROWS`; equal hashes stay together."""
    largest = max(inputs, key=lambda rows: rows.num_rows)
    num_slices = -(-sum(rows.num_rows for rows in inputs) // _SLICE_ROWS)
    sample = np.arange(1, num_slices) * largest.num_rows // num_slices
    slice_bounds = np.unique(largest.column(HASH).take(pa.array(sample)).to_numpy())
    cuts = [np.concatenate(([0], _positions(rows, slice_bounds), [rows.num_rows])) for rows in inputs]
    for i in range(len(slice_bounds) + 1):
        yield [rows.slice(cut[i], cut[i + 1] - cut[i]) for rows, cut in zip(inputs, cuts, strict=True)]


def _within(rows: pa.Table, partition: int, partitions: int) -> pa.Table:
    """The rows of an SST that are in a state partition."""
    low, high = bounds(partition, partitions)
    (start,) = _positions(rows, np.array([low]))
    (end,) = _positions(rows, np.array([high]), side="right")
    return rows.slice(start, end - start)


def _positions(
    rows: pa.Table, hashes: npt.NDArray[np.int64], *, side: Literal["left", "right"] = "left"
) -> npt.NDArray[np.int64]:
    """How many rows of an SST come before each of these hashes; with side="right" also those of the hash itself."""
    positions = np.zeros(len(hashes), np.int64)
    for chunk in rows.column(HASH).chunks:
        positions += np.searchsorted(np.asarray(chunk), hashes, side=side)
    return positions


def _bytes_within(sst: Sst, partition: int, partitions: int) -> int:
    """About how many of the SST's bytes are of a state partition: hashes are spread evenly."""
    low, high = bounds(partition, partitions)
    inside = min(high, sst.hash_max) - max(low, sst.hash_min) + 1
    return sst.bytes * inside // (sst.hash_max - sst.hash_min + 1)


def _fewest(widths: Sequence[int], trigger: int) -> int:
    """How many runs, newest first, must become one SST so that there are fewer than `trigger`."""
    left = sum(widths)
    for num, width in enumerate(widths, start=1):
        left -= width
        if left + 1 < trigger:
            return num
    return len(widths)


def _similar(sizes: Sequence[int], size_ratio: float, min_width: int, max_width: int) -> tuple[int, int] | None:
    """Start and end of the first row of runs of similar size (newest first), or None."""
    for start in range(len(sizes)):
        total, end = sizes[start], start + 1
        while end < len(sizes) and end - start < max_width and sizes[end] <= total * (1 + size_ratio):
            total += sizes[end]
            end += 1
        if end - start >= max(2, min_width):
            return start, end
    return None
