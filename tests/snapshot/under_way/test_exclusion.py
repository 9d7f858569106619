"""The exclusion table: under each condition, each operation behaves as its cell says."""

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Event

import pyarrow as pa
import pytest
from msgspec.structs import replace
from slackwater.common import instants
from slackwater.errors import Refused
from slackwater.operations.disaster_recovery.recover import recover
from slackwater.operations.disaster_recovery.recover_plan import FailoverTerms
from slackwater.operations.disaster_recovery.replicate import Replicator
from slackwater.operations.erasure.family import RequestedKeys
from slackwater.operations.erasure.forget import forget
from slackwater.operations.maintenance.archive_fill import fill
from slackwater.operations.maintenance.compact import AppCompactor
from slackwater.operations.maintenance.removal import Removal, remove_app
from slackwater.operations.repair.reset import Scenario, reset
from slackwater.operations.repair.rewind import rewind
from slackwater.operations.staging.clone import clone
from slackwater.operations.staging.promote import promote
from slackwater.operations.staging.refresh import refresh
from slackwater.snapshot.change import stages
from slackwater.snapshot.change.edit import edit, newest_active_cut, put_rows
from slackwater.snapshot.change.edited import Change, changed_rows
from slackwater.snapshot.change.migrate import find_plan, finish_earlier, migrate
from slackwater.snapshot.change.migration import finish_newest_migration
from slackwater.snapshot.change.stages import rescale, retire
from slackwater.snapshot.change.switch import settle_promotion
from slackwater.snapshot.cut.migrations import MIGRATIONS, MigratedStage, Migration
from slackwater.snapshot.cut.moments import newest_cut
from slackwater.snapshot.cut.refs import parse_ref
from slackwater.snapshot.cut.replicas import REPLICA_SNAPSHOT_PREFIX, Recovery, Replica
from slackwater.snapshot.cut.stored import SNAPSHOT_REQUESTS, SnapshotRequest
from slackwater.snapshot.gc.collect import collect
from slackwater.snapshot.gc.reachable import Retention
from slackwater.snapshot.take.snapshots import pin_cut, remove_or_withdraw
from slackwater.snapshot.take.taking import request_snapshot
from slackwater.snapshot.under_way.exclusion import (
    DETECTORS,
    RULES,
    RUNS_ELSEWHERE,
    AppCondition,
    ExclusionRule,
    Intent,
    check_exclusion,
    refusal_error,
)
from slackwater.snapshot.under_way.runners import EDITS, HEARTBEATS, EditRequest, Heartbeat
from slackwater.store.objects.memory import MemoryStore
from slackwater.store.objects.protocol import exists
from slackwater.store.read.cache import SstCache
from slackwater.store.versions import apps, codec, history, keys
from slackwater.store.versions.amend import Amendment, amend
from slackwater.store.versions.forgotten import ForgetJournal, begin_journal
from slackwater.store.versions.manifest import AppInfo, Edit, Manifest, Promotion, SideTable
from slackwater.store.versions.side_tables import REJECTED, REJECTED_RECORDS
from ulid import ULID

from tests.crash.points import Killed
from tests.operations.failover import FailoverKafka
from tests.operations.from_spark.adopt.adopting import adoption
from tests.operations.from_spark.adopt.test_adoption import filled
from tests.snapshot.change.test_migrate import program
from tests.support.collecting import AgingStore, StoreClock
from tests.support.histories import STAGES, FlightsApp, Kafka, flights
from tests.support.static import ROOT

BY = "ada@host"
APP = "flights"
ID = "01K9TZ3Y5C8V0WQ2X4N6M8R0TB"


@dataclass
class World:
    """An app with a batch in flight, the objects that verbs need, and a complete clone if the subject is a clone."""

    app: FlightsApp
    cache: SstCache
    subject: str = APP
    """App that the operation is about."""
    also_runs: tuple[str, ...] = ()
    """Other apps that have a runner if this one has."""
    replica: MemoryStore | None = None
    """Store of the app's replica."""

    goes: bool = False
    """True if the app is to be removed."""

    @property
    def store(self) -> AgingStore:
        assert isinstance(self.app.store, AgingStore)
        return self.app.store

    @property
    def kafka(self) -> FailoverKafka:
        assert isinstance(self.app.kafka, FailoverKafka)
        return self.app.kafka

    def now_ms(self) -> int:
        return self.app.clock.tick("legs")

    def pause(self, seconds: float = 1.0) -> None:
        self.store.pause(seconds)

    def clone(self, source: str, name: str) -> None:
        clone(self.store, source, name, channels=self.kafka, by=BY)


def heads(world: World, app: str) -> dict[str, Manifest]:
    found = ((name, history.head(world.store, app, name)) for name in STAGES)
    return {name: head for name, head in found if head is not None}


def world_for(intent: Intent, cache: SstCache) -> World:
    store = AgingStore()
    store.clock_ms = instants.now_ms()
    made = World(FlightsApp(store, FailoverKafka(), clock=StoreClock(store, 1_000)), cache)
    made.app.run(flights(20))
    pin_cut(store, newest_cut(store, APP, STAGES), "kept", by=BY)
    made.app.run(flights(10))
    made.app.send(*flights(5))
    made.app.step("legs")
    if intent is Intent.PROMOTE:  # both stand at the same offsets, and read all
        made.app.step_all()
        made.clone(APP, "staging")
        FlightsApp(store, made.kafka, "staging", clock=made.app.clock).step_all()
        made.app.step_all()
        made.also_runs = ("staging",)
    made.goes = intent in (Intent.REMOVE, Intent.REFRESH)
    if intent is Intent.RETRY:
        waiting = SideTable(REJECTED_RECORDS, total=1, waiting=1)
        change = Amendment("compaction", lambda draft: replace(draft, side_tables={REJECTED: waiting}))
        amend(store, (APP, "aircraft"), change, by=BY, now_ms=made.now_ms())
    if intent is Intent.REFRESH:
        made.clone(APP, "staging")
        made.subject = "staging"
    if intent is Intent.REPLICATE:
        made.replica = AgingStore()
        do_replicate(made)
    if intent is Intent.RECOVER:
        there = AgingStore()
        there.clock_ms = store.clock_ms
        Replicator(store, there, APP, BY, made.kafka).run_round()
        made.app.store = there
    return made


# --- what may be under way -------------------------------------------------------------------------------------------


def removal(world: World) -> None:
    codec.put(world.store, keys.removal_journal(world.subject), Removal(ID, world.subject, 1, BY, {}, ()))


def making(world: World) -> None:
    info = apps.find_app(world.store, world.subject) or AppInfo(world.subject, 1)
    codec.put(
        world.store,
        keys.clone_journal(world.subject),
        apps.CloneJournal(replace(info, origin=None), "", "", adopts="t"),
    )


def elsewhere(world: World, state: str) -> None:
    found = Replica(world.subject, "s3://other", 1, state, by=BY, time_ms=1)  # type: ignore[arg-type]
    codec.put(world.store, keys.replica(world.subject), found)


def runner(world: World) -> None:
    for app in (world.subject, *world.also_runs):
        epochs = {name: head.epoch for name, head in heads(world, app).items()}
        HEARTBEATS.put(world.store, Heartbeat(ID, "host:1", epochs), app)


def snapshot(world: World) -> None:
    ulid = ULID()
    SNAPSHOT_REQUESTS.put(
        world.store, SnapshotRequest(str(ulid), "tonight", ulid.milliseconds, "bob@host"), world.subject
    )


def asked_edit(world: World) -> None:
    asked = Edit(ID, "bob@host", "DELETE FROM aircraft")
    EDITS.put(world.store, EditRequest(asked, "aircraft", 1, 1, "DELETE FROM aircraft"), world.subject)


def forgetting(world: World) -> None:
    begin_journal(world.store, world.subject, ForgetJournal(ID, world.subject, "bob@host", 1, "00", "00"))


def change(world: World) -> None:
    steps = {name: MigratedStage() for name in STAGES}
    MIGRATIONS.add(world.store, Migration(world.subject, 1, ID, "bob@host", world.now_ms(), "kept", steps))


def promotion(world: World) -> None:
    """Prepare a promotion of another app over this one, or the reverse if this one is to be removed."""
    mark = Promotion(APP, 1, "staging", {}, None, None, None)
    if world.goes:
        mark = replace(mark, name="other", to=world.subject)
    for stage in STAGES:
        made = Amendment("demote", lambda draft: replace(draft, promotion=mark))
        amend(world.store, (world.subject, stage), made, by=BY, now_ms=world.now_ms())


def cloning(world: World) -> None:
    def die() -> None:
        raise Killed

    world.store.once("put_if_absent", "third/app.json", die)
    with suppress(Killed):
        world.clone(world.subject, "third")


def clones(world: World) -> None:
    world.clone(world.subject, "third")


def recovery(world: World) -> None:
    if world.replica is None:
        elsewhere(world, "copy")
    codec.put(
        world.replica or world.store, keys.recovery_journal(world.subject), Recovery(world.subject, ID, "bob@host", 1)
    )


BEGIN: dict[AppCondition, Callable[[World], None]] = {
    AppCondition.REMOVAL: removal,
    AppCondition.MAKING: making,
    AppCondition.COPY: lambda world: elsewhere(world, "copy"),
    AppCondition.LEFT: lambda world: elsewhere(world, "left"),
    AppCondition.RUNNER: runner,
    AppCondition.SNAPSHOT: snapshot,
    AppCondition.EDIT: asked_edit,
    AppCondition.FORGETTING: forgetting,
    AppCondition.CHANGE: change,
    AppCondition.PROMOTION: promotion,
    AppCondition.CLONING: cloning,
    AppCondition.CLONES: clones,
    AppCondition.RECOVERY: recovery,
}


# --- what may be asked of the app ------------------------------------------------------------------------------------


def run(world: World) -> None:
    """Do everything that a run does before Spark starts, including its claims."""
    store = world.store
    found = {name: history.head(store, APP, name) for name in history.list_stages(store, APP)}
    check_exclusion(store, APP, Intent.RUN)
    finish_newest_migration(store, APP, now_ms=world.now_ms())
    settle_promotion(store, filter(None, found.values()), by=BY, now_ms=world.now_ms(), claims=STAGES)
    for stage in STAGES:
        world.app.claim(stage)


def remove_snapshot(world: World) -> None:
    there = [info.key for info in world.store.list(f"{APP}/snapshots/")]
    of_clone = any("clone-third" in key for key in there)
    is_elsewhere = DETECTORS[AppCondition.COPY](world.store, APP) is not None
    name = "clone-third" if of_clone else f"{REPLICA_SNAPSHOT_PREFIX}1" if is_elsewhere else "kept"
    remove_or_withdraw(world.store, APP, name, by=BY)


def do_refresh(world: World) -> None:
    refresh(world.store, "staging", channels=world.kafka, cache=None, by=BY, now_ms=world.now_ms(), pause=world.pause)


STATEMENT = "UPDATE aircraft SET flights = flights + 1, _squares = 0"


def do_edit(world: World, patience_s: float = 0) -> None:
    edit(world.store, world.cache, APP, "aircraft", STATEMENT, sql=STATEMENT, by=BY, timeout_s=patience_s)


def do_repair(world: World) -> None:
    cut = newest_active_cut(world.store, APP, "aircraft")
    change = Change(rows=changed_rows(world.store, world.cache, cut, "aircraft", STATEMENT))
    done = Edit(str(ULID()), BY, "drop in[0]@0")
    head = cut.stages["aircraft"]
    put_rows(world.store, world.cache, head, change, done, send=lambda base, _records: base.sinks, timeout_s=0)


def do_migrate(world: World, *, dry_run: bool = False) -> None:
    if not dry_run:
        check_exclusion(world.store, APP, Intent.MIGRATE, *RUNS_ELSEWHERE)
        finish_earlier(world.store, APP, now_ms=world.now_ms())
    declared = program(world.app)
    # A stage that goes is one that a snapshot waits for.
    stages = {name: stage for name, stage in declared.stages.items() if name != "carriers"}
    found = find_plan(world.store, dataclasses.replace(declared, stages=stages), {})
    if not dry_run:
        migrate(world.store, found, {}, by=BY, now_ms=world.now_ms(), reader=world.kafka)


def do_rewind(world: World, *, dry_run: bool = False) -> None:
    target, now_ms = parse_ref(f"{APP}@kept", now_ms=0), world.now_ms()
    how = {"by": BY, "now_ms": now_ms, "cache": world.cache, "dry_run": dry_run, "reader": world.kafka}
    rewind(world.store, APP, target, world.kafka, **how)  # type: ignore[arg-type]


def do_reset(world: World, *, dry_run: bool = False) -> None:
    scenario, now_ms = Scenario.from_options(now_ms=1, to_earliest=True), world.now_ms()
    reset(world.store, APP, {}, scenario, world.kafka, by=BY, now_ms=now_ms, dry_run=dry_run, reader=world.kafka)


def do_replicate(world: World) -> None:
    assert world.replica is not None
    Replicator(world.store, world.replica, APP, BY, world.kafka).run_round()


def do_recover(world: World) -> None:
    recover(world.store, APP, world.kafka, primary=None, terms=FailoverTerms(), by=BY)


def do_adopt(world: World) -> None:
    query = filled(2)
    made = adoption(world.store, world.cache, query.checkpoint, query.table)
    info = apps.find_app(world.store, APP) or AppInfo(APP, 1)
    dataclasses.replace(made, info=info, first=replace(made.first, app=APP)).run()


class Archivable(Kafka):
    """A Kafka with an empty topic."""

    def records(self, *_range: object) -> Iterator[pa.Table]:
        yield from ()


def do_archive(world: World) -> None:
    kafka = Archivable()
    kafka.topics = world.kafka.topics
    fill(world.store, APP, kafka, None, by=BY)


def do_compact(world: World) -> None:
    now_ms, stop = world.now_ms, Event()
    compactor = AppCompactor(world.store, world.cache, APP, by=BY, threads=1, now_ms=now_ms, stop=stop)
    compactor.merge_once(full=True, on_version=lambda _done: None)


ACT: dict[Intent, Callable[[World], object]] = {
    Intent.RUN: run,
    Intent.SNAPSHOT: lambda world: request_snapshot(world.store, APP, "mine", BY),
    Intent.PIN: lambda world: pin_cut(
        world.store, newest_cut(world.store, APP, STAGES), "mine", by=BY, reader=world.kafka
    ),
    Intent.REMOVE_SNAPSHOT: remove_snapshot,
    Intent.CLONE: lambda world: world.clone(APP, "other"),
    Intent.REFRESH: do_refresh,
    Intent.REMOVE: lambda world: remove_app(world.store, APP, by=BY, now_ms=world.now_ms(), pause=world.pause),
    Intent.RETRY: lambda world: stages.request_retry(world.store, APP, "aircraft", by=BY, now_ms=world.now_ms()),
    Intent.RESCALE: lambda world: rescale(world.store, APP, "aircraft", 4, by=BY, now_ms=world.now_ms()),
    Intent.RETIRE: lambda world: retire(world.store, APP, "carriers", by=BY, now_ms=world.now_ms()),
    Intent.COMPACT: do_compact,
    Intent.COLLECT: lambda world: collect(world.store, APP, Retention(versions=1), by=BY),
    Intent.ARCHIVE: do_archive,
    Intent.EDIT: do_edit,
    Intent.REPAIR: do_repair,
    Intent.FORGET: lambda world: forget(
        world.store, world.cache, APP, RequestedKeys.parse(["aircraft=N003"]), by=BY, kafka=world.kafka
    ),
    Intent.MIGRATE: do_migrate,
    Intent.REWIND: do_rewind,
    Intent.RESET: do_reset,
    Intent.PROMOTE: lambda world: promote(
        world.store, world.kafka, APP, "staging", by=BY, cache=None, pause=world.pause, timeout_s=1
    ),
    Intent.REPLICATE: do_replicate,
    Intent.RECOVER: do_recover,
    Intent.ADOPT: do_adopt,
}
DRY: dict[Intent, Callable[[World], object]] = {
    Intent.MIGRATE: lambda world: do_migrate(world, dry_run=True),
    Intent.REWIND: lambda world: do_rewind(world, dry_run=True),
    Intent.RESET: lambda world: do_reset(world, dry_run=True),
}

CELLS = [(intent, under_way) for intent in Intent for under_way in AppCondition]


@pytest.fixture
def cache(tmp_path: Path) -> SstCache:
    return SstCache(tmp_path / "cache", 1 << 28)


OTHERS = (ExclusionRule.WAITS, ExclusionRule.FENCES, ExclusionRule.FINISHES, ExclusionRule.WITHDRAWS)


def rows_of_the_docs() -> Iterator[str]:
    """Yield the rows of the table in docs/operating.md: the refused operations and other effects of each condition."""
    for column in AppCondition:
        told = {does: [intent.value for intent in Intent if RULES[intent][column] is does] for does in ExclusionRule}
        refused, free = (
            told[ExclusionRule.REFUSED],
            [each.value for each in Intent if each.value not in told[ExclusionRule.REFUSED]],
        )
        words = ", ".join(refused) if len(refused) <= len(free) else f"all except {', '.join(free)}"
        others = "; ".join(f"{does.value} {', '.join(told[does])}" for does in OTHERS if told[does])
        yield f"| {column.value} | {words} | {others} |"


def test_the_docs_contain_the_table() -> None:
    text = (ROOT / "docs" / "operating.md").read_text(encoding="utf-8")
    assert [row for row in rows_of_the_docs() if row not in text] == []


NOT_COUNTED = {f"{APP}/notice.json", f"{APP}/gc.json"}
"""Objects that only wake runners, or that contain only the store's time."""


def contents(store: MemoryStore) -> dict[str, bytes]:
    """Return all relevant objects."""
    return {info.key: store.get(info.key) for info in store.list("") if info.key not in NOT_COUNTED}


def expected(intent: Intent, under_way: AppCondition, world: World) -> Refused:
    """Return the refusal that a cell demands."""
    if under_way is AppCondition.REMOVAL:
        return apps.removal_in_progress(world.subject)
    if under_way is AppCondition.MAKING:
        return apps.clone_in_progress(world.subject)
    if under_way is AppCondition.RECOVERY and intent is not Intent.REPLICATE:
        under_way = AppCondition.COPY  # it is one until then
    replica = world.replica if under_way is AppCondition.RECOVERY else None
    sign = DETECTORS[under_way](replica or world.store, world.subject)
    assert sign is not None
    return refusal_error(intent, sign)


@pytest.mark.parametrize(("intent", "under_way"), CELLS, ids=lambda one: one.name.lower())
def test_an_operation_behaves_as_its_cell_says(intent: Intent, under_way: AppCondition, cache: SstCache) -> None:
    world = world_for(intent, cache)
    BEGIN[under_way](world)
    before, epochs = contents(world.store), {name: head.epoch for name, head in heads(world, APP).items()}

    def is_there() -> bool:
        if under_way is AppCondition.PROMOTION:
            return apps.PROMOTION_OUTCOMES.find(world.store, 1, "other" if world.goes else APP) is None
        if under_way is AppCondition.RECOVERY and world.replica is not None:
            return DETECTORS[under_way](world.replica, APP) is not None
        if under_way in (AppCondition.REMOVAL, AppCondition.MAKING):
            key = keys.removal_journal if under_way is AppCondition.REMOVAL else keys.clone_journal
            return exists(world.store, key(world.subject))
        return DETECTORS[under_way](world.store, world.subject) is not None

    assert is_there()
    match RULES[intent][under_way]:
        case ExclusionRule.REFUSED:
            error = expected(intent, under_way, world)
            with pytest.raises(Refused) as told:
                ACT[intent](world)
            if intent is Intent.REMOVE_SNAPSHOT and under_way in (AppCondition.CLONING, AppCondition.CLONES):
                assert "'third' is a clone that uses snapshot 'clone-third'" in told.value.message
            else:
                assert (told.value.message, told.value.hint) == (error.message, error.hint)
            now = contents(world.store)
            assert {key for key in now.keys() | before.keys() if now.get(key) != before.get(key)} == set()
        case ExclusionRule.BESIDE:
            ACT[intent](world)
            # What is removed, or made of its replica, is not that app any more.
            assert is_there() or intent in (Intent.REMOVE, Intent.REFRESH, Intent.RECOVER)
        case ExclusionRule.FENCES:
            ACT[intent](world)
            assert any(head.epoch > epochs[name] for name, head in heads(world, APP).items())
        case ExclusionRule.WAITS:
            with pytest.raises(
                Refused, match=r"runner host:1 did not apply the (edit|repair) of flights/aircraft within"
            ):
                ACT[intent](world)
        case ExclusionRule.WITHDRAWS:
            ACT[intent](world)
            assert not is_there()
        case ExclusionRule.FINISHES:
            if intent in DRY:
                with pytest.raises(Refused) as told:
                    DRY[intent](world)
                assert told.value.message == expected(intent, under_way, world).message
            ACT[intent](world)
            assert not is_there()
