"""The clones of an app: those that live from its SSTs, and those that are being made.

A clone's pin in its source names the clone. A clone of a clone pins only the app that it was made from, and that one's
first versions name SSTs of the first app, too; so the manifests themselves are asked. Every version of a stage names no
SST of another app that the one before it did not, so the oldest that is left names all of them.
"""

from collections.abc import Iterator
from functools import cache
from itertools import chain

from ...errors import Refused
from ...store.objects.protocol import ObjectStore
from ...store.versions import apps, history
from ...store.versions.side_tables import all_ssts
from ..cut.stored import Snapshot, list_snapshots


def living(store: ObjectStore, app: str) -> Iterator[tuple[str, str]]:
    """The clones that live from an app, each with its root: in its own root, and in those that its pins name.

    One that was promoted does no more when none of its versions that are left shares an SST. Raises `Refused` (one may,
    under a root of which nothing is to be seen here) and `Unavailable` (the store of a clone did not answer).
    """
    pins = _pins(store, app)
    names = cache(lambda root: apps.called(store.at(root)))
    pinned = (
        (pin.clone, pin.clone_root)
        for pin in pins
        if clone_lives(store, pin) and not apps.name_in(names(pin.clone_root), pin.clone)
    )
    sharing = ((other, root) for root in _roots(pins) for other, objects in shared(store, app, root) if objects)
    return chain(pinned, sharing)


def being_made(store: ObjectStore, app: str) -> Iterator[str]:
    """The clones of an app that are not whole yet, in its own root and in those that its pins name."""
    for root in _roots(_pins(store, app)):
        where = store.at(root)
        for name in apps.list_cloning(where):
            note = apps.find_cloning(where, name)
            origin = note.info.origin if note is not None and note.root in ("", store.url) else None
            if origin is not None and origin.app == app:
                yield name


def _pins(store: ObjectStore, app: str) -> list[Snapshot]:
    # What is left of an app whose identity is gone has no snapshots that anybody could have made.
    found = list_snapshots(store, app) if apps.find_app(store, app) is not None else ()
    return [snapshot for snapshot in found if snapshot.kind == "clone"]


def _roots(pins: list[Snapshot]) -> list[str]:
    return sorted({"", *(pin.clone_root for pin in pins)})


def clone_lives(store: ObjectStore, snapshot: Snapshot) -> bool:
    """Say if the app for which a snapshot was pinned exists, or is being made.

    Raises `Refused` where that cannot be told.
    """
    elsewhere = snapshot.clone_root not in ("", store.url)
    target = store.at(snapshot.clone_root)
    if (note := apps.find_cloning(target, snapshot.clone)) is not None:
        origin = note.info.origin
        return origin is not None and (origin.app, note.snapshot) == (snapshot.app, snapshot.name)
    info = apps.find_app(target, snapshot.clone)
    if info is None:
        # A disk that is not mounted, or another machine's, reads as a store without apps.
        if elsewhere and next(iter(target.list_folders("")), None) is None:
            raise Refused(
                f"app {snapshot.clone!r} was cloned from snapshot {snapshot.name!r} of {snapshot.app} "
                f"under {snapshot.clone_root}, and from here nothing is to be seen there: it may live on",
                hint=f"do this where {snapshot.clone_root} can be read; or, if the clone is gone, remove what keeps "
                f"its state: slackwater snapshot rm {snapshot.app} {snapshot.name} --force",
            )
        return False
    origin = info.origin
    return origin is not None and (origin.app, origin.snapshot) == (snapshot.app, snapshot.name)


def shared(store: ObjectStore, app: str, root: str) -> Iterator[tuple[str, frozenset[str]]]:
    """The other apps under a root (empty: the app's own), and the SSTs of this app that each names."""
    where = store.at(root)
    roots = {"", store.url} if where is store else {store.url}
    for other in apps.list_apps(where):
        if where is store and other == app:
            continue
        named: set[str] = set()
        for stage in history.list_stages(where, other):
            for version in history.versions(where, other, stage)[:1]:
                ssts = all_ssts(history.read(where, other, stage, version))
                named |= {sst.object for sst in ssts if sst.root in roots and sst.object.startswith(f"{app}/")}
        yield other, frozenset(named)


def under(root: str) -> str:
    """Return the root of an app as messages add it; empty for the same root."""
    return f" under {root}" if root else ""
