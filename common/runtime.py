"""Threads, clocks, waits and random numbers of this process, in one place, so that a simulation can replace them.

All other modules call these functions. The functions call the current `Runtime`: this machine's runtime, unless `use`
has replaced it.
"""

from __future__ import annotations

import os
import threading
import time as _time
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from concurrent.futures import wait as _wait
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    from random import Random
    from types import TracebackType
    from uuid import UUID

    from ulid import ULID, ULIDGenerator

__all__ = ["Executor", "Future"]


class Lock(Protocol):
    """Lock of this process, with the methods of `threading.Lock`."""

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool: ...
    def release(self) -> None: ...
    def locked(self) -> bool: ...
    def __enter__(self) -> Any: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> Any: ...


class Condition(Protocol):
    """Condition variable with a lock of its own, with the methods of `threading.Condition`."""

    def __enter__(self) -> Any: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> Any: ...
    def wait(self, timeout: float | None = None) -> bool: ...
    def wait_for(self, predicate: Callable[[], Any], timeout: float | None = None) -> Any: ...
    def notify(self, n: int = 1) -> None: ...
    def notify_all(self) -> None: ...


class Event(Protocol):
    """Flag that threads wait for, with the methods of `threading.Event`."""

    def is_set(self) -> bool: ...
    def set(self) -> None: ...
    def clear(self) -> None: ...
    def wait(self, timeout: float | None = None) -> bool: ...


class Thread(Protocol):
    """Daemon thread, with the methods of `threading.Thread`."""

    def start(self) -> None: ...
    def is_alive(self) -> bool: ...
    def join(self, timeout: float | None = None) -> None: ...


class Runtime(Protocol):
    """Threads, clocks and random bytes. Each method has the meaning of the module's function of the same name."""

    def monotonic(self) -> float: ...
    def boot_time(self) -> float: ...
    def time_ns(self) -> int: ...
    def sleep(self, seconds: float) -> None: ...
    def random_bytes(self, count: int) -> bytes: ...
    def lock(self) -> Lock: ...
    def rlock(self) -> AbstractContextManager[Any]: ...
    def condition(self) -> Condition: ...
    def event(self) -> Event: ...
    def thread(self, target: Callable[[], object], name: str) -> Thread: ...
    def future(self) -> Future[Any]: ...
    def executor(self, workers: int, name: str, initializer: Callable[[], object] | None) -> Executor: ...
    def shared_executor(self, workers: int, name: str) -> Executor: ...
    def wait(self, futures: Collection[Future[Any]], timeout: float | None) -> set[Future[Any]]: ...
    def lower_priority(self) -> None: ...


_NICE = 10


class Machine(Runtime):
    """The runtime of this machine."""

    monotonic = staticmethod(_time.monotonic)
    time_ns = staticmethod(_time.time_ns)
    lock = staticmethod(threading.Lock)
    rlock = staticmethod(threading.RLock)
    condition = staticmethod(threading.Condition)
    event = staticmethod(threading.Event)

    def __init__(self) -> None:
        self._shared: dict[str, Executor] = {}
        # Spark forks its workers, and threads do not survive a fork.
        os.register_at_fork(after_in_child=self._shared.clear)

    def boot_time(self) -> float:
        clock = getattr(_time, "CLOCK_BOOTTIME", None)
        return _time.clock_gettime(clock) if clock is not None else _time.time()

    def sleep(self, seconds: float) -> None:
        _time.sleep(seconds)

    def random_bytes(self, count: int) -> bytes:
        return os.urandom(count)

    def future(self) -> Future[Any]:
        return Future()

    def thread(self, target: Callable[[], object], name: str) -> Thread:
        return threading.Thread(target=target, name=name or None, daemon=True)

    def executor(self, workers: int, name: str, initializer: Callable[[], object] | None) -> Executor:
        return ThreadPoolExecutor(workers, name, initializer)

    def shared_executor(self, workers: int, name: str) -> Executor:
        return self._shared.get(name) or self._shared.setdefault(name, ThreadPoolExecutor(workers, name))

    def wait(self, futures: Collection[Future[Any]], timeout: float | None) -> set[Future[Any]]:
        return _wait(futures, timeout).done

    def lower_priority(self) -> None:
        # On Linux, each thread has its own priority. Elsewhere only processes have one: the main thread lowers it.
        who = 0 if threading.current_thread() is threading.main_thread() else threading.get_native_id()
        with suppress(AttributeError, OSError):
            os.setpriority(os.PRIO_PROCESS, who, max(_NICE, os.getpriority(os.PRIO_PROCESS, who)))


_current: Runtime = Machine()
_ulids: WeakKeyDictionary[Runtime, ULIDGenerator] = WeakKeyDictionary()


@contextmanager
def use(runtime: Runtime) -> Iterator[None]:
    """Replace the runtime of this process during the block."""
    global _current
    previous, _current = _current, runtime
    try:
        yield
    finally:
        _current = previous


def monotonic() -> float:
    """Return the seconds of a clock that never goes back."""
    return _current.monotonic()


def boot_time() -> float:
    """Return the seconds of a clock that, unlike `monotonic`, continues while the machine sleeps."""
    return _current.boot_time()


def time_ns() -> int:
    """Return the wall clock's time in ns since 1970."""
    return _current.time_ns()


def time() -> float:
    """Return the wall clock's time in seconds since 1970."""
    return _current.time_ns() / 1e9


def sleep(seconds: float) -> None:
    _current.sleep(seconds)


def lock() -> Lock:
    """Return a new lock. Do not hold a lock that was created during an import while calling this module."""
    return _current.lock()


def rlock() -> AbstractContextManager[Any]:
    return _current.rlock()


def condition() -> Condition:
    return _current.condition()


def event() -> Event:
    return _current.event()


def thread(target: Callable[..., object], *args: object, name: str = "") -> Thread:
    """Return a daemon thread, which is not started yet."""
    return _current.thread(partial(target, *args), name)


def timer(seconds: float, call: Callable[[], object]) -> Callable[[], None]:
    """Call a function in a separate thread after some seconds. Returns a function that cancels the call."""
    cancelled = event()
    thread(lambda: cancelled.wait(seconds) or call(), name="timer").start()
    return cancelled.set


def future() -> Future[Any]:
    return _current.future()


def executor(workers: int, name: str = "", initializer: Callable[[], object] | None = None) -> Executor:
    """Return an executor with up to `workers` threads, each of which calls `initializer` first."""
    return _current.executor(workers, name, initializer)


def shared_executor(workers: int, name: str) -> Executor:
    """Return the process-wide executor of this name. The first call creates it; it is never shut down."""
    return _current.shared_executor(workers, name)


def wait(futures: Collection[Future[Any]], timeout: float | None = None) -> set[Future[Any]]:
    """Wait until all futures are done, or for `timeout` seconds. Returns the futures that are done."""
    return _current.wait(futures, timeout)


def is_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def lower_priority() -> None:
    """Lower the priority of the current thread."""
    _current.lower_priority()


def random_bytes(count: int) -> bytes:
    """Return random bytes that are fit for secrets."""
    return _current.random_bytes(count)


def random_hex(count: int = 16) -> str:
    """Return `count` random bytes in hexadecimal digits."""
    return _current.random_bytes(count).hex()


def random(seed: int | None = None) -> Random:
    """Return a source of random numbers that are not fit for secrets; None for a random seed."""
    from random import Random

    return Random(_current.random_bytes(16) if seed is None else seed)  # noqa: S311


def uuid() -> UUID:
    from uuid import UUID

    return UUID(bytes=_current.random_bytes(16), version=4)


def ulid() -> ULID:
    """Return a new ULID: the wall clock's ms and 80 random bits. ULIDs created in one millisecond ascend."""
    from ulid import ULIDGenerator

    runtime = _current
    if (generator := _ulids.get(runtime)) is None:
        generator = ULIDGenerator(lambda: runtime.time_ns() // 1_000_000, lambda _: runtime.random_bytes(10))
        generator = _ulids.setdefault(runtime, generator)
    return generator.generate()
