"""Snapshots: named, pinned cuts. One object each, written once, whatever the size of the state."""

from ulid import ULID

from ...errors import NotFound, ObjectExists, Refused, SlackwaterError
from ...store.objects.protocol import ObjectStore, exists
from ...store.versions import apps, codec, history, horizon, keys
from ..cut.graph import Cut, violations
from ..cut.in_flight import in_flight
from ..cut.refs import check_snapshot_name
from ..cut.requests import check_not_asked
from ..cut.stored import Captured, Snapshot, SnapshotKind, find_snapshot, list_snapshots, read_snapshot
from .capture import ChannelReader, capture, discard

__all__ = [
    "check_removable",
    "clone_lives",
    "create",
    "pin",
    "remove",
    "remove_pins_without_clone",
    "remove_records",
    "taken",
]


def remove(store: ObjectStore, app: str, name: str, *, force: bool = False) -> Snapshot:
    """Delete a snapshot; what only it reached may then be collected. Returns what was deleted.

    Raises as `check_removable`.
    """
    snapshot = check_removable(store, app, name, force=force)
    store.delete(keys.snapshot(app, name))
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
    if snapshot.kind == "clone" and not force and clone_lives(store, snapshot):
        under = f" under {snapshot.clone_root}" if snapshot.clone_root else ""
        raise Refused(
            f"app {snapshot.clone!r}{under} is a clone that lives from snapshot {name!r} of {app}: "
            "without it, its state may be collected",
            hint=f"remove the app {snapshot.clone} first, or say --force",
        )
    if snapshot.kind == "clone" and not force:
        from .dependents import check_pin_unused  # which needs this module

        check_pin_unused(store, snapshot)
    return snapshot


def pin(
    store: ObjectStore,
    cut: Cut,
    name: str,
    kind: SnapshotKind = "instant",
    *,
    by: str = "",
    clone: str = "",
    clone_root: str = "",
    reader: ChannelReader | None = None,
    keeper: Snapshot | None = None,
) -> Snapshot:
    """Name a cut that exists already. Pinning the same versions for the same purpose again changes nothing.

    With a `reader`, records in flight are kept with it; else it shares those that `keeper` keeps, another snapshot of
    the same cut, and of all others only Kafka knows, as long as it keeps them.

    Raises:
        Usage: no snapshot can have this name.
        NotFound: a version of the cut was collected meanwhile, or is about to be; `keeper` was removed.
        Refused: the name is asked for, or taken by other versions or by a snapshot that keeps less; the cut is empty or
            not consistent; records in flight are gone.
        Corruption: records in flight are not as many as their writers' manifests say.
        Unavailable: storage or Kafka did not answer.
    """
    check_snapshot_name(name)
    wrong = violations(cut.stages)
    if wrong or not cut.stages:
        raise Refused(f"cannot pin {cut.app}@{name}: " + ("; ".join(wrong) or "no stage has a version at that moment"))
    check_not_asked(store, cut.app, name)
    shared = keeper.channels if keeper is not None else ()
    if (found := find_snapshot(store, cut.app, name)) is not None:
        return _whole(store, _same_or_taken(found, cut, kind, clone, clone_root, shared), keeper)
    kept = capture(store, cut.app, name, in_flight(store, cut), reader) if reader is not None else ()
    ulid = ULID()
    snapshot = Snapshot(
        name=name,
        id=str(ulid),
        app=cut.app,
        created_ms=ulid.milliseconds,
        completed_ms=ulid.milliseconds,
        kind=kind,
        stages=cut.versions,
        by=by,
        clone=clone,
        clone_root=clone_root,
        channels=kept or shared,
    )
    written = create(store, snapshot)
    if written != snapshot:
        discard(store, kept)
        return _whole(store, _same_or_taken(written, cut, kind, clone, clone_root, shared), keeper)
    try:
        _whole(store, written, keeper)
        _check_there(store, kept)
    except SlackwaterError:
        store.delete(keys.snapshot(cut.app, name))
        discard(store, kept)
        raise
    return written


def _whole(store: ObjectStore, written: Snapshot, keeper: Snapshot | None) -> Snapshot:
    """The snapshot, if nothing of it is gone, or about to be. Raises `NotFound`."""
    if keeper is not None and keeper.channels:
        _still_kept(store, keeper)
    return _not_collected(store, written)


def _still_kept(store: ObjectStore, keeper: Snapshot) -> None:
    """See that a snapshot is there whose records are shared.

    Who removes it looks for other snapshots with its records after its document is gone; this looks for the document
    after the other snapshot is written. So one of the two sees the other.
    """
    if find_snapshot(store, keeper.app, keeper.name) != keeper:
        raise NotFound(
            f"snapshot of app {keeper.app!r}",
            keeper.name,
            found="it was removed while the records in flight that it keeps were to be kept for longer",
            hint="choose another moment",
        )


def _not_collected(store: ObjectStore, written: Snapshot) -> Snapshot:
    """The snapshot, if nothing of it is about to be collected.

    A collection lists snapshots after it has written what it is about to take; this looks there after the snapshot is
    written. So one of the two sees the other.
    """
    history.list_stages(store, written.app)  # raises when the app is being removed: the same holds of that
    limit = horizon.newest(store, written.app)
    for stage, version in written.stages.items():
        if limit is not None and not limit.allows(stage, version):
            raise NotFound(
                f"moment of app {written.app!r}",
                written.name,
                found=f"{stage}@v{version} was collected before it could be pinned",
                hint=f"choose a later moment; `slackwater log {written.app}` shows what there is",
            )
    return written


def _check_there(store: ObjectStore, kept: tuple[Captured, ...]) -> None:
    """See that kept records are still there: until a snapshot names them they are litter, and this may take long."""
    for one in (one for captured in kept for one in captured.objects):
        if not exists(store, one.key):
            raise Refused(
                f"it took so long to keep the records in flight that {one.key} was collected", hint="take it again"
            )


def _same_or_taken(
    written: Snapshot, cut: Cut, kind: SnapshotKind, clone: str, clone_root: str, shared: tuple[Captured, ...]
) -> Snapshot:
    same = (written.stages, written.kind, written.clone, written.clone_root)
    if same != (cut.versions, kind, clone, clone_root) or not set(shared) <= set(written.channels):
        raise taken(written)
    return written


def create(store: ObjectStore, snapshot: Snapshot) -> Snapshot:
    """Write the snapshot unless there is one of its name; return the stored one."""
    key = keys.snapshot(snapshot.app, snapshot.name)
    try:
        store.put_if_absent(key, codec.encode(snapshot))
    except ObjectExists:
        return read_snapshot(store, snapshot.app, snapshot.name)
    return snapshot


def taken(written: Snapshot) -> Refused:
    """The error for a name that another snapshot has."""
    held = ", ".join(f"{stage}@v{version}" for stage, version in written.stages.items())
    return Refused(
        f"snapshot {written.name!r} of {written.app} exists already ({held})",
        hint=f"choose another name, or remove it with `slackwater snapshot rm {written.app} {written.name}`",
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
