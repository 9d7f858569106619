"""Removal of an app: refused while something needs the app, and finished by the next call after a kill."""

from pathlib import Path

import pytest
from slackwater.common import instants
from slackwater.errors import Fenced, NotFound, Refused, SlackwaterError
from slackwater.operations.maintenance.removal import Contents, Removal, Removed, protect, protection_of, remove_app
from slackwater.operations.staging.clone import clone
from slackwater.snapshot.cut.resolve import resolve
from slackwater.snapshot.cut.stored import list_snapshots
from slackwater.snapshot.gc.collect import collect
from slackwater.snapshot.gc.reachable import Retention
from slackwater.snapshot.take.snapshots import delete_snapshot, pin_cut
from slackwater.snapshot.take.taking import request_snapshot
from slackwater.snapshot.under_way.runners import HEARTBEATS, Heartbeat
from slackwater.snapshot.verify.verify import verify
from slackwater.store.objects.local import LocalStore
from slackwater.store.objects.memory import MemoryStore
from slackwater.store.versions import apps, history, horizon, keys
from slackwater.store.versions.commit import commit, successor
from slackwater.store.versions.manifest import AppInfo
from ulid import ULID

from tests.crash.points import killed_at_each_call
from tests.support.collecting import AgingStore, aging_app, fresh, keys_of, store_of, wait
from tests.support.histories import FlightsApp, flights, rows_of

LATER_MS = 2_000_000_000_000
"""Time long after the last commit."""


def made(store: AgingStore | None = None) -> FlightsApp:
    app = aging_app(store=store or AgingStore())
    app.run(flights(20))
    return app


def gone(app: FlightsApp, name: str = "flights", **more: object) -> Removed:
    """Remove an app. Waiting advances the store's clock."""
    arguments = {"by": "ada@host", "now_ms": LATER_MS, "pause": store_of(app).pause} | more
    return remove_app(app.store, name, **arguments)  # type: ignore[arg-type]


def cloned(app: FlightsApp, source: str, name: str) -> FlightsApp:
    clone(app.store, source, name, topics={}, channels=app.kafka, by="ada@host")
    return FlightsApp(app.store, app.kafka, name, clock=app.clock)


def test_only_the_record_of_the_removal_remains_and_the_name_is_free() -> None:
    app = made()
    pin_cut(app.store, resolve(app.store, "flights", now_ms=app.clock.now_ms), "good")
    request_snapshot(app.store, "flights", "more", "ada@host")
    before = keys_of(app.store, "flights/")
    done = gone(app)
    assert (done.already, done.contents.versions, done.contents.snapshots) == (False, 12, 1)
    assert done.contents.objects >= len(before)
    assert done.removal.stages == {"aircraft": 3, "carriers": 3, "legs": 3}
    assert done.removal.topics == ("flights-by-aircraft-repartition", "flights-by-carrier-repartition")
    assert keys_of(app.store) == {"flights/removed.json"}
    assert apps.list_apps(app.store) == ()
    again = aging_app(store=app.store)
    again.run(flights(10))
    assert rows_of(fresh(app.store), again.heads["carriers"]) == again.state["carriers"]
    assert history.first_version(fresh(app.store), "flights", "legs") == 1


def test_a_repeated_removal_reports_done_and_an_unknown_name_is_an_error() -> None:
    app = made()
    removal = gone(app).removal
    seen: list[Removal] = []
    assert gone(app, remove_topics=seen.append) == Removed(removal, Contents(0, 0, 0, 0, 0), True)
    assert seen == [removal]
    with pytest.raises(NotFound, match="no app named 'flight'"):
        gone(app, "flight")


def test_a_dry_run_changes_nothing() -> None:
    app = made()
    before = {key: app.store.get(key) for key in keys_of(app.store)}  # type: ignore[arg-type]
    done = gone(app, dry_run=True)
    assert (done.contents.objects, done.contents.bytes) == (len(before), sum(map(len, before.values())))
    assert {key: app.store.get(key) for key in keys_of(app.store)} == before  # type: ignore[arg-type]


def test_a_killed_removal_leaves_the_app_whole_or_invisible_and_the_next_call_finishes() -> None:
    def build() -> FlightsApp:
        app = made(AgingStore())
        pin_cut(app.store, resolve(app.store, "flights", now_ms=app.clock.now_ms), "good")
        return app

    ref, seen = build().heads, set()
    for app, _ in killed_at_each_call("app rm", build, gone, store_of):
        store = fresh(app.store)
        for moment in ("flights@good", "flights/legs@v3", "flights/carriers"):
            try:
                cut = resolve(store, moment, now_ms=app.clock.now_ms)
            except SlackwaterError as error:
                seen.add(error.message.partition(":")[0])
                continue
            assert cut.stages.keys() == ref.keys(), "whole"
            assert rows_of(store, cut.stages["carriers"])
        done = gone(app)
        assert tuple(done.removal.stages) == ("aircraft", "carriers", "legs")
        assert keys_of(app.store) == {"flights/removed.json"}  # type: ignore[arg-type]
    assert "app 'flights' is being removed" in seen


def test_creating_or_running_a_half_removed_app_is_refused() -> None:
    app = made()
    outside = lambda _removal: (_ for _ in ()).throw(Refused("Kafka does not allow it"))  # noqa: E731
    with pytest.raises(Refused, match="Kafka"):
        gone(app, remove_topics=outside)
    assert apps.list_apps(app.store) == ()
    with pytest.raises(Refused, match="'flights' is being removed") as refused:
        aging_app(store=app.store)  # type: ignore[arg-type]
    assert "slackwater app rm flights" in refused.value.hint
    gone(app)
    assert keys_of(app.store) == {"flights/removed.json"}  # type: ignore[arg-type]


def test_removing_a_running_app_requires_fence() -> None:
    store = AgingStore()
    store.clock_ms = instants.now_ms()
    app = made(store)
    HEARTBEATS.put(store, Heartbeat(str(ULID()), "host:1", {"carriers": 1}), "flights")
    with pytest.raises(Refused, match="carriers of flights run on host:1") as refused:
        gone(app)
    assert "--fence" in refused.value.hint
    assert gone(app, fence=True).contents.versions == 12


def test_a_runner_that_slept_during_the_removal_cannot_commit() -> None:
    app = made()
    running = app.heads["legs"]
    assert horizon.freshness(app.store).is_fresh("flights", "legs", running.version + 1)
    gone(app)
    # It saw that its next number was free before the app was removed, but longer ago than it may rely on.
    horizon.freshness(app.store).record_free("flights", "legs", running.version + 1, -1e9)
    draft = successor(running, kind="batch", epoch=running.epoch, writer=running.writer, by="", now_ms=0)
    with pytest.raises(Fenced, match="flights/legs was removed"):
        commit(app.store, draft)
    assert keys_of(app.store) == {"flights/removed.json"}  # type: ignore[arg-type]


def test_removal_waits_until_no_runner_can_still_commit() -> None:
    app = made()
    told: list[str] = []
    waited: list[float] = []

    def pause(seconds: float) -> None:
        waited.append(seconds)
        store_of(app).pause(seconds)
        assert all(
            head is not None and head.retired
            for head in (history.head(app.store, "flights", stage) for stage in ("legs", "aircraft", "carriers"))
        )

    remove_app(app.store, "flights", by="ada@host", now_ms=LATER_MS, on_wait=told.append, pause=pause)
    assert waited == [horizon.SETTLED_MS / 1_000]
    assert told == ["every stage of flights is retired; waiting 45 s until no runner of it can write any more"]


def test_a_claim_during_the_wait_aborts_the_removal() -> None:
    app = made()

    def pause(seconds: float) -> None:
        store_of(app).pause(seconds)
        app.claim("legs")

    with pytest.raises(Refused, match="test:1 took over stage flights/legs during the removal"):
        remove_app(app.store, "flights", by="ada@host", now_ms=LATER_MS, pause=pause)
    assert not keys_of(app.store, keys.stages("flights") + keys.REMOVING)  # type: ignore[arg-type]
    for stage in ("aircraft", "carriers"):
        app.claim(stage)
    app.run(flights(5))
    assert resolve(app.store, "flights", now_ms=app.clock.now_ms).versions.keys() == {"legs", "aircraft", "carriers"}


def test_an_app_with_a_clone_is_refused_until_the_clone_is_gone() -> None:
    app = made()
    cloned(app, "flights", "staging")
    for dry_run in (True, False):
        with pytest.raises(Refused, match="app 'staging' is a clone that still uses files of flights"):
            gone(app, dry_run=dry_run)
    gone(app, "staging")
    gone(app)
    assert keys_of(app.store) == {"flights/removed.json", "staging/removed.json"}  # type: ignore[arg-type]


def test_a_clone_of_a_clone_is_found_although_its_pin_is_in_another_app() -> None:
    app = made()
    staging = cloned(app, "flights", "staging")
    second = cloned(app, "staging", "second")
    staging.run(flights(3))
    with pytest.raises(Refused, match="app 'second' is a clone that still uses files of staging"):
        gone(app, "staging")
    gone(app, "staging", force=True)
    with pytest.raises(Refused, match="app 'second' is a clone that still uses files of flights"):
        gone(app)
    (pinned,) = list_snapshots(app.store, "flights")
    with pytest.raises(
        Refused,
        match=r"'second' was cloned from 'staging', and uses files that snapshot 'clone-staging' of flights keeps",
    ):
        delete_snapshot(app.store, "flights", pinned.name)
    app.clock.wait(10_000_000)  # type: ignore[attr-defined]
    collect(app.store, "flights", Retention(versions=1), by="t")
    assert rows_of(fresh(app.store), second.heads["carriers"]) == second.state["carriers"]
    gone(app, "second")
    delete_snapshot(app.store, "flights", pinned.name)


def test_a_clones_pin_is_removed_although_another_pin_keeps_the_same_state() -> None:
    app = made()
    cloned(app, "flights", "staging")
    cloned(app, "flights", "other")
    gone(app, "staging")
    assert [each.name for each in list_snapshots(app.store, "flights")] == ["clone-other"], (
        "the clone's pin went with it"
    )
    with pytest.raises(Refused, match="'other' is a clone that uses"):
        delete_snapshot(app.store, "flights", "clone-other")


def test_a_clone_under_another_root_is_found_by_its_pin(tmp_path: Path) -> None:
    app = FlightsApp(MemoryStore(), made().kafka)
    home = LocalStore(tmp_path / "home")
    app = FlightsApp(home, app.kafka)
    app.run(flights(10))
    there = LocalStore(tmp_path / "there")
    clone(home, "flights", "staging", topics={}, channels=app.kafka, by="t", target_store=there)
    with pytest.raises(Refused, match=f"app 'staging' under {there.url} is a clone that still uses files of flights"):
        remove_app(home, "flights", by="t", now_ms=LATER_MS, dry_run=True)


def promoted(app: FlightsApp, folder: str, over: str, number: int = 1) -> None:
    apps.PROMOTION_OUTCOMES.add(
        app.store, apps.PromotionOutcome("flights", number, folder, over, "t", app.clock.now_ms)
    )


def test_an_app_that_is_promoted_during_its_removal_stays() -> None:
    app = made()
    cloned(app, "flights", "next")
    with pytest.raises(Refused, match="cannot remove or recreate next: it serves as flights"):
        remove_app(app.store, "next", by="t", now_ms=LATER_MS, pause=lambda _s: wait_and(app, "next"))
    assert apps.find_app(app.store, "next") is not None
    assert not keys_of(app.store, keys.stages("next") + keys.REMOVING)  # type: ignore[arg-type]


def wait_and(app: FlightsApp, folder: str) -> None:
    wait(app)
    promoted(app, folder, "flights")


def test_a_replaced_app_can_be_removed_once_nothing_is_shared_and_the_name_stays_protected() -> None:
    app = made()
    taking_over = cloned(app, "flights", "next")
    protect(app.store, "flights", by="t", now_ms=1)
    promoted(app, "next", "flights")
    for dry_run in (True, False):
        with pytest.raises(Refused, match="app 'next' is a clone that still uses files of flights") as caught:
            gone(app, dry_run=dry_run)
        assert caught.value.hint.startswith(
            "let flights stop sharing files: slackwater compact flights --full, then gc"
        )
    for stage in ("aircraft", "carriers"):
        taking_over.compact(stage)
    taking_over.run(flights(8))
    wait(app)
    collect(app.store, "next", Retention(versions=1), by="t")
    gone(app)
    assert keys_of(app.store, "flights/") == {"flights/removed.json", "flights/protected.json"}  # type: ignore[arg-type]
    assert protection_of(app.store, "next") is not None
    assert rows_of(fresh(app.store), taking_over.heads["carriers"]) == taking_over.state["carriers"]
    assert verify(app.store, "next", now_ms=app.clock.now_ms).differences == ()
    with pytest.raises(
        Refused, match="since a promotion, the name 'flights' belongs to app 'next': a new app cannot have it"
    ):
        apps.create_app(app.store, AppInfo("flights", 1))


def test_a_pin_made_during_the_removal_is_withdrawn() -> None:
    app = made()
    cut = resolve(app.store, "flights", now_ms=app.clock.now_ms)
    seen: list[object] = []

    def outside(_removal: Removal) -> None:
        with pytest.raises(Refused, match="is being removed"):
            pin_cut(app.store, cut, "late")
        seen.append(list(app.store.list("flights/snapshots/")))

    gone(app, remove_topics=outside)
    assert seen == [[]]
