"""Replicating that is killed anywhere, or done twice at once: a whole is there all the time, and the next goes on."""

from collections.abc import Callable, Iterator
from contextlib import suppress

from slackwater import instants
from slackwater.errors import NotFound
from slackwater.keep.gc.retention import Retention
from slackwater.keep.verify.verify import verify
from slackwater.moments.cut import replicas
from slackwater.moments.cut.graph import Cut
from slackwater.moments.cut.moments import newest
from slackwater.moments.cut.resolve import resolve
from slackwater.moments.cut.stored import list_snapshots
from slackwater.moments.take.snapshots import pin
from slackwater.store.objects.protocol import ObjectStore
from slackwater.store.versions import history
from slackwater.store.versions.manifest import Manifest

from tests.keep.replicate.test_replicate import LATER_MS, check_whole, copy, running
from tests.models.profiles import crash_points
from tests.support.collecting import HOUR_MS, AgingStore, Killed, fresh, gc, store_of, wait
from tests.support.histories import START_MS, FlightsApp, flights, rows_of

Round = Callable[[FlightsApp, AgingStore], None]


def snapshot(app: FlightsApp, name: str) -> None:
    pin(app.store, resolve(app.store, app.name, now_ms=LATER_MS), name, by="ada@host", reader=app.kafka)


def history_of(rounds: int, *, only_snapshots: bool = False) -> tuple[FlightsApp, AgingStore]:
    """An app, and its replica after so many rounds; what comes next collects what two rounds had copied."""
    app, target = running(), AgingStore()
    if only_snapshots:
        snapshot(app, "thursday")
    if rounds:
        copy(app, target, only_snapshots=only_snapshots)
        snapshot(app, "friday")
        app.run(flights(20))
        copy(app, target, only_snapshots=only_snapshots)
        wait(app, 3 * HOUR_MS)
        app.run(flights(10))
        gc(app, Retention(versions=2))
        if only_snapshots:
            snapshot(app, "saturday")
    return app, target


def see_a_whole(app: FlightsApp, target: AgingStore, *, only_snapshots: bool = False) -> bool:
    """Whatever is there of a replica is a consistent whole, with the tables that the app had at that cut.

    With `only_snapshots` it is one of the snapshots, also at a time, by a version, and so many commits back.
    """
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
    if (found := replicas.newest_cut(store, app.name)) is not None:
        assert verify(store, f"{app.name}@{found.snapshot}", now_ms=LATER_MS).consistent
    if only_snapshots:
        see_snapshots_only(app, store, cut)
    return True


def see_snapshots_only(app: FlightsApp, store: ObjectStore, now: Cut) -> None:
    """No ref leads to a moment that none of the app's snapshots has; the newest of `now` is the last in time."""
    known = [each.stages for each in list_snapshots(app.store, app.name)]
    assert now.versions in known
    assert newest(store, app.name, tuple(app.heads)) == now.stages
    refs = [f"{app.name}@{instants.iso(each, 'milliseconds')}" for each in range(START_MS, LATER_MS, HOUR_MS // 2)[:24]]
    refs += [f"{app.name}@~{back}" for back in range(3)]
    refs += [f"{app.name}/{stage}@v{head.version}" for stage, head in heads_there(store, app.name)]
    for ref in refs:
        with suppress(NotFound):
            found = resolve(store, ref, now_ms=LATER_MS)
            assert found.versions in known, ref


def heads_there(store: ObjectStore, app: str) -> Iterator[tuple[str, Manifest]]:
    """The newest version of each stage that lies there, whatever counts."""
    for stage in history.list_stages(store, app):
        if (head := history.head(store, app, stage)) is not None:
            yield stage, head


def killed_at(
    app: FlightsApp, target: AgingStore, point: int, *, at_source: bool = False, only_snapshots: bool = False
) -> None:
    try:
        with (store_of(app) if at_source else target).death_after(point):
            copy(app, target, only_snapshots=only_snapshots)
    except Killed:
        pass


def test_killed_at_any_request_a_whole_is_there_and_the_next_call_goes_on() -> None:
    for rounds, at_source in ((0, False), (1, False), (1, True)):
        app, target = history_of(rounds)
        with (store_of(app) if at_source else target).requests() as made:
            copy(app, target)
        assert len(made) >= 30
        for point in crash_points(len(made)):
            app, target = history_of(rounds)
            killed_at(app, target, point, at_source=at_source)
            see_a_whole(app, target)
            copy(app, target)
            check_whole(app, target)


def test_a_replica_of_snapshots_is_killed_at_any_request_and_the_next_call_goes_on() -> None:
    for rounds in (0, 1):
        app, target = history_of(rounds, only_snapshots=True)
        with target.requests() as made:
            copy(app, target, only_snapshots=True)
        assert len(made) >= 20
        for point in crash_points(len(made)):
            app, target = history_of(rounds, only_snapshots=True)
            killed_at(app, target, point, only_snapshots=True)
            see_a_whole(app, target, only_snapshots=True)
            copy(app, target, only_snapshots=True)
            check_whole(app, target)


def test_two_at_once_do_each_other_no_harm() -> None:
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
