"""Refresh of a clone: removes it, and clones the source's newest moment again with the same options.

The identity of the old clone is recorded in a journal that outlives the removal. So the same call finishes an
interrupted refresh: an app of that name with a different identity is the new clone.
"""

from collections.abc import Callable
from functools import partial

from msgspec import Struct

from ...common import runtime
from ...errors import Refused
from ...snapshot.change.first_versions import has_run
from ...snapshot.cut.kafka_topics import KafkaTopics
from ...snapshot.take.audit_log import record_operation_once
from ...snapshot.under_way.exclusion import RUNS_ELSEWHERE, Intent, check_exclusion
from ...store.objects.protocol import ObjectStore
from ...store.read.cache import SstCache
from ...store.versions import apps, codec, history, keys, limits
from ...store.versions.manifest import AppInfo, Origin
from ..maintenance.removal import Removal, remove_app
from .clone import clone
from .clone_plan import ClonePlan, CloneTerms


class RefreshJournal(Struct, frozen=True):
    """Journal of a refresh in progress."""

    before: AppInfo
    by: limits.ShortText
    time_ms: limits.TimeMs
    source: limits.NameOrNone = ""


def refresh(
    store: ObjectStore,
    name: str,
    *,
    channels: KafkaTopics,
    cache: SstCache | None,
    by: str,
    now_ms: int,
    fence: bool = False,
    dry_run: bool = False,
    remove_topics: Callable[[Removal], None] = lambda _removal: None,
    on_wait: Callable[[str], None] = lambda _line: None,
    pause: Callable[[float], None] = runtime.sleep,
    on_progress: Callable[[int, int], None] = lambda _done, _all: None,
) -> ClonePlan:
    """Clone an app again from its source's newest moment, with the same name and options.

    If another app was promoted to the source's name since, that app becomes the source; the plan has its folder.
    Versions of the old clone are lost. `fence`, `remove_topics`, `on_wait` and `pause` are parameters of `remove_app`.
    `dry_run` checks everything and changes nothing. Raises the errors of `StoredApp.refresh`, and `Refused` if a runner
    holds the clone.
    """
    key = keys.refresh_journal(keys.check_name("app", name))
    check_exclusion(store, name, Intent.REFRESH, *RUNS_ELSEWHERE, dry_run=dry_run)
    remove = partial(
        remove_app,
        store,
        name,
        by=by,
        now_ms=now_ms,
        fence=fence,
        remove_topics=remove_topics,
        on_wait=on_wait,
        pause=pause,
    )

    def make_clone(
        info: AppInfo, source: str, inherited_topics: tuple[str, ...], *, only_plan: bool = False
    ) -> ClonePlan:
        origin = _require_origin(info)
        terms = CloneTerms(
            topics=origin.topics,
            sinks=origin.sinks,
            masks=origin.masks,
            empty=origin.is_empty,
            owner=info.owner,
            reason=info.reason,
            ttl_ms=info.ttl_ms,
            inherited_topics=inherited_topics,
        )
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
            dry_run=only_plan,
            # The plan is made while the old clone still exists.
            replaces_existing=only_plan,
            on_progress=on_progress,
        )

    journal = _find_unfinished(store, name, dry_run=dry_run)
    if journal is None:
        history.list_stages(store, name)  # raises if the app is partly removed or incomplete
        info = apps.read_app(store, name)
        origin = _require_origin(info)  # raises if the app cannot be refreshed
        topics = remove(dry_run=True).removal.topics
        apps.check_name_free(store, name)
        source = apps.current_owner(store.at(origin.root), origin.app, info.created_ms)
        plan = make_clone(info, source, topics, only_plan=True)
        if dry_run:
            return plan
        journal = codec.add(store, key, RefreshJournal(info, by, now_ms, source))
    topics = ()
    if apps.find_clone_journal(store, name) is None and apps.find_app(store, name) in (None, journal.before):
        topics = remove().removal.topics
    plan = make_clone(journal.before, journal.source, topics)
    record_operation_once(store, name, "clone refresh", f"from {plan.source.ref}", by, since_ms=plan.info.created_ms)
    store.delete(key)
    return plan


def _find_unfinished(store: ObjectStore, name: str, *, dry_run: bool) -> RefreshJournal | None:
    if (journal := _find_journal(store, name)) is None:
        return None
    if dry_run:
        raise Refused(
            f"clone {name!r} is being refreshed by {journal.by}",
            hint="without --dry-run, this command finishes that refresh",
        )
    existing = apps.find_app(store, name)
    is_new = existing is not None and existing != journal.before and apps.find_clone_journal(store, name) is None
    if existing is None or not is_new or not has_run(store, existing):
        return journal
    store.delete(keys.refresh_journal(name))
    return None


def _find_journal(store: ObjectStore, name: str) -> RefreshJournal | None:
    key = keys.refresh_journal
    return codec.find(store, key(name), RefreshJournal, key_of=lambda journal: key(journal.before.name))


def origin_of(store: ObjectStore, name: str) -> Origin:
    """Return the origin of a clone, also while the clone is refreshed. Raises `NotFound` and `Refused`."""
    journal = _find_journal(store, keys.check_name("app", name))
    return _require_origin(journal.before if journal is not None else apps.read_app(store, name))


def _require_origin(info: AppInfo) -> Origin:
    if info.origin is None:
        raise Refused(
            f"app {info.name!r} is not a clone, so it has no source to refresh from",
            hint="`slackwater clone list` shows the clones",
        )
    if info.origin.is_deep:
        raise Refused(
            f"clone {info.name!r} is a deep clone, which does not record its source",
            hint=f"remove it with `slackwater app rm {info.name}`, and repeat the `clone --deep` that made it",
        )
    return info.origin
