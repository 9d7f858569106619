"""Object store in memory, for tests and experiments, with the guarantees of the durable stores."""

from bisect import bisect_left, insort
from collections.abc import Iterator
from itertools import count

from ...common import runtime
from ...errors import ObjectExists, ObjectNotFound
from .protocol import ObjectInfo, check_key, check_range
from .wrapper import BaseStore

_store_numbers = count(1)


class MemoryStore(BaseStore):
    """Objects in the memory of this process. Thread-safe."""

    def __init__(self, url: str = "") -> None:
        super().__init__()
        # Two stores never share a root, so their URLs differ.
        self._url = url or f"memory:{next(_store_numbers)}"
        self._lock = runtime.lock()
        self._objects: dict[str, tuple[bytes, int]] = {}
        self._keys: list[str] = []

    @property
    def url(self) -> str:
        return self._url

    def get(self, key: str) -> bytes:
        check_key(key)
        try:
            return self._objects[key][0]
        except KeyError:
            raise ObjectNotFound(key, self._url) from None

    def get_range(self, key: str, start: int, length: int) -> bytes:
        check_range(start, length)
        return self.get(key)[start : start + length]

    def put(self, key: str, data: bytes) -> None:
        check_key(key)
        with self._lock:
            self._write(key, data)

    def put_if_absent(self, key: str, data: bytes) -> None:
        check_key(key)
        with self._lock:
            if key in self._objects:
                raise ObjectExists(key, self._url)
            self._write(key, data)

    def _write(self, key: str, data: bytes) -> None:
        if key not in self._objects:
            insort(self._keys, key)
        # bytes() copies a caller's bytearray, which may change later.
        self._objects[key] = (bytes(data), runtime.time_ns() // 1_000_000)

    def list(self, prefix: str, start_after: str = "") -> Iterator[ObjectInfo]:
        key = self._first_key(max(prefix, start_after + "\0"))
        while key is not None and key.startswith(prefix):
            if (stored := self._objects.get(key)) is not None:
                yield ObjectInfo(key, len(stored[0]), stored[1])
            key = self._first_key(key + "\0")

    def list_folders(self, prefix: str) -> Iterator[str]:
        key = self._first_key(prefix)
        while key is not None and key.startswith(prefix):
            name, slash, _ = key[len(prefix) :].partition("/")
            if slash:
                yield name
            # '0' is the character after '/': the first key that can lie outside the folder.
            key = self._first_key(f"{prefix}{name}0" if slash else key + "\0")

    def _first_key(self, at_least: str) -> str | None:
        with self._lock:
            index = bisect_left(self._keys, at_least)
            return self._keys[index] if index < len(self._keys) else None

    def delete(self, key: str) -> None:
        check_key(key)
        with self._lock:
            if self._objects.pop(key, None) is not None:
                del self._keys[bisect_left(self._keys, key)]
