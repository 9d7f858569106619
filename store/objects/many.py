"""Asking storage for many things at once: what takes long is its answer."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

_WORKERS, _AHEAD = 16, 256

T = TypeVar("T")
R = TypeVar("R")


def many(ask: Callable[[T], R], things: Iterable[T], workers: int = _WORKERS, *, ahead: int = _AHEAD) -> Iterator[R]:
    """`ask` of each thing, in their order, `workers` at a time; at most `ahead` answers wait to be taken."""
    under_way: deque[Future[R]] = deque()
    with ThreadPoolExecutor(workers) as pool:
        try:
            for thing in things:
                under_way.append(pool.submit(ask, thing))
                if len(under_way) > ahead:
                    yield under_way.popleft().result()
            while under_way:
                yield under_way.popleft().result()
        finally:
            # Where one failed, or nobody wants the rest: what has not begun does not begin.
            for waiting in under_way:
                waiting.cancel()


def do_all(what: Callable[[T], object], things: Iterable[T], workers: int = _WORKERS) -> None:
    """`what` with each thing, `workers` at a time, in any order."""
    for _ in many(what, things, workers):
        pass
