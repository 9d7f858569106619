from collections.abc import Callable
from contextlib import closing
from math import ceil, log2
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from slackwater.errors import NotFound, Refused, Usage
from slackwater.operations.staging.clone import clone
from slackwater.snapshot.bisect.search import Verdict, bisect
from slackwater.snapshot.bisect.verdict import Evaluation
from slackwater.snapshot.cut.graph import Cut, violations
from slackwater.snapshot.cut.lineage import trace
from slackwater.snapshot.cut.resolve import resolve
from slackwater.snapshot.query.sql import connect, run_query
from slackwater.snapshot.take.snapshots import pin_cut
from slackwater.snapshot.verify.verify import verify
from slackwater.store.objects.counting import CountingStore
from slackwater.store.objects.local import LocalStore
from slackwater.store.objects.memory import MemoryStore
from slackwater.store.read.cache import SstCache
from slackwater.store.versions.keys import manifest
from slackwater.store.versions.manifest import Manifest

from tests.models.profiles import scaled
from tests.support.histories import STAGES, TABLES, Clock, Flight, FlightsApp, Kafka, flights, rows_of

SECONDS = "SELECT carrier, delay / flights AS mean FROM carriers WHERE delay > 60 * flights"
"""Query for delays in seconds that should be in minutes."""


def find(app: FlightsApp, cache: SstCache, where: str, **more: object) -> Verdict:
    return bisect(app.store, cache, "flights", where, now_ms=app.clock.now_ms, **more)


def corrupted(app: FlightsApp, *, batches: int, bad_from: int) -> int:
    """Run batches. From batch `bad_from` on, carrier C1 sends seconds. Returns the first bad version of `carriers`."""
    for number in range(batches):
        app.send(*(f._replace(delay=6_000) if f.carrier == "C1" and number >= bad_from else f for f in flights(14)))
        app.step_all()
        if number % 8 == 7:
            app.compact("carriers")
    for version in range(1, app.heads["carriers"].version + 1):
        held = rows_of(app.store, app.version("carriers", version))
        if any(delay > 60 * number for number, delay, _ in held.values()):
            return version
    raise AssertionError("nothing went wrong")


def is_bad(app: FlightsApp, cache: SstCache, cut: Cut, where: str) -> bool:
    with closing(connect(app.store, cache, cut, empty=TABLES)) as con:
        return run_query(con, where).num_rows > 0


def assert_proves_itself(app: FlightsApp, cache: SstCache, verdict: Verdict) -> None:
    """Check that the refs in the result are a good and a bad consistent cut that differ by one commit."""
    assert violations(verdict.good.stages) == ()
    assert violations(verdict.bad.stages) == ()
    assert not is_bad(app, cache, verdict.good, verdict.where)
    assert is_bad(app, cache, verdict.bad, verdict.where)
    others = {stage: version for stage, version in verdict.bad.versions.items() if stage != verdict.stage}
    good = verdict.good.versions
    assert good.pop(verdict.stage, 0) == verdict.good_version == verdict.bad_version - 1
    assert good == others
    assert resolve(app.store, verdict.bad_ref, now_ms=0).versions == verdict.bad.versions
    assert not verdict.good_ref or resolve(app.store, verdict.good_ref, now_ms=0).versions == verdict.good.versions


@pytest.fixture(scope="module")
def wrong_from_7() -> tuple[FlightsApp, int]:
    """Return a history and its first bad version. Tests only read and pin it."""
    app = FlightsApp(MemoryStore(), Kafka())
    return app, corrupted(app, batches=12, bad_from=7)


@pytest.mark.parametrize("bad_from", [0, 1, 7, 10, 11])
def test_the_commit_that_made_a_table_wrong_is_found(cache: SstCache, bad_from: int) -> None:
    app = FlightsApp(MemoryStore(), Kafka())
    first_bad = corrupted(app, batches=12, bad_from=bad_from)
    verdict = find(app, cache, SECONDS)
    assert (verdict.stage, verdict.good_version, verdict.bad_version) == ("carriers", first_bad - 1, first_bad)
    # Right before it `aircraft` sent on what it read.
    (sent,) = app.version("carriers", first_bad).inputs.values()
    assert (verdict.good_ref, verdict.bad_ref) == (
        f"flights/aircraft@v{sent.version}",
        f"flights/carriers@v{first_bad}",
    )
    assert verdict.good_time_ms == app.version("aircraft", sent.version).time_ms
    assert verdict.bad_time_ms == app.version("carriers", first_bad).time_ms
    assert verdict.rows.column("carrier").to_pylist() == ["C1"]
    assert verdict.non_monotone == ()
    assert_proves_itself(app, cache, verdict)


def test_the_verdict_names_the_input_window_up_to_the_users_topic(
    cache: SstCache, wrong_from_7: tuple[FlightsApp, int]
) -> None:
    app, first_bad = wrong_from_7
    found = find(app, cache, SECONDS).lineage
    assert found == trace(app.store, app.version("carriers", first_bad - 1), app.version("carriers", first_bad))
    culprits = [
        flight.delay
        for window in found.sources
        for message in app.kafka.topics[window.topic][window.partition][window.start : window.end]
        for flight in message.flights
    ]
    assert 6_000 in culprits


def test_keys_named_by_the_predicate_are_shown_before_and_after(
    cache: SstCache, wrong_from_7: tuple[FlightsApp, int]
) -> None:
    app, _ = wrong_from_7
    verdict = find(app, cache, SECONDS)
    (change,) = verdict.keys
    assert change.key == {"carrier": "C1"}
    held = {
        side: rows_of(app.store, cut.stages["carriers"])["C1"]
        for side, cut in (("b", verdict.good), ("a", verdict.bad))
    }
    assert change.before == {"flights": held["b"][0], "delay": held["b"][1]}
    assert change.after == {"flights": held["a"][0], "delay": held["a"][1]}


def test_without_key_columns_the_keys_written_by_the_commit_are_shown(cache: SstCache) -> None:
    app = FlightsApp(MemoryStore(), Kafka())
    app.run(flights(14))
    app.send(Flight("N0", "C7", 6_000))
    app.step_all()
    verdict = find(app, cache, "SELECT 1 FROM carriers WHERE delay > 60 * flights")
    assert [(change.key, change.before) for change in verdict.keys] == [({"carrier": "C7"}, None)]


@pytest.mark.parametrize("shape", ["list(carrier)", "{'is': any_value(carrier)}", "map {any_value(carrier): 1}"])
def test_a_computed_column_named_like_the_key_does_not_count_as_key(cache: SstCache, shape: str) -> None:
    app = FlightsApp(MemoryStore(), Kafka())
    app.run(flights(14))
    app.send(Flight("N0", "C7", 6_000))
    app.step_all()
    verdict = find(
        app, cache, f"SELECT {shape} AS carrier FROM carriers WHERE delay > 60 * flights HAVING count(*) > 0"
    )
    assert [change.key for change in verdict.keys] == [{"carrier": "C7"}]


def test_keys_of_a_commit_rebased_on_a_compaction_are_found(cache: SstCache) -> None:
    app = FlightsApp(MemoryStore(), Kafka())
    app.run(flights(14))
    app.send(Flight("N0", "C7", 6_000))
    app.step("legs")
    app.step_behind_a_compaction("aircraft")
    bad = app.step_behind_a_compaction("carriers")
    assert bad.row_seq == bad.version - 1
    app.run(flights(14))
    verdict = find(app, cache, "SELECT 1 FROM carriers WHERE delay > 60 * flights")
    assert verdict.bad_version == bad.version
    assert verdict.good.stages["carriers"].kind == "compaction"
    assert [(change.key, change.before) for change in verdict.keys] == [({"carrier": "C7"}, None)]
    assert_proves_itself(app, cache, verdict)
    assert verify(app.store, "flights", now_ms=app.clock.now_ms, deep=True).differences == ()


def test_all_keys_named_by_the_predicate_are_shown_in_its_order(cache: SstCache) -> None:
    app = FlightsApp(MemoryStore(), Kafka())
    app.send(*(Flight(f"N{n:02}", "C0", 1) for n in range(30)))
    app.step_all()
    app.send(*(Flight(f"N{n:02}", "C0", 1) for n in range(20, 30)))
    app.step_all()
    where = "FROM aircraft WHERE (SELECT max(flights) FROM aircraft) > 1 ORDER BY tail DESC"
    keys = find(app, cache, where).keys
    assert keys is not None
    assert keys.from_predicate
    assert [change.key["tail"] for change in keys] == [f"N{n:02}" for n in reversed(range(30))]
    changed = keys.changed()
    assert [change.key["tail"] for change in changed] == [f"N{n:02}" for n in reversed(range(20, 30))]
    assert all(change.before != change.after for change in changed)
    assert keys.to_table().column_names == [
        "tail",
        "change",
        "before_flights",
        "after_flights",
        "before_delay",
        "after_delay",
    ]
    assert keys.to_table().column("change").to_pylist() == ["changed"] * 10 + ["same"] * 20


def test_a_predicate_that_names_no_key_gets_all_keys_changed_by_the_commit(cache: SstCache) -> None:
    app = FlightsApp(MemoryStore(), Kafka())
    app.run(flights(14))
    app.send(*(Flight(f"M{n:04}", "C7", 6_000) for n in range(1_500)))
    app.step_all()
    keys = find(app, cache, "SELECT count(*) FROM aircraft WHERE delay > 1000 HAVING count(*) > 0").keys
    assert keys is not None
    assert not keys.from_predicate
    assert [change.key["tail"] for change in keys] == [f"M{n:04}" for n in range(1_500)]
    assert set(keys.to_table().column("change").to_pylist()) == {"added"}


def test_a_bad_key_beyond_the_first_thousand_rows_is_found(cache: SstCache) -> None:
    app = FlightsApp(MemoryStore(), Kafka())
    app.run(flights(14))
    app.send(*(Flight(f"N{n:04}", "C7", 6_000) for n in range(1_500)), Flight("planted", "C7", 9_000_000))
    app.step_all()
    verdict = find(app, cache, "SELECT tail FROM aircraft WHERE delay > 1000 ORDER BY delay, tail")
    assert (verdict.rows.num_rows, verdict.more_rows) == (1_501, False)
    assert verdict.keys is not None
    assert [change.key["tail"] for change in verdict.keys][-2:] == ["N1499", "planted"]


def test_evaluations_are_logarithmic_in_the_number_of_versions(cache: SstCache) -> None:
    app = FlightsApp(MemoryStore(), Kafka())
    first_bad = corrupted(app, batches=60, bad_from=37)
    steps: list[Evaluation] = []
    verdict = find(app, cache, SECONDS, on_step=steps.append)
    assert verdict.bad_version == first_bad
    # The bad end, and the search over the versions of the one table that matters.
    assert verdict.evaluations <= 1 + ceil(log2(app.heads["carriers"].version))
    # The good end, which has no rows, and the probes after it.
    assert verdict.steps == tuple(steps)
    assert len(steps) <= verdict.evaluations + 1 + 4
    assert [step.number for step in steps] == list(range(1, len(steps) + 1))
    assert {step.total for step in steps} == {steps[0].total}, "one total from the first to the last"
    assert len(steps) <= steps[0].total <= len(steps) + 3
    assert (steps[0].bad, steps[1].bad) == (True, False)


def test_compactions_claims_and_empty_batches_are_never_named_as_bad(cache: SstCache) -> None:
    app = FlightsApp(MemoryStore(), Kafka())
    corrupted(app, batches=4, bad_from=2)
    for _ in range(8):
        app.compact("carriers")
        app.claim("carriers")
        app.step_all()
    verdict = find(app, cache, SECONDS)
    assert app.version("carriers", verdict.bad_version).kind == "batch"
    assert_proves_itself(app, cache, verdict)


def test_a_deletion_is_found_even_if_compaction_dropped_its_tombstone(cache: SstCache) -> None:
    app = FlightsApp(MemoryStore(), Kafka())
    app.run(flights(30))
    deleted = app.delete("carriers", "C1")
    for _ in range(5):
        app.claim("carriers")
    app.compact("carriers")
    verdict = find(app, cache, "SELECT 1 FROM (SELECT count(*) AS n FROM carriers) WHERE n = 2")
    assert (verdict.stage, verdict.bad_version) == ("carriers", deleted.version)
    (change,) = verdict.keys
    assert (change.key, change.after) == ({"carrier": "C1"}, None)
    assert change.before is not None
    assert_proves_itself(app, cache, verdict)


def test_a_predicate_over_several_tables_finds_the_first_stage_that_went_wrong(cache: SstCache) -> None:
    app = FlightsApp(MemoryStore(), Kafka())
    app.run(flights(50))
    where = "SELECT 1 FROM aircraft WHERE flights >= 5 UNION ALL SELECT 1 FROM carriers WHERE flights >= 40"
    verdict = find(app, cache, where)
    assert verdict.stage == "aircraft"
    assert_proves_itself(app, cache, verdict)


def test_a_table_that_did_not_exist_yet_is_empty(cache: SstCache) -> None:
    app = FlightsApp(MemoryStore(), Kafka(), start=["legs", "aircraft"])
    for _ in range(3):
        app.send(*flights(7))
        app.step("legs")
        app.step("aircraft")
    pin_cut(app.store, resolve(app.store, "flights", now_ms=0), "before")
    app.claim("carriers")
    app.step("carriers")
    verdict = find(app, cache, "FROM carriers WHERE flights > 5", good="flights@before")
    assert (verdict.stage, verdict.good_version, verdict.bad_version) == ("carriers", 1, 2)


def test_a_stage_whose_first_version_is_wrong_has_no_good_version(cache: SstCache) -> None:
    app = FlightsApp(MemoryStore(), Kafka(), start=["legs", "aircraft"])
    app.send(*flights(7))
    app.step("legs")
    app.step("aircraft")
    pin_cut(app.store, resolve(app.store, "flights", now_ms=0), "before")
    claim = app.at_birth(Manifest("flights", "carriers", 1, 1, "w", app.clock.tick("carriers"), "claim"))
    app.commit(claim)
    born = app.load("carriers", 3)
    app.store.delete(manifest("flights", "carriers", 1))  # its history was thinned out
    fresh = CountingStore(app.store)  # nothing read before is remembered for it
    verdict = bisect(fresh, cache, "flights", "FROM carriers", good="flights@before")
    assert (verdict.good_version, verdict.bad_version) == (0, born.version)
    assert verdict.good_ref == "flights/aircraft@v2"  # the commit right before, though of another stage
    assert "carriers" not in verdict.good.versions
    assert {change.before for change in verdict.keys} == {None}


def test_good_and_bad_bound_the_search(cache: SstCache, wrong_from_7: tuple[FlightsApp, int]) -> None:
    app, first_bad = wrong_from_7
    pin_cut(app.store, resolve(app.store, "flights/carriers@v4", now_ms=0), "fine")
    verdict = find(app, cache, SECONDS, good="flights@fine", bad=f"flights/carriers@v{first_bad + 2}")
    assert verdict.bad_version == first_bad


def test_a_bad_end_that_is_not_bad_is_refused(cache: SstCache) -> None:
    app = FlightsApp(MemoryStore(), Kafka())
    corrupted(app, batches=6, bad_from=3)
    with pytest.raises(Refused, match="the predicate returns no rows at flights/carriers@v2"):
        find(app, cache, SECONDS, bad="flights/carriers@v2")
    with pytest.raises(Refused, match="the predicate returns no rows at flights@now"):
        find(app, cache, "FROM carriers WHERE flights < 0")


def test_a_good_end_that_is_bad_is_refused_and_an_earlier_moment_is_suggested(
    cache: SstCache, wrong_from_7: tuple[FlightsApp, int]
) -> None:
    app, first_bad = wrong_from_7
    with pytest.raises(Refused, match="rows already at flights/carriers@v12") as caught:
        find(app, cache, SECONDS, good="flights/carriers@v12")
    suggested = caught.value.hint.removeprefix("try --good ")
    assert find(app, cache, SECONDS, good=suggested).bad_version == first_bad


def test_a_predicate_that_was_always_true_is_refused(cache: SstCache) -> None:
    app = FlightsApp(MemoryStore(), Kafka())
    app.run(flights(10))
    with pytest.raises(Refused, match="already at the beginning of the history of flights"):
        find(app, cache, "SELECT 1 WHERE (SELECT count(*) FROM carriers) < 100")


def test_ends_in_the_wrong_order_or_of_another_app_are_refused(cache: SstCache) -> None:
    app = FlightsApp(MemoryStore(), Kafka())
    corrupted(app, batches=6, bad_from=3)
    with pytest.raises(Refused, match="is not before the bad one"):
        find(app, cache, SECONDS, good="flights@now", bad="flights/carriers@v3")
    FlightsApp(app.store, Kafka(), "other")
    with pytest.raises(Refused, match="other is a moment of app 'other'"):
        find(app, cache, SECONDS, good="other")


@pytest.mark.parametrize(
    ("where", "error"),
    [
        ("FROM carrierz", NotFound),
        ("SELECT dealy FROM carriers", NotFound),
        ("SELEC", Usage),
        ("SELECT 1; SELECT 2", Usage),
    ],
)
def test_an_invalid_predicate_is_an_error_at_once(cache: SstCache, where: str, error: type[Exception]) -> None:
    app = FlightsApp(MemoryStore(), Kafka())
    app.run(flights(10))
    with pytest.raises(error):
        find(app, cache, where)


def test_a_predicate_that_does_not_depend_on_the_rows_is_refused(cache: SstCache) -> None:
    app = FlightsApp(MemoryStore(), Kafka())
    app.run(flights(40))
    pin_cut(app.store, resolve(app.store, "flights", now_ms=0), "before")
    app.compact("carriers")
    files = "SELECT len(split(value, ',')) FROM duckdb_settings() WHERE name = 'allowed_paths'"
    with closing(connect(app.store, cache, resolve(app.store, "flights", now_ms=0))) as con:
        fewer = run_query(con, files).column(0)[0].as_py()
    with pytest.raises(Refused, match="at two moments with the same rows"):
        find(app, cache, f"SELECT 1 WHERE ({files}) <= {fewer}", good="flights@before")


def test_a_history_that_was_bad_then_good_then_bad_is_reported(cache: SstCache) -> None:
    app = FlightsApp(MemoryStore(), Kafka())
    for number in range(32):
        # The mean is beyond 60 minutes in the second quarter and again in the last.
        high = 8 <= number < 16 or number >= 24
        held = rows_of(app.store, app.heads["carriers"]).get("C0", (0, 0, 0))
        wanted = (100 if high else 10) * (held[0] + 1)
        app.send(Flight("N1", "C0", wanted - held[1]))
        app.step_all()
    verdict = find(app, cache, SECONDS)
    assert_proves_itself(app, cache, verdict)
    assert verdict.bad_version in (10, 26)
    assert verdict.non_monotone
    for step in verdict.non_monotone:
        assert step.bad == is_bad(app, cache, step.cut, SECONDS)


def test_bisect_works_on_a_clone_whose_history_does_not_begin_at_version_one(cache: SstCache) -> None:
    source = FlightsApp(MemoryStore(), Kafka())
    source.run(flights(70))
    clone(source.store, "flights", "staging", topics={}, channels=source.kafka, by="ada")
    staging = FlightsApp(source.store, source.kafka, "staging", clock=source.clock)
    staging.run([f._replace(delay=50_000) for f in flights(30)])
    verdict = bisect(staging.store, cache, "staging", SECONDS, now_ms=0)
    assert verdict.stage == "carriers"
    assert verdict.bad_version > source.heads["carriers"].version
    assert_proves_itself(staging, cache, verdict)


def test_the_ssts_of_a_local_store_are_read_in_place(tmp_path: Path) -> None:
    app = FlightsApp(LocalStore(tmp_path / "store"), Kafka())
    first_bad = corrupted(app, batches=6, bad_from=3)
    with closing(SstCache(tmp_path / "cache", 1 << 30)) as cache:
        assert find(app, cache, SECONDS).bad_version == first_bad
    assert not list((tmp_path / "cache").glob("*.parquet"))


PREDICATES: dict[str, Callable[[int], str]] = {
    "carriers": lambda n: f"FROM carriers WHERE flights >= {n}",
    "aircraft": lambda n: f"FROM aircraft WHERE flights >= {n}",
    "either": lambda n: (
        f"SELECT 1 FROM carriers WHERE flights >= {n} UNION ALL SELECT 2 FROM aircraft WHERE flights >= {n}"
    ),
    "both": lambda n: f"SELECT 1 FROM carriers c, aircraft a WHERE c.flights >= {n} AND a.flights >= {n}",
    "hidden": lambda n: f"SELECT 1 FROM query_table('car' || 'riers') WHERE flights >= {n}",
}


@settings(scaled(20, in_ci=200), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    steps=st.lists(
        st.tuples(st.sampled_from(["send", "claim", "compact", "rescale", *STAGES]), st.integers(1, 3)), max_size=40
    ),
    skew_ms=st.fixed_dictionaries({stage: st.sampled_from([-5_500, 0, 5_500]) for stage in STAGES}),
    predicate=st.sampled_from(sorted(PREDICATES)),
    least=st.integers(1, 6),
)
def test_for_any_history_the_verdict_is_a_consistent_good_and_bad_pair(
    cache: SstCache, steps: list[tuple[str, int]], skew_ms: dict[str, int], predicate: str, least: int
) -> None:
    app = FlightsApp(MemoryStore(), Kafka(), clock=Clock(skew_ms=skew_ms))
    for verb, count in steps:
        match verb:
            case "send":
                app.send(*(Flight(f"N{n}", "C0", 1) for n in range(count)))
            case "claim":
                app.claim(STAGES[count - 1])
            case "compact":
                app.compact(STAGES[1 + count % 2])
            case "rescale":
                app.rescale("carriers", 1 + app.heads["carriers"].version % 5)
            case stage:
                app.step(stage, max_versions=count)
    where = PREDICATES[predicate](least)
    now = resolve(app.store, "flights", now_ms=0)
    if not is_bad(app, cache, now, where):
        with pytest.raises(Refused, match="no rows at flights@now"):
            find(app, cache, where)
        return
    verdict = find(app, cache, where)
    assert_proves_itself(app, cache, verdict)
    assert verdict.non_monotone == ()
    if predicate in TABLES:
        at_least = [
            version
            for version in range(1, app.heads[predicate].version + 1)
            if any(n >= least for n, _, _ in rows_of(app.store, app.version(predicate, version)).values())
        ]
        assert (verdict.stage, verdict.bad_version) == (predicate, at_least[0])
