"""The hot places of an app, recorded in its folder so that every process finds them, whatever its settings are.

A record is never changed or deleted before the app is. Each has a folder of its own under the configured root, so that
two apps never share one.
"""

from collections.abc import Iterator

from msgspec import Struct

from ...common import runtime
from ...errors import Usage
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


def declare_hot_place(store: ObjectStore, app: str, root: str) -> None:
    """Record that new SSTs of an app lie under `root`. Idempotent; the app's older places stay readable.

    Costs a listing of the app's places and a read of each. Raises `Usage` (the root is invalid, or that of the store),
    `NotFound` (its bucket does not exist) and `Unavailable` (it does not answer).
    """
    url = store.at(root).url
    outer, inner = sorted((url, store.url), key=len)
    if f"{inner}/".startswith(f"{outer.rstrip('/')}/"):
        raise Usage(
            f"hot is {root!r}, and the store is {store.url}: expected two roots, neither inside the other",
            hint='name another bucket, such as: hot = "s3://NAME--ZONE--x-s3/PREFIX"',
        )
    places = PLACES.all(store, app)
    if places and places[-1].root.rpartition("/")[0] == url and places[-1].store == store.url:
        return
    ulid = str(runtime.ulid())
    place = HotPlace(app, ulid, f"{url}/{ulid}", store.url)
    # A batch would fail if the bucket did not exist.
    next(store.at(place.root).list(f"{app}/"), None)
    PLACES.put(store, place)
