"""Replication that is killed at any request, or runs twice at once: the replica is always consistent."""

from collections.abc import Callable
from functools import partial

from slackwater.errors import NotFound
from slackwater.snapshot.cut import replicas
from slackwater.snapshot.cut.resolve import resolve
from slackwater.snapshot.gc.reachable import Retention
from slackwater.snapshot.take.snapshots import pin_cut
from slackwater.snapshot.verify.verify import verify
from slackwater.store.versions import history

from tests.crash.points import killed_at_each_call
from tests.models.profiles import crash_points
from tests.operations.disaster_recovery.replicate.test_replicate import LATER_MS, check_whole, copy, running
from tests.support.collecting import HOUR_MS, AgingStore, fresh, gc, store_of, wait
from tests.support.histories import FlightsApp, flights, rows_of

Round = Callable[[FlightsApp, AgingStore], None]


def snapshot(app: FlightsApp, name: str) -> None:
    pin_cut(app.store, resolve(app.store, app.name, now_ms=LATER_MS), name, by="ada@host", reader=app.kafka)


def history_of(rounds: int) -> tuple[FlightsApp, AgingStore]:
    """Return an app and its replica after this many rounds. The next round deletes copies from earlier rounds."""
    app, target = running(), AgingStore()
    if rounds:
        copy(app, target)
        snapshot(app, "friday")
        app.run(flights(20))
        copy(app, target)
        wait(app, 3 * HOUR_MS)
        app.run(flights(10))
        gc(app, Retention(versions=2))
    return app, target


def see_a_whole(app: FlightsApp, target: AgingStore) -> bool:
    """Check that the replica, if there is one already, is consistent and has the app's tables at its cut."""
    store = fresh(target)
    try:
        cut = resolve(store, app.name, now_ms=LATER_MS)
    except NotFound:
        return False
    for stage, manifest in cut.stages.items():
        assert rows_of(store, manifest) == rows_of(
            app.store, history.read(fresh(app.store), app.name, stage, manifest.version)
        )
    report = verify(store, cut, deep=True)
    assert report.consistent, report.differences
    if (found := replicas.REPLICA_CUTS.newest(store, app.name)) is not None:
        assert verify(store, f"{app.name}@{found.snapshot}", now_ms=LATER_MS).consistent
    return True


def test_a_replication_killed_anywhere_leaves_a_consistent_replica_and_the_next_call_continues() -> None:
    def both(world: tuple[FlightsApp, AgingStore]) -> tuple[AgingStore, AgingStore]:
        return store_of(world[0]), world[1]

    for rounds, verb in ((0, "replicate, first round"), (1, "replicate")):
        worlds = killed_at_each_call(verb, partial(history_of, rounds), lambda world: copy(*world), both)
        for (app, target), _ in worlds:
            see_a_whole(app, target)
            copy(app, target)
            check_whole(app, target)


def test_two_concurrent_replications_do_no_harm() -> None:
    app, target = history_of(1)
    with target.requests() as made:
        copy(app, target)
    for point in crash_points(len(made)):
        app, target = history_of(1)
        left = point

        def meanwhile(verb: str, key: str, app: FlightsApp = app, target: AgingStore = target) -> None:
            nonlocal left
            left -= 1
            if left == 0:
                target.before = lambda verb, key: None
                app.run(flights(5))
                copy(app, target)

        target.before = meanwhile
        copy(app, target)
        target.before = lambda verb, key: None
        assert see_a_whole(app, target)
        copy(app, target)
        check_whole(app, target)
