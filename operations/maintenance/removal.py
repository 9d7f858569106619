"""Removing an app wholly, in an order that may be broken off anywhere: the same call again finishes it.

1. See that no clone needs it (`take.remove`) and no runner holds it. Every stage gets a version that retires it: a
   runner that nobody sees stops at its next commit.
2. Wait until these versions have been there for as long as a writer may commit without looking
   (`store.versions.horizon`): one that wakes up after that looks, finds that its history is gone, and stops.
3. Write the note that the app is being removed. From here on whoever lists its stages, or makes one of its name, is
   refused. Check once more: whoever pinned a cut before is seen now, and whoever pins one after it sees the note. So it
   is with a promotion: one that is prepared and not decided is withdrawn.
4. Delete its identity, then everything else, the newest versions last, and the note after them. What is left says who
   removed it and when: the app's own log is gone with it.
5. Of a clone, take away the snapshot that kept what it shared, in the app that it was made from.
"""

import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass

from msgspec import Struct
from ulid import ULID

from ...errors import NotFound, Refused
from ...snapshot.change.first_versions import topics_of
from ...snapshot.change.stages import commit_retired
from ...snapshot.change.switch import give_up
from ...snapshot.cut.graph import order
from ...snapshot.cut.moments import heads_of
from ...snapshot.cut.stored import find_snapshot
from ...snapshot.gc import census
from ...snapshot.gc.inventory import storage_clock_ms
from ...snapshot.take.audit_log import Operation, why
from ...snapshot.take.remove import remove as remove_snapshot
from ...snapshot.under_way.exclusion import Intent, check_exclusion
from ...snapshot.under_way.signs import UnderWay
from ...store.objects.many import do_all
from ...store.objects.protocol import ObjectInfo, ObjectStore, exists
from ...store.versions import apps, codec, history, horizon, keys, limits
from ...store.versions.manifest import Manifest

_BATCH = 1_000
"""Objects that are deleted between two checks of the note."""


class Removal(Struct, frozen=True):
    """The note that an app is being removed, and after that, that it was."""

    id: limits.Ulid
    app: limits.Name
    time_ms: limits.TimeMs
    by: limits.Line
    stages: dict[limits.Name, limits.Version]
    """Its stages, and the newest version of each before."""
    topics: tuple[limits.Topic, ...]
    """Its repartition topics, and the internal ones of its sinks."""
    message: limits.Line = ""
    """Why."""
    source: limits.NameOrNone = ""
    """Of a clone that shares something, the app that it was made from, which has a snapshot for it."""
    source_root: limits.Line = ""
    snapshot: limits.NameOrNone = ""

    @property
    def operation(self) -> Operation:
        """What the app's own log would say of it."""
        detail, before = f"{len(self.topics)} topics of its own", self.stages
        return Operation(self.id, self.app, "app rm", detail, self.by, self.time_ms, self.message, before)


@dataclass(frozen=True, slots=True)
class Contents:
    """What an app consists of."""

    versions: int
    ssts: int
    snapshots: int
    objects: int
    """All of them, those above included."""
    bytes: int


@dataclass(frozen=True, slots=True)
class Removed:
    """What was removed, or would be."""

    removal: Removal
    contents: Contents
    already: bool
    """Whether it was gone before: `removal` tells of that time."""


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
    """Delete an app with its history, its tables and its snapshots; with `dry_run`, only check everything.

    An app that has the name of another one by a promotion stays, whatever is said.

    With `fence`, also when a runner holds it, which stops; with `force`, also when clones live from it, which are
    damaged then. `outside` removes what it has in Kafka; it may raise, and is called again by the next call then.
    `on_wait` gets a line about what is waited for, and `pause` waits so many seconds.

    Raises `NotFound` where there is no such app, and never was as far as one can tell, `Refused` where a clone needs
    it, or may, a runner holds it, or a name means it since a promotion (nothing was deleted then), and `Unavailable`:
    the same call again goes on.
    """
    keys.check_name("app", app)
    check_nameless(store, app)
    begun = codec.find(store, keys.removing(app), Removal)
    if begun is None and apps.find_app(store, app) is None and not tuple(store.list_folders(keys.stages(app))):
        before = removal_of(store, app)
        if before is None:
            apps.read_app(store, app)  # says that there is none
            raise AssertionError("an app that came into being meanwhile")
        if not dry_run:
            outside(before)
            _release(store, before)
        return Removed(before, Contents(0, 0, 0, 0, 0), True)
    whole = exists(store, keys.app_info(app))
    cloning = apps.find_cloning(store, app) if begun is None else None
    heads = {} if begun else heads_of(store, app, _stages(store, app, cloning))
    if whole or begun is None:
        if not force:
            check_exclusion(store, app, Intent.REMOVE, UnderWay.CLONING, UnderWay.CLONES)
        if not fence and cloning is None:
            check_exclusion(store, app, Intent.REMOVE, UnderWay.RUNNER)
    removal = begun or _noted(store, app, heads, cloning, by)
    if dry_run:
        return Removed(removal, _contents(store, app), False)
    if begun is None:
        # Receivers first, as if retired one by one.
        for stage in reversed(order(heads)):
            if not heads[stage].retired:
                heads[stage] = commit_retired(store, heads[stage], by=by, now_ms=now_ms)
        written = (
            info.modified_ms
            for head in heads.values()
            for info in store.list(keys.manifests(app, head.stage), keys.manifest(app, head.stage, head.version - 1))
        )
        # Until then a writer may be so sure of its place that it does not look.
        settled_ms = max(written, default=0) + horizon.SETTLED_MS
        while heads and (left_s := (settled_ms - storage_clock_ms(store, app)) / 1_000) > 0:
            on_wait(f"every stage of {app} is retired; in {left_s:.0f} s no runner of it can write any more")
            pause(left_s)
        removal = codec.add(store, keys.removing(app), removal)  # or the one that somebody else wrote meanwhile
    if whole or begun is None:
        try:
            newest = heads_of(store, app, removal.stages)
            for stage, head in newest.items():
                if not head.retired:
                    raise Refused(
                        f"stage {app}/{stage} was taken over meanwhile, by {head.by}",
                        hint="stop its runner and say it again",
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
    for infos in _in_order(store, app, removal):
        for begin in range(0, len(infos), _BATCH):
            # Somebody else may have ended this, and the name may be a new app's by now.
            if codec.find(store, keys.removing(app), Removal) != removal:
                break
            do_all(lambda info: store.delete(info.key), infos[begin : begin + _BATCH])
    codec.put(store, keys.removed(app), removal)
    store.delete(keys.removing(app))
    history.forget(store, app)
    _release(store, removal)
    return Removed(removal, contents, False)


def discard(store: ObjectStore, app: str, outside: Callable[[Removal], None] = lambda _removal: None) -> None:
    """Remove an app that is only another one's means, and that nobody runs: all that is stored of it, at once.

    `outside` removes what it has in Kafka. Killed amidst, the same call goes on, and meanwhile it is there for nobody.
    """
    found = list(store.list(f"{app}/"))
    if not found:
        return
    removal = codec.find(store, keys.removing(app), Removal)
    if removal is None:
        cloning = apps.find_cloning(store, app)
        heads = heads_of(store, app, _stages(store, app, cloning))
        removal = codec.add(store, keys.removing(app), _noted(store, app, heads, cloning, "slackwater"))
    store.delete(keys.app_info(app))
    outside(removal)
    do_all(lambda info: store.delete(info.key), [info for info in found if info.key != keys.removing(app)])
    store.delete(keys.removing(app))
    history.forget(store, app)


def _noted(
    store: ObjectStore, app: str, heads: Mapping[str, Manifest], cloning: apps.Cloning | None, by: str
) -> Removal:
    """The note that an app with these stages is being removed."""
    topics = {output.topic for head in heads.values() for output in head.outputs.values()}
    topics |= {sink.topic for head in heads.values() for sink in head.sinks.values()}
    topics |= {*topics_of(store, cloning)} if cloning is not None else set()
    ulid, source = ULID(), _source(store, app, cloning)
    stages = {stage: heads[stage].version for stage in sorted(heads)}
    return Removal(str(ulid), app, ulid.milliseconds, by, stages, tuple(sorted(topics)), why(), *source)


def check_nameless(store: ObjectStore, app: str) -> None:
    """Raise `Refused` where the app in this folder has the name of another one, whatever it was called by."""
    if name := apps.name_of(store, app):
        raise Refused(
            f"app {app} is {name} since it was promoted over it: it is neither removed nor made anew",
            hint=f"give the name back first (slackwater promote --back --over {name}), or promote another app over "
            f"{name}; the app that had the name before is {name}~1",
        )


def removal_of(store: ObjectStore, app: str) -> Removal | None:
    """The note of an app's removal, the newest of that name; None where there was none. One request."""
    return codec.find(store, keys.removed(app), Removal)


def _stages(store: ObjectStore, app: str, cloning: apps.Cloning | None) -> tuple[str, ...]:
    """Its stages, those also that half a clone has."""
    if cloning is None:
        return history.list_stages(store, app)
    return tuple(name for name in store.list_folders(keys.stages(app)) if name != keys.CLONING)


def _source(store: ObjectStore, app: str, cloning: apps.Cloning | None) -> tuple[str, str, str]:
    """The app that this one was cloned from, its root, and the snapshot that it has for this one; else nothing."""
    info = cloning.info if cloning is not None else apps.find_app(store, app)
    if info is None or info.origin is None:
        return "", "", ""
    root, snapshot = (cloning.root, cloning.snapshot) if cloning else (info.origin.root, info.origin.snapshot)
    return (info.origin.app, root, snapshot) if snapshot else ("", "", "")


def _release(store: ObjectStore, removal: Removal) -> None:
    """Take away the snapshot that kept what a clone shared, unless it keeps something for another one."""
    if not removal.snapshot:
        return
    source = store.at(removal.source_root)
    # Whoever may not, or comes too late, leaves it to its owner.
    with suppress(NotFound, Refused):
        found = find_snapshot(source, removal.source, removal.snapshot)
        if found is not None and (found.kind, found.clone) == ("clone", removal.app):
            remove_snapshot(source, removal.source, removal.snapshot)


def _contents(store: ObjectStore, app: str) -> Contents:
    counts, size = Counter[census.ObjectKind | None](), 0
    for info in store.list(f"{app}/"):
        counts[census.kind_of(info.key)] += 1
        size += info.size_bytes
    return Contents(counts[census.MANIFEST], counts[census.SST], counts[census.SNAPSHOT], counts.total(), size)


def _in_order(store: ObjectStore, app: str, removal: Removal) -> tuple[list[ObjectInfo], ...]:
    """What is left of the app, in the order in which it goes; each list in any order.

    Snapshots before what they pin, and last the version of each stage that stops its runner.
    """
    # One of the app that has the name now stays.
    others = (keys.protected(app),) if apps.folder_of(store, app) != app else ()
    left = [info for info in store.list(f"{app}/") if info.key not in others]
    last = {
        max(found)
        for stage in removal.stages
        if (found := [info.key for info in left if info.key.startswith(keys.manifests(app, stage))])
    }
    groups: dict[str, list[ObjectInfo]] = {"first": [], "then": [], "last": []}
    for info in left:
        kind = census.kind_of(info.key)
        turn = "last" if info.key in last else "then" if kind is None or kind.remove == "last" else kind.remove
        if turn in groups:  # what tells of the removal stays
            groups[turn].append(info)
    return tuple(groups.values())
