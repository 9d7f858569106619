"""Counts of requests to a store and of their bytes: for the figures that the project promises, and for versions.

Another process reads counters while they grow: `SharedCounts` has its numbers in a small memory-mapped file. One file
for each process that counts, all of one purpose in one folder. Nothing is synchronised: a number is one aligned machine
word, which its only writer adds to and readers find whole.
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
"""Keys in one answer of S3 to a listing."""

T = TypeVar("T")


class CountingStore(Wrapper):
    """Another store, with its requests counted by verb as S3 would count them; those to other roots are, too.

    A listing is a request for each 1,000 entries taken, at least one; a request that the store repeats until it is
    answered is one. `on_request` is called for each with the method's name, bytes read and bytes written. Thread-safe.
    """

    def __init__(self, inner: ObjectStore, on_request: Callable[[str, int, int], None] | None = None) -> None:
        super().__init__(inner)
        self._on_request = on_request
        self._lock = Lock()
        # Since the start or the last `reset`: requests by method, sums by field of `Stats`, what `take` gave of these.
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
        """Bytes of objects sent since the start or the last `reset`, also by puts that were refused."""
        return self._totals["bytes_written"]

    def take(self) -> Stats:
        """What came since the last `take` (or the start, or the last `reset`): each request is taken once."""
        with self._lock:
            new = self._totals - self._taken
            self._taken.update(new)
        return Stats(**new)

    def reset(self) -> None:
        """Count from zero."""
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
            # A request that fails is a request.
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
    """Counts into a file of this process alone, which is made, or gone on with. Safe with many threads."""

    def __init__(self, file: Path) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("a+b") as opened:
            opened.truncate(_BYTES)
            self._slots = memoryview(mmap.mmap(opened.fileno(), _BYTES)).cast("q")
        self._lock = Lock()

    def add(self, method: str, read: int, written: int) -> None:
        """Count a request: the `on_request` of a `CountingStore`."""
        with self._lock:
            for field, number in ((VERBS[method], 1), ("bytes_read", read), ("bytes_written", written)):
                self._slots[_SLOTS.index(field)] += number


def shared_stats(folder: Path) -> Stats:
    """The sum of the counters in a folder; zero when there is none."""
    total = Stats()
    for file in sorted(folder.glob("*")):
        with file.open("rb") as opened:
            # One that is just being made has its size in a moment.
            if opened.seek(0, 2) < _BYTES:
                continue
            mapped = mmap.mmap(opened.fileno(), _BYTES, access=mmap.ACCESS_READ)
        with closing(mapped), memoryview(mapped) as view, view.cast("q") as slots:
            total += Stats(**dict(zip(_SLOTS, slots.tolist(), strict=True)))
    return total
