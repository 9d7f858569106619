"""Versions, SSTs and captured records that garbage collection deletes or keeps."""

import pytest
from msgspec.structs import replace
from slackwater.errors import Corruption, NotFound
from slackwater.operations.staging.clone import clone
from slackwater.snapshot.cut.in_flight import in_flight
from slackwater.snapshot.cut.resolve import resolve
from slackwater.snapshot.cut.stored import cut_of_snapshot
from slackwater.snapshot.gc.collect import Collected, collect
from slackwater.snapshot.gc.reachable import Retention
from slackwater.snapshot.take import taking
from slackwater.snapshot.take.audit_log import list_operations
from slackwater.snapshot.take.snapshots import delete_snapshot, pin_cut
from slackwater.store.versions import commit, history, horizon, keys, published
from slackwater.store.versions.manifest import Manifest, Sink
from slackwater.store.versions.published import PublishedPosition

from tests.support.collecting import (
    HOUR_MS,
    AgingStore,
    aging_app,
    check_whole,
    fresh,
    gc,
    keys_of,
    old_app,
    store_of,
    wait,
)
from tests.support.histories import STAGES, FlightsApp, flights, rows_of


def test_without_rules_all_history_stays_and_only_leftovers_are_deleted() -> None:
    app = aging_app()
    app.run(flights(30))
    store = store_of(app)
    before = keys_of(store)
    store.put(keys.sst("flights", "carriers", "01ATTEMPTTHATFAILED"), b"litter")
    wait(app)
    app.run(flights(10))
    done = gc(app, Retention())
    assert [each.versions for each in done.stages] == [0, 0, 0]
    assert (done.objects, done.bytes) == (1, 6)
    assert before <= keys_of(store)
    assert keys.sst("flights", "carriers", "01ATTEMPTTHATFAILED") not in keys_of(store)
    assert horizon.newest(store, "flights") == horizon.NOTHING_COLLECTED
    check_whole(app)


def test_an_uncommitted_sst_that_the_next_batch_may_name_stays_at_any_age() -> None:
    app = aging_app()
    app.run(flights(30))
    merged = keys.sst("flights", "carriers", "01MERGEDANDNOTCOMMITTED")
    app.store.put(merged, b"waits")
    wait(app, 100 * HOUR_MS)
    app.compact("carriers")
    done = gc(app)
    assert merged in keys_of(store_of(app))
    assert sum(each.waiting_ssts for each in done.stages) == 1
    app.run(flights(10))
    gc(app)
    assert merged not in keys_of(store_of(app))


def test_versions_kept_by_no_rule_are_deleted_and_the_rest_is_readable() -> None:
    app = old_app()
    done = gc(app)
    assert all(each.versions > 0 for each in done.stages)
    assert {each.stage: each.ssts > 0 for each in done.stages} == {"aircraft": True, "carriers": True, "legs": False}
    for stage in STAGES:
        assert len(history.list_versions(app.store, app.name, stage)) in (3, 4)
    check_whole(app)
    assert gc(app).objects == 0
    assert [each.verb for each in list_operations(app.store, app.name)] == ["gc", "gc"]


def test_a_dry_run_changes_nothing_and_lists_what_would_be_deleted() -> None:
    app = old_app()
    before = keys_of(store_of(app))
    told = gc(app, dry_run=True)
    assert keys_of(store_of(app)) == before
    assert replace_dry(gc(app)) == replace_dry(told)


def replace_dry(done: Collected) -> tuple[object, ...]:
    return done.stages, done.records, done.leftovers


def test_objects_of_the_last_hour_stay_under_any_rules() -> None:
    app = aging_app()
    app.run(flights(50))
    assert all(each.versions == 0 for each in gc(app, Retention(versions=1)).stages)


def test_a_collectors_clock_years_ahead_deletes_nothing_more() -> None:
    # It is 2025 in the store; this machine's clock is years ahead.
    app = aging_app()
    app.run(flights(50))
    wait(app)
    assert all(each.versions == 0 for each in gc(app, Retention(all_ms=24 * HOUR_MS)).stages)


def test_records_that_a_receiver_has_not_read_stay() -> None:
    app = old_app()
    for _ in range(20):
        app.send(*flights(5))
        app.step("legs")
    wait(app)
    unread = app.heads["aircraft"].inputs["by-aircraft"].version
    gc(app, Retention(versions=1))
    assert history.first_version(app.store, "flights", "legs") <= unread + 1
    app.step_all()
    app.step_all()
    check_whole(app)


def test_the_versions_of_a_channel_without_a_reader_stay() -> None:
    app = FlightsApp(AgingStore(), (other := aging_app()).kafka, "alone", start=["legs"], clock=other.clock)
    for _ in range(10):
        app.send(*flights(5))
        app.step("legs")
    store_of(app).clock_ms += 10 * HOUR_MS
    (stage,) = collect(app.store, "alone", Retention(versions=1), by="test").stages
    assert (stage.versions, stage.rules["unread"]) == (0, 10)


def test_versions_recorded_for_an_open_request_stay() -> None:
    app = old_app()
    asked = taking.request_snapshot(app.store, "flights", "slow", "test")
    app.step("legs")
    recorded = app.heads["legs"].recorded[asked.id]
    for _ in range(10):
        app.send(*flights(5))
        app.step("legs")
    wait(app)
    gc(app, Retention(versions=1))
    assert history.first_version(app.store, "flights", "legs") <= recorded
    app.step("aircraft")
    app.step("carriers")
    taken = taking.try_complete(app.store, "flights", asked, app.kafka)
    assert taken is not None
    wait(app)
    gc(app, Retention(versions=1))
    assert cut_of_snapshot(app.store, taken).versions == taken.stages


def test_a_snapshot_keeps_its_state_until_it_is_removed() -> None:
    app = aging_app()
    app.run(flights(30))
    for _ in range(4):
        app.send(*flights(5))
        app.step("legs")
    cut = resolve(app.store, "flights", now_ms=0)
    states = {name: rows_of(app.store, manifest) for name, manifest in cut.tables.items()}
    flying = in_flight(app.store, cut)
    assert flying[0].rows == 20
    pin_cut(app.store, cut, "early")
    app.run(flights(60))
    app.compact("carriers")
    wait(app)
    app.run(flights(10))
    gc(app)
    store = fresh(app.store)
    found = resolve(store, "flights@early", now_ms=0)
    assert {name: rows_of(store, manifest) for name, manifest in found.tables.items()} == states
    assert in_flight(store, found) == flying
    assert resolve(store, f"flights/carriers@v{cut.versions['carriers']}", now_ms=0).versions == cut.versions
    delete_snapshot(app.store, "flights", "early")
    assert gc(app).objects > 0
    with pytest.raises(NotFound):
        resolve(fresh(app.store), f"flights/carriers@v{cut.versions['carriers']}", now_ms=0)


@pytest.mark.parametrize("gone", STAGES)
def test_a_removed_stage_does_not_unpin_snapshots_of_other_stages(gone: str) -> None:
    app = aging_app()
    app.run(flights(40))
    pinned = pin_cut(app.store, resolve(app.store, "flights", now_ms=app.clock.now_ms), "kept")
    for _ in range(2):
        wait(app)
        app.run(flights(40))
    there = {
        stage: history.read(app.store, app.name, stage, version)
        for stage, version in pinned.stages.items()
        if stage != gone
    }
    shown = {stage: rows_of(app.store, manifest) for stage, manifest in there.items() if manifest.table}
    for key in keys_of(store_of(app), f"{keys.stages(app.name)}{gone}/"):
        app.store.delete(key)
    done = gc(app)
    assert [(one.snapshot, one.stage, one.version) for one in done.absent] == [("kept", gone, pinned.stages[gone])]
    store = fresh(app.store)
    for stage, manifest in there.items():
        assert history.read(store, app.name, stage, manifest.version) == manifest
    assert {stage: rows_of(store, there[stage]) for stage in shown} == shown
    # The remaining part of a moment is not a moment of the app.
    limit = horizon.newest(store, app.name)
    assert limit is None or limit.moments == ()
    with pytest.raises(NotFound, match=gone):
        cut_of_snapshot(store, pinned)
    delete_snapshot(app.store, app.name, "kept")
    assert gc(app).absent == ()


def test_a_clone_stays_intact_if_both_it_and_its_source_are_collected() -> None:
    app = aging_app()
    app.run(flights(40))
    state = dict(app.state["carriers"])
    clone(app.store, "flights", "staging", topics={}, channels=app.kafka, by="test", now_ms=app.clock.now_ms)
    app.run(flights(60))
    app.compact("carriers")
    wait(app)
    app.run(flights(10))
    before = keys_of(store_of(app), "staging/")
    gc(app)
    assert keys_of(store_of(app), "staging/") == before
    staging = FlightsApp(app.store, app.kafka, "staging", clock=app.clock)
    assert staging.state["carriers"] == state
    for _ in range(4):
        staging.step_all()
    staging.compact("carriers")
    wait(app)
    staging.run(flights(10))
    source = keys_of(store_of(app), "flights/")
    gc(staging)
    assert keys_of(store_of(app), "flights/") == source
    check_whole(staging)
    check_whole(app)


@pytest.mark.parametrize("how", ["missing", "unreadable", "missing snapshot", "missing head's neighbour"])
def test_a_missing_or_unreadable_manifest_ends_the_collection_before_anything_is_deleted(how: str) -> None:
    app = old_app()
    version = {"missing": 2, "unreadable": app.heads["legs"].version - 1, "missing snapshot": 1}.get(
        how, app.heads["legs"].version - 1
    )
    if how == "missing snapshot":
        pin_cut(app.store, resolve(app.store, "flights/legs@v2", now_ms=0), "early")
        gc(app)
        (kept,) = horizon.newest(app.store, "flights").kept["legs"][:1]  # type: ignore[union-attr]
        version = kept
    key = keys.manifest("flights", "legs", version)
    if how == "unreadable":
        app.store.put(key, b"{}")
    else:
        app.store.delete(key)
    before = keys_of(store_of(app))
    with pytest.raises(Corruption):
        gc(app)
    assert keys_of(store_of(app)) - {"flights/gc.json"} == before - {"flights/gc.json"}


def test_unreferenced_captured_records_are_deleted_and_those_of_an_open_request_stay() -> None:
    app = aging_app()
    app.run(flights(30))
    litter = keys.captured_records("flights", "broken", "01A")
    asked = keys.captured_records("flights", "asked", "01B")
    app.store.put(litter, b"1234")
    app.store.put(asked, b"1234")
    taking.request_snapshot(app.store, "flights", "asked", "test")
    assert gc(app).records == 0
    wait(app)
    done = gc(app)
    assert (done.records, done.record_bytes) == (1, 4)
    assert litter not in keys_of(store_of(app))
    assert asked in keys_of(store_of(app))


def test_unpublished_rows_stay() -> None:
    app = old_app()
    app.commit(with_sink(app.heads["carriers"], rows=0))
    begun = app.heads["carriers"].version
    for _ in range(20):
        app.commit(with_sink(app.heads["carriers"], rows=1))
    wait(app)
    gc(app, Retention(versions=1))
    assert history.first_version(app.store, "flights", "carriers") <= begun
    published.write_position(app.store, app.heads["carriers"], "alerts", PublishedPosition(begun + 15, 15, 15), None)
    seen = gc(app, Retention(versions=1))
    carriers = next(stage for stage in seen.stages if stage.stage == "carriers")
    assert (carriers.first, carriers.rules["unpublished"]) == (begun + 15, 5)


def with_sink(head: Manifest, *, rows: int) -> Manifest:
    """Return the next version of a stage, with rows for a sink; the first call starts the sink."""
    draft = commit.successor(
        head, kind="batch", epoch=head.epoch, writer=head.writer, by="test", now_ms=head.time_ms + 1
    )
    sink = draft.sinks.get("alerts") or Sink("internal", 0, since=draft.version)
    return replace(draft, sinks={"alerts": replace(sink, end=sink.end + rows, rows=rows, sent=sink.sent + rows)})
