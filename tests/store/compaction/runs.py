"""Artificial runs that have only sizes and positions, and merges of them."""

from slackwater.store.compaction.plan import Compaction, CompactionResult
from slackwater.store.versions.entries.hash_ranges import hash_bounds
from slackwater.store.versions.entries.ssts import Sst

PARTITIONS = 4
"""Number of state partitions for runs without content."""


def a_run(seq_min: int, seq_max: int, size: int, partition: int = 0, partitions: int = PARTITIONS) -> Sst:
    """Return a run with only a size and a position."""
    name = f"{partition}of{partitions}/{seq_min}-{seq_max}"
    return Sst(name, partition, 0, size, size, "", *hash_bounds(partition, partitions), seq_min, seq_max, 0, "", 0)


def compaction_of(
    inputs: tuple[Sst, ...], *, drops_tombstones: bool, partition: int = 0, partitions: int = PARTITIONS
) -> Compaction:
    return Compaction(partition, partitions, inputs, drops_tombstones=drops_tombstones)


def runs_of(*sizes: int) -> tuple[Sst, ...]:
    """Return runs of these sizes, newest first."""
    count = len(sizes)
    return tuple(a_run(count - i, count - i, size) for i, size in enumerate(sizes))


def merged(done: Compaction, size: int | None = None) -> CompactionResult:
    """Return the result of a merge, without executing it."""
    inputs = done.inputs
    size = sum(entry.bytes for entry in inputs) if size is None else size
    return CompactionResult(done, (a_run(inputs[-1].seq_min, inputs[0].seq_max, size, inputs[0].partition),))
