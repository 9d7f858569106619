"""Counters: requests and bytes that went to a store, and what look-ups and compaction made of them."""

from typing import Annotated

from msgspec import Meta, Struct
from msgspec.structs import astuple

Sum = Annotated[int, Meta(ge=0, le=1 << 62, description="a sum from 0 to 2^62")]
"""A count that is summed up for as long as a stage lives."""


class Stats(Struct, frozen=True, omit_defaults=True):
    """What versions of a stage took, in all processes that worked for it: `read_stats` says what is counted."""

    ms: Sum = 0
    """How long was counted: while the stage stood still for want of a runner, nothing was."""
    gets: Sum = 0
    puts: Sum = 0
    lists: Sum = 0
    """Listings, one for each 1,000 entries."""
    deletes: Sum = 0
    bytes_read: Sum = 0
    bytes_written: Sum = 0
    keys: Sum = 0
    """Keys that batches looked up."""
    searched: Sum = 0
    """Probes: pairs of such a key and an SST that could have it."""
    filtered: Sum = 0
    """Of these, what a filter ruled out."""
    cache_hits: Sum = 0
    """SSTs looked into that the machine had."""
    cache_misses: Sum = 0
    row_groups: Sum = 0
    """Row groups read from the store by ranges."""
    flushed_bytes: Sum = 0
    """SSTs of level 0: what batches wrote."""
    compacted_bytes: Sum = 0
    """SSTs of other levels that a version names for the first time: what compactions wrote."""
    commits: Sum = 0
    """Puts of manifests that `commit_ms` is the time of."""
    commit_ms: Sum = 0

    def __add__(self, other: "Stats") -> "Stats":
        return Stats(*(mine + theirs for mine, theirs in zip(astuple(self), astuple(other), strict=True)))

    def __sub__(self, other: "Stats") -> "Stats":
        return Stats(*(mine - theirs for mine, theirs in zip(astuple(self), astuple(other), strict=True)))

    @property
    def requests(self) -> int:
        """Requests of all verbs."""
        return self.gets + self.puts + self.lists + self.deletes
