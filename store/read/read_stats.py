"""What look-ups took, as counters that a look-up adds to, and what a version says that it took.

A version tells of requests and bytes of every process that worked for its stage, look-ups and SSTs: of everything that
came after the version before was written up, and before this one was. So the put of a manifest is counted by the
version after it, and what a runner does after its last commit by none. A version whose writer counts nothing (a clone,
a rescale) has no `stats`; the `totals` go on from it.
"""

from dataclasses import dataclass, fields

from ..objects.stats import Stats

_OF_LOOK_UPS = ("keys", "searched", "filtered", "cache_hits", "cache_misses", "row_groups")


@dataclass(slots=True)
class Reads:
    """Counters of look-ups. Each starts at 0 and only grows. Not locked: one for each thread, then `add`."""

    requests: int = 0
    """Requests to the store."""
    round_trips: int = 0
    """How often it was waited for these: those that are under way together count once."""
    bytes: int = 0
    """Bytes that they brought: pages, footers, indexes, filters, gaps between them, whole SSTs."""
    row_groups: int = 0
    """Row groups of which pages were read from the store by ranges, or all."""
    touched_bytes: int = 0
    """Bytes of the row groups that keys fall in by their hash, also where a filter ruled them out."""
    keys: int = 0
    """Keys asked for."""
    searched: int = 0
    """Probes: pairs of a key and an SST whose range of hashes has the key's, newest first until it is found."""
    filtered: int = 0
    """Probes that a filter ruled out: neither row groups were read for them nor hashes searched."""
    cache_hits: int = 0
    """SSTs that this machine had."""
    cache_misses: int = 0
    """SSTs that it did not have: read by ranges, or fetched whole."""

    def add(self, other: "Reads") -> None:
        """Add the other's counts to these."""
        for field in fields(self):
            setattr(self, field.name, getattr(self, field.name) + getattr(other, field.name))


def looked_up(reads: Reads) -> Stats:
    """The counters of look-ups. Their requests are not among them: the store counts those."""
    return Stats(**{name: getattr(reads, name) for name in _OF_LOOK_UPS})
