"""Which apps a store root holds, who they are, and which of them has a name that went over from another.

An app's name is the name of its folder, for as long as none was promoted over it. From then on notes say whose it is.
"""

import re
from collections.abc import Container, Iterator, Mapping
from contextlib import suppress
from itertools import chain, count

from msgspec import Struct

from ...errors import Corruption, NotFound, ObjectExists, Refused, Usage
from ..objects.protocol import ObjectStore, exists
from . import checks, codec, keys, limits, notes
from .manifest import AppInfo, Promotion
from .notes import Notes


class NameNote(Struct, frozen=True):
    """What became of a promotion: it was decided, or withdrawn. Whoever says it first, has said it for good."""

    name: limits.Name
    number: limits.Version
    """From 1."""
    folder: limits.Name
    """Of the app that has the name from then on."""
    over: limits.Name
    """Of the app that had it until then: the same where the promotion was withdrawn."""
    by: limits.Line
    time_ms: limits.TimeMs
    back: bool = False
    """Whether it gave the name back to the app that had it before: asked for once more, that is done already."""

    @property
    def withdrawn(self) -> bool:
        """Whether nothing came of it."""
        return self.folder == self.over


NAMES = Notes(NameNote, keys.names, lambda each: each.number, app=lambda each: each.name)
"""Of a name, by number."""
_EARLIER = re.compile(rf"({keys.NAME})(?:~([0-9]{{1,6}}))?")


def folder_of(store: ObjectStore, name: str) -> str:
    """The folder of the app that has a name now, or that had it so many promotions ago, with `NAME~1`.

    One request for a name that never went over. Raises `Usage` where no app can have that name, and `NotFound` where it
    did not go over so often.
    """
    return folders_of(store, name)[0]


def folders_of(store: ObjectStore, name: str) -> tuple[str, ...]:
    """That folder, and those that had the name before it, newest first. Requests and errors as of `folder_of`."""
    match = _EARLIER.fullmatch(name)
    if match is None:
        raise Usage(
            f"app name {name!r} is not usable: expected {keys.NAME_IN_WORDS}; or NAME~1 for the one before a promotion"
        )
    called, ago = match[1], int(match[2] or 0)
    folders = promoted(store, called)
    if ago >= len(folders):
        raise NotFound(
            "app", name, found=f"{called!r} went over to another app {len(folders) - 1} times", hint=f"say {called}"
        )
    return folders[ago:]


def promoted(store: ObjectStore, name: str) -> tuple[str, ...]:
    """The folders that have had a name, newest first; the last is the one that is called so. Requests as `folder_of`.

    A promotion that leads back makes it that of an earlier app once more.
    """
    return (*(each.folder for each in reversed(promotions(store, name))), name)


def promotions(store: ObjectStore, name: str) -> tuple[NameNote, ...]:
    """The promotions of a name that were decided, oldest first. Requests as `folder_of`."""
    if NAMES.find(store, 1, name) is None:
        return ()
    return tuple(each for each in NAMES.all(store, name) if not each.withdrawn)


def called(store: ObjectStore) -> dict[str, str]:
    """By folder, what an app is called since a promotion: by another's name, or `NAME~1` and so on where it lost one.

    An app that gave the name back is not among them, nor is one that has its own. One listing, and twice the requests
    of `folder_of` for each name that went over.
    """
    found: dict[str, str] = {}
    for name in store.list_folders(f"{keys.NAMES}/"):
        done, had = promotions(store, name), promoted(store, name)
        newest = {folder: each for each in done for folder in (each.over, each.folder)}
        stay = (folder for folder, each in newest.items() if folder == each.folder or not each.back)
        found |= {folder: f"{name}~{ago}" if (ago := had.index(folder)) else name for folder in stay}
        if had[0] == name:
            found.pop(name, None)
    return found


def name_of(store: ObjectStore, folder: str) -> str:
    """The name of another app that this folder's app has by a promotion; empty for none. Requests as `called`."""
    return name_in(called(store), folder)


def name_in(names: Mapping[str, str], folder: str) -> str:
    """What `name_of` gives, looked up in what `called` returned."""
    name = names.get(folder, "")
    return "" if "~" in name else name


def means_now(store: ObjectStore, folder: str, time_ms: int) -> str:
    """The folder of the app that has the name now which this folder's app had at that time. Requests as `called`.

    The folder itself where no promotion was over that name, and where its app had lost it by then.
    """
    for name in store.list_folders(f"{keys.NAMES}/"):
        done = promotions(store, name)
        if next((each.folder for each in reversed(done) if each.time_ms <= time_ms), name) == folder:
            return done[-1].folder if done else folder
    return folder


def taken_back(name: str, folder: str) -> str:
    """What is typed to give a name back to the app that lost it last, in this folder."""
    return f"slackwater promote {'--back' if folder == name else folder} --over {name}"


def check_free(store: ObjectStore, name: str) -> None:
    """Raise `Refused` where a new app in this folder would get a name that went over. Requests as `called`."""
    for over in store.list_folders(f"{keys.NAMES}/"):
        done = promotions(store, over)
        if not done or name not in (over, has := done[-1].folder):
            continue
        gone = ", which is gone" if find_app(store, has) is None else ""
        raise Refused(
            f"the name {over!r} went over to app {has!r}{gone}: no new app gets it",
            hint=f"`slackwater status` shows which apps are left, such as {over}~1; a new one needs another name",
        )


def in_folder(store: ObjectStore, text: str) -> str:
    """A ref, or `APP/STAGE`, with the folder in the place of the app's name; as it is where no app can have that name.

    Raises `NotFound` as `folder_of`.
    """
    called = re.split("[@/]", text, maxsplit=1)[0]
    return folder_of(store, called) + text[len(called) :] if _EARLIER.fullmatch(called) else text


def outcome(store: ObjectStore, promotion: Promotion) -> bool | None:
    """Whether a promotion was decided: None for not yet, False where it was withdrawn. One request."""
    found = NAMES.find(store, promotion.number, promotion.name)
    return None if found is None else found.folder == promotion.to


def publishes(store: ObjectStore, info: AppInfo | None, promotion: Promotion | None) -> Mapping[str, str] | None:
    """What an app publishes, by sink; None for all of its sinks, as declared.

    A clone publishes what it was told to, and whoever took part in a promotion what that says. One request, or none.
    """
    if promotion is None:
        return info.origin.sinks if info is not None and info.origin is not None else None
    return promotion.before if outcome(store, promotion) is False else promotion.sinks


def ancestors(store: ObjectStore, app: str) -> Iterator[str]:
    """The app, what it was cloned from in this root, what that was cloned from, and so on. A request for each."""
    known: set[str] = set()
    while app and app not in known:
        known.add(app)
        yield app
        info = find_app(store, app)
        origin = info.origin if info is not None else None
        app = origin.app if origin is not None and origin.root == store.url else ""


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
    adopts: limits.NameOrNone = ""
    """Of an adoption, the stage that a query of Spark's becomes: it is no clone."""


@checks.relations.register
def _(value: Cloning) -> Iterator[checks.Wrong]:
    yield from checks.relations(value.info)
    yield from checks.root_is_wrong("root", value.root)
    if (value.info.origin is None) != bool(value.adopts):
        yield checks.Wrong("info.origin", value.info.origin, "what it is a clone of, unless it adopts a query")


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
    """An app's identity; None if there is none of that name. Raises `Usage`."""
    key = keys.app_info(keys.check_name("app", name))
    return notes.find(store, key, AppInfo, under=lambda found: keys.app_info(found.name))


def find_cloning(store: ObjectStore, name: str) -> Cloning | None:
    """The note of a clone of that name that is not whole yet. One request. Raises as `find_app`."""
    key = keys.cloning(keys.check_name("app", name))
    return notes.find(store, key, Cloning, under=lambda found: keys.cloning(found.info.name))


def find_begun(store: ObjectStore, name: str) -> tuple[AppInfo | None, Cloning | None]:
    """The identity of an app, whole or being made, and the note of one that is being made. Raises as `find_app`."""
    note = find_cloning(store, name)
    return (note.info if note is not None else find_app(store, name)), note


def begin_clone(store: ObjectStore, note: Cloning) -> None:
    """Write the note of an app that is made of another one, or of a query. From here on nobody else has the name.

    Raises `Refused` where there is an app or a note of that name, or the storage does not honour conditional puts.
    """
    name, key = note.info.name, keys.cloning(note.info.name)
    if notes.add(store, key, note, under=lambda found: keys.cloning(found.info.name)) != note:
        raise Refused(
            f"app {name!r} was begun by somebody else at the same moment",
            hint="say it again: it goes on with that one, if it is the same",
        )
    try:
        try_storage(store, key, note)
        if find_app(store, name) is not None:
            raise Refused(f"app {name!r} exists already under {store.url}", hint="choose another name")
    except Refused:
        store.delete(key)
        raise


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


_LEVELS = 4
"""Folders above a root in which an app is looked for: the root would have to lie that deep inside it."""


def check_root(store: ObjectStore) -> None:
    """Raise `Refused` where the store root lies inside the folder of another root's app: it would go with that app.

    A request for each folder above it, up to four, on S3 within the bucket.
    """
    above, _, folder = store.url.rpartition("/")
    for _ in range(_LEVELS):
        if not folder or above == "s3:/" or folder == store.url:  # the last is a store in memory
            return
        around, found = store.at(above or "/"), None
        with suppress(Corruption, Refused, Usage):  # what may not be read, or is none of ours, says nothing
            found = find_app(around, folder)
        if found is not None:
            raise Refused(
                f"the store root {store.url} lies inside the app {folder!r} of the root {around.url}: removing that "
                "app would delete what is in it",
                hint="choose a root beside that one",
            )
        above, _, folder = above.rpartition("/")


def list_cloning(store: ObjectStore) -> tuple[str, ...]:
    """Names of the clones that are not whole yet. Requests as `list_apps`."""
    return tuple(name for name in store.list_folders("") if exists(store, keys.cloning(name)))


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
        f"app {app!r} is a clone that was not finished, or an adoption: that was begun, and has not ended",
        hint="run the same `slackwater clone` or `adopt` again: it goes on where it stopped; "
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
    if not cloned:  # else that was asked before its note was written
        check_root(store)
        check_free(store, info.name)

    def check() -> None:
        check_whole(info.name, tuple(store.list_folders(keys.stages(info.name))))

    if not cloned:
        check()
    elif (noted := find_cloning(store, info.name)) is None or noted.info != info:
        if find_app(store, info.name) == info:
            return info  # whoever made it at the same time was done a moment before
        raise Refused(f"clone {info.name!r} was given up by somebody else while it was made", hint="say it again")
    found = notes.add(store, key, info, under=lambda found: keys.app_info(found.name))
    if found != info or cloned:
        return found
    try:
        check()  # a clone that was begun meanwhile looks for an identity when its note is there
        try_storage(store, key, info)
    except Refused:
        # The next call would find it, and take it for an app whose storage was tried.
        store.delete(key)
        raise
    return info


def try_storage(store: ObjectStore, key: str, info: Struct) -> None:
    """Raise `Refused` where storage overwrites an object that was just put where there was none. One request."""
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
