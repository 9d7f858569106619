"""Takes away from a replica what its app has given up: versions that were collected, SSTs, snapshots, older cuts.

What may exist is written first, as in a collection (`store.versions.horizon`): the app's boundary, and what snapshots
of the replica itself pin, such as that of a clone made from it. Then goes what the app has not any more. Its SSTs are
listed before its boundary is read: those of versions that this allows were all there then.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress

from msgspec.structs import replace

from ...errors import NotFound, Refused
from ...snapshot.cut.replicas import CUTS, PREFIX, ReplicaCut, find, older_cuts
from ...snapshot.cut.stored import SNAPSHOTS, Snapshot, of_snapshot
from ...snapshot.take.snapshots import remove, remove_records
from ...store.objects.protocol import ObjectStore, exists
from ...store.versions import apps, history, horizon, keys
from ...store.versions.forgotten import index as forgotten
from ...store.versions.horizon import NOTHING_COLLECTED, Boundary, KeptCut
from ...store.versions.side_tables import all_ssts
from .beside_versions import gone_from, was_forgotten
from .replicate_plan import Todo, last_final, needed


def drop_older(target: ObjectStore, cut: ReplicaCut) -> None:
    """Remove what said before up to where the replica was complete, and what was kept of Kafka for it.

    Where the newest lacks something, the last that did not stays. What goes on beside this has later numbers.
    """
    app, prefix = cut.app, keys.snapshots(cut.app)
    whole = next((each for each in older_cuts(target, cut) if not each.lacks), None) if cut.lacks else None
    stay = {each.snapshot for each in (cut, whole) if each is not None}
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
    """Delete what the app has not any more; returns the keys. `had` are the app's snapshots that were there before.

    Returns None, and has not swept, where somebody else collects, forgets or sweeps at the same moment: the next round
    sweeps. Raises `Unavailable`.
    """
    stages = tuple(target.list_folders(keys.stages(app)))
    # In this order: what somebody else copies meanwhile is in neither, or in both.
    here = {stage: [info.key for info in target.list(keys.ssts(app, stage))] for stage in stages}
    theirs = {stage: {info.key for info in store.list(keys.ssts(app, stage))} for stage in stages}
    if last_final(store, app) != todo.limit:
        return None
    if was_forgotten(store, app) != was_forgotten(target, app):
        return None  # what has the rest is not there yet
    names, gone = {each.name for each in todo.snapshots}, list[str]()
    for name in had:
        if name not in names and SNAPSHOTS.find(target, name, app) is not None:
            remove(target, app, name)
            gone.append(keys.note(keys.snapshots(app), name))
    try:
        limit = settle(target, app, todo, by=by)
    except Refused:
        return None
    for stage in stages:
        there = tuple(history.list_manifests(target, app, stage))
        stay = [version for version, _ in there if limit.allows(stage, version)]
        # What the replica has for itself alone, the app may have collected.
        mine = [version for version in stay if not todo.limit.allows(stage, version)]
        named = theirs[stage].union(*(_named(target, app, stage, version) for version in mine))
        gone += _deleted(target, [info.key for version, info in there if not limit.allows(stage, version)])
        gone += _deleted(target, [key for key in here[stage] if key not in named])
    gone += _deleted(target, _shared_gone(target, app))
    gone += _deleted(target, [info.key for info in gone_from(store, target, app)])
    return gone + _deleted(target, list(_records_gone(store, target, app, names)))


def _shared_gone(target: ObjectStore, app: str) -> list[str]:
    """SSTs of another app, of which this one is a clone, out of which keys were taken. Its own replica sees to its."""
    shared = [key for key in forgotten.newest(target, app).ssts if not key.startswith(f"{app}/")]
    owners = {key.split("/")[0] for key in shared}
    alone = {owner for owner in owners if find(target, owner) is None and apps.find_app(target, owner) is None}
    return [key for key in shared if key.split("/")[0] in alone and exists(target, key)]


def _records_gone(store: ObjectStore, target: ObjectStore, app: str, theirs: set[str]) -> Iterator[str]:
    """Records in flight of the app's snapshots that it has not any more, as keys were taken out of them."""
    prefix = keys.snapshots(app)
    here = [info.key for info in target.list(prefix) if info.key.removeprefix(prefix).split("/")[0] in theirs]
    left = {info.key for info in store.list(prefix)} if here else set[str]()
    own = {key for each in SNAPSHOTS.all(target, app) if each.name not in theirs for key in each.object_keys}
    yield from (key for key in here if key not in left and key not in own)


def _deleted(target: ObjectStore, gone: list[str]) -> list[str]:
    for key in gone:
        target.delete(key)
    return gone


def _named(target: ObjectStore, app: str, stage: str, version: int) -> frozenset[str]:
    found = history.find(target, app, stage, version)
    return frozenset(sst.object for sst in all_ssts(found)) if found is not None else frozenset()


def settle(target: ObjectStore, app: str, todo: Todo, *, by: str) -> Boundary:
    """Have the replica's boundary allow what the app's does, and what the replica's own snapshots need; returns it.

    The newest cut is among the latter, so that it may be said before the next is. Raises `Refused` where somebody else
    does that at the same moment.
    """
    known, theirs = horizon.all_of(target, app), {each.name for each in todo.snapshots}
    last = known[-1] if known else NOTHING_COLLECTED
    wanted = _with_pins(target, app, todo.limit, theirs)
    if last.final and (last.first, last.kept, last.moments) == (wanted.first, wanted.kept, wanted.moments):
        return last
    number = max((each.number for each in known), default=0) + 1
    horizon.propose(target, app, replace(wanted, number=number, final=False, by=by))
    # Who pins a cut looks at the boundary after that, and this looks at pins after the boundary.
    final = replace(_with_pins(target, app, todo.limit, theirs), number=number + 1, final=True, by=by)
    horizon.settle(target, app, final)
    return final


def _with_pins(target: ObjectStore, app: str, limit: Boundary, theirs: set[str]) -> Boundary:
    """A boundary that also allows what snapshots of the replica itself pin; `theirs` are those of the app."""
    kept = {stage: set(versions) for stage, versions in limit.kept.items()}
    moments = {tuple(sorted(each.stages.items())): each for each in limit.moments}
    for each in SNAPSHOTS.all(target, app):
        if each.name in theirs or limit.is_whole(each.stages):
            continue
        for stage, versions in _needed(target, each).items():
            kept.setdefault(stage, set()).update(v for v in versions if v < limit.first.get(stage, 0))
        moments.setdefault(tuple(sorted(each.stages.items())), KeptCut(each.completed_ms, each.stages))
    return replace(
        limit,
        kept={stage: tuple(sorted(versions)) for stage, versions in kept.items() if versions},
        moments=tuple(sorted(moments.values(), key=lambda each: each.time_ms)),
    )


def _needed(target: ObjectStore, snapshot: Snapshot) -> Mapping[str, set[int]]:
    with suppress(NotFound):  # it keeps nothing whole any more
        return needed(of_snapshot(target, snapshot).stages)
    return {}
