"""Deep verification after a garbage collection: collected objects are not reported as missing, but all others are."""

from collections.abc import Iterator

import pytest
from slackwater.snapshot.cut.resolve import resolve
from slackwater.snapshot.gc.collect import collect
from slackwater.snapshot.gc.reachable import Retention
from slackwater.snapshot.take.snapshots import pin_cut
from slackwater.snapshot.verify.verify import Report, verify
from slackwater.store.versions import history, horizon, keys

from tests.support.collecting import HOUR_MS, StoreClock, aging_app, fresh
from tests.support.histories import STAGES, FlightsApp, flights


def wait(app: FlightsApp) -> None:
    assert isinstance(app.clock, StoreClock)
    app.clock.wait(2 * HOUR_MS)


@pytest.fixture(scope="module")
def kept() -> FlightsApp:
    """Return a thinned history with an old snapshot, two rescales, and some versions without gaps at the end."""
    app = aging_app()
    app.run(flights(30))
    pin_cut(app.store, resolve(app.store, app.name, now_ms=app.clock.now_ms), "old")
    app.rescale("aircraft", 5)
    app.run(flights(20, aircraft=20))
    app.rescale("aircraft", 2)
    app.run(flights(20))
    wait(app)
    app.run(flights(40))
    wait(app)
    collect(app.store, app.name, Retention(versions=3), by="test")
    return app


@pytest.fixture
def app(kept: FlightsApp) -> Iterator[FlightsApp]:
    """Return the shared app. After each test, changes to its store are undone."""
    before = {info.key: kept.store.get(info.key) for info in kept.store.list("")}
    yield kept
    for key, data in before.items():
        kept.store.put(key, data)


def deeply(app: FlightsApp, ref: str = "flights") -> Report:
    return verify(fresh(app.store), ref, now_ms=app.clock.now_ms, deep=True)


def message(found: Report) -> str:
    (difference,) = found.differences
    return difference.message


@pytest.mark.parametrize("ref", ["flights", "flights@old", "flights@~2"])
def test_collected_versions_are_not_missing(app: FlightsApp, ref: str) -> None:
    versions = history.list_versions(app.store, app.name, "aircraft")
    assert len(versions) < versions[-1] - versions[0], "the history was to be thinned"
    assert deeply(app, ref).differences == ()


def test_a_version_to_be_deleted_that_still_exists_is_ignored(app: FlightsApp) -> None:
    limit = horizon.newest(app.store, app.name)
    assert limit is not None
    doomed = keys.manifest(app.name, "aircraft", limit.first["aircraft"] - 1)
    app.store.put(doomed, b"whatever it was")
    assert deeply(app).differences == ()


@pytest.mark.parametrize("stage", STAGES)
def test_a_kept_version_that_is_missing_is_named(app: FlightsApp, stage: str) -> None:
    limit = horizon.newest(app.store, app.name)
    assert limit is not None
    gone = keys.manifest(app.name, stage, limit.kept[stage][0])
    app.store.delete(gone)
    assert f"{gone} is missing" in message(deeply(app))


def test_a_missing_first_version_of_the_complete_history_is_named(app: FlightsApp) -> None:
    limit = horizon.newest(app.store, app.name)
    assert limit is not None
    gone = keys.manifest(app.name, "carriers", limit.first["carriers"])
    app.store.delete(gone)
    assert f"{gone} is missing" in message(deeply(app))


def test_a_gap_in_the_complete_history_is_named(app: FlightsApp) -> None:
    head = app.heads["carriers"].version
    gone = keys.manifest(app.name, "carriers", head - 1)
    app.store.delete(gone)
    assert f"{gone} is missing: carriers has v{head - 2}, then v{head}" in message(deeply(app))


def test_an_unreadable_boundary_is_a_difference(app: FlightsApp) -> None:
    limit = horizon.newest(app.store, app.name)
    assert limit is not None
    key = keys.json_object(keys.boundaries(app.name), limit.number)
    app.store.put(key, b"{")
    assert any(key in each.message for each in deeply(app, "flights@old").differences)
