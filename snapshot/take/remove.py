"""Removing snapshots, with the records in flight that only they keep."""

from ...errors import NotFound
from ...store.objects.protocol import ObjectStore
from ...store.versions import keys
from ...store.versions.side_tables import all_ssts
from ..cut.replicas import PREFIX
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
from ..under_way.clones import clone_lives, shared, under
from ..under_way.exclusion import HERE, Intent, check_exclusion, refusal
from ..under_way.signs import Sign, UnderWay
from .audit_log import Operation, find_operation, record_once


def _pinned(store: ObjectStore, snapshot: Snapshot) -> frozenset[str]:
    try:
        cut = of_snapshot(store, snapshot)
    except NotFound:
        return frozenset()  # it keeps nothing whole any more
    return frozenset(sst.object for manifest in cut.stages.values() for sst in all_ssts(manifest))


def remove_or_withdraw(
    store: ObjectStore, app: str, name: str, *, by: str, force: bool = False, dry_run: bool = False
) -> Snapshot | Request | Operation:
    """Remove a snapshot, or withdraw the request for one; a call that was interrupted is finished by the same.

    Returns what is removed; of what an earlier call removed, the log's operation. With `dry_run`, nothing is changed.
    Raises as `check_removable`.
    """
    if name.startswith(PREFIX):
        check_exclusion(store, app, Intent.REMOVE_SNAPSHOT, *HERE, dry_run=dry_run)
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
    hint = f"first, or damage it: slackwater snapshot rm {app} {name} --force"
    if clone_lives(store, snapshot):
        of = f"app {snapshot.clone!r}{under(snapshot.clone_root)}"
        fact = f"{of} is a clone that lives from snapshot {name!r} of {app}: without it, its state may be collected"
        raise refusal(Intent.REMOVE_SNAPSHOT, Sign(UnderWay.CLONES, fact, f"remove the app {snapshot.clone} {hint}"))
    # A pin whose clone is gone may be all that keeps SSTs for clones of that clone.
    others = (each for each in list_snapshots(store, app) if each.kind == "clone" and each.name != name)
    kept = _pinned(store, snapshot).difference(*(_pinned(store, each) for each in others))
    for root in sorted({"", snapshot.clone_root}) if kept else ():
        for other, objects in shared(store, app, root):
            if objects & kept:
                of = f"app {other!r}{under(root)} comes from {snapshot.clone!r}"
                fact = f"{of}, and snapshot {name!r} of {app} keeps part of its state"
                raise refusal(Intent.REMOVE_SNAPSHOT, Sign(UnderWay.CLONES, fact, f"remove the app {other} {hint}"))
    return snapshot
