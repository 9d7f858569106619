"""Copies objects of an app other than versions and snapshots: `census` lists them, and versions are read by some."""

from collections.abc import Iterator
from contextlib import suppress

from ...errors import ObjectNotFound, Refused
from ...snapshot.gc import census
from ...store.objects.protocol import ObjectInfo, ObjectStore
from ...store.read.copier import Copier
from ...store.versions import apps, forgotten, keys


def copy_rules(copier: Copier, app: str) -> None:
    """Copy the objects that versions are read by: migrations, the histories of names, and records of forgotten keys.

    The objects that these name are copied first.
    """
    copier.listed(copier.source.list(keys.migrations(app)))
    for name in copier.source.list_folders(f"{keys.NAMES}/"):
        if any(app in (event.folder, event.over, event.name) for event in apps.promotions(copier.source, name)):
            _check_name(copier, app, name)
            copier.listed(copier.source.list(keys.names(name)))
    new = copier.missing(copier.source.list(keys.forgotten(app)))
    if new:
        for stage in copier.source.list_folders(keys.stages(app)):
            copier.listed(copier.source.list(keys.ssts(app, stage)))
            # Manifests of edits whose statement or message contained a key were rewritten.
            copier.listed(copier.changed(copier.source.list(keys.manifests(app, stage))))
        snapshots = copier.source.list(keys.snapshots(app))
        copier.listed(info for info in snapshots if census.kind_of(info.key) is census.IN_FLIGHT)
        rewritten = (sst for sst in forgotten.newest(copier.source, app).ssts.values() if sst is not None)
        copier.ssts((sst for sst in rewritten if not sst.object.startswith(f"{app}/")), may_be_gone=True)
        copier.listed(new)


def _check_name(copier: Copier, app: str, name: str) -> None:
    """Raise `Refused` if an app that took part in promotions of this name has a namesake in the target."""
    source, target = copier.source, copier.target
    history, replicated = apps.NAMES.all(source, name), apps.NAMES.all(target, name)
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
    """Return True if the target has no app of that name, or a copy of the source's."""
    copy, original = apps.find_app(target, app), apps.find_app(source, app)
    return copy is None or (original is not None and original.created_ms == copy.created_ms)


def was_forgotten(store: ObjectStore, app: str) -> str:
    """Return the key of the newest record of forgotten keys of an app; empty if there is none. One listing."""
    return max((info.key for info in store.list(keys.forgotten(app))), default="")


def copy_others(copier: Copier, app: str) -> None:
    """Copy all other objects of an app that are neither versions nor snapshots."""
    for place in census.beside_versions(app):
        if not place.endswith("/"):  # an object that may be overwritten
            with suppress(ObjectNotFound):
                if not copier.put(place, copier.source.get(place)):
                    copier.one(place)
            continue
        # Archived objects are put before the index that names them, so the second listing has all of them.
        indexes = [info for info in copier.source.list(place) if census.kind_of(info.key) is census.ARCHIVE_INDEX]
        copier.listed(
            info for info in copier.source.list(place) if census.kind_of(info.key) is not census.ARCHIVE_INDEX
        )
        copier.listed(indexes)


def gone_from(store: ObjectStore, target: ObjectStore, app: str) -> Iterator[ObjectInfo]:
    """Yield objects other than versions that the target has and the app no longer has."""
    for place in (*census.beside_versions(app), keys.forgotten(app)):
        copies = list(target.list(place))
        existing = {info.key for info in store.list(place)} if copies else set()
        yield from (info for info in copies if info.key not in existing)
