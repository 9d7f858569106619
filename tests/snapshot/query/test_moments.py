"""Queries that name several moments, and `versions(...)`: a table at many of its versions."""

from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from slackwater.errors import NotFound, Usage
from slackwater.snapshot.bisect.search import bisect
from slackwater.snapshot.cut.graph import Cut
from slackwater.snapshot.cut.resolve import resolve
from slackwater.snapshot.query import clauses
from slackwater.snapshot.query.answers import run_statement
from slackwater.snapshot.take.snapshots import pin_cut
from slackwater.store.objects.memory import MemoryStore
from slackwater.store.read.cache import SstCache
from slackwater.store.versions import history

from tests.models.profiles import scaled
from tests.support.collecting import gc, old_app
from tests.support.histories import START_MS, Clock, Flight, FlightsApp, Kafka, flights, rows_of

CARRIERS = "SELECT carrier, flights, delay FROM carriers{} ORDER BY carrier"


class Reads(MemoryStore):
    """A store that records the requested keys."""

    def __init__(self) -> None:
        super().__init__()
        self.keys: list[str] = []

    def get(self, key: str) -> bytes:
        self.keys.append(key)
        return super().get(key)


@pytest.fixture(scope="module")
def app() -> FlightsApp:
    """Return an app after four batches of ten flights, with a snapshot `half` after two of them. Tests only read it."""
    app = FlightsApp(Reads(), Kafka())
    app.run(flights(20))
    pin_cut(app.store, resolve(app.store, "flights", now_ms=app.clock.now_ms), "half")
    app.run(flights(20))
    staging = FlightsApp(app.store, Kafka(), "flights-staging", clock=app.clock)
    staging.run([Flight("N1", "ZZ", 1)])
    return app


def ask(app: FlightsApp, cache: SstCache, sql: str, ref: str = "flights", **more: object) -> list[dict[str, object]]:
    now_ms = app.clock.now_ms
    cut = resolve(app.store, ref, now_ms=now_ms)
    return run_statement(app.store, cache, cut, sql, later={}, now_ms=now_ms, **more).to_pylist()  # type: ignore[arg-type,no-any-return]


def held(app: FlightsApp, ref: str) -> list[dict[str, object]]:
    cut = resolve(app.store, ref, now_ms=app.clock.now_ms)
    rows = sorted(rows_of(app.store, cut.stages["carriers"]).items())
    return [{"carrier": name, "flights": number, "delay": delay} for name, (number, delay, _) in rows]


@pytest.mark.parametrize("moment", ["~0", "~3", "~7", "half", "now", "v3", "-10s", "flights@~2", "flights/carriers@v4"])
def test_a_table_at_another_moment_has_the_rows_of_that_time(app: FlightsApp, cache: SstCache, moment: str) -> None:
    ref = moment if "@" in moment else f"flights/carriers@{moment}" if moment == "v3" else f"flights@{moment}"
    assert ask(app, cache, CARRIERS.format(f" AT '{moment}'")) == held(app, ref)
    assert ask(app, cache, CARRIERS.format(f" AT '{moment}'"), "flights@~5") == held(app, ref)


def test_a_table_is_joined_with_itself_at_another_moment(app: FlightsApp, cache: SstCache) -> None:
    more = "SELECT carrier, carriers.flights - was.flights AS more"
    found = ask(app, cache, f"{more} FROM Carriers JOIN Carriers AT 'half' was USING (carrier)")
    then = {row["carrier"]: row["flights"] for row in held(app, "flights@half")}
    now = {row["carrier"]: row["flights"] for row in held(app, "flights")}
    assert {row["carrier"]: row["more"] for row in found} == {name: now[name] - then[name] for name in then}  # type: ignore[operator]


def test_all_clauses_with_the_same_moment_see_the_same_cut(app: FlightsApp, cache: SstCache) -> None:
    seen: dict[str, Cut] = {}
    sql = "SELECT (SELECT sum(flights) FROM carriers AT '~4') AS c, (SELECT sum(flights) FROM aircraft AT '~4') AS a"
    found = ask(app, cache, sql, on_moment=seen.__setitem__)
    assert list(seen) == ["flights@~4"]
    assert seen["flights@~4"].versions == resolve(app.store, "flights@~4", now_ms=app.clock.now_ms).versions
    assert found[0]["c"] <= found[0]["a"]  # type: ignore[operator]


@pytest.mark.parametrize("moment", ["flights-staging", "flights-staging@now", "flights-staging/carriers"])
def test_another_app_is_named_by_its_ref(app: FlightsApp, cache: SstCache, moment: str) -> None:
    sql = f"SELECT carrier FROM carriers AT '{moment}' EXCEPT SELECT carrier FROM carriers"
    assert ask(app, cache, sql) == [{"carrier": "ZZ"}]


def test_a_snapshot_takes_precedence_over_an_app_of_the_same_name(cache: SstCache) -> None:
    app = FlightsApp(MemoryStore(), Kafka())
    FlightsApp(app.store, Kafka(), "staging", clock=app.clock).run([Flight("N1", "ZZ", 1)])
    app.run(flights(10))
    sql = "SELECT count(*) AS n FROM carriers AT 'staging' WHERE carrier = 'ZZ'"
    assert ask(app, cache, sql) == [{"n": 1}]
    pin_cut(app.store, resolve(app.store, "flights", now_ms=app.clock.now_ms), "staging")
    assert ask(app, cache, sql) == [{"n": 0}]


def test_a_table_is_empty_at_a_moment_before_its_first_version(cache: SstCache) -> None:
    app = FlightsApp(MemoryStore(), Kafka(), start=["legs", "aircraft"])
    app.send(*flights(4))
    app.step("legs")
    early = f"aircraft@v{app.step('aircraft').version}"
    app.claim("carriers")
    app.step("carriers")
    sql = f"SELECT (SELECT count(*) FROM carriers AT 'flights/{early}') AS was, (SELECT count(*) FROM carriers) AS now"
    assert ask(app, cache, sql) == [{"was": 0, "now": 3}]


@pytest.mark.parametrize(
    ("sql", "words"),
    [
        ("FROM carrierz AT '~1'", "no table named 'carrierz'; the nearest: carriers"),
        ("SELECT dealy FROM carriers AT '~1'", "no column named 'dealy'; the nearest: delay"),
        ("FROM carriers AT 'haf'", "no snapshot of app 'flights' named 'haf'; the nearest: half"),
        ("FROM carriers AT 'flights-stagin@now'", "no app named 'flights-stagin'; the nearest: flights-staging"),
        ("FROM carriers AT 'v99'", "no version of flights/carriers named 'v99'"),
        ("FROM versions('carrierz')", "no table of app 'flights' named 'carrierz'; the nearest: carriers"),
    ],
)
def test_the_error_for_an_unknown_name_suggests_the_nearest(
    app: FlightsApp, cache: SstCache, sql: str, words: str
) -> None:
    with pytest.raises(NotFound) as caught:
        ask(app, cache, sql)
    assert caught.value.message.startswith(words)


def test_only_named_stages_are_read(app: FlightsApp, tmp_path: Path) -> None:
    store = app.store
    assert isinstance(store, Reads)
    with closing(SstCache(tmp_path, 1 << 30)) as cache:
        store.keys.clear()
        ask(app, cache, "FROM carriers AT 'half'")
        ssts = {key for key in store.keys if key.endswith(".parquet")}
    then = resolve(store, "flights@half", now_ms=app.clock.now_ms)
    assert ssts == {sst.object for sst in then.stages["carriers"].ssts}


def test_predicates_evaluated_repeatedly_may_only_name_fixed_moments(app: FlightsApp, cache: SstCache) -> None:
    cut = resolve(app.store, "flights", now_ms=app.clock.now_ms)
    for moment in ("-1h", "now", "~2", "flights-staging"):
        with pytest.raises(Usage, match="may mean a different moment") as caught:
            run_statement(app.store, cache, cut, f"FROM carriers AT '{moment}'", later={})
        assert "name a snapshot" in caught.value.hint
    assert run_statement(app.store, cache, cut, "FROM carriers AT 'half'", later={}).num_rows == 3


def test_a_bisect_predicate_may_compare_with_a_snapshot(app: FlightsApp, cache: SstCache) -> None:
    where = "SELECT carrier FROM carriers c JOIN carriers AT 'half' was USING (carrier) WHERE c.flights > was.flights"
    verdict = bisect(app.store, cache, "flights", where)
    half = resolve(app.store, "flights@half", now_ms=app.clock.now_ms)
    assert (verdict.stage, verdict.bad_version) == ("carriers", half.versions["carriers"] + 1)


CHANGES = st.lists(st.sampled_from(["run", "compact", "claim", "delete"]), min_size=1, max_size=6)


@given(CHANGES, st.integers(1, 5), st.integers(0, 3))
@scaled(5)
def test_versions_has_the_whole_table_at_each_version_that_may_have_changed_it(
    cache: SstCache, changes: list[str], since: int, more: int
) -> None:
    app = FlightsApp(MemoryStore(), Kafka())
    app.run(flights(10))
    for change in changes:
        if change == "run":
            app.run(flights(7, carriers=2))
        elif change == "compact":
            app.compact("carriers")
        elif change == "claim":
            app.claim("carriers")
        else:
            app.delete("carriers", *[name for name in ("C1",) if name in app.state["carriers"]])
    last = app.heads["carriers"].version
    low, high = min(since, last), min(since + more, last)
    manifests = [history.read(app.store, "flights", "carriers", version) for version in range(low, high + 1)]
    shown = [manifests[0], *(each for each in manifests[1:] if each.kind == "batch")]
    expected = [
        (each.version, each.time_ms, name, number, delay)
        for each in shown
        for name, (number, delay, _) in sorted(rows_of(app.store, each).items())
    ]
    sql = (
        "SELECT _version, epoch_ms(_committed_at) AS time_ms, carrier, flights, delay "
        f"FROM versions('carriers', 'v{low}', 'v{high}') ORDER BY ALL"
    )
    assert [tuple(row.values()) for row in ask(app, cache, sql)] == expected


def test_versions_covers_the_whole_history_unless_moments_are_named(app: FlightsApp, cache: SstCache) -> None:
    totals = "SELECT _version, sum(flights)::INT AS n FROM versions('carriers'{}) GROUP BY ALL ORDER BY ALL"
    everything = ask(app, cache, totals.format(""))
    assert [row["n"] for row in everything] == [10, 20, 30, 40]
    assert ask(app, cache, totals.format(", 'half'")) == everything[1:]
    assert ask(app, cache, totals.format(", '', 'half'")) == everything[:2]
    assert ask(app, cache, totals.format(", '-1d'")) == everything  # the app had not begun
    assert {row["n"] for row in ask(app, cache, totals.format(", 'flights-staging', 'flights-staging'"))} == {1}


def test_versions_begins_where_the_complete_history_begins(cache: SstCache) -> None:
    app = old_app()
    gc(app)
    with pytest.raises(NotFound, match="the history of flights is complete from"):
        ask(app, cache, "FROM versions('carriers', '-300d')")
    sql = "SELECT DISTINCT _version AS v FROM versions('carriers') ORDER BY v"
    assert [row["v"] for row in ask(app, cache, sql)] == list(history.list_versions(app.store, "flights", "carriers"))


def test_with_a_step_only_the_last_version_of_each_step_is_shown(cache: SstCache) -> None:
    app = FlightsApp(MemoryStore(), Kafka(), clock=Clock(START_MS))
    app.run(flights(60))
    # A step that ends with a compaction shows what the batch before it wrote.
    app.compact("carriers")
    heads = [history.read(app.store, "flights", "carriers", v) for v in range(1, app.heads["carriers"].version + 1)]
    assert heads[-1].kind == "compaction"
    begin, end = heads[0].time_ms, app.clock.now_ms
    for step_ms in (1_000, 7_000, 25_000, 10_000_000):
        sql = f"SELECT DISTINCT _version AS v FROM versions('carriers', 'v1', 'now', '{step_ms} ms') ORDER BY v"
        ends = range(begin + step_ms, end + step_ms, step_ms)
        expected = {max(each.version for each in heads if each.time_ms <= min(at, end)) for at in ends}
        assert [row["v"] for row in ask(app, cache, sql)] == sorted(expected - {1})  # the first has no rows


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("'carriers', 'now', 'half'", "now is after half"),
        ("'carriers', 'flights-staging', 'now'", "flights-staging is a moment of flights-staging"),
        ("'carriers', 'half', 'now', 'often'", "'often' is not a span of time"),
        ("'carriers', 'half', 'now', '0s'", "expected more than 0"),
        ("'carriers', 'half', 'now', '1ms'", "return the whole table once for each of"),
    ],
)
def test_an_invalid_range_of_versions_is_refused(app: FlightsApp, cache: SstCache, arguments: str, words: str) -> None:
    with pytest.raises(Usage, match=words):
        ask(app, cache, f"FROM versions({arguments})")


def test_more_versions_than_a_query_may_read_are_refused_with_a_suggested_step(
    app: FlightsApp, cache: SstCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clauses, "MAX_VERSIONS", 3)
    with pytest.raises(Usage, match="the whole table once for each of 5 versions; at most 3 are allowed") as caught:
        ask(app, cache, "FROM versions('carriers')")
    assert "versions('carriers', '-1h', 'now', '10m')" in caught.value.hint
    assert ask(app, cache, "SELECT DISTINCT _version FROM versions('carriers', '', 'now', '1h')")
