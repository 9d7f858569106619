"""A clone without state reads its topics from the beginning, and keeps nothing of its source."""

import pytest
from slackwater.errors import Refused, Usage
from slackwater.operations.erasure.family import Member
from slackwater.operations.erasure.reach import list_out_of_reach
from slackwater.operations.staging.clone import ClonePlan, clone
from slackwater.operations.staging.clone_plan import CloneTerms
from slackwater.operations.staging.listing import list_clones
from slackwater.operations.staging.refresh import refresh
from slackwater.snapshot.cut.stored import list_snapshots
from slackwater.store.objects.memory import MemoryStore
from slackwater.store.versions import apps, history
from slackwater.store.versions.commit import commit
from slackwater.store.versions.manifest import Manifest

from tests.support.histories import STAGES, FlightsApp, Kafka, flights

EMPTY = CloneTerms(empty=True, owner="ada@host")


@pytest.fixture
def app() -> FlightsApp:
    app = FlightsApp(MemoryStore(), Kafka())
    app.run(flights(40))
    app.send(*flights(6))
    app.step("legs")
    return app


def make(app: FlightsApp, source: str = "flights", **more: object) -> ClonePlan:
    arguments = {"terms": EMPTY, "channels": app.kafka, "by": "ada@host", "now_ms": app.clock.now_ms} | more
    return clone(app.store, source, "next", **arguments)  # type: ignore[arg-type]


def test_it_makes_of_all_input_what_its_source_made_of_it(app: FlightsApp) -> None:
    assert make(app).initial_cut.stages == {}
    assert history.list_stages(app.store, "next") == ()
    again = FlightsApp(app.store, app.kafka, "next", clock=app.clock)
    for each in (app, again):
        each.step_all()
    assert again.state == app.state
    assert again.heads["legs"].inputs["flights"].offsets == app.heads["legs"].inputs["flights"].offsets
    assert {again.heads[stage].version for stage in STAGES} == {2}, "one claim, and one batch of all that there was"


def test_it_publishes_nothing_and_pins_nothing(app: FlightsApp) -> None:
    make(app)
    assert apps.published_sinks(app.store, apps.read_app(app.store, "next"), None) == {}
    assert list_snapshots(app.store, "flights") == ()
    (listed,) = list_clones(app.store)
    assert (listed.name, listed.source, listed.shared_bytes, listed.has_run) == ("next", "flights", 0, False)
    assert "flights" in apps.iter_clone_sources(app.store, "next"), "it may be promoted over its source"


def test_typed_again_it_is_there_and_made_anew_it_is_empty_again(app: FlightsApp) -> None:
    make(app)
    assert make(app).done
    FlightsApp(app.store, app.kafka, "next", clock=app.clock).step_all()
    with pytest.raises(Refused, match="exists already"):
        make(app)
    app.clock.now_ms += 3_600_000
    done = refresh(app.store, "next", channels=app.kafka, cache=None, by="ada@host", now_ms=app.clock.now_ms)
    assert done.initial_cut.stages == {}
    assert history.list_stages(app.store, "next") == ()


def test_with_state_and_without_are_two_clones(app: FlightsApp) -> None:
    make(app)
    with pytest.raises(Refused, match="exists already"):
        make(app, terms=CloneTerms(owner="ada@host"))


def test_whoever_forgets_a_key_is_told_of_it(app: FlightsApp) -> None:
    make(app)
    told = list_out_of_reach((Member(app.store, "flights", app.heads),), None)
    assert [each.name for each in told if each.what == "deep clone"] == ["next"]


@pytest.mark.parametrize(
    ("source", "terms"),
    [("flights@~1", EMPTY), ("flights", CloneTerms(empty=True, masks={"aircraft.flights": "null"}))],
)
def test_what_needs_state_does_not_go_with_it(app: FlightsApp, source: str, terms: CloneTerms) -> None:
    with pytest.raises(Usage, match="--empty takes no state"):
        make(app, source, terms=terms)


def test_rows_from_elsewhere_are_in_no_topic() -> None:
    app = FlightsApp(MemoryStore(), Kafka(), start=())
    commit(app.store, Manifest("flights", "carriers", 1, 1, "w", 1, "init"))
    with pytest.raises(Refused, match="carriers of flights began with imported rows"):
        make(app)
