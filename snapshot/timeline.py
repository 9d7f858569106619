"""Walking and searching the versions of an app's stages, reading no manifest without need."""

from collections.abc import Callable, Iterable, Iterator
from heapq import heapify, heappop, heappush

from ..store import boundary, history
from ..store.boundary import Boundary
from ..store.manifest import Manifest
from ..store.objects import ObjectStore

__all__ = ["before", "newest_first", "newest_where"]


def before(store: ObjectStore, manifest: Manifest) -> Manifest | None:
    """The version before this one, or None where the stage's kept history begins."""
    if manifest.version == 1 or manifest.kind == "clone":
        return None
    return history.find(store, manifest.app, manifest.stage, manifest.version - 1)


def newest_first(store: ObjectStore, app: str, stages: Iterable[str], *, thinned: bool = False) -> Iterator[Manifest]:
    """The versions of all these stages in one line, newest commit first; reads one ahead per stage.

    Of a stage whose history was collected those from which on it is whole; with `thinned` then also those left before.
    """
    limit = boundary.newest(store, app)
    heads = (history.head(store, app, stage) for stage in stages)
    ahead = [(-head.time_ms, head.stage, head) for head in heads if head is not None]
    heapify(ahead)
    while ahead:
        _, stage, manifest = heappop(ahead)
        yield manifest
        if earlier := _earlier(store, manifest, limit, thinned):
            heappush(ahead, (-earlier.time_ms, stage, earlier))


def _earlier(store: ObjectStore, manifest: Manifest, limit: Boundary | None, thinned: bool) -> Manifest | None:
    if limit is None or manifest.version > limit.first.get(manifest.stage, 0):
        return before(store, manifest)
    left = [version for version in limit.kept.get(manifest.stage, ()) if version < manifest.version]
    return history.find(store, manifest.app, manifest.stage, left[-1]) if thinned and left else None


def newest_where(
    read: Callable[[int], Manifest], low: int, high: int, holds: Callable[[Manifest], bool]
) -> Manifest | None:
    """The newest of the versions `low`..`high` for which `holds`, or None when it holds for none.

    A binary search: `holds` must be true up to some version and false after it.
    """
    best: Manifest | None = None
    while low <= high:
        middle = (low + high) // 2
        manifest = read(middle)
        if holds(manifest):
            best, low = manifest, middle + 1
        else:
            high = middle - 1
    return best
