"""Removes an app with all its objects, in an order that may be interrupted anywhere: the same call finishes it.

1. Check that no clone needs the app (`take.remove`) and no runner holds it. Every stage gets a version that retires it:
   a runner that was not detected stops at its next commit.
2. Wait until these versions are as old as the time for which a writer may commit without looking
   (`store.versions.horizon`): a writer that wakes up later looks, finds that its history is gone, and stops.
3. Write the note that the app is being removed. From now on, listing its stages or creating an app of its name is
   refused. Check once more: a cut that was pinned before is seen now, and whoever pins one later sees the note. A
   promotion that is prepared and not decided is rolled back.
4. Delete its identity, then everything else, the newest versions last, and the note after them. A record of who removed
   the app, and when, remains: the app's own log is deleted.
5. If the app is a clone, remove the snapshot that pinned the shared files in its source.
"""

import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass

from msgspec import Struct
from ulid import ULID

from ...errors import NotFound, Refused
from ...snapshot.change.first_versions import topics_of_unfinished
from ...snapshot.change.stages import commit_retired
from ...snapshot.change.switch import give_up
from ...snapshot.cut.graph import order
from ...snapshot.cut.moments import heads_of
from ...snapshot.cut.stored import find_snapshot
from ...snapshot.gc import census
from ...snapshot.gc.inventory import storage_clock_ms
from ...snapshot.take.audit_log import Operation, why
from ...snapshot.take.snapshots import remove as remove_snapshot
from ...snapshot.under_way.exclusion import Intent, UnderWay, check_exclusion
from ...store.objects.many import do_all
from ...store.objects.protocol import ObjectInfo, ObjectStore, exists
from ...store.versions import apps, history, horizon, keys, limits, notes
from ...store.versions.manifest import Manifest

_BATCH = 1_000
"""Objects that are deleted between two checks of the note."""


class Removal(Struct, frozen=True):
    """The note that an app is being removed; afterwards, the record that it was."""

    id: limits.Ulid
    app: limits.Name
    time_ms: limits.TimeMs
    by: limits.Line
    stages: dict[limits.Name, limits.Version]
    """Its stages, and the newest version of each before the removal."""
    topics: tuple[limits.Topic, ...]
    """Its repartition topics, and the internal ones of its sinks."""
    message: limits.Line = ""
    """The reason."""
    source: limits.NameOrNone = ""
    """For a clone with shared files: the app that it was cloned from, which has a snapshot for it; else empty."""
    source_root: limits.Line = ""
    snapshot: limits.NameOrNone = ""

    @property
    def operation(self) -> Operation:
        """The removal as an entry of the log of operations."""
        detail, versions = f"{len(self.topics)} topics of its own", self.stages
        return Operation(self.id, self.app, "app rm", detail, self.by, self.time_ms, self.message, versions)


@dataclass(frozen=True, slots=True)
class Contents:
    """Number and size of an app's objects."""

    versions: int
    ssts: int
    snapshots: int
    objects: int
    """All objects, including those counted above."""
    bytes: int


@dataclass(frozen=True, slots=True)
class Removed:
    """The result of a removal or of its dry run."""

    removal: Removal
    contents: Contents
    already: bool
    """True if the app was removed earlier; `removal` is the record of that."""


def remove_app(
    store: ObjectStore,
    app: str,
    *,
    by: str,
    now_ms: int,
    fence: bool = False,
    force: bool = False,
    dry_run: bool = False,
    outside: Callable[[Removal], None] = lambda _removal: None,
    on_wait: Callable[[str], None] = lambda _line: None,
    pause: Callable[[float], None] = time.sleep,
) -> Removed:
    """Delete an app with its history, tables and snapshots; with `dry_run`, only check everything.

    An app that serves under another app's name since a promotion is never removed.

    With `fence`, also if a runner holds it; the runner stops. With `force`, also if clones still use its files; the
    clones are damaged then. `outside` removes its topics in Kafka; if it raises, the next call calls it again.
    `on_wait` receives a line about what is waited for, and `pause` sleeps for a number of seconds.

    Raises `NotFound` if the app does not exist and no removal is recorded, `Refused` if a clone needs it or may need
    it, a runner holds it, or it serves under another app's name (nothing was deleted then), and `Unavailable`: the same
    call continues.
    """
    keys.check_name("app", app)
    check_nameless(store, app)
    begun = notes.find(store, keys.removing(app), Removal)
    if begun is None and apps.find_app(store, app) is None and not tuple(store.list_folders(keys.stages(app))):
        earlier = removal_of(store, app)
        if earlier is None:
            apps.read_app(store, app)  # raises `NotFound`
            raise AssertionError("an app that came into being meanwhile")
        if not dry_run:
            outside(earlier)
            _release(store, earlier)
        return Removed(earlier, Contents(0, 0, 0, 0, 0), True)
    whole = exists(store, keys.app_info(app))
    cloning = apps.find_cloning(store, app) if begun is None else None
    heads = {} if begun else heads_of(store, app, _stages(store, app, cloning))
    if whole or begun is None:
        if not force:
            check_exclusion(store, app, Intent.REMOVE, UnderWay.CLONING, UnderWay.CLONES)
        if not fence and cloning is None:
            check_exclusion(store, app, Intent.REMOVE, UnderWay.RUNNER)
    removal = begun or _make_note(store, app, heads, cloning, by)
    if dry_run:
        return Removed(removal, _contents(store, app), False)
    if begun is None:
        # Receivers first, as when stages are retired one by one.
        for stage in reversed(order(heads)):
            if not heads[stage].retired:
                heads[stage] = commit_retired(store, heads[stage], by=by, now_ms=now_ms)
        written = (
            info.modified_ms
            for head in heads.values()
            for info in store.list(keys.manifests(app, head.stage), keys.manifest(app, head.stage, head.version - 1))
        )
        # Until then a writer may commit without looking.
        settled_ms = max(written, default=0) + horizon.SETTLED_MS
        while heads and (left_s := (settled_ms - storage_clock_ms(store, app)) / 1_000) > 0:
            on_wait(f"every stage of {app} is retired; waiting {left_s:.0f} s until no runner of it can write any more")
            pause(left_s)
        removal = notes.add(store, keys.removing(app), removal)  # or that of a concurrent removal
    if whole or begun is None:
        try:
            newest = heads_of(store, app, removal.stages)
            for stage, head in newest.items():
                if not head.retired:
                    raise Refused(
                        f"stage {app}/{stage} was taken over meanwhile by {head.by}",
                        hint="stop its runner, then run the command again",
                    )
            if not force:
                check_exclusion(store, app, Intent.REMOVE, UnderWay.CLONING, UnderWay.CLONES)
            give_up(store, app, newest.values(), by=by, now_ms=now_ms)
            check_nameless(store, app)
        except Refused:
            store.delete(keys.removing(app))
            raise
    contents = _contents(store, app)
    store.delete(keys.app_info(app))
    outside(removal)
    for infos in _in_deletion_order(store, app, removal):
        for begin in range(0, len(infos), _BATCH):
            # Another process may have finished the removal, and a new app may have the name now.
            if notes.find(store, keys.removing(app), Removal) != removal:
                break
            do_all(lambda info: store.delete(info.key), infos[begin : begin + _BATCH])
    notes.put(store, keys.removed(app), removal)
    store.delete(keys.removing(app))
    history.forget(store, app)
    _release(store, removal)
    return Removed(removal, contents, False)


def discard(store: ObjectStore, app: str, outside: Callable[[Removal], None] = lambda _removal: None) -> None:
    """Delete all objects of a temporary app that no runner holds.

    `outside` removes its topics in Kafka. An interrupted call is finished by the same call; meanwhile the app is
    invisible.
    """
    objects = list(store.list(f"{app}/"))
    if not objects:
        return
    removal = notes.find(store, keys.removing(app), Removal)
    if removal is None:
        cloning = apps.find_cloning(store, app)
        heads = heads_of(store, app, _stages(store, app, cloning))
        removal = notes.add(store, keys.removing(app), _make_note(store, app, heads, cloning, "slackwater"))
    store.delete(keys.app_info(app))
    outside(removal)
    do_all(lambda info: store.delete(info.key), [info for info in objects if info.key != keys.removing(app)])
    store.delete(keys.removing(app))
    history.forget(store, app)


def _make_note(
    store: ObjectStore, app: str, heads: Mapping[str, Manifest], cloning: apps.Cloning | None, by: str
) -> Removal:
    """Return the note that an app with these stages is being removed."""
    topics = {output.topic for head in heads.values() for output in head.outputs.values()}
    topics |= {sink.topic for head in heads.values() for sink in head.sinks.values()}
    topics |= {*topics_of_unfinished(store, cloning)} if cloning is not None else set()
    ulid, source = ULID(), _source(store, app, cloning)
    stages = {stage: heads[stage].version for stage in sorted(heads)}
    return Removal(str(ulid), app, ulid.milliseconds, by, stages, tuple(sorted(topics)), why(), *source)


def check_nameless(store: ObjectStore, app: str) -> None:
    """Raise `Refused` if the app in this folder serves under another app's name."""
    if name := apps.name_of(store, app):
        raise Refused(
            f"cannot remove or recreate {app}: it serves as {name} since its promotion",
            hint=f"give the name back first (slackwater promote --back --over {name}), or promote another app over "
            f"{name}; the app that had the name before is {name}~1",
        )


def removal_of(store: ObjectStore, app: str) -> Removal | None:
    """Return the newest record of a removal of an app of this name; None if there is none. One request."""
    return notes.find(store, keys.removed(app), Removal)


def _stages(store: ObjectStore, app: str, cloning: apps.Cloning | None) -> tuple[str, ...]:
    """Return the stages of an app, or those of an unfinished clone."""
    if cloning is None:
        return history.list_stages(store, app)
    return tuple(name for name in store.list_folders(keys.stages(app)) if name != keys.CLONING)


def _source(store: ObjectStore, app: str, cloning: apps.Cloning | None) -> tuple[str, str, str]:
    """Return the source of a clone, its root, and its snapshot for the clone; empty if nothing is shared."""
    info = cloning.info if cloning is not None else apps.find_app(store, app)
    if info is None or info.origin is None:
        return "", "", ""
    root, snapshot = (cloning.root, cloning.snapshot) if cloning else (info.origin.root, info.origin.snapshot)
    return (info.origin.app, root, snapshot) if snapshot else ("", "", "")


def _release(store: ObjectStore, removal: Removal) -> None:
    """Remove the snapshot that pinned the shared files of a clone, unless it is another clone's."""
    if not removal.snapshot:
        return
    source = store.at(removal.source_root)
    # Without permission, or if it is gone already, leave it to its owner.
    with suppress(NotFound, Refused):
        pin = find_snapshot(source, removal.source, removal.snapshot)
        if pin is not None and (pin.kind, pin.clone) == ("clone", removal.app):
            remove_snapshot(source, removal.source, removal.snapshot)


def _contents(store: ObjectStore, app: str) -> Contents:
    counts, size = Counter[census.ObjectKind | None](), 0
    for info in store.list(f"{app}/"):
        counts[census.kind_of(info.key)] += 1
        size += info.size_bytes
    return Contents(counts[census.MANIFEST], counts[census.SST], counts[census.SNAPSHOT], counts.total(), size)


def _in_deletion_order(store: ObjectStore, app: str, removal: Removal) -> tuple[list[ObjectInfo], ...]:
    """Return the remaining objects of the app in groups, in the order of their deletion; each group is unordered.

    Snapshots come before the objects that they pin, and last the version of each stage that stops its runner.
    """
    # The protection belongs to the app that has the name now.
    protected = (keys.protected(app),) if apps.folder_of(store, app) != app else ()
    remaining = [info for info in store.list(f"{app}/") if info.key not in protected]
    last = {
        max(manifests)
        for stage in removal.stages
        if (manifests := [info.key for info in remaining if info.key.startswith(keys.manifests(app, stage))])
    }
    groups: dict[str, list[ObjectInfo]] = {"first": [], "then": [], "last": []}
    for info in remaining:
        kind = census.kind_of(info.key)
        turn = "last" if info.key in last else "then" if kind is None or kind.remove == "last" else kind.remove
        if turn in groups:  # the record of the removal stays
            groups[turn].append(info)
    return tuple(groups.values())
