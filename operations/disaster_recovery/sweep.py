"""Deletes from a replica what its app has deleted: collected versions, SSTs, snapshots, older cuts.

The boundary is written first, as in a garbage collection (`store.versions.horizon`): it allows what the app's boundary
allows, and what snapshots of the replica itself pin, such as that of a clone made from it. Then objects that the app no
longer has are deleted. The app's SSTs are listed before its boundary is read, so all SSTs of the versions that it
allows are in the listing.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress

from msgspec.structs import replace

from ...errors import NotFound, Refused
from ...snapshot.cut.replicas import CUTS, PREFIX, ReplicaCut, find, older_cuts
from ...snapshot.cut.stored import SNAPSHOTS, Snapshot, of_snapshot
from ...snapshot.take.snapshots import remove, remove_records
from ...store.objects.protocol import ObjectStore, exists
from ...store.versions import apps, forgotten, history, horizon, keys
from ...store.versions.horizon import NOTHING_COLLECTED, Boundary, KeptCut
from ...store.versions.side_tables import all_ssts
from .beside_versions import gone_from, was_forgotten
from .replicate_plan import Todo, last_final, needed


def drop_older(target: ObjectStore, cut: ReplicaCut) -> None:
    """Remove records of older cuts, and the data kept of Kafka for them.

    If the newest cut lacks records, the last complete one stays. Concurrent rounds have higher numbers.
    """
    app, prefix = cut.app, keys.snapshots(cut.app)
    whole = next((older for older in older_cuts(target, cut) if not older.lacks), None) if cut.lacks else None
    stay = {kept_cut.snapshot for kept_cut in (cut, whole) if kept_cut is not None}
    oldest = CUTS.key(whole or cut)
    CUTS.sweep(target, CUTS.listed(target, app), lambda info: info.key < oldest)
    names = {info.key.removeprefix(prefix).split("/")[0].removesuffix(".json") for info in target.list(prefix + PREFIX)}
    for name in names - stay:
        number = name.removeprefix(PREFIX)
        if number.isdecimal() and int(number) < cut.number:
            SNAPSHOTS.remove(target, name, app)
            remove_records(target, app, name)


def sweep(
    store: ObjectStore, target: ObjectStore, app: str, todo: Todo, had: Iterable[str], *, by: str
) -> list[str] | None:
    """Delete what the app no longer has; returns the keys. `had` are the app's snapshots at the previous cut.

    Returns None without sweeping if another process collects, forgets or sweeps at the same time: the next round
    sweeps. Raises `Unavailable`.
    """
    stages = tuple(target.list_folders(keys.stages(app)))
    # In this order: an object that another process copies meanwhile is in neither listing, or in both.
    copies = {stage: [info.key for info in target.list(keys.ssts(app, stage))] for stage in stages}
    originals = {stage: {info.key for info in store.list(keys.ssts(app, stage))} for stage in stages}
    if last_final(store, app) != todo.limit:
        return None
    if was_forgotten(store, app) != was_forgotten(target, app):
        return None  # the rewritten SSTs are not copied yet
    names, gone = {snapshot.name for snapshot in todo.snapshots}, list[str]()
    for name in had:
        if name not in names and SNAPSHOTS.find(target, name, app) is not None:
            remove(target, app, name)
            gone.append(keys.note(keys.snapshots(app), name))
    try:
        limit = settle(target, app, todo, by=by)
    except Refused:
        return None
    for stage in stages:
        manifests = tuple(history.list_manifests(target, app, stage))
        stay = [version for version, _ in manifests if limit.allows(stage, version)]
        # Versions that only the replica pins may have SSTs that the app has collected.
        own = [version for version in stay if not todo.limit.allows(stage, version)]
        named = originals[stage].union(*(_named(target, app, stage, version) for version in own))
        gone += _deleted(target, [info.key for version, info in manifests if not limit.allows(stage, version)])
        gone += _deleted(target, [key for key in copies[stage] if key not in named])
    gone += _deleted(target, _shared_gone(target, app))
    gone += _deleted(target, [info.key for info in gone_from(store, target, app)])
    return gone + _deleted(target, list(_records_gone(store, target, app, names)))


def _shared_gone(target: ObjectStore, app: str) -> list[str]:
    """Return SSTs of the app that this one was cloned from, out of which keys were taken.

    SSTs of apps that have a replica of their own in the target are left to that replica.
    """
    shared = [key for key in forgotten.newest(target, app).ssts if not key.startswith(f"{app}/")]
    owners = {key.split("/")[0] for key in shared}
    alone = {owner for owner in owners if find(target, owner) is None and apps.find_app(target, owner) is None}
    return [key for key in shared if key.split("/")[0] in alone and exists(target, key)]


def _records_gone(store: ObjectStore, target: ObjectStore, app: str, copied: set[str]) -> Iterator[str]:
    """Yield objects with in-flight records of the app's snapshots that a `forget` of the app has replaced."""
    prefix = keys.snapshots(app)
    copies = [info.key for info in target.list(prefix) if info.key.removeprefix(prefix).split("/")[0] in copied]
    existing = {info.key for info in store.list(prefix)} if copies else set[str]()
    own = {
        key for snapshot in SNAPSHOTS.all(target, app) if snapshot.name not in copied for key in snapshot.object_keys
    }
    yield from (key for key in copies if key not in existing and key not in own)


def _deleted(target: ObjectStore, gone: list[str]) -> list[str]:
    for key in gone:
        target.delete(key)
    return gone


def _named(target: ObjectStore, app: str, stage: str, version: int) -> frozenset[str]:
    manifest = history.find(target, app, stage, version)
    return frozenset(sst.object for sst in all_ssts(manifest)) if manifest is not None else frozenset()


def settle(target: ObjectStore, app: str, todo: Todo, *, by: str) -> Boundary:
    """Update the replica's boundary to allow what the app's allows and the replica's snapshots need; returns it.

    These snapshots include that of the newest cut, so this may run before the next cut is recorded. Raises `Refused` if
    another process updates the boundary at the same time.
    """
    boundaries, copied = horizon.all_of(target, app), {snapshot.name for snapshot in todo.snapshots}
    last = boundaries[-1] if boundaries else NOTHING_COLLECTED
    proposed = _with_pins(target, app, todo.limit, copied)
    if last.final and (last.first, last.kept, last.moments) == (proposed.first, proposed.kept, proposed.moments):
        return last
    number = max((boundary.number for boundary in boundaries), default=0) + 1
    horizon.propose(target, app, replace(proposed, number=number, final=False, by=by))
    # Whoever pins a cut reads the boundary afterwards, and this reads the pins after proposing the boundary.
    final = replace(_with_pins(target, app, todo.limit, copied), number=number + 1, final=True, by=by)
    horizon.settle(target, app, final)
    return final


def _with_pins(target: ObjectStore, app: str, limit: Boundary, copied: set[str]) -> Boundary:
    """Return a boundary that also allows what the replica's own snapshots, those not in `copied`, pin."""
    older = {stage: set(versions) for stage, versions in limit.kept.items()}
    moments = {tuple(sorted(snapshot.stages.items())): snapshot for snapshot in limit.moments}
    for snapshot in SNAPSHOTS.all(target, app):
        if snapshot.name in copied or limit.is_whole(snapshot.stages):
            continue
        for stage, versions in _needed(target, snapshot).items():
            older.setdefault(stage, set()).update(v for v in versions if v < limit.first.get(stage, 0))
        moments.setdefault(tuple(sorted(snapshot.stages.items())), KeptCut(snapshot.completed_ms, snapshot.stages))
    return replace(
        limit,
        kept={stage: tuple(sorted(versions)) for stage, versions in older.items() if versions},
        moments=tuple(sorted(moments.values(), key=lambda moment: moment.time_ms)),
    )


def _needed(target: ObjectStore, snapshot: Snapshot) -> Mapping[str, set[int]]:
    with suppress(NotFound):  # the snapshot's versions are gone
        return needed(of_snapshot(target, snapshot).stages)
    return {}
