"""Pinning, moving and removing of snapshots. A snapshot is one object, written once, for any size of the state.

The removal of a snapshot also deletes in-flight records that no other snapshot shares.
"""

from msgspec.structs import replace

from ...common import runtime
from ...errors import NotFound, Refused, SlackwaterError
from ...store.objects.protocol import ObjectStore, exists
from ...store.versions import history, horizon, keys
from ...store.versions.side_tables import named_objects
from ..cut.graph import Cut, violations
from ..cut.in_flight import in_flight
from ..cut.kafka_topics import KafkaTopics
from ..cut.refs import check_new_name
from ..cut.replicas import REPLICA_SNAPSHOT_PREFIX
from ..cut.stored import (
    SNAPSHOTS,
    Snapshot,
    SnapshotKind,
    SnapshotRequest,
    check_not_asked,
    cut_of_snapshot,
    find_snapshot,
    list_snapshots,
    open_requests,
    read_snapshot,
    withdraw_request,
)
from ..under_way.exclusion import (
    RUNS_ELSEWHERE,
    AppCondition,
    Evidence,
    Intent,
    apps_sharing_objects,
    check_exclusion,
    clone_exists,
    refusal_error,
    root_suffix,
)
from .audit_log import Operation, find_operation, record_operation_once
from .capture import capture_in_flight, delete_captured


def pin_cut(
    store: ObjectStore,
    cut: Cut,
    name: str,
    kind: SnapshotKind = "instant",
    *,
    by: str = "",
    clone: str = "",
    clone_root: str = "",
    reader: KafkaTopics | None = None,
    keeper: Snapshot | None = None,
) -> Snapshot:
    """Pin a cut under a name. Idempotent if the versions and the purpose are equal.

    With a `reader`, in-flight records are captured. Otherwise the snapshot shares the records of `keeper`, another
    snapshot of the cut. Records that are neither captured nor shared stay in Kafka until its retention ends.

    Raises `Usage` (invalid name), `NotFound` (a version of the cut was collected, or is about to be; `keeper` was
    removed), `Corruption` (there are fewer or more in-flight records than the senders' manifests declare), and
    `Refused` (a requested snapshot already has the name; a stored snapshot of this name has different versions or fewer
    records; the cut is empty or inconsistent; in-flight records are gone; or keys are being forgotten, and the snapshot
    has records or is for a clone).
    """
    check_new_name("snapshot", name)
    problems = violations(cut.stages)
    if problems or not cut.stages:
        raise Refused(
            f"cannot pin {cut.app}@{name}: " + ("; ".join(problems) or "no stage has a version at that moment")
        )
    check_not_asked(store, cut.app, name)
    shared = keeper.channels if keeper is not None else ()

    def if_same(existing: Snapshot) -> Snapshot:
        pins = (existing.stages, existing.kind, existing.clone, existing.clone_root)
        if pins != (cut.versions, kind, clone, clone_root) or not set(shared) <= set(existing.channels):
            raise name_is_taken(existing)
        return _check_complete(store, existing, keeper)

    if (existing := find_snapshot(store, cut.app, name)) is not None:
        return if_same(existing)
    captured = capture_in_flight(store, cut.app, name, in_flight(store, cut), reader) if reader is not None else ()
    snapshot = replace(
        _new_snapshot(cut, name, by, kind), clone=clone, clone_root=clone_root, channels=captured or shared
    )
    written = SNAPSHOTS.add(store, snapshot)
    if written != snapshot:
        delete_captured(store, captured)
        return if_same(written)
    try:
        _check_complete(store, written, keeper)
        for item in (item for channel in captured for item in channel.objects):
            # Objects may be collected until a snapshot names them.
            if not exists(store, item.key):
                raise Refused(
                    f"capturing in-flight records took so long that {item.key} was collected", hint="take it again"
                )
    except SlackwaterError:
        SNAPSHOTS.remove(store, name, cut.app)
        delete_captured(store, captured)
        raise
    return written


def move_snapshot(store: ObjectStore, snapshot: Snapshot, cut: Cut, *, by: str = "") -> Snapshot:
    """Move the name of an instant snapshot to another cut, with one put: the name exists at all times.

    The moved snapshot has no in-flight records. If two processes move it at the same time, the later put wins. Raises
    `NotFound` if a version of the cut was collected, or is about to be collected. In that case the snapshot is
    restored, or removed if its old versions are gone as well.
    """
    moved = _new_snapshot(cut, snapshot.name, by)
    SNAPSHOTS.put(store, moved)
    try:
        return _check_complete(store, moved, None)
    except NotFound:
        SNAPSHOTS.put(store, snapshot)
        try:
            _check_complete(store, snapshot, None)  # garbage collection may have missed this snapshot
        except NotFound:
            SNAPSHOTS.remove(store, snapshot.name, snapshot.app)
        raise


def _new_snapshot(cut: Cut, name: str, by: str, kind: SnapshotKind = "instant") -> Snapshot:
    ulid = runtime.ulid()
    asked_ms = completed_ms = ulid.milliseconds
    return Snapshot(name, str(ulid), cut.app, asked_ms, completed_ms, kind, cut.versions, by)


def _check_complete(store: ObjectStore, written: Snapshot, keeper: Snapshot | None) -> Snapshot:
    """Return a written snapshot if all of its versions exist and will not be collected. Raises `NotFound`.

    Must be called after the snapshot was written. A concurrent removal of `keeper`, or a concurrent collection, either
    sees the written snapshot, or is detected here.
    """
    if keeper is not None and keeper.channels and find_snapshot(store, keeper.app, keeper.name) != keeper:
        raise NotFound(
            f"snapshot of app {keeper.app!r}",
            keeper.name,
            found="it was removed while another snapshot was about to share its in-flight records",
            hint="choose another moment",
        )
    history.list_stages(store, written.app)  # raises if the app is being removed, which is noticed here in the same way
    if written.channels or written.clone:
        check_exclusion(store, written.app, Intent.CLONE if written.clone else Intent.PIN)
    limit = horizon.newest(store, written.app)
    for stage, version in written.stages.items():
        if not limit.allows(stage, version):
            raise NotFound(
                f"moment of app {written.app!r}",
                written.name,
                found=f"{stage}@v{version} was collected before it could be pinned",
                hint=f"choose a later moment; `slackwater log {written.app}` lists the versions",
            )
    return written


def name_is_taken(written: Snapshot) -> Refused:
    versions = ", ".join(f"{stage}@v{version}" for stage, version in written.stages.items())
    return Refused(
        f"snapshot {written.name!r} of {written.app} exists already ({versions})",
        hint=f"choose another name, or remove it with `slackwater snapshot rm {written.app} {written.name}`",
    )


def _pinned_objects(store: ObjectStore, snapshot: Snapshot) -> frozenset[str]:
    try:
        cut = cut_of_snapshot(store, snapshot)
    except NotFound:
        return frozenset()  # some of its manifests are gone
    return frozenset(key for manifest in cut.stages.values() for _, key in named_objects(manifest))


def remove_or_withdraw(
    store: ObjectStore, app: str, name: str, *, by: str, force: bool = False, dry_run: bool = False
) -> Snapshot | SnapshotRequest | Operation:
    """Remove a snapshot, or withdraw the request for a snapshot. Safe to repeat after an interruption.

    Returns the removed snapshot or request, or the operation in the audit log if an earlier call removed it. With
    `dry_run`, nothing changes. Raises the errors of `check_removable`.
    """
    if name.startswith(REPLICA_SNAPSHOT_PREFIX):
        check_exclusion(store, app, Intent.REMOVE_SNAPSHOT, *RUNS_ELSEWHERE, dry_run=dry_run)
    requests = [open_request for open_request in open_requests(store, app) if open_request.name == name]
    snapshot = find_snapshot(store, app, name)
    if snapshot is None and not requests and (earlier := find_operation(store, app, "snapshot rm", name.__eq__)):
        if not dry_run:
            remove_records(store, app, name)
        return earlier
    removed: Snapshot | SnapshotRequest
    removed = requests[0] if snapshot is None and requests else check_removable(store, app, name, force=force)
    if not dry_run:
        # Recorded first, so that a retry of an interrupted call differs from a misspelled name.
        record_operation_once(store, app, "snapshot rm", name, by, since_ms=removed.created_ms)
        for open_request in requests:
            withdraw_request(store, app, open_request)
        if isinstance(removed, Snapshot):
            delete_snapshot(store, app, name, force=force)
    return removed


def delete_snapshot(store: ObjectStore, app: str, name: str, *, force: bool = False) -> Snapshot:
    """Delete a snapshot and return it. Versions pinned by no other snapshot may then be collected.

    Raises the errors of `check_removable`.
    """
    snapshot = check_removable(store, app, name, force=force)
    SNAPSHOTS.remove(store, name, app)
    # After the snapshot object, which must never name missing objects.
    remove_records(store, app, name)
    return snapshot


def remove_records(store: ObjectStore, app: str, name: str) -> None:
    """Delete the captured objects under a snapshot's name, except those that other snapshots share."""
    objects = [info.key for info in store.list(keys.snapshot_objects(app, name))]
    # Pins for clones may share them.
    shared = {key for other in list_snapshots(store, app) for key in other.object_keys} if objects else set()
    for key in objects:
        if key not in shared:
            store.delete(key)


def remove_pins_without_clone(store: ObjectStore, app: str, clone: str, clone_root: str) -> None:
    """Delete an app's pins for a clone of this name that no clone uses.

    Call this only after an app of the clone's name exists, so that no pin can still become a clone. Interrupted calls,
    and calls that lost a race for the name, leave unused pins.
    """
    for snapshot in list_snapshots(store, app):
        if (snapshot.kind, snapshot.clone, snapshot.clone_root) == ("clone", clone, clone_root) and not clone_exists(
            store, snapshot
        ):
            delete_snapshot(store, app, snapshot.name)


def check_removable(store: ObjectStore, app: str, name: str, *, force: bool = False) -> Snapshot:
    """Return a snapshot if it may be removed.

    Raises `NotFound` if the app or snapshot does not exist. Without `force`, raises `Refused` if a clone, or a clone of
    this clone, uses the snapshot's files, or if a clone in an unreachable store may use them.
    """
    snapshot = read_snapshot(store, app, name)
    if snapshot.kind != "clone" or force:
        return snapshot

    def used_by(user: str, fact: str) -> Refused:
        hint = f"remove the app {user} first; or, which damages it: slackwater snapshot rm {app} {name} --force"
        return refusal_error(Intent.REMOVE_SNAPSHOT, Evidence(AppCondition.CLONES, fact, hint))

    if clone_exists(store, snapshot):
        label = f"app {snapshot.clone!r}{root_suffix(snapshot.clone_root)} is a clone that uses snapshot {name!r}"
        raise used_by(snapshot.clone, f"{label} of {app}: without it, the clone's files may be collected")
    # If a clone is gone, its pin may still protect SSTs that clones of this clone use.
    other_pins = (
        other_pin for other_pin in list_snapshots(store, app) if other_pin.kind == "clone" and other_pin.name != name
    )
    only_here = _pinned_objects(store, snapshot).difference(
        *(_pinned_objects(store, other_pin) for other_pin in other_pins)
    )
    for root in sorted({"", snapshot.clone_root}) if only_here else ():
        for other, objects in apps_sharing_objects(store, app, root):
            if objects & only_here:
                label = f"app {other!r}{root_suffix(root)} was cloned from {snapshot.clone!r}"
                raise used_by(other, f"{label}, and uses files that snapshot {name!r} of {app} keeps")
    return snapshot
