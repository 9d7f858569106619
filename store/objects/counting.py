"""Counters of requests to a store and of their bytes, for status, benchmarks and the stats of versions.

`SharedCounts` keeps its counters in a small memory-mapped file, so that other processes can read them while they grow:
one file for each counting process, all files of one purpose in one folder. No lock is needed between processes: a
counter is one aligned machine word with a single writer, so readers never see half of an update.
"""

import mmap
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from threading import Lock
from typing import Any, TypeVar

from .protocol import ObjectStore
from .stats import Stats
from .wrapper import Wrapper

VERBS = {
    "get": "gets",
    "get_range": "gets",
    "put": "puts",
    "put_if_absent": "puts",
    "list": "lists",
    "list_folders": "lists",
    "delete": "deletes",
}
"""S3's verb for each method of a store, as `Stats` names it."""

_PAGE = 1000
"""Keys in one page of an S3 listing."""

T = TypeVar("T")


class CountingStore(Wrapper):
    """Wrapper that counts the requests to a store, and to the stores at other roots, by S3 verb.

    A listing counts one request for each 1,000 entries consumed, and at least one. A request that the inner store
    retries counts once. `on_request` is called for each request with the method's name, bytes read and bytes written.
    Thread-safe.
    """

    def __init__(self, inner: ObjectStore, on_request: Callable[[str, int, int], None] | None = None) -> None:
        super().__init__(inner)
        self._on_request = on_request
        self._lock = Lock()
        # Since the last `reset`: requests by method, sums by field of `Stats`, and sums that `take` returned.
        self._counts, self._totals, self._taken = Counter[str](), Counter[str](), Counter[str]()

    @property
    def counts(self) -> dict[str, int]:
        """Requests since the start or the last `reset`, by the name of the method."""
        with self._lock:
            return dict(self._counts)

    @property
    def requests(self) -> int:
        """All requests since the start or the last `reset`."""
        with self._lock:
            return self._counts.total()

    @property
    def bytes_read(self) -> int:
        """Bytes of objects received since the start or the last `reset`."""
        return self._totals["bytes_read"]

    @property
    def bytes_written(self) -> int:
        """Bytes of objects sent since the start or the last `reset`, refused puts included."""
        return self._totals["bytes_written"]

    def take(self) -> Stats:
        """Return the requests and bytes since the last `take`, `reset` or start; each request is returned once."""
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
            self._totals.update({VERBS[method]: 1, "bytes_read": read, "bytes_written": written})
        if self._on_request is not None:
            self._on_request(method, read, written)

    def _ask(self, method: str, key: str, request: Callable[[], Any], sent: bytes = b"") -> Any:
        if VERBS[method] == "lists":
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
            if number and number % _PAGE == 0:
                self._count(method)
            yield entry


_SLOTS = ("gets", "puts", "lists", "deletes", "bytes_read", "bytes_written")
_BYTES = 8 * len(_SLOTS)


class SharedCounts:
    """Counters in a memory-mapped file of this process, created or continued. Safe to use from many threads."""

    def __init__(self, file: Path) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("a+b") as opened:
            opened.truncate(_BYTES)
            self._slots = memoryview(mmap.mmap(opened.fileno(), _BYTES)).cast("q")
        self._lock = Lock()

    def add(self, method: str, read: int, written: int) -> None:
        """Count one request; usable as `on_request` of a `CountingStore`."""
        with self._lock:
            for field, number in ((VERBS[method], 1), ("bytes_read", read), ("bytes_written", written)):
                self._slots[_SLOTS.index(field)] += number


def shared_stats(folder: Path) -> Stats:
    """Return the sum of the counters in a folder; zero when the folder is empty or missing."""
    total = Stats()
    for file in sorted(folder.glob("*")):
        with file.open("rb") as opened:
            # A file that is just being created may not have its full size yet.
            if opened.seek(0, 2) < _BYTES:
                continue
            mapped = mmap.mmap(opened.fileno(), _BYTES, access=mmap.ACCESS_READ)
        with closing(mapped), memoryview(mapped) as view, view.cast("q") as slots:
            total += Stats(**dict(zip(_SLOTS, slots.tolist(), strict=True)))
    return total
