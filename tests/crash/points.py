"""Numbers a process's calls to its stores and its broker, and crashes it at any of these calls.

Every test that simulates a kill uses this module: `killed_at_each_call` yields worlds, and `Calls` kills.
`--crash-points` prints the share of all crash points that a session tried.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from random import Random
from threading import Lock
from typing import Any, NamedTuple, Protocol, TypeVar

import pytest
from slackwater.errors import ObjectExists, Unavailable
from slackwater.store.objects.wrapper import StoreWrapper

from tests.models.profiles import SEARCHES

T = TypeVar("T")
World = TypeVar("World")
SEED = os.environ.get("SEED", "1")
"""Seed of the crash points that are tried in profiles without a search."""
_SAMPLE = 3
"""Number of crash points per verb in these profiles."""
_TRIES = 20
"""Maximum number of attempts to reach a crash point: with threads, the number of calls varies a little."""


class Killed(BaseException):
    """Simulated end of the process."""


class Point(NamedTuple):
    """Call at which a process is killed or loses an answer.

    - before: the process is killed before the call;
    - after: the process is killed after the call, and never sees the answer;
    - away: from this call on, the service does not answer: each call raises `Unavailable`;
    - lost: the call succeeds, but its answer is lost: `Unavailable`; later calls work normally;
    - echoed: like lost, but the store's own retry sees that the key exists: put_if_absent raises `ObjectExists`.
    """

    number: int
    how: str = "before"


class Calls:
    """Calls of one process, numbered from 0 over all its stores and its broker. Thread-safe."""

    def __init__(self, point: Point | None = None) -> None:
        self.made: list[str] = []
        self.point = point
        self._lock = Lock()

    @property
    def is_hit(self) -> bool:
        return self.point is not None and self.point.number < len(self.made)

    def __call__(self, verb: str, key: str, call: Callable[[], T]) -> T:
        with self._lock:
            number = len(self.made)
            self.made.append(f"{verb} {key}")
        point = self.point
        if point is None or number < point.number:
            return call()
        if point.how == "away":
            raise Unavailable(f"storage did not answer a {verb} of {key!r}")
        if point.how in ("before", "after") and (number > point.number or point.how == "before"):
            raise Killed
        answer = call()
        if number == point.number:
            match point.how:
                case "after":
                    raise Killed
                case "lost":
                    raise Unavailable(f"storage did not answer a {verb} of {key!r}")
                case "echoed":
                    raise ObjectExists(key, "memory")
        return answer


class Numbered(Protocol):
    """A store, or a test double of a broker, whose calls can be numbered."""

    calls: Calls | None


@contextmanager
def numbered(*services: Numbered, point: Point | None = None) -> Iterator[Calls]:
    """Number the calls to all of these services in the block; the process is killed at the point."""
    calls = Calls(point)
    for service in services:
        service.calls = calls
    try:
        yield calls
    finally:
        for service in services:
            service.calls = None


class NumberedStore(StoreWrapper):
    """A store that numbers the calls of one process; other processes use the store inside it."""

    calls: Calls | None = None

    def _forward(self, method: str, key: str, request: Callable[[], T], sent: bytes = b"") -> T:
        return request() if self.calls is None else self.calls(method, key, request)


class NumberedBroker:
    """Broker whose calls are numbered together with a store's calls; calls to itself are not numbered."""

    def __init__(self, inner: Any, store: Numbered) -> None:
        self._inner, self._store = inner, store

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._inner, name)
        if value is self._inner:
            return self
        if not callable(value):
            return value

        def call(*args: Any, **options: Any) -> Any:
            if (calls := self._store.calls) is None:
                answer = value(*args, **options)
            else:
                answer = calls(f"kafka {name}", str(args[0]) if args else "", lambda: value(*args, **options))
            return self if answer is self._inner else answer

        return call


def points_of(verb: str, made: Sequence[str]) -> tuple[list[Point], list[Point]]:
    """Return all crash points of a verb that makes these calls, and those to try: all, or a sample by the seed."""
    existing = [
        Point(number, how)
        for number, call in enumerate(made)
        for how in ("before", "after", "away", "lost", *(("echoed",) if call.startswith("put_if_absent ") else ()))
    ]
    if SEARCHES or len(existing) <= _SAMPLE:
        return existing, existing
    return existing, Random(f"{SEED} {verb}").sample(existing, _SAMPLE)


def killed_at_each_call(
    verb: str,
    build: Callable[[], World],
    work: Callable[[World], object],
    services: Callable[[World], Numbered | Sequence[Numbered]],
) -> Iterator[tuple[World, bool]]:
    """Yield worlds from `build` in which `work` ran, each with a flag that is True if `work` was killed.

    In the first world, `work` runs undisturbed. In each other world, one of its calls kills it or loses the answer.
    """

    def of(world: World) -> Sequence[Numbered]:
        found = services(world)
        return found if isinstance(found, Sequence) else (found,)

    world = build()
    with numbered(*of(world)) as calls:
        work(world)
    yield world, True
    assert len(calls.made) > 3
    existing, chosen = points_of(verb, calls.made)
    for point in chosen:
        for _ in range(_TRIES):
            world, ended = build(), False
            with numbered(*of(world), point=point) as again:
                try:
                    work(world)
                    ended = True
                except (Killed, Unavailable):
                    pass
            if again.is_hit:
                break
        else:
            raise AssertionError(f"{verb}: {calls.made[point.number]} was not called again")
        TALLY.hit(verb, len(calls.made), existing, point)
        with explained(f"{verb}, {point.how} call {point.number}: {again.made[point.number]}"):
            yield world, ended


@contextmanager
def explained(note: str) -> Iterator[None]:
    """Add a note to any exception from the block."""
    try:
        yield
    except Exception as error:
        error.add_note(note)
        raise


class Tally:
    """Crash points that exist and that were hit, by verb; as a pytest plugin, it prints them after the session."""

    def __init__(self) -> None:
        self._new: list[tuple[str, object]] = []
        self._calls: dict[tuple[str, str], tuple[int, int]] = {}
        """Numbers of calls and of crash points, by verb and test.

        Each parameter set counts as a test, and tests may share a verb.
        """
        self._hits: dict[tuple[str, str], set[tuple[object, ...]]] = {}

    def hit(self, verb: str, calls: int, existing: Sequence[Point], point: Point) -> None:
        self._new.append(("crash point", (verb, calls, len(existing), *point)))

    def pytest_runtest_teardown(self, item: pytest.Item) -> None:
        """Attach the test's crash points to its report, which reaches the printing process from any worker."""
        item.user_properties += self._new
        self._new = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        for name, value in report.user_properties if report.when == "teardown" else ():
            if name == "crash point":
                verb, calls, existing, *point = value  # type: ignore[misc]
                self._calls[verb, report.nodeid] = calls, existing
                self._hits.setdefault((verb, report.nodeid), set()).add(tuple(point))

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        rows: dict[str, list[int]] = {}
        for at, (calls, existing) in sorted(self._calls.items()):
            for verb in (at[0], "~"):
                row = rows.setdefault(verb, [0, 0, 0])
                row[:] = (have + more for have, more in zip(row, (calls, existing, len(self._hits[at])), strict=True))
        terminalreporter.section("crash points")
        line = "{:<28} {:>7} {:>9} {:>9} {:>7}".format
        terminalreporter.write_line(line("verb", "calls", "points", "hit", "share"))
        for verb, numbers in sorted(rows.items()):
            terminalreporter.write_line(line(verb.replace("~", "all"), *numbers, f"{numbers[2] / numbers[1]:.0%}"))


TALLY = Tally()
