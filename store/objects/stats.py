"""Counters of requests, bytes and look-ups, in total and by version, and their monthly cost on S3.

The stats of a version cover every process that worked for its stage since the stats of the version before were
written. So the put of a manifest is counted by the next version, and a runner's requests after its last commit are not
counted. A version whose writer counts nothing (a clone, a rescale) has no `stats`; `totals` continue after it.

The default prices are the list prices of S3 Standard in US East (N. Virginia), first tier, without tax, as last
checked: see https://aws.amazon.com/s3/pricing/. Deletes are free, and so are traffic between S3 and machines of the
same region, and all inbound traffic.
"""

from dataclasses import dataclass, fields
from typing import Annotated

from msgspec import Meta, Struct
from msgspec.structs import astuple

Sum = Annotated[int, Meta(ge=0, le=1 << 62, description="a sum from 0 to 2^62")]
"""A count that only grows during the life of a stage."""


class Stats(Struct, frozen=True, omit_defaults=True):
    """Requests, bytes, look-ups and commits of some versions of a stage, by all processes that worked for it."""

    ms: Sum = 0
    """Duration that the counters cover, in ms; time without a runner is not included."""
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
    """Probes that a filter ruled out."""
    cache_hits: Sum = 0
    """Searched SSTs that were in the machine's cache."""
    cache_misses: Sum = 0
    row_groups: Sum = 0
    """Row groups read from the store by ranges."""
    flushed_bytes: Sum = 0
    """Bytes of new SSTs of level 0, written by batches."""
    compacted_bytes: Sum = 0
    """Bytes of new SSTs of other levels, written by compactions."""
    commits: Sum = 0
    """Number of manifest puts that `commit_ms` covers."""
    commit_ms: Sum = 0

    def __add__(self, other: "Stats") -> "Stats":
        return Stats(*(own + other_count for own, other_count in zip(astuple(self), astuple(other), strict=True)))

    def __sub__(self, other: "Stats") -> "Stats":
        return Stats(*(own - other_count for own, other_count in zip(astuple(self), astuple(other), strict=True)))

    @property
    def requests(self) -> int:
        return self.gets + self.puts + self.lists + self.deletes


HOURS_A_MONTH = 730
"""Hours of an average month (365 days / 12), as AWS calculates."""
_GB = 1 << 30
_Price = Annotated[float, Meta(ge=0, le=1e12, description="a number that is not negative")]


class Prices(Struct, frozen=True):
    """Prices, in `currency`. A GB is 2^30 bytes, as on S3's bills."""

    get_per_1000: _Price = 0.0004
    """Price of GET and every other request that reads an object."""
    put_per_1000: _Price = 0.005
    list_per_1000: _Price = 0.005
    delete_per_1000: _Price = 0.0
    stored_per_gb_month: _Price = 0.023
    read_per_gb: _Price = 0.0
    """Outbound traffic: 0.02 and more to another region, 0.09 and less to the internet."""
    currency: Annotated[str, Meta(min_length=1, description="a string such as 'EUR'")] = "USD"


class Cost(Struct, frozen=True):
    """Cost of a month, by kind."""

    requests: float
    traffic: float
    storage: float

    @property
    def total(self) -> float:
        return self.requests + self.traffic + self.storage


def monthly_cost(hourly: Stats, stored_bytes: int, prices: Prices) -> Cost:
    """Return the cost of a month with `hourly` requests and traffic each hour and `stored_bytes` stored throughout."""
    thousands = hourly.gets * prices.get_per_1000 + hourly.puts * prices.put_per_1000
    thousands += hourly.lists * prices.list_per_1000 + hourly.deletes * prices.delete_per_1000
    return Cost(
        requests=thousands / 1000 * HOURS_A_MONTH,
        traffic=hourly.bytes_read / _GB * prices.read_per_gb * HOURS_A_MONTH,
        storage=stored_bytes / _GB * prices.stored_per_gb_month,
    )


@dataclass(slots=True)
class Reads:
    """Counters of look-ups. Each starts at 0 and only grows. Not locked: use one object per thread, then `add`."""

    requests: int = 0
    round_trips: int = 0
    """Round trips to the store: concurrent requests count once."""
    bytes: int = 0
    """Bytes read: pages, footers, indexes, filters, gaps between them, whole SSTs."""
    row_groups: int = 0
    """Row groups read from the store by ranges, in part or whole."""
    touched_bytes: int = 0
    """Bytes of the row groups that keys fall in by their hash, also those that a filter ruled out."""
    keys: int = 0
    searched: int = 0
    """Probes: pairs of a key and an SST whose range of hashes has the key's, newest first until the key is found."""
    filtered: int = 0
    """Probes that a filter ruled out: no row group was read, and no hashes were searched."""
    cache_hits: int = 0
    """SSTs that were in this machine's cache."""
    cache_misses: int = 0
    """SSTs that were not in the cache: read by ranges, or fetched whole."""

    def add(self, other: "Reads") -> None:
        """Add the counts of `other`."""
        for field in fields(self):
            setattr(self, field.name, getattr(self, field.name) + getattr(other, field.name))


def looked_up(reads: Reads) -> Stats:
    """Return the look-up counters as `Stats`. Requests are left out: the store counts those."""
    names = ("keys", "searched", "filtered", "cache_hits", "cache_misses", "row_groups")
    return Stats(**{name: getattr(reads, name) for name in names})
