"""The commits of an app as points on a line, so many as fit: thinned out by their numbers, and what stands out between.

Of each stage each 2^n-th version is read, so that the same ones come again as the history grows, and what was read once
is known. Deploys and migrations between two of them show in what both carry on, and are found by halving; what people
did is in the log of operations, and snapshots have a listing of their own. So the cost follows the points asked for,
not the history: 50,000 versions take as many reads as 500.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import islice, pairwise
from threading import Lock
from typing import Any, Literal, TypeVar
from weakref import WeakKeyDictionary

from cachetools import LRUCache
from msgspec import Struct

from ...errors import Corruption
from ...store.objects.many import many
from ...store.objects.protocol import ObjectInfo, ObjectStore
from ...store.versions import apps, history
from ...store.versions.kinds import VersionKind
from ...store.versions.manifest import Manifest
from ...store.versions.notes import Notes
from ..cut.graph import order
from ..cut.moments import heads_of, stages_of
from ..cut.replicas import PREFIX as REPLICA_CUT
from ..cut.stored import SNAPSHOTS
from ..take.audit_log import OPERATIONS

T = TypeVar("T", bound=Struct)
MarkKind = Literal["snapshot", "deploy", "migration", "operation"]
_AT_ONCE = 16
_MOST_MARKS = 100
"""Of snapshots, and of operations: the newest."""
_MOST_SEARCHES = 60
"""Places at which a program or a migration is looked for: beyond that, a narrower span of time shows them."""
_KNOWN, _KNOWN_NOTES = 100_000, 2_000
_SAME_MS = 10_000
"""What stages commit within this time for the same reason is one thing."""
_NOT_SHOWN = ("snapshot", "token", "export", "protect", "watch", "archive")
"""Groups of operations that change no state, or have marks of their own."""


@dataclass(frozen=True, slots=True)
class CommitPoint:
    """What a point is made of, of one version."""

    stage: str
    version: int
    time_ms: int
    kind: VersionKind
    rows: int
    """That it read."""
    program: str
    """The checksum of what declares the stage, empty where it was no file."""
    migration: int


@dataclass(frozen=True, slots=True)
class Mark:
    """Something that stands out."""

    kind: MarkKind
    time_ms: int
    label: str
    """A snapshot's name, what was done, or what declares a stage from then on."""
    stage: str = ""
    """Of which the moment is a version; empty for a snapshot."""
    version: int = 0
    by: str = ""
    why: str = ""


@dataclass(frozen=True, slots=True)
class ThinnedLine:
    """A part of the line, or all of it."""

    app: str
    commits: int
    """How many there are in it."""
    points: tuple[CommitPoint, ...]
    """These, or as many as were asked for, the oldest first; in each stage the first and the last are among them."""
    marks: tuple[Mark, ...]
    """The oldest first."""

    @property
    def is_whole(self) -> bool:
        """Whether each commit has a point."""
        return len(self.points) == self.commits


# By store, as `history` keeps manifests; by when the app was made, for another one may have its name.
_known: WeakKeyDictionary[ObjectStore, LRUCache[tuple[str, int, str, int], CommitPoint]] = WeakKeyDictionary()
_known_notes: WeakKeyDictionary[ObjectStore, LRUCache[ObjectInfo, Any]] = WeakKeyDictionary()
"""Snapshots and operations, by key and time: another one of the name has another."""
_lock = Lock()


def timeline(store: ObjectStore, app: str, *, points: int = 300, from_ms: int = 0, to_ms: int = 0) -> ThinnedLine:
    """The commits from one time up to another, both included; 0 for the first, and for the newest.

    A read for each point that is not known yet, a few for each stage, for each mark, and for each deploy some of a
    binary search. Versions that garbage collection left before the whole history are not among them. Raises `NotFound`
    (there is no such app), and `Corruption` (of a newest version).
    """
    created_ms = apps.read_app(store, app).created_ms
    with _lock:
        known = _known.setdefault(store, LRUCache(_KNOWN))
    heads = heads_of(store, app, stages_of(store, app))
    spans = {stage: _span(store, head, from_ms, to_ms) for stage, head in heads.items()}
    commits = sum(map(len, spans.values()))

    def read(stage: str, version: int) -> CommitPoint | None:
        name = (app, created_ms, stage, version)
        with _lock:
            found = known.get(name)
        if found is not None:
            return found
        with suppress(Corruption):  # it is left out
            if (manifest := history.find(store, app, stage, version)) is not None:
                found = _commit(manifest)
                with _lock:
                    known[name] = found
        return found

    ranks = {stage: rank for rank, stage in enumerate(order(heads))}
    wanted = {
        stage: _chosen(span, max(2, points * len(span) // commits) if commits > points else len(span))
        for stage, span in spans.items()
    }
    each = [(stage, version) for stage, versions in wanted.items() for version in versions]
    found = [one for one in many(lambda at: read(*at), each, _AT_ONCE) if one is not None]
    found.sort(key=lambda one: (one.time_ms, ranks[one.stage], one.version))
    marks = [*_deploys(found, read), *_snapshots(store, app, read, ranks), *_operations(store, app, read)]
    low, high = (found[0].time_ms, found[-1].time_ms) if found else (0, 0)
    shown = (one for one in marks if low <= one.time_ms and (not to_ms or one.time_ms <= max(high, to_ms)))
    return ThinnedLine(app, commits, tuple(found), tuple(sorted(_once(shown), key=lambda one: one.time_ms)))


def _span(store: ObjectStore, head: Manifest, from_ms: int, to_ms: int) -> range:
    """The versions of a stage that were committed within a time."""
    read, first = partial(history.find, store, head.app), partial(history.first_version, store, head.app)
    low, high = first(head.stage), head.version
    if to_ms and to_ms < head.time_ms:
        last = history.newest_where(read, first, head, lambda each: each.time_ms <= to_ms)
        high = last.version if last is not None else low - 1
    if from_ms and high >= low:
        before = history.newest_where(read, first, head, lambda each: each.time_ms < from_ms)
        low = before.version + 1 if before is not None else low
    return range(low, high + 1)


def _chosen(span: range, count: int) -> list[int]:
    """Some numbers of a span, at most about `count`: its ends, and what is a multiple of a power of two."""
    if len(span) <= count:
        return list(span)
    step = 1 << (-(-len(span) // count) - 1).bit_length()
    return sorted({span[0], *range(-(-span[0] // step) * step, span[-1] + 1, step), span[-1]})


def _commit(manifest: Manifest) -> CommitPoint:
    return CommitPoint(
        manifest.stage,
        manifest.version,
        manifest.time_ms,
        manifest.kind,
        sum(source.rows for source in manifest.inputs.values()),
        manifest.program.checksum if manifest.program is not None else "",
        manifest.migration,
    )


Read = Callable[[str, int], CommitPoint | None]


def _deploys(found: Iterable[CommitPoint], read: Read) -> Iterator[Mark]:
    """Where the program or the columns of a stage changed, between two points of it."""
    by_stage: dict[str, list[CommitPoint]] = {}
    for each in found:
        by_stage.setdefault(each.stage, []).append(each)

    def changed() -> Iterator[tuple[MarkKind, str, CommitPoint]]:
        for commits in by_stage.values():
            for before, after in pairwise(sorted(commits, key=lambda one: one.version)):
                if before.migration != after.migration:
                    yield "migration", "migration", _first(before, after, read, lambda one: one.migration)
                elif before.program and after.program not in (before.program, ""):
                    yield "deploy", "a new program", _first(before, after, read, lambda one: one.program)

    for kind, label, at in islice(changed(), _MOST_SEARCHES):
        yield Mark(kind, at.time_ms, label, at.stage, at.version)


def _first(before: CommitPoint, after: CommitPoint, read: Read, of: Callable[[CommitPoint], object]) -> CommitPoint:
    """The first version behind `before`, up to `after`, at which something is no longer what it was."""
    low, high, was, found = before.version, after.version, of(before), after
    while high - low > 1:
        middle = (low + high) // 2
        one = read(after.stage, middle)
        if one is None or of(one) == was:
            low = middle
        else:
            high, found = middle, one
    return found


def _notes(store: ObjectStore, app: str, notes: Notes[T], listed: Iterable[ObjectInfo]) -> Iterator[T]:
    """What lies there; each is read once."""
    with _lock:
        known = _known_notes.setdefault(store, LRUCache(_KNOWN_NOTES))
    for info in listed:
        with _lock:
            found = known.get(info)
        if found is None and (found := next(notes.read(store, (info,), app), None)) is not None:
            with _lock:
                known[info] = found
        if found is not None:
            yield found


def _snapshots(store: ObjectStore, app: str, read: Read, ranks: Mapping[str, int]) -> Iterator[Mark]:
    listed = sorted(SNAPSHOTS.listed(store, app), key=lambda info: -info.modified_ms)[:_MOST_MARKS]
    for each in _notes(store, app, SNAPSHOTS, listed):
        if not each.name.startswith(REPLICA_CUT):
            # Its newest version was committed when it is of; it may have been written later.
            stage = max(each.stages, key=lambda name: ranks.get(name, -1), default="")
            at = read(stage, each.stages[stage]) if stage else None
            yield Mark("snapshot", each.completed_ms if at is None else at.time_ms, each.name, by=each.by)


def _operations(store: ObjectStore, app: str, read: Read) -> Iterator[Mark]:
    listed = sorted(OPERATIONS.listed(store, app), key=lambda info: info.key, reverse=True)[:_MOST_MARKS]
    for each in _notes(store, app, OPERATIONS, listed):
        if each.verb.partition(" ")[0] in _NOT_SHOWN:
            continue
        stage, version = next(iter(each.after.items()), ("", 0))
        at = read(stage, version) if stage else None
        time_ms = at.time_ms if at is not None else each.time_ms
        yield Mark(
            "operation", time_ms, f"{each.verb} {each.detail}".strip(), stage, version, by=each.by, why=each.message
        )


def _once(marks: Iterable[Mark]) -> Iterator[Mark]:
    """A migration of several stages, and one that is in the log of operations, too, is one mark; so is a deploy."""
    kept: list[Mark] = []
    # Operations say most.
    for each in sorted(marks, key=lambda one: (one.kind != "operation", one.time_ms)):
        is_there = any(
            each.kind in ("deploy", "migration")
            and abs(each.time_ms - one.time_ms) < _SAME_MS
            and (one.kind == each.kind or (one.kind == "operation" and one.label.startswith("migrate")))
            for one in kept
        )
        if not is_there:
            kept.append(each)
            yield each
