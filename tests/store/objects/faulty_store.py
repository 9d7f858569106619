"""A store with random faults from a seed, so that a failure can be reproduced."""

import random
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from threading import RLock
from typing import TypeVar

from slackwater.errors import ObjectExists, Unavailable
from slackwater.store.objects.protocol import ObjectStore
from slackwater.store.objects.wrapper import StoreWrapper

T = TypeVar("T")


class FaultyStore(StoreWrapper):
    """A wrapper of another store. Its requests fail as requests to real stores do.

    With one thread, the same seed and the same requests give the same faults. The faults of a write are:

    - refused: raise `Unavailable` without writing;
    - lost: write, but raise `Unavailable`, as if the answer had been lost;
    - late: raise `Unavailable`, and write later, before another request (like a packet that was delayed for long);
    - echoed: write, and let the caller's put_if_absent raise `ObjectExists`, as if the answer had been lost and the
      store's own retry had found the object. (A put has no such fault, because its retry succeeds.)

    The only fault of a read is `Unavailable`. Any request may also be slow: it then takes `slow_s` longer. The
    arguments named after faults are their probabilities; `sleep` waits for a number of seconds.
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
        self._random = random.Random(seed)
        self._lock = RLock()
        self._rates = {"refused": refused, "lost": lost, "late": late, "echoed": echoed, "slow": slow}
        self._slow_s = slow_s
        self._sleep = sleep
        self._under_way: list[Callable[[], object]] = []
        self._faults: Counter[str] = Counter()

    @property
    def faults(self) -> dict[str, int]:
        """Return the number of injected faults by kind."""
        with self._lock:
            return dict(self._faults)

    def settle(self) -> None:
        """Complete pending late writes."""
        with self._lock:
            while self._under_way:
                with suppress(ObjectExists):  # its sender has long stopped listening
                    self._under_way.pop(0)()

    def _forward(self, method: str, key: str, request: Callable[[], T], sent: bytes = b"") -> T:
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
        """Return the fault of the next request, or "" for none. Late writes may be done before it."""
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
