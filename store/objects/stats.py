"""Counters of requests, bytes and look-ups, in all and by version, and what S3 charges for them in a month.

A version tells of requests and bytes of every process that worked for its stage, look-ups and SSTs: of everything that
came after the version before was written up, and before this one was. So the put of a manifest is counted by the
version after it, and what a runner does after its last commit by none. A version whose writer counts nothing (a clone,
a rescale) has no `stats`; the `totals` go on from it.

The default prices are the list prices of S3 Standard in US East (N. Virginia), first tier, without tax, as known to us;
they may have changed: see https://aws.amazon.com/s3/pricing/. Requests that delete are free, and so is traffic between
S3 and machines of the same region, and all traffic in.
"""

from dataclasses import dataclass, fields
from typing import Annotated

from msgspec import Meta, Struct
from msgspec.structs import astuple

Sum = Annotated[int, Meta(ge=0, le=1 << 62, description="a sum from 0 to 2^62")]
"""A count that is summed up for as long as a stage lives."""


class Stats(Struct, frozen=True, omit_defaults=True):
    """What versions of a stage took, in all processes that worked for it."""

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


HOURS_A_MONTH = 730
"""365 days of 24 hours, a twelfth of them: what AWS calculates with."""
_GB = 1 << 30
_Price = Annotated[float, Meta(ge=0, le=1e12, description="a number that is not negative")]


class Prices(Struct, frozen=True):
    """Prices, in `currency`. A GB is 2^30 bytes, as on S3's bills."""

    get_per_1000: _Price = 0.0004
    """Also for every other request that reads an object."""
    put_per_1000: _Price = 0.005
    list_per_1000: _Price = 0.005
    delete_per_1000: _Price = 0.0
    stored_per_gb_month: _Price = 0.023
    read_per_gb: _Price = 0.0
    """Traffic out of S3: 0.02 and more to another region, 0.09 and less to the internet."""
    currency: Annotated[str, Meta(min_length=1, description="a string such as 'EUR'")] = "USD"


class Cost(Struct, frozen=True):
    """What a month costs."""

    requests: float
    traffic: float
    storage: float

    @property
    def total(self) -> float:
        """All of it."""
        return self.requests + self.traffic + self.storage


def monthly_cost(hourly: Stats, stored_bytes: int, prices: Prices) -> Cost:
    """What a month costs in which `hourly` is taken each hour, and so many bytes lie in the store all the time."""
    thousands = hourly.gets * prices.get_per_1000 + hourly.puts * prices.put_per_1000
    thousands += hourly.lists * prices.list_per_1000 + hourly.deletes * prices.delete_per_1000
    return Cost(
        requests=thousands / 1000 * HOURS_A_MONTH,
        traffic=hourly.bytes_read / _GB * prices.read_per_gb * HOURS_A_MONTH,
        storage=stored_bytes / _GB * prices.stored_per_gb_month,
    )


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
    names = ("keys", "searched", "filtered", "cache_hits", "cache_misses", "row_groups")
    return Stats(**{name: getattr(reads, name) for name in names})
