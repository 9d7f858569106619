"""Garbage collection by runners: when it is due, its rules, and which of several runners does it."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from threading import Event
from threading import enumerate as threads

import pytest
from slackwater.common import instants
from slackwater.errors import Corruption, Usage
from slackwater.pipeline.listener import Listener
from slackwater.pipeline.run.background import Collector, background_thread
from slackwater.pipeline.run.options import parse_gc_interval
from slackwater.snapshot.gc.collect import Collected
from slackwater.snapshot.gc.reachable import Retention
from slackwater.snapshot.under_way import runners
from slackwater.snapshot.verify.verify import verify
from slackwater.store.hot.hot_store import HotStore
from slackwater.store.hot.places import declare_hot_place
from slackwater.store.versions import history, keys

from tests.crash.points import Killed
from tests.support.collecting import FEW, HOUR_MS, gc, keys_of, old_app, store_of, wait
from tests.support.histories import FlightsApp
from tests.support.running import eventually


def collector(app: FlightsApp, *stages: str, listener: Listener | None = None, every_ms: int = HOUR_MS) -> Collector:
    def epochs() -> dict[str, int]:
        return {stage: app.heads[stage].epoch for stage in stages}

    return Collector(app.store, app.name, FEW, every_ms, "host:1", epochs, listener or Listener())


@pytest.fixture
def app() -> Iterator[FlightsApp]:
    app = old_app()
    wait(app)
    app.step_all()
    yield app
    assert verify(app.store, app.name, now_ms=app.clock.now_ms).differences == ()


def beat(app: FlightsApp, *stages: str, writer: str = "01K9TZ3Y5C8V0WQ2X4N6M8R0TB") -> None:
    found = {stage: app.heads[stage].epoch for stage in stages}
    runners.HEARTBEATS.put(app.store, runners.Heartbeat(writer, "other:1", found), app.name)


def test_a_collection_is_due_when_the_last_by_anyone_is_long_ago(app: FlightsApp) -> None:
    ours = collector(app, "legs", "aircraft", "carriers")
    done = ours.collect_if_due(app.clock.now_ms)
    assert done is not None
    assert done.objects > 0
    assert ours.collect_if_due(app.clock.now_ms) is None
    wait(app, HOUR_MS + 1)
    gc(app)
    assert ours.collect_if_due(app.clock.now_ms) is None
    wait(app, HOUR_MS + 1)
    assert ours.collect_if_due(app.clock.now_ms) is not None


def test_without_rules_a_runner_only_moves_ssts_out_of_hot_places(app: FlightsApp, tmp_path: Path) -> None:
    plain, key, month_ms = app.store, keys.sst("flights", "legs", f"01A{keys.HOT}"), 31 * 24 * HOUR_MS
    app.store = HotStore(plain)
    declare_hot_place(app.store, "flights", str(tmp_path))
    app.store.put(key, bytes(100_000))
    ours, begin_ms, before = collector(app), instants.now_ms(), keys_of(plain)
    ours.retention = Retention()
    for now_ms, moved in ((begin_ms, 0), (begin_ms + month_ms, 1)):
        assert ours.collect_if_due(now_ms) is None
        assert (len([*tmp_path.rglob("*.parquet")]), key in keys_of(plain)) == (1 - moved, bool(moved))
    assert keys_of(plain) == before | {key}
    ours.collect_if_due(begin_ms)
    app.store.delete(key)
    app.store = plain


def test_an_interrupted_collection_is_resumed_within_minutes(app: FlightsApp) -> None:
    ours = collector(app, "legs", "aircraft", "carriers")
    with suppress(Killed), store_of(app).death_after(60):
        ours.collect_if_due(app.clock.now_ms)
    assert ours.collect_if_due(app.clock.now_ms) is None
    wait(app, 11 * 60_000)
    done = ours.collect_if_due(app.clock.now_ms)
    assert done is not None
    assert done.objects
    wait(app, 11 * 60_000)
    assert ours.collect_if_due(app.clock.now_ms) is None


def test_of_several_runners_the_one_with_the_first_running_stage_collects(app: FlightsApp) -> None:
    first, second = collector(app, "legs"), collector(app, "aircraft", "carriers")
    # Nobody says that legs runs.
    beat(app, "aircraft", "carriers")
    assert second._has_turn(app.clock.now_ms)
    beat(app, "legs", writer="01K9TZ3Y5C8V0WQ2X4N6M8R0TC")
    assert first._has_turn(app.clock.now_ms)
    assert not second._has_turn(app.clock.now_ms)
    assert second.collect_if_due(app.clock.now_ms) is None
    # Its sign of life grows old.
    wait(app, 120_000)
    assert second._has_turn(app.clock.now_ms)


def test_a_runner_whose_stage_was_taken_over_does_not_collect(app: FlightsApp) -> None:
    former = collector(app, "legs")
    taken = app.heads["legs"]
    app.claim("legs")
    newer, app.heads["legs"] = app.heads["legs"], taken
    assert newer.epoch > taken.epoch
    assert former.collect_if_due(app.clock.now_ms) is None
    app.heads["legs"] = newer


def test_damaged_objects_are_reported_and_do_not_end_the_run(app: FlightsApp, caplog: pytest.LogCaptureFixture) -> None:
    store, key = store_of(app), keys.manifest("flights", "legs", app.heads["legs"].version)
    whole = store.get(key)
    store.put(key, b"{}")
    history._recent.clear()
    broken = collector(app, "legs")
    with pytest.raises(Corruption):
        broken.collect_if_due(app.clock.now_ms)
    broken.every_ms = 4
    with background_thread("collector", broken.run):
        eventually(lambda: "nothing was deleted" in caplog.text, "it says so")
    store.put(key, whole)


def test_an_unexpected_error_ends_neither_the_run_nor_the_collector(
    app: FlightsApp, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(verb: str, key: str) -> None:
        raise KeyError(key)

    store_of(app).before = fails
    broken = collector(app, "legs", every_ms=4)
    with background_thread("collector", broken.run):
        eventually(lambda: caplog.text.count("failed; the next one continues") >= 2, "it looks again")
    store_of(app).before = lambda verb, key: None


def test_the_collector_reports_its_collections_and_stops_when_closed(app: FlightsApp) -> None:
    told, heard = [], Event()

    class Told(Listener):
        def on_gc(self, done: Collected) -> None:
            told.append(done)
            heard.set()

    ours = collector(app, "legs", "aircraft", "carriers", listener=Told(), every_ms=4)
    with background_thread("collector", ours.run):
        assert heard.wait(30)
    assert "collector" not in {thread.name for thread in threads()}
    assert told[0].objects > 0


@pytest.mark.parametrize(
    ("text", "every_ms"), [("off", None), ("1h", HOUR_MS), ("90s", 90_000), ("1 day", 24 * HOUR_MS)]
)
def test_the_interval_is_a_time_span_or_off(text: str, every_ms: int | None) -> None:
    assert parse_gc_interval("--gc", text) == every_ms


@pytest.mark.parametrize("text", ["on", "10s", ""])
def test_other_intervals_are_refused(text: str) -> None:
    with pytest.raises(Usage, match="--gc"):
        parse_gc_interval("--gc", text)
