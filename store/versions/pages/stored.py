"""Pages in the store: listing, reading with a check against a manifest, writing and merging.

Before its first use, a page is compared with the stored manifest of one version: time, epoch and writer must be equal.
No two versions in any store have the same three values. So a matching page describes this history, not the history of a
removed app with the same name.
"""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, groupby
from typing import NamedTuple, TypeVar
from weakref import WeakKeyDictionary

from cachetools import LRUCache

from ....common import runtime
from ....errors import Corruption, ObjectNotFound, Unstorable
from ...objects.many import for_each_concurrently, map_concurrently
from ...objects.protocol import ObjectStore
from .. import codec, keys
from ..leaves.objects import bind_ssts
from ..manifest import Manifest
from .page import BLOCK, VersionIdentity, VersionPage, VersionParts, build_page, concat_pages, identity_of

PAGE_SIZES = (64, 512, BLOCK)
"""Numbers of versions in a page. A runner writes small pages, and merges eight pages into a page of the next size."""
_MAX_CACHED_BYTES = 16 << 20
"""Largest stored size of the pages in memory, which take about six times as much."""
MAX_PAGE_BYTES = 16 << 20
"""Largest stored size of a merged page. Larger pages are not merged."""
MAX_SSTS_OF_LEAVES = 1 << 14
"""Maximum number of SSTs of a table whose leaves (then 64, about 2.7 MB) a search by time reads in advance."""

_Fields = TypeVar("_Fields", bound=VersionIdentity)

_NAME = re.compile(r"(\d{15})-(\d{20})-(\d{20})\.json")

_cached: WeakKeyDictionary[ObjectStore, LRUCache[str, tuple[VersionPage, int]]] = WeakKeyDictionary()
"""Pages that this process has written or checked, by store and key, with their stored sizes."""
_lock = runtime.lock()


class PageRef(NamedTuple):
    """Listed page. The name of its object has the range of its versions, and the time of the last version."""

    last_ms: int
    first: int
    last: int
    key: str
    bytes: int


def block_of(version: int, size: int) -> range:
    """Return the block of `size` versions that contains a version."""
    first = (version - 1) // size * size + 1
    return range(first, first + size)


def list_pages(store: ObjectStore, app: str, stage: str) -> tuple[PageRef, ...]:
    """Return a stage's pages by the number of the last version. Costs one request for each 1,000 pages."""
    folder = keys.pages(app, stage)
    refs = []
    for info in store.list(folder):
        if match := _NAME.fullmatch(info.key, len(folder)):
            last_ms, first, last = map(int, match.groups())
            if first <= last < block_of(first, BLOCK).stop:
                refs.append(PageRef(last_ms, first, last, info.key, info.size_bytes))
    return tuple(sorted(refs, key=lambda ref: (ref.last, -ref.first)))


def put_page(store: ObjectStore, page: VersionPage) -> str:
    """Write a page, and return its key; empty for a page that is too large to be stored. Costs one request."""
    try:
        data = codec.encode(page)
    except Unstorable:
        return ""
    store.put(key := _key_of(page), data)
    _remember(store, key, page, len(data))
    return key


def merge_pages(store: ObjectStore, app: str, stage: str, block: range) -> None:
    """Replace all pages of a block by one page. The new page also has the block's versions that were in no page.

    Costs a listing, two requests for each page that is not in memory, and one for each version that was in no page, at
    most 64.
    """
    pages = StagePages(store, app, stage)
    refs = [ref for ref in pages.refs if ref.first >= block.start and ref.last < block.stop]
    if len(refs) < 2 or sum(ref.bytes for ref in refs) > MAX_PAGE_BYTES:
        return
    loaded = [page for ref in refs if (page := pages.load(ref)) is not None]
    others = set(range(refs[0].first, block.stop))
    for page in loaded:
        others.difference_update(range(page.first, page.numbers[-1] + 1))

    def read(version: int) -> VersionParts | None:
        with suppress(ObjectNotFound):  # collected
            return read_parts(store, app, stage, version)
        return None

    if loaded and len(others) <= PAGE_SIZES[0]:
        replace_pages(store, refs, add_pages(loaded, sorted(others), read))


def add_pages(
    pages: Sequence[VersionPage], others: Sequence[int], read: Callable[[int], VersionParts | None]
) -> list[VersionPage]:
    """Return these pages together with new pages of the versions `others`, ascending and without overlaps.

    `others` are ascending. The function `read` returns a version, or None if the version does not exist. Versions are
    read concurrently.
    """
    starts = [page.first for page in pages]
    new = []
    for _, run in groupby(others, key=lambda version: bisect_left(starts, version)):
        versions = filter(None, map_concurrently(read, run))
        if (first := next(versions, None)) is not None:
            new.append(build_page(chain((first,), versions)))
    return sorted((*pages, *new), key=lambda page: page.first)


def replace_pages(store: ObjectStore, refs: Iterable[PageRef], pages: Sequence[VersionPage]) -> None:
    """Write one page with all versions of `pages`, and then delete the listed pages `refs`."""
    if key := put_page(store, concat_pages(pages)):
        delete_pages(store, (ref for ref in refs if ref.key != key))


def delete_pages(store: ObjectStore, refs: Iterable[PageRef]) -> None:
    for_each_concurrently(lambda ref: store.delete(ref.key), refs)


def drop_cached(store: ObjectStore, app: str) -> None:
    with _lock:
        cache = _cache(store)
        for key in [key for key in cache if key.startswith(f"{app}/")]:
            del cache[key]


def read_parts(store: ObjectStore, app: str, stage: str, version: int) -> VersionParts:
    """Return the parts of one version that a page contains. Raises `ObjectNotFound` and `Corruption`."""
    parts = _read_fields(store, app, stage, version, VersionParts)
    for ssts in parts.tables:
        bind_ssts(store, ssts, f"{app}/{stage}@v{version}")
    return parts


def _read_fields(store: ObjectStore, app: str, stage: str, version: int, fields: type[_Fields]) -> _Fields:
    return codec.read(store, keys.manifest(app, stage, version), fields, key_of=_manifest_key)


def _manifest_key(version: VersionIdentity) -> str:
    return keys.manifest(version.app, version.stage, version.version)


@dataclass(slots=True)
class StagePages:
    """Pages of one stage, listed when they are first needed, and read when one of their versions is needed."""

    store: ObjectStore
    app: str
    stage: str
    check_at: Callable[[PageRef], int] = lambda ref: ref.last
    """Function that returns a version whose manifest proves the page valid; 0 if no manifest is left."""
    listed: tuple[PageRef, ...] = ()
    """All listed pages; empty before the first use of `refs`."""
    _refs: tuple[PageRef, ...] | None = None

    @property
    def refs(self) -> tuple[PageRef, ...]:
        """The usable pages that do not overlap, ascending."""
        if self._refs is None:
            self.listed = list_pages(self.store, self.app, self.stage)
            chosen: list[PageRef] = []
            for ref in reversed(self.listed):
                # A page that overlaps a later page was merged by two processes at once, or is about to be deleted.
                if not chosen or ref.last < chosen[-1].first:
                    chosen.append(ref)
            self._refs = tuple(reversed(chosen))
        return self._refs

    def load(self, ref: PageRef) -> VersionPage | None:
        """Return a page, or None if it is missing, damaged or belongs to another history.

        Costs two concurrent requests, unless this process has read or written the page. Raises `Unavailable`.
        """
        with _lock:
            known = _cache(self.store).get(ref.key)
        if known is not None:
            return known[0]
        page = _read_checked(self.store, self.app, self.stage, ref, self.check_at(ref))
        if page is None:
            self._refs = tuple(other for other in self.refs if other is not ref)
        else:
            _remember(self.store, ref.key, page, ref.bytes)
        return page

    def outline(self, version: int) -> Manifest | None:
        """Return the outline of a version, or None if no page has it."""
        page = self._page_of(version)
        return page.outline(version) if page is not None else None

    def leaves(self, version: int) -> list[tuple[str, str]]:
        """Return pairs of root and key for a version's leaves; none if no page has it, or if it has many SSTs."""
        page = self._page_of(version)
        return page.leaves(version, MAX_SSTS_OF_LEAVES) if page is not None else []

    def preload(self, versions: Iterable[int], most: int) -> bool:
        """Load the pages of these versions concurrently if there are at most `most`; return False if there are more."""
        places = {bisect_left(self.refs, version, key=lambda ref: ref.last) for version in versions}
        refs = [self.refs[at] for at in places if at < len(self.refs)]
        if len(refs) <= most:
            for_each_concurrently(self.load, refs)
        return len(refs) <= most

    def _page_of(self, version: int) -> VersionPage | None:
        refs = self.refs
        at = bisect_left(refs, version, key=lambda ref: ref.last)
        return self.load(refs[at]) if at < len(refs) and refs[at].first <= version else None

    def around(self, time_ms: int) -> tuple[int, Manifest | None]:
        """Return bounds of a search by time: a version committed at or before `time_ms`, and a later version's outline.

        The version is 0 if unknown, the outline None. If one page has both, no version lies between them. Makes a
        listing, and two concurrent requests for a page.
        """
        while True:
            refs = self.refs
            at = bisect_right(refs, time_ms, key=lambda ref: ref.last_ms)
            if at == len(refs):
                return 0, None
            if (page := self.load(refs[at])) is None:
                continue  # it is rejected from here on
            row = bisect_right(page.times, time_ms)
            low = page.numbers[row - 1] if row else self.last_before(time_ms)
            return low, page.outline(page.numbers[row])

    def last_before(self, time_ms: int) -> int:
        """Return the last version of the newest page that ends at or before a time; 0 for no page."""
        while ended := [ref for ref in self.refs if ref.last_ms <= time_ms]:
            if (page := self.load(ended[-1])) is not None:
                return page.numbers[-1]
        return 0


def _read_checked(store: ObjectStore, app: str, stage: str, ref: PageRef, version: int) -> VersionPage | None:
    def read_page() -> VersionPage:
        return codec.read(store, ref.key, VersionPage, key_of=_key_of)

    def read_identity() -> VersionIdentity:
        return _read_fields(store, app, stage, version, VersionIdentity)

    reads: tuple[Callable[[], VersionPage], Callable[[], VersionIdentity]] = read_page, read_identity
    try:
        page, stored = map_concurrently(lambda read: read(), reads, 2) if version else (None, None)
    except (Corruption, ObjectNotFound):
        return None
    if not isinstance(page, VersionPage) or not isinstance(stored, VersionIdentity):
        return None
    outline = page.outline(version)
    return page if outline is not None and identity_of(outline) == identity_of(stored) else None


def _key_of(page: VersionPage) -> str:
    return keys.page(page.app, page.stage, page.times[-1], page.first, page.numbers[-1])


def _remember(store: ObjectStore, key: str, page: VersionPage, size: int) -> None:
    with _lock:
        if size <= _MAX_CACHED_BYTES:
            _cache(store)[key] = page, size


def _cache(store: ObjectStore) -> LRUCache[str, tuple[VersionPage, int]]:
    return _cached.setdefault(store, LRUCache(_MAX_CACHED_BYTES, getsizeof=lambda item: item[1]))
