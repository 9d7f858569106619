"""Garbage collection: what goes, what stays, and what may happen at the same time."""

from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import pytest
from msgspec.structs import replace
from slackwater.errors import Corruption, Fenced, NotFound, Refused
from slackwater.snapshot.bisect.search import bisect
from slackwater.snapshot.clone.clone import clone
from slackwater.snapshot.cut.graph import Cut
from slackwater.snapshot.cut.in_flight import in_flight
from slackwater.snapshot.cut.lineage import trace
from slackwater.snapshot.cut.resolve import resolve, telling_if_collected
from slackwater.snapshot.cut.stored import find_snapshot, list_snapshots, of_snapshot
from slackwater.snapshot.gc.collect import Collected, collect
from slackwater.snapshot.gc.explain import explain
from slackwater.snapshot.gc.retention import Retention
from slackwater.snapshot.query.log import entries
from slackwater.snapshot.query.sql import connect
from slackwater.snapshot.take import taking
from slackwater.snapshot.take.audit_log import list_operations
from slackwater.snapshot.take.remove import remove
from slackwater.snapshot.take.snapshots import pin
from slackwater.store.read.cache import SstCache
from slackwater.store.versions import history, horizon, keys
from slackwater.store.versions.commit import commit, successor
from slackwater.store.versions.manifest import Manifest

from tests.support.collecting import HOUR_MS, AgingStore, Killed, StoreClock, aging_app, fresh, keys_of
from tests.support.histories import STAGES, START_MS, FlightsApp, flights, rows_of

FEW = Retention(versions=3)


def store_of(app: FlightsApp) -> AgingStore:
    return cast("AgingStore", app.store)


def wait(app: FlightsApp, span_ms: int = 2 * HOUR_MS) -> None:
    cast("StoreClock", app.clock).wait(span_ms)


def gc(app: FlightsApp, retention: Retention = FEW, **options: Any) -> Collected:
    return collect(app.store, app.name, retention, by="test", **options)


def old_app(batches: int = 8) -> FlightsApp:
    """A history of which all but the last minutes are old enough to go."""
    app = aging_app()
    app.run(flights(batches * 10))
    app.compact("aircraft")
    app.compact("carriers")
    wait(app)
    app.run(flights(40))
    wait(app)
    return app


def at(hours: float) -> str:
    return datetime.fromtimestamp((START_MS + hours * HOUR_MS) / 1000, UTC).isoformat(timespec="milliseconds")


def check_whole(app: FlightsApp) -> None:
    """Every version of the history names only SSTs that are there, and its state can be read."""
    store = fresh(app.store)
    for stage in STAGES:
        for version in history.versions(store, app.name, stage):
            rows_of(store, history.read(store, app.name, stage, version))
        head = history.head(store, app.name, stage)
        assert head is not None
        assert rows_of(store, head) == app.state[stage]


def test_without_rules_all_history_stays_and_only_litter_goes() -> None:
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
    assert horizon.newest(store, "flights") is None
    check_whole(app)


def test_an_sst_that_the_next_batch_may_name_stays_however_old_it_is() -> None:
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


def test_what_no_rule_keeps_goes_and_the_rest_can_be_read() -> None:
    app = old_app()
    done = gc(app)
    assert all(each.versions > 0 for each in done.stages)
    assert {each.stage: each.ssts > 0 for each in done.stages} == {"aircraft": True, "carriers": True, "legs": False}
    for stage in STAGES:
        assert len(history.versions(app.store, app.name, stage)) in (3, 4)
    check_whole(app)
    assert gc(app).objects == 0
    assert [each.verb for each in list_operations(app.store, app.name)] == ["gc", "gc"]


def test_a_dry_run_changes_nothing_and_says_what_would_go() -> None:
    app = old_app()
    before = keys_of(store_of(app))
    told = gc(app, dry_run=True)
    assert keys_of(store_of(app)) == before
    assert replace_dry(gc(app)) == replace_dry(told)


def replace_dry(done: Collected) -> tuple[object, ...]:
    return done.stages, done.records, done.leftovers


def test_what_was_written_in_the_last_hour_stays_whatever_the_rules_say() -> None:
    app = aging_app()
    app.run(flights(50))
    assert all(each.versions == 0 for each in gc(app, Retention(versions=1)).stages)


def test_a_machine_whose_clock_is_ahead_by_years_takes_nothing_more() -> None:
    # It is 2025 in the store; this machine's clock says what it likes.
    app = aging_app()
    app.run(flights(50))
    wait(app)
    assert all(each.versions == 0 for each in gc(app, Retention(all_ms=24 * HOUR_MS)).stages)


def test_a_thinned_history_answers_for_each_hour_with_the_state_at_its_begin() -> None:
    app = aging_app()
    for _ in range(6):
        app.run(flights(200))
    wait(app)
    app.run(flights(10))
    store, rules = app.store, Retention(all_ms=4 * HOUR_MS, hourly_ms=1000 * HOUR_MS)
    now_ms = app.clock.now_ms
    wanted = {hour: resolve(store, f"flights@{at(hour - 1 / HOUR_MS)}", now_ms=now_ms) for hour in range(1, 6)}
    states = {hour: {name: rows_of(store, m) for name, m in cut.tables.items()} for hour, cut in wanted.items()}
    flying = {hour: in_flight(store, cut) for hour, cut in wanted.items()}
    assert sum(each.versions for each in gc(app, rules).stages) > 100
    store = fresh(store)
    for hour, cut in wanted.items():
        found = resolve(store, f"flights@{at(hour + 0.3)}", now_ms=now_ms)
        if hour < 3:
            assert found.versions == cut.versions
        cut = resolve(store, f"flights@{at(hour - 1 / HOUR_MS)}", now_ms=now_ms)
        assert {name: rows_of(store, m) for name, m in cut.tables.items()} == states[hour]
        assert in_flight(store, cut) == flying[hour]
        for manifest in cut.stages.values():
            trace(store, None, manifest)
    with pytest.raises(NotFound, match=r"is whole from .* on; before that, \d moments are left, from"):
        resolve(store, f"flights@{at(0.2)}", now_ms=now_ms)
    assert gc(app, rules).objects == 0
    check_whole(app)


def test_a_version_that_stayed_names_its_moment_and_one_that_went_is_not_found() -> None:
    app = aging_app()
    for _ in range(6):
        app.run(flights(200))
    gc(app, Retention(all_ms=HOUR_MS, hourly_ms=1000 * HOUR_MS))
    limit = horizon.newest(app.store, "flights")
    assert limit is not None
    moment = limit.moments[1]
    store = fresh(app.store)
    found = resolve(store, f"flights/carriers@v{moment.stages['carriers']}", now_ms=0)
    assert found.versions == moment.stages
    with pytest.raises(NotFound, match=r"there are .* of v"):
        resolve(store, "flights/carriers@v2", now_ms=0)
    stays = sum(len(history.versions(app.store, "flights", stage)) for stage in STAGES)
    assert len(entries(app.store, "flights", 10_000)) == stays


def test_a_second_collection_thins_out_further_and_keeps_what_it_should() -> None:
    app = aging_app()
    for _ in range(4):
        app.run(flights(200))
        gc(app, Retention(all_ms=HOUR_MS, hourly_ms=3 * HOUR_MS, daily_ms=1000 * HOUR_MS))
        check_whole(app)
    for _ in range(2):
        wait(app, 24 * HOUR_MS)
        app.run(flights(20))
    gc(app, Retention(all_ms=HOUR_MS, hourly_ms=3 * HOUR_MS, daily_ms=1000 * HOUR_MS))
    limit = horizon.newest(app.store, "flights")
    assert limit is not None
    assert len(limit.moments) == 1
    check_whole(app)


def test_what_a_receiver_has_not_read_stays() -> None:
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


def test_the_versions_of_a_channel_that_nobody_reads_yet_stay() -> None:
    app = FlightsApp(AgingStore(), (other := aging_app()).kafka, "alone", start=["legs"], clock=other.clock)
    for _ in range(10):
        app.send(*flights(5))
        app.step("legs")
    store_of(app).clock_ms += 10 * HOUR_MS
    (stage,) = collect(app.store, "alone", Retention(versions=1), by="test").stages
    assert (stage.versions, stage.rules["unread"]) == (0, 10)


def test_what_an_open_request_recorded_stays() -> None:
    app = old_app()
    asked = taking.request(app.store, "flights", "slow", "test")
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
    assert of_snapshot(app.store, taken).versions == taken.stages


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
    pin(app.store, cut, "early")
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
    remove(app.store, "flights", "early")
    assert gc(app).objects > 0
    with pytest.raises(NotFound):
        resolve(fresh(app.store), f"flights/carriers@v{cut.versions['carriers']}", now_ms=0)


@pytest.mark.parametrize("gone", STAGES)
def test_a_stage_that_is_gone_is_no_reason_to_take_what_snapshots_pin_of_the_others(gone: str) -> None:
    app = aging_app()
    app.run(flights(40))
    pinned = pin(app.store, resolve(app.store, "flights", now_ms=app.clock.now_ms), "kept")
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
    # The rest of a moment is no moment of the app.
    limit = horizon.newest(store, app.name)
    assert limit is None or limit.moments == ()
    with pytest.raises(NotFound, match=gone):
        of_snapshot(store, pinned)
    remove(app.store, app.name, "kept")
    assert gc(app).absent == ()


def test_a_clone_lives_on_whatever_its_source_and_it_collect() -> None:
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
def test_a_manifest_that_should_be_there_and_is_not_ends_it_before_anything_is_deleted(how: str) -> None:
    app = old_app()
    version = {"missing": 2, "unreadable": app.heads["legs"].version - 1, "missing snapshot": 1}.get(
        how, app.heads["legs"].version - 1
    )
    if how == "missing snapshot":
        pin(app.store, resolve(app.store, "flights/legs@v2", now_ms=0), "early")
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


def test_a_pin_made_while_it_looks_is_kept() -> None:
    app = old_app()
    cut = resolve(app.store, "flights/legs@v4", now_ms=0)
    store_of(app).once("put_if_absent", "boundaries/", lambda: pin(app.store, cut, "just-now"))
    gc(app)
    assert resolve(app.store, "flights@just-now", now_ms=0).versions == cut.versions
    check_whole(app)


def test_a_pin_of_what_was_proposed_meanwhile_gives_way() -> None:
    app = old_app()
    cut = resolve(app.store, "flights/legs@v4", now_ms=0)
    # The collection goes on, to its end, between the look of the pin and its write.
    store_of(app).once("put_if_absent", "snapshots/", lambda: gc(app))
    with pytest.raises(NotFound, match="was collected before it could be pinned"):
        pin(app.store, cut, "too-late")
    assert find_snapshot(app.store, "flights", "too-late") is None
    check_whole(app)


def test_a_pin_made_between_the_proposal_and_the_second_look_gives_way_too() -> None:
    app = old_app()
    store, cut = store_of(app), resolve(app.store, "flights/legs@v4", now_ms=0)
    refused = []

    def try_to_pin() -> None:
        with pytest.raises(NotFound) as caught:
            pin(store, cut, "too-late")
        refused.append(caught)

    store.once("put_if_absent", "boundaries/", lambda: store.once("list", "snapshots/", try_to_pin))
    gc(app)
    assert refused
    assert not list_snapshots(store, "flights")
    check_whole(app)


def test_what_a_removed_snapshot_pinned_may_be_pinned_again_while_a_collection_ends() -> None:
    """The proposal still keeps it, which is all that the second pin can see."""
    app = old_app()
    store, cut = store_of(app), resolve(app.store, "flights/legs@v4", now_ms=0)
    pin(store, cut, "first")

    def remove_and_pin() -> None:
        remove(store, "flights", "first")
        store.once("put_if_absent", "boundaries/", lambda: pin(store, cut, "second"))

    store.once("put_if_absent", "boundaries/", lambda: store.once("list", "snapshots/", remove_and_pin))
    gc(app)
    assert [each.name for each in list_snapshots(store, "flights")] == ["second"]
    for _ in range(2):
        assert resolve(fresh(store), "flights@second", now_ms=0).versions == cut.versions
        check_whole(app)
        gc(app)


def test_a_clone_of_what_is_collected_meanwhile_is_refused_whole() -> None:
    app = old_app()
    store_of(app).once("put_if_absent", "snapshots/", lambda: gc(app))
    with pytest.raises(NotFound):
        clone(app.store, "flights/legs@v4", "staging", topics={}, channels=app.kafka, by="test", now_ms=0)
    assert not keys_of(store_of(app), "staging/")
    assert not list_snapshots(app.store, "flights")


@pytest.mark.parametrize("moment", ["list:snapshots/", "put_if_absent:boundaries/", "get:manifests/"])
def test_of_two_collections_one_gives_way_and_nothing_is_lost(moment: str) -> None:
    app = old_app()
    verb, part = moment.split(":")
    store_of(app).once(verb, part, lambda: gc(app, Retention(versions=2)))
    with pytest.raises(Refused, match="another collection of flights went on"):
        gc(app)
    check_whole(app)
    gc(app)
    check_whole(app)


@pytest.mark.parametrize("moment", ["list:manifests/", "put_if_absent:boundaries/", "delete:manifests/", "delete:sst/"])
def test_the_app_goes_on_beside_it(moment: str) -> None:
    app = old_app()
    verb, part = moment.split(":")

    def go_on() -> None:
        app.run(flights(20))
        app.compact("carriers")

    store_of(app).once(verb, part, go_on)
    gc(app)
    check_whole(app)


def test_killed_anywhere_it_leaves_a_whole_history_and_the_next_one_ends_it() -> None:
    expected = old_app()
    gc(expected)
    kept = _shape(keys_of(store_of(expected)))
    requests = 0
    for stop in range(1, 10_000, 3):
        app = old_app()
        requests = 0

        def count(verb: str, key: str, stop: int = stop) -> None:
            nonlocal requests
            requests += 1
            if requests >= stop:
                raise Killed

        store_of(app).before = count
        try:
            gc(app)
        except Killed:
            store_of(app).before = lambda verb, key: None
        else:
            break
        check_whole(app)
        gc(app)
        check_whole(app)
        assert _shape(keys_of(store_of(app))) == kept
    assert requests > 50


def test_what_a_killed_collection_only_proposed_comes_back() -> None:
    app = old_app()
    before = history.versions(app.store, "flights", "legs")

    def kill() -> None:
        raise Killed

    store = store_of(app)
    store.once("put_if_absent", "boundaries/", lambda: store.once("list", "snapshots/", kill))
    with pytest.raises(Killed):
        gc(app)
    assert history.versions(store, "flights", "legs") != before
    gc(app, Retention())
    assert history.versions(store, "flights", "legs") == before


def _shape(found: set[str]) -> tuple[set[str], int]:
    """Names of manifests, and how many SSTs there are: those have random names."""
    return {key for key in found if "/manifests/" in key}, sum("/sst/" in key for key in found)


def test_a_stalled_writer_does_not_create_a_number_again() -> None:
    app = old_app()
    stalled = successor(app.version("legs", 4), kind="batch", epoch=1, writer="stalled", by="old:1", now_ms=0)
    gc(app)
    with pytest.raises(Fenced, match="its history begins at v"):
        commit(app.store, stalled)
    assert keys.manifest("flights", "legs", 5) not in keys_of(store_of(app))


def test_a_number_that_a_stalled_writer_created_and_died_is_collected_and_never_read() -> None:
    app = old_app()
    gc(app)
    zombie = replace(app.heads["legs"], version=5, time_ms=1)
    _write(app, zombie)
    assert 5 not in history.versions(app.store, "flights", "legs")
    assert history.head(app.store, "flights", "legs") == app.heads["legs"]
    assert gc(app).objects == 1
    check_whole(app)


def _write(app: FlightsApp, manifest: Manifest) -> None:
    from slackwater.store.versions import codec

    app.store.put(keys.manifest(manifest.app, manifest.stage, manifest.version), codec.encode(manifest))


def test_a_writer_that_was_away_for_less_than_half_a_minute_need_not_look() -> None:
    now = 0.0
    sights = horizon.Sights(lambda: now)
    sights.saw_free("app", "stage", 5, sights.now())
    now = 29.0
    assert sights.is_fresh("app", "stage", 5)
    assert not sights.is_fresh("app", "stage", 6)
    now = 1800.0
    assert not sights.is_fresh("app", "stage", 5)


def test_records_in_flight_that_no_snapshot_names_go_and_those_of_a_request_stay() -> None:
    app = aging_app()
    app.run(flights(30))
    litter = keys.captured("flights", "broken", "01A")
    asked = keys.captured("flights", "asked", "01B")
    app.store.put(litter, b"1234")
    app.store.put(asked, b"1234")
    taking.request(app.store, "flights", "asked", "test")
    assert gc(app).records == 0
    wait(app)
    done = gc(app)
    assert (done.records, done.record_bytes) == (1, 4)
    assert litter not in keys_of(store_of(app))
    assert asked in keys_of(store_of(app))


def test_bisect_searches_what_is_whole_and_says_so_of_the_rest(tmp_path: Any) -> None:
    app = aging_app()
    for _ in range(4):
        app.run(flights(200))
    where = "SELECT 1 FROM carriers HAVING sum(flights) > 780"
    gc(app, Retention(all_ms=HOUR_MS, hourly_ms=1000 * HOUR_MS))
    cache = SstCache(tmp_path, 1 << 30)
    verdict = bisect(app.store, cache, "flights", where, now_ms=0)
    assert verdict.stage == "carriers"
    with pytest.raises(Refused, match="thinned out"):
        bisect(app.store, cache, "flights", where, good=f"flights@{at(1.2)}")


def _key(cut: Cut, stage: str) -> str:
    return keys.manifest(cut.app, stage, cut.versions[stage])


def test_it_explains_why_an_object_stays_or_goes() -> None:
    app = aging_app()
    app.run(flights(30))
    early = resolve(app.store, "flights", now_ms=0)
    pin(app.store, early, "early")
    app.run(flights(60))
    app.compact("carriers")
    wait(app)
    app.run(flights(40))

    def why(key: str) -> tuple[bool, str]:
        told = explain(app.store, "flights", key, FEW)
        return told.kept, "; ".join(told.reasons)

    now = resolve(app.store, "flights", now_ms=0)
    assert why(_key(now, "carriers")) == (
        True,
        "it is the newest version of its stage; retention keeps the newest 3 versions",
    )
    pinned = "snapshot early pins it, or its records in flight and lineage need it"
    assert why(_key(early, "carriers")) == (True, pinned)
    old = early.stages["carriers"].ssts[0].object
    kept, reason = why(old)
    assert kept
    assert pinned in reason
    assert why(keys.manifest("flights", "carriers", 6))[0] is False
    between = next(
        sst.object
        for sst in app.version("carriers", 6).ssts
        if sst.object not in {one.object for one in early.stages["carriers"].ssts}
    )
    assert why(between) == (False, "no version that stays names it, and carriers has committed without it since")
    assert why("app.json")[0]
    with pytest.raises(NotFound):
        why("stages/carriers/sst/none.parquet")


def test_reading_a_version_that_is_collected_meanwhile_says_so(tmp_path: Path) -> None:
    app = old_app()
    cut = resolve(app.store, "flights/carriers@v3", now_ms=app.clock.now_ms)
    store_of(app).once("get", "/sst/", lambda: gc(app))
    with (
        closing(SstCache(tmp_path, 1 << 30)) as cache,
        pytest.raises(NotFound, match=r"carriers@v3 went while it was read: retention does not keep it") as error,
        telling_if_collected(app.store, cut),
        connect(app.store, cache, cut),
    ):
        pass
    assert "--instant" in error.value.hint


def test_damage_to_a_version_that_stays_is_told_as_damage(tmp_path: Path) -> None:
    app = old_app()
    gc(app)
    cut = resolve(app.store, "flights", now_ms=app.clock.now_ms)
    app.store.delete(cut.stages["aircraft"].ssts[0].object)
    with (
        closing(SstCache(tmp_path, 1 << 30)) as cache,
        pytest.raises(Corruption, match="the object is missing"),
        telling_if_collected(app.store, cut),
        connect(app.store, cache, cut),
    ):
        pass
