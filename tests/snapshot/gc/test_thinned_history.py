"""A thinned history: the moments that remain readable, and the objects that later collections delete."""

from typing import Any

import pytest
from slackwater.errors import NotFound, Refused
from slackwater.snapshot.bisect.search import bisect
from slackwater.snapshot.cut.in_flight import in_flight
from slackwater.snapshot.cut.lineage import trace
from slackwater.snapshot.cut.resolve import resolve
from slackwater.snapshot.gc.reachable import Retention
from slackwater.snapshot.query.log import log_entries
from slackwater.store.read.cache import SstCache
from slackwater.store.versions import history, horizon

from tests.support.collecting import HOUR_MS, aging_app, at, check_whole, fresh, gc, wait
from tests.support.histories import STAGES, FlightsApp, flights, rows_of


def slow_app() -> FlightsApp:
    """Return an app with this many minutes between commits, so that few versions span hours."""
    return aging_app(step_ms=4 * 60_000)


def test_a_thinned_history_has_for_each_hour_the_state_at_its_start() -> None:
    app = slow_app()
    for _ in range(6):
        app.run(flights(50))
    wait(app)
    app.run(flights(10))
    store, rules = app.store, Retention(all_ms=4 * HOUR_MS, hourly_ms=1000 * HOUR_MS)
    now_ms = app.clock.now_ms
    wanted = {hour: resolve(store, f"flights@{at(hour - 1 / HOUR_MS)}", now_ms=now_ms) for hour in range(1, 6)}
    states = {hour: {name: rows_of(store, m) for name, m in cut.tables.items()} for hour, cut in wanted.items()}
    flying = {hour: in_flight(store, cut) for hour, cut in wanted.items()}
    assert sum(each.versions for each in gc(app, rules).stages) > 25
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
    with pytest.raises(NotFound, match=r"is complete from .* on; before that, \d moments remain, from"):
        resolve(store, f"flights@{at(0.2)}", now_ms=now_ms)
    assert gc(app, rules).objects == 0
    check_whole(app)


def test_a_ref_to_a_kept_version_resolves_and_a_ref_to_a_deleted_version_does_not() -> None:
    app = slow_app()
    for _ in range(6):
        app.run(flights(50))
    gc(app, Retention(all_ms=HOUR_MS, hourly_ms=1000 * HOUR_MS))
    limit = horizon.newest(app.store, "flights")
    assert limit is not None
    moment = limit.moments[1]
    store = fresh(app.store)
    found = resolve(store, f"flights/carriers@v{moment.stages['carriers']}", now_ms=0)
    assert found.versions == moment.stages
    with pytest.raises(NotFound, match=r"there are .* of v"):
        resolve(store, "flights/carriers@v2", now_ms=0)
    stays = sum(len(history.list_versions(app.store, "flights", stage)) for stage in STAGES)
    assert len(log_entries(app.store, "flights", 10_000)) == stays
    for stage in STAGES:
        numbers = history.version_numbers(app.store, "flights", stage, app.heads[stage].version)
        assert tuple(numbers) == history.list_versions(app.store, "flights", stage)


def test_a_second_collection_thins_further_and_keeps_what_its_rules_keep() -> None:
    app = slow_app()
    for _ in range(4):
        app.run(flights(50))
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


def test_bisect_searches_the_complete_history_and_the_remaining_earlier_moments(tmp_path: Any) -> None:
    app = slow_app()
    for _ in range(4):
        app.run(flights(50))
    versions = range(1, app.heads["carriers"].version + 1)
    totals = {v: sum(n for n, _, _ in rows_of(app.store, app.version("carriers", v)).values()) for v in versions}
    gc(app, Retention(all_ms=HOUR_MS, hourly_ms=1000 * HOUR_MS))
    limit = horizon.newest(app.store, "flights")
    assert limit is not None
    store, cache = fresh(app.store), SstCache(tmp_path, 1 << 30)
    for least in (195, 108):
        first_bad = next(version for version, total in totals.items() if total >= least)
        where = f"SELECT 1 FROM carriers HAVING sum(flights) >= {least}"
        verdict = bisect(store, cache, "flights", where, now_ms=0)
        if first_bad > limit.first["carriers"]:
            assert (verdict.stage, verdict.bad_version, verdict.candidates) == ("carriers", first_bad, ())
            continue
        left = {each.stage: each for each in verdict.candidates}
        assert left["carriers"].first <= first_bad <= left["carriers"].last
        assert verdict.thinned
        for cut, ref in ((verdict.good, verdict.good_ref), (verdict.bad, verdict.bad_ref)):
            assert resolve(store, ref, now_ms=0).versions == cut.versions
        assert totals[verdict.good_version] < least <= totals[verdict.bad_version]
        # The same between these two, as moments or as the time between them.
        again = bisect(store, cache, "flights", where, good=verdict.good_ref, bad=verdict.bad_ref, now_ms=0)
        assert again.candidates == verdict.candidates
    with pytest.raises(Refused, match="is not before the bad one"):
        bisect(store, cache, "flights", where, good="flights", bad=f"flights@{at(1.2)}", now_ms=app.clock.now_ms)
