"""Splits a compaction into smaller ones, by windows of its hashes. Pure."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

from ..sst.sorted_runs import overlapped_partitions, overlapping
from ..versions.entries.hash_ranges import hash_bounds, partition_of_hash
from .plan import Compaction


def split(compaction: Compaction, max_bytes: int) -> tuple[Compaction, ...]:
    """Return compactions whose outputs, joined in this order, are outputs of `compaction`.

    Each returned compaction reads about `max_bytes` of input. The returned compactions share inputs, so a version may
    name their outputs only together, as the result of `compaction`. A leveled merge is split at slot bounds, because an
    SST covers whole slots or a part of one slot. Leveled merges of a single slot and merges of wide inputs are not
    split.
    """
    count = -(-compaction.input_bytes // max_bytes)
    if count < 2 or any(len(overlapped_partitions(sst, compaction.partitions)) > 1 for sst in compaction.inputs):
        return (compaction,)
    level = compaction.output_level
    pieces = (
        replace(compaction, inputs=inputs, level=level, window=(low, end - 1), is_piece=True)
        for low, end in pairwise(_bounds(compaction, count))
        if (inputs := overlapping(compaction.inputs, low, end - 1))
    )
    return tuple(pieces)


def _bounds(compaction: Compaction, count: int) -> Iterator[int]:
    low, high = compaction.hash_range
    if not compaction.slots:
        yield from (low + number * (high - low + 1) // count for number in range(count + 1))
        return
    first, last = (partition_of_hash(hashed, compaction.slots) for hashed in (low, high))
    slots = last - first + 1
    count = min(count, slots)
    yield low
    yield from (hash_bounds(first + number * slots // count, compaction.slots)[0] for number in range(1, count))
    yield high + 1
