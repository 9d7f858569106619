"""Stores with many apps, or with an app of many versions and snapshots, written directly; and a client of any store."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from threading import Condition
from time import monotonic

from msgspec.structs import replace
from slackwater.client import Client
from slackwater.common import instants
from slackwater.settings import Settings
from slackwater.snapshot.cut.stored import SNAPSHOTS, Snapshot
from slackwater.snapshot.under_way.runners import HEARTBEATS, Heartbeat
from slackwater.store.objects.protocol import ObjectStore
from slackwater.store.versions import codec, keys
from slackwater.store.versions.entries.ssts import Sst, Ssts
from slackwater.store.versions.manifest import AppInfo, Column, Input, Manifest, Table
from ulid import ULID

TABLE = Table((Column("k", "int64"),), (Column("v", "int64"),), 1)
_ULID = "01" + 24 * "0"
_QUIET_S = 0.02


class StoreSettings(Settings, frozen=True, kw_only=True):
    """Settings of a client over this store object."""

    opened: ObjectStore

    def open_store(self) -> ObjectStore:
        return self.opened


def client_over(store: ObjectStore, cache: Path) -> Client:
    return Client(StoreSettings(store=store.url, opened=store, cache=str(cache), cache_max_bytes=1 << 30))


def many_apps(store: ObjectStore, count: int) -> tuple[str, ...]:
    """Write running apps of one stage with a table each; return their names."""
    names = tuple(f"app-{number:04}" for number in range(count))
    for name in names:
        store.put(keys.app_info(name), codec.encode(AppInfo(name, 1)))
        put_versions(store, [first_version(name)])
        HEARTBEATS.put(store, Heartbeat(_ULID, "here:1", {"stage": 1}), name)
    return names


def first_version(app: str) -> Manifest:
    sst = Sst(keys.sst(app, "stage", _ULID), 0, 0, 7, 70, "0a" * 16, 0, 9, 1, 1, 9, "0a" * 16, 0)
    source, now_ms = {"topic": Input("topic", (3,))}, instants.now_ms()
    return Manifest(app, "stage", 1, 1, "w", now_ms, "batch", table=TABLE, ssts=Ssts((sst,)), inputs=source)


def put_versions(store: ObjectStore, versions: Iterable[Manifest]) -> None:
    for version in versions:
        store.put(keys.manifest(version.app, version.stage, version.version), codec.encode(version))


def repeat_version(store: ObjectStore, head: Manifest, up_to: int) -> Manifest:
    """Write copies of `head` as the next versions up to `up_to`, and return the last one."""
    for version in range(head.version + 1, up_to + 1):
        head = replace(head, version=version, time_ms=head.time_ms + 1_000)
        put_versions(store, [head])
    return head


def pin_versions(store: ObjectStore, head: Manifest, count: int) -> None:
    """Write snapshots of versions up to `head`, at even distances."""
    for number in range(1, count + 1):
        version, at_ms = max(1, head.version * number // count), head.time_ms + number
        pinned = {head.stage: version}
        SNAPSHOTS.put(
            store, Snapshot(f"s{number:05}", str(ULID()), head.app, at_ms, at_ms, "instant", pinned, "somebody")
        )


@dataclass
class Rounds:
    """Counts rounds of requests, as the `on_request` of a `CountingStore`.

    Requests that wait together are one round. It ends once no more requests have come for a while.
    """

    count: int = 0
    _changed: Condition = field(default_factory=Condition)
    _last_s: float = 0.0

    def __call__(self, *_request: object) -> None:
        with self._changed:
            own, self._last_s = self.count, monotonic()
            while self.count == own:
                left_s = self._last_s + _QUIET_S - monotonic()
                if left_s <= 0:
                    self.count += 1
                    self._changed.notify_all()
                else:
                    self._changed.wait(left_s)
