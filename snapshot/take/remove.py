"""Remove snapshots, with the in-flight records that only they keep."""

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


def _pinned_ssts(store: ObjectStore, snapshot: Snapshot) -> frozenset[str]:
    try:
        cut = of_snapshot(store, snapshot)
    except NotFound:
        return frozenset()  # some of its manifests are gone
    return frozenset(sst.object for manifest in cut.stages.values() for sst in all_ssts(manifest))


def remove_or_withdraw(
    store: ObjectStore, app: str, name: str, *, by: str, force: bool = False, dry_run: bool = False
) -> Snapshot | Request | Operation:
    """Remove a snapshot, or withdraw the request for one. Safe to repeat after an interruption.

    Returns what was removed, or the audit log's operation if an earlier call removed it. With `dry_run`, nothing
    changes. Raises the errors of `check_removable`.
    """
    if name.startswith(PREFIX):
        check_exclusion(store, app, Intent.REMOVE_SNAPSHOT, *HERE, dry_run=dry_run)
    requests = [open_request for open_request in open_requests(store, app) if open_request.name == name]
    snapshot = find_snapshot(store, app, name)
    if snapshot is None and not requests and (earlier := find_operation(store, app, "snapshot rm", name.__eq__)):
        if not dry_run:
            remove_records(store, app, name)
        return earlier
    removed: Snapshot | Request
    removed = requests[0] if snapshot is None and requests else check_removable(store, app, name, force=force)
    if not dry_run:
        # Recorded first, to distinguish a retry of an interrupted call from a misspelled name.
        record_once(store, app, "snapshot rm", name, by, since_ms=removed.created_ms)
        for open_request in requests:
            cancel(store, app, open_request)
        if isinstance(removed, Snapshot):
            remove(store, app, name, force=force)
    return removed


def remove(store: ObjectStore, app: str, name: str, *, force: bool = False) -> Snapshot:
    """Delete a snapshot and return it; versions that only it reached may then be collected.

    Raises the errors of `check_removable`.
    """
    snapshot = check_removable(store, app, name, force=force)
    SNAPSHOTS.remove(store, name, app)
    # After the document, which must never name missing objects.
    remove_records(store, app, name)
    return snapshot


def remove_records(store: ObjectStore, app: str, name: str) -> None:
    """Delete the in-flight records of a snapshot's name, except those that other snapshots share."""
    objects = [info.key for info in store.list(keys.snapshot_objects(app, name))]
    # Pins for clones may share them.
    shared = {key for other in list_snapshots(store, app) for key in other.object_keys} if objects else set()
    for key in objects:
        if key not in shared:
            store.delete(key)


def remove_pins_without_clone(store: ObjectStore, app: str, clone: str, clone_root: str) -> None:
    """Delete pins for a clone of that name without an app that uses them.

    Requires that an app of that name exists, so that no other pin can still become a clone. Such pins are
    left by interrupted calls, or by calls that lost a race for the name.
    """
    for snapshot in list_snapshots(store, app):
        if (snapshot.kind, snapshot.clone, snapshot.clone_root) == ("clone", clone, clone_root) and not clone_lives(
            store, snapshot
        ):
            remove(store, app, snapshot.name)


def check_removable(store: ObjectStore, app: str, name: str, *, force: bool = False) -> Snapshot:
    """Return the snapshot of that name if it may be removed.

    Raises `NotFound` if the app or snapshot does not exist. Without `force`, raises `Refused` if a clone, or a clone of
    this clone, uses the snapshot's files, or may use them in a store that is unreachable from here.
    """
    snapshot = read_snapshot(store, app, name)
    if snapshot.kind != "clone" or force:
        return snapshot
    hint = f"first; or, which damages it: slackwater snapshot rm {app} {name} --force"
    if clone_lives(store, snapshot):
        label = f"app {snapshot.clone!r}{under(snapshot.clone_root)}"
        fact = (
            f"{label} is a clone that uses snapshot {name!r} of {app}: without it, the clone's files may be collected"
        )
        raise refusal(Intent.REMOVE_SNAPSHOT, Sign(UnderWay.CLONES, fact, f"remove the app {snapshot.clone} {hint}"))
    # A pin whose clone is gone may still protect SSTs that clones of this clone use.
    other_pins = (
        other_pin for other_pin in list_snapshots(store, app) if other_pin.kind == "clone" and other_pin.name != name
    )
    only_here = _pinned_ssts(store, snapshot).difference(*(_pinned_ssts(store, other_pin) for other_pin in other_pins))
    for root in sorted({"", snapshot.clone_root}) if only_here else ():
        for other, objects in shared(store, app, root):
            if objects & only_here:
                label = f"app {other!r}{under(root)} was cloned from {snapshot.clone!r}"
                fact = f"{label}, and uses files that snapshot {name!r} of {app} keeps"
                raise refusal(Intent.REMOVE_SNAPSHOT, Sign(UnderWay.CLONES, fact, f"remove the app {other} {hint}"))
    return snapshot
