"""Boundaries: the versions of an app that garbage collection keeps, written before any version is deleted.

A boundary has, for each stage, the version from which the history is complete, and the older versions that are kept.
All other versions are collectable: deleted already, or about to be. Boundaries are numbered and created by
put-if-absent, like versions, so if two collections are concurrent, one fails.

A collection writes two boundaries. The first is a proposal. Then snapshots are listed again. This listing includes
every snapshot that was pinned before the proposal. A process that pins a version after the proposal reads the proposal
and gives up. The second boundary is final. It keeps all versions of the proposal, even if a snapshot was removed
meanwhile, and the newly pinned versions. Only versions outside a final boundary are deleted, and no later boundary
includes them again. So a collection that was suspended, and resumes after others, deletes only collectable versions.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from weakref import WeakKeyDictionary

from msgspec import Struct

from ...common import runtime
from ...common.durations import HOUR_MS
from ...errors import Refused
from ..objects.protocol import ObjectStore
from . import checks, keys, limits
from .codec import JsonFolder

MIN_AGE_MS = HOUR_MS
"""Minimum age, by storage's clock, at which a version is collected."""

_UNCHECKED_S = 30.0
"""Duration in seconds: a number that was seen free cannot be used and collected by other processes within it."""

SETTLED_MS = 45_000
"""Minimum age, in ms, at which the version that begins a stage's removal is deleted.

It is 1.5 times `_UNCHECKED_S`: measured intervals of two clocks are assumed to differ by less than half.
"""


class KeptCut(Struct, frozen=True):
    """A consistent cut that is older than the complete history, and is kept by retention or a snapshot."""

    time_ms: limits.TimeMs
    stages: dict[limits.Name, limits.Version]
    until_ms: limits.TimeMs = 0
    """Last time at which the app was in this state; 0 if the app was never in exactly this state, or if unknown."""


class Boundary(Struct, frozen=True):
    """Versions of an app that garbage collection does not delete."""

    number: limits.Version
    final: bool
    """True if versions outside the boundary may be deleted; False for a proposal."""
    first: dict[limits.Name, limits.Version] = {}
    """Version from which each stage's history is complete. Stages without deleted versions are left out."""
    kept: dict[limits.Name, tuple[limits.Version, ...]] = {}
    moments: tuple[KeptCut, ...] = ()
    by: limits.ShortText = ""

    def allows(self, stage: str, version: int) -> bool:
        if version >= self.first.get(stage, 0):
            return True
        versions = self.kept.get(stage, ())
        index = bisect_left(versions, version)
        return index < len(versions) and versions[index] == version

    def previous_version(self, stage: str, version: int) -> int:
        """Return the largest version below `version` that is not collected; 0 if there is none."""
        if version > self.first.get(stage, 1):
            return version - 1
        versions = self.kept.get(stage, ())
        index = bisect_left(versions, version)
        return versions[index - 1] if index else 0

    def has_complete_history(self, versions: Mapping[str, int]) -> bool:
        """Return True if all versions of a cut are in the complete history of their stages."""
        return all(versions.get(stage, 0) >= first for stage, first in self.first.items())

    def kept_cut_at(self, time_ms: int) -> KeptCut | None:
        return next((moment for moment in reversed(self.moments) if moment.time_ms <= time_ms), None)


BOUNDARIES = JsonFolder(Boundary, keys.boundaries, lambda boundary: boundary.number)
NOTHING_COLLECTED = Boundary(0, final=True)


@checks.find_violations.register
def _(value: Boundary) -> Iterator[checks.Violation]:
    for stage, versions in value.kept.items():
        first = value.first.get(stage)
        if first is None:
            yield checks.Violation(f"kept[{stage!r}]", versions, "nothing, for a stage that lost nothing")
        elif any(later <= earlier for earlier, later in pairwise((*versions, first))):
            yield checks.Violation(f"kept[{stage!r}]", versions, f"versions ascending, below the first, {first}")
    if any(later.time_ms < earlier.time_ms for earlier, later in pairwise(value.moments)):
        yield checks.Violation(
            "moments", tuple(moment.time_ms for moment in value.moments), "moments, the oldest first"
        )
    for number, moment in enumerate(value.moments):
        if 0 < moment.until_ms < moment.time_ms:
            yield checks.Violation(f"moments[{number}].until_ms", moment.until_ms, f"0, or from {moment.time_ms} on")


def newest(store: ObjectStore, app: str) -> Boundary:
    """Return an app's newest boundary, or `NOTHING_COLLECTED`. Costs a listing and at most one read."""
    return BOUNDARIES.newest(store, app) or NOTHING_COLLECTED


def read_all(store: ObjectStore, app: str) -> tuple[Boundary, ...]:
    """Return an app's stored boundaries in order: usually the last final boundary, sometimes followed by a proposal."""
    listed = BOUNDARIES.listed(store, app)
    while len(boundaries := tuple(BOUNDARIES.read(store, listed, app))) < len(listed):
        listed = BOUNDARIES.listed(store, app)  # one was replaced since the listing
    return boundaries


def propose(store: ObjectStore, app: str, boundary: Boundary) -> None:
    """Write a boundary under its number. Raises `Refused` if another collection has already written this number."""
    if BOUNDARIES.add(store, boundary, app) != boundary:  # equal: this process put it, although the answer was lost
        raise overtaken_error(app)
    # Numbers of deleted boundaries are free again, and a delayed put may have used such a number.
    if newest(store, app).number != boundary.number:
        BOUNDARIES.remove(store, boundary.number, app)
        raise overtaken_error(app)


def finalise(store: ObjectStore, app: str, boundary: Boundary) -> None:
    """Write a final boundary, and delete earlier ones. Raises `Refused` if another collection has used the number."""
    propose(store, app, boundary)
    number = BOUNDARIES.key(boundary, app)
    BOUNDARIES.sweep(store, BOUNDARIES.listed(store, app), lambda info: info.key < number)


def overtaken_error(app: str) -> Refused:
    return Refused(
        f"another garbage collection of {app} runs at the same time; this one stopped, and deleted nothing "
        "that is needed",
        hint="wait until it ends, then run `slackwater gc` again if needed",
    )


class Freshness:
    """Times at which this process last saw that a stage's next version number was free.

    A version is collected at an age of `MIN_AGE_MS` or more, and removed with its app at `SETTLED_MS` or more. So a
    writer cannot re-create a deleted version if it saw a free number less than half a minute ago. Any other writer must
    check after it created the version. A runner checks every few seconds.
    """

    def __init__(self, clock: Callable[[], float] = runtime.boot_time) -> None:
        self.now = clock
        """Clock in seconds, which continues while the machine sleeps."""
        self._free: dict[tuple[str, str], tuple[int, float]] = {}

    def record_free(self, app: str, stage: str, version: int, at: float) -> None:
        self._free[app, stage] = (version, at)

    def is_fresh(self, app: str, stage: str, version: int) -> bool:
        """Return True if the number was free so recently that no process can have used and collected it since."""
        seen, at = self._free.get((app, stage), (0, 0.0))
        return seen == version and self.now() - at < _UNCHECKED_S


_freshness: WeakKeyDictionary[ObjectStore, Freshness] = WeakKeyDictionary()


def freshness(store: ObjectStore) -> Freshness:
    return _freshness.setdefault(store, Freshness())
