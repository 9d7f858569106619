"""Snapshots as they are stored, with the records in flight that they keep, and the requests for those under way.

A request is one object, which a running app finds by a notice that there is one.
"""

from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace
from ulid import ULID

from ...errors import NotFound, ObjectNotFound, Refused
from ...store.objects.protocol import ObjectStore
from ...store.versions import apps, checks, column_types, history, keys, limits, notes
from ...store.versions.checks import Wrong
from ...store.versions.forgotten import index as forgotten
from ...store.versions.forgotten.index import ForgottenIndex, added
from ...store.versions.notes import Notes
from .graph import Cut
from .in_flight import InFlight


class Request(Struct, frozen=True):
    """What asks a running app for a snapshot. `id` is a ULID, and the name by which stages record it."""

    id: limits.Ulid
    name: limits.Name
    created_ms: limits.TimeMs
    by: limits.Line
    migration: limits.Seq = 0
    """The number of the newest migration that all stages had gone through when it was asked for. One that changes what
    stages answer is decided against those of before: these are withdrawn when it is done."""


class Notice(Struct, frozen=True):
    """That something was asked of the app's runners since they last looked; `id` is another one each time."""

    id: limits.Ulid


REQUESTS = Notes(Request, keys.requests, lambda asked: asked.id)
"""Those that are not answered yet, oldest first."""


def notify(store: ObjectStore, app: str) -> None:
    """Have the app's runners look soon for what is asked of them. To be called once it is there to be found."""
    notes.put(store, keys.notice(app), Notice(str(ULID())))


def newest_notice(store: ObjectStore, app: str) -> bytes:
    """What runners compare with what they saw: another value where somebody has notified them. One read."""
    try:
        return store.get(keys.notice(app))
    except ObjectNotFound:
        return b""


def open_requests(store: ObjectStore, app: str) -> tuple[Request, ...]:
    """The requests that are not answered yet, oldest first. One listing, and one read for each."""
    return REQUESTS.all(store, app)


def cancel(store: ObjectStore, app: str, request: Request) -> None:
    """Withdraw a request; no error when it is answered or withdrawn already."""
    REQUESTS.remove(store, request.id, app)


def own_request(store: ObjectStore, app: str, name: str, by: str) -> Request | None:
    """The request for a snapshot of this name that `by` has made already and that is open; None if there is none."""
    return next((asked for asked in open_requests(store, app) if (asked.name, asked.by) == (name, by)), None)


def check_not_asked(store: ObjectStore, app: str, name: str) -> None:
    """Raise `Refused` when a snapshot of this name is under way."""
    for other in open_requests(store, app):
        if other.name == name:
            raise Refused(
                f"snapshot {name!r} of {app} was asked for already by {other.by} and is not complete",
                hint=f"wait for it, or choose another name; `slackwater snapshot rm {app} {name}` cancels it",
            )


ADDRESS = ("_partition", "_offset", "_row")
"""What an object holds besides the channel's columns: int32, int64, int32."""


class CapturedObject(Struct, frozen=True):
    """One immutable Parquet object with captured records."""

    key: limits.Key
    rows: limits.Bytes
    bytes: limits.Bytes
    checksum: limits.Checksum
    """xxh3_128 of the object's bytes, hexadecimal."""


class Captured(Struct, frozen=True):
    """The state of one channel for one receiver, as a snapshot keeps it."""

    channel: limits.Topic
    sender: limits.Name
    receiver: limits.Name
    topic: limits.Topic
    starts: limits.Offsets
    """The records' messages lay at offsets `starts[p]` to `ends[p]` - 1 of partition p."""
    ends: limits.Offsets
    after: limits.Seq
    """They were sent by the sender's versions `after` + 1 to `up_to`."""
    up_to: limits.Seq
    counts: limits.Counts
    """Records by partition."""
    schema: limits.Text
    """The channel's columns as a Spark DDL string."""
    objects: tuple[CapturedObject, ...]
    forgotten: limits.Counts = ()
    """Records that were here and were forgotten, by partition; empty for none. Stored by pins that share the rest."""

    @property
    def rows(self) -> int:
        """Number of records."""
        return sum(each.rows for each in self.objects)


SnapshotKind = Literal["markers", "instant", "clone"]
"""How it came to be: taken by a running app with markers, pinned after the fact, or pinned for a clone."""


class Snapshot(Struct, frozen=True):
    """A named cut. Nothing that it reaches is ever collected."""

    name: limits.Name
    id: limits.Ulid
    app: limits.Name
    created_ms: limits.TimeMs
    """When it was asked for."""
    completed_ms: limits.TimeMs
    kind: SnapshotKind
    stages: dict[limits.Name, limits.Version]
    """The version of each stage in the cut."""
    by: limits.Line
    clone: limits.NameOrNone = ""
    """The app that lives from it; empty unless `kind` is `clone`."""
    clone_root: limits.Line = ""
    """The store root of that app, empty for the snapshot's own."""
    channels: tuple[Captured, ...] = ()
    """The records in flight that it keeps."""
    edited_ms: limits.TimeMs = 0
    """When keys were last taken out of what it pins or keeps (`forget`); 0 for never. Known when it is read."""

    @property
    def object_keys(self) -> frozenset[str]:
        """The objects that hold these records."""
        return frozenset(one.key for captured in self.channels for one in captured.objects)

    def captured(self, state: InFlight) -> Captured | None:
        """What it keeps of these records in flight: all of them and perhaps more, or None."""
        for each in self.channels:
            same = each.channel == state.channel and len(each.starts) == len(state.starts)
            if same and each.after <= state.after and state.up_to <= each.up_to:
                # In a clone, readers may stand at different offsets before one version.
                begins = all(map(int.__le__, each.starts, state.starts))
                if begins and all(map(int.__ge__, each.ends, state.ends)):
                    return each
        return None


@checks.relations.register
def _(value: Snapshot) -> Iterator[Wrong]:
    yield from checks.root_is_wrong("clone_root", value.clone_root)
    if value.kind == "clone" and not value.clone:
        yield Wrong("clone", value.clone, "the app that lives from it, as its kind is clone")
    pattern = keys.captured_pattern(value.app)
    for index, captured in enumerate(value.channels):
        at, starts = f"channels[{index}]", captured.starts
        if len(captured.ends) != len(starts) or any(map(int.__gt__, starts, captured.ends)):
            yield Wrong(f"{at}.ends", captured.ends, "an offset for each of starts, not before it")
        if captured.counts and len(captured.counts) != len(starts):
            yield Wrong(f"{at}.counts", captured.counts, f"as many numbers as starts, {len(starts)}, or none")
        if captured.after > captured.up_to:
            yield Wrong(f"{at}.up_to", captured.up_to, f"not below after, {captured.after}")
        try:
            column_types.parse_ddl(captured.schema)
        except ValueError:
            yield Wrong(f"{at}.schema", captured.schema, "a Spark DDL string")
        for number, each in enumerate(captured.objects):
            if not pattern.fullmatch(each.key):
                yield Wrong(f"{at}.objects[{number}].key", each.key, "a key among the app's captured records")
            if each.rows > each.bytes:
                yield Wrong(f"{at}.objects[{number}].rows", each.rows, f"at most its bytes, {each.bytes}")
            yield from checks.checksum_is_wrong(f"{at}.objects[{number}].checksum", each.checksum)


SNAPSHOTS = Notes(Snapshot, keys.snapshots, lambda each: each.name, app=lambda each: each.app)
"""By name."""


def list_snapshots(store: ObjectStore, app: str, *, since_ms: int = 0) -> tuple[Snapshot, ...]:
    """The app's snapshots, oldest first; only those whose object was written at `since_ms` or later.

    One listing, and one read for each. Raises `NotFound` when there is no such app.
    """
    found = SNAPSHOTS.all(store, app, since_ms=since_ms)
    if not found:
        apps.read_app(store, app)
        return ()
    return tuple(sorted(_resolved(store, app, found), key=lambda each: (each.completed_ms, each.name)))


def find_snapshot(store: ObjectStore, app: str, name: str) -> Snapshot | None:
    """A snapshot by name, or None when there is none."""
    found = SNAPSHOTS.find(store, name, app)
    return next(_resolved(store, app, (found,))) if found is not None else None


def _resolved(store: ObjectStore, app: str, snapshots: Sequence[Snapshot]) -> Iterator[Snapshot]:
    """The snapshots with the objects that have their records in flight now."""
    # Only those that keep records must know the newest.
    is_known = not any(each.channels for each in snapshots)
    index = forgotten.known(store, app) if is_known else forgotten.newest(store, app)
    for each in snapshots:
        edited_ms = index.snapshots.get(each.name, 0)
        if edited_ms < each.completed_ms:
            edited_ms = 0  # that was another one of its name
        if edited_ms or not index.records.keys().isdisjoint(each.object_keys):
            yield replace(each, edited_ms=edited_ms, channels=tuple(_left(index, one) for one in each.channels))
        else:
            yield each


def _left(index: ForgottenIndex, captured: Captured) -> Captured:
    objects, gone = [], captured.forgotten
    for each in captured.objects:
        now = index.records.get(each.key)
        if now is None:
            objects.append(each)
            continue
        gone = added(gone, now.gone)
        if now.key is not None:
            objects.append(CapturedObject(now.key, now.rows, now.bytes, now.checksum))
    if gone == captured.forgotten:
        return captured
    counts = (
        tuple(had - less for had, less in zip_longest(captured.counts, gone, fillvalue=0)) if captured.counts else ()
    )
    return replace(captured, objects=tuple(objects), counts=counts, forgotten=gone)


def read_snapshot(store: ObjectStore, app: str, name: str) -> Snapshot:
    """A snapshot by name. Raises `NotFound`, with the nearest names, when there is no such app or snapshot."""
    snapshot = find_snapshot(store, app, name)
    if snapshot is None:
        apps.read_app(store, app)
        asked = any(other.name == name for other in open_requests(store, app))
        listed = SNAPSHOTS.listed(store, app)
        raise NotFound(
            f"snapshot of app {app!r}",
            name,
            (info.key.removeprefix(keys.snapshots(app)).removesuffix(".json") for info in listed),
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
