"""Store in which some SSTs lie in the hot places of their app.

A batch's task names such an SST with `-hot` at its end (`keys.sst`), so no other request is slower than without hot
places. The run's place, or else the newest, gets new SSTs; reads try the places, newest first, and then the store
itself. So a hot SST may lie in the store, too: in a replica without hot places, or because a collection moved it there.
Listings show both.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from heapq import merge
from itertools import chain
from operator import attrgetter
from pathlib import Path
from typing import Any, TypeVar

from ...errors import NotFound, ObjectNotFound, SlackwaterError
from ..objects import open as objects
from ..objects.many import for_each_concurrently
from ..objects.protocol import HasClock, HasUnfinishedWrites, ObjectInfo, ObjectStore, UnfinishedWrite, exists
from ..objects.s3_settings import S3Access
from ..objects.wrapper import StoreWrapper
from ..versions import forgotten, keys
from .places import PLACES, HotPlace, check_owned

T = TypeVar("T")

# List prices of S3 Standard and S3 Express One Zone in US East: https://aws.amazon.com/s3/pricing/
_PUT_PRICE = 0.005 / 1000
_STORAGE_PRICE = (0.11 - 0.023) / (1 << 30) / (730 * 3_600_000)
"""Price of storing a byte for a millisecond in the hot place, less that in the store."""


def open_store(url: str, *, hot: str = "", **how: Any) -> "HotStore":
    """Open the store of apps at a root, with their hot places. Other arguments and errors: `objects.open_store`."""
    return HotStore(objects.open_store(url, **how), hot)


def _has_paid(info: ObjectInfo, now_ms: int) -> bool:
    """Tell if a hot SST has cost as much more storage as a put into the store: then it is moved.

    So it costs at most twice of what the better place would have cost, however long history keeps it (Karlin et al.,
    "Competitive Snoopy Caching", 1988).
    """
    return info.size_bytes * (now_ms - info.modified_ms) >= _PUT_PRICE / _STORAGE_PRICE


class HotStore(StoreWrapper):
    """Store that finds hot SSTs in the hot places of their app. Stores at other roots do so, too."""

    def __init__(self, inner: ObjectStore, hot: str = "") -> None:
        super().__init__(inner)
        self.hot = hot
        """Root of the run's hot place; empty for the newest place of an SST's app."""
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
        self._writer_of(key).put(key, data)

    def put_if_absent(self, key: str, data: bytes) -> None:
        self._writer_of(key).put_if_absent(key, data)

    def list(self, prefix: str, start_after: str = "") -> Iterator[ObjectInfo]:
        app = keys.app_with_listed_ssts(prefix)
        # Read anew: another process may have declared a place, and callers delete what a listing lacks.
        places = self._stores(check_owned(self._inner, self._read_places(app))) if app else ()
        if not places:
            yield from self._inner.list(prefix, start_after)
            return
        shown, by_key = "", attrgetter("key")
        # Places come first and whole, because `settle` moves SSTs from them to the store meanwhile.
        in_places = list[list[ObjectInfo]]()
        for place in places:
            with self._unless_removed(app):
                in_places.append(list(place.list(prefix, start_after)))
        for info in merge(*in_places, self._inner.list(prefix, start_after), key=by_key):
            if info.key != shown:  # `settle` copies an SST before it deletes it
                yield info
            shown = info.key

    def delete(self, key: str) -> None:
        for place in self._own_stores(key):
            with self._unless_removed(key.partition("/")[0]):
                place.delete(key)
        self._inner.delete(key)

    def local_path(self, key: str) -> Path | None:
        # `settle` may move a hot SST while a process has its path.
        return None if keys.hot_sst_app(key) else self._inner.local_path(key)

    def settle(self, app: str, now_ms: int) -> None:
        moved = list[str]()
        for place in self._stores(check_owned(self._inner, self._read_places(app))):
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
        errors = list[SlackwaterError]()
        for store in self._holders(key):
            try:
                return request(store)
            except SlackwaterError as error:
                if store is self._inner and not isinstance(error, ObjectNotFound):
                    raise
                errors.append(error)  # of a place that is gone or silent, too: `settle` may have moved the SST
        # An object is missing only if all places say so. The first one is where it should be.
        raise next((error for error in errors if not isinstance(error, ObjectNotFound)), errors[0])

    def _holders(self, key: str) -> Iterator[ObjectStore]:
        """Yield the stores that may have an object, likely ones first."""
        app = keys.hot_sst_app(key)
        known = self._known(app) if app else ()
        yield from self._stores(known)
        yield self._inner
        if app:  # another process may have declared a place meanwhile
            yield from self._stores(place for place in self._read_places(app) if place not in known)

    def _writer_of(self, key: str) -> ObjectStore:
        if self.hot and keys.hot_sst_app(key):
            return self._inner.at(self.hot)
        return next(iter(self._own_stores(key)), self._inner)

    def _own_stores(self, key: str) -> tuple[ObjectStore, ...]:
        app = keys.hot_sst_app(key)
        return self._stores(check_owned(self._inner, self._known(app))) if app else ()

    @contextmanager
    def _unless_removed(self, app: str) -> Iterator[None]:
        """Ignore that a place's bucket does not exist, if the app is being removed."""
        try:
            yield
        except NotFound:
            if not exists(self._inner, keys.removal_journal(app)):
                raise

    def _known(self, app: str) -> tuple[HotPlace, ...]:
        known = self._places.get(app)
        return self._read_places(app) if known is None else known

    def _read_places(self, app: str) -> tuple[HotPlace, ...]:
        self._places[app] = PLACES.all(self._inner, app)[::-1]
        return self._places[app]

    def _stores(self, places: Iterable[HotPlace]) -> tuple[ObjectStore, ...]:
        return tuple(self._inner.at(place.root) for place in places)
