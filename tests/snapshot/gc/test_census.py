"""The census lists the kinds of objects in an app's folder. Each verb treats an object as the census says."""

from collections.abc import Callable, Iterable
from pathlib import Path

from slackwater.errors import Refused, SlackwaterError
from slackwater.operations.disaster_recovery.replicate import Replicator
from slackwater.operations.erasure.family import RequestedKeys
from slackwater.operations.erasure.forget import forget
from slackwater.operations.exchange.export import export_folder
from slackwater.operations.key_search.key_fields import DeclaredFields
from slackwater.operations.maintenance.removal import Protection, Removal, remove_app
from slackwater.operations.repair.records.journal import Repair
from slackwater.operations.staging.refresh import RefreshJournal
from slackwater.snapshot.change.migrate import carry_out
from slackwater.snapshot.change.stages import RetryRequest
from slackwater.snapshot.cut.migrations import MigratedStage
from slackwater.snapshot.cut.replicas import KnownReplica, Recovery, Replica, ReplicaCut
from slackwater.snapshot.cut.resolve import resolve
from slackwater.snapshot.cut.stored import SnapshotPack, SnapshotRequest, notify_runners, read_snapshot
from slackwater.snapshot.gc import census
from slackwater.snapshot.gc.census import OBJECT_KINDS, ObjectKind, object_kind_of
from slackwater.snapshot.gc.reachable import Retention
from slackwater.snapshot.take.audit_log import record_operation
from slackwater.snapshot.take.snapshots import pin_cut
from slackwater.snapshot.under_way.runners import EditRequest, Heartbeat, Hold
from slackwater.snapshot.verify.verify import verify
from slackwater.store.archive.extents import Extent
from slackwater.store.hot.places import HotPlace
from slackwater.store.objects.memory import MemoryStore
from slackwater.store.read.cache import SstCache
from slackwater.store.versions import apps, codec, keys
from slackwater.store.versions.forgotten import ForgetJournal
from slackwater.store.versions.manifest import Edit
from slackwater.store.versions.published import PublishedPosition
from slackwater.store.versions.side_tables import leaf_keys
from ulid import ULID

from tests.operations.erasure.everything import archive_of, occurrences
from tests.operations.failover import failover_app, failover_kafka
from tests.snapshot.gc.paging import write_page
from tests.store.archive.small_archives import BY, TOPIC
from tests.support.collecting import HOUR_MS, AgingStore, fresh, gc, store_of, wait
from tests.support.histories import STAGES, FlightsApp, flights

NOW_MS = 2_000_000_000_000
APP, ID = "flights", str(ULID())
CACHE = SstCache(Path("/nonexistent"), 0)
FIELDS = DeclaredFields({"aircraft": (f"{TOPIC}:value",)})

UNFINISHED = {
    keys.clone_journal(APP): Protection(APP, BY, 1),
    keys.removal_journal(APP): Removal(ID, APP, 1, BY, {}, ()),
    keys.forget_journal(APP): ForgetJournal(ID, APP, BY, 1, "", "0" * 32),
}
"""Journals that keep verbs from beginning."""
REQUESTED = {
    keys.json_object(keys.requests(APP), ID): SnapshotRequest(ID, "later", 1, BY),
    keys.json_object(keys.edits(APP), ID): EditRequest(Edit(ID, BY, "UPDATE"), "aircraft", 1, 1),
    keys.edit_rows(APP, ID): EditRequest(Edit(ID, BY, "UPDATE"), "aircraft", 1, 1),
}
NOTES = {
    keys.channels(APP): Protection(APP, BY, 1),
    keys.json_object(keys.published_positions(APP, "carriers", "sink"), 1): PublishedPosition(1, 0, 0),
    keys.json_object(keys.runners(APP), ID): Heartbeat(ID, BY, {}),
    keys.json_object(keys.retries(APP), ID): RetryRequest(ID, "aircraft", 1, BY),
    keys.json_object(keys.repairs(APP), ID): Repair(ID, BY, 1, ("orders[0]@1",), {}),
    keys.json_object(keys.hot_places(APP), ID): HotPlace(APP, ID, "/srv/hot/place", "/srv/flights"),
    keys.hold(APP): Hold(APP, APP, "other", BY, 1, {}, None),
    keys.protected(APP): Protection(APP, BY, 1),
    keys.json_object(keys.replicas(APP), "r1"): KnownReplica(APP, "r1", "/srv/replica", {}, 1, 1),
    keys.replica(APP): Replica(APP, "/srv/source", 1, "recovered", by=BY, time_ms=1),
    keys.json_object(keys.replica_cuts(APP), 1): ReplicaCut(APP, 1, {}, 1, 1),
    keys.recovery_journal(APP): Recovery(APP, ID, BY, 1),
    keys.recovered_root(APP): Replica(APP, "/srv/replica", 1, "left", by=BY, time_ms=1),
    keys.refresh_journal(APP): RefreshJournal(apps.AppInfo(APP, 1), BY, 1),
    keys.removed(APP): Removal(ID, APP, 1, BY, {}, ()),
    keys.snapshot_pack(APP): SnapshotPack(APP),
}


def forgotten(app: FlightsApp, tail: str) -> None:
    asked, kafka = RequestedKeys.parse((f"aircraft={tail}",)), failover_kafka(app)
    forget(app.store, CACHE, APP, asked, by=BY, kafka=kafka, declared=FIELDS, pause=lambda: None)
    for stage in STAGES:
        app.claim(stage)


def whole_app() -> FlightsApp:
    """Return an app with an object of every kind that does not block verbs; each verb has one to change."""
    app = failover_app()
    app.run(flights(60))
    wait(app)
    archive_of(app.store, APP, Extent(0, 0, 4), {1: b"N001", 2: b"N002"})
    archive_of(app.store, APP, Extent(0, 4, 8), {5: b"N002"})
    carry_out(
        app.store, APP, 1, dict.fromkeys(STAGES, MigratedStage()), "migration-1", "", by=BY, now_ms=app.clock.tick("")
    )
    for stage in STAGES:
        app.claim(stage)
    app.send(*flights(8))
    app.step("legs")
    pin_cut(app.store, resolve(app.store, APP, now_ms=NOW_MS), "before", by=BY, reader=app.kafka)
    app.run(flights(60))
    gc(app, Retention(versions=2))
    forgotten(app, "N001")
    record_operation(app.store, APP, "snapshot take", "N002", BY)
    notify_runners(app.store, APP)
    for key, note in NOTES.items():
        app.store.put(key, codec.encode(note))
    write_page(store_of(app), APP, "carriers", app.heads["carriers"].version)
    return app


def contents(store: AgingStore | MemoryStore) -> dict[str, bytes]:
    return {info.key: MemoryStore.get(store, info.key) for info in MemoryStore.list(store, f"{APP}/")}


def kinds(of: Iterable[str]) -> set[str]:
    return {kind.key_pattern for key in of if (kind := object_kind_of(key)) is not None}


def places(says: Callable[[ObjectKind], object], left_out: Iterable[str] = (*UNFINISHED, *REQUESTED)) -> set[str]:
    """Return the kinds that have an entry in this column of the census, except those that the app here lacks."""
    return {kind.key_pattern for kind in OBJECT_KINDS if says(kind)} - kinds(left_out)


def test_each_object_of_an_app_is_in_one_row_and_each_row_has_objects() -> None:
    app = whole_app()
    there = contents(store_of(app)).keys() | UNFINISHED.keys() | REQUESTED.keys()
    assert {key for key in there if object_kind_of(key) is None} == set()
    assert kinds(there) == {kind.key_pattern for kind in OBJECT_KINDS}
    places_in_words = [kind.key_pattern for kind in OBJECT_KINDS]
    assert [object_kind_of(place) for place in places_in_words] == list(OBJECT_KINDS), "no place is another one's, too"
    assert (
        object_kind_of(f"{APP}/stages/legs/notes.txt")
        is object_kind_of("app.json")
        is object_kind_of(f"{APP}/log/a/b.json")
        is None
    )


def test_collection_deletes_exactly_what_its_column_names() -> None:
    app = whole_app()
    forgotten(app, "N002")
    app.store.put(keys.captured_records(APP, "gone", ID), b"")
    app.compact("carriers")
    wait(app)
    app.run(flights(20))
    wait(app)
    with store_of(app).requests() as requests:
        gc(app, Retention(versions=3, input_ms=1), margin_ms=HOUR_MS)
    deleted = [request.removeprefix("delete ") for request in requests if request.startswith("delete ")]
    assert kinds(deleted) == places(lambda kind: kind.gc)
    assert all(object_kind_of(key) is not None for key in deleted)


def test_a_forget_changes_and_is_refused_as_its_column_says() -> None:
    app = whole_app()
    before = contents(store_of(app))
    holding = {key for key, _ in occurrences(app.store, "N002")}
    forgotten(app, "N002")
    after = contents(store_of(app))
    assert kinds(before.keys() - after.keys()) == places(lambda kind: kind.forget == "rewrites")
    changed = {key for key, data in before.items() if after.get(key, data) != data}
    assert kinds(changed) <= places(lambda kind: kind.forget == "masks") | kinds((keys.request_signal(APP),))
    assert kinds(holding) == places(lambda kind: kind.forget in ("rewrites", "masks")) - {census.MANIFEST.key_pattern}
    assert occurrences(app.store, "N002") == []
    refused = {key for key, note in REQUESTED.items() if _refuses(app, key, codec.encode(note))}
    assert kinds(refused) == places(lambda kind: kind.forget == "refuses" and not kind.named_by, UNFINISHED)


def _refuses(app: FlightsApp, key: str, data: bytes) -> bool:
    app.store.put(key, data)
    try:
        forgotten(app, "N003")
    except Refused:
        return True
    finally:
        app.store.delete(key)
    return False


def test_a_replica_has_exactly_the_objects_its_column_names() -> None:
    app, target = whole_app(), AgingStore()
    for key, note in REQUESTED.items():
        app.store.put(key, codec.encode(note))
    Replicator(app.store, target, APP, BY, failover_kafka(app)).run_round()
    here, there = contents(store_of(app)), contents(target)
    # A snapshot is copied with what is left of its records.
    copied = {key for key, data in here.items() if there.get(key) == data or object_kind_of(key) is census.SNAPSHOT}
    assert kinds(copied) == places(lambda kind: kind.replicate, UNFINISHED)
    assert (
        copied == {key for key in here if (kind := object_kind_of(key)) is not None and kind.replicate} & there.keys()
    )


def test_removal_deletes_everything_in_the_order_of_its_column() -> None:
    app = whole_app()
    store = store_of(app)
    with store.requests() as requests:
        remove_app(store, APP, by=BY, now_ms=NOW_MS, fence=True, pause=store.pause)
    deleted = [request.removeprefix("delete ") for request in requests if request.startswith("delete ")]
    assert kinds(contents(store)) == places(lambda kind: kind.remove == "stays")
    turns = [kind.remove for key in deleted if (kind := object_kind_of(key)) is not None]
    assert turns[0] == "first"
    assert turns.index("then") > max(at for at, turn in enumerate(turns) if turn == "first")
    assert turns[-4:] == ["last", "last", "last", "note"], "the newest version of each stage, and then the note"


def tells(verb: Callable[[], bool]) -> bool:
    try:
        return not verb()
    except SlackwaterError:
        return True


def told_damaged(app: FlightsApp, verb: Callable[[], bool]) -> set[str]:
    """Return the kinds whose damage a verb reports.

    One object of each kind is damaged, if possible one that the snapshot names.
    """
    told, cut = set(), resolve(app.store, f"{APP}@before", now_ms=NOW_MS)
    named = {sst.object for manifest in cut.stages.values() for sst in manifest.ssts}
    named |= {leaf for manifest in cut.stages.values() for leaf in leaf_keys(manifest)}
    named |= {keys.manifest(APP, stage, version) for stage, version in cut.versions.items()}
    named |= {keys.json_object(keys.snapshots(APP), "before"), *read_snapshot(app.store, APP, "before").object_keys}
    one_of: dict[ObjectKind | None, str] = {}
    for key in contents(store_of(app)):
        if one_of.get(object_kind_of(key)) not in named:
            one_of[object_kind_of(key)] = key
    for key in one_of.values():
        data = app.store.get(key)
        app.store.put(key, bytes(each ^ 0x55 for each in data))
        if tells(verb):
            told.add(key)
        app.store.put(key, data)
    return kinds(told)


def test_verification_reports_damage_of_exactly_what_its_column_names() -> None:
    app = whole_app()

    def whole() -> bool:
        return verify(fresh(app.store), f"{APP}@before", now_ms=NOW_MS, deep=True, reader=app.kafka).consistent

    assert whole()
    assert told_damaged(app, whole) == places(lambda kind: kind.verify)


def test_an_export_is_refused_if_an_object_its_column_names_is_damaged(tmp_path: Path) -> None:
    app = whole_app()

    def export() -> bool:
        store, cache = fresh(app.store), SstCache(tmp_path / str(ULID()), 1 << 30)
        cut = resolve(store, f"{APP}@before", now_ms=NOW_MS)
        export_folder(
            store, cache, cut, cut.ref, tmp_path / str(ULID()), lambda: app.kafka, by=BY, now_ms=app.clock.now_ms
        )
        return True

    assert told_damaged(app, export) == places(lambda kind: kind.export)


def test_the_docs_show_each_row() -> None:
    told = (Path(__file__).parents[3] / "docs/operating.md").read_text()
    for kind in OBJECT_KINDS:
        words = (kind.named_by, kind.gc, kind.forget)
        # The kinds that none of these concerns have a table without these columns.
        shown = [word or "-" for word in words] if any(words) else []
        cells = (f"`{kind.key_pattern.removeprefix('<app>/')}`", kind.description, *shown)
        assert f"| {' | '.join(cells)} |" in told
