"""List of clones in a store root, and of its apps' clones in other roots, with the bytes that each clone keeps.

A clone's pin is the snapshot in its source that keeps the shared SSTs. The cost of a pin is the size of the source's
SSTs that only the pin protects: without the clone, retention would remove them.
"""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass

from ...errors import NotFound, SlackwaterError
from ...snapshot.change.first_versions import has_run
from ...snapshot.cut.moments import heads_of
from ...snapshot.cut.stored import Snapshot, cut_of_snapshot, find_snapshot, list_snapshots
from ...store.objects.protocol import ObjectStore
from ...store.versions import apps, history
from ...store.versions.manifest import AppInfo
from ...store.versions.side_tables import all_ssts


@dataclass(frozen=True, slots=True)
class KnownClone:
    """Description of a clone, as far as one store root shows it."""

    name: str
    root: str
    source: str
    source_root: str
    snapshot: str
    """Snapshot of the source that pins the shared SSTs; empty if the clone shares none."""
    cut: dict[str, int]
    created_ms: int
    owner: str
    reason: str
    expires_ms: int
    has_run: bool | None
    shared_bytes: int
    """Size in bytes of the source's SSTs that the clone's first versions name."""
    kept_bytes: int
    """Size in bytes of the shared SSTs that only the clone's pin protects from deletion."""
    state: str = ""
    """`being made`, `gone` (only its pin remains), or an error; empty for a complete clone."""
    called: str = ""
    """Name that the clone got by a promotion over another app; empty without a promotion.

    A promoted clone does not expire.
    """
    source_called: str = ""
    """Name that a promotion gave to the source, `NAME` or `NAME~1`; empty if it equals the folder's name."""

    def is_past_ttl(self, now_ms: int) -> bool:
        return 0 < self.expires_ms <= now_ms

    def is_expired(self, now_ms: int) -> bool:
        """Return True if the clone's time to live has passed and the clone was not promoted."""
        return self.is_past_ttl(now_ms) and not self.called


def list_clones(store: ObjectStore, source: str = "") -> tuple[KnownClone, ...]:
    """Return the clones in this root, and the clones of its apps in other roots, sorted by name.

    `source` restricts the result to clones of one app. Reads the cut of each clone, and the newest versions of its
    source. Raises `NotFound` if the source does not exist, and `Unavailable`.
    """
    if source:
        apps.read_app(store, source)
    rows = [*_clones_in_root(store, source), *_clones_in_other_roots(store, source)]
    return tuple(sorted(rows, key=lambda row: (row.name, row.root)))


def _clones_in_root(store: ObjectStore, source: str) -> Iterator[KnownClone]:
    called = apps.promoted_names(store)
    for name in {*apps.list_apps(store), *apps.list_unfinished_clones(store)}:
        info, state = apps.find_app(store, name), ""
        if info is None and (note := apps.find_clone_journal(store, name)) is not None:
            info, state = note.info, "being made"
        if info is None or info.origin is None:
            continue
        if source in ("", info.origin.app):
            yield _describe(store, store, info, state, called)


def _clones_in_other_roots(store: ObjectStore, source: str) -> Iterator[KnownClone]:
    for app in [source] if source else apps.list_apps(store):
        for pin in list_snapshots(store, app):
            if pin.kind != "clone":
                continue
            target, state = store.at(pin.clone_root), ""
            try:
                info = apps.find_app(target, pin.clone)
                if info is None and (note := apps.find_clone_journal(target, pin.clone)) is not None:
                    info, state = note.info, "being made"
                called = apps.promoted_names(target)
            except SlackwaterError as error:
                yield _pinned_only(store, pin, target.url, error.message)
                continue
            if info is None or info.origin is None or info.origin.app != app:
                yield _pinned_only(store, pin, target.url, "gone")
            elif target.url != store.url:
                yield _describe(store, target, info, state, called)


def _describe(
    store: ObjectStore, target: ObjectStore, info: AppInfo, state: str, called: Mapping[str, str]
) -> KnownClone:
    origin = info.origin
    assert origin is not None  # noqa: S101  it is a clone
    shared, exclusive, source = 0, 0, ""
    if not origin.is_deep:
        try:
            source_store = store.at(origin.root)
            source = apps.promoted_names(source_store).get(origin.app, "")
            pin = find_snapshot(source_store, origin.app, origin.snapshot) if origin.snapshot else None
            shared, exclusive = _pinned_bytes(source_store, pin) if pin is not None else (0, 0)
        except SlackwaterError as error:
            state = state or f"its source cannot be read: {error.message}"
    runs = None
    try:
        runs = False if state == "being made" else has_run(target, info)
    except SlackwaterError as error:
        state = state or f"its versions cannot be read: {error.message}"
    return KnownClone(
        name=info.name,
        root=target.url,
        source=origin.app,
        source_root=origin.root,
        snapshot=origin.snapshot,
        cut=origin.cut,
        created_ms=info.created_ms,
        owner=info.owner,
        reason=info.reason,
        expires_ms=info.expires_ms,
        has_run=runs,
        shared_bytes=shared,
        kept_bytes=exclusive,
        state=state,
        called=called.get(info.name, ""),
        source_called=source,
    )


def _pinned_only(store: ObjectStore, pin: Snapshot, root: str, state: str) -> KnownClone:
    sizes = _pinned_bytes(store, pin)
    facts = (pin.name, pin.stages, pin.completed_ms, pin.by)
    return KnownClone(pin.clone, root, pin.app, store.url, *facts, "", 0, None, *sizes, state)


def _pinned_bytes(store: ObjectStore, pin: Snapshot) -> tuple[int, int]:
    pinned = _named(store, pin)
    named_elsewhere: set[str] = set()
    for head in heads_of(store, pin.app, history.list_stages(store, pin.app)).values():
        named_elsewhere |= {sst.object for sst in all_ssts(head)}
    for other in list_snapshots(store, pin.app):
        if other.name != pin.name:
            named_elsewhere |= _named(store, other).keys()
    return sum(pinned.values()), sum(size for name, size in pinned.items() if name not in named_elsewhere)


def _named(store: ObjectStore, snapshot: Snapshot) -> dict[str, int]:
    with suppress(NotFound):
        cut = cut_of_snapshot(store, snapshot)
        return {sst.object: sst.bytes for manifest in cut.stages.values() for sst in all_ssts(manifest)}
    return {}
