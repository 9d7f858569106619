"""Asking storage for many things at once: what takes long is its answer."""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import TypeVar

_BATCH = 16
"""Requests for each thread that are handed out at once."""
_WORKERS = 16

T = TypeVar("T")
R = TypeVar("R")


def many(ask: Callable[[T], R], things: Iterable[T], workers: int = _WORKERS) -> Iterator[R]:
    """`ask` of each thing, in their order, `workers` at a time."""
    with ThreadPoolExecutor(workers) as pool:
        waiting = iter(things)
        while some := tuple(islice(waiting, _BATCH * workers)):
            yield from pool.map(ask, some)


def do_all(what: Callable[[T], object], things: Iterable[T], workers: int = _WORKERS) -> None:
    """`what` with each thing, `workers` at a time, in any order."""
    for _ in many(what, things, workers):
        pass
