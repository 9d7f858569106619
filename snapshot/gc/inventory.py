"""What a collection finds of an app: objects, by listing, those that nothing names, and what reachability asks for.

The order matters, because the app may be running. SSTs are listed before manifests, so that one committed in between
is seen to be named; heads are read before snapshots, as a stage remembers what it recorded until one is written.

An object that nothing names yet may be about to be named. Storage's clock alone says when that is over: an SST is named
by the next batch of its stage, or never, as batches come one after the other, finished merges go into the next one, and
after a claim the former writer cannot commit. So it is an orphan once its stage has committed a batch or a claim at
least the margin after it was written; a stage that has not committed since keeps its SSTs, however old. Versions of
kind "compaction" prove nothing, as they may come amidst a batch. Of a retired stage nothing is named any more.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import groupby, pairwise

from msgspec import Struct
from msgspec.structs import replace

from ...common import instants
from ...errors import Corruption, ObjectNotFound
from ...store.objects.many import many
from ...store.objects.protocol import ObjectInfo, ObjectStore
from ...store.versions import apps, codec, history, horizon, keys, limits, published
from ...store.versions.forgotten import index as forgotten
from ...store.versions.horizon import MIN_AGE_MS, Boundary
from ...store.versions.manifest import Manifest
from ..cut.stored import list_snapshots, open_requests
from . import census
from .retention import Known, StageKnown

_BEGUN, _ENDED = b'{"format":1}', b'{"format":1,"ended":true}'
"""What a collection leaves where the time of its object tells when that was; their sizes tell them apart."""


@dataclass(slots=True)
class Inventory:
    """What there is of an app."""

    store: ObjectStore
    app: str
    ssts: dict[str, tuple[ObjectInfo, ...]]
    manifests: dict[str, dict[int, ObjectInfo]]
    """By stage and version, collected ones included."""
    boundaries: tuple[Boundary, ...]
    known: Known
    _read: dict[tuple[str, int], Manifest] = field(default_factory=dict)

    def read(self, stage: str, version: int) -> Manifest:
        """A version without its SSTs and table, which are most of it. Raises `Corruption`."""
        if (stage, version) not in self._read:
            self._read[stage, version] = _there(self.store, self.app, stage, version)
        return self._read[stage, version]

    def with_later_snapshots(self) -> Known:
        """What was known, with the snapshots that came since.

        Those that went since count once more: what they pinned was promised to stay by what was proposed, and who pins
        it again now reads no more than that.
        """
        there = {snapshot.id: snapshot for snapshot in (*self.known.snapshots, *list_snapshots(self.store, self.app))}
        return Known(self.known.now_ms, self.known.stages, tuple(there.values()), last=self.known.last)


def take_inventory(store: ObjectStore, app: str, *, dry_run: bool) -> Inventory:
    """List all of an app, and read what says which versions there must be.

    Ages count from storage's clock, for which a dry run, which writes nothing, takes this machine's.

    Raises `NotFound` where there is no such app, and `Corruption` where a manifest that should be there is missing or
    not readable.
    """
    apps.read_app(store, app)
    now_ms = instants.now_ms() if dry_run else storage_clock_ms(store, app)
    try:
        return _list_all(store, app, now_ms)
    except Corruption:
        # Another collection may have taken it since the boundary was read: then the new boundary says so.
        return _list_all(store, app, now_ms)


def storage_clock_ms(store: ObjectStore, app: str) -> int:
    """Storage's time. This machine's may be wrong by years, and would take everything for old."""
    key = keys.collection(app)
    store.put(key, _BEGUN)
    return next(info.modified_ms for info in store.list(key))


def note_end(store: ObjectStore, app: str) -> None:
    """Say that a collection has come to its end. One request."""
    store.put(keys.collection(app), _ENDED)


def last_collection(store: ObjectStore, app: str) -> tuple[int, bool]:
    """When a collection began last, or ended, by storage's clock, 0 for never; and whether it ended. One listing."""
    key = keys.collection(app)
    found = [info for info in store.list(key) if info.key == key]
    return (found[0].modified_ms, found[0].size_bytes == len(_ENDED)) if found else (0, True)


def _list_all(store: ObjectStore, app: str, now_ms: int) -> Inventory:
    stages = history.list_stages(store, app)
    ssts = {stage: tuple(store.list(keys.ssts(app, stage))) for stage in stages}
    boundaries = horizon.all_of(store, app)
    last = next((each for each in reversed(boundaries) if each.final), horizon.NOTHING_COLLECTED)
    manifests = {stage: versions for stage in stages if (versions := dict(history.list_manifests(store, app, stage)))}
    seen: dict[tuple[str, int], Manifest] = {}
    there = {}
    for stage, versions in manifests.items():
        first = _first(store, app, stage, versions, last)
        head = _there(store, app, stage, max(versions))
        seen[stage, head.version] = head
        since_ms = now_ms - MIN_AGE_MS
        young = (version for version, info in versions.items() if version >= first and info.modified_ms > since_ms)
        needed = {name: max(first, version) for name, version in published.needed(store, head).items()}
        there[stage] = StageKnown(first, head, min(young, default=head.version + 1), needed)
    known = Known(now_ms, there, list_snapshots(store, app), last)
    # All that was to be kept before the whole history.
    for stage, kept in last.kept.items():
        if gone := [version for version in kept if version not in manifests.get(stage, ())]:
            raise _missing(app, stage, gone)
    return Inventory(store, app, ssts, manifests, boundaries, known, seen)


def named(inventory: Inventory, stage: str, versions: Iterable[int]) -> Iterator[tuple[int, tuple[str, ...]]]:
    """The SSTs under the app's own root that each version names; reads many at a time, from storage itself.

    Raises `Corruption` when a manifest is missing, or not readable.
    """
    store, app = inventory.store, inventory.app
    gone = forgotten.newest(store, app)

    def read(version: int) -> tuple[int, tuple[str, ...]]:
        key = keys.manifest(app, stage, version)
        try:
            found = codec.read(store, key, _Names, under=lambda one: keys.manifest(one.app, one.stage, one.version))
        except ObjectNotFound:
            raise _missing(app, stage, (version,)) from None
        named = (*found.ssts, *(sst for each in found.side_tables.values() for sst in each.ssts))
        return version, gone.names(sst.object for sst in named if sst.root in ("", store.url))

    return many(read, versions)


class _Name(Struct, frozen=True):
    object: limits.Key
    root: limits.Line = ""


class _SideTable(Struct, frozen=True):
    ssts: tuple[_Name, ...] = ()


class _Names(Struct, frozen=True):
    app: limits.Name
    stage: limits.Name
    version: limits.Version
    ssts: tuple[_Name, ...] = ()
    side_tables: dict[limits.Name, _SideTable] = {}


def _there(store: ObjectStore, app: str, stage: str, version: int) -> Manifest:
    """A version without its SSTs and table, which are most of it."""
    try:
        return replace(history.read_fresh(store, app, stage, version), ssts=(), table=None, side_tables={})
    except ObjectNotFound:
        raise _missing(app, stage, (version,)) from None


def _first(store: ObjectStore, app: str, stage: str, versions: dict[int, ObjectInfo], last: Boundary) -> int:
    """From where on the history is whole; raises `Corruption` where it is not."""
    first = last.first.get(stage, 0)
    if not first:
        first = min(versions)
        if first > 1 and not _there(store, app, stage, first).begins:
            raise _missing(app, stage, range(1, first))
    whole = [version for version in versions if version >= first] or [first + 1]
    for version, following in pairwise((first - 1, *whole)):
        if following != version + 1:
            raise _missing(app, stage, range(version + 1, following))
    return first


def _missing(app: str, stage: str, versions: Iterable[int]) -> Corruption:
    gone = list(versions)
    what = f"v{gone[0]}" if len(gone) == 1 else f"v{gone[0]} to v{gone[-1]}"
    return Corruption(
        f"stage {app}/{stage}: {what} should be there and is missing; nothing was collected",
        object_key=keys.manifest(app, stage, gone[0]),
        hint="bring the manifests back (from the bucket's versions or a backup) before collecting anything",
    )


def last_commit_ms(inventory: Inventory, stage: str) -> int:
    """When, by storage's clock, the stage last committed what names all that was finished before; 0: never.

    Of a retired stage now: until it comes back, nothing is named that is not.
    """
    there = inventory.known.stages.get(stage)
    if there is None:
        return 0
    if there.head.retired:
        return inventory.known.now_ms
    for version in range(there.head.version, there.first - 1, -1):
        if inventory.read(stage, version).traits.by_runner:
            return inventory.manifests[stage][version].modified_ms
    return 0


def unnamed_records(inventory: Inventory, margin_ms: int) -> Iterator[ObjectInfo]:
    """Kept records in flight that no snapshot names, nor one under way, with nothing new beside them for the margin."""
    store, app = inventory.store, inventory.app
    prefix = keys.snapshots(app)
    listed = [info for info in store.list(prefix) if census.kind_of(info.key) is census.IN_FLIGHT]
    if not listed:
        return
    # In this order: a request goes when its snapshot is written, and is seen there then.
    requested = {request.name for request in open_requests(store, app)}
    kept = {key for each in list_snapshots(store, app) for key in each.object_keys}
    for name, infos in groupby(listed, key=lambda info: info.key.removeprefix(prefix).split("/", 1)[0]):
        group = tuple(infos)
        idle = max(info.modified_ms for info in group) <= inventory.known.now_ms - margin_ms
        if idle and name not in requested:
            yield from (info for info in group if info.key not in kept)
