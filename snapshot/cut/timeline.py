"""Searching the versions of a stage, reading no manifest without need."""

from collections.abc import Callable
from contextlib import suppress

from ...store.objects.protocol import ObjectInfo, ObjectStore
from ...store.versions import history, keys
from ...store.versions.manifest import Manifest


def list_manifests(store: ObjectStore, app: str, stage: str) -> dict[int, ObjectInfo]:
    """The manifests of a stage that are stored, by version, ascending; collectable ones included."""
    found = {}
    for info in store.list(keys.manifests(app, stage)):
        with suppress(ValueError):  # a file that somebody left there is none of ours
            found[keys.version_of(info.key)] = info
    return dict(sorted(found.items()))


def before(store: ObjectStore, manifest: Manifest) -> Manifest | None:
    """The version before this one, or None where the stage's kept history begins."""
    if manifest.version == 1 or manifest.begins:
        return None
    return history.find(store, manifest.app, manifest.stage, manifest.version - 1)


def newest_where(
    read: Callable[[str, int], Manifest],
    first: Callable[[str], int],
    newest: Manifest,
    holds: Callable[[Manifest], bool],
) -> Manifest | None:
    """The newest of a stage's versions, from its `first` up to `newest`, for which `holds`, or None when there is none.

    A binary search: `holds` must be true up to some version and false after it. For `newest` itself nothing is read.
    """
    if holds(newest):
        return newest
    best: Manifest | None = None
    low, high = first(newest.stage), newest.version - 1
    while low <= high:
        middle = (low + high) // 2
        manifest = read(newest.stage, middle)
        if holds(manifest):
            best, low = manifest, middle + 1
        else:
            high = middle - 1
    return best
