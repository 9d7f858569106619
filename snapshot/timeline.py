"""Walking and searching the versions of an app's stages, reading no manifest without need."""

from collections.abc import Callable, Iterable, Iterator
from heapq import heapify, heappop, heappush

from ..store import history
from ..store.errors import NotFound
from ..store.manifest import Manifest
from ..store.objects import ObjectStore

__all__ = ["before", "newest_first", "newest_where"]


def before(store: ObjectStore, manifest: Manifest) -> Manifest | None:
    """The version before this one, or None where the stage's kept history begins."""
    if manifest.version == 1 or manifest.kind == "clone":
        return None
    try:
        return history.read(store, manifest.app, manifest.stage, manifest.version - 1)
    except NotFound:
        return None


def newest_first(store: ObjectStore, app: str, stages: Iterable[str]) -> Iterator[Manifest]:
    """The versions of all these stages in one line, newest commit first; reads one ahead per stage."""
    heads = (history.head(store, app, stage) for stage in stages)
    ahead = [(-head.time_ms, head.stage, head) for head in heads if head is not None]
    heapify(ahead)
    while ahead:
        _, stage, manifest = heappop(ahead)
        yield manifest
        if earlier := before(store, manifest):
            heappush(ahead, (-earlier.time_ms, stage, earlier))


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
