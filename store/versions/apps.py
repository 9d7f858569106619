"""The apps under a store root: their identities, and the names that promotions moved between apps.

An app's name is the name of its folder, until another app is promoted over it. After that, promotion outcomes map the
name to a folder.
"""

import re
from collections.abc import Callable, Container, Iterator, Mapping
from contextlib import suppress
from itertools import chain, compress, count

from msgspec import Struct

from ...errors import Corruption, NotFound, ObjectExists, Refused, Usage
from ..objects.many import map_concurrently
from ..objects.protocol import ObjectStore, exists
from . import checks, codec, keys, limits
from .codec import JsonFolder
from .manifest import AppInfo, Promotion


class PromotionOutcome(Struct, frozen=True):
    """Outcome of a promotion, as stored. It is created by put-if-absent, so the first outcome is final."""

    name: limits.Name
    number: limits.Version
    folder: limits.Name
    over: limits.Name
    """Folder of the app that had the name before. It equals `folder` if the promotion was withdrawn."""
    by: limits.ShortText
    time_ms: limits.TimeMs
    back: bool = False
    """True if the promotion gave the name back to its previous app."""

    @property
    def withdrawn(self) -> bool:
        return self.folder == self.over


PROMOTION_OUTCOMES = JsonFolder(
    PromotionOutcome, keys.promotion_outcomes, lambda note: note.number, owner_of=lambda note: note.name
)
_NAME_PATTERN = re.compile(rf"({keys.NAME})(?:~([0-9]{{1,6}}))?")


def folder_of(store: ObjectStore, name: str) -> str:
    """Return the folder of the app that has a name now. `NAME~1` is the app that had NAME before the last promotion.

    Costs one request for a name without promotions. Raises `Usage` for an invalid name, and `NotFound` if the name had
    fewer promotions.
    """
    return folders_of(store, name)[0]


def folders_of(store: ObjectStore, name: str) -> tuple[str, ...]:
    """Return the folder of the app that has a name now, followed by the folders of its former owners, newest first.

    `NAME~1` leaves out the newest owner (see `folder_of`).
    """
    match = _NAME_PATTERN.fullmatch(name)
    if match is None:
        raise Usage(f"app name {name!r} is not usable: expected {keys.NAME_IN_WORDS}; or NAME~1 for its former owner")
    called, ago = match[1], int(match[2] or 0)
    folders = owner_folders(store, called)
    if ago >= len(folders):
        raise NotFound(
            "app",
            name,
            found=f"{called!r} has had {len(folders) - 1} earlier owner{'s' * (len(folders) != 2)}",
            hint=f"name the current owner: {called}",
        )
    return folders[ago:]


def owner_folders(store: ObjectStore, name: str) -> tuple[str, ...]:
    """Return the folders of all apps that have had a name, newest first. The last folder is called like the name.

    A folder appears again after a promotion back. Makes one request for a name without promotions. Raises `Usage` or
    `NotFound`.
    """
    return (*(note.folder for note in reversed(promotions(store, name))), name)


def promotions(store: ObjectStore, name: str) -> tuple[PromotionOutcome, ...]:
    """Return the promotions of a name, without withdrawn ones, oldest first. Costs one request if there are none."""
    if PROMOTION_OUTCOMES.find(store, 1, name) is None:
        return ()
    return tuple(note for note in PROMOTION_OUTCOMES.all(store, name) if not note.withdrawn)


def promoted_names(store: ObjectStore) -> dict[str, str]:
    """Return the names of apps that promotions renamed, by folder.

    A promoted app has the name that another app had; the other app is now `NAME~1`. Apps that are named like their
    folder are left out. Costs one listing, and for each promoted name twice the requests of `folder_of`.
    """
    names: dict[str, str] = {}
    for name in store.list_folders(f"{keys.NAMES}/"):
        done, had = promotions(store, name), owner_folders(store, name)
        newest = {folder: note for note in done for folder in (note.over, note.folder)}
        stay = (folder for folder, note in newest.items() if folder == note.folder or not note.back)
        names |= {folder: f"{name}~{ago}" if (ago := had.index(folder)) else name for folder in stay}
        if had[0] == name:
            names.pop(name, None)
    return names


def find_promoted_name(store: ObjectStore, folder: str) -> str:
    """Return the name that an app got by a promotion; empty if it has none."""
    return promoted_name(promoted_names(store), folder)


def promoted_name(names: Mapping[str, str], folder: str) -> str:
    name = names.get(folder, "")
    return "" if "~" in name else name


def current_owner(store: ObjectStore, folder: str, time_ms: int) -> str:
    """Return the folder of the current owner of a name: the name of the app in `folder` at `time_ms`.

    Returns `folder` if the name was never promoted to another app, or if the app had lost the name before `time_ms`.
    Reads all promotion outcomes.
    """
    for name in store.list_folders(f"{keys.NAMES}/"):
        done = promotions(store, name)
        if next((note.folder for note in reversed(done) if note.time_ms <= time_ms), name) == folder:
            return done[-1].folder if done else folder
    return folder


def take_back_command(name: str, folder: str) -> str:
    """Return the command that undoes the last promotion over a name."""
    return f"slackwater promote {'--back' if folder == name else folder} --over {name}"


def check_name_free(store: ObjectStore, name: str) -> None:
    """Raise `Refused` if promotions use a name, so that no new app can have it.

    Reads all promotion outcomes.
    """
    for over in store.list_folders(f"{keys.NAMES}/"):
        done = promotions(store, over)
        if not done or name not in (over, owner := done[-1].folder):
            continue
        note = ", which is gone" if find_app(store, owner) is None else ""
        raise Refused(
            f"since a promotion, the name {over!r} belongs to app {owner!r}{note}: a new app cannot have it",
            hint=f"choose another name; `slackwater status` lists the apps, such as {over}~1",
        )


def replace_name_by_folder(store: ObjectStore, text: str) -> str:
    """Return a ref, or `APP/STAGE`, with the app's name replaced by the app's folder.

    An invalid name is not changed. Raises `NotFound` if a name `NAME~N` had fewer than N promotions.
    """
    called = re.split("[@/]", text, maxsplit=1)[0]
    return folder_of(store, called) + text[len(called) :] if _NAME_PATTERN.fullmatch(called) else text


def is_promotion_decided(store: ObjectStore, promotion: Promotion) -> bool | None:
    """Return True if a promotion took effect, False if it was withdrawn, None while it is open. One request."""
    note = PROMOTION_OUTCOMES.find(store, promotion.number, promotion.name)
    return None if note is None else note.folder == promotion.to


def published_sinks(store: ObjectStore, info: AppInfo | None, promotion: Promotion | None) -> Mapping[str, str] | None:
    """Return the sinks that an app publishes, with their topics; None if it publishes all sinks of its program.

    `promotion` is the app's newest promotion. Without a promotion, a clone publishes the sinks that were chosen when it
    was created (`Origin.sinks`), and any other app publishes all. After a withdrawn promotion, the app publishes the
    sinks from before the promotion. Otherwise it publishes the sinks that the promotion gave it. Makes at most one
    request.
    """
    if promotion is None:
        return info.origin.sinks if info is not None and info.origin is not None else None
    return promotion.before if is_promotion_decided(store, promotion) is False else promotion.sinks


def iter_clone_sources(store: ObjectStore, app: str) -> Iterator[str]:
    """Yield the app, the app that it was cloned from, and so on, within this store root.

    Costs one request for each.
    """
    seen: set[str] = set()
    while app and app not in seen:
        seen.add(app)
        yield app
        info = find_app(store, app)
        origin = info.origin if info is not None else None
        app = origin.app if origin is not None and origin.root == store.url else ""


class CloneJournal(Struct, frozen=True):
    """Journal of an unfinished clone or adoption, with all data for a retry."""

    info: AppInfo
    root: limits.ShortText
    snapshot: limits.NameOrNone
    salt: limits.ShortText = ""
    """Salt of masked values; deleted together with the journal."""
    deep: bool = False
    adopts: limits.NameOrNone = ""
    """Stage into which a Spark query is adopted; empty for a clone."""


@checks.find_violations.register
def _(value: CloneJournal) -> Iterator[checks.Violation]:
    yield from checks.find_violations(value.info)
    yield from checks.root_violations("root", value.root)
    if (value.info.origin is None) != bool(value.adopts):
        yield checks.Violation("info.origin", value.info.origin, "the source of a clone, or none for an adoption")


def create_app(store: ObjectStore, info: AppInfo, *, cloned: bool = False) -> None:
    """Write an app's identity, which makes the app exist. `cloned` is True while the journal of its clone exists.

    Raises:
        Usage: the name cannot be part of an object key.
        Refused: an app of this name exists, or is being removed, or the storage ignores conditional puts.
        Unavailable: storage did not answer; the app may have been created.
    """
    if _create_identity(store, info, cloned=cloned) != info:
        raise Refused(
            f"app {info.name!r} exists already under {store.url}",
            hint="choose another name, or another store root",
        )


def ensure_app(store: ObjectStore, info: AppInfo) -> AppInfo:
    """Return the stored identity of the app `info.name`, after writing `info` if the app is new."""
    return existing if (existing := find_app(store, info.name)) is not None else _create_identity(store, info)


def find_app(store: ObjectStore, name: str) -> AppInfo | None:
    key = keys.app_info(keys.check_name("app", name))
    return codec.find(store, key, AppInfo, key_of=lambda info: keys.app_info(info.name))


def find_clone_journal(store: ObjectStore, name: str) -> CloneJournal | None:
    """Return the journal of an unfinished clone, or None. Costs one request. Raises `Usage`."""
    key = keys.clone_journal(keys.check_name("app", name))
    return codec.find(store, key, CloneJournal, key_of=lambda note: keys.clone_journal(note.info.name))


def find_app_and_journal(store: ObjectStore, name: str) -> tuple[AppInfo | None, CloneJournal | None]:
    """Return an app's identity, or None, and the journal if the app is an unfinished clone. Raises `Usage`."""
    note = find_clone_journal(store, name)
    return (note.info if note is not None else find_app(store, name)), note


def begin_clone(store: ObjectStore, note: CloneJournal) -> None:
    """Write the journal of a clone or an adoption, which reserves the app's name.

    Raises `Refused` if an app or a journal of this name exists, or if the storage ignores conditional puts.
    """
    name, key = note.info.name, keys.clone_journal(note.info.name)
    if codec.add(store, key, note, key_of=lambda existing: keys.clone_journal(existing.info.name)) != note:
        raise Refused(
            f"app {name!r} is being created by another process",
            hint="run it again: if both are the same, it continues what the other began",
        )
    try:
        check_conditional_puts(store, key, note)
        if find_app(store, name) is not None:
            raise Refused(f"app {name!r} exists already under {store.url}", hint="choose another name")
    except Refused:
        store.delete(key)
        raise


def read_app(store: ObjectStore, name: str) -> AppInfo:
    """Return the stored identity of an app.

    Raises `NotFound`, with similar names, `Refused` for an unfinished clone, and `Usage`.
    """
    if (info := find_app(store, name)) is None:
        if exists(store, keys.clone_journal(name)):
            raise clone_in_progress(name)
        raise NotFound("app", name, list_apps(store), hint=f"looked under {store.url}")
    return info


def list_apps(store: ObjectStore) -> tuple[str, ...]:
    """Return the names of the apps under the root, in order. Costs a listing and a request for each folder."""
    # A folder without that object is not an app.
    return _names_with(store, keys.app_info)


def list_possible_apps(store: ObjectStore) -> tuple[str, ...]:
    """Return the names of the folders under the root that may be apps, in order. Costs a listing."""
    return tuple(filter(keys.is_name, store.list_folders("")))


def list_app_folders(store: ObjectStore, app: str) -> frozenset[str]:
    """Return the key prefixes of the folders in an app's folder. Costs a listing."""
    return frozenset(f"{app}/{name}/" for name in store.list_folders(f"{app}/"))


def _names_with(store: ObjectStore, key_of: Callable[[str], str]) -> tuple[str, ...]:
    names = list_possible_apps(store)
    flags = map_concurrently(lambda name: exists(store, key_of(name)), names)
    return tuple(compress(names, flags))


_MAX_PARENTS = 4


def check_root(store: ObjectStore) -> None:
    """Raise `Refused` if the store root lies inside the folder of an app of another store root.

    Removing that app would also remove this store. Costs one request for each parent folder (within the bucket on S3),
    up to four.
    """
    parent, _, folder = store.url.rpartition("/")
    for _ in range(_MAX_PARENTS):
        # Stop at a bucket, whose parent is a scheme such as `s3:/`, and at a store in memory.
        if not folder or parent.endswith(":/") or folder == store.url:
            return
        outer, info = store.at(parent or "/"), None
        with suppress(Corruption, Refused, Usage):  # unreadable or foreign folders are skipped
            info = find_app(outer, folder)
        if info is not None:
            raise Refused(
                f"the store root {store.url} lies inside the app {folder!r} of the root {outer.url}: removing that "
                "app would delete this store",
                hint="choose a root outside that app's folder",
            )
        parent, _, folder = parent.rpartition("/")


def list_unfinished_clones(store: ObjectStore) -> tuple[str, ...]:
    return _names_with(store, keys.clone_journal)


def free_name(store: ObjectStore, name: str) -> str:
    """Return the first name that no app has, of `NAME`, `NAME-2`, `NAME-3` and so on."""
    existing = list_apps(store)
    return next(
        candidate for candidate in chain([name], map(f"{name}-{{}}".format, count(2))) if candidate not in existing
    )


def removal_in_progress(app: str) -> Refused:
    return Refused(
        f"app {app!r} is being removed: the removal is running, or was interrupted",
        hint=f"`slackwater app rm {app}` finishes the removal and frees the name",
    )


def clone_in_progress(app: str) -> Refused:
    return Refused(
        f"app {app!r} is incomplete: its clone or adoption is running, or was interrupted",
        hint="run the same `slackwater clone` or `slackwater adopt` again to finish it; "
        f"`slackwater app rm {app}` discards it",
    )


def check_complete(app: str, folders: Container[str]) -> None:
    if keys.REMOVING in folders:
        raise removal_in_progress(app)
    if keys.CLONING in folders:
        raise clone_in_progress(app)


def _create_identity(store: ObjectStore, info: AppInfo, *, cloned: bool = False) -> AppInfo:
    key = keys.app_info(keys.check_name("app", info.name))
    if not cloned:  # otherwise this was checked before the journal was written
        check_root(store)
        check_name_free(store, info.name)

    def check() -> None:
        check_complete(info.name, tuple(store.list_folders(keys.stages(info.name))))

    if not cloned:
        check()
    elif (noted := find_clone_journal(store, info.name)) is None or noted.info != info:
        if find_app(store, info.name) == info:
            return info  # a concurrent call has just completed it
        raise Refused(
            f"clone {info.name!r} was removed by another process while it was being created", hint="repeat the command"
        )
    stored = codec.add(store, key, info, key_of=lambda stored: keys.app_info(stored.name))
    if stored != info or cloned:
        return stored
    try:
        check()  # a clone that begins meanwhile checks for an identity after it has written its journal
        check_conditional_puts(store, key, info)
    except Refused:
        # Otherwise the next call would find the identity, and assume that the storage was tested.
        store.delete(key)
        raise
    return info


def check_conditional_puts(store: ObjectStore, key: str, info: Struct) -> None:
    """Raise `Refused` if the storage overwrites an object in spite of put-if-absent. Costs one request.

    The object must have been put just before.
    """
    # All guarantees depend on conditional puts, but some S3 servers accept the header and overwrite the object
    # nevertheless. Writing the same bytes again is harmless, and reveals such a server before the first commit.
    try:
        store.put_if_absent(key, codec.encode(info))
    except ObjectExists:
        return
    raise Refused(
        f"the storage of {store.url} ignores 'If-None-Match: *' and overwrote an object: commits would be lost",
        hint="use an S3 server with conditional writes, or a local folder",
    )
