"""Which stages of an app a runner has that gives signs of life.

A runner writes one small object of its own every quarter of a minute, and takes it away when it ends in order. Its age
tells of those that were killed.
"""

from collections.abc import Iterable

from msgspec import Struct

from ...store.objects.protocol import ObjectStore
from ...store.versions import keys
from ...store.versions import limits as fits
from ...store.versions.manifest import Manifest
from ...store.versions.notes import Notes

BEAT_S = 15.0
"""How often a runner writes its sign of life."""
FRESH_S = 60.0
"""How old one may be: a few may be late or lost, and clocks differ."""
_FORGOTTEN_MS = 3_600_000


class Beat(Struct, frozen=True):
    """A runner's sign of life."""

    writer: fits.Ulid
    """Unique id of the runner, as in the manifests that it commits."""
    by: fits.Line
    """host:pid."""
    stages: dict[fits.Name, fits.Epoch]
    """The stages it has claimed, and under which epoch."""


RUNNERS = Notes(Beat, keys.runners, lambda runner: runner.writer)
"""The runners of an app, by their writer's id."""


def beats(store: ObjectStore, app: str, now_ms: int) -> tuple[Beat, ...]:
    """The runners that give signs of life. A listing, and a read for each.

    Raises:
        Corruption: A sign of life cannot be read.
        Unavailable: The store does not answer.
    """
    return RUNNERS.all(store, app, since_ms=now_ms - round(FRESH_S * 1000))


def runner_of(head: Manifest, alive: Iterable[Beat]) -> str:
    """Who runs the stage, as host:pid; empty when nobody does.

    A runner that was taken over may live on for a moment: it claims an older epoch.
    """
    return next((runner.by for runner in alive if runner.stages.get(head.stage) == head.epoch), "")


def sweep(store: ObjectStore, app: str, writer: str) -> None:
    """Remove the signs of life of runners that were killed long ago; by storage's clock, which `writer`'s own tells."""
    listed, own = RUNNERS.listed(store, app), keys.note(keys.runners(app), writer)
    now_ms = next((info.modified_ms for info in listed if info.key == own), 0)
    RUNNERS.sweep(store, listed, lambda info: info.modified_ms < now_ms - _FORGOTTEN_MS)
