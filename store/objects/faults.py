"""Storage on a bad day: faults from one seed, so that a failure replays."""

import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from threading import RLock

from ...errors import ObjectExists, Unavailable
from .protocol import ObjectInfo, ObjectStore
from .wrapper import Wrapper

__all__ = ["FaultyStore"]


class FaultyStore(Wrapper):
    """Another store, whose requests fail in the ways that real ones do.

    With one thread, the same seed and the same requests give the same faults. The faults of a write:

    - refused: nothing was done, `Unavailable`;
    - lost: it was done, but the answer was lost, `Unavailable`;
    - late: `Unavailable`, and it is done later, before some other request (a packet that was long under way);
    - echoed: it was done, the answer was lost, and the store's own repetition found the key taken:
      `ObjectExists` for the caller's own put_if_absent. (A put repeats without a trace.)

    Reads are refused. Any request may be slow.

    Args:
        inner: what the requests go to.
        seed: of all choices.
        refused: probability that a request is refused.
        lost: probability that a write's answer is lost.
        late: probability that a write is late.
        echoed: probability that a put_if_absent is echoed.
        slow: probability that a request takes `slow_s` longer.
        slow_s: seconds.
        sleep: waits for that many seconds.
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
        self._rates = {"refused": refused, "lost": lost, "late": late, "echoed": echoed}
        self._slow = slow
        self._slow_s = slow_s
        self._sleep = sleep
        self._under_way: list[Callable[[], None]] = []
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
                self._arrive(self._under_way.pop(0))

    def get(self, key: str) -> bytes:
        """See `ObjectStore`."""
        self._read("get", key)
        return self._inner.get(key)

    def get_range(self, key: str, start: int, length: int) -> bytes:
        """See `ObjectStore`."""
        self._read("get_range", key)
        return self._inner.get_range(key, start, length)

    def put(self, key: str, data: bytes) -> None:
        """See `ObjectStore`."""
        self._write("put", key, lambda: self._inner.put(key, data))

    def put_if_absent(self, key: str, data: bytes) -> None:
        """See `ObjectStore`."""
        fault = self._write("put_if_absent", key, lambda: self._inner.put_if_absent(key, data))
        if fault == "echoed":
            raise ObjectExists(key, self.url)

    def list(self, prefix: str, start_after: str = "") -> Iterator[ObjectInfo]:
        """See `ObjectStore`."""
        self._read("list", prefix)
        return self._inner.list(prefix, start_after)

    def list_folders(self, prefix: str) -> Iterator[str]:
        """See `ObjectStore`."""
        self._read("list_folders", prefix)
        return self._inner.list_folders(prefix)

    def delete(self, key: str) -> None:
        """See `ObjectStore`."""
        self._write("delete", key, lambda: self._inner.delete(key))

    def _read(self, verb: str, key: str) -> None:
        if self._choose("refused") == "refused":
            raise self._unavailable(verb, key)

    def _write(self, verb: str, key: str, request: Callable[[], None]) -> str:
        """Do the request or not; return the fault that the caller has to show, or "" for none."""
        fault = self._choose("refused", "lost", "late", "echoed" if verb == "put_if_absent" else "")
        if fault == "late":
            with self._lock:
                self._under_way.append(request)
        elif fault != "refused":
            request()
        if fault in ("refused", "lost", "late"):
            raise self._unavailable(verb, key)
        return fault

    def _choose(self, *faults: str) -> str:
        """What happens to the next request, "" for nothing; late writes may arrive before it."""
        with self._lock:
            for request in tuple(self._under_way):
                if self._random.random() < 0.5:
                    self._under_way.remove(request)
                    self._arrive(request)
            slow = self._random.random() < self._slow
            point, chosen = self._random.random(), ""
            for fault in filter(None, faults):
                if not chosen and point < self._rates[fault]:
                    chosen = fault
                point -= self._rates[fault]
            self._faults.update(filter(None, (chosen, "slow" if slow else "")))
        if slow:
            self._sleep(self._slow_s)
        return chosen

    @staticmethod
    def _arrive(request: Callable[[], None]) -> None:
        # Its sender has long stopped listening.
        with suppress(ObjectExists):
            request()

    def _unavailable(self, verb: str, key: str) -> Unavailable:
        return Unavailable(f"{self.url} did not answer a {verb} of {key!r} (an injected fault)")
