"""Clones of an app: those that share its SSTs, and those that are being created.

A clone's pin in its source names the clone. A clone of a clone pins only its direct source, but its
first versions name SSTs of the first app as well, so the manifests themselves are read. A stage's later versions name
no additional SSTs of other apps, so reading the oldest remaining version suffices.
"""

from collections.abc import Iterator
from functools import cache
from itertools import chain

from ...errors import Refused
from ...store.objects.protocol import ObjectStore
from ...store.versions import apps, history
from ...store.versions.side_tables import all_ssts
from ..cut.stored import Snapshot, list_snapshots


def living(store: ObjectStore, app: str) -> Iterator[tuple[str, str]]:
    """Yield the clones that use an app's files, each with its root.

    Looks in the app's own root, and in those that its pins name. A promoted clone no longer counts once its
    remaining versions share no SST. Raises `Refused` if a clone may exist under a root that is unreachable from here,
    and `Unavailable` if a clone's store did not answer.
    """
    pins = _pins(store, app)
    names = cache(lambda root: apps.called(store.at(root)))
    pinned = (
        (pin.clone, pin.clone_root)
        for pin in pins
        if clone_lives(store, pin) and not apps.name_in(names(pin.clone_root), pin.clone)
    )
    sharing = ((other, root) for root in _roots(pins) for other, objects in shared(store, app, root) if objects)
    return chain(pinned, sharing)


def being_made(store: ObjectStore, app: str) -> Iterator[str]:
    """Yield the unfinished clones of an app, in its own root and in those that its pins name."""
    for root in _roots(_pins(store, app)):
        clone_store = store.at(root)
        for name in apps.list_cloning(clone_store):
            note = apps.find_cloning(clone_store, name)
            origin = note.info.origin if note is not None and note.root in ("", store.url) else None
            if origin is not None and origin.app == app:
                yield name


def _pins(store: ObjectStore, app: str) -> list[Snapshot]:
    # A half-removed app without an identity has no valid snapshots.
    snapshots = list_snapshots(store, app) if apps.find_app(store, app) is not None else ()
    return [snapshot for snapshot in snapshots if snapshot.kind == "clone"]


def _roots(pins: list[Snapshot]) -> list[str]:
    return sorted({"", *(pin.clone_root for pin in pins)})


def clone_lives(store: ObjectStore, snapshot: Snapshot) -> bool:
    """Return True if the app for which a snapshot was pinned exists, or is being created.

    Raises `Refused` if its store is unreachable from here.
    """
    elsewhere = snapshot.clone_root not in ("", store.url)
    target = store.at(snapshot.clone_root)
    if (note := apps.find_cloning(target, snapshot.clone)) is not None:
        origin = note.info.origin
        return origin is not None and (origin.app, note.snapshot) == (snapshot.app, snapshot.name)
    info = apps.find_app(target, snapshot.clone)
    if info is None:
        # An unmounted disk, or one of another machine, looks like an empty store.
        if elsewhere and next(iter(target.list_folders("")), None) is None:
            raise Refused(
                f"app {snapshot.clone!r} was cloned from snapshot {snapshot.name!r} of {snapshot.app} "
                f"under {snapshot.clone_root}, which cannot be read from here: the clone may still exist",
                hint=f"run this where {snapshot.clone_root} can be read; or, if the clone is gone, remove its "
                f"snapshot: slackwater snapshot rm {snapshot.app} {snapshot.name} --force",
            )
        return False
    origin = info.origin
    return origin is not None and (origin.app, origin.snapshot) == (snapshot.app, snapshot.name)


def shared(store: ObjectStore, app: str, root: str) -> Iterator[tuple[str, frozenset[str]]]:
    """Yield the other apps under a root (empty: the app's own), each with the SSTs of this app that it names."""
    other_store = store.at(root)
    roots = {"", store.url} if other_store is store else {store.url}
    for other in apps.list_apps(other_store):
        if other_store is store and other == app:
            continue
        sst_keys: set[str] = set()
        for stage in history.list_stages(other_store, other):
            for version in history.versions(other_store, other, stage)[:1]:
                ssts = all_ssts(history.read(other_store, other, stage, version))
                sst_keys |= {sst.object for sst in ssts if sst.root in roots and sst.object.startswith(f"{app}/")}
        yield other, frozenset(sst_keys)


def under(root: str) -> str:
    """Return the root of an app as a suffix for messages; empty for the same root."""
    return f" under {root}" if root else ""
