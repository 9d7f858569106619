"""Which apps a store root holds, and who they are."""

from itertools import chain, count

from ...errors import NotFound, ObjectExists, Refused
from ..objects.protocol import ObjectStore, exists
from . import codec, keys, notes
from .manifest import AppInfo


def create_app(store: ObjectStore, info: AppInfo) -> None:
    """Write an app's identity; with it the app exists.

    Raises:
        Usage: the name cannot stand in an object key.
        Refused: an app of this name exists, or is being removed, or the storage does not honour conditional puts.
        Unavailable: storage did not answer; the app may have been created.
    """
    if _create(store, info) != info:
        raise Refused(
            f"app {info.name!r} exists already under {store.url}",
            hint="choose another name, or another store root",
        )


def ensure_app(store: ObjectStore, info: AppInfo) -> AppInfo:
    """The stored identity of that name, else `info`, written. Raises as `create_app`, and then leaves none it wrote."""
    if (found := find_app(store, info.name)) is not None:
        return found
    try:
        return _create(store, info)
    except Refused:
        # The next call would find it, and take it for an app whose storage was tried.
        store.delete(keys.app_info(info.name))
        raise


def find_app(store: ObjectStore, name: str) -> AppInfo | None:
    """An app's identity; None if there is none of that name. Raises `Usage`, `Corruption` or `Unavailable`."""
    key = keys.app_info(keys.check_name("app", name))
    return notes.find(store, key, AppInfo, under=lambda found: keys.app_info(found.name))


def read_app(store: ObjectStore, name: str) -> AppInfo:
    """An app's identity. Raises `NotFound`, which says the nearest names, where there is none, else as `find_app`."""
    if (found := find_app(store, name)) is None:
        raise NotFound("app", name, list_apps(store), hint=f"looked under {store.url}")
    return found


def list_apps(store: ObjectStore) -> tuple[str, ...]:
    """Names of the apps under the root, in order. One request, and one for each folder under the root."""
    # A folder without that object is somebody else's.
    return tuple(name for name in store.list_folders("") if exists(store, keys.app_info(name)))


def free_name(store: ObjectStore, wanted: str) -> str:
    """This name for a new app, or the first of `wanted-2`, `wanted-3`, … that no app has. Requests as `list_apps`."""
    taken = list_apps(store)
    return next(name for name in chain([wanted], map(f"{wanted}-{{}}".format, count(2))) if name not in taken)


def being_removed(app: str) -> Refused:
    """The error for an app of which nobody knows how much is left."""
    return Refused(
        f"app {app!r} is being removed: that was begun, and has not ended",
        hint=f"`slackwater app rm {app}` goes on with it; then the name is free",
    )


def _create(store: ObjectStore, info: AppInfo) -> AppInfo:
    """Write the identity unless there is one; return the stored one."""
    key = keys.app_info(keys.check_name("app", info.name))
    if keys.REMOVING in store.list_folders(keys.stages(info.name)):
        raise being_removed(info.name)
    found = notes.add(store, key, info, under=lambda found: keys.app_info(found.name))
    if found != info:
        return found
    # Every guarantee rests on conditional puts, and some S3 servers accept the header and overwrite all the
    # same. The same bytes once more do no harm there, and show it before the first version is committed.
    try:
        store.put_if_absent(key, codec.encode(info))
    except ObjectExists:
        return info
    raise Refused(
        f"the storage of {store.url} overwrote an object in spite of 'If-None-Match: *': commits would be lost",
        hint="use an S3 server with conditional writes, or a local folder",
    )
