"""Resetting offsets: tables stay, and offsets that were read twice or skipped remain known."""

from collections.abc import Callable
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from slackwater.errors import NotFound, Refused, Usage
from slackwater.operations.repair.reset import ResetDone, Scenario, parse_scopes, parse_span_ms, reset
from slackwater.operations.staging.clone import clone
from slackwater.snapshot.bisect.search import bisect
from slackwater.snapshot.change.migrate import check_no_newer_migration
from slackwater.snapshot.change.migration import finish_newest_migration
from slackwater.snapshot.cut.lineage import direct_windows, trace
from slackwater.snapshot.cut.migrations import MIGRATIONS
from slackwater.snapshot.cut.resolve import resolve
from slackwater.snapshot.cut.stored import list_snapshots
from slackwater.snapshot.diff.key_history import key_history
from slackwater.snapshot.diff.moments import StoredCut, diff
from slackwater.snapshot.query.log import log_entries
from slackwater.snapshot.take.audit_log import because, list_operations
from slackwater.snapshot.under_way.runners import HEARTBEATS, Heartbeat
from slackwater.store.objects.memory import MemoryStore
from slackwater.store.read.cache import SstCache
from slackwater.store.versions import history

from tests.crash.points import killed_at_each_call
from tests.models.profiles import scaled
from tests.operations.repair.test_rewind import LATER_MS, assert_whole, rewound, tables, totals
from tests.support.collecting import aging_app, store_of
from tests.support.histories import STAGES, Flight, FlightsApp, Kafka, flights

WRITER = "01K9TZ3Y5C8V0WQ2X4N6M8R0TB"


def set_back(
    app: FlightsApp,
    *topics: str,
    now_ms: int = LATER_MS,
    dry_run: bool = False,
    fence: bool = False,
    **scenario: object,
) -> ResetDone:
    """Reset the app, and let its runner claim the stages again."""
    done = reset(
        app.store,
        app.name,
        parse_scopes(topics, all_topics=not topics),
        Scenario.from_options(now_ms=now_ms, **scenario),  # type: ignore[arg-type]
        app.kafka,
        by="ada@host",
        now_ms=app.clock.tick("legs"),
        dry_run=dry_run,
        fence=fence,
        reader=app.kafka,
    )
    if not dry_run:
        for stage in STAGES:
            app.claim(stage)
    return done


def offsets(app: FlightsApp) -> tuple[int, ...]:
    head = history.head(app.store, app.name, "legs")
    assert head is not None
    return head.inputs["flights"].offsets


def test_tables_stay_and_re_read_records_count_twice(app: FlightsApp) -> None:
    before, stood = tables(app), offsets(app)
    done = set_back(app, shift_by=-5)
    assert tables(app) == before
    (legs,) = done.stages
    assert (legs.stage, legs.read_again, legs.skipped) == ("legs", 10, 0)
    assert offsets(app) == tuple(each - 5 for each in stood)
    assert_whole(app)
    app.step_all()
    again = sum(number for number, _, _ in tables(app)["aircraft"].values())
    assert again == 40 + 10
    assert_whole(app)
    assert {stage: app.heads[stage].version for stage in STAGES} == {s: done.versions[s] + 2 for s in STAGES}


def test_a_time_before_1970_means_the_beginning() -> None:
    for scenario in ({"by_duration": "P900000D"}, {"to_datetime_ms": -1}):
        at = Scenario.from_options(now_ms=LATER_MS, **scenario)  # type: ignore[arg-type]
        assert (at.value, str(at)) == (0, "to 1970-01-01T00:00:00Z")


def test_skipped_records_are_in_no_table(app: FlightsApp) -> None:
    app.send(*flights(20, delay=9))
    done = set_back(app, to_latest=True)
    assert [(each.read_again, each.skipped) for each in done.stages] == [(0, 20)]
    app.step_all()
    app.run(flights(6))
    assert sum(number for number, _, _ in tables(app)["aircraft"].values()) == 46
    assert_whole(app)


def test_selected_partitions_can_be_reset(app: FlightsApp) -> None:
    stood = offsets(app)
    set_back(app, "flights:1", to_earliest=True)
    assert offsets(app) == (stood[0], 0)
    set_back(app, "flights:0", to_offset=3)
    assert offsets(app) == (3, 0)


@pytest.mark.parametrize(
    ("scenario", "expected"),
    [
        ({"to_earliest": True}, (2, 2)),
        ({"to_latest": True}, (20, 28)),
        ({"to_offset": 7}, (7, 7)),
        ({"shift_by": -3}, (13, 21)),
        ({"shift_by": 2}, (18, 26)),
        ({"to_datetime_ms": 5}, (2, 2)),
        ({"by_duration": "PT10M"}, (2, 2)),
        ({"by_duration": "10m"}, (2, 2)),
    ],
)
def test_each_scenario_equals_that_of_kafkas_tool(
    app: FlightsApp, scenario: dict[str, object], expected: tuple[int, ...]
) -> None:
    assert offsets(app) == (16, 24)
    app.send(*flights(30))
    app.kafka.earliest["flights"] = (2, 2)
    asked: list[int] = []

    def since(_topic: str, time_ms: int) -> tuple[int, ...]:
        asked.append(time_ms)
        return (2, 2)

    app.kafka.since = since  # type: ignore[method-assign]
    ends = app.kafka.ends("flights")
    done = set_back(app, now_ms=1_000_000, **scenario)
    wanted = ends if "to_latest" in scenario else expected
    assert offsets(app) == wanted
    assert asked in ([], [5], [400_000])
    assert str(done.scenario)
    assert_whole(app)


def test_durations_can_be_written_as_for_kafkas_tool_or_as_elsewhere_here() -> None:
    spans = {"PT30M": 1_800_000, "P1DT2H": 93_600_000, "P2D": 172_800_000, "pt1.5s": 1_500, "1d2h": 93_600_000}
    assert {text: parse_span_ms(text) for text in spans} == spans
    for text in ("P", "PT", "P1", "PT5", "5", "P1M", "P1DT"):
        with pytest.raises(Usage, match="is not a span of time"):
            parse_span_ms(text)


@pytest.mark.parametrize(
    ("topics", "scenario", "error", "words"),
    [
        (
            (),
            {"shift_by": -100},
            Refused,
            r"flights\[0\] would be read from -84, and Kafka has 0\.\.16; flights\[1\] would",
        ),
        ((), {"shift_by": 1}, Refused, r"would be read from 17, and Kafka has 0\.\.16"),
        ((), {"to_offset": 20}, Refused, r"flights\[0\] would be read from 20, and Kafka has 0\.\.16"),
        (("flights:7",), {"to_earliest": True}, NotFound, r"no partition of topic 'flights' named '7'"),
        (("flight",), {"to_earliest": True}, NotFound, r"no topic that flights reads named 'flight'; the nearest: fl"),
        (
            ("by-carrier",),
            {"to_earliest": True},
            Refused,
            r"'by-carrier' is a repartition topic that aircraft of flights",
        ),
        (("flights-by-carrier-repartition",), {"to_earliest": True}, Refused, r"is a repartition topic that aircraft"),
    ],
)
def test_unavailable_offsets_and_internal_topics_are_refused_and_nothing_changes(
    app: FlightsApp, topics: tuple[str, ...], scenario: dict[str, object], error: type[Exception], words: str
) -> None:
    before = {stage: history.head(app.store, "flights", stage) for stage in STAGES}
    with pytest.raises(error, match=words):
        set_back(app, *topics, **scenario)
    assert {stage: history.head(app.store, "flights", stage) for stage in STAGES} == before
    assert not MIGRATIONS.all(app.store, "flights")


def test_a_deleted_topic_is_refused(app: FlightsApp) -> None:
    del app.kafka.topics["flights"]
    with pytest.raises(NotFound, match="no Kafka topic named 'flights'; it was deleted"):
        set_back(app, to_earliest=True)


def test_partitions_added_to_the_topic_are_read_from_the_requested_offset(app: FlightsApp) -> None:
    app.kafka.topics["flights"].append([])
    app.kafka.send("flights", flights(2))
    done = set_back(app, to_latest=True)
    assert offsets(app) == app.kafka.ends("flights")
    assert [each.partition for each in done.stages[0].moved] in ([0, 1], [0], [1])
    assert_whole(app)


def test_resetting_a_running_app_requires_fence(app: FlightsApp) -> None:
    HEARTBEATS.put(app.store, Heartbeat(WRITER, "host:1", {"legs": app.heads["legs"].epoch}), "flights")
    with pytest.raises(Refused, match="legs of flights run on host:1") as held:
        set_back(app, shift_by=-1)
    assert "--fence" in held.value.hint
    assert set_back(app, shift_by=-1, dry_run=True).stages
    assert set_back(app, shift_by=-1, fence=True).number == 1


def test_a_dry_run_reports_the_reset_and_a_repeated_reset_reports_done(app: FlightsApp) -> None:
    looked = set_back(app, shift_by=-5, dry_run=True)
    assert (looked.number, looked.stages[0].read_again) == (0, 10)
    assert not MIGRATIONS.all(app.store, "flights")

    def typed() -> ResetDone:
        how = {"by": "ada@host", "now_ms": app.clock.tick("legs")}
        return reset(app.store, "flights", {}, Scenario("shift", -5), app.kafka, **how)  # type: ignore[arg-type]

    assert typed().number == 1
    stood = offsets(app)
    assert typed().stages == ()
    assert offsets(app) == stood
    for stage in STAGES:
        app.claim(stage)
    assert typed().number == 2, "once somebody has gone on, it is said anew"
    assert offsets(app) == tuple(each - 5 for each in stood)
    for scenario in ({"to_offset": 1}, {"to_earliest": True}):
        set_back(app, **scenario)
        assert set_back(app, **scenario).stages == ()


def test_the_log_shows_the_reset_and_reads_are_split_into_contiguous_ranges(app: FlightsApp, cache: SstCache) -> None:
    first = history.read(app.store, "flights", "legs", 1)
    with because("ticket 12"):
        done = set_back(app, shift_by=-5)
    app.step_all()
    made = next(each for each in log_entries(app.store, "flights", 0) if each.stage == "legs" and each.kind == "reset")
    assert (made.version, made.windows) == (done.versions["legs"], ())
    assert made.reset == ("flights[0] 16 to 11", "flights[1] 24 to 19")
    operation = list_operations(app.store, "flights")[0]
    assert (operation.verb, operation.message) == ("reset", "ticket 12")
    assert operation.detail == "1: by -5: 10 offsets read twice, 0 skipped; before it flights@before-reset-1"
    read = [str(each) for each in direct_windows(first, app.heads["legs"], ())]
    assert read == ["flights[0] 0..16", "flights[0] 11..16", "flights[1] 0..24", "flights[1] 19..24"]
    assert [str(each) for each in trace(app.store, None, app.heads["carriers"]).sources] == [
        "flights[0] 0..16",
        "flights[1] 0..24",
    ]
    (batch,) = trace(app.store, app.version("aircraft", done.versions["aircraft"]), app.heads["aircraft"]).sources[:1]
    assert str(batch) == "flights[0] 11..16"
    newest = key_history(app.store, cache, "flights", "aircraft", ("N001",), limit=1, now_ms=LATER_MS).changes[0]
    assert newest.version == app.heads["aircraft"].version


def test_bisect_finds_the_batch_that_read_a_record_twice_across_a_reset(app: FlightsApp, cache: SstCache) -> None:
    done = set_back(app, "flights:1", shift_by=-5)
    app.step_all()
    most = max(number for number, _, _ in tables(app)["aircraft"].values())
    where = f"SELECT tail FROM aircraft WHERE flights >= {most}"
    verdict = bisect(app.store, cache, "flights", where, now_ms=LATER_MS)
    assert (verdict.stage, verdict.bad_version) == ("aircraft", done.versions["aircraft"] + 2)
    assert [str(each) for each in verdict.lineage.sources] == ["flights[1] 19..24"]


def test_diff_across_a_reset_compares_only_rows(app: FlightsApp, cache: SstCache) -> None:
    before = StoredCut(app.store, resolve(app.store, "flights", now_ms=LATER_MS))
    set_back(app, to_earliest=True)
    after = StoredCut(app.store, resolve(app.store, "flights", now_ms=LATER_MS))
    assert all(each.is_equal for each in diff(cache, before, after))


def test_a_rewind_returns_to_before_the_reset_and_a_clone_keeps_it(app: FlightsApp, cache: SstCache) -> None:
    stood = offsets(app)
    done = set_back(app, to_earliest=True)
    clone(app.store, "flights", "staging", channels=app.kafka, by="ada@host", now_ms=LATER_MS)
    staging = FlightsApp(app.store, app.kafka, "staging", clock=app.clock)
    assert staging.heads["legs"].inputs["flights"].resets[-1].ends == (0, 0)
    app.step_all()
    rewound(app, cache, f"flights@{done.snapshot}")
    assert offsets(app) == stood
    assert tables(app) == totals(app)
    assert_whole(app)
    for each in (app, staging):
        each.step_all()
    assert sum(number for number, _, _ in staging.state["aircraft"].values()) == 80


def test_a_run_that_was_starting_during_the_reset_reports_it(app: FlightsApp) -> None:
    set_back(app, to_earliest=True)
    with pytest.raises(Refused, match="'flights' was reset by ada@host while this run started") as said:
        check_no_newer_migration(app.store, "flights", 0)
    assert said.value.hint == "start it again, with the program that continues from there"


def killed_and_typed_again(verb: str, typed: Callable[[FlightsApp, str], object]) -> None:
    def late() -> FlightsApp:
        app = aging_app()
        app.run(flights(30))
        return app

    expected = None
    for app, _ in killed_at_each_call(verb, late, lambda app: typed(app, "typed once"), store_of):
        expected = expected or offsets(app)
        decided = bool(MIGRATIONS.all(app.store, "flights"))
        stood = resolve(app.store, "flights", now_ms=LATER_MS).stages["legs"].inputs["flights"].offsets
        assert stood in (expected, offsets(late()))
        typed(app, "typed again")
        finish_newest_migration(app.store, "flights", now_ms=app.clock.now_ms)
        assert offsets(app) == expected
        (noted,) = (each for each in list_operations(app.store, "flights") if each.verb == "reset")
        assert noted.message == ("typed once" if decided else "typed again")
        assert noted.after == {stage: noted.before[stage] + 1 for stage in STAGES}
        assert [each.name for each in list_snapshots(app.store, "flights")] == ["before-reset-1"]
        assert_whole(app)


@pytest.mark.parametrize("scenario", [Scenario("shift", -4), Scenario("earliest")])
def test_a_killed_reset_is_done_entirely_or_not_at_all_and_a_repeated_call_finishes_it(scenario: Scenario) -> None:
    def typed(app: FlightsApp, why: str) -> None:
        with because(why):
            reset(app.store, "flights", {}, scenario, app.kafka, by="ada@host", now_ms=app.clock.now_ms)

    killed_and_typed_again(f"reset, {scenario.kind}", typed)


STEPS = st.one_of(
    st.tuples(st.just("send"), st.integers(1, 12)),
    st.tuples(st.just("step"), st.sampled_from(STAGES)),
    st.tuples(st.just("reset"), st.sampled_from(("earliest", "latest", "back", "on"))),
    st.tuples(st.just("rewind"), st.tuples(st.sampled_from(STAGES), st.integers(0, 10**6))),
)


@scaled(60)
@given(steps=st.lists(STEPS, min_size=5, max_size=40))
def test_after_any_resets_and_rewinds_tables_equal_the_ranges_read(
    steps: list[tuple[str, object]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    app, sent = FlightsApp(MemoryStore(), Kafka()), 0
    cache = SstCache(tmp_path_factory.mktemp("sst"), 1 << 20)
    first = app.heads["legs"]
    for what, value in steps:
        match what, value:
            case "send", int(count):
                app.send(*(Flight(f"N{n % 5}", f"C{n % 2}", n) for n in range(sent, sent + count)))
                sent += count
            case "step", str(stage):
                app.step(stage, max_versions=2)
            case "reset", ("earliest" | "latest") as where:
                set_back(app, **{f"to_{where}": True})
            case "reset", str(where):
                with suppress(Refused):
                    set_back(app, shift_by=-2 if where == "back" else 1)
            case "rewind", (str(stage), int(number)):
                rewound(app, cache, f"flights/{stage}@v{1 + number % app.heads[stage].version}")
    for _ in range(3):
        app.step_all()
    found: dict[str, dict[str, tuple[int, int, int]]] = {"aircraft": {}, "carriers": {}}
    for window in direct_windows(first, app.heads["legs"], ()):
        for message in app.kafka.topics["flights"][window.partition][window.start : window.end]:
            (flight,) = message.flights
            for table, key in (("aircraft", flight.tail), ("carriers", flight.carrier)):
                num, delay, squares = found[table].get(key, (0, 0, 0))
                found[table][key] = (num + 1, delay + flight.delay, squares + flight.delay**2)
    assert tables(app) == found
    assert_whole(app)


def test_a_scope_names_topics_of_kafka_and_sources() -> None:
    words = ("files:orders:0", "delta:7up", "files:0", "files", "iceberg")
    scope = parse_scopes(words[:3], all_topics=False) | parse_scopes(words[3:], all_topics=False)
    assert scope == {"files:orders": (0,), "delta:7up": None, "files": None, "iceberg": None}
    assert parse_scopes(("files:0",), all_topics=False) == {"files": (0,)}
