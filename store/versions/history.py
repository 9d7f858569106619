"""Reading a stage's versions: the newest, a given one, those that follow, the one of a moment.

Manifests never change, and their numbers have no gaps from a stage's first version on; of those before it, garbage
collection may have left some (`horizon`). So the newest is found by asking which numbers exist: a listing while there
are few, a search over the numbers (galloping, Bentley and Yao 1976) when there are many.
Decoded manifests are kept for each store, a few hundred, since searches in time come back to the same ones.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from itertools import islice
from threading import Lock
from weakref import WeakKeyDictionary

from cachetools import LRUCache

from ...errors import MomentGone, NotFound, ObjectNotFound
from ..objects.protocol import ObjectInfo, ObjectStore, exists
from . import apps, codec, horizon, keys
from .forgotten import index as forgotten
from .manifest import Manifest

_PAGE = 1000
"""Keys in one answer of S3 to a listing."""
_STEPS = 4
"""Versions tried one by one after a hint, before searching."""
_RECENT = 256
"""Manifests kept for each store."""

# By store, not by URL: what a deleted and re-created root held is forgotten with the store that read it.
_recent: WeakKeyDictionary[ObjectStore, LRUCache[str, Manifest]] = WeakKeyDictionary()
_lock = Lock()


def head(store: ObjectStore, app: str, stage: str, *, known: int = 0) -> Manifest | None:
    """The newest version, or None when the stage has none. Raises `Corruption` where its manifest is not readable.

    `known` is a version that the caller has seen within the last half hour. With it, this takes one request and one
    for each version since (one more when the known manifest was not read lately). Without it, or many versions later:
    a listing and a read, and at 100,000 versions two more listings and some 13 requests of a byte each.
    """
    low = 0
    if known:
        newer = tuple(islice(after(store, app, stage, known), _STEPS))
        if 0 < len(newer) < _STEPS:
            return newer[-1]
        if newer:
            low = newer[-1].version
        # Should it be gone, the app was deleted since, and perhaps made anew.
        elif (found := find(store, app, stage, known)) is not None:
            return found
    version = _newest(store, app, stage, low)
    return read(store, app, stage, version) if version else None


def read(store: ObjectStore, app: str, stage: str, version: int) -> Manifest:
    """One version. Raises as `find`, and `NotFound`, which says what there is, where there is none."""
    found = find(store, app, stage, version)
    if found is not None:
        return found
    stages = list_stages(store, app)
    if stage not in stages:
        if not stages:
            apps.read_app(store, app)  # says so when the app is what is missing
        raise NotFound(f"stage of app {app!r}", stage, stages)
    newest = head(store, app, stage)
    if newest is None:
        raise NotFound(f"version of {app}/{stage}", f"v{version}")
    kept = [f"v{number}" for number in horizon.newest(store, app).kept.get(stage, ())]
    if len(kept) > 1:
        kept = [f"{len(kept)} of {kept[0]} to {kept[-1]}"]
    first = first_version(store, app, stage)
    whole = f"v{first} to v{newest.version}" if first != newest.version else f"v{first}"
    error = MomentGone if 0 < version <= newest.version else NotFound
    raise error(f"version of {app}/{stage}", f"v{version}", found=f"there are {' and '.join([*kept, whole])}")


def find(store: ObjectStore, app: str, stage: str, version: int) -> Manifest | None:
    """One version, or None when there is none; raises as `read_fresh` else. One request, or none."""
    with _lock:
        recent = _recent.get(store)
        manifest = recent.get(keys.manifest(app, stage, version)) if recent is not None else None
    with suppress(ObjectNotFound):
        return forgotten.resolved(store, manifest or read_stored(store, app, stage, version))
    return None


def read_fresh(store: ObjectStore, app: str, stage: str, version: int) -> Manifest:
    """One version, from storage itself, as `find` gives it. Raises as `read_stored`."""
    return forgotten.resolved(store, read_stored(store, app, stage, version))


def read_stored(store: ObjectStore, app: str, stage: str, version: int) -> Manifest:
    """One version as it was written: SSTs that held what was forgotten since have other names (`forgotten`).

    Raises `ObjectNotFound`; `Corruption` where it is unreadable or another's.
    """
    key = keys.manifest(app, stage, version)
    manifest = codec.read(store, key, Manifest)
    found = (manifest.app, manifest.stage, manifest.version)
    if found != (app, stage, version):
        raise codec.damaged(
            key, f"holds the manifest of {found[0]}/{found[1]} v{found[2]}; expected {app}/{stage} v{version}"
        )
    with _lock:
        _recent.setdefault(store, LRUCache(_RECENT))[key] = manifest
    return manifest


def forget(store: ObjectStore, app: str) -> None:
    """Keep no manifest of an app that was removed: another one of its name may have other versions of these numbers."""
    with _lock:
        if (recent := _recent.get(store)) is not None:
            for key in [key for key in recent if key.startswith(f"{app}/")]:
                del recent[key]
    forgotten.drop(store, app)


def after(store: ObjectStore, app: str, stage: str, version: int) -> Iterator[Manifest]:
    """The versions that follow `version`, oldest first, up to the newest. One request each, and one that finds none."""
    while (manifest := find(store, app, stage, version + 1)) is not None:
        yield manifest
        version += 1


def followed(store: ObjectStore, manifest: Manifest, after: int) -> Iterator[Manifest]:
    """The versions above `after` that this one follows from, oldest first, itself the last, without what rewinds undid.

    A request each. Raises as `read`.
    """
    for versions in manifest.follows(after):
        for version in versions:
            is_it = version == manifest.version
            yield manifest if is_it else read(store, manifest.app, manifest.stage, version)


def between(store: ObjectStore, app: str, stage: str, after: int, up_to: int) -> Iterator[Manifest]:
    """The versions above `after`, up to `up_to`, that this last one follows from; none where it is not above.

    As `followed`, with the same errors.
    """
    if up_to > after:
        yield from followed(store, read(store, app, stage, up_to), after)


def before(store: ObjectStore, manifest: Manifest) -> Manifest | None:
    """The version before this one, or None where the stage's kept history begins. Errors as of `find`."""
    if manifest.version == 1 or manifest.begins:
        return None
    return find(store, manifest.app, manifest.stage, manifest.version - 1)


def backwards(store: ObjectStore, manifest: Manifest) -> Iterator[Manifest]:
    """This version and those before it, newest first, as far back as none is missing. Errors as of `find`."""
    earlier: Manifest | None = manifest
    while earlier is not None:
        yield earlier
        earlier = before(store, earlier)


def latest_at(store: ObjectStore, app: str, stage: str, time_ms: int) -> Manifest | None:
    """The newest version committed at `time_ms` or before, or None when all are later from the first on.

    A binary search, since commit times increase with versions: the requests of `head`, and a read a halving. Versions
    that garbage collection left before the first are not looked at: which of them belong together, a boundary's
    moments say.
    """
    newest = head(store, app, stage)
    if newest is None:
        return None
    read, first = partial(find, store, app), partial(first_version, store, app)
    return newest_where(read, first, newest, lambda manifest: manifest.time_ms <= time_ms)


def newest_where(
    read: Callable[[str, int], Manifest | None],
    first: Callable[[str], int],
    newest: Manifest,
    holds: Callable[[Manifest], bool],
) -> Manifest | None:
    """The newest of a stage's versions, from its `first` up to `newest`, for which `holds`, or None when there is none.

    A binary search: `holds` must be true up to some version and false after it. For `newest` itself nothing is read.
    `read` may give None for a version that was collected meanwhile, and all before it with it.
    """
    if holds(newest):
        return newest

    def is_later(version: int) -> bool:
        return (found := read(newest.stage, version)) is not None and not holds(found)

    versions = range(first(newest.stage), newest.version)
    after = bisect_left(versions, True, key=is_later)
    return read(newest.stage, versions[after - 1]) if after else None


def first_where(
    read: Callable[[str, int], Manifest | None],
    first: Callable[[str], int],
    newest: Manifest,
    holds: Callable[[Manifest], bool],
) -> int:
    """The number of the oldest of a stage's versions for which `holds`, as it does for `newest`; as `newest_where`.

    `holds` must be false up to some version and true after it.
    """
    before = newest_where(read, first, newest, lambda manifest: not holds(manifest))
    return before.version + 1 if before is not None else first(newest.stage)


def first_version(store: ObjectStore, app: str, stage: str) -> int:
    """The version from which on the history is whole, 0 when the stage has none. Two or three requests."""
    if whole_from := horizon.newest(store, app).first.get(stage):
        return whole_from
    return 1 if exists(store, keys.manifest(app, stage, 1)) else next(iter(list_manifests(store, app, stage)), (0,))[0]


def versions(store: ObjectStore, app: str, stage: str) -> tuple[int, ...]:
    """All versions that were not collected, ascending. A request for each 1,000, and those of `horizon.newest`."""
    limit = horizon.newest(store, app)
    # One that is collectable may still be there, or be again, for a while.
    return tuple(version for version, _ in list_manifests(store, app, stage) if limit.allows(stage, version))


def list_manifests(store: ObjectStore, app: str, stage: str, version: int = 0) -> Iterator[tuple[int, ObjectInfo]]:
    """The manifests after `version` that are stored, by version, ascending; collectable ones included."""
    for info in store.list(keys.manifests(app, stage), keys.manifest(app, stage, version)):
        # A file that somebody left in the folder is none of ours.
        with suppress(ValueError):
            yield keys.version_of(info.key), info


def list_stages(store: ObjectStore, app: str) -> tuple[str, ...]:
    """The app's stages, in order; none of an app that does not exist.

    Raises `Refused` where it is being removed, or is a clone that is not whole yet.
    """
    found = tuple(store.list_folders(keys.stages(app)))
    apps.check_whole(app, found)
    return found


def _newest(store: ObjectStore, app: str, stage: str, low: int) -> int:
    """The largest version, given that `low` exists or is 0."""
    # A disk tells in microseconds whether a file exists, and lists a long history in a fifth of a second.
    if store.local_path(keys.manifest(app, stage, 1)) is not None:
        low = max(low, horizon.newest(store, app).first.get(stage, 1))
        if exists(store, keys.manifest(app, stage, low)):
            return _search(store, app, stage, low, within=1)
        low = 0
    while True:
        page = [version for version, _ in islice(list_manifests(store, app, stage, low), _PAGE)]
        if len(page) < _PAGE:
            return page[-1] if page else low
        # Before the history is whole there are gaps, in which a search would end.
        low = max(page[-1], horizon.newest(store, app).first.get(stage, 0))
        low = _search(store, app, stage, low, within=_PAGE)


def _search(store: ObjectStore, app: str, stage: str, low: int, *, within: int) -> int:
    """A version that exists and is less than `within` versions before the first that does not; `low` exists."""
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
