"""Snapshots: named, pinned cuts; and the requests that a running app answers with markers.

A request is one object that every stage sees between its batches. Each stage carries the version it recorded
in its head manifest until the request is gone, so who completes the snapshot needs one look at each head. A
snapshot is one object, written once: whatever the size of the state, taking one costs the same.
"""

import time
from collections.abc import Iterator, Mapping
from typing import Literal, TypeVar

from msgspec import Struct
from ulid import ULID

from ..chandy_lamport import Complete, Injector, ProtocolError, Stage, StageFinished, Take
from ..store import apps, codec, history, keys
from ..store.errors import NotFound, ObjectExists, ObjectNotFound, Refused
from ..store.manifest import Manifest
from ..store.objects import ObjectStore, documents
from ..store.open import open_store
from .refs import check_snapshot_name
from .topology import Cut, violations

__all__ = [
    "Request",
    "Snapshot",
    "SnapshotKind",
    "cancel",
    "list_snapshots",
    "open_requests",
    "pin",
    "progress",
    "read_snapshot",
    "remove",
    "request",
    "try_complete",
]

T = TypeVar("T", bound=Struct)

SnapshotKind = Literal["markers", "instant", "clone"]
"""How it came to be: taken by a running app with markers, pinned after the fact, or pinned for a clone."""


class Request(Struct, frozen=True):
    """What asks a running app for a snapshot. `id` is a ULID, and the name by which stages record it."""

    id: str
    name: str
    created_ms: int
    by: str


class Snapshot(Struct, frozen=True):
    """A named cut. Nothing that it reaches is ever collected."""

    name: str
    id: str
    app: str
    created_ms: int
    """When it was asked for."""
    completed_ms: int
    kind: SnapshotKind
    stages: dict[str, int]
    """The version of each stage in the cut."""
    by: str
    clone: str = ""
    """The app that lives from it; empty unless `kind` is `clone`."""
    clone_root: str = ""
    """The store root of that app, empty for the snapshot's own."""


def request(store: ObjectStore, app: str, name: str, by: str) -> Request:
    """Ask a running app for a snapshot; its stages answer one after the other.

    Raises:
        Usage: no snapshot can have this name.
        NotFound: there is no such app.
        Refused: the name is taken, or asked for already.
    """
    check_snapshot_name(name)
    apps.read_app(store, app)
    if (written := _read(store, keys.snapshot(app, name), Snapshot)) is not None:
        raise _taken(written)
    _check_not_asked(store, app, name)
    ulid = ULID()
    asked = Request(id=str(ulid), name=name, created_ms=ulid.milliseconds, by=by)
    # A key of its own: nobody else writes it, and a write repeated after a lost answer does no harm.
    store.put(keys.request(app, asked.id), codec.encode(asked))
    return asked


def open_requests(store: ObjectStore, app: str) -> tuple[Request, ...]:
    """The requests that are not answered yet, oldest first. One listing, and one read for each."""
    found = (_read(store, info.key, Request) for info in documents(store, keys.requests(app)))
    return tuple(asked for asked in found if asked is not None)


def progress(store: ObjectStore, app: str, request: Request) -> dict[str, int | None]:
    """The version that each stage recorded for the request, None for a stage that has not yet.

    Reads each stage's head once. A stage that never committed a version has no part in any cut and is left
    out.
    """
    return {stage: head.recorded.get(request.id) for stage, head in _heads(store, app).items()}


def try_complete(store: ObjectStore, app: str, request: Request) -> Snapshot | None:
    """Write the snapshot if every stage has recorded; None while one has not.

    Anybody may call it, any number of times.

    Raises:
        Refused: another snapshot took the name meanwhile, and the request is deleted; or a stage reads a channel
            that no stage has ever written, so that no marker can reach it.
    """
    stages = _cut_by_markers(app, _heads(store, app), request)
    key = keys.snapshot(app, request.name)
    if stages is None:
        # Once complete, the request goes and the stages forget: another completer may have been faster.
        written = _read(store, key, Snapshot)
        return written if written is not None and written.id == request.id else None
    snapshot = Snapshot(
        name=request.name,
        id=request.id,
        app=app,
        created_ms=request.created_ms,
        completed_ms=_now_ms(),
        kind="markers",
        stages=stages,
        by=request.by,
    )
    written = _create(store, snapshot)
    store.delete(keys.request(app, request.id))
    if written.id != request.id:
        raise Refused(
            f"snapshot {request.name!r} of {app} was taken by {written.by} while this one was under way",
            hint="ask again with another name",
        )
    return written


def _heads(store: ObjectStore, app: str) -> dict[str, Manifest]:
    heads = {stage: history.head(store, app, stage) for stage in history.list_stages(store, app)}
    return {stage: head for stage, head in heads.items() if head is not None}


def _cut_by_markers(app: str, heads: Mapping[str, Manifest], request: Request) -> dict[str, int] | None:
    """The version of each stage once the protocol says that the snapshot is complete, None before."""
    if not heads:
        return None
    network = {
        stage: Stage(
            frozenset(name for name, source in head.inputs.items() if source.upstream), frozenset(head.outputs)
        )
        for stage, head in heads.items()
    }
    try:
        injector = Injector(network)
    except ProtocolError as error:
        raise Refused(
            f"no snapshot of {app} can complete: {error}",
            hint="run every stage once, or take it with --instant",
        ) from error
    injector.receive(Take(request.id))
    for stage, head in heads.items():
        if request.id not in head.recorded:
            continue
        for action in injector.receive(StageFinished(request.id, stage, head.recorded[request.id])):
            if isinstance(action, Complete):
                return dict(action.versions)
    return None


def cancel(store: ObjectStore, app: str, request: Request) -> None:
    """Withdraw a request; no error when it is answered or withdrawn already."""
    store.delete(keys.request(app, request.id))


def list_snapshots(store: ObjectStore, app: str, *, since_ms: int = 0) -> tuple[Snapshot, ...]:
    """The app's snapshots, oldest first; only those whose object was written at `since_ms` or later.

    One listing, and one read for each.

    Raises:
        NotFound: there is no such app.
    """
    infos = [info for info in documents(store, keys.snapshots(app)) if info.modified_ms >= since_ms]
    if not infos:
        apps.read_app(store, app)
    found = (_read(store, info.key, Snapshot) for info in infos)
    return tuple(sorted((s for s in found if s is not None), key=lambda s: (s.completed_ms, s.name)))


def read_snapshot(store: ObjectStore, app: str, name: str) -> Snapshot:
    """A snapshot by name.

    Raises:
        NotFound: there is no such app or snapshot; tells the nearest names.
    """
    snapshot = _read(store, keys.snapshot(app, name), Snapshot)
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


def remove(store: ObjectStore, app: str, name: str, *, force: bool = False) -> Snapshot:
    """Delete a snapshot; what only it reached may then be collected. Returns what was deleted.

    Raises:
        NotFound: there is no such app or snapshot.
        Refused: a clone lives from it, unless `force`.
        Unavailable: the clone's store did not answer.
    """
    snapshot = read_snapshot(store, app, name)
    if snapshot.kind == "clone" and not force and _clone_lives(store, snapshot):
        under = f" under {snapshot.clone_root}" if snapshot.clone_root else ""
        raise Refused(
            f"app {snapshot.clone!r}{under} is a clone that lives from snapshot {name!r} of {app}: "
            "without it, its state may be collected",
            hint=f"remove the app {snapshot.clone} first, or say --force",
        )
    store.delete(keys.snapshot(app, name))
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
) -> Snapshot:
    """Name a cut that exists already. Pinning the same versions for the same purpose again changes nothing.

    Raises:
        Usage: no snapshot can have this name.
        Refused: the name is asked for or taken by other versions; the cut is empty or not consistent.
    """
    check_snapshot_name(name)
    wrong = violations(cut.stages)
    if wrong or not cut.stages:
        raise Refused(f"cannot pin {cut.app}@{name}: " + ("; ".join(wrong) or "no stage has a version at that moment"))
    _check_not_asked(store, cut.app, name)
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
    )
    written = _create(store, snapshot)
    same = (written.stages, written.kind, written.clone, written.clone_root)
    if same != (snapshot.stages, kind, clone, clone_root):
        raise _taken(written)
    return written


def _create(store: ObjectStore, snapshot: Snapshot) -> Snapshot:
    """Write the snapshot unless there is one of its name; return the stored one."""
    key = keys.snapshot(snapshot.app, snapshot.name)
    try:
        store.put_if_absent(key, codec.encode(snapshot))
    except ObjectExists:
        return codec.decode(store.get(key), Snapshot, key=key)
    return snapshot


def _check_not_asked(store: ObjectStore, app: str, name: str) -> None:
    for other in open_requests(store, app):
        if other.name == name:
            raise Refused(
                f"snapshot {name!r} of {app} was asked for already by {other.by} and is not complete",
                hint=f"wait for it, or choose another name; `slackwater snapshot rm {app} {name}` cancels it",
            )


def _taken(written: Snapshot) -> Refused:
    versions: Mapping[str, int] = written.stages
    held = ", ".join(f"{stage}@v{version}" for stage, version in versions.items())
    return Refused(
        f"snapshot {written.name!r} of {written.app} exists already ({held})",
        hint=f"choose another name, or remove it with `slackwater snapshot rm {written.app} {written.name}`",
    )


def _clone_lives(store: ObjectStore, snapshot: Snapshot) -> bool:
    elsewhere = snapshot.clone_root not in ("", store.url)
    target = open_store(snapshot.clone_root) if elsewhere else store
    try:
        info = apps.read_app(target, snapshot.clone)
    except NotFound:
        return False
    origin = info.origin
    return origin is not None and (origin.app, origin.snapshot) == (snapshot.app, snapshot.name)


def _names(store: ObjectStore, app: str) -> Iterator[str]:
    prefix = keys.snapshots(app)
    for info in documents(store, prefix):
        yield info.key.removeprefix(prefix).removesuffix(".json")


def _read(store: ObjectStore, key: str, as_type: type[T]) -> T | None:
    """The object, or None when there is none (any more)."""
    try:
        return codec.decode(store.get(key), as_type, key=key)
    except ObjectNotFound:
        return None


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
