"""Universal compaction: which sorted runs to merge, merging them, and putting the result in their place.

`pick` and `apply` are pure. The choice is RocksDB's universal compaction (wiki page "Universal Compaction";
`db/compaction/compaction_picker_universal.cc`), for each state partition on its own: runs of similar size,
newest first, are merged into one, so each row is rewritten O(log(state / batch)) times and the large oldest
run only when the newer ones have grown to a good part of its size.

`run` streams: the inputs are memory-mapped and merged one slice of the hash range at a time.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from .blocks import Block
from .cache import Mapped, SstCache
from .hashing import sort_keys
from .manifest import Sst, Table
from .objects import ObjectStore
from .sst import SstWriter
from .types import HASH, OP, TOMBSTONE

__all__ = ["Compaction", "Done", "apply", "pick", "run"]

_SLICE_ROWS = 1 << 18
"""Rows of all inputs merged at once: bounds memory."""


@dataclass(frozen=True, slots=True)
class Compaction:
    """Neighbouring runs of one state partition, to become one."""

    inputs: tuple[Sst, ...]
    """At least one; newest first."""
    drops_tombstones: bool
    """Whether the partition's oldest run is among them: nothing is left that a tombstone could shadow."""


@dataclass(frozen=True, slots=True)
class Done:
    """A compaction that was carried out; it counts once a manifest says so."""

    compaction: Compaction
    output: Sst | None
    """None when no row was left."""


def pick(
    ssts: Sequence[Sst],
    *,
    trigger: int = 8,
    size_ratio: float = 1.0,
    min_merge_width: int = 2,
    max_merge_width: int = 64,
    max_space_amplification: float = 1.0,
) -> tuple[Compaction, ...]:
    """What to merge now: at most one compaction for each state partition.

    A partition with fewer than `trigger` runs is left alone. Else the first of these that applies, as in
    RocksDB:

    1. The runs but the oldest take more than `max_space_amplification` times the oldest's bytes: merge all.
    2. Starting from the newest run that allows it, the longest row of runs in which each takes at most
       `1 + size_ratio` times the bytes of those before it together: merge these, if they are
       `min_merge_width`.
    3. Merge the newest runs, as many as bring their number below `trigger`.

    Args:
        ssts: the runs of a manifest, in any order.
        trigger: the number of runs from which on a partition is compacted; at least 2.
        size_ratio: how much larger than those before it a run may be; the larger, the fewer and wider merges.
        min_merge_width: fewest runs to merge by rule 2.
        max_merge_width: most runs to merge by rules 2 and 3.
        max_space_amplification: bytes of newer runs, over the oldest's, that are put up with.

    Raises:
        ValueError: `trigger` is below 2.
    """
    if trigger < 2:
        raise ValueError(f"expected a trigger of at least 2 runs, found {trigger}")
    picked = []
    for _, runs in groupby(sorted(ssts, key=_partition_then_newest), key=lambda sst: sst.partition):
        newest_first = tuple(runs)
        if len(newest_first) < trigger:
            continue
        sizes = [sst.bytes for sst in newest_first]
        if sum(sizes[:-1]) > max_space_amplification * sizes[-1]:
            start, end = 0, len(sizes)
        else:
            fewest = (0, min(len(sizes) - trigger + 2, max_merge_width))
            start, end = _similar(sizes, size_ratio, min_merge_width, max_merge_width) or fewest
        picked.append(Compaction(newest_first[start:end], drops_tombstones=end == len(sizes)))
    return tuple(picked)


def run(store: ObjectStore, cache: SstCache, app: str, stage: str, table: Table, compaction: Compaction) -> Done:
    """Merge the inputs and put the result into the store, under a new name (one request), and into the cache.

    Keeps the newest row of each key. Holds in memory one slice of the inputs and the encoded result.

    Raises:
        Corruption: an input is missing or damaged.
        Unavailable: the store did not answer.
    """
    inputs = [cache.open(store, sst, table) for sst in compaction.inputs]
    writer = SstWriter(table)
    for rows in _merged(inputs, table, drop_tombstones=compaction.drops_tombstones):
        writer.append(rows)
    if not writer.num_rows:
        return Done(compaction, None)
    sst, data = writer.finish(
        app=app,
        stage=stage,
        partition=compaction.inputs[0].partition,
        level=max(sst.level for sst in compaction.inputs) + 1,
    )
    store.put(sst.object, data)
    cache.add_encoded(sst, table, data)
    return Done(compaction, sst)


def apply(ssts: Sequence[Sst], done: Sequence[Done]) -> tuple[Sst, ...]:
    """The runs of a manifest with each result in the place of its inputs.

    The manifest may be newer than the one that was compacted: runs added since stay, before the result. A
    result that does not fit any more is left out, since its inputs were merged or dropped otherwise: when an
    input is gone, when a run came to lie between the inputs, or when tombstones were dropped and there is an
    older run now.
    """
    current = tuple(ssts)
    for one in done:
        if _fits(current, one.compaction):
            inputs = {sst.object for sst in one.compaction.inputs}
            first = next(i for i, sst in enumerate(current) if sst.object in inputs)
            output = () if one.output is None else (one.output,)
            rest = tuple(sst for sst in current[first:] if sst.object not in inputs)
            current = (*current[:first], *output, *rest)
    return current


def _fits(ssts: tuple[Sst, ...], compaction: Compaction) -> bool:
    partition = compaction.inputs[0].partition
    runs = sorted((sst for sst in ssts if sst.partition == partition), key=_partition_then_newest)
    names = [sst.object for sst in runs]
    inputs = [sst.object for sst in compaction.inputs]
    if inputs[0] not in names:
        return False
    start = names.index(inputs[0])
    end = start + len(inputs)
    return names[start:end] == inputs and (end == len(names) or not compaction.drops_tombstones)


def _merged(inputs: Sequence[Mapped], table: Table, *, drop_tombstones: bool) -> Iterator[pa.Table]:
    """The newest row of each key, in the order of an SST; inputs are given newest first."""
    key_names = [column.name for column in table.key]
    for parts in _slices(inputs):
        rows = pa.concat_tables(parts).combine_chunks()
        order, repeats = sort_keys(rows.column(HASH).to_numpy(), rows.select(key_names))
        # Of equal keys the first came from the newest input.
        keep = order[~repeats]
        if drop_tombstones:
            keep = keep[rows.column(OP).to_numpy()[keep] != TOMBSTONE]
        yield rows.take(pa.array(keep))


def _slices(inputs: Sequence[Mapped]) -> Iterator[list[pa.Table]]:
    """All inputs cut at the same hashes into slices of about `_SLICE_ROWS`; equal hashes stay together."""
    largest = max(inputs, key=lambda mapped: mapped.table.num_rows)
    num_slices = -(-sum(mapped.table.num_rows for mapped in inputs) // _SLICE_ROWS)
    sample = np.arange(1, num_slices) * largest.table.num_rows // num_slices
    bounds = np.unique(largest.table.column(HASH).take(pa.array(sample)).to_numpy())
    cuts = [np.concatenate(([0], _positions(mapped.blocks, bounds), [mapped.table.num_rows])) for mapped in inputs]
    for i in range(len(bounds) + 1):
        yield [mapped.table.slice(cut[i], cut[i + 1] - cut[i]) for mapped, cut in zip(inputs, cuts, strict=True)]


def _positions(blocks: Sequence[Block], bounds: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The row of an SST at which hashes from each bound on begin."""
    positions = np.zeros(len(bounds), np.int64)
    for block in blocks:
        positions += np.searchsorted(block.hashes, bounds)
    return positions


def _partition_then_newest(sst: Sst) -> tuple[int, int]:
    return sst.partition, -sst.seq_max


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
