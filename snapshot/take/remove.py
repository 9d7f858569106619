"""Removing snapshots, with the records in flight that only they keep.

Clones of an app need what it stores, and clones of those. A clone's pin in its source names the clone. A clone of a
clone pins only the app that it was made from, and that one's first versions name SSTs of the first app, too; so the
manifests themselves are asked. Every version of a stage names no SST of another app that the one before it did not, so
the oldest that is left names all of them.
"""

from collections.abc import Iterator
from functools import cache
from itertools import chain

from ...errors import NotFound, Refused
from ...store.objects.protocol import ObjectStore
from ...store.versions import apps, history, keys
from ...store.versions.side_tables import all_ssts
from ..cut.stored import (
    SNAPSHOTS,
    Request,
    Snapshot,
    cancel,
    find_snapshot,
    list_snapshots,
    of_snapshot,
    open_requests,
    read_snapshot,
)
from .audit_log import Operation, find_operation, record_once


def check_unused(store: ObjectStore, app: str) -> None:
    """See that no clone lives from an app: in its own root, and in those that its pins name.

    One that was promoted does no more when none of its versions that are left shares an SST.

    Raises `Refused` (one does, or may, under a root of which nothing is to be seen here) and `Unavailable` (the store
    of a clone did not answer).
    """
    # What is left of an app whose identity is gone has no snapshots that anybody could have made.
    found = list_snapshots(store, app) if apps.find_app(store, app) is not None else ()
    pins = [snapshot for snapshot in found if snapshot.kind == "clone"]
    names = cache(lambda root: apps.called(store.at(root)))
    living = (
        (pin.clone, pin.clone_root)
        for pin in pins
        if clone_lives(store, pin) and not apps.name_in(names(pin.clone_root), pin.clone)
    )
    roots = sorted({"", *(pin.clone_root for pin in pins)})
    sharing = ((other, root) for root in roots for other, objects in shared(store, app, root) if objects)
    for clone, root in chain(living, sharing):
        first = f"remove {clone} first"
        if name := apps.name_in(names(root), clone):
            first = f"merge what {name} shares (slackwater compact {name} --full), and let gc collect what came before"
        raise Refused(
            f"app {clone!r}{_under(root)} lives from {app}: it is a clone, and shares its SSTs",
            hint=f"{first}; `slackwater app rm {app} --force` removes {app} all the same, and {clone} is damaged",
        )


def clone_lives(store: ObjectStore, snapshot: Snapshot) -> bool:
    """Whether the app for which a snapshot was pinned is there, or is being made.

    Raises `Refused` where that cannot be told.
    """
    elsewhere = snapshot.clone_root not in ("", store.url)
    target = store.at(snapshot.clone_root)
    if (note := apps.find_cloning(target, snapshot.clone)) is not None:
        origin = note.info.origin
        return origin is not None and (origin.app, note.snapshot) == (snapshot.app, snapshot.name)
    info = apps.find_app(target, snapshot.clone)
    if info is None:
        # A disk that is not mounted, or another machine's, reads as a store without apps.
        if elsewhere and next(iter(target.list_folders("")), None) is None:
            raise Refused(
                f"app {snapshot.clone!r} was cloned from snapshot {snapshot.name!r} of {snapshot.app} "
                f"under {snapshot.clone_root}, and from here nothing is to be seen there: it may live on",
                hint=f"do this where {snapshot.clone_root} can be read; or, if the clone is gone, remove what keeps "
                f"its state: slackwater snapshot rm {snapshot.app} {snapshot.name} --force",
            )
        return False
    origin = info.origin
    return origin is not None and (origin.app, origin.snapshot) == (snapshot.app, snapshot.name)


def shared(store: ObjectStore, app: str, root: str) -> Iterator[tuple[str, frozenset[str]]]:
    """The other apps under a root (empty: the app's own), and the SSTs of this app that each names."""
    where = store.at(root)
    roots = {"", store.url} if where is store else {store.url}
    for other in apps.list_apps(where):
        if where is store and other == app:
            continue
        named: set[str] = set()
        for stage in history.list_stages(where, other):
            for version in history.versions(where, other, stage)[:1]:
                ssts = all_ssts(history.read(where, other, stage, version))
                named |= {sst.object for sst in ssts if sst.root in roots and sst.object.startswith(f"{app}/")}
        yield other, frozenset(named)


def _pinned(store: ObjectStore, snapshot: Snapshot) -> frozenset[str]:
    try:
        cut = of_snapshot(store, snapshot)
    except NotFound:
        return frozenset()  # it keeps nothing whole any more
    return frozenset(sst.object for manifest in cut.stages.values() for sst in all_ssts(manifest))


def _under(root: str) -> str:
    return f" under {root}" if root else ""


def remove_or_withdraw(
    store: ObjectStore, app: str, name: str, *, by: str, force: bool = False, dry_run: bool = False
) -> Snapshot | Request | Operation:
    """Remove a snapshot, or withdraw the request for one; a call that was interrupted is finished by the same.

    Returns what is removed; of what an earlier call removed, the log's operation. With `dry_run`, nothing is changed.
    Raises as `check_removable`.
    """
    requests = [each for each in open_requests(store, app) if each.name == name]
    found = find_snapshot(store, app, name)
    if found is None and not requests and (earlier := find_operation(store, app, "snapshot rm", name.__eq__)):
        if not dry_run:
            remove_records(store, app, name)
        return earlier
    gone: Snapshot | Request
    gone = requests[0] if found is None and requests else check_removable(store, app, name, force=force)
    if not dry_run:
        # First, so that whoever repeats this after it was interrupted is told from whoever misspells a name.
        record_once(store, app, "snapshot rm", name, by, since_ms=gone.created_ms)
        for each in requests:
            cancel(store, app, each)
        if isinstance(gone, Snapshot):
            remove(store, app, name, force=force)
    return gone


def remove(store: ObjectStore, app: str, name: str, *, force: bool = False) -> Snapshot:
    """Delete a snapshot; what only it reached may then be collected. Returns what was deleted.

    Raises as `check_removable`.
    """
    snapshot = check_removable(store, app, name, force=force)
    SNAPSHOTS.remove(store, name, app)
    # After the document: what it named must not be missing while it is there.
    remove_records(store, app, name)
    return snapshot


def remove_records(store: ObjectStore, app: str, name: str) -> None:
    """Delete the records in flight that were kept under the name of a snapshot, but those that others share."""
    objects = [info.key for info in store.list(keys.snapshot_objects(app, name))]
    # Clones' pins may share them.
    shared = {key for other in list_snapshots(store, app) for key in other.object_keys} if objects else set()
    for key in objects:
        if key not in shared:
            store.delete(key)


def remove_pins_without_clone(store: ObjectStore, app: str, clone: str, clone_root: str) -> None:
    """Delete the pins for a clone of that name from which no app lives.

    To be called when there is an app of that name: nobody else can make a clone from another pin then. Such pins are
    left by calls that were interrupted, or that lost a race for the name, before their clone existed.
    """
    for each in list_snapshots(store, app):
        if (each.kind, each.clone, each.clone_root) == ("clone", clone, clone_root) and not clone_lives(store, each):
            remove(store, app, each.name)


def check_removable(store: ObjectStore, app: str, name: str, *, force: bool = False) -> Snapshot:
    """The snapshot of that name, if it may be removed.

    Raises `NotFound` (there is no such app or snapshot), and `Refused` (a clone lives from it, or a clone of that one,
    or may live under a root of which nothing is to be seen here; unless `force`).
    """
    snapshot = read_snapshot(store, app, name)
    if snapshot.kind != "clone" or force:
        return snapshot
    if clone_lives(store, snapshot):
        raise Refused(
            f"app {snapshot.clone!r}{_under(snapshot.clone_root)} is a clone that lives from snapshot {name!r} of "
            f"{app}: without it, its state may be collected",
            hint=f"remove the app {snapshot.clone} first, or damage it: slackwater snapshot rm {app} {name} --force",
        )
    # A pin whose clone is gone may be all that keeps SSTs for clones of that clone.
    others = (each for each in list_snapshots(store, app) if each.kind == "clone" and each.name != name)
    kept = _pinned(store, snapshot).difference(*(_pinned(store, each) for each in others))
    for root in sorted({"", snapshot.clone_root}) if kept else ():
        for other, objects in shared(store, app, root):
            if objects & kept:
                raise Refused(
                    f"app {other!r}{_under(root)} comes from {snapshot.clone!r}, and snapshot {name!r} of {app} keeps "
                    "part of its state",
                    hint=f"remove the app {other} first, or damage it: slackwater snapshot rm {app} {name} --force",
                )
    return snapshot
