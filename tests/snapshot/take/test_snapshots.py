from pathlib import Path

import pytest
from msgspec.structs import replace
from slackwater.errors import NotFound, Refused, Usage
from slackwater.snapshot.cut.graph import Cut, violations
from slackwater.snapshot.cut.in_flight import in_flight
from slackwater.snapshot.cut.resolve import resolve
from slackwater.snapshot.cut.stored import (
    SnapshotRequest,
    list_snapshots,
    open_requests,
    read_snapshot,
    withdraw_request,
)
from slackwater.snapshot.take import audit_log
from slackwater.snapshot.take.snapshots import delete_snapshot, pin_cut, remove_or_withdraw
from slackwater.snapshot.take.taking import read_answers, request_snapshot, try_complete
from slackwater.store.objects.counting import CountingStore
from slackwater.store.objects.local import LocalStore
from slackwater.store.objects.memory import MemoryStore
from slackwater.store.objects.protocol import ObjectStore
from slackwater.store.versions import apps, codec, keys
from slackwater.store.versions.manifest import AppInfo, Origin

from tests.snapshot.wide import Rounds, first_version, many_apps, pin_versions
from tests.support.histories import START_MS, FlightsApp, Kafka, app_of, flights


@pytest.fixture
def app() -> FlightsApp:
    return app_of(30)


def now(app: FlightsApp) -> Cut:
    return resolve(app.store, app.name, now_ms=app.clock.now_ms)


def ask(app: FlightsApp, name: str = "good") -> SnapshotRequest:
    return request_snapshot(app.store, app.name, name, "ada@host")


def recorded(app: FlightsApp, asked: SnapshotRequest) -> dict[str, int | None]:
    return {stage: answer.version for stage, answer in read_answers(app.store, app.name, asked).items()}


def test_a_snapshot_of_a_running_app_completes_once_every_stage_has_recorded_a_version(app: FlightsApp) -> None:
    app.send(*flights(5))
    asked = ask(app)
    assert recorded(app, asked) == {"legs": None, "aircraft": None, "carriers": None}
    app.step("legs")
    app.send(*flights(5))
    app.step("legs")  # runs on: nothing waits for the snapshot
    assert recorded(app, asked) == {"legs": 5, "aircraft": None, "carriers": None}
    assert try_complete(app.store, "flights", asked) is None
    app.step("aircraft")
    app.step("carriers")
    snapshot = try_complete(app.store, "flights", asked)
    assert snapshot is not None
    assert snapshot.stages == {"legs": 5, "aircraft": 5, "carriers": 5}
    assert (snapshot.kind, snapshot.by, snapshot.id) == ("markers", "ada@host", asked.id)
    assert open_requests(app.store, "flights") == ()


def test_a_cut_by_markers_is_consistent_and_has_nothing_in_flight(app: FlightsApp) -> None:
    app.send(*flights(5))
    asked = ask(app)
    app.step("legs")
    app.send(*flights(9))
    app.step_all()
    app.step_all()
    try_complete(app.store, "flights", asked)
    at = resolve(app.store, "flights@good", now_ms=0)
    assert violations(at.stages) == ()
    assert in_flight(app.store, at) == ()


def test_all_completers_return_the_same_snapshot(app: FlightsApp) -> None:
    asked = ask(app)
    app.step_all()
    first = try_complete(app.store, "flights", asked)
    assert try_complete(app.store, "flights", asked) == first
    app.step_all()  # the stages forget what is answered
    assert recorded(app, asked) == {"legs": None, "aircraft": None, "carriers": None}
    assert try_complete(app.store, "flights", asked) == first
    assert app.heads["legs"].recorded == {}


def test_two_snapshots_can_run_at_once(app: FlightsApp) -> None:
    first = ask(app, "first")
    app.step("legs")
    second = ask(app, "second")
    app.step_all()
    app.step_all()
    completed = [try_complete(app.store, "flights", asked) for asked in (first, second)]
    assert [snapshot.stages["legs"] for snapshot in completed if snapshot] == [5, 6]
    assert [snapshot.name for snapshot in list_snapshots(app.store, "flights")] == ["first", "second"]


def test_a_stage_that_never_committed_does_not_delay_a_snapshot(app: FlightsApp) -> None:
    app.store.put("flights/stages/unborn/sst/x.parquet", b"left by a crash")
    asked = ask(app)
    app.step_all()
    assert try_complete(app.store, "flights", asked) is not None


def test_a_cancelled_request_never_completes(app: FlightsApp) -> None:
    asked = ask(app)
    withdraw_request(app.store, "flights", asked)
    app.step_all()
    assert try_complete(app.store, "flights", asked) is None
    assert list_snapshots(app.store, "flights") == ()
    withdraw_request(app.store, "flights", asked)


def test_a_name_that_is_taken_is_refused(app: FlightsApp) -> None:
    ask(app, "asked")
    with pytest.raises(Refused, match="was already requested by ada@host"):
        ask(app, "asked")
    with pytest.raises(Refused, match="was already requested by ada@host"):
        pin_cut(app.store, now(app), "asked")
    pin_cut(app.store, now(app), "pinned")
    with pytest.raises(Refused, match="exists already"):
        ask(app, "pinned")


def test_a_name_taken_while_the_snapshot_was_running_ends_the_request(app: FlightsApp) -> None:
    other = pin_cut(app.store, now(app), "other", by="bob@host")
    asked = ask(app)
    app.store.put(keys.json_object(keys.snapshots("flights"), "good"), codec.encode(replace(other, name="good")))
    app.step_all()
    with pytest.raises(Refused, match="taken by bob@host while this one was under way"):
        try_complete(app.store, "flights", asked)
    assert open_requests(app.store, "flights") == ()


@pytest.mark.parametrize("name", ["Good", "now", "v42", "2026-11-21", ""])
def test_a_name_that_no_ref_can_contain_is_refused(app: FlightsApp, name: str) -> None:
    with pytest.raises(Usage):
        ask(app, name)
    with pytest.raises(Usage):
        pin_cut(app.store, now(app), name)


def test_the_error_for_an_unknown_app_suggests_the_nearest(app: FlightsApp) -> None:
    for verb in (
        lambda: request_snapshot(app.store, "fligths", "good", "ada"),
        lambda: list_snapshots(app.store, "fligths"),
        lambda: read_snapshot(app.store, "fligths", "good"),
        lambda: delete_snapshot(app.store, "fligths", "good"),
    ):
        with pytest.raises(NotFound, match="the nearest: flights"):
            verb()


def test_a_running_snapshot_and_an_unknown_snapshot_have_different_errors(app: FlightsApp) -> None:
    ask(app)
    with pytest.raises(NotFound) as caught:
        read_snapshot(app.store, "flights", "good")
    assert "not complete yet" in caught.value.hint


def test_pinning_names_an_earlier_moment(app: FlightsApp) -> None:
    at = resolve(app.store, "flights@~4", now_ms=0)
    snapshot = pin_cut(app.store, at, "then", by="ada@host")
    assert (snapshot.kind, snapshot.stages) == ("instant", at.versions)
    assert read_snapshot(app.store, "flights", "then") == snapshot
    assert pin_cut(app.store, at, "then", by="bob@host") == snapshot
    with pytest.raises(Refused, match="exists already"):
        pin_cut(app.store, now(app), "then")


def test_inconsistent_and_empty_cuts_are_not_pinned(app: FlightsApp) -> None:
    torn = Cut("flights", {"legs": app.version("legs", 2), "aircraft": app.version("aircraft", 4)})
    with pytest.raises(Refused, match="aircraft@v4 consumed legs@v4"):
        pin_cut(app.store, torn, "torn")
    with pytest.raises(Refused, match="no stage has a version"):
        pin_cut(app.store, Cut("flights", {}), "empty")


def test_snapshots_are_listed_oldest_first(app: FlightsApp) -> None:
    names = ["zebra", "ant", "middle"]
    for name in names:
        pin_cut(app.store, now(app), name)
    listed = list_snapshots(app.store, "flights")
    assert [snapshot.completed_ms for snapshot in listed] == sorted(s.completed_ms for s in listed)
    assert {snapshot.name for snapshot in listed} == set(names)


def test_a_removed_snapshot_is_no_longer_found_and_its_name_is_free(app: FlightsApp) -> None:
    pinned = pin_cut(app.store, now(app), "good")
    assert delete_snapshot(app.store, "flights", "good") == pinned
    with pytest.raises(NotFound):
        read_snapshot(app.store, "flights", "good")
    ask(app, "good")


def test_removing_a_snapshot_again_reports_when_it_was_removed(app: FlightsApp) -> None:
    def remove_it(*, dry_run: bool = False) -> object:
        return remove_or_withdraw(app.store, "flights", "good", by="ada@host", dry_run=dry_run)

    pinned = pin_cut(app.store, now(app), "good")
    assert remove_it(dry_run=True) == remove_it() == pinned
    (operation,) = audit_log.list_operations(app.store, "flights")
    assert (operation.verb, operation.detail) == ("snapshot rm", "good")
    assert remove_it(dry_run=True) == remove_it() == operation
    asked = ask(app, "good")
    assert remove_it(dry_run=True) == remove_it() == asked
    assert open_requests(app.store, "flights") == ()
    with pytest.raises(NotFound):
        remove_or_withdraw(app.store, "flights", "goood", by="ada@host")


def clone_of(app: FlightsApp, store: ObjectStore, snapshot: str) -> AppInfo:
    info = AppInfo("staging", START_MS, Origin(app.store.url, "flights", snapshot, now(app).versions))
    apps.create_app(store, info)
    return info


def test_a_snapshot_used_by_a_clone_is_kept(app: FlightsApp) -> None:
    pin_cut(app.store, now(app), "clone-staging", "clone", clone="staging")
    clone_of(app, app.store, "clone-staging")
    with pytest.raises(Refused, match="'staging' is a clone that uses snapshot 'clone-staging'"):
        delete_snapshot(app.store, "flights", "clone-staging")
    delete_snapshot(app.store, "flights", "clone-staging", force=True)


def test_a_snapshot_whose_clone_is_removed_or_uses_another_can_be_removed(app: FlightsApp) -> None:
    pin_cut(app.store, now(app), "clone-staging", "clone", clone="staging")
    delete_snapshot(app.store, "flights", "clone-staging")
    pin_cut(app.store, now(app), "clone-staging", "clone", clone="staging")
    clone_of(app, app.store, "clone-staging-2")
    delete_snapshot(app.store, "flights", "clone-staging")


def test_a_clone_in_another_store_is_found_there(app: FlightsApp, tmp_path: Path) -> None:
    other = LocalStore(tmp_path / "other")
    pin_cut(app.store, now(app), "clone-staging", "clone", clone="staging", clone_root=other.url)
    clone_of(app, other, "clone-staging")
    with pytest.raises(Refused, match=f"'staging' under {other.url} is a clone"):
        delete_snapshot(app.store, "flights", "clone-staging")


def test_a_clone_in_an_unreachable_store_is_assumed_to_exist(app: FlightsApp, tmp_path: Path) -> None:
    other = LocalStore(tmp_path / "other")
    pin_cut(app.store, now(app), "clone-staging", "clone", clone="staging", clone_root=other.url)
    clone_of(app, other, "clone-staging")
    (tmp_path / "other").rename(tmp_path / "unmounted")
    for _ in range(2):
        with pytest.raises(Refused, match=f"under {other.url}, which cannot be read from here") as caught:
            delete_snapshot(app.store, "flights", "clone-staging")
        assert "--force" in caught.value.hint
        # The place where the disk is mounted may be there all the same.
        (tmp_path / "other").mkdir(exist_ok=True)
    # Where other apps are seen, it would be seen too.
    apps.create_app(other, AppInfo("neighbour", START_MS))
    delete_snapshot(app.store, "flights", "clone-staging")


def test_removal_of_a_pin_for_a_clone_in_an_unreachable_store_can_be_forced(app: FlightsApp, tmp_path: Path) -> None:
    root = str(tmp_path / "other")
    pin_cut(app.store, now(app), "clone-staging", "clone", clone="staging", clone_root=root)
    delete_snapshot(app.store, "flights", "clone-staging", force=True)
    assert list_snapshots(app.store, "flights") == ()


def requests_of_a_snapshot(num_keys: int) -> tuple[dict[str, int], int]:
    """Return the numbers of requests that a snapshot's requester makes, for a table with this many keys."""
    store = CountingStore(MemoryStore())
    app = FlightsApp(store, Kafka())
    app.run(flights(20))
    app.load("aircraft", num_keys)
    store.reset()
    asked = ask(app)
    counts = store.counts
    app.step_all()
    store.reset()
    assert try_complete(store, "flights", asked) is not None
    pin_cut(store, now(app), "pinned")
    total = {verb: counts.get(verb, 0) + store.counts.get(verb, 0) for verb in counts | store.counts}
    return total, store.bytes_read + store.bytes_written


def test_a_snapshot_takes_the_same_requests_at_any_size_of_the_state() -> None:
    small, small_bytes = requests_of_a_snapshot(10_000)
    large, large_bytes = requests_of_a_snapshot(1_000_000)
    assert small == large
    assert large_bytes < small_bytes + 100  # longer numbers in the manifests


def test_operations_are_listed_newest_first() -> None:
    store = MemoryStore()
    for verb in ("snapshot take", "clone", "snapshot rm"):
        audit_log.record_operation(store, "flights", verb, "good", audit_log.whoami())
    listed = audit_log.list_operations(store, "flights")
    assert sorted(done.verb for done in listed) == ["clone", "snapshot rm", "snapshot take"]
    assert [done.id for done in listed] == sorted((done.id for done in listed), reverse=True)
    assert audit_log.list_operations(store, "flights", 2) == listed[:2]
    assert "@" in listed[0].by
    assert audit_log.list_operations(store, "other") == ()


def test_a_long_list_of_snapshots_is_read_concurrently() -> None:
    memory, rounds = MemoryStore(), Rounds()
    many_apps(memory, 1)
    pin_versions(memory, first_version("app-0000"), 96)
    store = CountingStore(memory, rounds)
    assert [snapshot.name for snapshot in list_snapshots(store, "app-0000")] == [f"s{n:05}" for n in range(1, 97)]
    assert store.requests == 96 + 3
    # The listing, the pack, three times 32 snapshots, and the listing of indexes; a busy machine splits some of them.
    assert rounds.count <= 15
