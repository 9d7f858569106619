"""Removing snapshots, with the records in flight that only they keep."""

from ...errors import Refused
from ...store.objects.protocol import ObjectStore
from ...store.versions import keys
from ..cut.requests import Request, cancel, open_requests
from ..cut.stored import SNAPSHOTS, Snapshot, find_snapshot, list_snapshots, read_snapshot
from .audit_log import Operation, find_operation, record_once
from .dependents import check_pin_unused, clone_lives


def remove_or_withdraw(
    store: ObjectStore, app: str, name: str, *, by: str, force: bool = False, dry_run: bool = False
) -> Snapshot | Request | Operation:
    """Remove a snapshot, or withdraw the request for one; a call that was interrupted is finished by the same.

    Returns what is removed; of what an earlier call removed, the log's operation. With `dry_run`, nothing is changed.
    Raises as `check_removable`.
    """
    asked = [each for each in open_requests(store, app) if each.name == name]
    found = find_snapshot(store, app, name)
    if found is None and not asked and (earlier := find_operation(store, app, "snapshot rm", name.__eq__)):
        if not dry_run:
            remove_records(store, app, name)
        return earlier
    gone: Snapshot | Request = asked[0] if found is None and asked else check_removable(store, app, name, force=force)
    if not dry_run:
        # First, so that whoever repeats this after it was interrupted is told from whoever misspells a name.
        record_once(store, app, "snapshot rm", name, by, since_ms=gone.created_ms)
        for each in asked:
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

    Raises:
        NotFound: there is no such app or snapshot.
        Refused: a clone lives from it, or a clone of that one, or may live under a root of which nothing is to be seen
            here; unless `force`.
        Unavailable: the clone's store did not answer.
    """
    snapshot = read_snapshot(store, app, name)
    if snapshot.kind != "clone" or force:
        return snapshot
    if clone_lives(store, snapshot):
        under = f" under {snapshot.clone_root}" if snapshot.clone_root else ""
        raise Refused(
            f"app {snapshot.clone!r}{under} is a clone that lives from snapshot {name!r} of {app}: "
            "without it, its state may be collected",
            hint=f"remove the app {snapshot.clone} first, or say --force",
        )
    check_pin_unused(store, snapshot)
    return snapshot
