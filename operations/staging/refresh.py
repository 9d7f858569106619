"""A clone made anew under its name, from its source's newest moment: removed, and cloned on the same terms.

A note that says so outlives the removal. So whatever interrupts it, the same call goes on: the note has what the clone
was, and whatever else has its name by then is the new one.
"""

from collections.abc import Callable
from typing import Any

from msgspec import Struct

from ...errors import Refused
from ...snapshot.change.first_versions import has_run
from ...snapshot.cut.kafka_topics import Topics
from ...snapshot.take.audit_log import record_once
from ...snapshot.under_way.exclusion import HERE, Intent, check_exclusion
from ...store.objects.protocol import ObjectStore
from ...store.read.cache import SstCache
from ...store.versions import apps, codec, history, keys, limits
from ...store.versions.manifest import AppInfo, Origin
from ..maintenance.removal import remove_app
from .clone import clone
from .clone_plan import ClonePlan, Terms


class Refreshing(Struct, frozen=True):
    """The note that a clone is being made anew."""

    before: AppInfo
    """What it was."""
    by: limits.Line
    time_ms: limits.TimeMs
    source: limits.NameOrNone = ""
    """The app that it is made from."""


def refresh(
    store: ObjectStore,
    name: str,
    *,
    channels: Topics,
    cache: SstCache | None,
    by: str,
    now_ms: int,
    dry_run: bool = False,
    on_progress: Callable[[int, int], None] = lambda _done, _all: None,
    **removing: Any,
) -> ClonePlan:
    """Make a clone anew from the newest moment of its source: same name, topics, sinks, masks, owner and time to live.

    Where the name of its source went over to another app since it was made, it is made from that one, which the plan
    has by its folder. What it has done since is gone. `removing` are `fence`, `outside`, `on_wait` and `pause` of
    `remove_app`. With `dry_run`, everything is checked and nothing changed; else as `clone`. Raises as
    `StoredApp.refresh`, `Refused` also where a runner holds it.
    """
    key = keys.refreshing(keys.check_name("app", name))
    check_exclusion(store, name, Intent.REFRESH, *HERE, dry_run=dry_run)

    def made(info: AppInfo, source: str, **how: Any) -> ClonePlan:
        origin, terms = _source(info), _terms(info, how.pop("left", ()))
        return clone(
            store.at(origin.root),
            source or origin.app,
            name,
            channels=channels,
            terms=terms,
            target_store=store,
            cache=cache,
            by=by,
            now_ms=now_ms,
            on_progress=on_progress,
            **how,
        )

    note = codec.find(store, key, Refreshing)
    if note is None:
        history.list_stages(store, name)  # says so where it is half removed, or half made
        info = apps.read_app(store, name)
        origin = _source(info)  # says why not
        gone = remove_app(store, name, by=by, now_ms=now_ms, dry_run=True, **removing)
        apps.check_free(store, name)
        source = apps.means_now(store.at(origin.root), origin.app, info.created_ms)
        plan = made(info, source, dry_run=True, over=True, left=gone.removal.topics)
        if dry_run:
            return plan
        note = codec.add(store, key, Refreshing(info, by, now_ms, source))
    elif dry_run:
        raise Refused(f"clone {name!r} is being made anew, by {note.by}", hint="without --dry-run it goes on with that")
    found, half = apps.find_app(store, name), apps.find_cloning(store, name)
    left: tuple[str, ...] = ()
    if half is None and found is not None and found != note.before and has_run(store, found):
        # It was made anew, and the note stayed behind: this is asked for once more.
        store.delete(key)
        return refresh(
            store,
            name,
            channels=channels,
            cache=cache,
            by=by,
            now_ms=now_ms,
            on_progress=on_progress,
            **removing,
        )
    if half is None and found in (None, note.before):
        left = remove_app(store, name, by=by, now_ms=now_ms, **removing).removal.topics
    plan = made(note.before, note.source, left=left)
    record_once(store, name, "clone refresh", f"from {plan.source.ref}", by, since_ms=plan.info.created_ms)
    store.delete(key)
    return plan


def origin_of(store: ObjectStore, name: str) -> Origin:
    """Return where a clone came from, also while it is being made anew. Raises `NotFound` and `Refused`."""
    note = codec.find(store, keys.refreshing(keys.check_name("app", name)), Refreshing)
    return _source(note.before if note is not None else apps.read_app(store, name))


def _source(info: AppInfo) -> Origin:
    """Where a clone came from. Raises `Refused`."""
    if info.origin is None:
        raise Refused(
            f"app {info.name!r} is no clone: there is nothing that it could be made anew from",
            hint="`slackwater clone list` shows the clones",
        )
    if info.origin.deep:
        raise Refused(
            f"clone {info.name!r} has everything of its own, and nothing that says where it came from",
            hint=f"make it anew yourself: slackwater app rm {info.name}, then the clone --deep that made it",
        )
    return info.origin


def _terms(info: AppInfo, left: tuple[str, ...]) -> Terms:
    origin = _source(info)
    return Terms(
        topics=origin.topics,
        sinks=origin.sinks,
        masks=origin.masks,
        empty=origin.empty,
        owner=info.owner,
        reason=info.reason,
        ttl_ms=info.ttl_ms,
        left=left,
    )
