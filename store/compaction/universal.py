"""Universal compaction: few sorted runs, each about as large as all newer ones together.

The choice is RocksDB's (wiki page "Universal Compaction"; `db/compaction/compaction_picker_universal.cc`), for each
state partition on its own: runs of similar size, newest first, are merged into one. So each row is rewritten
O(log(state / batch)) times, and the large oldest run only when the newer ones have grown to a good part of its size.
Pure.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate

from ..sst.sorted_runs import bounds, depth, part_within, sorted_runs
from ..versions.manifest import Policy, Sst
from .plan import Compaction, newest_first


def pick(partition: int, partitions: int, ssts: Sequence[Sst], policy: Policy) -> tuple[Compaction, ...]:
    """Return the compaction that a state partition needs now, from the SSTs that touch it; empty if none.

    Fewer than `l0_trigger` runs are left alone; a run that spans former partitions counts as often as it can have a
    key.
    Otherwise the first of these rules that applies, as in RocksDB:

    1. The runs but the oldest take more than `max_space_amplification` times the oldest's bytes: merge all.
    2. From the newest possible run on, take the longest sequence of runs in which each has at most `1 + size_ratio`
    times
       the bytes of those before it together: merge these, if they are at least `min_merge_width`.
    3. Merge the newest runs, as many as bring the number of runs below `l0_trigger`.

    An SST that reaches beyond the partition counts with its share of the bytes.
    """
    runs = sorted_runs(ssts)
    depths = [depth(run) for run in runs]
    if sum(depths) < policy.l0_trigger:
        return ()
    low, high = bounds(partition, partitions)
    sizes = [sum(part_within(sst.bytes, sst, low, high) for sst in run) for run in runs]
    if sum(sizes[:-1]) > policy.max_space_amplification * sizes[-1]:
        start, end = 0, len(runs)
    else:
        remaining = (sum(depths) - merged + 1 for merged in accumulate(depths))
        fewest = next((num for num, count in enumerate(remaining, start=1) if count < policy.l0_trigger), len(runs))
        start, end = _similar(sizes, policy) or (0, min(fewest, max(2, policy.max_merge_width)))
    merged = everything(partition, partitions, [sst for run in runs[start:end] for sst in run], policy)
    return (replace(merged, drops_tombstones=end == len(runs)),)


def everything(partition: int, partitions: int, ssts: Sequence[Sst], policy: Policy) -> Compaction:
    """Return the compaction of all SSTs that touch a state partition, into one run."""
    inputs, target = newest_first(ssts), policy.target_file_bytes
    return Compaction(partition, partitions, inputs, drops_tombstones=True, target_file_bytes=target)


def _similar(sizes: Sequence[int], policy: Policy) -> tuple[int, int] | None:
    """Return start and end of the first sequence of runs of similar size (newest first), or None."""
    for start in range(len(sizes)):
        total, end = sizes[start], start + 1
        while (
            end < len(sizes) and end - start < policy.max_merge_width and sizes[end] <= total * (1 + policy.size_ratio)
        ):
            total += sizes[end]
            end += 1
        if end - start >= max(2, policy.min_merge_width):
            return start, end
    return None
