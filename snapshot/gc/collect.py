"""Garbage collection of one app: versions that retention lets go, the SSTs that only they named, and orphans.

The order makes it safe beside a running app, beside everything people do to it, and to be killed anywhere:

1. Take an `inventory`, and decide what stays (`reachable`). All manifests that stay are read: one that is missing or
   not readable ends the collection before anything is written.
2. Propose a boundary, look for snapshots once more, and make it final (`store.versions.horizon` says why twice). Who
   pins a cut checks the boundary after that (`take.snapshots`); who commits checks it when it was away for long.
3. Delete collectable manifests; then SSTs that no manifest that stays names, so a manifest never names what is gone.

A runner only adds versions above the heads that were seen, made of SSTs that the head names or that are younger than
its last commit: nothing of that is touched. What a killed collection leaves, the next one finds by listing. Of two at
the same time one fails to write its boundary; what it has deleted by then was given up by a final one.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from itertools import chain

from ...errors import Corruption, NotFound, SlackwaterError
from ...store.objects.many import do_all
from ...store.objects.protocol import Leftovers, ObjectInfo, ObjectStore, exists
from ...store.versions import horizon
from ...store.versions.forgotten import index as forgotten
from ...store.versions.horizon import MIN_AGE_MS
from ..cut.stored import list_snapshots
from ..take.audit_log import record
from ..under_way.exclusion import Intent, check_exclusion
from . import census
from .archives import ArchiveCollected, collect_archive, plan_archives, why_archived
from .inventory import Inventory, last_commit_ms, named, note_end, take_inventory, unnamed_records
from .reachable import Absent, Reachable, reachable
from .retention import Retention

MARGIN_MS = MIN_AGE_MS
"""Objects that nothing names stay for so long, by storage's clock, unless said otherwise. Twice what a merge may take
(`store.compaction.merge`): with less, its first SST could go before a version names it."""

_SILENT_MS = 3_600_000
"""A stage that has not committed for so long may be gone from the program."""

_Infos = tuple[ObjectInfo, ...]


@dataclass(frozen=True, slots=True)
class StageCollected:
    """What went of one stage, with the bytes of its manifests and SSTs, and what stays, with those of its SSTs."""

    stage: str
    first: int
    """The version from which on its history is whole."""
    head: int
    versions: int
    ssts: int
    bytes: int
    kept_versions: int
    kept_ssts: int
    kept_bytes: int
    waiting_ssts: int
    """Of the SSTs that stay, those that nothing names, and that may yet be named."""
    rules: dict[str, int]
    """Versions that stay by rule, each counted once."""
    held_up_by: tuple[str, ...] = ()
    """Stages that have not read some of these versions, and have committed nothing for an hour or more."""


@dataclass(frozen=True, slots=True)
class Collected:
    """What a collection took, or would take."""

    app: str
    dry_run: bool
    retention: Retention
    stages: tuple[StageCollected, ...]
    records: int
    """Objects of records in flight that belonged to no snapshot."""
    record_bytes: int
    leftovers: int
    """Writes that had broken off."""
    absent: tuple[Absent, ...] = ()
    """Versions that snapshots pin and that are not there; what else these snapshots pin stays."""
    archives: tuple[ArchiveCollected, ...] = ()
    """What went of the input archives, a topic each."""
    damaged: tuple[str, ...] = ()
    """A sentence for each input archive of which nothing was collected, as its index cannot be read."""

    @property
    def archived_records(self) -> int:
        """Of input archives, that went; their objects follow after the margin."""
        return sum(each.records for each in self.archives)

    @property
    def objects(self) -> int:
        """All objects that went."""
        archived = sum(each.objects for each in self.archives)
        return sum(each.versions + each.ssts for each in self.stages) + self.records + archived

    @property
    def bytes(self) -> int:
        """Bytes of all objects that went."""
        archived = sum(each.bytes for each in self.archives)
        return sum(each.bytes for each in self.stages) + self.record_bytes + archived


def collect(
    store: ObjectStore, app: str, retention: Retention, *, by: str, dry_run: bool = False, margin_ms: int = MARGIN_MS
) -> Collected:
    """Delete what is not reachable. May be called at any time, any number of times, also when one was killed.

    Reads every manifest that stays. Ages count from storage's clock, or from this machine's in a dry run, which writes
    and deletes nothing. Objects that nothing names stay for `margin_ms`: beside an app that runs, `MARGIN_MS` or more.
    What went is noted in the app's log of operations.

    Raises `NotFound` where there is no such app, `Corruption` where a manifest that should be there is missing or not
    readable, with nothing deleted, `Refused` where another collection of the
    app went on at the same time, or keys are being forgotten, and `Unavailable`: the next collection goes on where this
    one ended.
    """
    if not dry_run:
        check_exclusion(store, app, Intent.COLLECT)
    seen = take_inventory(store, app, dry_run=dry_run)
    damaged: dict[str, Corruption] = {}
    planned = plan_archives(store, app, retention, seen.known.now_ms, damaged)
    names: set[str] = set()
    try:
        plan = reachable(seen.known, retention, seen.read)
        _read_names(seen, names, plan)
        if not dry_run:
            plan = _fix(seen, names, plan, retention, by)
    except Corruption:
        finals = [each for each in horizon.all_of(store, app) if each.final]
        if finals and finals[-1] != seen.known.last:
            # What another collection took that has become final since the inventory is not missing.
            raise horizon.overtaken(app) from None
        raise
    goes: dict[str, tuple[_Infos, _Infos]] = {}
    for stage, infos in seen.ssts.items():
        stays = set(plan.versions(stage)) if stage in plan.wholes else set()
        head = seen.known.stages[stage].head.version if stage in plan.wholes else 0
        listed = seen.manifests.get(stage, {}).items()
        versions = tuple(info for version, info in listed if version <= head and version not in stays)
        before_ms = last_commit_ms(seen, stage) - margin_ms
        goes[stage] = versions, tuple(i for i in infos if i.key not in names and i.modified_ms <= before_ms)
    records = tuple(unnamed_records(seen, margin_ms))
    old_ms = seen.known.now_ms - margin_ms
    leftovers = store.leftovers(f"{app}/") if isinstance(store, Leftovers) else ()
    writes = tuple(each for each in leftovers if each.begun_ms <= old_ms)
    if not dry_run:
        # In this order, and those of one kind in any.
        for of_kind in (*zip(*goes.values(), strict=True), (records,)):
            do_all(lambda info: store.delete(info.key), chain.from_iterable(of_kind))
        if isinstance(store, Leftovers):
            do_all(store.discard, writes)
        forgotten.sweep(store, app, old_ms)
    archives = []
    for each in planned:
        try:
            archives.append(collect_archive(store, each, seen.known.now_ms, margin_ms, by=by, dry_run=dry_run))
        except Corruption as error:
            damaged[error.object_key] = error
    stages = tuple(_counted(seen, plan, names, stage, *goes[stage]) for stage in sorted(seen.known.stages))
    counts = len(records), _bytes(records), len(writes)
    not_read = tuple(f"{each.message}; {each.hint}" for each in damaged.values())
    done = Collected(app, dry_run, retention, stages, *counts, plan.absent, tuple(archives), not_read)
    if not dry_run:
        count = sum(each.versions for each in stages)
        detail = f"{count} versions, {done.objects - count} other objects"
        detail += f", {done.archived_records} archived records" if done.archived_records else ""
        record(store, app, "gc", detail, by)
        note_end(store, app)
    return done


def _read_names(seen: Inventory, names: set[str], plan: Reachable, known: Reachable | None = None) -> None:
    """Add the SSTs that the versions of a plan name; those that stay in `known`, too, were read for that."""
    for stage in plan.wholes:
        done = set(known.versions(stage)) if known is not None else set()
        for _, found in named(seen, stage, (version for version in plan.versions(stage) if version not in done)):
            names.update(found)


def _fix(seen: Inventory, names: set[str], plan: Reachable, retention: Retention, by: str) -> Reachable:
    """Make a plan final; returns it with what was pinned meanwhile."""
    store, app, last = seen.store, seen.app, seen.known.last
    number = max((each.number for each in seen.boundaries), default=0) + 1
    proposal = plan.boundary(number, by, final=False)
    # A proposal that is left of a collection that was killed hides what it did not get to take: replace it.
    settled = not seen.boundaries or seen.boundaries[-1].final
    if settled and (proposal.first, proposal.kept, proposal.moments) == (last.first, last.kept, last.moments):
        return plan
    horizon.propose(store, app, proposal)
    try:
        final = reachable(seen.with_later_snapshots(), retention, seen.read)
        _read_names(seen, names, final, plan)
    except SlackwaterError:
        # Nothing is given up by it, and nobody shall find less because of it.
        horizon.BOUNDARIES.remove(store, number, app)
        raise
    horizon.settle(store, app, final.boundary(number + 1, by, final=True))
    return final


def _counted(
    seen: Inventory, plan: Reachable, names: Collection[str], stage: str, versions: _Infos, ssts: _Infos
) -> StageCollected:
    gone = {info.key for info in ssts}
    stay = [info for info in seen.ssts[stage] if info.key not in gone]
    return StageCollected(
        stage=stage,
        first=plan.first(stage),
        head=seen.known.stages[stage].head.version,
        versions=len(versions),
        ssts=len(ssts),
        bytes=_bytes((*versions, *ssts)),
        kept_versions=sum(1 for _ in plan.versions(stage)),
        kept_ssts=len(stay),
        kept_bytes=_bytes(stay),
        waiting_ssts=sum(1 for info in stay if info.key not in names),
        rules=plan.counts(stage),
        held_up_by=plan.held_up_by(stage, _SILENT_MS),
    )


def _bytes(infos: Iterable[ObjectInfo]) -> int:
    return sum(info.size_bytes for info in infos)


_THINNED = {"hourly": "of moments that retention keeps hourly", "daily": "of moments that retention keeps daily"}
"""There may be hundreds of them."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """What is to become of one object."""

    object: str
    kept: bool
    reasons: tuple[str, ...]
    """Why it is kept, or why not; at least one."""


def explain(store: ObjectStore, app: str, key: str, retention: Retention, *, margin_ms: int = MARGIN_MS) -> Explanation:
    """Why a collection with these rules would keep an object, or not. Changes nothing.

    The object's key is that under the store root; the root before it, or the app's name left out, do no harm. Objects
    that nothing names stay for `margin_ms`. Ages count from this machine's clock.

    Raises `NotFound` where there is no such app or object, and `Corruption` where a manifest that should be there is
    missing or not readable.
    """
    seen = take_inventory(store, app, dry_run=True)
    said = key.removeprefix(f"{store.url}/")
    key = said if said.startswith(f"{app}/") else f"{app}/{said}"
    if not exists(store, key):
        where = f"looked for {key} under {store.url}"
        raise NotFound(f"object of app {app!r}", said, found=where, hint="give its whole key")
    plan = reachable(seen.known, retention, seen.read)
    for stage, ssts in seen.ssts.items():
        for info in ssts:
            if info.key == key:
                return _sst(seen, plan, stage, info, margin_ms)
        for version, info in seen.manifests.get(stage, {}).items():
            if info.key == key:
                if version > plan.known.stages[stage].head.version:
                    return Explanation(key, True, ("it is newer than the head that was found here",))
                why = tuple(reason.detail for reason in plan.why(stage, version))
                return Explanation(key, bool(why), why or ("no rule of retention, no snapshot and no stage needs it",))
    kind = census.kind_of(key)
    if kind is census.IN_FLIGHT:
        users = [snapshot.name for snapshot in list_snapshots(store, app) if key in snapshot.object_keys]
        if users:
            return Explanation(key, True, tuple(f"snapshot {name} keeps these records in flight" for name in users))
        kept = all(info.key != key for info in unnamed_records(seen, margin_ms))
        no = "no snapshot names it, and none of its name is under way"
        yes = "no snapshot names it yet, but one of its name is under way, or was just now"
        return Explanation(key, kept, (yes if kept else no,))
    if kind in (census.ARCHIVED, census.ARCHIVE_INDEX):
        if in_archive := why_archived(store, app, key):
            return Explanation(key, True, (in_archive,))
        return Explanation(key, False, ("no index of an input archive names it: it goes when it is an hour old",))
    other = "it is no object that slackwater writes: collection leaves it alone"
    return Explanation(key, True, (kind.what if kind is not None else other,))


def _sst(seen: Inventory, plan: Reachable, stage: str, info: ObjectInfo, margin_ms: int) -> Explanation:
    naming: dict[str, list[int]] = {}
    if stage in plan.wholes:
        for version, names in named(seen, stage, plan.versions(stage)):
            if info.key in names:
                for reason in plan.why(stage, version):
                    naming.setdefault(_THINNED.get(reason.rule, reason.detail), []).append(version)
    if naming:
        reasons = []
        for why, found in naming.items():
            several = f"v{found[0]} to v{found[-1]}"
            if found[-1] - found[0] + 1 != len(found):
                several += f" ({len(found)} of them)"
            reasons.append(f"{stage}@{f'v{found[0]} names' if len(found) == 1 else f'{several} name'} it: {why}")
        return Explanation(info.key, True, tuple(reasons))
    if info.modified_ms <= last_commit_ms(seen, stage) - margin_ms:
        why = f"no version that stays names it, and {stage} has committed without it since"
        return Explanation(info.key, False, (why,))
    why = f"nothing names it, but the next batch of {stage} may: it has made none since, or only just"
    return Explanation(info.key, True, (why,))
