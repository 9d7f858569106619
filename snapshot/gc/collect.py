"""Garbage collection of one app: deletes expired versions, SSTs that only these versions name, and orphaned SSTs.

The order of steps makes a collection safe beside a running app and any command, and safe to kill at any point:

1. Take an `inventory` and compute what is reachable. All versions to keep are read, from pages
   (`store.versions.pages`) or manifests. If a manifest is missing, or is unreadable and in no page, nothing is deleted.
2. Propose a boundary, list snapshots once more, and make the boundary final (`store.versions.horizon` explains the two
   phases). Code that pins a cut checks the boundary afterwards (`take.snapshots`). A writer that has paused checks the
   boundary before it commits.
3. Delete collectable manifests, then SSTs that no kept manifest names, so that no manifest names a deleted SST.

A runner only adds versions above the listed heads. An SST of these versions is not deleted, because either the listed
head names it, or it is younger than the runner's last commit. If a collection is killed, the next collection finds the
remaining objects by listing. If two collections run concurrently, one of them fails to write its boundary. Until then
it has deleted only objects that an earlier final boundary released.
"""

from collections.abc import Collection
from dataclasses import dataclass
from itertools import chain

from ...errors import Corruption, NotFound, SlackwaterError
from ...store.objects.many import for_each_concurrently
from ...store.objects.protocol import HasUnfinishedWrites, ObjectInfo, ObjectStore, exists
from ...store.objects.wrapper import StoreWrapper
from ...store.versions import forgotten, horizon
from ...store.versions.horizon import MIN_AGE_MS
from ..cut.stored import list_snapshots, pack_snapshots
from ..take.audit_log import record_operation
from ..under_way.exclusion import Intent, check_exclusion
from . import census
from .archives import ArchiveCollected, collect_archive, plan_archives, why_archived
from .inventory import Inventory, last_commit_ms, note_end, take_inventory, total_bytes, unnamed_records
from .named_objects import delete_unneeded_pages, named_objects
from .reachable import MissingVersion, Reachable, Retention, find_reachable

MARGIN_MS = MIN_AGE_MS
"""Default minimum age of unreferenced objects before they are deleted, by storage's clock.

It is twice the longest duration of a merge (`store.compaction.merge`). With a smaller age, the first SST of a merge
could be deleted before a version names it.
"""

_SILENT_MS = 3_600_000
"""Time in milliseconds without a commit after which a stage may have been removed from the program."""

_Infos = tuple[ObjectInfo, ...]


@dataclass(frozen=True, slots=True)
class StageCollected:
    """Deleted and kept objects of a stage. `bytes` counts manifests, SSTs and leaves, `kept_bytes` only SSTs."""

    stage: str
    first: int
    head: int
    versions: int
    ssts: int
    leaves: int
    bytes: int
    kept_versions: int
    kept_ssts: int
    kept_bytes: int
    waiting_ssts: int
    rules: dict[str, int]
    held_up_by: tuple[str, ...] = ()
    """Readers without a commit for an hour. Versions that these readers have not read are kept for them."""


@dataclass(frozen=True, slots=True)
class Collected:
    """Objects that a collection deleted, or that it would delete in a dry run."""

    app: str
    dry_run: bool
    retention: Retention
    stages: tuple[StageCollected, ...]
    records: int
    record_bytes: int
    leftovers: int
    absent: tuple[MissingVersion, ...] = ()
    archives: tuple[ArchiveCollected, ...] = ()
    damaged: tuple[str, ...] = ()

    @property
    def archived_records(self) -> int:
        """Number of deleted records of input archives. Their objects are deleted after the safety margin."""
        return sum(archive.records for archive in self.archives)

    @property
    def objects(self) -> int:
        archived = sum(archive.objects for archive in self.archives)
        return sum(stage.versions + stage.ssts + stage.leaves for stage in self.stages) + self.records + archived

    @property
    def bytes(self) -> int:
        archived = sum(archive.bytes for archive in self.archives)
        return sum(stage.bytes for stage in self.stages) + self.record_bytes + archived


def collect(
    store: ObjectStore, app: str, retention: Retention, *, by: str, dry_run: bool = False, margin_ms: int = MARGIN_MS
) -> Collected:
    """Delete all unreachable objects. Idempotent; safe beside a running app, and after a collection was killed.

    Reads every version to keep, from a page or as a manifest. Ages count from storage's clock. A dry run writes and
    deletes nothing, so it uses this machine's clock. Objects that no other object names are kept for `margin_ms`, which
    must be at least `MARGIN_MS` while the app runs. The app's log of operations gets an entry.

    Raises `NotFound` (no such app), `Corruption` (a manifest is missing or unreadable; nothing was deleted), `Refused`
    (another collection or an erasure is running) and `Unavailable` (the next collection continues from there).
    """
    if not dry_run:
        check_exclusion(store, app, Intent.COLLECT)
    inventory = take_inventory(store, app, dry_run=dry_run)
    damaged: dict[str, Corruption] = {}
    planned = plan_archives(store, app, retention, inventory.state.now_ms, damaged)
    plan, names = _plan(inventory, retention, by, dry_run=dry_run)
    deleted = {stage: _unreachable(inventory, plan, names, stage, margin_ms) for stage in inventory.ssts}
    records = tuple(unnamed_records(inventory, margin_ms))
    old_ms = inventory.state.now_ms - margin_ms
    leftovers = store.unfinished_writes(f"{app}/") if isinstance(store, HasUnfinishedWrites) else ()
    writes = tuple(write for write in leftovers if write.begun_ms <= old_ms)
    if not dry_run:
        # Manifests before the objects that they name, and leaves before their SSTs.
        for of_kind in (*zip(*deleted.values(), strict=True), (records,)):
            for_each_concurrently(lambda info: store.delete(info.key), chain.from_iterable(of_kind))
        if isinstance(store, HasUnfinishedWrites):
            for_each_concurrently(store.discard, writes)
        pack_snapshots(store, app, inventory.state.now_ms)
        for stage in plan.gapless_starts:
            delete_unneeded_pages(inventory, stage, tuple(plan.versions(stage)))
        forgotten.delete_replaced(store, app, old_ms)
        if isinstance(store, StoreWrapper):
            store.settle(app, inventory.state.now_ms)
    archives = []
    for archive_plan in planned:
        try:
            archives.append(
                collect_archive(store, archive_plan, inventory.state.now_ms, margin_ms, by=by, dry_run=dry_run)
            )
        except Corruption as error:
            damaged[error.object_key] = error
    stages = tuple(
        _count_stage(inventory, plan, names, stage, *deleted[stage]) for stage in sorted(inventory.state.stages)
    )
    counts = len(records), total_bytes(records), len(writes)
    not_read = tuple(f"{error.message}; {error.hint}" for error in damaged.values())
    done = Collected(app, dry_run, retention, stages, *counts, plan.absent, tuple(archives), not_read)
    if not dry_run:
        count = sum(stage.versions for stage in stages)
        detail = f"{count} versions, {done.objects - count} other objects"
        detail += f", {done.archived_records} archived records" if done.archived_records else ""
        record_operation(store, app, "gc", detail, by)
        note_end(store, app)
    return done


def _plan(inventory: Inventory, retention: Retention, by: str, *, dry_run: bool) -> tuple[Reachable, set[str]]:
    """Decide what a collection keeps; makes the boundary final, except in a dry run.

    Returns two values: the versions to keep, and the keys of their objects.
    """
    names: set[str] = set()
    try:
        plan = find_reachable(inventory.state, retention, inventory.read)
        _read_names(inventory, names, plan, store_pages=not dry_run)
        return plan if dry_run else _finalise(inventory, names, plan, retention, by), names
    except Corruption:
        finals = [boundary for boundary in horizon.read_all(inventory.store, inventory.app) if boundary.final]
        if finals and finals[-1] != inventory.state.last:
            # Since the inventory, another collection has made a boundary final that releases the version: it is not
            # missing.
            raise horizon.overtaken_error(inventory.app) from None
        raise


def _unreachable(
    inventory: Inventory, plan: Reachable, names: Collection[str], stage: str, margin_ms: int
) -> tuple[_Infos, _Infos, _Infos]:
    """Return the versions, leaves and SSTs of a stage to delete."""
    stays = set(plan.versions(stage)) if stage in plan.gapless_starts else set()
    head = inventory.state.stages[stage].head.version if stage in plan.gapless_starts else 0
    listed = inventory.manifests.get(stage, {}).items()
    versions = tuple(info for version, info in listed if version <= head and version not in stays)
    orphan_ms = last_commit_ms(inventory, stage) - margin_ms
    leaves, ssts = (
        tuple(info for info in listed if info.key not in names and info.modified_ms <= orphan_ms)
        for listed in (inventory.leaves[stage], inventory.ssts[stage])
    )
    return versions, leaves, ssts


def _read_names(
    inventory: Inventory,
    names: set[str],
    plan: Reachable,
    previous: Reachable | None = None,
    *,
    store_pages: bool = False,
) -> None:
    """Add the SSTs and leaves of the plan's versions to `names`, except for versions that `previous` also has."""
    for stage in plan.gapless_starts:
        done = set(previous.versions(stage)) if previous is not None else set()
        versions = tuple(version for version in plan.versions(stage) if version not in done)
        names.update(key for key, _ in named_objects(inventory, stage, versions, store_pages=store_pages))


def _finalise(inventory: Inventory, names: set[str], plan: Reachable, retention: Retention, by: str) -> Reachable:
    store, app, last = inventory.store, inventory.app, inventory.state.last
    number = max((boundary.number for boundary in inventory.boundaries), default=0) + 1
    proposal = plan.boundary(number, by, final=False)
    # The proposal of a killed collection hides versions that the collection did not delete, so it is replaced.
    settled = not inventory.boundaries or inventory.boundaries[-1].final
    if settled and (proposal.first, proposal.kept, proposal.moments) == (last.first, last.kept, last.moments):
        return plan
    horizon.propose(store, app, proposal)
    try:
        final = find_reachable(inventory.with_later_snapshots(), retention, inventory.read)
        _read_names(inventory, names, final, plan)
    except SlackwaterError:
        # A proposal deletes nothing, but hides versions from readers.
        horizon.BOUNDARIES.remove(store, number, app)
        raise
    horizon.finalise(store, app, final.boundary(number + 1, by, final=True))
    return final


def _count_stage(
    inventory: Inventory,
    plan: Reachable,
    names: Collection[str],
    stage: str,
    versions: _Infos,
    leaves: _Infos,
    ssts: _Infos,
) -> StageCollected:
    deleted = {info.key for info in ssts}
    remaining = [info for info in inventory.ssts[stage] if info.key not in deleted]
    return StageCollected(
        stage=stage,
        first=plan.first(stage),
        head=inventory.state.stages[stage].head.version,
        versions=len(versions),
        ssts=len(ssts),
        leaves=len(leaves),
        bytes=total_bytes((*versions, *leaves, *ssts)),
        kept_versions=sum(1 for _ in plan.versions(stage)),
        kept_ssts=len(remaining),
        kept_bytes=total_bytes(remaining),
        waiting_ssts=sum(1 for info in remaining if info.key not in names),
        rules=plan.counts(stage),
        held_up_by=plan.held_up_by(stage, _SILENT_MS),
    )


_THINNED = {"hourly": "retention keeps the app hourly", "daily": "retention keeps the app daily"}
"""Short reasons for rules that may keep hundreds of moments, by rule."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """Decision of a collection about one object, with the reasons."""

    object: str
    kept: bool
    reasons: tuple[str, ...]


def explain(store: ObjectStore, app: str, key: str, retention: Retention, *, margin_ms: int = MARGIN_MS) -> Explanation:
    """Explain why a collection with these rules would keep or delete an object. Read-only.

    `key` is the key under the store root, with or without the root or the app's name. Objects that nothing names are
    kept for `margin_ms`. Ages count from this machine's clock.

    Raises `NotFound` (no such app or object) and `Corruption` (a manifest is missing or unreadable).
    """
    inventory = take_inventory(store, app, dry_run=True)
    given_key = key.removeprefix(f"{store.url}/")
    key = given_key if given_key.startswith(f"{app}/") else f"{app}/{given_key}"
    if not exists(store, key):
        where = f"looked for {key} under {store.url}"
        raise NotFound(
            f"object of app {app!r}", given_key, found=where, hint="give the object's key under the store root"
        )
    plan = find_reachable(inventory.state, retention, inventory.read)
    for stage in inventory.ssts:
        for info in (*inventory.ssts[stage], *inventory.leaves[stage]):
            if info.key == key:
                return _explain_named(inventory, plan, stage, info, margin_ms)
        for version, info in inventory.manifests.get(stage, {}).items():
            if info.key == key:
                if version > plan.state.stages[stage].head.version:
                    return Explanation(key, True, ("it is newer than the newest version at the time of the listing",))
                reasons = tuple(reason.detail for reason in plan.reasons(stage, version))
                return Explanation(key, bool(reasons), reasons or ("no retention rule, snapshot or stage needs it",))
    kind = census.object_kind_of(key)
    if kind is census.IN_FLIGHT:
        users = [snapshot.name for snapshot in list_snapshots(store, app) if key in snapshot.object_keys]
        if users:
            return Explanation(key, True, tuple(f"snapshot {name} keeps these records in flight" for name in users))
        is_waiting = all(info.key != key for info in unnamed_records(inventory, margin_ms))
        no = "no snapshot names it, and no snapshot of this name is in progress"
        yes = "no snapshot names it yet, but a snapshot of this name is in progress, or ended just now"
        return Explanation(key, is_waiting, (yes if is_waiting else no,))
    if kind in (census.ARCHIVED, census.ARCHIVE_INDEX):
        if reason := why_archived(store, app, key):
            return Explanation(key, True, (reason,))
        return Explanation(key, False, ("no index of an input archive names it: it is deleted when it is an hour old",))
    other = "slackwater does not write such objects: garbage collection ignores it"
    return Explanation(key, True, (kind.description if kind is not None else other,))


def _explain_named(inventory: Inventory, plan: Reachable, stage: str, info: ObjectInfo, margin_ms: int) -> Explanation:
    versions_by_reason: dict[str, list[int]] = {}
    if stage in plan.gapless_starts:
        remaining = tuple(plan.versions(stage))
        for key, positions in named_objects(inventory, stage, remaining):
            for version in remaining[positions.start : positions.stop] if key == info.key else ():
                for reason in plan.reasons(stage, version):
                    versions_by_reason.setdefault(_THINNED.get(reason.rule, reason.detail), []).append(version)
    if versions_by_reason:
        reasons = []
        for detail, versions in versions_by_reason.items():
            span = f"v{versions[0]} to v{versions[-1]}"
            if versions[-1] - versions[0] + 1 != len(versions):
                span += f" ({len(versions)} of them)"
            reasons.append(f"{stage}@{f'v{versions[0]} names' if len(versions) == 1 else f'{span} name'} it: {detail}")
        return Explanation(info.key, True, tuple(reasons))
    if info.modified_ms <= last_commit_ms(inventory, stage) - margin_ms:
        detail = f"no kept version names it, and {stage} has committed without it since"
        return Explanation(info.key, False, (detail,))
    detail = (
        f"no version names it yet, but the next batch of {stage} may: no batch was committed since, or only just now"
    )
    return Explanation(info.key, True, (detail,))
