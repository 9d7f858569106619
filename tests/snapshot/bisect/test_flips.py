"""One scan finds the same changes between good and bad as an evaluation of every version."""

from contextlib import closing
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from slackwater.errors import Refused
from slackwater.snapshot.bisect.between import SearchRange
from slackwater.snapshot.bisect.endpoints import find_ends
from slackwater.snapshot.bisect.flips import parse_row_local, scan_if_cheap
from slackwater.snapshot.bisect.predicate import Predicate, SqlPredicate, parse_check
from slackwater.snapshot.bisect.session import CommandPredicate
from slackwater.snapshot.bisect.verdict import Flips
from slackwater.snapshot.cut.graph import Cut
from slackwater.snapshot.query.sql import connect, run_query
from slackwater.store.objects.counting import CountingStore
from slackwater.store.objects.memory import MemoryStore
from slackwater.store.objects.protocol import ObjectStore
from slackwater.store.read.cache import SstCache
from slackwater.store.versions import history

from tests.models.profiles import scaled
from tests.snapshot.cut.test_ttl_moments import Hourly
from tests.support.histories import Flight, FlightsApp, Kafka, flights

BELOW = SqlPredicate("SELECT carrier FROM carriers WHERE delay < 0 ORDER BY carrier")


def between(store: ObjectStore, app: str, predicate: Predicate, good: str | None = None) -> SearchRange:
    found = find_ends(store, app, predicate, good, None, now_ms=0)
    return replace(found.search_range, low=found.gapless_start)


def scan(store: ObjectStore, cache: SstCache, app: str, predicate: Predicate, *, good: str | None = None) -> Flips:
    found = scan_if_cheap(store, cache, predicate, between(store, app, predicate, good))
    assert found is not None
    return found


def asked_everywhere(app: FlightsApp, cache: SstCache, sql: str, first: int) -> dict[int, int]:
    """Return the number of rows of the query at each version from `first` on. Evaluates all versions."""
    found = {}
    for version in range(max(first, 1), app.heads["carriers"].version + 1):
        cut = Cut("flights", {"carriers": history.read(app.store, "flights", "carriers", version)})
        with closing(connect(app.store, cache, cut)) as con:
            found[version] = run_query(con, sql).num_rows
    return found


def assert_same(app: FlightsApp, cache: SstCache, found: Flips, sql: str) -> None:
    wrong = asked_everywhere(app, cache, sql, found.first)
    counts, now = dict(found.counts), 0
    flips = {flip.version: flip for flip in found.flips}
    before: int | None = None
    for version, expected in wrong.items():
        now = counts.get(version, now)
        assert now == expected
        if before is not None and (before > 0) != (expected > 0):
            flip = flips.pop(version)
            assert (flip.bad, flip.keys, flip.ref) == (expected > 0, expected, f"flights/carriers@v{version}")
        before = expected
    assert not flips


@settings(scaled(6), suppress_health_check=list(HealthCheck))
@given(
    steps=st.lists(
        st.tuples(
            st.sampled_from(["send", "send", "send", "compact", "claim", "rescale", "delete", "pin"]),
            st.integers(0, 2),
            st.integers(-4, 4),
        ),
        min_size=4,
        max_size=12,
    )
)
def test_a_scan_finds_the_same_changes_as_evaluating_every_version(
    cache: SstCache, steps: list[tuple[str, int, int]]
) -> None:
    app = FlightsApp(MemoryStore(), Kafka())
    good = None
    for step, carrier, delay in steps:
        match step:
            case "send":
                app.send(Flight("N1", f"C{carrier}", delay), Flight("N2", f"C{(carrier + 1) % 3}", -delay))
                app.step_all()
            case "compact":
                app.compact("carriers")
            case "claim":
                app.claim("carriers")
            case "rescale":
                app.rescale("carriers", 1 + (app.heads["carriers"].version + carrier) % 4)
            case "delete" if f"C{carrier}" in app.state["carriers"]:
                app.delete("carriers", f"C{carrier}")
            case "pin" if good is None:
                good = f"flights/carriers@v{app.heads['carriers'].version}"
    found = scan(app.store, cache, "flights", BELOW, good=good)
    assert_same(app, cache, found, BELOW.sql)


@pytest.mark.parametrize("column", ["", "at"])
def test_expired_rows_are_no_longer_wrong(cache: SstCache, column: str) -> None:
    app = Hourly(cache, column)
    for number in range(9):
        app.batch(**({"a": -1, "b": 1} if number in (1, 2) else {"c": number - 5}))
    found = scan(app.store, cache, "app", SqlPredicate("SELECT k FROM stage WHERE v < 0"), good="app/stage@v2")
    asked = {}
    for version in range(2, app.head.version + 1):
        cut = Cut("app", {"stage": history.read(app.store, "app", "stage", version)})
        with closing(connect(app.store, cache, cut)) as con:
            asked[version] = run_query(con, "FROM stage WHERE v < 0").num_rows
    counts, now = dict(found.counts), 0
    assert asked == {version: (now := counts.get(version, now)) for version in asked}


def test_a_scan_reads_only_rows_written_by_the_versions(tmp_path_factory: pytest.TempPathFactory) -> None:
    app = FlightsApp(MemoryStore(), Kafka())
    app.load("aircraft", 20_000)
    for number in range(30):
        app.send(Flight("N1", "C1", -90 if number == 10 else 5))
        app.step_all()
    store = CountingStore(app.store)
    with closing(SstCache(tmp_path_factory.mktemp("fresh"), 1 << 30)) as fresh:
        found = scan(store, fresh, "flights", SqlPredicate("FROM carriers WHERE delay < 0"))
    assert [(flip.bad, flip.keys) for flip in found.flips] == [(True, 1), (False, 0)]
    assert found.rows == 30


def test_a_check_of_rows_can_be_scanned(cache: SstCache) -> None:
    app = FlightsApp(MemoryStore(), Kafka())
    app.run(flights(20))
    app.send(Flight("N1", "C1", -9_000))
    app.step_all()
    found = scan(app.store, cache, "flights", parse_check(app.store, "flights", "carrier = 'x' OR delay > 0"))
    assert [(flip.version, flip.bad) for flip in found.flips] == [(app.heads["carriers"].version, True)]


@pytest.mark.parametrize(
    ("sql", "reason"),
    [
        ("SELECT 1 FROM carriers HAVING sum(delay) < 0", "HAVING"),
        ("SELECT carrier FROM carriers GROUP BY carrier", "GROUP BY"),
        ("SELECT max(delay) FROM carriers", "the aggregate max"),
        ("SELECT count(*) FROM carriers", "the aggregate count"),
        ("SELECT row_number() OVER () FROM carriers", "a window function"),
        ("FROM carriers QUALIFY row_number() OVER () = 1", "QUALIFY|a window"),
        ("FROM carriers WHERE delay < (SELECT 3)", "a subquery"),
        ("FROM (FROM carriers)", "a subquery"),
        ("FROM carriers c JOIN aircraft a USING (delay)", "a join"),
        ("SELECT DISTINCT delay FROM carriers", "DISTINCT"),
        ("FROM carriers LIMIT 1", "LIMIT"),
        ("FROM carriers UNION ALL FROM carriers", "a set operation"),
        ("WITH x AS (FROM carriers) FROM x", "WITH"),
        ("FROM carriers USING SAMPLE 3", "a sample"),
    ],
)
def test_a_query_over_more_than_single_rows_is_refused_with_the_reason(cache: SstCache, sql: str, reason: str) -> None:
    app = FlightsApp(MemoryStore(), Kafka())
    app.run(flights(10))
    with pytest.raises(Refused, match=f"the query does not decide row by row: it has ({reason})"):
        parse_row_local(sql, app.heads)
    assert scan_if_cheap(app.store, cache, SqlPredicate(sql), between(app.store, "flights", SqlPredicate(sql))) is None


@pytest.mark.parametrize("predicate", [CommandPredicate("true"), SqlPredicate("FROM carriers WHERE x")])
def test_a_predicate_that_is_no_query_of_a_table_is_not_scanned(cache: SstCache, predicate: Predicate) -> None:
    app = FlightsApp(MemoryStore(), Kafka())
    app.run(flights(10))
    assert scan_if_cheap(app.store, cache, predicate, between(app.store, "flights", predicate)) is None
