"""Which apps a store root holds, and who they are."""

from collections.abc import Container, Iterator
from itertools import chain, count

from msgspec import Struct

from ...errors import NotFound, ObjectExists, Refused
from ..objects.protocol import ObjectStore, exists
from . import checks, codec, keys, limits, notes
from .manifest import AppInfo


class Cloning(Struct, frozen=True):
    """The note of a clone that is being made: all that it takes to go on."""

    info: AppInfo
    """The identity that it will have, as soon as it is whole."""
    root: limits.Line
    """The source's store root."""
    snapshot: limits.NameOrNone
    """The snapshot that pins the cut in the source; empty where nothing does."""
    salt: limits.Line = ""
    """By which values are hidden: known to nobody once the clone is whole."""
    deep: bool = False


@checks.relations.register
def _(value: Cloning) -> Iterator[checks.Wrong]:
    yield from checks.relations(value.info)
    yield from checks.root_is_wrong("root", value.root)
    if value.info.origin is None:
        yield checks.Wrong("info.origin", None, "what it is a clone of")


def create_app(store: ObjectStore, info: AppInfo, *, cloned: bool = False) -> None:
    """Write an app's identity; with it the app exists. `cloned` says that it is whole, and its note still there.

    Raises:
        Usage: the name cannot stand in an object key.
        Refused: an app of this name exists, or is being removed, or the storage does not honour conditional puts.
        Unavailable: storage did not answer; the app may have been created.
    """
    if _create(store, info, cloned=cloned) != info:
        raise Refused(
            f"app {info.name!r} exists already under {store.url}",
            hint="choose another name, or another store root",
        )


def ensure_app(store: ObjectStore, info: AppInfo) -> AppInfo:
    """The stored identity of that name, else `info`, written. Raises as `create_app`, and then leaves none it wrote."""
    return found if (found := find_app(store, info.name)) is not None else _create(store, info)


def find_app(store: ObjectStore, name: str) -> AppInfo | None:
    """An app's identity; None if there is none of that name. Raises `Usage`, `Corruption` or `Unavailable`."""
    key = keys.app_info(keys.check_name("app", name))
    return notes.find(store, key, AppInfo, under=lambda found: keys.app_info(found.name))


def find_cloning(store: ObjectStore, name: str) -> Cloning | None:
    """The note of a clone of that name that is not whole yet. One request. Raises as `find_app`."""
    key = keys.cloning(keys.check_name("app", name))
    return notes.find(store, key, Cloning, under=lambda found: keys.cloning(found.info.name))


def begin_clone(store: ObjectStore, note: Cloning) -> Cloning:
    """Write the note of a clone, unless there is one; the one that is there. From here on nobody else has the name.

    Raises `Refused` where there is an app of that name, or the storage does not honour conditional puts.
    """
    name, key = note.info.name, keys.cloning(note.info.name)
    found = notes.add(store, key, note, under=lambda found: keys.cloning(found.info.name))
    if found != note:
        return found
    try:
        _try_storage(store, key, note)
        if find_app(store, name) is not None:
            raise Refused(f"app {name!r} exists already under {store.url}", hint="choose another name")
    except Refused:
        store.delete(key)
        raise
    return note


def read_app(store: ObjectStore, name: str) -> AppInfo:
    """An app's identity.

    Raises `NotFound`, which says the nearest names, where there is none, `Refused` where it is being cloned, else as
    `find_app`.
    """
    if (found := find_app(store, name)) is None:
        if exists(store, keys.cloning(name)):
            raise being_cloned(name)
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


def being_cloned(app: str) -> Refused:
    """The error for a clone that is not whole yet: it is nobody's before."""
    return Refused(
        f"app {app!r} is a clone that was not finished: that was begun, and has not ended",
        hint="run the same `slackwater clone` again: it goes on where it stopped; "
        f"`slackwater app rm {app}` gives it up",
    )


def check_whole(app: str, folders: Container[str]) -> None:
    """Raise `Refused` where the folders among an app's stages say that it is half removed, or half made."""
    if keys.REMOVING in folders:
        raise being_removed(app)
    if keys.CLONING in folders:
        raise being_cloned(app)


def _create(store: ObjectStore, info: AppInfo, *, cloned: bool = False) -> AppInfo:
    """Write the identity unless there is one; return the stored one. Where it raises `Refused`, it leaves none."""
    key = keys.app_info(keys.check_name("app", info.name))

    def check() -> None:
        check_whole(info.name, tuple(store.list_folders(keys.stages(info.name))))

    if not cloned:
        check()
    elif (noted := find_cloning(store, info.name)) is None or noted.info != info:
        raise Refused(f"clone {info.name!r} was given up by somebody else while it was made", hint="say it again")
    found = notes.add(store, key, info, under=lambda found: keys.app_info(found.name))
    if found != info or cloned:
        return found
    try:
        check()  # a clone that was begun meanwhile looks for an identity when its note is there
        _try_storage(store, key, info)
    except Refused:
        # The next call would find it, and take it for an app whose storage was tried.
        store.delete(key)
        raise
    return info


def _try_storage(store: ObjectStore, key: str, info: Struct) -> None:
    # Every guarantee rests on conditional puts, and some S3 servers accept the header and overwrite all the
    # same. The same bytes once more do no harm there, and show it before the first version is committed.
    try:
        store.put_if_absent(key, codec.encode(info))
    except ObjectExists:
        return
    raise Refused(
        f"the storage of {store.url} overwrote an object in spite of 'If-None-Match: *': commits would be lost",
        hint="use an S3 server with conditional writes, or a local folder",
    )
