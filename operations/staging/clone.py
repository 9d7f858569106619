"""Clone of an app at a moment: new manifests that name the source's SSTs, and repartition topics of the clone.

No state is read or copied, except for deep clones and tables with masked columns, so the cost of a clone does not
depend on the number of keys. Each step may be interrupted: the source's cut is pinned first, then a journal
(`CloneJournal`) reserves the name and records the progress, and a repeated call continues from the journal. The clone's
identity is written last; until then, the clone is invisible.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import replace

from msgspec import structs

from ...common import instants, runtime
from ...errors import Forbidden, NotFound, Refused
from ...pipeline.kafka.sources.copying import copy_sources
from ...snapshot.change.copies import CloneSsts, Masks
from ...snapshot.change.first_versions import finish_clone, in_flight_reader
from ...snapshot.cut.graph import Cut, violations
from ...snapshot.cut.kafka_topics import KafkaTopics
from ...snapshot.cut.refs import parse_ref
from ...snapshot.cut.resolve import apply_known_forgets, report_if_collected
from ...snapshot.cut.stored import Snapshot, find_snapshot, read_snapshot
from ...snapshot.take.audit_log import record_operation_once
from ...snapshot.take.snapshots import pin_cut, remove_pins_without_clone
from ...snapshot.under_way.exclusion import AppCondition, Evidence, Intent, check_exclusion, refusal_error
from ...snapshot.under_way.runners import have_runners_lapsed
from ...store.objects.protocol import ObjectStore
from ...store.read.cache import SstCache
from ...store.read.copier import Copier
from ...store.versions import apps, forgotten, keys
from ...store.versions.apps import CloneJournal
from ..maintenance.removal import Removal, delete_temporary_app
from .clone_plan import ClonePlan, CloneTerms, make_plan


def clone(
    store: ObjectStore,
    source: str,
    name: str,
    *,
    channels: KafkaTopics,
    topics: Mapping[str, str] | None = None,
    sinks: Mapping[str, str] | None = None,
    terms: CloneTerms | None = None,
    target_store: ObjectStore | None = None,
    cache: SstCache | None = None,
    by: str,
    now_ms: int | None = None,
    at: Cut | None = None,
    dry_run: bool = False,
    replaces_existing: bool = False,
    is_logged: bool = True,
    on_progress: Callable[[int, int], None] = lambda _done, _all: None,
) -> ClonePlan:
    """Create the app `name` as a clone of another app at a moment. The source only gets a snapshot that pins the cut.

    Idempotent: a repeated call finishes an interrupted clone, and changes nothing if the clone exists.

    `topics` maps declared names to topics that the clone reads instead of the source's topics; they must have the same
    partitions and offsets. Topics that are not in `topics` are shared with the source. `sinks` maps the name of each
    sink that the clone publishes to its topic; for a sink that is a function, to its own name. Sinks that are not in
    `sinks` publish nothing. `terms` has all options, including `topics` and `sinks`. The clone is created in
    `target_store`, by default in the source's store. Relative refs count from `now_ms`, by default the wall clock; `at`
    is the cut that the caller has resolved from `source`. `dry_run` checks everything and changes nothing; with
    `replaces_existing`, the check assumes that a clone of that name is removed first. `cache` is needed if columns are
    masked. `on_progress` receives the number of copied SSTs, and the total number of SSTs to copy. With `is_logged`,
    the clone is recorded in the source's audit log; temporary clones are not.

    Raises the errors of `StoredApp.clone`.
    """
    target = target_store or store
    moment_ms = instants.now_ms() if now_ms is None else now_ms
    terms = terms or CloneTerms(topics or {}, sinks or {})
    plan = make_plan(
        store,
        target,
        parse_ref(source, now_ms=moment_ms),
        name,
        terms,
        channels,
        moment_ms,
        replaces_existing=replaces_existing,
        at=at,
    )
    if dry_run:
        return plan
    # Root of the clone, recorded in the pin; empty if it is the source's root.
    root = "" if target.url == store.url else target.url
    if not plan.done:
        if root:
            copy_sources(Copier(store, target), plan.topics.values())
        is_new = plan.journal is None
        note, keeper = (plan.journal, None) if plan.journal else _begin(store, target, plan, root, terms, by)
        if plan.journal:
            _read_forgotten(store, plan)
        keeper = keeper or _find_keeper(store, plan, note)
        plan = replace(plan, source=apply_known_forgets(store, plan.source), info=note.info)
        masks = Masks.from_options(note.info.origin.masks if note.info.origin else {}, note.salt)
        copies = CloneSsts(store, target, cache, plan.initial_cut, name, masks, deep=note.deep, on_progress=on_progress)
        with report_if_collected(store, plan.initial_cut):
            records = in_flight_reader(store, plan.initial_cut, keeper)
            finish_clone(target, note.info, plan.initial_cut, records, copies, channels, by=by, is_new=is_new)
    since_ms, where = plan.info.created_ms, f"{name} in {root}" if root else name
    detail, same = f"{source} as {where}", f" as {where}"
    with suppress(Forbidden):  # the caller may lack the right to write there
        remove_pins_without_clone(store, plan.source.app, name, root)
        if is_logged:
            app = plan.source.app
            record_operation_once(
                store,
                app,
                "clone",
                detail,
                by,
                since_ms=since_ms,
                is_same_detail=lambda earlier: earlier.endswith(same),
            )
    # An interrupted call may already have written the log entry.
    description = f"from {source} in {store.url}"
    versions = {stage: (0, version) for stage, version in plan.initial_cut.versions.items()}
    record_operation_once(
        target, name, "clone", description, by, versions, since_ms=since_ms, is_same_detail=lambda _had: True
    )
    return plan


@contextmanager
def temporary_clone(
    create: Callable[[], object], remove: Callable[[], None], removing: Callable[[], AbstractContextManager[None]]
) -> Iterator[None]:
    """Create a clone that exists while the context lasts. The clone is removed on exit, even if its creation fails.

    The removal runs inside the context `removing`. On entry, the clone of an interrupted earlier call is removed first.
    """
    remove()
    try:
        create()
        yield
    finally:
        with removing():
            remove()


def remove_temporary_clone(
    store: ObjectStore,
    source: str,
    name: str,
    reason: str,
    remove_topics: Callable[[Removal], None],
    pause: Callable[[], None],
) -> None:
    """Remove a temporary clone and the snapshot that pins its SSTs in the source. Idempotent.

    Also finishes an interrupted removal. `reason` begins the messages of errors. Raises `Refused` if the app of that
    name is not a clone of this source, or a runner holds it.
    """
    info, _ = apps.find_app_and_journal(store, name)
    if info is not None and (info.origin is None or info.origin.app != source):
        raise Refused(
            f"app {name!r} is not a clone of {source}, but {reason} needs its name",
            hint=f"look at the app: slackwater status {name} --store {store.url}",
        )
    if not have_runners_lapsed(store, name, pause):
        fact = f"{reason} is running already: a runner runs its clone, {name}"
        raise refusal_error(Intent.REMOVE, Evidence(AppCondition.RUNNER, fact, "wait until that has ended"))
    delete_temporary_app(store, name, remove_topics)
    remove_pins_without_clone(store, source, name, "")


def _find_keeper(store: ObjectStore, plan: ClonePlan, note: CloneJournal) -> Snapshot | None:
    name = note.snapshot or plan.initial_cut.snapshot
    return find_snapshot(store, plan.source.app, name) if name else None


def _read_forgotten(store: ObjectStore, plan: ClonePlan) -> None:
    """Read the index of objects that a forget has replaced since the plan. Raises `Refused` during a forget.

    Call this function when the clone's journal exists: a forget that begins later sees the journal.
    """
    if plan.initial_cut.stages:
        check_exclusion(store, plan.source.app, Intent.CLONE, AppCondition.FORGETTING)
        forgotten.newest(store, plan.source.app)


def _begin(
    store: ObjectStore, target: ObjectStore, plan: ClonePlan, root: str, terms: CloneTerms, by: str
) -> tuple[CloneJournal, Snapshot | None]:
    cut, info, origin = plan.source, plan.info, plan.info.origin
    assert origin is not None  # noqa: S101  every clone has one
    try:
        pinned = _pin(store, plan, root, by) if plan.initial_cut.stages else ""  # an empty clone needs no pin
    except Forbidden as error:
        if not terms.deep:
            raise Forbidden(
                f"the moment of {cut.app} cannot be pinned under {store.url}, and only a pin keeps the files that "
                f"the clone shares: {error.message}",
                hint="a deep clone needs no right to write there: --deep --to ROOT",
            ) from error
        pinned = ""  # copying fails if garbage collection removes an object meanwhile
    if not terms.deep:
        info = structs.replace(info, origin=structs.replace(origin, snapshot=pinned))
    salt = runtime.random_hex(16) if terms.masks else ""
    note = CloneJournal(info, store.url, pinned, salt, terms.deep)
    try:
        apps.begin_clone(target, note)
        _read_forgotten(store, plan)
        pin_snapshot = find_snapshot(store, cut.app, pinned) if pinned else None
        if pinned and pin_snapshot is None:
            target.delete(keys.clone_journal(info.name))
            raise Refused(
                f"snapshot {pinned!r} of {cut.app}, which this clone needs, was just removed with an earlier clone of "
                "the same name",
                hint="repeat the command",
            )
    except Refused:
        # Another call reserved the name first, so this call's pin is not needed.
        with suppress(Forbidden):
            remove_pins_without_clone(store, origin.app, info.name, root)
        raise
    return note, pin_snapshot


def _pin(store: ObjectStore, plan: ClonePlan, root: str, by: str) -> str:
    cut, name = plan.source, plan.info.name
    keeper = read_snapshot(store, cut.app, cut.snapshot) if cut.snapshot else None
    if keeper is not None and keeper.stages != cut.versions:
        reason = "it was replaced by another one of that name after this clone was planned"
        raise NotFound(
            f"snapshot of app {cut.app!r}", cut.snapshot, found=reason, hint="repeat the command to clone the new one"
        )
    check_exclusion(store, cut.app, Intent.CLONE)  # otherwise the names below would seem to be in use
    base = f"clone-{name}"[:56]
    candidates = (base, *(f"{base}-{number}" for number in range(2, 1000)))
    for candidate in candidates:
        try:
            return pin_cut(store, cut, candidate, "clone", by=by, clone=name, clone_root=root, keeper=keeper).name
        except Forbidden:
            raise
        except Refused:
            if violations(cut.stages) or not cut.stages:
                raise
            check_exclusion(store, cut.app, Intent.CLONE)  # a forget that began meanwhile refuses any name
    raise Refused(
        f"all snapshot names from {base} to {candidates[-1]} of {cut.app} are taken",
        hint=f"`slackwater snapshot list {cut.app}` shows them; remove those whose clones are gone",
    )
