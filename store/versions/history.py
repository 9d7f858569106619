"""Reads a stage's versions: the newest, one by number, a range, or the newest at a given time.

Manifests are immutable. From the version at which the complete history begins, their numbers have no gaps; before it,
garbage collection may have kept single versions (`horizon`). So the newest version is the largest existing number. A
listing finds it among few versions; among many, a galloping search over the numbers does (Bentley and Yao 1976). The
version at a given time is found by pages (`pages`), and by a binary search if no page has it. Decoded manifests are
cached by store.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import overload
from weakref import WeakKeyDictionary

from cachetools import LRUCache

from ...common import runtime
from ...errors import MomentGone, NotFound, ObjectNotFound
from ..objects.protocol import ObjectInfo, ObjectStore, exists
from . import apps, codec, forgotten, horizon, keys
from .leaves.objects import bind_reader, cache_leaves
from .manifest import Manifest
from .pages.stored import PAGE_SIZES, StagePages
from .pages.stored import drop_cached as drop_cached_pages
from .side_tables import has_ssts

_KEYS_PER_PAGE = 1000
_MAX_STEPS = 4
_MAX_CACHED_BYTES = 16 << 20
"""Largest stored size of the manifests in memory: 256 of the largest manifests (64 kB), or thousands of usual ones."""

# Keyed by store, not by URL, so that a deleted and re-created root gets a new cache with its new store object.
_recent: WeakKeyDictionary[ObjectStore, LRUCache[str, tuple[Manifest, int]]] = WeakKeyDictionary()
"""Manifests by key, each with its stored size."""
_lock = runtime.lock()


def head(store: ObjectStore, app: str, stage: str, *, hint: int = 0) -> Manifest | None:
    """Return the newest version of a stage, or None. Raises `Corruption`.

    `hint` is a version that the caller has seen within the last half hour. With a hint, costs one request, one more for
    each newer version, and one if the manifest of `hint` is the newest and is not cached. Without a hint, or with many
    newer versions, costs a listing and a read; at 100,000 versions, also two more listings and about 13 requests of a
    byte each.
    """
    low = 0
    if hint:
        newer = tuple(islice(iter_after(store, app, stage, hint), _MAX_STEPS))
        if 0 < len(newer) < _MAX_STEPS:
            return newer[-1]
        if newer:
            low = newer[-1].version
        # If the version is gone, the app was deleted since, and perhaps re-created.
        elif (manifest := find(store, app, stage, hint)) is not None:
            return manifest
    version = _newest_version(store, app, stage, low)
    return read(store, app, stage, version) if version else None


def read(store: ObjectStore, app: str, stage: str, version: int) -> Manifest:
    """Return one version. Raises `NotFound`, which lists the existing versions, and `Corruption`."""
    manifest = find(store, app, stage, version)
    if manifest is not None:
        return manifest
    stages = list_stages(store, app)
    if stage not in stages:
        if not stages:
            apps.read_app(store, app)  # raises if the app is missing
        raise NotFound(f"stage of app {app!r}", stage, stages)
    newest = head(store, app, stage)
    if newest is None:
        raise NotFound(f"version of {app}/{stage}", f"v{version}")
    ranges = [f"v{number}" for number in horizon.newest(store, app).kept.get(stage, ())]
    if len(ranges) > 1:
        ranges = [f"{len(ranges)} of {ranges[0]} to {ranges[-1]}"]
    first = first_version(store, app, stage)
    whole = f"v{first} to v{newest.version}" if first != newest.version else f"v{first}"
    error = MomentGone if 0 < version <= newest.version else NotFound
    raise error(f"version of {app}/{stage}", f"v{version}", found=f"there are {' and '.join([*ranges, whole])}")


def find(store: ObjectStore, app: str, stage: str, version: int) -> Manifest | None:
    """Return one version, or None. Costs at most one request. Raises `Corruption`."""
    with _lock:
        recent = _recent.get(store)
        entry = recent.get(keys.manifest(app, stage, version)) if recent is not None else None
    with suppress(ObjectNotFound):
        manifest = entry[0] if entry is not None else read_stored(store, app, stage, version)
        index = forgotten.cached_index(store, app, manifest.forgotten) if has_ssts(manifest) else None
        return manifest if index is None else index.apply_to(manifest)
    return None


def read_stored(store: ObjectStore, app: str, stage: str, version: int) -> Manifest:
    """Return one version as written, with SSTs that were replaced when keys were forgotten. Ignores the cache.

    Raises `ObjectNotFound`, and `Corruption` if the object is unreadable or is another version.
    """
    key = keys.manifest(app, stage, version)
    manifest, size = codec.read_sized(store, key, Manifest)
    bind_reader(store, manifest)
    actual = (manifest.app, manifest.stage, manifest.version)
    if actual != (app, stage, version):
        raise codec.corruption_error(
            key, f"holds the manifest of {actual[0]}/{actual[1]} v{actual[2]}; expected {app}/{stage} v{version}"
        )
    with _lock:
        cache = _recent.setdefault(store, LRUCache(_MAX_CACHED_BYTES, getsizeof=lambda item: item[1]))
        if size <= _MAX_CACHED_BYTES:
            cache[key] = manifest, size
    return manifest


def drop_cached(store: ObjectStore, app: str) -> None:
    """Drop a deleted app's manifests from the cache: a new app of this name may reuse the version numbers."""
    with _lock:
        if (recent := _recent.get(store)) is not None:
            for key in [key for key in recent if key.startswith(f"{app}/")]:
                del recent[key]
    forgotten.drop_cached(store, app)
    drop_cached_pages(store, app)


def iter_after(store: ObjectStore, app: str, stage: str, version: int) -> Iterator[Manifest]:
    """Yield the versions after `version`, oldest first, up to the newest. Costs one request for each, plus one."""
    while (manifest := find(store, app, stage, version + 1)) is not None:
        yield manifest
        version += 1


def iter_base_versions(store: ObjectStore, manifest: Manifest, after: int) -> Iterator[Manifest]:
    """Yield the versions after `after` on which `manifest` is based, and `manifest` last.

    Versions that a rewind undid are left out. Costs one request for each. Raises `NotFound` for a missing version.
    """
    for versions in manifest.base_versions(after):
        for version in versions:
            is_it = version == manifest.version
            yield manifest if is_it else read(store, manifest.app, manifest.stage, version)


def iter_between(store: ObjectStore, app: str, stage: str, after: int, up_to: int) -> Iterator[Manifest]:
    """Yield the versions after `after` on which version `up_to` is based, and `up_to` last. One request for each."""
    if up_to > after:
        yield from iter_base_versions(store, read(store, app, stage, up_to), after)


def previous_version(store: ObjectStore, manifest: Manifest) -> Manifest | None:
    if manifest.version == 1 or manifest.starts_history:
        return None
    return find(store, manifest.app, manifest.stage, manifest.version - 1)


def iter_backwards(store: ObjectStore, manifest: Manifest) -> Iterator[Manifest]:
    """Yield this version and the versions before it, newest first, until a version is missing."""
    earlier: Manifest | None = manifest
    while earlier is not None:
        yield earlier
        earlier = previous_version(store, earlier)


def latest_at(store: ObjectStore, app: str, stage: str, time_ms: int, *, with_leaves: bool = False) -> Manifest | None:
    """Return the newest version that was committed at or before `time_ms`, or None.

    If a page covers that time, costs three round trips: for listings, the page, and the version. `with_leaves` reads
    the version's leaves in the third, too, for tables of up to `MAX_SSTS_OF_LEAVES` SSTs. Without a page, costs the
    requests of `head` and a binary search. Only the complete history is searched; a boundary's `moments` list the cuts
    of older versions that were kept.
    """
    pages = StagePages(store, app, stage)
    with runtime.executor(3) as pool:
        reading = pool.submit(horizon.newest, store, app)
        pool.submit(forgotten.cached_index, store, app)  # for the version that is read last
        low, later = pages.around(time_ms)
        if with_leaves:
            pool.submit(cache_leaves, store, pages.leaves(low))
        first = reading.result().first.get(stage, 0)
        newest = later or head(store, app, stage)
        return newest_at(store, newest, first, time_ms, pages) if newest is not None else None


def pages_of(store: ObjectStore, newest: Manifest, first: int) -> StagePages | None:
    """Return the page index of the stage of `newest`, not listed yet; None if the history is too short for pages."""
    return StagePages(store, newest.app, newest.stage) if newest.version - first > PAGE_SIZES[0] else None


def newest_at(
    store: ObjectStore, newest: Manifest, first: int, time_ms: int, pages: StagePages | None
) -> Manifest | None:
    """Return the newest version from `first` to `newest` that was committed at or before `time_ms`, or None.

    `first` is where the complete history begins; 0 if no version was collected. Searches `pages`, if given. Versions
    that no page has are found by binary search, because commit times increase with versions.
    """
    if newest.time_ms <= time_ms:
        return newest
    low = 0
    if pages is not None:
        low, later = pages.around(time_ms)
        if later is None:
            low = pages.last_before(time_ms)
        elif later.version < newest.version:
            newest = later
    begin = max(low, first) or _first_existing(store, newest.app, newest.stage)
    read = partial(find, store, newest.app)
    return newest_where(read, lambda _stage: begin, newest, lambda manifest: manifest.time_ms <= time_ms)


def newest_where(
    read: Callable[[str, int], Manifest | None],
    first: Callable[[str], int],
    newest: Manifest,
    holds: Callable[[Manifest], bool],
) -> Manifest | None:
    """Return the newest version for which `holds` returns True, from `first` to `newest`; None if there is none.

    This is a binary search: `holds` must be True up to some version and False after it. `newest` itself is not read.
    The function `read` may return None if the version and all earlier versions were collected meanwhile. The function
    `first` returns the first version of a stage.
    """
    if holds(newest):
        return newest

    def is_later(version: int) -> bool:
        return (manifest := read(newest.stage, version)) is not None and not holds(manifest)

    versions = range(first(newest.stage), newest.version)
    after = bisect_left(versions, True, key=is_later)
    return read(newest.stage, versions[after - 1]) if after else None


def first_where(
    read: Callable[[str, int], Manifest | None],
    first: Callable[[str], int],
    newest: Manifest,
    holds: Callable[[Manifest], bool],
) -> int:
    """Return the number of the oldest version for which `holds` returns True. It must be True for `newest`.

    A binary search (`newest_where`): `holds` must be False up to some version and True after it.
    """
    previous = newest_where(read, first, newest, lambda manifest: not holds(manifest))
    return previous.version + 1 if previous is not None else first(newest.stage)


def first_version(store: ObjectStore, app: str, stage: str) -> int:
    """Return the version from which the history is complete; 0 without versions. Costs two or three requests."""
    if whole_from := horizon.newest(store, app).first.get(stage):
        return whole_from
    return _first_existing(store, app, stage)


def _first_existing(store: ObjectStore, app: str, stage: str) -> int:
    return 1 if exists(store, keys.manifest(app, stage, 1)) else next(iter(list_manifests(store, app, stage)), (0,))[0]


@dataclass(frozen=True, slots=True)
class VersionNumbers(Sequence[int]):
    """Numbers of a stage's remaining versions, ascending: single kept versions, then the complete history."""

    kept: tuple[int, ...]
    complete: range

    def __len__(self) -> int:
        return len(self.kept) + len(self.complete)

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[int]: ...
    def __getitem__(self, index: int | slice) -> int | Sequence[int]:
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        number = range(len(self))[index] - len(self.kept)
        return self.complete[number] if number >= 0 else self.kept[number]


def version_numbers(store: ObjectStore, app: str, stage: str, newest: int) -> VersionNumbers:
    """Return the numbers of all stored versions up to `newest`. Version `newest` must exist.

    Makes two or three requests.
    """
    limit = horizon.newest(store, app)
    first = limit.first.get(stage) or _first_existing(store, app, stage)
    kept_versions = limit.kept.get(stage, ())
    return VersionNumbers(kept_versions[: bisect_right(kept_versions, newest)], range(first, newest + 1))


def list_versions(store: ObjectStore, app: str, stage: str) -> tuple[int, ...]:
    """Return the versions that are not collected, ascending. Costs one request per 1,000, and two for the boundary."""
    limit = horizon.newest(store, app)
    # A collectable version may still exist, or exist again, for a while.
    return tuple(version for version, _ in list_manifests(store, app, stage) if limit.allows(stage, version))


def list_manifests(store: ObjectStore, app: str, stage: str, version: int = 0) -> Iterator[tuple[int, ObjectInfo]]:
    for info in store.list(keys.manifests(app, stage), keys.manifest(app, stage, version)):
        # Ignore foreign files in the folder.
        with suppress(ValueError):
            yield keys.version_of(info.key), info


def list_stages(store: ObjectStore, app: str) -> tuple[str, ...]:
    """Return an app's stages, in order; none if the app does not exist.

    Raises `Refused` if the app is being removed, or is an unfinished clone.
    """
    folders = tuple(store.list_folders(keys.stages(app)))
    apps.check_complete(app, folders)
    return folders


def _newest_version(store: ObjectStore, app: str, stage: str, low: int) -> int:
    # On a disk, a look-up takes microseconds, but listing a long history takes 0.2 s.
    if store.local_path(keys.manifest(app, stage, 1)) is not None:
        low = max(low, horizon.newest(store, app).first.get(stage, 1))
        if exists(store, keys.manifest(app, stage, low)):
            return _galloping_search(store, app, stage, low, within=1)
        low = 0
    while True:
        page = [version for version, _ in islice(list_manifests(store, app, stage, low), _KEYS_PER_PAGE)]
        if len(page) < _KEYS_PER_PAGE:
            return page[-1] if page else low
        # The incomplete history has gaps, at which a search would stop.
        low = max(page[-1], horizon.newest(store, app).first.get(stage, 0))
        low = _galloping_search(store, app, stage, low, within=_KEYS_PER_PAGE)


def _galloping_search(store: ObjectStore, app: str, stage: str, low: int, *, within: int) -> int:
    """Return an existing version; some version at most `within` above it is missing."""
    step = within
    while exists(store, keys.manifest(app, stage, low + step)):
        low += step
        step *= 2
    high = low + step
    while high - low > within:
        middle = (low + high) // 2
        if exists(store, keys.manifest(app, stage, middle)):
            low = middle
        else:
            high = middle
    return low
