"""Scheduler of a simulation: only one thread runs at a time, the clock jumps, and random numbers come from one seed.

Threads are real, and pass control to each other at calls of `common.runtime`, of the store and of Kafka. The seed
determines which thread runs next. When all threads wait, time jumps to the next timer. So equal seeds give equal runs.

For half of the seeds, the order is uniformly random. The remaining seeds follow S. Burckhardt et al., A Randomized
Scheduler with Probabilistic Guarantees of Finding Bugs (ASPLOS 2010): threads have priorities, which change at a few
random steps.
"""

from __future__ import annotations

import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable, Collection
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from functools import partial
from hashlib import blake2b
from random import Random
from typing import Any, Self

from ...common.runtime import Runtime

START_MS = 1_767_225_600_000
"""Simulated time at the start: 2026-01-01T00:00:00Z."""
_EXPECTED_STEPS, _CHANGE_POINTS = 20_000, 6
_MAX_STEPS = 500_000
_TAIL = 60
_TICK_S = 1e-6
"""Time that each reading of the clock takes, so that a loop until a deadline ends."""


class Killed(BaseException):
    """Raised in the threads of a process that was killed, at their next call of the runtime, the store or Kafka."""


class Stuck(Exception):
    """All threads wait for each other, or they run without end. The message contains their stacks."""


@dataclass(eq=False)
class SimulatedProcess:
    """Simulated process: a group of threads that are killed together, and a wall clock that may be wrong."""

    name: str
    is_alive: bool = True
    skew_ms: int = 0
    asleep_until: float = 0.0
    """Time until which no thread of the process runs."""
    executors: dict[str, Executor] = field(default_factory=dict)
    ended: BaseException | None = None
    """Error that ended the process; None while it runs, or after a normal end."""


@dataclass(eq=False)
class _Thread:
    name: str
    process: SimulatedProcess
    priority: float
    gate: threading.Lock = field(default_factory=threading.Lock)
    ready: Callable[[], bool] | None = None
    """Condition for which the thread waits; None if it can continue."""
    deadline: float | None = None
    is_done: bool = False
    real: threading.Thread | None = None

    def can_run(self, now: float) -> bool:
        return now >= self.process.asleep_until and (
            not self.process.is_alive
            or (self.deadline is not None and self.deadline <= now)
            or (self.ready is None and self.deadline is None)
            or (self.ready is not None and self.ready())
        )


class Scheduler(Runtime):
    """Implements `Runtime` for simulated processes."""

    def __init__(self, seed: int) -> None:
        self.random = Random(f"schedule {seed}")
        self._bytes = Random(f"bytes {seed}")
        self.now = 0.0
        """Simulated seconds since the start."""
        self.steps = 0
        self._changes = {self.random.randrange(_EXPECTED_STEPS) for _ in range(_CHANGE_POINTS)} if seed % 2 else None
        self._digest, self._tail = blake2b(digest_size=8), deque[str](maxlen=_TAIL)
        self._stuck: Stuck | None = None
        self.on_kill: Callable[[SimulatedProcess], None] = lambda _process: None
        self.thread_errors: list[tuple[str, BaseException]] = []
        """Errors that ended a thread."""
        self.machine = SimulatedProcess("machine")
        """Process that runs the simulation itself. It is never killed."""
        self._threads = [_Thread("main", self.machine, 1.0)]
        self._current = self._threads[0]
        self._current.gate.acquire()

    # Processes

    def spawn(self, name: str, work: Callable[[], object], *, skew_ms: int = 0) -> SimulatedProcess:
        """Start a process that calls `work`. When `work` returns, the process's remaining threads end as well."""
        process = SimulatedProcess(name, skew_ms=skew_ms)

        def run() -> None:
            try:
                work()
            except Killed:
                pass
            except BaseException as error:
                process.ended = error
            finally:
                process.is_alive = False

        self._new_thread(process, run, name).start()
        return process

    def kill(self, process: SimulatedProcess) -> None:
        self.note("kill", process.name)
        self.on_kill(process)
        process.is_alive, process.asleep_until = False, 0.0

    def suspend(self, process: SimulatedProcess, seconds: float) -> None:
        """Suspend all threads of a process for some seconds, as on a machine that sleeps."""
        self.note("suspend", process.name, f"{seconds:.0f}")
        process.asleep_until = self.now + seconds

    @property
    def process(self) -> SimulatedProcess:
        return self._current.process

    def note(self, *words: object) -> None:
        """Add an event to the trace."""
        line = f"{self.now:.6f} {self._current.name}: {' '.join(map(str, words))}"
        self._digest.update(line.encode())
        self._tail.append(line)

    @property
    def trace_hash(self) -> str:
        return self._digest.hexdigest()

    @property
    def tail(self) -> str:
        return "\n".join(self._tail)

    def finish(self) -> None:
        """Kill all processes, and wait until their threads have ended."""
        for thread in self._threads:
            if thread is not self._current:
                thread.process.is_alive, thread.process.asleep_until = False, 0.0
        main = self._threads[0]
        main.ready, main.deadline = (lambda: len(self._threads) == 1), None
        self._hand_over(main)

    # Waiting

    def pause(self) -> None:
        """Let a different thread run."""
        self.wait_until(None)

    def wait_until(self, ready: Callable[[], bool] | None, timeout: float | None = None) -> bool:
        """Wait until `ready` returns True, or for `timeout` seconds. Returns the last result of `ready`."""
        thread = self._current
        self._check(thread)
        thread.ready = ready
        thread.deadline = None if timeout is None else self.now + max(timeout, 0.0)
        self._hand_over(thread)
        self._check(thread)
        is_ready = ready is None or ready()
        thread.ready = thread.deadline = None
        return is_ready

    def _check(self, thread: _Thread) -> None:
        if self._stuck is not None and thread is self._threads[0]:
            raise self._stuck
        if not thread.process.is_alive:
            raise Killed(thread.process.name)

    def _hand_over(self, thread: _Thread) -> None:
        chosen = self._choose()
        if chosen is not thread:
            self._current = chosen
            chosen.gate.release()
            if not thread.is_done:
                thread.gate.acquire()

    def _choose(self) -> _Thread:
        self.steps += 1
        if self.steps > _MAX_STEPS:
            return self._give_up(f"{self.steps:,} steps without an end")
        while not (able := [thread for thread in self._threads if thread.can_run(self.now)]):
            timers = [thread.deadline for thread in self._threads if thread.deadline is not None]
            timers += [thread.process.asleep_until for thread in self._threads]
            if not (coming := [at for at in timers if at > self.now]):
                return self._give_up("all threads wait for each other")
            self.now = min(coming)
        if self._changes is None:
            return able[0] if len(able) == 1 else self.random.choice(able)
        if self.steps in self._changes:
            self._current.priority = -self.random.random()
        return max(able, key=lambda thread: thread.priority)

    def _give_up(self, why: str) -> _Thread:
        self._stuck = self._stuck or Stuck(f"{why}\n\n{self.stacks()}")
        self.steps = 0
        for thread in self._threads[1:]:
            thread.process.is_alive, thread.process.asleep_until = False, 0.0
        return self._threads[0]

    def stacks(self) -> str:
        frames = sys._current_frames()
        parts = []
        for thread in self._threads:
            frame = frames.get(thread.real.ident or 0) if thread.real is not None else None
            if frame is not None:
                parts.append(f"{thread.name} ({thread.process.name}):\n{''.join(traceback.format_stack(frame)[-8:])}")
        return "\n".join(parts)

    def _new_thread(self, process: SimulatedProcess, work: Callable[[], object], name: str) -> SimulatedThread:
        return SimulatedThread(self, process, work, name)

    def _start(self, simulated: SimulatedThread) -> None:
        thread = _Thread(simulated.name, simulated.process, self.random.random())
        thread.gate.acquire()

        def run() -> None:
            thread.gate.acquire()
            try:
                self._check(thread)
                simulated.work()
            except Killed:
                pass
            except BaseException as error:
                self.thread_errors.append((f"{thread.process.name}/{thread.name}", error))
            finally:
                # Generators that end with their last reference may wait: they end while this thread is the current one.
                simulated.work = _never
                simulated.is_over = thread.is_done = True
                self._threads.remove(thread)
                self._hand_over(thread)

        thread.real = threading.Thread(target=run, name=simulated.name, daemon=True)
        self._threads.append(thread)
        thread.real.start()

    # The runtime

    def monotonic(self) -> float:
        self.now += _TICK_S
        return self.now

    def boot_time(self) -> float:
        return self.monotonic()

    def time_ns(self) -> int:
        self.now += _TICK_S
        return (START_MS + self._current.process.skew_ms) * 1_000_000 + round(self.now * 1e9)

    def sleep(self, seconds: float) -> None:
        self.wait_until(_never, seconds)

    def random_bytes(self, count: int) -> bytes:
        return self._bytes.randbytes(count)

    def lock(self) -> SimulatedLock:
        return SimulatedLock(self)

    def rlock(self) -> SimulatedLock:
        return SimulatedLock(self, is_reentrant=True)

    def condition(self) -> SimulatedCondition:
        return SimulatedCondition(self)

    def event(self) -> SimulatedEvent:
        return SimulatedEvent(self)

    def thread(self, target: Callable[[], object], name: str) -> SimulatedThread:
        return self._new_thread(self.process, target, name or "thread")

    def future(self) -> Future[Any]:
        return SimulatedFuture(self)

    def executor(self, workers: int, name: str, initializer: Callable[[], object] | None) -> Executor:
        return SimulatedExecutor(self, workers, name)

    def shared_executor(self, workers: int, name: str) -> Executor:
        return self.process.executors.get(name) or self.process.executors.setdefault(
            name, SimulatedExecutor(self, workers, name)
        )

    def wait(self, futures: Collection[Future[Any]], timeout: float | None) -> set[Future[Any]]:
        self.wait_until(lambda: all(map(_is_done, futures)), timeout)
        return {future for future in futures if _is_done(future)}

    def lower_priority(self) -> None:
        pass


def _never() -> bool:
    return False


def _is_done(future: Future[Any]) -> bool:
    # `done` would take the future's lock.
    return future._state in ("CANCELLED", "CANCELLED_AND_NOTIFIED", "FINISHED")


class SimulatedThread:
    """Implements `Thread`."""

    def __init__(self, scheduler: Scheduler, process: SimulatedProcess, work: Callable[[], object], name: str) -> None:
        self.process, self.work, self.name = process, work, name
        self.is_started = self.is_over = False
        self._scheduler = scheduler

    def start(self) -> None:
        self.is_started = True
        self._scheduler._start(self)
        self._scheduler.pause()

    def is_alive(self) -> bool:
        return self.is_started and not self.is_over

    def join(self, timeout: float | None = None) -> None:
        self._scheduler.wait_until(lambda: self.is_over, timeout)


class SimulatedLock:
    """Implements `Lock`, also as a reentrant lock."""

    def __init__(self, scheduler: Scheduler, *, is_reentrant: bool = False) -> None:
        self._scheduler, self._is_reentrant = scheduler, is_reentrant
        self._owner: _Thread | None = None
        self._count = 0

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        me = self._scheduler._current
        if self._owner is me and self._is_reentrant:
            self._count += 1
            return True
        if me.process is self._scheduler.machine and self._owner is None:
            self._owner, self._count = me, 1  # the simulation itself reads the lock without letting other threads run
            return True
        if self._owner is not None or self._scheduler.random.random() < _SWITCH_AT_FREE_LOCK:
            limit = (None if timeout < 0 else timeout) if blocking else 0.0
            if not self._scheduler.wait_until(lambda: self._owner is None, limit):
                return False
        self._scheduler._check(me)
        self._owner, self._count = me, 1
        return True

    def release(self) -> None:
        if self._owner is not self._scheduler._current:
            return  # a killed thread that did not get the lock again
        self._count -= 1
        if not self._count:
            self._owner = None

    def locked(self) -> bool:
        return self._owner is not None

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


_SWITCH_AT_FREE_LOCK = 0.1


class SimulatedCondition(SimulatedLock):
    """Implements `Condition`."""

    def __init__(self, scheduler: Scheduler) -> None:
        super().__init__(scheduler, is_reentrant=True)
        self._waiters: list[list[bool]] = []

    def wait(self, timeout: float | None = None) -> bool:
        waiter, count, me = [False], self._count, self._scheduler._current
        self._waiters.append(waiter)
        self._owner, self._count = None, 0
        is_notified = self._scheduler.wait_until(lambda: waiter[0], timeout)
        if not is_notified:
            self._waiters.remove(waiter)
        self._scheduler.wait_until(lambda: self._owner is None)
        self._owner, self._count = me, count
        return is_notified

    def wait_for(self, predicate: Callable[[], Any], timeout: float | None = None) -> Any:
        deadline = None if timeout is None else self._scheduler.now + timeout
        while not (result := predicate()):
            left_s = None if deadline is None else deadline - self._scheduler.now
            if left_s is not None and left_s <= 0:
                break
            self.wait(left_s)
        return result

    def notify(self, n: int = 1) -> None:
        for waiter in self._waiters[:n]:
            waiter[0] = True
        del self._waiters[:n]

    def notify_all(self) -> None:
        self.notify(len(self._waiters))


class SimulatedEvent:
    """Implements `Event`."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler, self._is_set = scheduler, False

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self._is_set = True

    def clear(self) -> None:
        self._is_set = False

    def wait(self, timeout: float | None = None) -> bool:
        return self._scheduler.wait_until(self.is_set, timeout)


class SimulatedFuture(Future[Any]):
    """Future whose waits are simulated."""

    def __init__(self, scheduler: Scheduler) -> None:
        super().__init__()
        self._condition: Any = scheduler.condition()


class SimulatedExecutor(Executor):
    """Pool of simulated threads of one process."""

    def __init__(self, scheduler: Scheduler, workers: int, name: str) -> None:
        self._scheduler, self._workers, self._name = scheduler, workers, name
        self._calls: deque[tuple[Future[Any], Callable[[], object]]] = deque()
        self._threads: list[SimulatedThread] = []
        self._is_closed = False

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        if self._is_closed:
            raise RuntimeError("cannot schedule new futures after shutdown")
        future = self._scheduler.future()
        self._calls.append((future, partial(function, *args, **kwargs)))
        if len(self._threads) < self._workers:
            self._threads.append(self._scheduler.thread(self._work, self._name or "pool"))
            self._threads[-1].start()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self._is_closed = True
        while cancel_futures and self._calls:
            self._calls.popleft()[0].cancel()
        for thread in self._threads if wait else ():
            thread.join()

    def _work(self) -> None:
        while self._scheduler.wait_until(lambda: bool(self._calls) or self._is_closed) and self._calls:
            future, call = self._calls.popleft()
            if not future.set_running_or_notify_cancel():
                continue
            try:
                result = call()
            except BaseException as error:
                future.set_exception(error)
                if isinstance(error, Killed):
                    raise
            else:
                future.set_result(result)
