"""Turns of a runner's stages: how many run a batch at the same time, and which stage is next."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from contextlib import contextmanager

from ...common import runtime

_NONE: frozenset[str] = frozenset()


class TurnOrder:
    """Order of waiting stages: first come, first served, with two exceptions. Not thread-safe.

    First, a stage that has had no turn yet goes before all others, so that records soon reach the last stage of a
    chain. Second, while a stage waits, each of its readers may overtake it, so that channels do not grow. A reader may
    overtake it only once, so that no stage waits forever.

    Args:
        readers: Stages that read the channels of a stage, by stage.
    """

    def __init__(self, readers: Mapping[str, Set[str]]) -> None:
        self._readers = readers
        self._served: set[str] = set()
        self._waiting: dict[str, set[str]] = {}
        """Waiting stages in the order of their turns, each with the readers that have overtaken it."""

    @property
    def waiting(self) -> Set[str]:
        return self._waiting.keys()

    def add(self, stage: str) -> None:
        self._waiting[stage] = set()

    def next(self, *, only_new: bool = False) -> str | None:
        """Return the next stage; None if no stage waits. With `only_new`, stages that have had a turn are left out."""
        new = next((stage for stage in self._waiting if stage not in self._served), None)
        if new is not None or only_new:
            return new
        for stage, passed in self._waiting.items():
            if self._waiting.keys().isdisjoint(self._readers.get(stage, _NONE) - passed):
                return stage
        return None

    def admit(self, stage: str) -> None:
        self._served.add(stage)
        del self._waiting[stage]
        for other, passed in self._waiting.items():
            if stage in self._readers.get(other, _NONE):
                passed.add(stage)


class Turns:
    """Admits at most `at_once` batches at the same time, in a `TurnOrder`. Thread-safe.

    Spark schedules the tasks of admitted batches. Until `open` is called, a stage gets only one turn, so that queries
    that already run do not take the cores from queries that are starting.
    """

    def __init__(self, at_once: int, readers: Mapping[str, Set[str]]) -> None:
        self._at_once = at_once
        self._order = TurnOrder(readers)
        self._changed = runtime.condition()
        self._running: dict[str, float] = {}
        """Stages that have their turn, with the start time of the turn (monotonic seconds)."""
        self._is_open = self._ended = False

    def open(self) -> None:
        """Allow stages more than one turn, after all queries have started."""
        with self._changed:
            self._is_open = True
            self._changed.notify_all()

    def end(self) -> None:
        """End the turns, because the run ends. Admits all batches at once, so that waiting stages notice the end."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    @contextmanager
    def turn(self, stage: str) -> Iterator[None]:
        """Wait for the stage's turn. The turn ends with the `with` block; then the next stage's turn begins."""
        with self._changed:
            self._order.add(stage)
            self._changed.wait_for(lambda: self._ended or self._next() == stage)
            self._order.admit(stage)
            self._running[stage] = runtime.monotonic()
            # A different stage may be next while a place is free.
            self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                del self._running[stage]
                self._changed.notify_all()

    @property
    def waiting(self) -> Set[str]:
        with self._changed:
            return frozenset(self._order.waiting)

    def stages_ahead(self, stage: str) -> Mapping[str, float]:
        """Return the stages whose batches a stage waits for, with each batch's age in seconds; empty for no wait."""
        with self._changed:
            if stage not in self._order.waiting:
                return {}
            now_s = runtime.monotonic()
            return {name: now_s - began_s for name, began_s in self._running.items()}

    def _next(self) -> str | None:
        return self._order.next(only_new=not self._is_open) if len(self._running) < self._at_once else None
