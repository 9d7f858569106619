"""Leaves in the store: objects with the entries of SSTs that manifests refer to (`ssts`).

Many versions name the same immutable leaf, so entries of leaves are cached by store.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from weakref import WeakKeyDictionary

from cachetools import LRUCache
from msgspec import Struct
from msgspec.structs import replace

from ....common import runtime
from ....errors import Corruption, ObjectExists, ObjectNotFound, SlackwaterError
from ...objects.many import for_each_concurrently, map_concurrently
from ...objects.protocol import ObjectStore
from .. import checks, codec, keys, limits
from ..checks import Violation
from ..entries.ssts import Leaf, Sst, Ssts
from ..manifest import Manifest

MAX_LEAVES = 64
"""Largest number of leaves that a fold makes for a table; a reader requests them all at once."""
_MAX_CACHED_SSTS = 1 << 18

_cached: WeakKeyDictionary[ObjectStore, LRUCache[tuple[str, str], tuple[Sst, ...]]] = WeakKeyDictionary()
"""Entries by store, and then by the root and the key of the leaf."""
_lock = runtime.lock()


class LeafContent(Struct, frozen=True):
    """Content of a leaf."""

    app: limits.Name
    stage: limits.Name
    id: limits.Ulid
    ssts: Ssts
    """SSTs of the leaf. Their entries are inline: a leaf refers to no other leaf."""


@checks.find_violations.register
def _(value: LeafContent) -> Iterator[Violation]:
    if value.ssts.leaves:
        yield Violation("ssts.leaves", len(value.ssts.leaves), "no leaves below a leaf")
    yield from checks.sst_violations("ssts.inline", value.ssts.inline, (), limits.MAX_COUNT)


def bind_reader(store: ObjectStore, manifest: Manifest) -> Manifest:
    """Return a manifest whose SSTs read their leaves from this store."""
    for ssts in (manifest.ssts, *(side.ssts for side in manifest.side_tables.values())):
        bind_ssts(store, ssts, f"{manifest.app}/{manifest.stage}@v{manifest.version}")
    return manifest


def bind_ssts(store: ObjectStore, ssts: Sequence[Sst], needed_by: str = "") -> None:
    """Let SSTs read their leaves, if any, from this store. `needed_by` is the ref of their version, for errors."""
    if isinstance(ssts, Ssts):
        ssts.bind(partial(read_leaves, store, needed_by=needed_by))


def read_leaves(store: ObjectStore, leaves: Iterable[Leaf], needed_by: str = "") -> list[tuple[Sst, ...]]:
    """Return all entries of each leaf, removed SSTs included. Costs one request for each leaf that is not cached.

    Raises `Corruption` if a leaf is missing or damaged, and `Unavailable`.
    """
    return list(map_concurrently(partial(_read_leaf, store, needed_by), leaves, MAX_LEAVES))


def write_leaf(
    store: ObjectStore, app: str, stage: str, slot: tuple[int, int], bounds: tuple[int, int], ssts: tuple[Sst, ...]
) -> Leaf:
    """Put a leaf with these entries, and return its reference. Costs one request.

    `slot` is a pair: the index of the leaf's slot, and the number of slots. `bounds` are the lowest and the highest
    hash.
    """
    content = LeafContent(app, stage, str(runtime.ulid()), Ssts(ssts))
    key = keys.leaf(app, stage, content.id)
    # Not `put`: a spool would keep the leaf on this machine, but the version that names it may be committed elsewhere.
    with suppress(ObjectExists):  # this call's own put, whose answer was lost: nobody else knows the name
        store.put_if_absent(key, codec.encode(content))
    with _lock:
        _cache(store)["", key] = ssts
    return Leaf(key, *slot, len(ssts), *bounds)


def cache_leaves(store: ObjectStore, places: Iterable[tuple[str, str]]) -> None:
    """Read leaves, given as pairs of root and key, concurrently into the cache.

    Errors are ignored: a later read raises them.
    """
    with suppress(SlackwaterError):
        for_each_concurrently(lambda place: _read_entries(store, *place), places, MAX_LEAVES)


def _read_leaf(store: ObjectStore, needed_by: str, leaf: Leaf) -> tuple[Sst, ...]:
    try:
        ssts = _read_entries(store, leaf.root, leaf.object)
    except ObjectNotFound:
        raise Corruption(
            f"object {leaf.object!r} is missing: {needed_by or 'a version'} needs it for {leaf.live} SSTs with hashes "
            f"from {leaf.hash_min} to {leaf.hash_max}; the SSTs themselves, other hashes and versions without this "
            "leaf are not affected",
            object_key=leaf.object,
            hint="restore the object from a backup or an older object version",
        ) from None
    if len(ssts) != leaf.ssts:
        raise codec.corruption_error(leaf.object, f"has {len(ssts)} SSTs; its manifest expects {leaf.ssts}")
    return ssts


def _read_entries(store: ObjectStore, root: str, key: str) -> tuple[Sst, ...]:
    with _lock:
        known = _cache(store).get((root, key))
    if known is not None:
        return known
    content = codec.read(
        store.at(root), key, LeafContent, key_of=lambda content: keys.leaf(content.app, content.stage, content.id)
    )
    roots = {other: "" if other == store.url else other for other in {root, *(sst.root for sst in content.ssts)}}
    ssts = tuple(replace(sst, root=roots[sst.root or root]) for sst in content.ssts)
    with _lock:
        _cache(store)[root, key] = ssts
    return ssts


def _cache(store: ObjectStore) -> LRUCache[tuple[str, str], tuple[Sst, ...]]:
    return _cached.setdefault(store, LRUCache(_MAX_CACHED_SSTS, getsizeof=len))
