"""Time line of an app: a limited number of its commits as points, and annotations for notable events.

For each stage, every 2^n-th version is shown. So the selection stays stable while the history grows, and can be cached.
Versions are read from pages if a page has them. A deploy or a migration is noticed as a difference between two points,
and then located by binary search. Operations come from the audit log, and snapshots from a listing. So the cost depends
on the number of points, or of pages, and not on the length of the history.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice, pairwise
from typing import Any, Literal, TypeVar
from weakref import WeakKeyDictionary

from cachetools import LRUCache
from msgspec import Struct

from ...common import runtime
from ...errors import Corruption
from ...store.objects.many import map_concurrently
from ...store.objects.protocol import ObjectInfo, ObjectStore
from ...store.versions import apps, history
from ...store.versions.codec import JsonFolder
from ...store.versions.kinds import VersionKind
from ...store.versions.manifest import Manifest
from ...store.versions.pages.stored import PAGE_SIZES, StagePages
from ..cut.graph import topological_order
from ..cut.moments import heads_of, stages_of
from ..cut.replicas import REPLICA_SNAPSHOT_PREFIX as REPLICA_CUT
from ..cut.stored import SNAPSHOTS, Snapshot
from ..take.audit_log import OPERATIONS, Operation

T = TypeVar("T", bound=Struct)
AnnotationKind = Literal["snapshot", "deploy", "migration", "operation"]
_MAX_CONCURRENT_READS = 16
_POINTS_PER_PAGE = 4
"""Smallest number of points for which a page is read: a page has more bytes than a few manifests."""
_MAX_ANNOTATIONS = 100
_MAX_SEARCHES = 60
_MAX_CACHED_POINTS, _MAX_CACHED_OBJECTS = 100_000, 2_000
_MERGE_WINDOW_MS = 10_000
"""Commits of several stages with equal reasons become one annotation if they are at most this far apart, in ms."""
_UNANNOTATED_VERBS = ("snapshot", "token", "export", "protect", "watch", "archive")


@dataclass(frozen=True, slots=True)
class CommitPoint:
    """Version that is shown as a point on the time line."""

    stage: str
    version: int
    time_ms: int
    kind: VersionKind
    rows: int
    program: str
    """Checksum of the program that declares the stage; empty if the program was not in a file."""
    migration: int


@dataclass(frozen=True, slots=True)
class Annotation:
    """Annotation of the time line: a snapshot, a deploy, a migration or an operation."""

    kind: AnnotationKind
    time_ms: int
    label: str
    """Name of a snapshot, or description of an operation or program."""
    stage: str = ""
    version: int = 0
    by: str = ""
    why: str = ""


@dataclass(frozen=True, slots=True)
class ThinnedLine:
    """Commits of an app in a time range, as points: all of them, or a selection."""

    app: str
    commits: int
    points: tuple[CommitPoint, ...]
    """Points, oldest first: all commits, or about as many as requested, with each stage's first and last commit."""
    marks: tuple[Annotation, ...]

    @property
    def is_whole(self) -> bool:
        return len(self.points) == self.commits


# By store and by the app's creation time, since an app's name may be reused.
_cached_points: WeakKeyDictionary[ObjectStore, LRUCache[tuple[str, int, str, int], CommitPoint]] = WeakKeyDictionary()
_cached_objects: WeakKeyDictionary[ObjectStore, LRUCache[ObjectInfo, Any]] = WeakKeyDictionary()
"""Cached snapshots and operations, by key and modification time, since a name may be reused."""
_lock = runtime.lock()


def timeline(store: ObjectStore, app: str, *, points: int = 300, from_ms: int = 0, to_ms: int = 0) -> ThinnedLine:
    """Return the commits from `from_ms` (0: the first commit) to `to_ms` (0: the newest commit), both inclusive.

    Reads one object per page, per point outside of pages and per annotation, and a few per stage. Omits versions from
    before the gapless history, of which garbage collection kept only some. Raises `NotFound` if the app does not exist,
    and `Corruption` if the newest version of a stage is damaged.
    """
    created_ms = apps.read_app(store, app).created_ms
    with _lock:
        cache = _cached_points.setdefault(store, LRUCache(_MAX_CACHED_POINTS))
    heads = heads_of(store, app, stages_of(store, app))
    firsts = {stage: history.first_version(store, app, stage) for stage in heads}
    all_pages = {stage: history.pages_of(store, head, firsts[stage]) for stage, head in heads.items()}
    spans = {
        stage: _version_range(store, head, firsts[stage], all_pages[stage], from_ms, to_ms)
        for stage, head in heads.items()
    }
    commits = sum(map(len, spans.values()))
    versions_by_stage = {
        stage: _sample_versions(span, max(2, points * len(span) // commits) if commits > points else len(span))
        for stage, span in spans.items()
    }
    pages = {
        stage: pages
        for stage, versions in versions_by_stage.items()
        if len(spans[stage]) > PAGE_SIZES[0]
        and (pages := all_pages[stage]) is not None
        and pages.preload(versions, len(versions) // _POINTS_PER_PAGE)
    }

    def read(stage: str, version: int) -> CommitPoint | None:
        key = (app, created_ms, stage, version)
        with _lock:
            point = cache.get(key)
        if point is not None:
            return point
        with suppress(Corruption):  # left out of the points
            outline = pages[stage].outline(version) if stage in pages else None
            if (manifest := outline or history.find(store, app, stage, version)) is not None:
                point = _point_of(manifest)
                with _lock:
                    cache[key] = point
        return point

    ranks = {stage: rank for rank, stage in enumerate(topological_order(heads))}
    keys = [(stage, version) for stage, versions in versions_by_stage.items() for version in versions]
    commits_read = [
        point for point in map_concurrently(lambda at: read(*at), keys, _MAX_CONCURRENT_READS) if point is not None
    ]
    commits_read.sort(key=lambda point: (point.time_ms, ranks[point.stage], point.version))
    annotations = [
        *_deploy_annotations(commits_read, read),
        *_snapshot_annotations(store, app, read, ranks),
        *_operation_annotations(store, app, read),
    ]
    low, high = (commits_read[0].time_ms, commits_read[-1].time_ms) if commits_read else (0, 0)
    shown = (
        annotation
        for annotation in annotations
        if low <= annotation.time_ms and (not to_ms or annotation.time_ms <= max(high, to_ms))
    )
    return ThinnedLine(
        app,
        commits,
        tuple(commits_read),
        tuple(sorted(_merge_annotations(shown), key=lambda annotation: annotation.time_ms)),
    )


def _version_range(
    store: ObjectStore, head: Manifest, low: int, pages: StagePages | None, from_ms: int, to_ms: int
) -> range:
    """Return the versions from `low` on that were committed from `from_ms` to `to_ms`, as in `timeline`."""
    high = head.version
    if to_ms:
        last = history.newest_at(store, head, low, to_ms, pages)
        high = last.version if last is not None else low - 1
    if from_ms and high >= low:
        last_before = history.newest_at(store, head, low, from_ms - 1, pages)
        low = last_before.version + 1 if last_before is not None else low
    return range(low, high + 1)


def _sample_versions(span: range, count: int) -> list[int]:
    """Return about `count` numbers of a range: its ends, and multiples of a power of two in between."""
    if len(span) <= count:
        return list(span)
    step = 1 << (-(-len(span) // count) - 1).bit_length()
    return sorted({span[0], *range(-(-span[0] // step) * step, span[-1] + 1, step), span[-1]})


def _point_of(manifest: Manifest) -> CommitPoint:
    return CommitPoint(
        manifest.stage,
        manifest.version,
        manifest.time_ms,
        manifest.kind,
        sum(source.rows for source in manifest.inputs.values()),
        manifest.program.checksum if manifest.program is not None else "",
        manifest.migration,
    )


ReadPoint = Callable[[str, int], CommitPoint | None]


def _deploy_annotations(points: Iterable[CommitPoint], read: ReadPoint) -> Iterator[Annotation]:
    by_stage: dict[str, list[CommitPoint]] = {}
    for point in points:
        by_stage.setdefault(point.stage, []).append(point)

    def changed() -> Iterator[tuple[AnnotationKind, str, CommitPoint]]:
        for commits in by_stage.values():
            for previous, after in pairwise(sorted(commits, key=lambda point: point.version)):
                if previous.migration != after.migration:
                    yield "migration", "migration", _first_changed(previous, after, read, lambda point: point.migration)
                elif previous.program and after.program not in (previous.program, ""):
                    yield "deploy", "a new program", _first_changed(previous, after, read, lambda point: point.program)

    for kind, label, commit in islice(changed(), _MAX_SEARCHES):
        yield Annotation(kind, commit.time_ms, label, commit.stage, commit.version)


def _first_changed(
    before: CommitPoint, after: CommitPoint, read: ReadPoint, value_of: Callable[[CommitPoint], object]
) -> CommitPoint:
    low, high, old_value, first_changed = before.version, after.version, value_of(before), after
    while high - low > 1:
        middle = (low + high) // 2
        point = read(after.stage, middle)
        if point is None or value_of(point) == old_value:
            low = middle
        else:
            high, first_changed = middle, point
    return first_changed


def _annotate_cached(
    store: ObjectStore,
    app: str,
    notes: JsonFolder[T],
    listed: Iterable[ObjectInfo],
    annotate: Callable[[T], Annotation | None],
) -> Iterator[Annotation]:
    """Yield the annotations for the listed objects, which are read concurrently unless they are cached."""
    with _lock:
        cache = _cached_objects.setdefault(store, LRUCache(_MAX_CACHED_OBJECTS))

    def read(info: ObjectInfo) -> Annotation | None:
        with _lock:
            note = cache.get(info)
        if note is None and (note := next(notes.read(store, (info,), app), None)) is not None:
            with _lock:
                cache[info] = note
        return annotate(note) if note is not None else None

    return filter(None, map_concurrently(read, listed, _MAX_CONCURRENT_READS))


def _snapshot_annotations(
    store: ObjectStore, app: str, read: ReadPoint, ranks: Mapping[str, int]
) -> Iterator[Annotation]:
    def annotate(snapshot: Snapshot) -> Annotation | None:
        if snapshot.name.startswith(REPLICA_CUT):
            return None
        # The time of a snapshot's moment is the time of its newest version; the snapshot may have been written later.
        stage = max(snapshot.stages, key=lambda name: ranks.get(name, -1), default="")
        point = read(stage, snapshot.stages[stage]) if stage else None
        time_ms = snapshot.completed_ms if point is None else point.time_ms
        return Annotation("snapshot", time_ms, snapshot.name, by=snapshot.by)

    listed = sorted(SNAPSHOTS.listed(store, app), key=lambda info: -info.modified_ms)[:_MAX_ANNOTATIONS]
    return _annotate_cached(store, app, SNAPSHOTS, listed, annotate)


def _operation_annotations(store: ObjectStore, app: str, read: ReadPoint) -> Iterator[Annotation]:
    def annotate(operation: Operation) -> Annotation | None:
        if operation.verb.partition(" ")[0] in _UNANNOTATED_VERBS:
            return None
        stage, version = next(iter(operation.after.items()), ("", 0))
        point = read(stage, version) if stage else None
        time_ms = point.time_ms if point is not None else operation.time_ms
        label = f"{operation.verb} {operation.detail}".strip()
        return Annotation("operation", time_ms, label, stage, version, by=operation.by, why=operation.message)

    listed = sorted(OPERATIONS.listed(store, app), key=lambda info: info.key, reverse=True)[:_MAX_ANNOTATIONS]
    return _annotate_cached(store, app, OPERATIONS, listed, annotate)


def _merge_annotations(annotations: Iterable[Annotation]) -> Iterator[Annotation]:
    merged: list[Annotation] = []
    # Operations first, because their labels have the most information.
    for annotation in sorted(annotations, key=lambda annotation: (annotation.kind != "operation", annotation.time_ms)):
        is_there = any(
            annotation.kind in ("deploy", "migration")
            and abs(annotation.time_ms - other.time_ms) < _MERGE_WINDOW_MS
            and (other.kind == annotation.kind or (other.kind == "operation" and other.label.startswith("migrate")))
            for other in merged
        )
        if not is_there:
            merged.append(annotation)
            yield annotation
