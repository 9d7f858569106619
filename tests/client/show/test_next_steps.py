"""The moment that a verdict suggests to clone: no stage has read the bad record, and no row of it is in flight."""

from dataclasses import replace

import pytest
from slackwater.client.show.verdict import in_flight_note, ref_to_clone
from slackwater.snapshot.bisect.causes import Cause, TracedCause
from slackwater.snapshot.bisect.search import bisect
from slackwater.snapshot.bisect.verdict import Hop, RecordLocation, RecordPath, Verdict
from slackwater.snapshot.cut.in_flight import in_flight
from slackwater.snapshot.cut.resolve import resolve
from slackwater.store.objects.memory import MemoryStore
from slackwater.store.read.cache import SstCache

from tests.support.histories import STAGES, Flight, FlightsApp, Kafka, flights

WHERE = "SELECT carrier FROM carriers WHERE delay > 4000"
BAD = Flight("N001", "C1", 5_000)


@pytest.fixture
def app() -> FlightsApp:
    app = FlightsApp(MemoryStore(), Kafka())
    app.run(flights(40))
    app.send(BAD)
    for stage in STAGES:
        app.step(stage)
    app.run(flights(40))
    return app


def path_of(verdict: Verdict, *versions: tuple[str, int]) -> TracedCause:
    record = RecordLocation("flights", 0, 1)
    hops = tuple(Hop(stage, version, record, 1, 1, 1, True) for stage, version in versions)
    cause = Cause("record", True, "it is the record", record, None, (record,), {})
    return TracedCause(cause, RecordPath(hops, None, "", (), verdict.keys))


def has_bad_rows(app: FlightsApp, ref: str) -> bool:
    """Return True if a clone of the moment has read the bad record, or will read a row of it from a channel."""
    cut = resolve(app.store, ref, now_ms=app.clock.now_ms)
    rows = [row for state in in_flight(app.store, cut) for table in app.kafka.read(state) for row in table.to_pylist()]
    read = sum(cut.stages["legs"].inputs["flights"].offsets)
    return read > 40 and (any(row["delay"] == BAD.delay for row in rows) or not rows)


def test_the_moment_to_clone_is_before_the_first_stage_that_read_the_record(app: FlightsApp, cache: SstCache) -> None:
    verdict = bisect(app.store, cache, "flights", WHERE)
    assert verdict.stage == "carriers"
    assert has_bad_rows(app, verdict.good_ref)
    legs = next(
        version
        for version in range(1, app.heads["legs"].version + 1)
        if sum(resolve(app.store, f"flights/legs@v{version}", now_ms=0).stages["legs"].inputs["flights"].offsets) > 40
    )
    traced = path_of(verdict, ("carriers", verdict.bad_version), ("legs", legs))
    assert not has_bad_rows(app, ref_to_clone(verdict, traced))
    assert in_flight_note(verdict, traced) == ""


def test_without_a_path_upstream_a_note_says_what_may_be_in_flight(app: FlightsApp, cache: SstCache) -> None:
    verdict = bisect(app.store, cache, "flights", WHERE)
    for traced in (None, path_of(verdict, ("carriers", verdict.bad_version))):
        assert ref_to_clone(verdict, traced) == verdict.good_ref
        assert "clone an earlier moment" in in_flight_note(verdict, traced)


def test_a_stage_that_reads_the_users_topic_has_nothing_in_flight(app: FlightsApp, cache: SstCache) -> None:
    verdict = bisect(app.store, cache, "flights", WHERE)
    reads_topic = replace(verdict, lineage=replace(verdict.lineage, direct=verdict.lineage.sources))
    assert in_flight_note(reads_topic, None) == ""
    assert ref_to_clone(reads_topic, path_of(verdict, ("carriers", verdict.bad_version))) == verdict.good_ref


def test_before_the_first_version_there_is_nothing_to_clone(app: FlightsApp, cache: SstCache) -> None:
    verdict = bisect(app.store, cache, "flights", WHERE)
    assert ref_to_clone(verdict, path_of(verdict, ("carriers", verdict.bad_version), ("legs", 1))) == ""
