"""The input records behind a stretch of versions: on the stage's own inputs, and on the users' topics."""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import zip_longest

from ..store import history
from ..store.manifest import Manifest
from ..store.objects import ObjectStore
from .timeline import before
from .topology import Cut

__all__ = ["Lineage", "Window", "direct", "trace", "windows"]


@dataclass(frozen=True, slots=True)
class Window:
    """Offsets `start` up to, not including, `end` of one Kafka partition."""

    topic: str
    partition: int
    start: int
    end: int

    def __str__(self) -> str:
        return f"{self.topic}[{self.partition}] {self.start}..{self.end}"


@dataclass(frozen=True, slots=True)
class Lineage:
    """What a stage read for a stretch of its versions. Windows that are empty are left out."""

    stage: str
    direct: tuple[Window, ...]
    """On the stage's own inputs, channels included."""
    sources: tuple[Window, ...]
    """On the users' topics, traced up through every channel; the same as `direct` where there is none."""


def windows(store: ObjectStore, before: Cut, after: Cut, stage: str) -> Lineage:
    """The windows of what `stage` read between two cuts of one app.

    A stage that `before` does not hold is traced from the first version that is kept. What a clone was born
    with is not traced into the app it came from.

    Raises:
        KeyError: `after` does not hold the stage.
        NotFound: a manifest between the cuts is gone.
    """
    return trace(store, before.stages.get(stage), after.stages[stage])


def trace(store: ObjectStore, low: Manifest | None, high: Manifest) -> Lineage:
    """The windows of what one stage read after version `low`, None for the beginning, up to and with `high`.

    Raises:
        NotFound: a manifest between the two, or of the stages upstream, is gone.
    """
    start = low or _first(store, high)
    return Lineage(high.stage, direct(start, high), _merged(_sources(store, start, high)))


def direct(low: Manifest, high: Manifest) -> tuple[Window, ...]:
    """The windows between two versions of one stage on the stage's own inputs, by topic and partition."""
    found: list[Window] = []
    for name, source in sorted(high.inputs.items()):
        earlier = low.inputs.get(name)
        starts = earlier.offsets if earlier else ()
        # Partitions that a topic got since are read from their beginning.
        found += (
            Window(source.topic, partition, start, end)
            for partition, (start, end) in enumerate(zip_longest(starts, source.offsets, fillvalue=0))
            if end > start
        )
    return tuple(found)


def _sources(store: ObjectStore, low: Manifest, high: Manifest) -> list[Window]:
    users = {source.topic for source in high.inputs.values() if not source.upstream}
    found = [window for window in direct(low, high) if window.topic in users]
    for name, source in high.inputs.items():
        earlier = low.inputs.get(name)
        after = earlier.version if earlier else 0
        if source.upstream and source.version > after:
            sent = history.read(store, high.app, source.upstream, source.version)
            sent_before = history.find(store, high.app, source.upstream, after) if after else None
            found += _sources(store, sent_before or _first(store, sent), sent)
    return found


def _first(store: ObjectStore, manifest: Manifest) -> Manifest:
    if before(store, manifest) is None:
        return manifest
    first = history.first_version(store, manifest.app, manifest.stage)
    return history.read(store, manifest.app, manifest.stage, min(first, manifest.version))


def _merged(found: Iterable[Window]) -> tuple[Window, ...]:
    """One window a partition: two ways up to one topic may both have read it."""
    hulls: dict[tuple[str, int], Window] = {}
    for window in found:
        place = (window.topic, window.partition)
        other = hulls.get(place, window)
        hulls[place] = Window(*place, min(window.start, other.start), max(window.end, other.end))
    return tuple(hulls[place] for place in sorted(hulls))
