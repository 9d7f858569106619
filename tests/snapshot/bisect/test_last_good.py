"""The tag `last-good`: it only moves forward, gc keeps its moment, and a killed move does not damage it."""

from contextlib import suppress

import pytest
from slackwater.errors import NotFound, Refused
from slackwater.snapshot.bisect.watcher import LAST_GOOD, advance_last_good, find_last_good
from slackwater.snapshot.cut.graph import Cut
from slackwater.snapshot.cut.resolve import resolve
from slackwater.snapshot.cut.stored import find_snapshot, list_snapshots
from slackwater.snapshot.take.snapshots import move_snapshot, pin_cut
from slackwater.store.objects.counting import CountingStore
from slackwater.store.objects.protocol import ObjectStore

from tests.crash.points import Killed
from tests.support.collecting import aging_app, check_whole, gc, old_app, store_of, wait
from tests.support.histories import FlightsApp, flights


def now(app: FlightsApp, ref: str = "flights") -> Cut:
    return resolve(app.store, ref, now_ms=app.clock.now_ms)


def named(store: ObjectStore) -> dict[str, int]:
    return resolve(store, f"flights@{LAST_GOOD}", now_ms=0).versions


def test_last_good_is_a_ref_that_only_moves_forward() -> None:
    app = aging_app()
    app.run(flights(20))
    assert find_last_good(app.store, "flights") is None
    early = now(app)
    first = advance_last_good(app.store, early, "ada@host")
    assert named(app.store) == early.versions
    assert advance_last_good(app.store, early, "ada@host") == first
    app.run(flights(20))
    assert advance_last_good(app.store, now(app), "bob@host").by == "slackwater watch by bob@host"
    assert named(app.store) == now(app).versions
    advance_last_good(app.store, early, "ada@host")
    assert named(app.store) == now(app).versions
    assert [each.name for each in list_snapshots(app.store, "flights")] == [LAST_GOOD]


def test_gc_keeps_the_tagged_moment_and_collects_the_former_one() -> None:
    app = aging_app()
    app.run(flights(20))
    earlier = now(app)
    advance_last_good(app.store, earlier, "ada@host")
    app.run(flights(20))
    tagged = now(app)
    advance_last_good(app.store, tagged, "ada@host")
    app.run(flights(80))
    wait(app)
    gc(app)
    assert named(app.store) == tagged.versions
    check_whole(app)
    with pytest.raises(NotFound):
        resolve(app.store, f"flights/carriers@v{earlier.versions['carriers']}", now_ms=0)


def test_a_users_snapshot_of_that_name_is_not_moved() -> None:
    app = aging_app()
    app.run(flights(10))
    pin_cut(app.store, now(app), LAST_GOOD, by="ada@host")
    with pytest.raises(Refused, match="taken by ada@host") as caught:
        advance_last_good(app.store, now(app), "bob@host")
    assert f"slackwater snapshot rm flights {LAST_GOOD}" in caught.value.hint


def test_a_killed_move_leaves_the_old_or_the_new_moment() -> None:
    for died_at in range(12):
        app = aging_app()
        store = store_of(app)
        app.run(flights(10))
        before = now(app)
        advance_last_good(store, before, "ada@host")
        app.run(flights(10))
        ended = False
        with suppress(Killed), store.death_after(died_at):
            advance_last_good(store, now(app), "ada@host")
            ended = True
        assert named(store) in (before.versions, now(app).versions)
        app.run(flights(40))
        wait(app)
        gc(app)
        check_whole(app)
        if ended:
            return
    raise AssertionError("it takes more requests than that")


def test_a_move_costs_a_handful_of_requests_for_any_length_of_history() -> None:
    taken = []
    for batches in (2, 40):
        app = aging_app()
        app.run(flights(batches * 10))
        advance_last_good(app.store, now(app, "flights@~5"), "ada@host")
        counted = CountingStore(app.store)
        advance_last_good(counted, now(app), "ada@host")
        taken.append(dict(counted.counts))
    assert taken[0] == taken[1]
    assert sum(taken[0].values()) <= 5


def test_a_moment_collected_meanwhile_is_not_tagged() -> None:
    app = old_app()
    store, old = store_of(app), now(app, "flights/legs@v4")
    recent = pin_cut(store, now(app), LAST_GOOD, by="slackwater watch by ada@host")
    store.once("put", "snapshots/", lambda: gc(app))
    with pytest.raises(NotFound, match="was collected before it could be pinned"):
        move_snapshot(store, recent, old)
    assert find_snapshot(store, "flights", LAST_GOOD) == recent
    check_whole(app)
