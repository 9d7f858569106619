"""What look-ups took: counters that a look-up adds to, summed over its SSTs."""

from dataclasses import dataclass, fields


@dataclass(slots=True)
class Reads:
    """Counters of look-ups. Each starts at 0 and only grows. Not locked: one for each thread, then `add`."""

    requests: int = 0
    """Requests to the store."""
    bytes: int = 0
    """Bytes that they brought: row groups, footers, filters, gaps between them, whole SSTs."""
    row_groups: int = 0
    """Row groups read from the store by ranges."""
    touched_bytes: int = 0
    """Bytes of the row groups that keys fall in by their hash, also where a filter ruled them out."""
    row_groups_total: int = 0
    """Row groups of all SSTs that were read by ranges."""
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
