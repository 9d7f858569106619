"""Removal of an app with all its objects; protection of app names against destructive commands.

A removal can be interrupted at any point; repeating the command finishes it. The steps are, in this order:

1. Check that no clone needs the app (`take.remove`) and no runner holds it. Commit a version of each stage that
   retires it: a runner that was not detected stops at its next commit.
2. Wait until no writer can commit without first checking for newer versions (`store.versions.horizon`). A writer that
   resumes later finds that its history is deleted, and stops.
3. Put the journal, an object that marks the app as being removed. From now on, listing its stages or creating an app
   of its name is refused. Check again for clones: this check sees every cut that was pinned before, and a process
   that pins a cut later sees the journal. Roll back a promotion that is prepared and not decided.
4. Delete the app's identity, then everything else, the newest versions last, and the journal after them. A record of
   who removed the app, and when, remains, because the app's own log is deleted.
5. If the app is a clone, remove the snapshot that pinned the shared files in its source.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass

from msgspec import Struct

from ...common import runtime
from ...errors import NotFound, Protected, Refused
from ...snapshot.change.first_versions import topics_of_unfinished
from ...snapshot.change.stages import commit_retired
from ...snapshot.change.switch import withdraw_own_promotion
from ...snapshot.cut.graph import topological_order
from ...snapshot.cut.moments import heads_of
from ...snapshot.cut.stored import find_snapshot
from ...snapshot.gc import census
from ...snapshot.gc.inventory import storage_clock_ms
from ...snapshot.take.audit_log import Operation, operation_message, record_operation_once
from ...snapshot.take.snapshots import delete_snapshot as remove_snapshot
from ...snapshot.under_way.exclusion import AppCondition, Intent, check_exclusion
from ...store.objects.many import for_each_concurrently
from ...store.objects.protocol import ObjectInfo, ObjectStore, exists
from ...store.versions import apps, codec, history, horizon, keys, limits
from ...store.versions.manifest import Manifest


class Protection(Struct, frozen=True):
    """Stored object that protects the name of an app: destructive commands then ask for confirmation."""

    app: limits.Name
    by: limits.ShortText
    time_ms: limits.TimeMs
    message: limits.ShortText = ""


def protection_of(store: ObjectStore, app: str) -> Protection | None:
    """Return the protection of the app in the folder `app`; None if the app is not protected.

    Makes one request. If the folder's name is not protected, also makes the requests of `apps.find_promoted_name`.
    """
    protection = _find_protection(store, app)
    if protection is None and (name := apps.find_promoted_name(store, app)):
        protection = _find_protection(store, name)
    return protection


def _find_protection(store: ObjectStore, name: str) -> Protection | None:
    return codec.find(store, keys.protected(name), Protection, key_of=lambda note: keys.protected(note.app))


def protect(store: ObjectStore, app: str, *, by: str, now_ms: int) -> Protection:
    """Protect the name of the app in the folder `app`. Returns the new or existing protection.

    Raises `NotFound` if the app does not exist, and `Refused` if another app has that name.
    """
    name = _served_name(store, app)
    protection = codec.add(store, keys.protected(name), Protection(name, by, now_ms, operation_message()))
    record_operation_once(
        store, app, "protect", "", protection.by, since_ms=protection.time_ms, message=protection.message
    )
    return protection


def lift_protection(store: ObjectStore, app: str, *, by: str, typed: str, called: str = "") -> bool:
    """Remove the protection of an app. Returns False if there was none.

    Raises the errors of `check_protected` and `protect`.
    """
    name = _served_name(store, app)
    if (protection := protection_of(store, app)) is None:
        return False
    check_protected(store, app, "to turn its protection off", typed, called)
    record_operation_once(store, app, "protect --off", "", by, since_ms=protection.time_ms)
    for protected in (app, name):  # it may have been protected as a clone, before it had the name
        store.delete(keys.protected(protected))
    return True


def check_protected(store: ObjectStore, app: str, action: str, typed: str, called: str = "") -> None:
    """Raise `Protected` if an app is protected and the user did not type its name to confirm.

    `app` is the app's folder, `called` the name by which the user called the app, and `typed` the confirmation. The
    folder's name or the protected name also confirms, unless `called` is a former name such as `NAME~1`. `action`
    begins the hint, for example "to remove it".
    """
    called = called or app
    if typed == called or (protection := protection_of(store, app)) is None:
        return
    if typed in (app, protection.app) and "~" not in called:  # a former name: both may be names of another app now
        return
    why = f": {protection.message}" if protection.message else ""
    wrong = f"; {typed!r} is not its name" if typed else ""
    raise Protected(
        f"app {called!r} is protected, by {protection.by}{why}{wrong}",
        hint=f"{action}, give its name once more: --yes-really {called}",
    )


def _served_name(store: ObjectStore, app: str) -> str:
    apps.read_app(store, app)
    if (has := apps.folder_of(store, app)) != app:
        raise Refused(
            f"since a promotion, the app in folder {has} has the name {app}; protecting a name covers both apps",
            hint=f"protect {app}: destructive commands on either app then ask for that name",
        )
    return apps.find_promoted_name(store, app) or app


_BATCH = 1_000
"""Number of objects that are deleted between two checks of the removal's journal."""


class Removal(Struct, frozen=True):
    """Journal of the removal of an app. Afterwards it remains as the record of the removal."""

    id: limits.Ulid
    app: limits.Name
    time_ms: limits.TimeMs
    by: limits.ShortText
    stages: dict[limits.Name, limits.Version]
    """Newest version of each stage before the removal."""
    topics: tuple[limits.Topic, ...]
    """Repartition topics of the app, and the internal topics of its sinks."""
    message: limits.ShortText = ""
    source: limits.NameOrNone = ""
    """Source of a clone, if a snapshot there pins shared files; else empty."""
    source_root: limits.ShortText = ""
    snapshot: limits.NameOrNone = ""

    @property
    def operation(self) -> Operation:
        detail, versions = f"{len(self.topics)} topics of its own", self.stages
        return Operation(self.id, self.app, "app rm", detail, self.by, self.time_ms, self.message, versions)


@dataclass(frozen=True, slots=True)
class Contents:
    """Numbers of an app's objects by kind, and their size."""

    versions: int
    ssts: int
    snapshots: int
    objects: int
    """Number of all objects of the app. The other fields count objects of one kind."""
    bytes: int


@dataclass(frozen=True, slots=True)
class Removed:
    """Result of a removal or of its dry run."""

    removal: Removal
    contents: Contents
    already: bool
    """True if an earlier call removed the app, as recorded in `removal`."""


def remove_app(
    store: ObjectStore,
    app: str,
    *,
    by: str,
    now_ms: int,
    fence: bool = False,
    force: bool = False,
    dry_run: bool = False,
    remove_topics: Callable[[Removal], None] = lambda _removal: None,
    on_wait: Callable[[str], None] = lambda _line: None,
    pause: Callable[[float], None] = runtime.sleep,
) -> Removed:
    """Delete an app with its history, tables and snapshots. With `dry_run`, only check everything.

    `fence` allows the removal of an app that a runner holds; the runner stops. `force` allows the removal of an app
    whose files clones still use; the clones are damaged then. An app that serves under another app's name since a
    promotion is never removed. `remove_topics` is a function that removes the app's topics in Kafka; if it raises an
    error, the next call of `remove_app` calls it again. `on_wait` receives the reason of each wait as a line. `pause`
    is a function that sleeps for a number of seconds.

    Raises `NotFound` if the app does not exist and no removal is recorded. Raises `Refused`, with nothing deleted, if a
    clone needs the app or may need it, a runner holds it, or it serves under another app's name. After `Unavailable`, a
    repeated call continues.
    """
    keys.check_name("app", app)
    check_serves_no_name(store, app)
    begun = _find_journal(store, app)
    if begun is None and apps.find_app(store, app) is None and not tuple(store.list_folders(keys.stages(app))):
        return _removed_earlier(store, app, remove_topics, dry_run=dry_run)
    whole = exists(store, keys.app_info(app))
    cloning = apps.find_clone_journal(store, app) if begun is None else None
    heads = {} if begun else heads_of(store, app, _list_stages(store, app, cloning))
    if whole or begun is None:
        if not force:
            check_exclusion(store, app, Intent.REMOVE, AppCondition.CLONING, AppCondition.CLONES)
        if not fence and cloning is None:
            check_exclusion(store, app, Intent.REMOVE, AppCondition.RUNNER)
    removal = begun or _make_journal(store, app, heads, cloning, by)
    if dry_run:
        return Removed(removal, _contents(store, app), False)
    if begun is None:
        _retire(store, heads, by, now_ms)
        _await_writers(store, app, heads, on_wait, pause)
        removal = codec.add(store, keys.removal_journal(app), removal)  # or that of a concurrent removal
    if whole or begun is None:
        try:
            newest = _retired_heads(store, app, removal.stages)
            if not force:
                check_exclusion(store, app, Intent.REMOVE, AppCondition.CLONING, AppCondition.CLONES)
            withdraw_own_promotion(store, app, newest.values(), by=by, now_ms=now_ms)
            check_serves_no_name(store, app)
        except Refused:
            store.delete(keys.removal_journal(app))
            raise
    contents = _contents(store, app)
    store.delete(keys.app_info(app))
    remove_topics(removal)
    _delete_objects(store, app, removal)
    codec.put(store, keys.removed(app), removal)
    store.delete(keys.removal_journal(app))
    history.drop_cached(store, app)
    _remove_clone_pin(store, removal)
    return Removed(removal, contents, False)


def _removed_earlier(
    store: ObjectStore, app: str, remove_topics: Callable[[Removal], None], *, dry_run: bool
) -> Removed:
    earlier = removal_of(store, app)
    if earlier is None:
        apps.read_app(store, app)  # raises `NotFound`
        raise AssertionError("an app that came into being meanwhile")
    if not dry_run:
        remove_topics(earlier)
        _remove_clone_pin(store, earlier)
    return Removed(earlier, Contents(0, 0, 0, 0, 0), True)


def _retire(store: ObjectStore, heads: dict[str, Manifest], by: str, now_ms: int) -> None:
    # Receivers first, the order in which stages are retired one by one.
    for stage in reversed(topological_order(heads)):
        if not heads[stage].retired:
            heads[stage] = commit_retired(store, heads[stage], by=by, now_ms=now_ms)


def _await_writers(
    store: ObjectStore,
    app: str,
    heads: Mapping[str, Manifest],
    on_wait: Callable[[str], None],
    pause: Callable[[float], None],
) -> None:
    written = (
        info.modified_ms
        for head in heads.values()
        for info in store.list(keys.manifests(app, head.stage), keys.manifest(app, head.stage, head.version - 1))
    )
    settled_ms = max(written, default=0) + horizon.SETTLED_MS
    while heads and (left_s := (settled_ms - storage_clock_ms(store, app)) / 1_000) > 0:
        on_wait(f"every stage of {app} is retired; waiting {left_s:.0f} s until no runner of it can write any more")
        pause(left_s)


def _retired_heads(store: ObjectStore, app: str, stages: Iterable[str]) -> dict[str, Manifest]:
    heads = heads_of(store, app, stages)
    for stage, head in heads.items():
        if not head.retired:
            raise Refused(
                f"{head.by} took over stage {app}/{stage} during the removal",
                hint="stop its runner, then run the command again",
            )
    return heads


def _delete_objects(store: ObjectStore, app: str, removal: Removal) -> None:
    for infos in _in_deletion_order(store, app, removal):
        for begin in range(0, len(infos), _BATCH):
            # Another process may have finished the removal, and a new app may have the name now.
            if _find_journal(store, app) != removal:
                break
            for_each_concurrently(lambda info: store.delete(info.key), infos[begin : begin + _BATCH])


def delete_temporary_app(
    store: ObjectStore, app: str, remove_topics: Callable[[Removal], None] = lambda _removal: None
) -> None:
    """Delete all objects of a temporary app that no runner holds.

    `remove_topics` removes its topics in Kafka. A repeated call finishes an interrupted call; until then, the app is
    invisible.
    """
    objects = list(store.list(f"{app}/"))
    if not objects:
        return
    removal = _find_journal(store, app)
    if removal is None:
        cloning = apps.find_clone_journal(store, app)
        heads = heads_of(store, app, _list_stages(store, app, cloning))
        removal = codec.add(store, keys.removal_journal(app), _make_journal(store, app, heads, cloning, "slackwater"))
    store.delete(keys.app_info(app))
    remove_topics(removal)
    # Without the places, a repeated call would not find the SSTs in them.
    places = [info for info in objects if info.key.startswith(keys.hot_places(app))]
    rest = [info for info in objects if info.key != keys.removal_journal(app) and info not in places]
    for infos in (rest, places):
        for_each_concurrently(lambda info: store.delete(info.key), infos)
    store.delete(keys.removal_journal(app))
    history.drop_cached(store, app)


def _make_journal(
    store: ObjectStore, app: str, heads: Mapping[str, Manifest], cloning: apps.CloneJournal | None, by: str
) -> Removal:
    topics = {output.topic for head in heads.values() for output in head.outputs.values()}
    topics |= {sink.topic for head in heads.values() for sink in head.sinks.values()}
    topics |= {*topics_of_unfinished(store, cloning)} if cloning is not None else set()
    ulid, source = runtime.ulid(), _clone_source(store, app, cloning)
    stages = {stage: heads[stage].version for stage in sorted(heads)}
    return Removal(str(ulid), app, ulid.milliseconds, by, stages, tuple(sorted(topics)), operation_message(), *source)


def check_serves_no_name(store: ObjectStore, app: str) -> None:
    """Raise `Refused` if the app in the folder `app` took over the name of a second app by a promotion."""
    if name := apps.find_promoted_name(store, app):
        raise Refused(
            f"cannot remove or recreate {app}: it serves as {name} since its promotion",
            hint=f"give the name back first (slackwater promote --back --over {name}), or promote another app over "
            f"{name}; the app that had the name before is {name}~1",
        )


def removal_of(store: ObjectStore, app: str) -> Removal | None:
    """Return the newest record of the removal of an app with this name; None if there is none. Makes one request."""
    return codec.find(store, keys.removed(app), Removal, key_of=lambda removal: keys.removed(removal.app))


def _find_journal(store: ObjectStore, app: str) -> Removal | None:
    key = keys.removal_journal
    return codec.find(store, key(app), Removal, key_of=lambda removal: key(removal.app))


def _list_stages(store: ObjectStore, app: str, cloning: apps.CloneJournal | None) -> tuple[str, ...]:
    if cloning is None:
        return history.list_stages(store, app)
    return tuple(name for name in store.list_folders(keys.stages(app)) if name != keys.CLONING)


def _clone_source(store: ObjectStore, app: str, cloning: apps.CloneJournal | None) -> tuple[str, str, str]:
    info = cloning.info if cloning is not None else apps.find_app(store, app)
    if info is None or info.origin is None:
        return "", "", ""
    root, snapshot = (cloning.root, cloning.snapshot) if cloning else (info.origin.root, info.origin.snapshot)
    return (info.origin.app, root, snapshot) if snapshot else ("", "", "")


def _remove_clone_pin(store: ObjectStore, removal: Removal) -> None:
    if not removal.snapshot:
        return
    source = store.at(removal.source_root)
    # Without permission, or if the pin is gone already, it is left to the owner of the source.
    with suppress(NotFound, Refused):
        pin = find_snapshot(source, removal.source, removal.snapshot)
        if pin is not None and (pin.kind, pin.clone) == ("clone", removal.app):
            remove_snapshot(source, removal.source, removal.snapshot)


def _contents(store: ObjectStore, app: str) -> Contents:
    counts, size = Counter[census.ObjectKind | None](), 0
    for info in store.list(f"{app}/"):
        counts[census.object_kind_of(info.key)] += 1
        size += info.size_bytes
    return Contents(counts[census.MANIFEST], counts[census.SST], counts[census.SNAPSHOT], counts.total(), size)


def _in_deletion_order(store: ObjectStore, app: str, removal: Removal) -> tuple[list[ObjectInfo], ...]:
    # The protection now belongs to the app that has the name.
    protected = (keys.protected(app),) if apps.folder_of(store, app) != app else ()
    remaining = [info for info in store.list(f"{app}/") if info.key not in protected]
    last = {
        max(manifests)
        for stage in removal.stages
        if (manifests := [info.key for info in remaining if info.key.startswith(keys.manifests(app, stage))])
    }
    groups: dict[str, list[ObjectInfo]] = {"first": [], "then": [], "last": []}
    for info in remaining:
        kind = census.object_kind_of(info.key)
        turn = "last" if info.key in last else "then" if kind in (None, census.MANIFEST) else kind.remove
        if turn in groups:  # the record of the removal stays
            groups[turn].append(info)
    return tuple(groups.values())
