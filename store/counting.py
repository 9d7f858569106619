"""How many requests something takes: the figures that the project promises are counted here."""

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Lock
from typing import TypeVar

from .objects import ObjectInfo, ObjectStore

__all__ = ["CountingStore"]

_PAGE = 1000
"""Keys in one answer of S3 to a listing."""


T = TypeVar("T")


class CountingStore:
    """Another store, with its requests counted by verb as S3 would count them.

    A listing is a request for each 1,000 entries taken, at least one. Safe to use from many threads.
    """

    def __init__(self, inner: ObjectStore) -> None:
        self._inner = inner
        self._lock = Lock()
        self._counts: Counter[str] = Counter()
        self._bytes_read = 0
        self._bytes_written = 0

    @property
    def url(self) -> str:
        """The inner store's."""
        return self._inner.url

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
        return self._bytes_read

    @property
    def bytes_written(self) -> int:
        """Bytes of objects sent since the start or the last `reset`, also by puts that were refused."""
        return self._bytes_written

    def reset(self) -> None:
        """Count from zero."""
        with self._lock:
            self._counts.clear()
            self._bytes_read = self._bytes_written = 0

    def _count(self, verb: str, *, read: int = 0, written: int = 0) -> None:
        with self._lock:
            self._counts[verb] += 1
            self._bytes_read += read
            self._bytes_written += written

    def get(self, key: str) -> bytes:
        """See `ObjectStore`."""
        return self._read("get", lambda: self._inner.get(key))

    def get_range(self, key: str, start: int, length: int) -> bytes:
        """See `ObjectStore`."""
        return self._read("get_range", lambda: self._inner.get_range(key, start, length))

    def _read(self, verb: str, request: Callable[[], bytes]) -> bytes:
        # A request that fails is a request.
        data = b""
        try:
            data = request()
        finally:
            self._count(verb, read=len(data))
        return data

    def put(self, key: str, data: bytes) -> None:
        """See `ObjectStore`."""
        self._count("put", written=len(data))
        self._inner.put(key, data)

    def put_if_absent(self, key: str, data: bytes) -> None:
        """See `ObjectStore`."""
        self._count("put_if_absent", written=len(data))
        self._inner.put_if_absent(key, data)

    def list(self, prefix: str, start_after: str = "") -> Iterator[ObjectInfo]:
        """See `ObjectStore`."""
        return self._pages("list", self._inner.list(prefix, start_after))

    def list_folders(self, prefix: str) -> Iterator[str]:
        """See `ObjectStore`."""
        return self._pages("list_folders", self._inner.list_folders(prefix))

    def _pages(self, verb: str, entries: Iterator[T]) -> Iterator[T]:
        self._count(verb)
        for number, entry in enumerate(entries):
            if number and number % _PAGE == 0:
                self._count(verb)
            yield entry

    def delete(self, key: str) -> None:
        """See `ObjectStore`."""
        self._count("delete")
        self._inner.delete(key)

    def local_path(self, key: str) -> Path | None:
        """See `ObjectStore`; not a request."""
        return self._inner.local_path(key)
