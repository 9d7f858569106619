"""SSTs as sorted runs: which state partitions their hashes fall in, and which of them lie over each other.

The number of state partitions may change (`snapshot.change.stages`) and the SSTs stay, so where one belongs is
decided by its range of hashes, never by `Sst.partition`. What holds for any history of rescales, and what compaction
keeps: two SSTs whose ranges of hashes meet have ranges of `_seq` that do not. So of two rows of a key, the newer one is
in the SST of the larger `seq_max`. Pure, and without numpy: `status` asks, too.
"""

from bisect import bisect, insort
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, pairwise

from ..versions.manifest import Sst

_LOWEST = -(1 << 63)
_HALF_BITS = 32
"""`hashing.partition_of` looks at the upper half of a hash."""


def bounds(partition: int, partitions: int) -> tuple[int, int]:
    """The lowest and the highest hash of a state partition."""
    return _first(partition, partitions), _first(partition + 1, partitions) - 1


def touched(sst: Sst, partitions: int) -> range:
    """The state partitions that the SST's range of hashes meets."""
    return range(of_hash(sst.hash_min, partitions), of_hash(sst.hash_max, partitions) + 1)


def touching(ssts: Iterable[Sst], partition: int, partitions: int) -> tuple[Sst, ...]:
    """The SSTs in which hashes of a state partition can be, in their order."""
    return overlapping(ssts, *bounds(partition, partitions))


def overlapping(ssts: Iterable[Sst], low: int, high: int) -> tuple[Sst, ...]:
    """The SSTs in which hashes from `low` to `high`, both included, can be, in their order."""
    return tuple(sst for sst in ssts if sst.hash_min <= high and sst.hash_max >= low)


def newer_than(older: Sst, ssts: Iterable[Sst]) -> list[Sst]:
    """Those of the SSTs that may hide rows of another one, in their order."""
    return [each for each in overlapping(ssts, older.hash_min, older.hash_max) if each.seq_max > older.seq_max]


def part_within(whole: int, sst: Sst, low: int, high: int) -> int:
    """About how many of an SST's bytes or rows (`whole`) are of these hashes, both included: they are spread evenly."""
    inside = min(high, sst.hash_max) - max(low, sst.hash_min) + 1
    return whole * max(0, inside) // (sst.hash_max - sst.hash_min + 1)


def by_partition(ssts: Iterable[Sst], partitions: int) -> dict[int, list[Sst]]:
    """`touching` of each state partition, partitions ascending; those without an SST are left out."""
    found: defaultdict[int, list[Sst]] = defaultdict(list)
    for sst in ssts:
        for partition in touched(sst, partitions):
            found[partition].append(sst)
    return dict(sorted(found.items()))


def l0_files(ssts: Iterable[Sst], partitions: int) -> int:
    """How many SSTs of level 0 the state partition has that has most: a look-up searches them all."""
    return max(map(len, by_partition((sst for sst in ssts if sst.level == 0), partitions).values()), default=0)


def sorted_runs(ssts: Iterable[Sst]) -> tuple[tuple[Sst, ...], ...]:
    """The sorted runs that these SSTs of one state partition make, newest first, and so the SSTs of each.

    Runs never overlap in `_seq`. Beside a single SST, there are two kinds: SSTs that do overlap in `_seq`, written when
    the partition was several, or cut out of one merge; and those of one level, 1 or more, that follow each other in
    `_seq` and lie side by side in their hashes, for a key is in one of them at most.
    """
    # The smallest groups of SSTs that do not overlap each other in `_seq`.
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
        if not runs or not runs[-1].take(run):
            runs.append(run)
    return tuple(tuple(run.ssts) for run in runs)


def depth(ssts: Iterable[Sst]) -> int:
    """In how many of these SSTs a key can be, at most: 1 for a run, but for one that was several partitions' runs."""
    ends = sorted(end for sst in ssts for end in ((sst.hash_min, -1), (sst.hash_max, 1)))
    return max(accumulate(-change for _, change in ends), default=0)


class _GrowingRun:
    """SSTs of one run, while more are added; `level` is 0 when nothing may be put beside them."""

    def __init__(self, ssts: list[Sst]) -> None:
        self.ssts = ssts
        levels = {sst.level for sst in ssts}
        self.level = levels.pop() if len(levels) == 1 else 0
        self.ranges = sorted((sst.hash_min, sst.hash_max) for sst in ssts)
        if any(later[0] <= earlier[1] for earlier, later in pairwise(self.ranges)):
            self.level = 0

    def take(self, older: "_GrowingRun") -> bool:
        """Take in the SSTs of the next older run where these lie beside the own ones; whether they do."""
        if not self.level or older.level != self.level or not all(map(self._is_free, older.ranges)):
            return False
        self.ssts += older.ssts
        for each in older.ranges:
            insort(self.ranges, each)
        return True

    def _is_free(self, hashes: tuple[int, int]) -> bool:
        at = bisect(self.ranges, hashes)
        after_the_one_before = at == 0 or self.ranges[at - 1][1] < hashes[0]
        return after_the_one_before and (at == len(self.ranges) or hashes[1] < self.ranges[at][0])


def deltas(ssts: Sequence[Sst]) -> tuple[Sst, ...]:
    """The SSTs in which a key can be that an older one has, too; in the order given."""
    newer = {newer for newer, _ in meeting(ssts)}
    return tuple(sst for sst in ssts if sst in newer)


def meeting(ssts: Iterable[Sst]) -> Iterator[tuple[Sst, Sst]]:
    """The pairs of SSTs that share hashes, the newer one first."""
    reached: list[Sst] = []
    for sst in sorted(ssts, key=lambda sst: sst.hash_min):
        reached = [other for other in reached if other.hash_max >= sst.hash_min]
        for other in reached:
            yield (sst, other) if sst.seq_max > other.seq_max else (other, sst)
        reached.append(sst)


def of_hash(hashed: int, partitions: int) -> int:
    """`hashing.partition_of` of one hash."""
    return ((hashed - _LOWEST >> _HALF_BITS) * partitions) >> _HALF_BITS


def _first(partition: int, partitions: int) -> int:
    """The lowest hash that is not in a partition before this one."""
    upper_half = -(-(partition << _HALF_BITS) // partitions)
    return (upper_half << _HALF_BITS) + _LOWEST
