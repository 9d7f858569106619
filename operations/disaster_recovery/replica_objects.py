"""Selection, copying and deletion of a replica's objects.

Senders are copied before their receivers, and older versions of a stage before newer versions. So at any time the
newest versions in the replica are a consistent cut, and no record between a sender's and its receiver's version is
missing.

Before objects are deleted, the replica's boundary is written (`store.versions.horizon`). The boundary keeps the
versions of the app's boundary, and the versions that snapshots of the replica pin, for example for a clone of the
replica. Afterwards, objects that the app no longer has are deleted. The app's SSTs are listed before its boundary is
read, so the listing has all SSTs of the versions that the boundary keeps.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass

from msgspec.structs import replace

from ...errors import NotFound, ObjectNotFound, Refused
from ...snapshot.cut.graph import topological_order
from ...snapshot.cut.moments import newest_settled
from ...snapshot.cut.replicas import REPLICA_CUTS, REPLICA_SNAPSHOT_PREFIX, ReplicaCut, find_replica_state, older_cuts
from ...snapshot.cut.stored import SNAPSHOTS, Snapshot, cut_of_snapshot, list_snapshots
from ...snapshot.gc import census
from ...snapshot.take.snapshots import delete_snapshot, remove_records
from ...store.objects.protocol import ObjectInfo, ObjectStore, exists
from ...store.read.copier import Copier
from ...store.versions import apps, forgotten, history, horizon, keys
from ...store.versions.horizon import NOTHING_COLLECTED, Boundary, KeptCut
from ...store.versions.manifest import Manifest
from ...store.versions.side_tables import all_ssts, leaf_keys


@dataclass(frozen=True, slots=True)
class CopyPlan:
    """Versions and snapshots that a replica lacks, to be copied in one round."""

    versions: Mapping[str, tuple[int, ...]]
    cut: Mapping[str, Manifest]
    """Cut for which the replica is complete after the round, including retired stages."""
    snapshots: tuple[Snapshot, ...]
    boundary: Boundary


def last_boundary(store: ObjectStore, app: str) -> Boundary:
    """Return the boundary of an app's last garbage collection. Makes the requests of `horizon.read_all`."""
    return next((boundary for boundary in reversed(horizon.read_all(store, app)) if boundary.final), NOTHING_COLLECTED)


def plan_copy(store: ObjectStore, app: str, copied: Mapping[str, int]) -> CopyPlan:
    """Plan which versions to copy: for each stage, all versions after the replica's newest version in `copied`.

    Raises `Refused` if garbage collection deleted a version after `copied`, or if the app has fewer versions than the
    replica.
    """
    limit, heads = last_boundary(store, app), newest_settled(store, app)
    versions = {}
    for stage in topological_order(heads):
        head, has = heads[stage].version, copied.get(stage, 0)
        first = limit.first.get(stage) or history.first_version(store, app, stage)
        if 0 < has < first - 1:
            raise Refused(
                f"the replica has {app}/{stage} up to v{has}, and {store.url} only from v{first} on: gc deleted the "
                "versions in between before they were copied",
                hint=f"start a new replica: slackwater replicate {app} --to another root. This one can still be "
                "recovered until the new one is complete; have gc keep versions for longer than a replica may lag "
                "([retention] all)",
            )
        older = limit.kept.get(stage, ()) if not has else ()
        versions[stage] = (*older, *range(max(has + 1, first), head + 1))
    snapshots = [snapshot for snapshot in list_snapshots(store, app) if _is_copied(snapshot, heads)]
    return CopyPlan(versions, heads, tuple(snapshots), limit)


def _is_copied(snapshot: Snapshot, heads: Mapping[str, Manifest]) -> bool:
    versions = snapshot.stages.items()
    return snapshot.kind != "clone" and all(stage in heads and v <= heads[stage].version for stage, v in versions)


def required_versions(cut: Mapping[str, Manifest]) -> dict[str, set[int]]:
    """Return the versions of a cut, and the senders' versions from which the cut's in-flight records are derived."""
    versions = {stage: {manifest.version} for stage, manifest in cut.items()}
    for manifest in cut.values():
        for source in manifest.inputs.values():
            if source.upstream in cut:
                versions[source.upstream].update(range(max(source.version, 1), cut[source.upstream].version))
    return versions


def copy_reader_objects(copier: Copier, app: str) -> None:
    """Copy the objects that readers of versions need: migrations, promotions, records of erasures.

    If such an object refers to other objects, the other objects are copied first.
    """
    copier.copy_listed(copier.source.list(keys.migrations(app)))
    for name in copier.source.list_folders(f"{keys.NAMES}/"):
        if any(app in (event.folder, event.over, event.name) for event in apps.promotions(copier.source, name)):
            _check_name(copier, app, name)
            copier.copy_listed(copier.source.list(keys.promotion_outcomes(name)))
    new = copier.missing(copier.source.list(keys.forgotten(app)))
    if new:
        for stage in copier.source.list_folders(keys.stages(app)):
            copier.copy_listed(copier.source.list(keys.ssts(app, stage)))
            # Manifests of edits whose statement or message contained a key were rewritten.
            copier.copy_listed(copier.different(copier.source.list(keys.manifests(app, stage))))
        snapshots = copier.source.list(keys.snapshots(app))
        copier.copy_listed(info for info in snapshots if census.object_kind_of(info.key) is census.IN_FLIGHT)
        rewritten = (sst for sst in forgotten.newest(copier.source, app).ssts.values() if sst is not None)
        copier.copy_ssts((sst for sst in rewritten if not sst.object.startswith(f"{app}/")), may_be_missing=True)
        copier.copy_listed(new)


def _check_name(copier: Copier, app: str, name: str) -> None:
    source, target = copier.source, copier.target
    history, replicated = apps.PROMOTION_OUTCOMES.all(source, name), apps.PROMOTION_OUTCOMES.all(target, name)
    folders = {folder for event in history for folder in (event.folder, event.over)}
    related_apps = {name, *folders} - {app} if not replicated else ()
    if replicated == history[: len(replicated)] and all(_is_copy(source, target, other) for other in related_apps):
        return
    raise Refused(
        f"cannot replicate {app}: it took part in promotions of the name {name!r}, and {target.url} has another app "
        "of that name",
        hint="choose another store root: a replica includes the names of its app",
    )


def _is_copy(source: ObjectStore, target: ObjectStore, app: str) -> bool:
    copy, original = apps.find_app(target, app), apps.find_app(source, app)
    return copy is None or (original is not None and original.created_ms == copy.created_ms)


def newest_erasure_record(store: ObjectStore, app: str) -> str:
    """Return the key of the newest record of an erasure; empty if no key was erased. Makes one listing."""
    return max((info.key for info in store.list(keys.forgotten(app))), default="")


def copy_other_objects(copier: Copier, app: str) -> None:
    for place in census.prefixes_copied_alongside(app):
        if not place.endswith("/"):  # an object that may be overwritten
            with suppress(ObjectNotFound):
                if not copier.put_if_absent(place, copier.source.get(place)):
                    copier.copy_object(place)
            continue
        # Archived objects are put before the index that names them, so the second listing has all of them.
        indexes = [
            info for info in copier.source.list(place) if census.object_kind_of(info.key) is census.ARCHIVE_INDEX
        ]
        copier.copy_listed(
            info for info in copier.source.list(place) if census.object_kind_of(info.key) is not census.ARCHIVE_INDEX
        )
        copier.copy_listed(indexes)


def list_deleted(store: ObjectStore, target: ObjectStore, app: str) -> Iterator[ObjectInfo]:
    """Yield objects of the target that the app no longer has, except manifests and SSTs."""
    for place in (*census.prefixes_copied_alongside(app), keys.forgotten(app)):
        copies = list(target.list(place))
        existing = {info.key for info in store.list(place)} if copies else set()
        yield from (info for info in copies if info.key not in existing)


def remove_older_cuts(target: ObjectStore, cut: ReplicaCut) -> None:
    """Remove older cuts and their copies of Kafka data.

    If the newest cut lacks in-flight records, the last complete cut is kept as well. Cuts that concurrent rounds
    recorded have higher numbers and are kept.
    """
    app, prefix = cut.app, keys.snapshots(cut.app)
    whole = next((older for older in older_cuts(target, cut) if not older.lacks), None) if cut.lacks else None
    stay = {kept_cut.snapshot for kept_cut in (cut, whole) if kept_cut is not None}
    oldest = REPLICA_CUTS.key(whole or cut)
    REPLICA_CUTS.sweep(target, REPLICA_CUTS.listed(target, app), lambda info: info.key < oldest)
    names = {
        info.key.removeprefix(prefix).split("/")[0].removesuffix(".json")
        for info in target.list(prefix + REPLICA_SNAPSHOT_PREFIX)
    }
    for name in names - stay:
        number = name.removeprefix(REPLICA_SNAPSHOT_PREFIX)
        if number.isdecimal() and int(number) < cut.number:
            SNAPSHOTS.remove(target, name, app)
            remove_records(target, app, name)


def delete_removed(
    store: ObjectStore, target: ObjectStore, app: str, todo: CopyPlan, had: Iterable[str], *, by: str
) -> list[str] | None:
    """Delete the replica's objects that the app no longer has. Returns their keys.

    `had` names the app's snapshots at the previous cut. If another process collects garbage, erases keys or deletes at
    the same time, returns None and deletes nothing; the next round deletes. Raises `Unavailable`.
    """
    stages = tuple(target.list_folders(keys.stages(app)))
    # In this order, an object that another process copies meanwhile is in both listings or in neither.
    copies = {stage: list(_list_named(target, app, stage)) for stage in stages}
    originals = {stage: set(_list_named(store, app, stage)) for stage in stages}
    if last_boundary(store, app) != todo.boundary:
        return None
    if newest_erasure_record(store, app) != newest_erasure_record(target, app):
        return None  # the rewritten SSTs are not copied yet
    names = {snapshot.name for snapshot in todo.snapshots}
    gone = _remove_snapshots(target, app, (name for name in had if name not in names))
    try:
        limit = update_boundary(target, app, todo, by=by)
    except Refused:
        return None
    for stage in stages:
        manifests = tuple(history.list_manifests(target, app, stage))
        # Versions that only the replica pins may have SSTs that the app's garbage collection has deleted.
        own = [v for v, _ in manifests if limit.allows(stage, v) and not todo.boundary.allows(stage, v)]
        named = originals[stage].union(*(_named(target, app, stage, version) for version in own))
        gone += _delete(target, [info.key for version, info in manifests if not limit.allows(stage, version)])
        gone += _delete(target, [key for key in copies[stage] if key not in named])
    gone += _delete(target, _replaced_shared_ssts(target, app))
    gone += _delete(target, [info.key for info in list_deleted(store, target, app)])
    return gone + _delete(target, list(_replaced_records(store, target, app, names)))


def _remove_snapshots(target: ObjectStore, app: str, names: Iterable[str]) -> list[str]:
    present = [name for name in names if SNAPSHOTS.find(target, name, app) is not None]
    for name in present:
        delete_snapshot(target, app, name)
    return [keys.json_object(keys.snapshots(app), name) for name in present]


def _replaced_shared_ssts(target: ObjectStore, app: str) -> list[str]:
    shared = [key for key in forgotten.newest(target, app).ssts if not key.startswith(f"{app}/")]
    owners = {key.split("/")[0] for key in shared}
    alone = {
        owner for owner in owners if find_replica_state(target, owner) is None and apps.find_app(target, owner) is None
    }
    return [key for key in shared if key.split("/")[0] in alone and exists(target, key)]


def _replaced_records(store: ObjectStore, target: ObjectStore, app: str, copied: set[str]) -> Iterator[str]:
    prefix = keys.snapshots(app)
    copies = [info.key for info in target.list(prefix) if info.key.removeprefix(prefix).split("/")[0] in copied]
    existing = {info.key for info in store.list(prefix)} if copies else set[str]()
    own = {
        key for snapshot in SNAPSHOTS.all(target, app) if snapshot.name not in copied for key in snapshot.object_keys
    }
    yield from (key for key in copies if key not in existing and key not in own)


def _list_named(store: ObjectStore, app: str, stage: str) -> Iterator[str]:
    for folder in (keys.leaves(app, stage), keys.ssts(app, stage)):
        yield from (info.key for info in store.list(folder))


def _delete(target: ObjectStore, gone: list[str]) -> list[str]:
    for key in gone:
        target.delete(key)
    return gone


def _named(target: ObjectStore, app: str, stage: str, version: int) -> frozenset[str]:
    manifest = history.find(target, app, stage, version)
    if manifest is None:
        return frozenset()
    return frozenset((*(sst.object for sst in all_ssts(manifest)), *leaf_keys(manifest)))


def update_boundary(target: ObjectStore, app: str, todo: CopyPlan, *, by: str) -> Boundary:
    """Update the replica's boundary, which keeps the versions that the app or the replica's snapshots need.

    Returns the boundary. The replica's snapshots include the snapshot of the newest cut, so the boundary may be updated
    before that cut is recorded. Raises `Refused` if another process updates the boundary at the same time.
    """
    boundaries, copied = horizon.read_all(target, app), {snapshot.name for snapshot in todo.snapshots}
    last = boundaries[-1] if boundaries else NOTHING_COLLECTED
    proposed = _with_pins(target, app, todo.boundary, copied)
    if last.final and (last.first, last.kept, last.moments) == (proposed.first, proposed.kept, proposed.moments):
        return last
    number = max((boundary.number for boundary in boundaries), default=0) + 1
    horizon.propose(target, app, replace(proposed, number=number, final=False, by=by))
    # A process that pins a cut reads the boundary afterwards; this function proposes the boundary, then reads the pins.
    final = replace(_with_pins(target, app, todo.boundary, copied), number=number + 1, final=True, by=by)
    horizon.finalise(target, app, final)
    return final


def _with_pins(target: ObjectStore, app: str, limit: Boundary, copied: set[str]) -> Boundary:
    older = {stage: set(versions) for stage, versions in limit.kept.items()}
    moments = {tuple(sorted(snapshot.stages.items())): snapshot for snapshot in limit.moments}
    for snapshot in SNAPSHOTS.all(target, app):
        if snapshot.name in copied or limit.has_complete_history(snapshot.stages):
            continue
        for stage, versions in _versions_required_by(target, snapshot).items():
            older.setdefault(stage, set()).update(v for v in versions if v < limit.first.get(stage, 0))
        moments.setdefault(tuple(sorted(snapshot.stages.items())), KeptCut(snapshot.completed_ms, snapshot.stages))
    return replace(
        limit,
        kept={stage: tuple(sorted(versions)) for stage, versions in older.items() if versions},
        moments=tuple(sorted(moments.values(), key=lambda moment: moment.time_ms)),
    )


def _versions_required_by(target: ObjectStore, snapshot: Snapshot) -> Mapping[str, set[int]]:
    with suppress(NotFound):  # the snapshot's versions are gone
        return required_versions(cut_of_snapshot(target, snapshot).stages)
    return {}
