"""Signs of life: which stages of an app have a runner.

A runner writes one small object of its own every quarter of a minute, and takes it away when it ends in order. Its age
tells of those that were killed.
"""

import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass

from msgspec import Struct

from ...common import instants
from ...errors import Refused, Unavailable
from ...store.objects.protocol import ObjectStore
from ...store.versions import keys, limits
from ...store.versions.manifest import Manifest
from ...store.versions.notes import Notes

BEAT_S = 15.0
"""Seconds between two signs of life of a runner."""
FRESH_S = 60.0
"""Age in seconds up to which one counts: a few may be late or lost, and clocks differ."""
_FORGOTTEN_MS = 3_600_000


class Beat(Struct, frozen=True):
    """A runner's sign of life."""

    writer: limits.Ulid
    """Unique id of the runner, as in the manifests that it commits."""
    by: limits.Line
    """host:pid."""
    stages: dict[limits.Name, limits.Epoch]
    """The stages it has claimed, and under which epoch."""
    batches: dict[limits.Name, limits.Count] = {}
    """Batches that the followed Spark query had committed, by stage; of stages that follow one."""
    waits: dict[limits.Name, limits.Line] = {}
    """The reason for which a stage waits, by stage; of idle stages, as far as the runner knew."""


RUNNERS = Notes(Beat, keys.runners, lambda runner: runner.writer)
"""The runners of an app, by their writer's id."""


def beats(store: ObjectStore, app: str, now_ms: int) -> tuple[Beat, ...]:
    """The runners that give signs of life. A listing, and a read for each.

    Raises `Corruption` (A sign of life cannot be read) and `Unavailable`.
    """
    return RUNNERS.all(store, app, since_ms=now_ms - round(FRESH_S * 1000))


def lapsed(
    store: ObjectStore, app: str, pause: Callable[[], None], now_ms: Callable[[], int] = instants.now_ms
) -> bool:
    """Say if nobody runs the app any more: False once a runner gives a new sign of life while this waits.

    A runner that was killed leaves its last one, which counts for a minute: `pause` is called until that is over.
    """
    seen: dict[str, int] = {}
    while alive := [each for each in RUNNERS.listed(store, app) if each.modified_ms >= now_ms() - FRESH_S * 1000]:
        if any(seen.setdefault(each.key, each.modified_ms) != each.modified_ms for each in alive):
            return False
        pause()
    return True


def runner_of(head: Manifest, alive: Iterable[Beat]) -> str:
    """Who runs the stage, as host:pid; empty when nobody does. One that was taken over claims an older epoch."""
    return next((runner.by for runner in alive if runner.stages.get(head.stage) == head.epoch), "")


@dataclass(slots=True)
class Heart:
    """Writes a runner's signs of life, whenever one is due, and takes the last one away. Who is away misses some."""

    store: ObjectStore
    app: str
    _due_s: float = 0.0
    _swept: bool = False

    def beat(self, now: Callable[[], Beat]) -> None:
        """Write one, unless the last one is still fresh."""
        if time.monotonic() < self._due_s:
            return
        self._due_s, beat = time.monotonic() + BEAT_S, now()
        with suppress(Unavailable, Refused):
            RUNNERS.put(self.store, beat, self.app)
            if not self._swept:
                sweep(self.store, self.app, beat.writer)
            self._swept = True

    def end(self, writer: str) -> None:
        """Take away the last one."""
        with suppress(Unavailable, Refused):
            RUNNERS.remove(self.store, writer, self.app)


def batches_behind(head: Manifest, alive: Iterable[Beat]) -> int | None:
    """Return the batches that a stage is behind its Spark query, by its follower's sign of life; None without one."""
    said = [
        runner.batches[head.stage]
        for runner in alive
        if runner.stages.get(head.stage) == head.epoch and head.stage in runner.batches
    ]
    return max(0, said[0] - head.attached.next_batch) if said and head.attached is not None else None


def waits_for(head: Manifest, alive: Iterable[Beat]) -> str:
    """Return what a stage waited for when its runner gave its last sign of life; empty where it said nothing."""
    said = (runner.waits.get(head.stage, "") for runner in alive if runner.stages.get(head.stage) == head.epoch)
    return next(said, "")


def sweep(store: ObjectStore, app: str, writer: str) -> None:
    """Remove the signs of life of runners that were killed long ago; by storage's clock, which `writer`'s own tells."""
    listed, own = RUNNERS.listed(store, app), keys.note(keys.runners(app), writer)
    now_ms = next((info.modified_ms for info in listed if info.key == own), 0)
    RUNNERS.sweep(store, listed, lambda info: info.modified_ms < now_ms - _FORGOTTEN_MS)
