"""Polls for requests by an idle runner: their number and their delay."""

from dataclasses import dataclass, field
from pathlib import Path

import pytest
from slackwater.pipeline.source.wake import PlannerFiles, RequestWatch
from slackwater.snapshot.cut.stored import SnapshotRequest, notify_runners, withdraw_request
from slackwater.snapshot.take.taking import request_snapshot
from slackwater.snapshot.under_way import runners as holds
from slackwater.snapshot.under_way.runners import HOLD_LAPSE_S, Hold
from slackwater.store.objects.counting import CountingStore, Prices, monthly_cost
from slackwater.store.objects.memory import MemoryStore
from slackwater.store.versions import codec, keys

from tests.support.histories import Clock, FlightsApp, Kafka, flights

APP = "flights"


@dataclass
class Watched:
    """A runner that checks ten times a second if a poll is due."""

    folder: Path
    store: CountingStore = field(default_factory=lambda: CountingStore(MemoryStore()))
    now_s: float = 0.0

    def __post_init__(self) -> None:
        FlightsApp(self.store, Kafka(), clock=Clock()).run(flights(4))
        self.told = PlannerFiles(self.folder)
        self.watch = RequestWatch(self.store, APP, self.told, clock=lambda: self.now_s)
        assert self.watch.poll(busy=False), "what is asked already is found at the start"

    def wait(self, seconds: float, *, busy: bool = False) -> list[float]:
        """Advance the clock. Returns after how many seconds each change was found."""
        began, found = self.now_s, []
        while self.now_s < began + seconds:
            self.now_s += 0.1
            if self.watch.poll(busy=busy):
                found.append(self.now_s - began)
        return found


@pytest.fixture
def watched(tmp_path: Path) -> Watched:
    return Watched(tmp_path)


def test_an_idle_hour_costs_less_than_a_dollar_a_month(watched: Watched) -> None:
    watched.store.take_stats()
    assert len(watched.wait(3_600)) <= 12
    hour = watched.store.take_stats()
    assert hour.lists <= 12
    # With a read every five seconds for each stage, it is 0.95.
    assert 0.5 < monthly_cost(hour, 0, Prices()).requests < 0.75


def test_a_snapshot_request_reaches_the_planners_within_a_second_and_a_half(watched: Watched) -> None:
    watched.wait(100)
    first = request_snapshot(watched.store, APP, "one", "test")
    (found,) = watched.wait(20)
    assert found <= 1.6
    assert watched.told.requested_snapshots() == (first.id,)
    second = request_snapshot(watched.store, APP, "two", "test")
    (found,) = watched.wait(20, busy=True)
    assert found <= 0.4, "beside batches it is sooner"
    assert watched.told.requested_snapshots() == (first.id, second.id)
    withdraw_request(watched.store, APP, first)
    notify_runners(watched.store, APP)
    watched.wait(2)
    assert watched.told.requested_snapshots() == (second.id,)


def test_a_request_whose_author_died_before_waking_runners_is_still_found(watched: Watched) -> None:
    watched.wait(100)
    silent = SnapshotRequest("01ARZ3NDEKTSV4RRFFQ69G5FAV", "silent", 1, "test")
    watched.store.put(keys.json_object(keys.requests(APP), silent.id), codec.encode(silent))
    assert watched.wait(150) == []
    assert len(watched.wait(300)) == 1
    assert watched.told.requested_snapshots() == (silent.id,)


def test_a_hold_bounds_the_app_until_it_is_released_or_expires(watched: Watched) -> None:
    def held(renewed: int, *offsets: int, tell: bool = False) -> None:
        until = {"flights": offsets}
        holds.put_holds(
            watched.store, [Hold(APP, APP, "other", "test", renewed, until, 1_000 + renewed)], wake_runners=tell
        )

    watched.wait(100)
    assert watched.told.end_offsets("flights") is None
    held(1, 3, 4, tell=True)
    watched.wait(1.6)
    assert watched.watch.is_held
    assert watched.told.end_offsets("flights") == (3, 4)
    assert watched.told.end_offsets("other") == ()
    watched.told.schedule_wake_up("s", 7, 1_002)
    assert (watched.told.clock_ms(500), watched.told.clock_ms(5_000)) == (500, 1_001)
    assert watched.told.due_wake_version("s", 6, 5_000) == 0, "what falls due later waits until the app is released"
    held(2, 5, 4)
    watched.wait(0.4)
    assert watched.told.end_offsets("flights") == (5, 4), "a hold that moves on needs no notice"
    for renewed in range(3, 20):
        held(renewed, 5, 4)
        watched.wait(2)
    assert watched.watch.is_held
    watched.wait(HOLD_LAPSE_S + 2)
    assert not watched.watch.is_held
    assert watched.told.end_offsets("flights") is None
    assert watched.told.due_wake_version("s", 6, 5_000) == 7
    held(20, 6, 6)
    watched.wait(2)
    assert watched.told.end_offsets("flights") == (6, 6)
    holds.release_holds(watched.store, [APP])
    watched.wait(2)
    assert watched.told.end_offsets("flights") is None
