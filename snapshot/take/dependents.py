"""Who needs what an app stores: clones of it, and clones of those.

A clone's pin in its source names the clone. A clone of a clone pins only the app that it was made from, and that one's
first versions name SSTs of the first app, too; so the manifests themselves are asked. Every version of a stage names no
SST of another app that the one before it did not, so the oldest that is left names all of them.
"""

from collections.abc import Iterator

from ...errors import NotFound, Refused
from ...store.objects.protocol import ObjectStore
from ...store.versions import apps, history
from ...store.versions.aside import all_ssts
from ..cut.stored import Snapshot, list_snapshots, of_snapshot


def check_unused(store: ObjectStore, app: str) -> None:
    """See that no clone lives from an app: in its own root, and in those that its pins name.

    Raises:
        Refused: one does, or may, under a root of which nothing is to be seen here.
        Unavailable: the store of a clone did not answer.
    """
    # What is left of an app whose identity is gone has no snapshots that anybody could have made.
    found = list_snapshots(store, app) if apps.find_app(store, app) is not None else ()
    pins = [snapshot for snapshot in found if snapshot.kind == "clone"]
    for pin in pins:
        if clone_lives(store, pin):
            raise _needed(app, pin.clone, pin.clone_root)
    for root in sorted({"", *(pin.clone_root for pin in pins)}):
        for other, objects in shared(store, app, root):
            if objects:
                raise _needed(app, other, root)


def check_pin_unused(store: ObjectStore, snapshot: Snapshot) -> None:
    """See that a clone's pin, whose clone is gone, is not what keeps SSTs for clones of that clone.

    Raises `Refused` when it is: no other clone's pin keeps what they name.
    """
    others = [
        other for other in list_snapshots(store, snapshot.app) if other.kind == "clone" and other.name != snapshot.name
    ]
    kept = _pinned(store, snapshot).difference(*(_pinned(store, other) for other in others))
    if not kept:
        return
    for root in sorted({"", snapshot.clone_root}):
        for other, objects in shared(store, snapshot.app, root):
            if objects & kept:
                named = f"app {other!r}{f' under {root}' if root else ''}"
                raise Refused(
                    f"{named} comes from {snapshot.clone!r}, and snapshot {snapshot.name!r} of {snapshot.app} keeps "
                    "part of its state",
                    hint=f"remove the app {other} first, or say --force",
                )


def clone_lives(store: ObjectStore, snapshot: Snapshot) -> bool:
    """Whether the app for which a snapshot was pinned is there. Raises `Refused` where that cannot be told."""
    elsewhere = snapshot.clone_root not in ("", store.url)
    target = store.at(snapshot.clone_root)
    try:
        info = apps.read_app(target, snapshot.clone)
    except NotFound:
        # A disk that is not mounted, or another machine's, reads as a store without apps.
        if elsewhere and next(iter(target.list_folders("")), None) is None:
            raise Refused(
                f"app {snapshot.clone!r} was cloned from snapshot {snapshot.name!r} of {snapshot.app} "
                f"under {snapshot.clone_root}, and from here nothing is to be seen there: it may live on",
                hint=f"do this where {snapshot.clone_root} can be read, or say --force if the clone is gone",
            ) from None
        return False
    origin = info.origin
    return origin is not None and (origin.app, origin.snapshot) == (snapshot.app, snapshot.name)


def shared(store: ObjectStore, app: str, root: str) -> Iterator[tuple[str, frozenset[str]]]:
    """The other apps under a root (empty: the app's own), and the SSTs of this app that each names."""
    where = store.at(root)
    homes = {"", store.url} if where is store else {store.url}
    for other in apps.list_apps(where):
        if where is store and other == app:
            continue
        named: set[str] = set()
        for stage in history.list_stages(where, other):
            for version in history.versions(where, other, stage)[:1]:
                ssts = all_ssts(history.read(where, other, stage, version))
                named |= {sst.object for sst in ssts if sst.root in homes and sst.object.startswith(f"{app}/")}
        yield other, frozenset(named)


def _pinned(store: ObjectStore, snapshot: Snapshot) -> frozenset[str]:
    try:
        cut = of_snapshot(store, snapshot)
    except NotFound:
        return frozenset()  # it keeps nothing whole any more
    return frozenset(sst.object for manifest in cut.stages.values() for sst in all_ssts(manifest))


def _needed(app: str, clone: str, root: str) -> Refused:
    return Refused(
        f"app {clone!r}{f' under {root}' if root else ''} lives from {app}: it is a clone, and shares its SSTs",
        hint=f"remove {clone} first; with --force {app} goes all the same, and {clone} is damaged",
    )
