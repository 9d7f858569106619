"""Concurrent requests to storage, which take less time in total than one after the other."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from ...common import runtime
from ...common.runtime import Future

_WORKERS, _MAX_UNREAD = 16, 256

T = TypeVar("T")
R = TypeVar("R")


def map_concurrently(
    call: Callable[[T], R], items: Iterable[T], workers: int = _WORKERS, *, max_unread: int = _MAX_UNREAD
) -> Iterator[R]:
    """Yield `call(item)` for each item, in order, from `workers` threads. At most `max_unread` results are buffered."""
    under_way: deque[Future[R]] = deque()
    with runtime.executor(workers) as pool:
        try:
            for item in items:
                under_way.append(pool.submit(call, item))
                if len(under_way) > max_unread:
                    yield under_way.popleft().result()
            while under_way:
                yield under_way.popleft().result()
        finally:
            # If a call fails, or if the caller stops reading, pending calls are not started.
            for waiting in under_way:
                waiting.cancel()


def for_each_concurrently(action: Callable[[T], object], items: Iterable[T], workers: int = _WORKERS) -> None:
    for _ in map_concurrently(action, items, workers):
        pass
