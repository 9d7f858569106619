"""The horizon of an app's history: which versions may exist, written before anything is collected.

A boundary says of each stage from which version on its history is whole, and which versions before that one stay.
Everything else is collectable: it is deleted already or will be. Boundaries are numbered, and made by `put_if_absent`
like versions are, so two collections at the same time cannot overwrite each other: one of them fails.

A collection writes two. The first is a proposal. After it, snapshots are listed once more: whoever pinned a version
before the proposal is seen there, and whoever pins one after it reads the proposal and gives way. The second is final:
it keeps all that the proposal keeps, also where a snapshot was removed meanwhile, and what was pinned meanwhile. Only
what a final boundary leaves out is deleted, and no later boundary takes it back. So a collection that was stopped
halfway, and wakes up when others have gone on, deletes only what is collectable anyway.
"""

import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from weakref import WeakKeyDictionary

from msgspec import Struct

from ...common.durations import HOUR_MS
from ...errors import Refused
from ..objects.protocol import ObjectStore
from . import checks, keys, limits
from .notes import Notes

MIN_AGE_MS = HOUR_MS
"""A version younger than this, by storage's clock, is never collected."""

_UNCHECKED_S = 30.0
"""For so long after a writer saw that a number was free, nobody can have taken it and deleted it again."""

SETTLED_MS = 45_000
"""What takes a stage over to remove it stays for at least so long. More than `_UNCHECKED_S`: two clocks that measure
spans do not differ by half."""


class KeptCut(Struct, frozen=True):
    """A consistent cut before the whole history that stays: it was thinned out around it, or a snapshot pins it."""

    time_ms: limits.TimeMs
    """When its newest version was committed."""
    stages: dict[limits.Name, limits.Version]
    until_ms: limits.TimeMs = 0
    """The last time up to which the app stood there, from `time_ms` on; 0 where it never stood at just this cut, or
    nobody knows any more. A later time is answered with another moment than the one that it was."""


class Boundary(Struct, frozen=True):
    """What may exist of the versions of an app."""

    number: limits.Version
    """From 1."""
    final: bool
    """False for a proposal: nothing is deleted because it alone leaves it out."""
    first: dict[limits.Name, limits.Version] = {}
    """The version from which on a stage's history is whole. Left out are stages that lost nothing."""
    kept: dict[limits.Name, tuple[limits.Version, ...]] = {}
    """Versions before that one that stay, ascending."""
    moments: tuple[KeptCut, ...] = ()
    """The cuts that these make, oldest first."""
    by: limits.Line = ""
    """user@host of the collection."""

    def allows(self, stage: str, version: int) -> bool:
        """Whether the version may exist."""
        if version >= self.first.get(stage, 0):
            return True
        kept = self.kept.get(stage, ())
        index = bisect_left(kept, version)
        return index < len(kept) and kept[index] == version

    def before(self, stage: str, version: int) -> int:
        """The version that may exist right before this one; 0 for none."""
        if version > self.first.get(stage, 1):
            return version - 1
        kept = self.kept.get(stage, ())
        index = bisect_left(kept, version)
        return kept[index - 1] if index else 0

    def is_whole(self, versions: Mapping[str, int]) -> bool:
        """Whether a cut lies where all is there: it has of every stage that lost versions one from which on none is."""
        return all(versions.get(stage, 0) >= first for stage, first in self.first.items())

    def at(self, time_ms: int) -> KeptCut | None:
        """The newest kept cut of that time or before."""
        return next((moment for moment in reversed(self.moments) if moment.time_ms <= time_ms), None)


BOUNDARIES = Notes(Boundary, keys.boundaries, lambda boundary: boundary.number)
"""What may exist of apps' versions: the newest counts."""
NOTHING_COLLECTED = Boundary(0, final=True)


@checks.relations.register
def _(value: Boundary) -> Iterator[checks.Wrong]:
    for stage, versions in value.kept.items():
        first = value.first.get(stage)
        if first is None:
            yield checks.Wrong(f"kept[{stage!r}]", versions, "nothing, for a stage that lost nothing")
        elif any(later <= earlier for earlier, later in pairwise((*versions, first))):
            yield checks.Wrong(f"kept[{stage!r}]", versions, f"versions ascending, below the first, {first}")
    if any(later.time_ms < earlier.time_ms for earlier, later in pairwise(value.moments)):
        yield checks.Wrong("moments", tuple(each.time_ms for each in value.moments), "moments, the oldest first")
    for number, moment in enumerate(value.moments):
        if 0 < moment.until_ms < moment.time_ms:
            yield checks.Wrong(f"moments[{number}].until_ms", moment.until_ms, f"0, or from {moment.time_ms} on")


def newest(store: ObjectStore, app: str) -> Boundary:
    """The boundary that counts, or `NOTHING_COLLECTED`. A listing, and a read if there is one. Raises `Corruption`."""
    return BOUNDARIES.newest(store, app) or NOTHING_COLLECTED


def all_of(store: ObjectStore, app: str) -> tuple[Boundary, ...]:
    """The stored boundaries in their order: the last final one and a proposal, rarely more. Raises as `newest`."""
    listed = BOUNDARIES.listed(store, app)
    while len(found := tuple(BOUNDARIES.read(store, listed, app))) < len(listed):
        listed = BOUNDARIES.listed(store, app)  # a newer one has replaced one since
    return found


def propose(store: ObjectStore, app: str, boundary: Boundary) -> None:
    """Write a boundary under the number after the newest. Raises `Refused` where another collection was first."""
    if BOUNDARIES.add(store, boundary, app) != boundary:  # else it is ours, also where the answer was lost
        raise overtaken(app)
    # Numbers of replaced boundaries are free again: one that was under way for long may have taken such a number.
    if newest(store, app).number != boundary.number:
        BOUNDARIES.remove(store, boundary.number, app)
        raise overtaken(app)


def settle(store: ObjectStore, app: str, boundary: Boundary) -> None:
    """Write a final boundary, and remove those that it replaces. Raises as `propose`."""
    propose(store, app, boundary)
    number = BOUNDARIES.key(boundary, app)
    BOUNDARIES.sweep(store, BOUNDARIES.listed(store, app), lambda info: info.key < number)


def overtaken(app: str) -> Refused:
    """The error for a collection that another one went ahead of."""
    return Refused(
        f"another collection of {app} went on at the same time; this one has deleted nothing that was to be kept",
        hint="let it end, then run `slackwater gc` again if need be",
    )


def _seconds() -> float:
    # Unlike the monotonic clock, this one goes on while a machine sleeps.
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    return time.clock_gettime(clock) if clock is not None else time.time()


class Freshness:
    """When this process last saw that a stage's next number was free.

    A version can only be collected once it is `MIN_AGE_MS` old, and removed with its app once it is `SETTLED_MS` old.
    So a writer that saw the number free half a minute ago or less cannot re-create one that is gone; all others must
    check after their create. A runner checks every few seconds.
    """

    def __init__(self, clock: Callable[[], float] = _seconds) -> None:
        self.now = clock
        """When a request to find out begins, in seconds of a clock of its own."""
        self._free: dict[tuple[str, str], tuple[int, float]] = {}

    def saw_free(self, app: str, stage: str, version: int, at: float) -> None:
        """At `at` or later, the stage had no such version."""
        self._free[app, stage] = (version, at)

    def is_fresh(self, app: str, stage: str, version: int) -> bool:
        """Whether this very number was seen free so recently that nobody can have taken it and collected it."""
        seen, at = self._free.get((app, stage), (0, 0.0))
        return seen == version and self.now() - at < _UNCHECKED_S


_freshness: WeakKeyDictionary[ObjectStore, Freshness] = WeakKeyDictionary()


def freshness(store: ObjectStore) -> Freshness:
    """What this process saw through this store."""
    return _freshness.setdefault(store, Freshness())
