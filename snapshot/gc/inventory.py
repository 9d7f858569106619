"""Inventory of an app for garbage collection: listed objects, heads, snapshots and boundaries, and orphaned SSTs.

The order matters, because the app may be running. SSTs are listed before manifests, so that an SST committed in between
counts as named. Heads are read before snapshots, since a stage remembers the version that it recorded until the
snapshot is written.

An SST in no manifest is either named by the next batch of its stage, or never: batches are sequential, finished merges
become part of the next batch, and a claim fences the former writer. So an SST is an orphan if its stage committed a
batch or a claim later than the SST was written, by at least `collect.MARGIN_MS` of storage's clock. SSTs of a stage
without such a commit are kept, regardless of their age. Versions of kind "compaction" do not count, as they may be
committed during a batch. A retired stage names no new SSTs.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import groupby, pairwise

from msgspec.structs import replace

from ...common import instants
from ...errors import Corruption, ObjectNotFound
from ...store.objects.protocol import ObjectInfo, ObjectStore
from ...store.versions import apps, history, horizon, keys, published
from ...store.versions.horizon import MIN_AGE_MS, Boundary
from ...store.versions.manifest import Manifest
from ...store.versions.pages.stored import PageRef, StagePages
from ..cut.stored import list_snapshots, open_requests
from . import census
from .reachable import AppState, StageState

_BEGUN, _ENDED = b'{"format":1}', b'{"format":1,"ended":true}'
"""Content of the object that records a collection: at its start and its end. The sizes differ in a listing."""


@dataclass(slots=True)
class Inventory:
    """Listed objects of an app."""

    store: ObjectStore
    app: str
    ssts: dict[str, tuple[ObjectInfo, ...]]
    leaves: dict[str, tuple[ObjectInfo, ...]]
    manifests: dict[str, dict[int, ObjectInfo]]
    pages: dict[str, StagePages]
    boundaries: tuple[Boundary, ...]
    state: AppState
    _read: dict[tuple[str, int], Manifest] = field(default_factory=dict)

    def read(self, stage: str, version: int) -> Manifest:
        """Return the outline of a version from a page; without a page, the version without its SSTs and table. Cached.

        Raises `Corruption`.
        """
        if (stage, version) not in self._read:
            outline = self.pages[stage].outline(version)
            self._read[stage, version] = outline or _read_existing(self.store, self.app, stage, version)
        return self._read[stage, version]

    def with_later_snapshots(self) -> AppState:
        """Return the app's state, including snapshots that were taken after the inventory.

        Snapshots that were removed since the inventory still count, because the proposed boundary promised to keep
        their versions.
        """
        by_id = {snapshot.id: snapshot for snapshot in (*self.state.snapshots, *list_snapshots(self.store, self.app))}
        return AppState(self.state.now_ms, self.state.stages, tuple(by_id.values()), last=self.state.last)


def take_inventory(store: ObjectStore, app: str, *, dry_run: bool) -> Inventory:
    """List all objects of an app, and read its heads, snapshots and boundaries.

    Ages count from storage's clock. A dry run writes nothing, so it uses this machine's clock.

    Raises `NotFound` (no such app) and `Corruption` (a manifest is missing or unreadable).
    """
    apps.read_app(store, app)
    now_ms = instants.now_ms() if dry_run else storage_clock_ms(store, app)
    try:
        return _list_all(store, app, now_ms)
    except Corruption:
        # Another collection may have deleted it since the boundary was read. Then a newer boundary exists.
        return _list_all(store, app, now_ms)


def storage_clock_ms(store: ObjectStore, app: str) -> int:
    """Return the time of storage's clock. This machine's clock may be wrong, and make every object seem old."""
    key = keys.collection(app)
    store.put(key, _BEGUN)
    return next(info.modified_ms for info in store.list(key))


def note_end(store: ObjectStore, app: str) -> None:
    store.put(keys.collection(app), _ENDED)


def last_collection(store: ObjectStore, app: str) -> tuple[int, bool]:
    """Return two values: the time of the start or end of the last collection, and True if it has ended.

    The time is that of storage's clock; 0 if there was no collection. Makes one list request.
    """
    key = keys.collection(app)
    notes = [info for info in store.list(key) if info.key == key]
    return (notes[0].modified_ms, notes[0].size_bytes == len(_ENDED)) if notes else (0, True)


def _list_all(store: ObjectStore, app: str, now_ms: int) -> Inventory:
    stages = history.list_stages(store, app)
    ssts = {stage: tuple(store.list(keys.ssts(app, stage))) for stage in stages}
    leaves = {stage: tuple(store.list(keys.leaves(app, stage))) for stage in stages}
    boundaries = horizon.read_all(store, app)
    last = next((boundary for boundary in reversed(boundaries) if boundary.final), horizon.NOTHING_COLLECTED)
    manifests = {stage: versions for stage in stages if (versions := dict(history.list_manifests(store, app, stage)))}
    seen: dict[tuple[str, int], Manifest] = {}
    stage_states = {}
    for stage, versions in manifests.items():
        first = _first_of_history(store, app, stage, versions, last)
        head = _read_existing(store, app, stage, max(versions))
        seen[stage, head.version] = head
        since_ms = now_ms - MIN_AGE_MS
        recent = (version for version, info in versions.items() if version >= first and info.modified_ms > since_ms)
        needed = {name: max(first, version) for name, version in published.first_needed_versions(store, head).items()}
        stage_states[stage] = StageState(first, head, min(recent, default=head.version + 1), needed)
    state = AppState(now_ms, stage_states, list_snapshots(store, app), last)
    # Versions kept from before the gapless history.
    for stage, kept_versions in last.kept.items():
        if missing := [version for version in kept_versions if version not in manifests.get(stage, ())]:
            raise missing_versions(app, stage, missing)
    pages = {stage: _pages(store, app, stage, manifests.get(stage, {})) for stage in stages}
    return Inventory(store, app, ssts, leaves, manifests, pages, boundaries, state, seen)


def _pages(store: ObjectStore, app: str, stage: str, manifests: Iterable[int]) -> StagePages:
    existing = tuple(manifests)

    def newest_existing(ref: PageRef) -> int:
        at = bisect_right(existing, ref.last)
        return existing[at - 1] if at and existing[at - 1] >= ref.first else 0

    return StagePages(store, app, stage, newest_existing)


def _read_existing(store: ObjectStore, app: str, stage: str, version: int) -> Manifest:
    try:
        return replace(history.read_stored(store, app, stage, version), ssts=(), table=None, side_tables={})
    except ObjectNotFound:
        raise missing_versions(app, stage, (version,)) from None


def _first_of_history(store: ObjectStore, app: str, stage: str, versions: dict[int, ObjectInfo], last: Boundary) -> int:
    """Return the first version of the gapless history. Raises `Corruption` if a later version is missing."""
    first = last.first.get(stage, 0)
    if not first:
        first = min(versions)
        if first > 1 and not _read_existing(store, app, stage, first).starts_history:
            raise missing_versions(app, stage, range(1, first))
    whole = [version for version in versions if version >= first] or [first + 1]
    for version, following in pairwise((first - 1, *whole)):
        if following != version + 1:
            raise missing_versions(app, stage, range(version + 1, following))
    return first


def missing_versions(app: str, stage: str, versions: Iterable[int]) -> Corruption:
    missing = list(versions)
    span = f"v{missing[0]}" if len(missing) == 1 else f"v{missing[0]} to v{missing[-1]}"
    return Corruption(
        f"stage {app}/{stage}: {span} is missing, although no collection deleted it; nothing was collected",
        object_key=keys.manifest(app, stage, missing[0]),
        hint="restore the manifests (from the bucket's object versions or a backup), then collect again",
    )


def last_commit_ms(inventory: Inventory, stage: str) -> int:
    """Return the time of a stage's last commit by its runner, by storage's clock; 0 if there is none.

    If an SST was finished before this commit and the commit does not name it, no later version will name it. For a
    retired stage, returns the current time, because the stage commits no new SSTs until it is claimed again.
    """
    state = inventory.state.stages.get(stage)
    if state is None:
        return 0
    if state.head.retired:
        return inventory.state.now_ms
    for version in range(state.head.version, state.first - 1, -1):
        if inventory.read(stage, version).traits.by_runner:
            return inventory.manifests[stage][version].modified_ms
    return 0


def unnamed_records(inventory: Inventory, margin_ms: int) -> Iterator[ObjectInfo]:
    store, app = inventory.store, inventory.app
    prefix = keys.snapshots(app)
    listed = [info for info in store.list(prefix) if census.object_kind_of(info.key) is census.IN_FLIGHT]
    if not listed:
        return
    # The order matters: a request is deleted after its snapshot is written, so the listing below has that snapshot.
    requested = {request.name for request in open_requests(store, app)}
    named_keys = {key for snapshot in list_snapshots(store, app) for key in snapshot.object_keys}
    for name, infos in groupby(listed, key=lambda info: info.key.removeprefix(prefix).split("/", 1)[0]):
        group = tuple(infos)
        idle = max(info.modified_ms for info in group) <= inventory.state.now_ms - margin_ms
        if idle and name not in requested:
            yield from (info for info in group if info.key not in named_keys)


def total_bytes(infos: Iterable[ObjectInfo]) -> int:
    return sum(info.size_bytes for info in infos)
