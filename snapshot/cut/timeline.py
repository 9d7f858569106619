"""Searching the versions of a stage, reading no manifest without need."""

from collections.abc import Callable

from ...store.objects.protocol import ObjectStore
from ...store.versions import history
from ...store.versions.manifest import Manifest


def before(store: ObjectStore, manifest: Manifest) -> Manifest | None:
    """The version before this one, or None where the stage's kept history begins."""
    if manifest.version == 1 or manifest.kind == "clone":
        return None
    return history.find(store, manifest.app, manifest.stage, manifest.version - 1)


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
