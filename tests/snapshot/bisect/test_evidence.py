"""Evidence of a verdict agrees with the app's line, with queries and with manifests."""

from itertools import pairwise

import pytest
from slackwater.snapshot.bisect.evidence import VerdictEvidence, collect_evidence, commits_from_bad
from slackwater.snapshot.bisect.search import bisect
from slackwater.snapshot.bisect.verdict import Verdict
from slackwater.snapshot.cut.graph import consumed_versions
from slackwater.snapshot.cut.moments import read_line
from slackwater.snapshot.query.log import log_entries
from slackwater.store.objects.counting import CountingStore
from slackwater.store.objects.memory import MemoryStore
from slackwater.store.read.cache import SstCache
from slackwater.store.versions import history

from tests.support.histories import STAGES, Clock, Flight, FlightsApp, Kafka, flights, rows_of

WHERE = "SELECT tail FROM aircraft WHERE delay > 1000"


@pytest.fixture(scope="module")
def app() -> FlightsApp:
    """Return an app whose stages have different progress; one has a slow clock.

    From batch twenty on, rows of aircraft are wrong.
    """
    app = FlightsApp(MemoryStore(), Kafka(), clock=Clock(skew_ms={"carriers": -2_500, "legs": 400}))
    for number in range(40):
        app.send(*flights(7), *([Flight(f"X{number}", "C9", 5_000)] if number >= 20 else []))
        app.step("legs")
        if number % 2:
            app.step("aircraft", max_versions=3)
        if number % 3 == 0:
            app.step("carriers", max_versions=2)
    return app


@pytest.fixture(scope="module")
def verdict(app: FlightsApp, cache: SstCache) -> Verdict:
    return bisect(app.store, cache, "flights", WHERE, now_ms=app.clock.now_ms)


@pytest.fixture(scope="module")
def evidence(app: FlightsApp, cache: SstCache, verdict: Verdict) -> VerdictEvidence:
    return collect_evidence(app.store, cache, verdict)


def test_neighbouring_commits_equal_those_of_the_log(
    app: FlightsApp, verdict: Verdict, evidence: VerdictEvidence
) -> None:
    logged = [(entry.stage, entry.version) for entry in reversed(log_entries(app.store, "flights", 0))]
    here = logged.index((verdict.stage, verdict.bad_version))
    told = [(commit.stage, commit.version) for commit in evidence.commits]
    assert told == logged[here - 8 : here + 7]


def test_a_distance_counts_the_commits_of_the_line(app: FlightsApp, verdict: Verdict) -> None:
    line, logged = read_line(app.store, "flights"), log_entries(app.store, "flights", 0)[::-1]
    places = [
        commits_from_bad(verdict, line.prefix_up_to(line.read(entry.stage, entry.version)).versions) for entry in logged
    ]
    assert places == [*range(places[0], places[0] + len(logged))]
    assert places[[(e.stage, e.version) for e in logged].index((verdict.stage, verdict.bad_version))] == 0
    assert commits_from_bad(verdict, verdict.good.versions) == -1


def test_wrong_rows_are_counted_at_each_bad_moment(
    app: FlightsApp, verdict: Verdict, evidence: VerdictEvidence
) -> None:
    bad = {step.ref: step.cut for step in verdict.steps if step.bad} | {verdict.bad_ref: verdict.bad}
    assert evidence.wrong_row_counts.keys() == bad.keys()
    for ref, rows in evidence.wrong_row_counts.items():
        held = rows_of(app.store, bad[ref].stages["aircraft"])
        assert rows == sum(delay > 1000 for _, delay, _ in held.values())


def test_affected_stages_are_listed_with_the_first_version_that_consumed_the_bad_version(
    app: FlightsApp, verdict: Verdict, evidence: VerdictEvidence
) -> None:
    (reached,) = evidence.affected_stages
    versions = range(1, app.heads["carriers"].version + 1)
    having = [
        n for n in versions if consumed_versions(app.version("carriers", n)).get("aircraft", 0) >= verdict.bad_version
    ]
    assert (reached.first.version, reached.newest) == (having[0], versions[-1])
    before, after = (rows_of(app.store, app.version("carriers", n)) for n in (having[0] - 1, having[0]))
    assert reached.keys is not None
    changed = {key.key["carrier"] for key in reached.keys}
    assert changed == {key for key in after if after[key] != before.get(key)}
    assert reached.rows == reached.first.inputs["by-carrier"].rows


def test_dependents_are_found_across_stages_between(app: FlightsApp) -> None:
    line = read_line(app.store, "flights")
    for version in range(1, app.heads["legs"].version + 1):
        found = line.dependents(app.version("legs", version))
        tainted = {"legs": version}
        for sender, stage in pairwise(STAGES):
            having = [
                each.version
                for each in history.iter_after(app.store, "flights", stage, 0)
                if sender in tainted and consumed_versions(each).get(sender, 0) >= tainted[sender]
            ]
            tainted |= {stage: having[0]} if having else {}
        del tainted["legs"]
        assert {stage: commit.version for stage, commit in found.items()} == tainted


def test_the_bad_moment_is_verified(verdict: Verdict, evidence: VerdictEvidence) -> None:
    assert evidence.audit.consistent
    assert evidence.audit.versions == verdict.bad.versions


def test_evidence_costs_dozens_of_requests_for_any_length_of_history(cache: SstCache) -> None:
    costs = []
    for batches in (12, 60):
        app = FlightsApp(MemoryStore(), Kafka(), zombies=False, start=["legs", "aircraft"])
        for number in range(batches):
            app.send(Flight("N1", "C1", 2_000 if number == batches // 2 else 1))
            app.step("legs")
            app.step("aircraft")
            if number % 16 == 15:
                app.compact("aircraft")
        verdict = bisect(app.store, cache, "flights", WHERE, now_ms=app.clock.now_ms)
        counting = CountingStore(app.store)
        collect_evidence(counting, cache, verdict)
        costs.append(counting.requests)
    assert costs[1] <= costs[0] + 20, costs
    assert costs[1] <= 80, costs
