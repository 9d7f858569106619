"""Counters of requests, bytes and look-ups, in total and by version, and their monthly cost on S3.

A version's stats cover the work of all processes for the stage since the previous version's stats. So the put of a
manifest counts for the next version, and a runner's requests after its last commit are not counted. A version whose
writer counts nothing (a clone, a rescale) has no `stats`; `totals` continue after it.

`SharedCounts` keeps its counters in a small memory-mapped file, so that other processes can read them while they grow.
Each counting process has a separate file, and all files of one purpose are in one folder. Processes need no lock: a
counter is one aligned machine word with a single writer, so readers never see half of an update.

The default prices are the list prices of S3 Standard in US East (N. Virginia), first tier, without tax, as last
checked: see https://aws.amazon.com/s3/pricing/. Deletes are free, and so are traffic between S3 and machines of the
same region, and all inbound traffic.
"""

import mmap
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, TypeVar

from msgspec import Meta, Struct
from msgspec.structs import astuple

from ...common import runtime
from .protocol import ObjectStore
from .wrapper import StoreWrapper

Sum = Annotated[int, Meta(ge=0, le=1 << 62, description="a sum from 0 to 2^62")]


class Stats(Struct, frozen=True, omit_defaults=True):
    """Requests, bytes, look-ups and commits during some versions of a stage, summed over all processes."""

    ms: Sum = 0
    """Duration that the counters cover, in ms, without periods in which no runner ran."""
    gets: Sum = 0
    puts: Sum = 0
    lists: Sum = 0
    deletes: Sum = 0
    bytes_read: Sum = 0
    bytes_written: Sum = 0
    keys: Sum = 0
    searched: Sum = 0
    """Number of probes: pairs of a looked-up key and an SST that may have the key."""
    filtered: Sum = 0
    cache_hits: Sum = 0
    cache_misses: Sum = 0
    row_groups: Sum = 0
    flushed_bytes: Sum = 0
    compacted_bytes: Sum = 0
    commits: Sum = 0
    commit_ms: Sum = 0

    def __add__(self, other: "Stats") -> "Stats":
        return Stats(*(own + other_count for own, other_count in zip(astuple(self), astuple(other), strict=True)))

    def __sub__(self, other: "Stats") -> "Stats":
        return Stats(*(own - other_count for own, other_count in zip(astuple(self), astuple(other), strict=True)))

    @property
    def requests(self) -> int:
        return self.gets + self.puts + self.lists + self.deletes


HOURS_A_MONTH = 730
_GB = 1 << 30
_Price = Annotated[float, Meta(ge=0, le=1e12, description="a number that is not negative")]


class Prices(Struct, frozen=True):
    """Prices of S3 requests, storage and traffic, in `currency`. A GB is 2^30 bytes, as on S3's bills."""

    get_per_1000: _Price = 0.0004
    put_per_1000: _Price = 0.005
    list_per_1000: _Price = 0.005
    delete_per_1000: _Price = 0.0
    stored_per_gb_month: _Price = 0.023
    read_per_gb: _Price = 0.0
    """Price of a GB of outbound traffic. On S3, 0.02 or more to another region, up to 0.09 to the internet."""
    currency: Annotated[str, Meta(min_length=1, description="a string such as 'EUR'")] = "USD"


class Cost(Struct, frozen=True):
    """Monthly cost: requests, storage and traffic."""

    requests: float
    traffic: float
    storage: float

    @property
    def total(self) -> float:
        return self.requests + self.traffic + self.storage


def monthly_cost(hourly: Stats, stored_bytes: int, prices: Prices) -> Cost:
    """Return the monthly cost. `hourly` has the requests and traffic per hour; `stored_bytes` are stored all month."""
    thousands = hourly.gets * prices.get_per_1000 + hourly.puts * prices.put_per_1000
    thousands += hourly.lists * prices.list_per_1000 + hourly.deletes * prices.delete_per_1000
    return Cost(
        requests=thousands / 1000 * HOURS_A_MONTH,
        traffic=hourly.bytes_read / _GB * prices.read_per_gb * HOURS_A_MONTH,
        storage=stored_bytes / _GB * prices.stored_per_gb_month,
    )


@dataclass(slots=True)
class ReadCounters:
    """Counters of look-ups. Not thread-safe: use one object per thread, and `add` them up."""

    requests: int = 0
    round_trips: int = 0
    bytes: int = 0
    row_groups: int = 0
    touched_bytes: int = 0
    """Bytes of all row groups with a searched key in their hash range, including row groups that a filter excluded."""
    keys: int = 0
    searched: int = 0
    """Number of probes. A probe searches one SST for one key; the search for a key ends at the first SST with the key.
    """
    filtered: int = 0
    cache_hits: int = 0
    cache_misses: int = 0

    def add(self, other: "ReadCounters") -> None:
        for field in fields(self):
            setattr(self, field.name, getattr(self, field.name) + getattr(other, field.name))


def look_up_stats(reads: ReadCounters) -> Stats:
    names = ("keys", "searched", "filtered", "cache_hits", "cache_misses", "row_groups")
    return Stats(**{name: getattr(reads, name) for name in names})


COUNTER_BY_METHOD = {
    "get": "gets",
    "get_range": "gets",
    "put": "puts",
    "put_if_absent": "puts",
    "list": "lists",
    "list_folders": "lists",
    "delete": "deletes",
}

_KEYS_PER_PAGE = 1000

T = TypeVar("T")


class CountingStore(StoreWrapper):
    """Store wrapper that counts requests by S3 verb. Requests to other store roots are counted, too.

    A listing counts one request for each 1,000 entries consumed, and at least one. A request that the inner store
    retries counts once. `on_request` is called for each request with the method's name, bytes read and bytes written.
    Thread-safe.
    """

    def __init__(self, inner: ObjectStore, on_request: Callable[[str, int, int], None] | None = None) -> None:
        super().__init__(inner)
        self._on_request = on_request
        self._lock = runtime.lock()
        # Since the last `reset`: requests by method, sums by field of `Stats`, and sums that `take` returned.
        self._counts, self._totals, self._taken = Counter[str](), Counter[str](), Counter[str]()

    @property
    def counts(self) -> dict[str, int]:
        with self._lock:
            return dict(self._counts)

    @property
    def requests(self) -> int:
        with self._lock:
            return self._counts.total()

    @property
    def bytes_read(self) -> int:
        return self._totals["bytes_read"]

    @property
    def bytes_written(self) -> int:
        return self._totals["bytes_written"]

    def take_stats(self) -> Stats:
        """Return the requests and bytes since the previous call of `take_stats` or `reset`, or since the start."""
        with self._lock:
            new = self._totals - self._taken
            self._taken.update(new)
        return Stats(**new)

    def reset(self) -> None:
        with self._lock:
            for counter in (self._counts, self._totals, self._taken):
                counter.clear()

    def _count(self, method: str, *, read: int = 0, written: int = 0) -> None:
        with self._lock:
            self._counts[method] += 1
            self._totals.update({COUNTER_BY_METHOD[method]: 1, "bytes_read": read, "bytes_written": written})
        if self._on_request is not None:
            self._on_request(method, read, written)

    def _forward(self, method: str, key: str, request: Callable[[], Any], sent: bytes = b"") -> Any:
        if COUNTER_BY_METHOD[method] == "lists":
            return self._pages(method, request())
        result = b""
        try:
            result = request()
        finally:
            # Failed requests count, too.
            self._count(method, read=len(result or b""), written=len(sent))
        return result

    def _pages(self, method: str, entries: Iterator[T]) -> Iterator[T]:
        self._count(method)
        for number, entry in enumerate(entries):
            if number and number % _KEYS_PER_PAGE == 0:
                self._count(method)
            yield entry


_SLOTS = ("gets", "puts", "lists", "deletes", "bytes_read", "bytes_written")
_SLOTS_BYTES = 8 * len(_SLOTS)


class SharedCounts:
    """Counters of this process in a memory-mapped file. Counting continues from an existing file. Thread-safe."""

    def __init__(self, file: Path) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("a+b") as opened:
            opened.truncate(_SLOTS_BYTES)
            self._slots = memoryview(mmap.mmap(opened.fileno(), _SLOTS_BYTES)).cast("q")
        self._lock = runtime.lock()

    def add(self, method: str, read: int, written: int) -> None:
        with self._lock:
            for field, number in ((COUNTER_BY_METHOD[method], 1), ("bytes_read", read), ("bytes_written", written)):
                self._slots[_SLOTS.index(field)] += number


def sum_shared_counts(folder: Path) -> Stats:
    total = Stats()
    for file in sorted(folder.glob("*")):
        with file.open("rb") as opened:
            # A file that is just being created may not have its full size yet.
            if opened.seek(0, 2) < _SLOTS_BYTES:
                continue
            mapped = mmap.mmap(opened.fileno(), _SLOTS_BYTES, access=mmap.ACCESS_READ)
        with closing(mapped), memoryview(mapped) as view, view.cast("q") as slots:
            total += Stats(**dict(zip(_SLOTS, slots.tolist(), strict=True)))
    return total
