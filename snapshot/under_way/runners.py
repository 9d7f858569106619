"""Heartbeats of runners, holds that stop runners at certain offsets, and requests to edit rows.

A runner writes one small object every 15 seconds, and deletes it on a clean shutdown. After a crash, the object's age
shows that the runner is gone. A hold stops runners at certain offsets while its holder renews it. A runner makes a
requested edit between two batches, so that no batch uses outdated rows. Without a live runner, the command itself makes
the edit. An edit is made only once, because the version that makes it names the request's id.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Literal

from msgspec import Meta, Struct

from ...common import instants, runtime
from ...errors import Refused, Unavailable
from ...store.objects.protocol import ObjectStore
from ...store.versions import codec, history, keys, limits
from ...store.versions.codec import JsonFolder
from ...store.versions.manifest import Edit, Manifest
from ..cut.stored import notify_runners

BEAT_S = 15.0
FRESH_S = 60.0
"""Maximum age of a live runner's heartbeat in seconds, allowing for some late heartbeats and clock differences."""
_FORGOTTEN_MS = 3_600_000


class Heartbeat(Struct, frozen=True):
    """Heartbeat of a runner."""

    writer: limits.Ulid
    by: limits.ShortText
    stages: dict[limits.Name, limits.Epoch]
    batches: dict[limits.Name, limits.Count] = {}
    waits: dict[limits.Name, limits.ShortText] = {}


HEARTBEATS = JsonFolder(Heartbeat, keys.runners, lambda runner: runner.writer)


def live_heartbeats(store: ObjectStore, app: str, now_ms: int) -> tuple[Heartbeat, ...]:
    """Return the heartbeats of live runners. Makes one list request, and one read for each runner.

    Raises `Corruption` (a heartbeat cannot be read) and `Unavailable`.
    """
    return HEARTBEATS.all(store, app, since_ms=now_ms - round(FRESH_S * 1000))


def have_runners_lapsed(
    store: ObjectStore, app: str, pause: Callable[[], None], now_ms: Callable[[], int] = instants.now_ms
) -> bool:
    """Wait until the heartbeats of all runners are outdated, and return True; False if a new heartbeat is written.

    The last heartbeat of a killed runner counts for a minute. Until then, the functions `pause`, which waits a little,
    and `now_ms` are called repeatedly.
    """
    seen: dict[str, int] = {}
    while alive := [info for info in HEARTBEATS.listed(store, app) if info.modified_ms >= now_ms() - FRESH_S * 1000]:
        if any(seen.setdefault(info.key, info.modified_ms) != info.modified_ms for info in alive):
            return False
        pause()
    return True


def _runners_of(head: Manifest, alive: Iterable[Heartbeat]) -> Iterator[Heartbeat]:
    return (runner for runner in alive if runner.stages.get(head.stage) == head.epoch)


def runner_of(head: Manifest, alive: Iterable[Heartbeat]) -> str:
    return next((runner.by for runner in _runners_of(head, alive)), "")


@dataclass(slots=True)
class HeartbeatWriter:
    """Writes a runner's heartbeats, except while storage is unavailable, and deletes the last heartbeat at the end."""

    store: ObjectStore
    app: str
    _due_s: float = 0.0
    _swept: bool = False

    def write_if_due(self, now: Callable[[], Heartbeat]) -> None:
        if runtime.monotonic() < self._due_s:
            return
        self._due_s, beat = runtime.monotonic() + BEAT_S, now()
        with suppress(Unavailable, Refused):
            HEARTBEATS.put(self.store, beat, self.app)
            if not self._swept:
                delete_old_heartbeats(self.store, self.app, beat.writer)
            self._swept = True

    def delete(self, writer: str) -> None:
        with suppress(Unavailable, Refused):
            HEARTBEATS.remove(self.store, writer, self.app)


def batch_lag(head: Manifest, alive: Iterable[Heartbeat]) -> int | None:
    """Return the number of batches by which a stage lags behind its attached Spark query; None if unknown."""
    committed = [runner.batches[head.stage] for runner in _runners_of(head, alive) if head.stage in runner.batches]
    return max(0, committed[0] - head.attached.next_batch) if committed and head.attached is not None else None


def wait_reason(head: Manifest, alive: Iterable[Heartbeat]) -> str:
    return next((runner.waits.get(head.stage, "") for runner in _runners_of(head, alive)), "")


def delete_old_heartbeats(store: ObjectStore, app: str, writer: str) -> None:
    """Delete heartbeats of runners that died more than an hour ago.

    The current time is storage's timestamp of the heartbeat of `writer`.
    """
    listed, own = HEARTBEATS.listed(store, app), keys.json_object(keys.runners(app), writer)
    now_ms = next((info.modified_ms for info in listed if info.key == own), 0)
    HEARTBEATS.sweep(store, listed, lambda info: info.modified_ms < now_ms - _FORGOTTEN_MS)


HOLD_RENEW_S = 2.0
"""Seconds between two renewals of a hold."""
HOLD_LAPSE_S = 15.0
"""Age of a hold in seconds after which runners ignore it, because its holder has died."""


class Hold(Struct, frozen=True):
    """Hold of an app: offsets at which its runners stop during a promotion."""

    app: limits.Name
    name: limits.Name
    to: limits.Name
    by: limits.ShortText
    renewed: limits.Count
    until: dict[limits.Topic, limits.Offsets]
    """Offsets at which reading stops, by users' topic; no other partition is read."""
    clock_ms: limits.AnyTimeMs | None


def find_hold(store: ObjectStore, app: str) -> Hold | None:
    """Return the app's hold, or None. One request."""
    return codec.find(store, keys.hold(app), Hold, key_of=lambda note: keys.hold(note.app))


def put_holds(store: ObjectStore, holds: Iterable[Hold], *, wake_runners: bool) -> None:
    for app_hold in holds:
        codec.put(store, keys.hold(app_hold.app), app_hold)
        if wake_runners:
            notify_runners(store, app_hold.app)


def release_holds(store: ObjectStore, apps: Iterable[str]) -> None:
    for app in apps:
        store.delete(keys.hold(app))
        notify_runners(store, app)


class EditRequest(Struct, frozen=True):
    """Request to edit rows of one table."""

    edit: Edit
    stage: limits.Name
    since: limits.Seq
    created_ms: limits.TimeMs
    sql: limits.Text = ""
    rows: Annotated[str, Meta(max_length=64)] = ""
    """Checksum of the rows that replace rows of the table; empty if the edit is an SQL statement.

    The rows are stored beside the request, as an Arrow stream.
    """
    error: limits.Text = ""
    outdated: bool = False
    """True if `error` is the error of `check_base`."""
    kind: Literal["edit", "repair"] = "edit"
    base: limits.Seq = 0
    """Version from which the rows were computed; no later version may have written rows. 0 for none."""

    @property
    def id(self) -> str:
        return self.edit.id

    def is_same_edit(self, other: "EditRequest") -> bool:
        own_fields, other_fields = (
            (compared.stage, compared.kind, compared.sql, compared.rows, compared.edit.by) for compared in (self, other)
        )
        return own_fields == other_fields


EDITS = JsonFolder(EditRequest, keys.edits, lambda request: request.id)


def find_edit_version(store: ObjectStore, request: EditRequest, head: Manifest) -> Manifest | None:
    """Return the version with the requested edit, up to `head`; None if no version has it.

    One request for each version since the request.
    """
    for version in history.iter_backwards(store, head):
        if version.version <= request.since:
            return None
        if version.edited is not None and version.edited.id == request.id:
            return version
    return None


def check_base(store: ObjectStore, request: EditRequest, head: Manifest) -> None:
    """Raise `Outdated` if a version up to `head` wrote rows after the base version of a request."""
    for version in history.iter_backwards(store, head) if request.base else ():
        if version.version <= request.base:
            return
        if version.traits.writes_rows or version.rewind is not None:
            raise Outdated(
                f"{version.stage}@v{version.version} is newer than the rows, which were computed at v{request.base}",
                hint="repeat the command",
            )


class Outdated(Refused):
    """Rows of a request were computed from an outdated version: a later version has written rows."""


def withdraw_edit(store: ObjectStore, app: str, request: EditRequest) -> None:
    """Delete a request and its rows. Two requests to storage."""
    if request.rows:
        store.delete(keys.edit_rows(app, request.id))
    EDITS.remove(store, request.id, app)
