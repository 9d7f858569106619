"""Copies what lies beside the versions and snapshots of an app: what `census` says, and what versions are read by."""

from collections.abc import Iterator
from contextlib import suppress

from ...errors import ObjectNotFound, Refused
from ...snapshot.gc import census
from ...store.objects.protocol import ObjectInfo, ObjectStore
from ...store.read.copier import Copier
from ...store.versions import apps, forgotten, keys


def copy_rules(copier: Copier, app: str) -> None:
    """Copy what versions go by: the app's migrations, what became of names that it has or had, and what was forgotten.

    The objects that this leads to are there before it is.
    """
    copier.listed(copier.source.list(keys.migrations(app)))
    for name in copier.source.list_folders(f"{keys.NAMES}/"):
        if any(app in (each.folder, each.over, each.name) for each in apps.promotions(copier.source, name)):
            _check_name(copier, app, name)
            copier.listed(copier.source.list(keys.names(name)))
    new = copier.missing(copier.source.list(keys.forgotten(app)))
    if new:
        for stage in copier.source.list_folders(keys.stages(app)):
            copier.listed(copier.source.list(keys.ssts(app, stage)))
            # Of edits whose texts had a key.
            copier.listed(copier.changed(copier.source.list(keys.manifests(app, stage))))
        snapshots = copier.source.list(keys.snapshots(app))
        copier.listed(info for info in snapshots if census.kind_of(info.key) is census.IN_FLIGHT)
        left = (sst for sst in forgotten.newest(copier.source, app).ssts.values() if sst is not None)
        copier.ssts((sst for sst in left if not sst.object.startswith(f"{app}/")), may_be_gone=True)
        copier.listed(new)


def _check_name(copier: Copier, app: str, name: str) -> None:
    """Raise `Refused` where another app has a name in the target that went over in the source, or had it there."""
    source, target = copier.source, copier.target
    here, there = apps.NAMES.all(source, name), apps.NAMES.all(target, name)
    others = {name, *(folder for each in here for folder in (each.folder, each.over))} - {app} if not there else ()
    if there == here[: len(there)] and all(_is_copy(source, target, other) for other in others):
        return
    raise Refused(
        f"{app} of {source.url} has to do with the name {name!r}, and {target.url} has another app of that name",
        hint="choose another root: names of apps go along, and are each one app's",
    )


def _is_copy(source: ObjectStore, target: ObjectStore, app: str) -> bool:
    """Say if the target has no app of that name, or a copy of the source's."""
    there, here = apps.find_app(target, app), apps.find_app(source, app)
    return there is None or (here is not None and here.created_ms == there.created_ms)


def was_forgotten(store: ObjectStore, app: str) -> str:
    """The newest that was written about what was forgotten of an app; empty for nothing. One listing."""
    return max((info.key for info in store.list(keys.forgotten(app))), default="")


def copy_others(copier: Copier, app: str) -> None:
    """Copy everything else that lies beside versions."""
    for place in census.beside_versions(app):
        if not place.endswith("/"):  # one that may be written over
            with suppress(ObjectNotFound):
                if not copier.put(place, copier.source.get(place)):
                    copier.one(place)
            continue
        # What an index names was there before it: so it is in a listing that comes after that of the index.
        indexes = [info for info in copier.source.list(place) if census.kind_of(info.key) is census.ARCHIVE_INDEX]
        copier.listed(
            each for each in copier.source.list(place) if census.kind_of(each.key) is not census.ARCHIVE_INDEX
        )
        copier.listed(indexes)


def gone_from(store: ObjectStore, target: ObjectStore, app: str) -> Iterator[ObjectInfo]:
    """Objects beside versions that the target has and the app has not any more."""
    for place in (*census.beside_versions(app), keys.forgotten(app)):
        there = list(target.list(place))
        left = {info.key for info in store.list(place)} if there else set()
        yield from (info for info in there if info.key not in left)
