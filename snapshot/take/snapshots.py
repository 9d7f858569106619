"""Write snapshots: named, pinned cuts. Each is one object, written once, whatever the size of the state."""

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
    """Pin an existing cut under a name. Idempotent for the same versions and purpose.

    With a `reader`, in-flight records are captured. Otherwise the snapshot shares the records of `keeper`, another
    snapshot of the same cut; records that neither has stay in Kafka until its retention ends. Raises `Usage` (invalid
    name), `NotFound` (a version of the cut was collected, or is about to be; `keeper` was removed),
    `Refused` (the name is requested or taken by other versions, or by a snapshot with fewer records; the cut is empty
    or inconsistent; in-flight records are gone; keys are being forgotten, and the snapshot has records or is for a
    clone), and `Corruption` (there are fewer or more in-flight records than the senders' manifests declare).
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
            raise taken(existing)
        return _check_complete(store, existing, keeper)

    if (existing := find_snapshot(store, cut.app, name)) is not None:
        return if_same(existing)
    captured = capture(store, cut.app, name, in_flight(store, cut), reader) if reader is not None else ()
    snapshot = replace(_of(cut, name, by, kind), clone=clone, clone_root=clone_root, channels=captured or shared)
    written = SNAPSHOTS.add(store, snapshot)
    if written != snapshot:
        discard(store, captured)
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
        discard(store, captured)
        raise
    return written


def move(store: ObjectStore, snapshot: Snapshot, cut: Cut, *, by: str = "") -> Snapshot:
    """Let an instant snapshot name another cut, by one put, so that the name always exists.

    The moved snapshot has no in-flight records. If two processes move it at the same time, the later put wins. Raises
    `NotFound` if a version of the cut was collected, or is about to be: then the snapshot is restored, or removed if
    its old versions are gone as well.
    """
    moved = _of(cut, snapshot.name, by)
    SNAPSHOTS.put(store, moved)
    try:
        return _check_complete(store, moved, None)
    except NotFound:
        SNAPSHOTS.put(store, snapshot)
        try:
            _check_complete(store, snapshot, None)  # garbage collection may not have seen it meanwhile
        except NotFound:
            SNAPSHOTS.remove(store, snapshot.name, snapshot.app)
        raise


def _of(cut: Cut, name: str, by: str, kind: SnapshotKind = "instant") -> Snapshot:
    ulid = ULID()
    asked_ms = completed_ms = ulid.milliseconds
    return Snapshot(name, str(ulid), cut.app, asked_ms, completed_ms, kind, cut.versions, by)


def _check_complete(store: ObjectStore, written: Snapshot, keeper: Snapshot | None) -> Snapshot:
    """Return the snapshot if all its versions exist and stay. Raises `NotFound`.

    Runs after the snapshot is written. A removal of `keeper` looks for snapshots that share its records after deleting
    it; garbage collection lists snapshots after announcing what it will delete. So each side sees the other.
    """
    if keeper is not None and keeper.channels and find_snapshot(store, keeper.app, keeper.name) != keeper:
        raise NotFound(
            f"snapshot of app {keeper.app!r}",
            keeper.name,
            found="it was removed while another snapshot was about to share its in-flight records",
            hint="choose another moment",
        )
    history.list_stages(store, written.app)  # raises if the app is being removed, for the same reason
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


def taken(written: Snapshot) -> Refused:
    """Return the error for a name that another snapshot has."""
    versions = ", ".join(f"{stage}@v{version}" for stage, version in written.stages.items())
    return Refused(
        f"snapshot {written.name!r} of {written.app} exists already ({versions})",
        hint=f"choose another name, or remove it with `slackwater snapshot rm {written.app} {written.name}`",
    )
