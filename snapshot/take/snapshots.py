"""Snapshots: named, pinned cuts. One object each, written once, whatever the size of the state."""

from collections.abc import Iterator
from typing import Literal

from msgspec import Struct
from ulid import ULID

from ...errors import NotFound, ObjectExists, ObjectNotFound, Refused, SlackwaterError
from ...store.objects.open import open_store
from ...store.objects.protocol import ObjectStore, documents, exists
from ...store.versions import apps, checks, codec, history, horizon, keys
from ...store.versions import limits as fits
from ..cut.graph import Cut, violations
from ..cut.in_flight import InFlight, in_flight
from ..cut.refs import check_snapshot_name
from ..cut.requests import check_not_asked, open_requests
from .capture import Captured, ChannelReader, capture, captured_is_wrong, discard

__all__ = [
    "Snapshot",
    "SnapshotKind",
    "check_removable",
    "clone_lives",
    "create",
    "find_snapshot",
    "list_snapshots",
    "of_snapshot",
    "pin",
    "read_snapshot",
    "remove",
    "remove_pins_without_clone",
    "remove_records",
    "taken",
]

SnapshotKind = Literal["markers", "instant", "clone"]
"""How it came to be: taken by a running app with markers, pinned after the fact, or pinned for a clone."""


class Snapshot(Struct, frozen=True):
    """A named cut. Nothing that it reaches is ever collected."""

    name: fits.Name
    id: fits.Ulid
    app: fits.Name
    created_ms: fits.TimeMs
    """When it was asked for."""
    completed_ms: fits.TimeMs
    kind: SnapshotKind
    stages: dict[fits.Name, fits.Version]
    """The version of each stage in the cut."""
    by: fits.Line
    clone: fits.NameOrNone = ""
    """The app that lives from it; empty unless `kind` is `clone`."""
    clone_root: fits.Line = ""
    """The store root of that app, empty for the snapshot's own."""
    channels: tuple[Captured, ...] = ()
    """The records in flight that it keeps."""

    @property
    def object_keys(self) -> frozenset[str]:
        """The objects that hold these records."""
        return frozenset(one.key for kept in self.channels for one in kept.objects)

    def captured(self, flight: InFlight) -> Captured | None:
        """What it keeps of these records in flight: all of them and perhaps more, or None."""
        for kept in self.channels:
            spans = kept.after <= flight.after and flight.up_to <= kept.up_to
            # In a clone, readers may stand at different offsets before one version.
            if kept.channel == flight.channel and spans and _reaches(kept, flight):
                return kept
        return None


@checks.relations.register
def _(value: Snapshot) -> Iterator[checks.Wrong]:
    yield from checks.root_is_wrong("clone_root", value.clone_root)
    if value.kind == "clone" and not value.clone:
        yield checks.Wrong("clone", value.clone, "the app that lives from it, as its kind is clone")
    objects = keys.captured_pattern(value.app)
    for number, kept in enumerate(value.channels):
        yield from captured_is_wrong(f"channels[{number}]", kept, objects)


def _key(snapshot: Snapshot) -> str:
    return keys.snapshot(snapshot.app, snapshot.name)


def _reaches(kept: Captured, flight: InFlight) -> bool:
    """Whether what is kept begins and ends where these records do, or beyond."""
    begins = all(ours <= theirs for ours, theirs in zip(kept.starts, flight.starts, strict=True))
    return begins and all(theirs <= ours for ours, theirs in zip(kept.ends, flight.ends, strict=True))


def list_snapshots(store: ObjectStore, app: str, *, since_ms: int = 0) -> tuple[Snapshot, ...]:
    """The app's snapshots, oldest first; only those whose object was written at `since_ms` or later.

    One listing, and one read for each.

    Raises:
        NotFound: there is no such app.
    """
    infos = [info for info in documents(store, keys.snapshots(app)) if info.modified_ms >= since_ms]
    if not infos:
        apps.read_app(store, app)
    found = (_read(store, info.key) for info in infos)
    return tuple(sorted((s for s in found if s is not None), key=lambda s: (s.completed_ms, s.name)))


def find_snapshot(store: ObjectStore, app: str, name: str) -> Snapshot | None:
    """A snapshot by name, or None when there is none."""
    return _read(store, keys.snapshot(app, name))


def read_snapshot(store: ObjectStore, app: str, name: str) -> Snapshot:
    """A snapshot by name.

    Raises:
        NotFound: there is no such app or snapshot; tells the nearest names.
    """
    snapshot = find_snapshot(store, app, name)
    if snapshot is None:
        apps.read_app(store, app)
        asked = any(other.name == name for other in open_requests(store, app))
        raise NotFound(
            f"snapshot of app {app!r}",
            name,
            _names(store, app),
            hint=f"{name!r} is asked for and not complete yet: is the app running?" if asked else "",
        )
    return snapshot


def of_snapshot(store: ObjectStore, snapshot: Snapshot) -> Cut:
    """The cut that a snapshot pins. Raises `NotFound` when a manifest it names is gone."""
    return Cut(
        snapshot.app,
        {stage: history.read(store, snapshot.app, stage, version) for stage, version in snapshot.stages.items()},
        snapshot.name,
    )


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
        return codec.read(store, key, Snapshot, under=_key)
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
    target = open_store(snapshot.clone_root) if elsewhere else store
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


def _names(store: ObjectStore, app: str) -> Iterator[str]:
    prefix = keys.snapshots(app)
    for info in documents(store, prefix):
        yield info.key.removeprefix(prefix).removesuffix(".json")


def _read(store: ObjectStore, key: str) -> Snapshot | None:
    try:
        return codec.read(store, key, Snapshot, under=_key)
    except ObjectNotFound:
        return None
