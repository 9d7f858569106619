"""The object store in memory: for tests and for trying things; the same guarantees as the durable ones.

`FaultyStore` is storage on a bad day: faults from one seed, so that a failure replays.
"""

import random
import time
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import count
from threading import Lock, RLock
from time import time_ns
from typing import TypeVar

from ...errors import ObjectExists, ObjectNotFound, Unavailable
from .protocol import ObjectInfo, ObjectStore, check_key, check_range
from .wrapper import OtherRoots, Wrapper

_numbers = count(1)


class MemoryStore(OtherRoots):
    """Objects of this process, gone with it. Safe to use from many threads."""

    def __init__(self) -> None:
        super().__init__()
        # Two stores are never the same root, so their URLs differ.
        self._url = f"memory:{next(_numbers)}"
        self._lock = Lock()
        self._objects: dict[str, tuple[bytes, int]] = {}
        self._keys: list[str] = []
        """The keys of `_objects` (data and time of writing), sorted: listing 100,000 must not sort them each time."""

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
        self._objects[key] = (bytes(data), time_ns() // 1_000_000)

    def list(self, prefix: str, start_after: str = "") -> Iterator[ObjectInfo]:
        key = self._first(max(prefix, start_after + "\0"))
        while key is not None and key.startswith(prefix):
            if (found := self._objects.get(key)) is not None:
                yield ObjectInfo(key, len(found[0]), found[1])
            key = self._first(key + "\0")

    def list_folders(self, prefix: str) -> Iterator[str]:
        key = self._first(prefix)
        while key is not None and key.startswith(prefix):
            name, slash, _ = key[len(prefix) :].partition("/")
            if slash:
                yield name
            # '0' is the character after '/': the first key that can lie outside the folder.
            key = self._first(f"{prefix}{name}0" if slash else key + "\0")

    def _first(self, at_least: str) -> str | None:
        """The first key from this one on. No key has a NUL, so what follows a key begins with the key and one."""
        with self._lock:
            index = bisect_left(self._keys, at_least)
            return self._keys[index] if index < len(self._keys) else None

    def delete(self, key: str) -> None:
        check_key(key)
        with self._lock:
            if self._objects.pop(key, None) is not None:
                del self._keys[bisect_left(self._keys, key)]


T = TypeVar("T")


class FaultyStore(Wrapper):
    """Another store, whose requests fail in the ways that real ones do.

    With one thread, the same seed and the same requests give the same faults. The faults of a write:

    - refused: nothing was done, `Unavailable`;
    - lost: it was done, but the answer was lost, `Unavailable`;
    - late: `Unavailable`, and it is done later, before some other request (a packet that was long under way);
    - echoed: it was done, the answer was lost, and the store's own repetition found the key taken:
      `ObjectExists` for the caller's own put_if_absent. (A put repeats without a trace.)

    Reads are refused. Any request may be slow, and take `slow_s` longer. The arguments that are named after faults are
    their probabilities; `sleep` waits for so many seconds.
    """

    def __init__(
        self,
        inner: ObjectStore,
        seed: int,
        *,
        refused: float = 0.1,
        lost: float = 0.1,
        late: float = 0.1,
        echoed: float = 0.1,
        slow: float = 0.0,
        slow_s: float = 1.0,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        super().__init__(inner)
        self._random = random.Random(seed)  # noqa: S311 - it has to be repeatable
        self._lock = RLock()
        self._rates = {"refused": refused, "lost": lost, "late": late, "echoed": echoed, "slow": slow}
        self._slow_s = slow_s
        self._sleep = sleep
        self._under_way: list[Callable[[], object]] = []
        self._faults: Counter[str] = Counter()

    @property
    def faults(self) -> dict[str, int]:
        """How many of each were injected so far."""
        with self._lock:
            return dict(self._faults)

    def settle(self) -> None:
        """Let the late writes that are still under way arrive."""
        with self._lock:
            while self._under_way:
                with suppress(ObjectExists):  # its sender has long stopped listening
                    self._under_way.pop(0)()

    def _ask(self, method: str, key: str, request: Callable[[], T], sent: bytes = b"") -> T:
        is_write = method in ("put", "put_if_absent", "delete")
        fault = self._choose("refused", *(("lost", "late") if is_write else ()), "echoed" * (method == "put_if_absent"))
        if fault == "late":
            with self._lock:
                self._under_way.append(request)
        elif fault != "refused":
            result = request()
        if fault in ("refused", "lost", "late"):
            raise Unavailable(f"{self.url} did not answer a {method} of {key!r} (an injected fault)")
        if fault == "echoed":
            raise ObjectExists(key, self.url)
        return result

    def _choose(self, *faults: str) -> str:
        """What happens to the next request, "" for nothing; late writes may arrive before it."""
        with self._lock:
            for request in tuple(self._under_way):
                if self._random.random() < 0.5:
                    self._under_way.remove(request)
                    with suppress(ObjectExists):
                        request()
            slow = self._random.random() < self._rates["slow"]
            point, chosen = self._random.random(), ""
            for fault in filter(None, faults):
                if not chosen and point < self._rates[fault]:
                    chosen = fault
                point -= self._rates[fault]
            self._faults.update(filter(None, (chosen, "slow" if slow else "")))
        if slow:
            self._sleep(self._slow_s)
        return chosen
