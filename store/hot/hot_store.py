"""Store in which some SSTs lie in the hot places of their app.

A batch's task names such an SST with `-hot` at its end (`keys.sst`), so no other request is slower than without hot
places. The newest place gets new SSTs; reads try the places, newest first, and then the store itself. So a hot SST may
lie in the store, too: in a replica without hot places, or because a collection moved it there. Listings show both.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from heapq import merge
from itertools import chain
from operator import attrgetter
from pathlib import Path
from typing import Any, TypeVar

from ...errors import ObjectNotFound, Refused
from ..objects import open as objects
from ..objects.many import for_each_concurrently
from ..objects.protocol import HasClock, HasUnfinishedWrites, ObjectInfo, ObjectStore, UnfinishedWrite
from ..objects.s3_settings import S3Access
from ..objects.wrapper import StoreWrapper
from ..versions import forgotten, keys
from .places import PLACES, HotPlace

T = TypeVar("T")

# List prices of S3 Standard and S3 Express One Zone in US East: https://aws.amazon.com/s3/pricing/
_PUT_PRICE = 0.005 / 1000
_STORAGE_PRICE = (0.11 - 0.023) / (1 << 30) / (730 * 3_600_000)
"""Price of storing a byte for a millisecond in the hot place, less that in the store."""


def open_store(url: str, **how: Any) -> "HotStore":
    """Open the store of apps at a root, with their hot places. Arguments and errors are those of `objects.open`."""
    return HotStore(objects.open_store(url, **how))


def _has_paid(info: ObjectInfo, now_ms: int) -> bool:
    """Tell if a hot SST has cost as much more storage as a put into the store: then it is moved.

    So it costs at most twice of what the better place would have cost, however long history keeps it (Karlin et al.,
    "Competitive Snoopy Caching", 1988).
    """
    return info.size_bytes * (now_ms - info.modified_ms) >= _PUT_PRICE / _STORAGE_PRICE


class HotStore(StoreWrapper):
    """Store that finds hot SSTs in the hot places of their app. Stores at other roots do so, too."""

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self._places: dict[str, tuple[HotPlace, ...]] = {}
        """Places of each app, newest first."""

    def _wrap_other(self, root: str) -> ObjectStore:
        return HotStore(self._inner.at(root))

    def get(self, key: str) -> bytes:
        return self._read(key, lambda store: store.get(key))

    def get_range(self, key: str, start: int, length: int) -> bytes:
        return self._read(key, lambda store: store.get_range(key, start, length))

    def put(self, key: str, data: bytes) -> None:
        app = key.partition("/")[0]
        if key.startswith(keys.hot_places(app)):
            self._places.pop(app, None)
        next(iter(self._own_stores(key)), self._inner).put(key, data)

    def put_if_absent(self, key: str, data: bytes) -> None:
        next(iter(self._own_stores(key)), self._inner).put_if_absent(key, data)

    def list(self, prefix: str, start_after: str = "") -> Iterator[ObjectInfo]:
        app = keys.app_with_listed_ssts(prefix)
        # Read anew: another process may have declared a place, and callers delete what a listing lacks.
        places = self._stores(self._check_owned(self._read_places(app))) if app else ()
        if not places:
            yield from self._inner.list(prefix, start_after)
            return
        shown, by_key = "", attrgetter("key")
        for info in merge(*(store.list(prefix, start_after) for store in (*places, self._inner)), key=by_key):
            if info.key != shown:  # `settle` copies an SST before it deletes it
                yield info
            shown = info.key

    def delete(self, key: str) -> None:
        for store in (*self._own_stores(key), self._inner):
            store.delete(key)

    def local_path(self, key: str) -> Path | None:
        if not keys.hot_sst_app(key):
            return self._inner.local_path(key)
        path = None
        for store in self._holders(key):
            path = store.local_path(key)
            if path is None or path.exists():
                break
        return path

    def settle(self, app: str, now_ms: int) -> None:
        moved = list[str]()
        for place in self._stores(self._check_owned(self._read_places(app))):
            old = [info.key for info in place.list(f"{app}/stages/") if _has_paid(info, now_ms)]
            for_each_concurrently(partial(self._move, place), old)
            moved += old
        # Since an SST was read, it may have been deleted because its keys were forgotten.
        for key in forgotten.newest(self, app).ssts.keys() & moved if moved else ():
            self._inner.delete(key)

    def _move(self, place: ObjectStore, key: str) -> None:
        with suppress(ObjectNotFound):
            self._inner.put(key, place.get(key))  # readers look here second
            place.delete(key)

    def access(self) -> S3Access | None:
        return objects.s3_access_for_others(self._inner)

    def now_ms(self) -> int | None:
        return self._inner.now_ms() if isinstance(self._inner, HasClock) else None

    def unfinished_writes(self, prefix: str) -> Iterator[UnfinishedWrite]:
        app = prefix.partition("/")[0]
        for store in (*self._stores(self._read_places(app) if app else ()), self._inner):
            if isinstance(store, HasUnfinishedWrites):
                yield from store.unfinished_writes(prefix)

    def discard(self, leftover: UnfinishedWrite) -> None:
        for store in (*self._stores(chain(*self._places.values())), self._inner):
            if isinstance(store, HasUnfinishedWrites):
                store.discard(leftover)

    def _read(self, key: str, request: Callable[[ObjectStore], T]) -> T:
        errors = list[ObjectNotFound]()
        for store in self._holders(key):
            try:
                return request(store)
            except ObjectNotFound as error:
                errors.append(error)
        raise errors[0]  # names the place where it should be

    def _holders(self, key: str) -> Iterator[ObjectStore]:
        """Yield the stores that may have an object, likely ones first."""
        app = keys.hot_sst_app(key)
        known = self._known(app) if app else ()
        yield from self._stores(known)
        yield self._inner
        if app:  # another process may have declared a place meanwhile
            yield from self._stores(place for place in self._read_places(app) if place not in known)

    def _own_stores(self, key: str) -> tuple[ObjectStore, ...]:
        app = keys.hot_sst_app(key)
        return self._stores(self._check_owned(self._known(app))) if app else ()

    def _known(self, app: str) -> tuple[HotPlace, ...]:
        known = self._places.get(app)
        return self._read_places(app) if known is None else known

    def _read_places(self, app: str) -> tuple[HotPlace, ...]:
        self._places[app] = PLACES.all(self._inner, app)[::-1]
        return self._places[app]

    def _stores(self, places: Iterable[HotPlace]) -> tuple[ObjectStore, ...]:
        return tuple(self._inner.at(place.root) for place in places)

    def _check_owned(self, places: tuple[HotPlace, ...]) -> tuple[HotPlace, ...]:
        """Return the places. Raises `Refused` in a copy of the app's store: its writes would damage the original."""
        for place in places:
            if place.store != self.url:
                raise Refused(
                    f"{self.url} has a copy of app {place.app!r}, whose hot SSTs under {place.root} belong to "
                    f"{place.store}",
                    hint=f"slackwater clone {place.app} NAME --deep --store {place.store} --to ROOT",
                )
        return places
