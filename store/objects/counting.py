"""How many requests something takes: the figures that the project promises are counted here, and what versions say."""

from collections import Counter
from collections.abc import Callable, Iterator
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
    answered is one. `on_request` is called for each with the method's name, bytes read and bytes written. Safe to use
    from many threads.
    """

    def __init__(self, inner: ObjectStore, on_request: Callable[[str, int, int], None] | None = None) -> None:
        super().__init__(inner)
        self._on_request = on_request
        self._lock = Lock()
        self._counts = Counter[str]()
        """Requests by method, since the start or the last `reset`."""
        self._bytes = Counter[str]()
        """Likewise, by direction."""
        self._not_taken = Counter[str]()
        """By field of `Stats`, since the last `take`."""

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
        return self._bytes["read"]

    @property
    def bytes_written(self) -> int:
        """Bytes of objects sent since the start or the last `reset`, also by puts that were refused."""
        return self._bytes["written"]

    def take(self) -> Stats:
        """What came since the last `take` (or the start, or the last `reset`): each request is taken once."""
        with self._lock:
            taken = Stats(**self._not_taken)
            self._not_taken.clear()
        return taken

    def reset(self) -> None:
        """Count from zero."""
        with self._lock:
            for counter in (self._counts, self._bytes, self._not_taken):
                counter.clear()

    def _count(self, method: str, *, read: int = 0, written: int = 0) -> None:
        with self._lock:
            self._counts[method] += 1
            self._bytes["read"] += read
            self._bytes["written"] += written
            self._not_taken[VERBS[method]] += 1
            self._not_taken["bytes_read"] += read
            self._not_taken["bytes_written"] += written
        if self._on_request is not None:
            self._on_request(method, read, written)

    def _ask(self, method: str, key: str, request: Callable[[], Any], sent: bytes = b"") -> Any:
        result = b""
        try:
            result = request()
        finally:
            # A request that fails is a request.
            if method not in ("list", "list_folders"):
                self._count(method, read=len(result or b""), written=len(sent))
        return self._pages(method, result) if method in ("list", "list_folders") else result

    def _pages(self, method: str, entries: Iterator[T]) -> Iterator[T]:
        self._count(method)
        for number, entry in enumerate(entries):
            if number and number % _PAGE == 0:
                self._count(method)
            yield entry
