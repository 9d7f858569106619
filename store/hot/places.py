"""The hot places of an app, recorded in its folder so that every process finds them, whatever its settings are.

A record is never changed or deleted before the app is. Each has a folder of its own under the configured root, so that
two apps never share one.
"""

from collections.abc import Iterator
from pathlib import Path
from shlex import quote

from msgspec import Struct

from ...common import runtime
from ...errors import Refused, Usage
from ..objects.protocol import ObjectStore
from ..versions import checks, keys, limits
from ..versions.checks import Violation
from ..versions.codec import JsonFolder


class HotPlace(Struct, frozen=True):
    """A second store root with SSTs of an app."""

    app: limits.Name
    id: limits.Ulid
    root: limits.ShortText
    store: limits.ShortText
    """Root of the app's store. In a copy of that store, the place still belongs to the original."""


@checks.find_violations.register
def _(value: HotPlace) -> Iterator[Violation]:
    yield from checks.root_violations("root", value.root)


PLACES = JsonFolder(HotPlace, keys.hot_places, lambda place: place.id, owner_of=lambda place: place.app)


def declare_hot_place(store: ObjectStore, app: str, root: str) -> HotPlace:
    """Record that new SSTs of an app lie under `root`. Idempotent; the app's other places stay readable.

    Returns the place. Errors and requests are those of `find_hot_place`, and a put.
    """
    place = find_hot_place(store, app, root)
    PLACES.put(store, place)
    return place


def find_hot_place(store: ObjectStore, app: str, root: str) -> HotPlace:
    """Return an app's place under `root`, or else a new one, which is not recorded yet.

    Costs a listing of the app's places, a read of each, and a put and a deletion under `root`. Raises `Usage` (the root
    is invalid, or that of the store), `NotFound` (its bucket does not exist), `Refused` (it refuses the put, or the
    store is a copy) and `Unavailable` (it does not answer).
    """
    url = store.at(root).url
    outer, inner = sorted(map(_real, (url, store.url)), key=len)
    if f"{inner}/".startswith(f"{outer.rstrip('/')}/"):
        raise Usage(
            f"hot is {root!r}, and the store is {store.url}: expected two roots, neither inside the other",
            hint='name another bucket, such as: hot = "s3://NAME--ZONE--x-s3/PREFIX"',
        )
    recorded = check_owned(store, PLACES.all(store, app))
    ulid = str(runtime.ulid())
    existing = (place for place in reversed(recorded) if _real(place.root.rpartition("/")[0]) == _real(url))
    place = next(existing, HotPlace(app, ulid, f"{url}/{ulid}", store.url))
    # A batch would fail if the bucket did not exist, or refused puts.
    probe = f"{app}/probe"
    store.at(place.root).put(probe, b"")
    store.at(place.root).delete(probe)
    return place


def check_owned(store: ObjectStore, places: tuple[HotPlace, ...]) -> tuple[HotPlace, ...]:
    """Return the places. Raises `Refused` in a copy of the app's store: its writes would damage the original."""
    for place in places:
        if place.store != store.url and _real(place.store) != _real(store.url):
            moved = f"; if it was moved: ln -s {quote(store.url)} {quote(place.store)}" if _is_folder(store.url) else ""
            raise Refused(
                f"{store.url} has a copy of app {place.app!r}, whose hot SSTs under {place.root} belong to "
                f"{place.store}",
                hint=f"slackwater clone {place.app} NAME --deep --store {quote(store.url)} --to ROOT{moved}",
            )
    return places


def _real(root: str) -> str:
    """Return a folder without symbolic links; any other root as it is."""
    return str(Path(root).resolve()) if _is_folder(root) else root


def _is_folder(root: str) -> bool:
    return root.startswith("/")
