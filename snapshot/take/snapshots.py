"""Writing snapshots: named, pinned cuts. One object each, written once, whatever the size of the state."""

from msgspec.structs import replace
from ulid import ULID

from ...errors import NotFound, Refused, SlackwaterError
from ...store.objects.protocol import ObjectStore, exists
from ...store.versions import history, horizon
from ..cut.graph import Cut, violations
from ..cut.in_flight import in_flight
from ..cut.kafka_topics import Topics
from ..cut.refs import check_new_name
from ..cut.stored import SNAPSHOTS, Snapshot, SnapshotKind, check_not_asked, find_snapshot
from ..under_way.exclusion import Intent, check_exclusion
from .capture import capture, discard


def pin(
    store: ObjectStore,
    cut: Cut,
    name: str,
    kind: SnapshotKind = "instant",
    *,
    by: str = "",
    clone: str = "",
    clone_root: str = "",
    reader: Topics | None = None,
    keeper: Snapshot | None = None,
) -> Snapshot:
    """Name a cut that exists already. Pinning the same versions for the same purpose again changes nothing.

    With a `reader`, records in flight are kept with it; else it shares those that `keeper` keeps, another snapshot of
    the same cut, and of all others only Kafka knows, as long as it keeps them. Raises `Usage` (no snapshot can have
    this name), `NotFound` (a version of the cut was collected meanwhile, or is about to be; `keeper` was removed),
    `Refused` (the name is asked for, or taken by other versions or by a snapshot that keeps less; the cut is empty or
    not consistent; records in flight are gone; keys are being forgotten, and it keeps records or is for a clone), and
    `Corruption` (records in flight are not as many as their writers' manifests say).
    """
    check_new_name("snapshot", name)
    wrong = violations(cut.stages)
    if wrong or not cut.stages:
        raise Refused(f"cannot pin {cut.app}@{name}: " + ("; ".join(wrong) or "no stage has a version at that moment"))
    check_not_asked(store, cut.app, name)
    shared = keeper.channels if keeper is not None else ()

    def same(found: Snapshot) -> Snapshot:
        pins = (found.stages, found.kind, found.clone, found.clone_root)
        if pins != (cut.versions, kind, clone, clone_root) or not set(shared) <= set(found.channels):
            raise taken(found)
        return _whole(store, found, keeper)

    if (found := find_snapshot(store, cut.app, name)) is not None:
        return same(found)
    captured = capture(store, cut.app, name, in_flight(store, cut), reader) if reader is not None else ()
    snapshot = replace(_of(cut, name, by, kind), clone=clone, clone_root=clone_root, channels=captured or shared)
    written = SNAPSHOTS.add(store, snapshot)
    if written != snapshot:
        discard(store, captured)
        return same(written)
    try:
        _whole(store, written, keeper)
        for one in (one for each in captured for one in each.objects):
            # Until a snapshot names them they may be collected.
            if not exists(store, one.key):
                raise Refused(
                    f"it took so long to keep the records in flight that {one.key} was collected", hint="take it again"
                )
    except SlackwaterError:
        SNAPSHOTS.remove(store, name, cut.app)
        discard(store, captured)
        raise
    return written


def move(store: ObjectStore, snapshot: Snapshot, cut: Cut, *, by: str = "") -> Snapshot:
    """Let an instant snapshot name another cut from now on: one put, so at no time is there none of its name.

    It keeps no records in flight then. Of two that move it at the same time, the later put counts. Raises `NotFound` (a
    version of the cut was collected meanwhile, or is about to be; then all is as it was before, or what it named before
    is gone as well, and so is the snapshot).
    """
    moved = _of(cut, snapshot.name, by)
    SNAPSHOTS.put(store, moved)
    try:
        return _whole(store, moved, None)
    except NotFound:
        SNAPSHOTS.put(store, snapshot)
        try:
            _whole(store, snapshot, None)  # a collection that began meanwhile has not seen it
        except NotFound:
            SNAPSHOTS.remove(store, snapshot.name, snapshot.app)
        raise


def _of(cut: Cut, name: str, by: str, kind: SnapshotKind = "instant") -> Snapshot:
    ulid = ULID()
    asked_ms = completed_ms = ulid.milliseconds
    return Snapshot(name, str(ulid), cut.app, asked_ms, completed_ms, kind, cut.versions, by)


def _whole(store: ObjectStore, written: Snapshot, keeper: Snapshot | None) -> Snapshot:
    """The snapshot, if nothing of it is gone, or about to be. Raises `NotFound`.

    This looks after the snapshot is written. Who removes another one looks for snapshots that share its records, as
    those of `keeper` are shared, after its document is gone; a collection lists snapshots after it has written what it
    is about to take. So one of the two sees the other.
    """
    if keeper is not None and keeper.channels and find_snapshot(store, keeper.app, keeper.name) != keeper:
        raise NotFound(
            f"snapshot of app {keeper.app!r}",
            keeper.name,
            found="it was removed while the records in flight that it keeps were to be kept for longer",
            hint="choose another moment",
        )
    history.list_stages(store, written.app)  # raises when the app is being removed: the same holds of that
    if written.channels or written.clone:
        check_exclusion(store, written.app, Intent.CLONE if written.clone else Intent.PIN)
    limit = horizon.newest(store, written.app)
    for stage, version in written.stages.items():
        if not limit.allows(stage, version):
            raise NotFound(
                f"moment of app {written.app!r}",
                written.name,
                found=f"{stage}@v{version} was collected before it could be pinned",
                hint=f"choose a later moment; `slackwater log {written.app}` shows what there is",
            )
    return written


def taken(written: Snapshot) -> Refused:
    """The error for a name that another snapshot has."""
    held = ", ".join(f"{stage}@v{version}" for stage, version in written.stages.items())
    return Refused(
        f"snapshot {written.name!r} of {written.app} exists already ({held})",
        hint=f"choose another name, or remove it with `slackwater snapshot rm {written.app} {written.name}`",
    )
