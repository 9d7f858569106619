"""The watcher: when it evaluates invariants, and the moment that it tags as good."""

from pathlib import Path

import pytest
from slackwater.errors import NotFound, Unavailable, Usage
from slackwater.snapshot.bisect.invariant import Invariant
from slackwater.snapshot.bisect.watcher import LAST_GOOD, Findings, Watcher, run_failure_command
from slackwater.snapshot.cut.resolve import resolve
from slackwater.store.objects.memory import MemoryStore
from slackwater.store.read.cache import SstCache

from tests.support.histories import Flight, FlightsApp, Kafka, app_of, flights

FAST = Invariant("no-flight-is-late", "FROM carriers WHERE delay > 1000", 10_000)
SLOW = Invariant("flights-add-up", "SELECT 1 WHERE (SELECT sum(flights) FROM carriers) < 0", 60_000)
LATE = Flight("N001", "C1", 5_000)


@pytest.fixture
def app() -> FlightsApp:
    return app_of(20)


def watching(app: FlightsApp, cache: SstCache, *invariants: Invariant) -> Watcher:
    return Watcher(app.store, cache, "flights", invariants or (FAST, SLOW), by="ada@host")


def states(look: Findings | None) -> dict[str, str]:
    assert look is not None
    return {result.invariant.name: result.state for result in look.results}


def tagged(app: FlightsApp) -> dict[str, int]:
    return resolve(app.store, f"flights@{LAST_GOOD}", now_ms=0).versions


def test_each_invariant_is_evaluated_when_due_and_all_when_the_slowest_is(app: FlightsApp, cache: SstCache) -> None:
    watcher = watching(app, cache)
    begin = app.clock.now_ms
    asked = []
    for at_ms in range(begin, begin + 70_000, 5_000):
        app.run(flights(1))
        assert watcher.due_ms() <= at_ms + 5_000
        if (look := watcher.evaluate_due(at_ms)) is not None:
            asked.append((at_ms - begin, len(look.results)))
    assert asked == [(ms, 2 if ms % 60_000 == 0 else 1) for ms in range(0, 70_000, 10_000)]


def test_a_moment_is_evaluated_once(app: FlightsApp, cache: SstCache) -> None:
    watcher = watching(app, cache)
    begin = app.clock.now_ms
    assert states(watcher.evaluate_due(begin)) == {FAST.name: "holds", SLOW.name: "holds"}
    assert watcher.evaluate_due(begin + 60_000) is None
    app.run(flights(1))
    assert states(watcher.evaluate_due(begin + 70_000)) == {FAST.name: "holds"}


def test_the_newest_moment_at_which_all_hold_is_last_good(app: FlightsApp, cache: SstCache) -> None:
    watcher = watching(app, cache)
    begin = app.clock.now_ms
    first = watcher.evaluate_due(begin)
    assert first is not None
    assert (first.last_good, first.is_good, first.changed_results) == (f"flights@{LAST_GOOD}", True, ())
    good = tagged(app)
    assert good == first.cut.versions == resolve(app.store, first.ref, now_ms=0).versions
    app.run(flights(3))
    # One of them was not asked there.
    assert states(watcher.evaluate_due(begin + 10_000)) == {FAST.name: "holds"}
    assert tagged(app) == good
    app.run(flights(3))
    watcher.evaluate_due(begin + 60_000)
    assert tagged(app) == app_versions(app) != good


def app_versions(app: FlightsApp) -> dict[str, int]:
    return {stage: head.version for stage, head in app.heads.items()}


def test_a_failure_is_reported_once_and_does_not_move_last_good(app: FlightsApp, cache: SstCache) -> None:
    watcher = watching(app, cache, FAST)
    begin = app.clock.now_ms
    watcher.evaluate_due(begin)
    good = tagged(app)
    app.run([LATE])
    bad = watcher.evaluate_due(begin + 10_000)
    assert bad is not None
    assert [(each.invariant, each.state) for each in bad.changed_results] == [(FAST, "fails")]
    assert bad.changed_results[0].rows is not None
    assert bad.changed_results[0].rows["carrier"].to_pylist() == ["C1"]
    app.run(flights(1))
    still = watcher.evaluate_due(begin + 20_000)
    assert still is not None
    assert (still.is_good, still.changed_results, tagged(app)) == (False, (), good)
    app.run([Flight("N001", "C1", -5_000)])
    again = watcher.evaluate_due(begin + 30_000)
    assert again is not None
    assert [each.state for each in again.changed_results] == ["holds"]
    assert tagged(app) == app_versions(app)


def test_an_invalid_invariant_is_unknown_and_not_good(app: FlightsApp, cache: SstCache) -> None:
    wrong = Invariant("wrong", "FROM carrierz", 10_000)
    look = watching(app, cache, FAST, wrong).evaluate_due(app.clock.now_ms)
    assert look is not None
    assert states(look) == {FAST.name: "holds", "wrong": "unknown"}
    assert isinstance(look.changed_results[0].error, NotFound)
    assert (look.is_good, look.last_good) == (False, "")


def test_an_app_without_commits_is_not_evaluated(cache: SstCache) -> None:
    app = FlightsApp(MemoryStore(), Kafka(), start=[])
    with pytest.raises(NotFound, match="has no version yet"):
        watching(app, cache).evaluate_due(app.clock.now_ms)


def test_an_evaluation_is_repeated_after_a_store_outage(app: FlightsApp, cache: SstCache) -> None:
    watcher = watching(app, cache)
    store = app.store
    assert isinstance(store, MemoryStore)
    with pytest.MonkeyPatch.context() as patch:

        def silent(key: str) -> bytes:
            raise Unavailable(f"no answer for {key}")

        patch.setattr(store, "get", silent)
        with pytest.raises(Unavailable):
            watcher.evaluate_due(app.clock.now_ms)
    assert watcher.due_ms() == 0
    assert states(watcher.evaluate_due(app.clock.now_ms)) == {FAST.name: "holds", SLOW.name: "holds"}


def test_an_invariant_may_name_other_moments(app: FlightsApp, cache: SstCache) -> None:
    shrinks = "FROM carriers c JOIN carriers AT '~1' was USING (carrier) WHERE c.flights < was.flights"
    assert states(watching(app, cache, Invariant("grows", shrinks, 1)).evaluate_due(app.clock.now_ms)) == {
        "grows": "holds"
    }


@pytest.mark.parametrize(
    ("check", "holds"),
    [
        ("min(flights) > 0", True),
        ("min(flights) > 100", False),
        ("(SELECT sum(flights) FROM carriers) = (SELECT sum(flights) FROM aircraft)", True),
        ("SELECT bool_and(flights > 0) FROM carriers WHERE carrier = 'none'", True),
        ("flights > 7", False),
    ],
)
def test_a_check_fails_if_its_condition_is_false(app: FlightsApp, cache: SstCache, check: str, holds: bool) -> None:
    invariant = Invariant("checked", "", 1, check=check, table="" if "SELECT" in check else "carriers")
    look = watching(app, cache, invariant.for_app(app.store, app.name)).evaluate_due(app.clock.now_ms)
    assert states(look) == {"checked": "holds" if holds else "fails"}


def test_an_interval_of_no_length_is_refused() -> None:
    with pytest.raises(Usage, match="every 0 ms"):
        Invariant("often", "SELECT 1", 0)


def test_a_command_gets_the_failure_in_its_environment(tmp_path: Path) -> None:
    run_failure_command(f'echo "$SLACKWATER_REF" > {tmp_path}/called', {"SLACKWATER_REF": "flights/carriers@v4"})
    assert (tmp_path / "called").read_text() == "flights/carriers@v4\n"


@pytest.mark.parametrize(("command", "words"), [("exit 3", "exit code 3"), ("sleep 60", "did not finish within 0.1 s")])
def test_a_failing_command_is_reported(command: str, words: str) -> None:
    with pytest.raises(Unavailable, match=words):
        run_failure_command(command, {}, timeout_s=0.1 if "sleep" in command else 10)
