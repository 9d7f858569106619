"""SSTs as sorted runs: which state partitions their hashes fall in, and which of them lie over each other.

The number of state partitions may change (`snapshot.rescale`) and the SSTs stay, so where one belongs is decided by its
range of hashes, never by `Sst.partition`. What holds for any history of rescales, and what compaction keeps: two SSTs
whose ranges of hashes meet have ranges of `_seq` that do not. So of two rows of a key, the newer one is in the SST of
the larger `seq_max`. Pure, and without numpy: `status` asks, too.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence

from .manifest import Sst

__all__ = ["bounds", "by_partition", "deltas", "l0_files", "sorted_runs", "touched", "touching"]

_LOWEST = -(1 << 63)
_HALF_BITS = 32
"""`hashing.partition_of` looks at the upper half of a hash."""


def bounds(partition: int, partitions: int) -> tuple[int, int]:
    """The lowest and the highest hash of a state partition."""
    return _first(partition, partitions), _first(partition + 1, partitions) - 1


def touched(sst: Sst, partitions: int) -> range:
    """The state partitions that the SST's range of hashes meets."""
    return range(_of(sst.hash_min, partitions), _of(sst.hash_max, partitions) + 1)


def touching(ssts: Iterable[Sst], partition: int, partitions: int) -> tuple[Sst, ...]:
    """The SSTs in which hashes of a state partition can be, in the order given."""
    low, high = bounds(partition, partitions)
    return tuple(sst for sst in ssts if sst.hash_min <= high and sst.hash_max >= low)


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

    Runs never overlap in `_seq`. One is a single SST, but for those written when the partition was several: side by
    side in their hashes, and of the same time.
    """
    runs: list[list[Sst]] = []
    oldest = 0
    for sst in sorted(ssts, key=lambda sst: (-sst.seq_max, sst.hash_min)):
        if runs and sst.seq_max >= oldest:
            runs[-1].append(sst)
            oldest = min(oldest, sst.seq_min)
        else:
            runs.append([sst])
            oldest = sst.seq_min
    return tuple(map(tuple, runs))


def deltas(ssts: Sequence[Sst]) -> tuple[Sst, ...]:
    """The SSTs in which a key can be that an older one has, too; in the order given."""
    newer: set[Sst] = set()
    reached: list[Sst] = []
    for sst in sorted(ssts, key=lambda sst: sst.hash_min):
        reached = [other for other in reached if other.hash_max >= sst.hash_min]
        newer.update(max(sst, other, key=lambda sst: sst.seq_max) for other in reached)
        reached.append(sst)
    return tuple(sst for sst in ssts if sst in newer)


def _of(hashed: int, partitions: int) -> int:
    """`hashing.partition_of` of one hash."""
    return ((hashed - _LOWEST >> _HALF_BITS) * partitions) >> _HALF_BITS


def _first(partition: int, partitions: int) -> int:
    """The lowest hash that is not in a partition before this one."""
    upper_half = -(-(partition << _HALF_BITS) // partitions)
    return (upper_half << _HALF_BITS) + _LOWEST
