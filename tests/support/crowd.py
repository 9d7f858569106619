"""Threads on a simulated clock that advances while all of them sleep, so that runs are reproducible."""

from collections.abc import Callable, Iterable
from heapq import heappop, heappush
from threading import Condition, RLock, Thread, local


class Crowd:
    """Runs jobs as threads, one at a time: always the one that wakes first, or the first in the list if several do."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._lock = RLock()
        self._turns: list[Condition] = []
        """One condition per thread, so that only the next thread is woken."""
        self._asleep: list[tuple[float, int]] = []
        self._awake: int | None = None
        self._me = local()

    def clock(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        with self._lock:
            heappush(self._asleep, (self.now_s + seconds, self._me.number))
            self._pass_on()
            self._wait()

    def run(self, jobs: Iterable[Callable[[], None]]) -> None:
        """Run the jobs until all of them have ended."""
        threads = [Thread(target=self._one, args=(number, job)) for number, job in enumerate(jobs)]
        self._turns = [Condition(self._lock) for _ in threads]
        self._asleep = [(0.0, number) for number in range(len(threads))]
        for thread in threads:
            thread.start()
        with self._lock:
            self._pass_on()
        for thread in threads:
            thread.join()

    def _one(self, number: int, job: Callable[[], None]) -> None:
        self._me.number = number
        try:
            with self._lock:
                self._wait()
            job()
        finally:
            with self._lock:
                self._pass_on()

    def _wait(self) -> None:
        self._turns[self._me.number].wait_for(lambda: self._awake == self._me.number)

    def _pass_on(self) -> None:
        if self._asleep:
            self.now_s, self._awake = heappop(self._asleep)
            self._turns[self._awake].notify()
