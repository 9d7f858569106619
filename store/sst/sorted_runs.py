"""Sorted runs of SSTs: the state partitions of an SST's hashes, and the SSTs that overlap.

The number of state partitions may change (`snapshot.change.stages`), while SSTs stay unchanged. So an SST's state
partitions follow from its range of hashes, never from `Sst.partition`. Compactions and rescales preserve one invariant:
two SSTs that overlap in `_hash` do not overlap in `_seq`. So of two rows of a key, the newer row is in the SST with the
larger `seq_max`. Pure functions without numpy, which `status` must not load.
"""

from bisect import bisect, insort
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, pairwise

from ..versions.entries.hash_ranges import hash_bounds, partition_of_hash
from ..versions.entries.ssts import Sst, Ssts


def overlapped_partitions(sst: Sst, partitions: int) -> range:
    return range(partition_of_hash(sst.hash_min, partitions), partition_of_hash(sst.hash_max, partitions) + 1)


def ssts_of_partition(ssts: Iterable[Sst], partition: int, partitions: int) -> tuple[Sst, ...]:
    return overlapping(ssts, *hash_bounds(partition, partitions))


def overlapping(ssts: Iterable[Sst], low: int, high: int) -> tuple[Sst, ...]:
    """Return the SSTs that may have hashes from `low` to `high` (inclusive), in the given order."""
    if isinstance(ssts, Ssts):
        return ssts.within(low, high)
    return tuple(sst for sst in ssts if sst.hash_min <= high and sst.hash_max >= low)


def newer_than(older: Sst, ssts: Iterable[Sst]) -> list[Sst]:
    """Return the SSTs that may hide rows of `older`: newer SSTs that overlap its hashes, in the given order."""
    return [sst for sst in overlapping(ssts, older.hash_min, older.hash_max) if sst.seq_max > older.seq_max]


def estimate_within(whole: int, sst: Sst, low: int, high: int) -> int:
    """Estimate how many of an SST's `whole` bytes or rows have hashes from `low` to `high` (inclusive)."""
    inside = min(high, sst.hash_max) - max(low, sst.hash_min) + 1
    return whole * max(0, inside) // (sst.hash_max - sst.hash_min + 1)


def by_partition(ssts: Iterable[Sst], partitions: int) -> dict[int, list[Sst]]:
    """Return the SSTs of each state partition, in the order of partitions. Partitions without SSTs are left out."""
    groups: defaultdict[int, list[Sst]] = defaultdict(list)
    for sst in ssts:
        for partition in overlapped_partitions(sst, partitions):
            groups[partition].append(sst)
    return dict(sorted(groups.items()))


def max_l0_files(ssts: Iterable[Sst], partitions: int) -> int:
    """Return the largest number of level-0 SSTs in any state partition. A look-up searches all of them."""
    return max(map(len, by_partition((sst for sst in ssts if sst.level == 0), partitions).values()), default=0)


def sorted_runs(ssts: Iterable[Sst]) -> tuple[tuple[Sst, ...], ...]:
    """Return the sorted runs of one state partition's SSTs, newest run first. Within a run, the newest SST is first.

    Runs never overlap in `_seq`. SSTs of a run overlap in `_seq` only if they were written when several partitions
    covered these hashes, or are outputs of one merge. Otherwise the SSTs of a run have one level, 1 or more, and do not
    overlap in `_hash`, so that at most one of them has a given key.
    """
    # Smallest groups of SSTs such that no two groups overlap in `_seq`.
    groups: list[list[Sst]] = []
    oldest = 0
    for sst in sorted(ssts, key=lambda sst: (-sst.seq_max, sst.hash_min)):
        if groups and sst.seq_max >= oldest:
            groups[-1].append(sst)
            oldest = min(oldest, sst.seq_min)
        else:
            groups.append([sst])
            oldest = sst.seq_min
    runs: list[_GrowingRun] = []
    for group in groups:
        run = _GrowingRun(group)
        if not runs or not runs[-1].absorb(run):
            runs.append(run)
    return tuple(tuple(run.ssts) for run in runs)


def max_overlap(ssts: Iterable[Sst]) -> int:
    """Return the largest number of these SSTs that may contain the same hash."""
    ends = sorted(end for sst in ssts for end in ((sst.hash_min, -1), (sst.hash_max, 1)))
    return max(accumulate(-change for _, change in ends), default=0)


class _GrowingRun:
    """A run under construction. No further SST can join the run once `level` is 0."""

    def __init__(self, ssts: list[Sst]) -> None:
        self.ssts = ssts
        levels = {sst.level for sst in ssts}
        self.level = levels.pop() if len(levels) == 1 else 0
        self.ranges = sorted((sst.hash_min, sst.hash_max) for sst in ssts)
        if any(later[0] <= earlier[1] for earlier, later in pairwise(self.ranges)):
            self.level = 0

    def absorb(self, older: "_GrowingRun") -> bool:
        if not self.level or older.level != self.level or not all(map(self._is_free, older.ranges)):
            return False
        self.ssts += older.ssts
        for hashes in older.ranges:
            insort(self.ranges, hashes)
        return True

    def _is_free(self, hashes: tuple[int, int]) -> bool:
        at = bisect(self.ranges, hashes)
        after_the_one_before = at == 0 or self.ranges[at - 1][1] < hashes[0]
        return after_the_one_before and (at == len(self.ranges) or hashes[1] < self.ranges[at][0])


def overlapping_older(ssts: Sequence[Sst]) -> tuple[Sst, ...]:
    """Return the SSTs whose hashes overlap those of an older SST, in the given order."""
    newer = {newer for newer, _ in overlapping_pairs(ssts)}
    return tuple(sst for sst in ssts if sst in newer)


def overlapping_pairs(ssts: Iterable[Sst]) -> Iterator[tuple[Sst, Sst]]:
    reached: list[Sst] = []
    for sst in sorted(ssts, key=lambda sst: sst.hash_min):
        reached = [other for other in reached if other.hash_max >= sst.hash_min]
        for other in reached:
            yield (sst, other) if sst.seq_max > other.seq_max else (other, sst)
        reached.append(sst)
