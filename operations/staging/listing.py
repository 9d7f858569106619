"""The clones that a store root knows of: those under it, and those of its apps under other roots; what each keeps.

What a clone shares stays in the source because of a snapshot, its pin. Of the SSTs that the pin names, those cost
something that neither the source's newest versions nor another snapshot of it name: without the clone they would go
with the history, as retention has it.
"""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass

from ...errors import NotFound, SlackwaterError
from ...snapshot.change.first_versions import has_run
from ...snapshot.cut.moments import heads_of
from ...snapshot.cut.stored import Snapshot, find_snapshot, list_snapshots, of_snapshot
from ...store.objects.protocol import ObjectStore
from ...store.versions import apps, history
from ...store.versions.manifest import AppInfo
from ...store.versions.side_tables import all_ssts


@dataclass(frozen=True, slots=True)
class KnownClone:
    """One clone, as far as it can be seen from here."""

    name: str
    root: str
    """The store root that it is under."""
    source: str
    source_root: str
    """Empty of a clone with everything of its own."""
    snapshot: str
    """The source's snapshot that keeps what it shares; empty where nothing is shared."""
    cut: dict[str, int]
    """The source's version of each stage."""
    created_ms: int
    owner: str
    reason: str
    expires_ms: int
    """0 for never."""
    has_run: bool | None
    """Whether it has gone on from its first versions; None where that cannot be seen."""
    shared_bytes: int
    """SSTs of the source that its first versions name."""
    kept_bytes: int
    """Of these, the ones that only its pin keeps, once retention lets the history go."""
    state: str = ""
    """`being made`, `gone` (a pin is left of it), or why it cannot be seen; empty for a clone that is whole."""
    called: str = ""
    """The name that it has, or had, since it was promoted over another app: it does not expire then."""
    source_called: str = ""
    """What the source is to be called, where that is not its folder: `NAME` or `NAME~1`, since a promotion."""

    def is_over(self, now_ms: int) -> bool:
        """Whether the time is over for which it was wanted as a clone."""
        return 0 < self.expires_ms <= now_ms

    def is_expired(self, now_ms: int) -> bool:
        """Whether it may go."""
        return self.is_over(now_ms) and not self.called


def clones(store: ObjectStore, source: str = "") -> tuple[KnownClone, ...]:
    """The clones under this root, and those of its apps under other roots, by name; only those of the app `source`.

    Of each, the requests of reading its cut and the newest versions of its source. Raises `NotFound` where there is no
    such app, and `Unavailable`.
    """
    if source:
        apps.read_app(store, source)
    found = [*_here(store, source), *_elsewhere(store, source)]
    return tuple(sorted(found, key=lambda each: (each.name, each.root)))


def _here(store: ObjectStore, source: str) -> Iterator[KnownClone]:
    called = apps.called(store)
    for name in {*apps.list_apps(store), *apps.list_cloning(store)}:
        info, state = apps.find_app(store, name), ""
        if info is None and (note := apps.find_cloning(store, name)) is not None:
            info, state = note.info, "being made"
        if info is None or info.origin is None:
            continue
        if source in ("", info.origin.app):
            yield _known(store, store, info, state, called)


def _elsewhere(store: ObjectStore, source: str) -> Iterator[KnownClone]:
    """Clones of this root's apps under other roots, and pins of clones that are gone."""
    for app in [source] if source else apps.list_apps(store):
        for pin in list_snapshots(store, app):
            if pin.kind != "clone":
                continue
            target, state = store.at(pin.clone_root), ""
            try:
                info = apps.find_app(target, pin.clone)
                if info is None and (note := apps.find_cloning(target, pin.clone)) is not None:
                    info, state = note.info, "being made"
                called = apps.called(target)
            except SlackwaterError as error:
                yield _pinned_only(store, pin, target.url, error.message)
                continue
            if info is None or info.origin is None or info.origin.app != app:
                yield _pinned_only(store, pin, target.url, "gone")
            elif target.url != store.url:
                yield _known(store, target, info, state, called)


def _known(store: ObjectStore, target: ObjectStore, info: AppInfo, state: str, called: Mapping[str, str]) -> KnownClone:
    origin = info.origin
    assert origin is not None  # noqa: S101  it is a clone
    shared, kept, source = 0, 0, ""
    if not origin.deep:
        try:
            at = store.at(origin.root)
            source = apps.called(at).get(origin.app, "")
            pin = find_snapshot(at, origin.app, origin.snapshot) if origin.snapshot else None
            shared, kept = _bytes(at, pin) if pin is not None else (0, 0)
        except SlackwaterError as error:
            state = state or f"its source cannot be read: {error.message}"
    runs = None
    with suppress(SlackwaterError):
        runs = False if state == "being made" else has_run(target, info)
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
        kept_bytes=kept,
        state=state,
        called=called.get(info.name, ""),
        source_called=source,
    )


def _pinned_only(store: ObjectStore, pin: Snapshot, root: str, state: str) -> KnownClone:
    """What a pin says of its clone."""
    sizes = _bytes(store, pin)
    made = (pin.name, pin.stages, pin.completed_ms, pin.by)
    return KnownClone(pin.clone, root, pin.app, store.url, *made, "", 0, None, *sizes, state)


def _bytes(store: ObjectStore, pin: Snapshot) -> tuple[int, int]:
    """Bytes of the SSTs that a pin names, and of those that nothing else of the source names."""
    mine = _named(store, pin)
    others: set[str] = set()
    for head in heads_of(store, pin.app, history.list_stages(store, pin.app)).values():
        others |= {sst.object for sst in all_ssts(head)}
    for other in list_snapshots(store, pin.app):
        if other.name != pin.name:
            others |= _named(store, other).keys()
    return sum(mine.values()), sum(size for name, size in mine.items() if name not in others)


def _named(store: ObjectStore, snapshot: Snapshot) -> dict[str, int]:
    """The SSTs that a snapshot names, and the bytes of each."""
    with suppress(NotFound):
        cut = of_snapshot(store, snapshot)
        return {sst.object: sst.bytes for manifest in cut.stages.values() for sst in all_ssts(manifest)}
    return {}
