"""Stored snapshots, their captured in-flight records, and open requests for snapshots.

A request is one object. A running app looks for requests when the object `Notice` has changed.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from ...common import runtime
from ...errors import Corruption, NotFound, ObjectNotFound, Refused
from ...state.records import difference
from ...store.objects.protocol import ObjectInfo, ObjectStore
from ...store.versions import apps, checks, codec, column_types, forgotten, history, keys, limits
from ...store.versions.checks import Violation
from ...store.versions.codec import JsonFolder
from ...store.versions.forgotten import ForgottenIndex, add_counts
from .graph import Cut
from .in_flight import InFlight


class SnapshotRequest(Struct, frozen=True):
    """Request for a snapshot of a running app. Stages record their answers under its `id`, a ULID."""

    id: limits.Ulid
    name: limits.Name
    created_ms: limits.TimeMs
    by: limits.ShortText
    migration: limits.Seq = 0
    """Number of the newest migration that all stages had applied when the snapshot was requested.

    A later migration that changes the answers of stages withdraws the request.
    """


class Notice(Struct, frozen=True):
    """Object whose changed `id` tells runners to look for new requests."""

    id: limits.Ulid


SNAPSHOT_REQUESTS = JsonFolder(SnapshotRequest, keys.requests, lambda request: request.id)
"""Open requests for snapshots, oldest first."""


def notify_runners(store: ObjectStore, app: str) -> None:
    codec.put(store, keys.request_signal(app), Notice(str(runtime.ulid())))


def newest_notice(store: ObjectStore, app: str) -> bytes:
    try:
        return store.get(keys.request_signal(app))
    except ObjectNotFound:
        return b""


def open_requests(store: ObjectStore, app: str) -> tuple[SnapshotRequest, ...]:
    """Return the open requests, oldest first. Makes one list request, and one read for each open request."""
    return SNAPSHOT_REQUESTS.all(store, app)


def withdraw_request(store: ObjectStore, app: str, request: SnapshotRequest) -> None:
    """Withdraw a request, if it is still open."""
    SNAPSHOT_REQUESTS.remove(store, request.id, app)


def own_request(store: ObjectStore, app: str, name: str, by: str) -> SnapshotRequest | None:
    return next((request for request in open_requests(store, app) if (request.name, request.by) == (name, by)), None)


def check_not_asked(store: ObjectStore, app: str, name: str) -> None:
    """Raise `Refused` if a snapshot of this name was requested and is not complete."""
    for other in open_requests(store, app):
        if other.name == name:
            raise Refused(
                f"snapshot {name!r} of {app} was already requested by {other.by} and is not complete yet",
                hint=f"wait for it, or choose another name; `slackwater snapshot rm {app} {name}` cancels it",
            )


ADDRESS_COLUMNS = ("_partition", "_offset", "_row")
"""Columns with a captured record's location: Kafka partition (int32), offset (int64), row in message (int32)."""


class CapturedObject(Struct, frozen=True):
    """Immutable Parquet object with captured in-flight records."""

    key: limits.Key
    rows: limits.Bytes
    bytes: limits.Bytes
    checksum: limits.Checksum
    """xxh3_128 of the object's bytes, hexadecimal."""


class Captured(Struct, frozen=True):
    """Captured in-flight records of one channel for one receiver."""

    channel: limits.Topic
    sender: limits.Name
    receiver: limits.Name
    topic: limits.Topic
    starts: limits.Offsets
    """Offsets of the messages with the records: `starts[p]` up to, not including, `ends[p]`."""
    ends: limits.Offsets
    after: limits.Seq
    up_to: limits.Seq
    counts: limits.Counts
    schema: limits.Text
    objects: tuple[CapturedObject, ...]
    forgotten: limits.Counts = ()
    """Number of forgotten records by partition; empty for none."""

    @property
    def rows(self) -> int:
        return sum(captured_object.rows for captured_object in self.objects)


SnapshotKind = Literal["markers", "instant", "clone"]
"""Origin of a snapshot: taken with markers, pinned later (instant), or pinned for a clone."""


class Snapshot(Struct, frozen=True):
    """Named cut. Garbage collection keeps all objects that it refers to."""

    name: limits.Name
    id: limits.Ulid
    app: limits.Name
    created_ms: limits.TimeMs
    """Time at which the snapshot was requested."""
    completed_ms: limits.TimeMs
    kind: SnapshotKind
    stages: dict[limits.Name, limits.Version]
    by: limits.ShortText
    clone: limits.NameOrNone = ""
    clone_root: limits.ShortText = ""
    """Store root of the clone for which the snapshot was pinned; empty if both apps have the same root."""
    channels: tuple[Captured, ...] = ()
    edited_ms: limits.TimeMs = 0
    """Time of the last erasure that changed the snapshot's rows or in-flight records; 0 for none. Not stored."""

    @property
    def object_keys(self) -> frozenset[str]:
        return frozenset(captured_object.key for captured in self.channels for captured_object in captured.objects)

    def find_captured_channel(self, state: InFlight) -> Captured | None:
        for channel in self.channels:
            same = channel.channel == state.channel and len(channel.starts) == len(state.starts)
            if same and channel.after <= state.after and state.up_to <= channel.up_to:
                # In a clone, readers of the same version may be at different offsets.
                begins = all(map(int.__le__, channel.starts, state.starts))
                if begins and all(map(int.__ge__, channel.ends, state.ends)):
                    return channel
        return None


@checks.find_violations.register
def _(value: Snapshot) -> Iterator[Violation]:
    yield from checks.root_violations("clone_root", value.clone_root)
    if value.kind == "clone" and not value.clone:
        yield Violation("clone", value.clone, "the clone that uses it, as its kind is clone")
    pattern = keys.captured_pattern(value.app)
    for index, captured in enumerate(value.channels):
        at, starts = f"channels[{index}]", captured.starts
        if len(captured.ends) != len(starts) or any(map(int.__gt__, starts, captured.ends)):
            yield Violation(f"{at}.ends", captured.ends, "an offset for each of starts, not before it")
        if captured.counts and len(captured.counts) != len(starts):
            yield Violation(f"{at}.counts", captured.counts, f"as many numbers as starts, {len(starts)}, or none")
        if captured.after > captured.up_to:
            yield Violation(f"{at}.up_to", captured.up_to, f"not below after, {captured.after}")
        try:
            column_types.parse_ddl(captured.schema)
        except ValueError:
            yield Violation(f"{at}.schema", captured.schema, "a Spark DDL string")
        for number, captured_object in enumerate(captured.objects):
            if not pattern.fullmatch(captured_object.key):
                yield Violation(
                    f"{at}.objects[{number}].key", captured_object.key, "a key among the app's captured records"
                )
            if captured_object.rows > captured_object.bytes:
                yield Violation(
                    f"{at}.objects[{number}].rows", captured_object.rows, f"at most its bytes, {captured_object.bytes}"
                )
            yield from checks.checksum_violations(f"{at}.objects[{number}].checksum", captured_object.checksum)


SNAPSHOTS = JsonFolder(Snapshot, keys.snapshots, lambda snapshot: snapshot.name, owner_of=lambda snapshot: snapshot.app)


class _PackedSnapshot(Struct, frozen=True, array_like=True):
    """Snapshot in a pack, with the size and time of its object. A later replacement has a different size or time."""

    bytes: limits.Bytes
    modified_ms: limits.TimeMs
    snapshot: Snapshot


class SnapshotPack(Struct, frozen=True):
    """Copies of an app's snapshots in one object. It is a cache: listing many snapshots then takes few requests."""

    app: limits.Name
    snapshots: tuple[_PackedSnapshot, ...] = ()


_MIN_PACKED = 16
"""Number of stored snapshots from which on a pack is read, and number of new snapshots after which one is written."""
_SETTLED_MS = 10_000
"""Minimum age at which a snapshot is packed, by storage's clock.

It ensures that a later snapshot of the same name has a different time.
"""


def list_snapshots(store: ObjectStore, app: str, *, since_ms: int = 0) -> tuple[Snapshot, ...]:
    """Return the app's snapshots, oldest first; with `since_ms`, only snapshots written at that time or later.

    Makes one list request, and one read for each snapshot. If there are many snapshots, packed snapshots are read with
    one request. Raises `NotFound` if the app does not exist.
    """
    listed = [info for info in SNAPSHOTS.listed(store, app) if info.modified_ms >= since_ms]
    snapshots = tuple(_read_listed(store, app, listed).values())
    if not snapshots:
        apps.read_app(store, app)
        return ()
    return tuple(sorted(_resolved(store, app, snapshots), key=lambda snapshot: (snapshot.completed_ms, snapshot.name)))


def pack_snapshots(store: ObjectStore, app: str, now_ms: int) -> None:
    """Write the app's pack if many snapshots are not in it. `now_ms` is a recent time of storage's clock."""
    settled = [info for info in SNAPSHOTS.listed(store, app) if info.modified_ms <= now_ms - _SETTLED_MS]
    if len(set(settled).difference(_find_pack(store, app, settled))) >= _MIN_PACKED:
        read = _read_listed(store, app, settled).items()
        entries = (_PackedSnapshot(info.size_bytes, info.modified_ms, snapshot) for info, snapshot in read)
        codec.put(store, keys.snapshot_pack(app), SnapshotPack(app, tuple(entries)))


def _read_listed(store: ObjectStore, app: str, listed: Sequence[ObjectInfo]) -> dict[ObjectInfo, Snapshot]:
    packed = _find_pack(store, app, listed)
    unpacked = [info for info in listed if info not in packed]
    read = zip(unpacked, SNAPSHOTS.read_concurrently(store, unpacked, app), strict=True)
    existing = packed | {info: snapshot for info, snapshot in read if snapshot is not None}
    return {info: existing[info] for info in listed if info in existing}


def _find_pack(store: ObjectStore, app: str, listed: Sequence[ObjectInfo]) -> dict[ObjectInfo, Snapshot]:
    if len(listed) < _MIN_PACKED:
        return {}
    with suppress(Corruption):  # it is written again
        own = lambda pack: keys.snapshot_pack(pack.app)  # noqa: E731
        pack = codec.find(store, keys.snapshot_pack(app), SnapshotPack, key_of=own) or SnapshotPack(app)
        return {
            ObjectInfo(SNAPSHOTS.key(entry.snapshot), entry.bytes, entry.modified_ms): entry.snapshot
            for entry in pack.snapshots
        }
    return {}


def find_snapshot(store: ObjectStore, app: str, name: str) -> Snapshot | None:
    snapshot = SNAPSHOTS.find(store, name, app)
    return next(_resolved(store, app, (snapshot,))) if snapshot is not None else None


def _resolved(store: ObjectStore, app: str, snapshots: Sequence[Snapshot]) -> Iterator[Snapshot]:
    # Only snapshots with captured records need the newest index.
    is_known = not any(snapshot.channels for snapshot in snapshots)
    index = forgotten.cached_index(store, app) if is_known else forgotten.newest(store, app)
    for snapshot in snapshots:
        edited_ms = index.snapshots.get(snapshot.name, 0)
        if edited_ms < snapshot.completed_ms:
            edited_ms = 0  # an earlier snapshot of this name
        if edited_ms or not index.records.keys().isdisjoint(snapshot.object_keys):
            yield replace(
                snapshot,
                edited_ms=edited_ms,
                channels=tuple(_current(index, captured) for captured in snapshot.channels),
            )
        else:
            yield snapshot


def _current(index: ForgottenIndex, captured: Captured) -> Captured:
    objects, num_forgotten = [], captured.forgotten
    for captured_object in captured.objects:
        replacement = index.records.get(captured_object.key)
        if replacement is None:
            objects.append(captured_object)
            continue
        num_forgotten = add_counts(num_forgotten, replacement.gone)
        if replacement.key is not None:
            objects.append(CapturedObject(replacement.key, replacement.rows, replacement.bytes, replacement.checksum))
    if num_forgotten == captured.forgotten:
        return captured
    counts = difference(num_forgotten, captured.counts)
    return replace(captured, objects=tuple(objects), counts=counts, forgotten=num_forgotten)


def read_snapshot(store: ObjectStore, app: str, name: str) -> Snapshot:
    snapshot = find_snapshot(store, app, name)
    if snapshot is None:
        apps.read_app(store, app)
        is_requested = any(other.name == name for other in open_requests(store, app))
        listed = SNAPSHOTS.listed(store, app)
        raise NotFound(
            f"snapshot of app {app!r}",
            name,
            (info.key.removeprefix(keys.snapshots(app)).removesuffix(".json") for info in listed),
            hint=f"{name!r} was requested and is not complete yet: is the app running?" if is_requested else "",
        )
    return snapshot


def cut_of_snapshot(store: ObjectStore, snapshot: Snapshot) -> Cut:
    return Cut(
        snapshot.app,
        {stage: history.read(store, snapshot.app, stage, version) for stage, version in snapshot.stages.items()},
        snapshot.name,
    )
