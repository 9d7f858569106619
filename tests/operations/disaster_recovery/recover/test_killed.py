"""A recovery that is killed at any request: the app cannot run until it is complete, and the same call finishes it."""

from functools import partial

import pytest
from slackwater.errors import Refused
from slackwater.operations.disaster_recovery.recover import recover
from slackwater.snapshot.cut import replicas
from slackwater.snapshot.under_way.exclusion import Intent, check_exclusion
from slackwater.snapshot.verify.verify import verify

from tests.crash.points import killed_at_each_call
from tests.models.profiles import crash_points
from tests.operations.disaster_recovery.recover.test_recover import LATER_MS, SAME, check_books, elsewhere, goes_on
from tests.operations.disaster_recovery.replicate.test_replicate import copy, running
from tests.operations.failover import FailoverKafka, failover_kafka
from tests.support.collecting import AgingStore, fresh, store_of
from tests.support.histories import FlightsApp, flights


def lost(*, reachable: bool) -> tuple[FlightsApp, AgingStore, FailoverKafka]:
    """Return an app, its replica, and a Kafka to continue on. With `reachable`, the app has newer commits."""
    app, target = running(), AgingStore()
    copy(app, target)
    if reachable:
        app.run(flights(5))
    return app, target, failover_kafka(app) if reachable else elsewhere(app)


def bring_back(app: FlightsApp, target: AgingStore, kafka: FailoverKafka, *, reachable: bool) -> None:
    primary = (lambda _root: app.store) if reachable else None
    recover(target, app.name, kafka, primary=primary, terms=SAME, by="ada@host", reader=failover_kafka(app))


def check_not_half(app: FlightsApp, target: AgingStore) -> None:
    """Check that readers see a consistent moment, and that a run is refused until the recovery is complete."""
    report = verify(fresh(target), app.name, now_ms=LATER_MS)
    assert report.consistent, report.differences
    found = replicas.find_replica_state(target, app.name)
    assert found is not None
    if found.state != "recovered":
        with pytest.raises(Refused, match="is a replica of"):
            check_exclusion(target, app.name, Intent.RUN)


@pytest.mark.parametrize("reachable", [False, True])
def test_a_recovery_killed_anywhere_is_not_usable_until_the_same_call_finishes_it(reachable: bool) -> None:
    def call(world: tuple[FlightsApp, AgingStore, FailoverKafka]) -> None:
        bring_back(*world, reachable=reachable)

    def of(world: tuple[FlightsApp, AgingStore, FailoverKafka]) -> tuple[AgingStore, ...]:
        return (world[1], store_of(world[0])) if reachable else (world[1],)

    verb = "recover" if reachable else "recover, source lost"
    worlds = killed_at_each_call(verb, partial(lost, reachable=reachable), call, of)
    for (app, target, kafka), ended in worlds:
        if not ended:
            check_not_half(app, target)
        call((app, target, kafka))
        check_exclusion(target, app.name, Intent.RUN)
        check_books(target, app.name)
        other = goes_on(app, target, kafka)
        if not reachable:
            for _ in range(2):
                app.step_all()
            assert other.state == app.state
        else:
            assert sum(each[0] for each in other.state["carriers"].values()) == 41


def test_one_of_two_concurrent_recoveries_is_refused_and_the_app_exists_once() -> None:
    met = set()
    app, target, kafka = lost(reachable=False)
    with target.requests() as made:
        bring_back(app, target, kafka, reachable=False)
    for point in crash_points(len(made) - 1):
        app, target, kafka = lost(reachable=False)
        left = point + 1

        def meanwhile(
            verb: str, key: str, app: FlightsApp = app, target: AgingStore = target, kafka: FailoverKafka = kafka
        ) -> None:
            nonlocal left
            left -= 1
            if left == 0:
                target.before = lambda verb, key: None
                bring_back(app, target, kafka, reachable=False)

        target.before = meanwhile
        try:
            bring_back(app, target, kafka, reachable=False)
            met.add("done by both")
        except Refused:
            met.add("refused")
        target.before = lambda verb, key: None
        check_books(target, app.name)
        other = goes_on(app, target, kafka)
        for _ in range(2):
            app.step_all()
        assert other.state == app.state
    assert met
