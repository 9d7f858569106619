"""A clone without state: it reads its topics from the beginning, and shares nothing with its source."""

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


def test_an_empty_clone_computes_the_same_tables_as_its_source(app: FlightsApp) -> None:
    assert make(app).initial_cut.stages == {}
    assert history.list_stages(app.store, "next") == ()
    again = FlightsApp(app.store, app.kafka, "next", clock=app.clock)
    for each in (app, again):
        each.step_all()
    assert again.state == app.state
    assert again.heads["legs"].inputs["flights"].offsets == app.heads["legs"].inputs["flights"].offsets
    assert {again.heads[stage].version for stage in STAGES} == {2}, "one claim, and one batch of all that there was"


def test_an_empty_clone_publishes_nothing_and_pins_nothing(app: FlightsApp) -> None:
    make(app)
    assert apps.published_sinks(app.store, apps.read_app(app.store, "next"), None) == {}
    assert list_snapshots(app.store, "flights") == ()
    (listed,) = list_clones(app.store)
    assert (listed.name, listed.source, listed.shared_bytes, listed.has_run) == ("next", "flights", 0, False)
    assert "flights" in apps.iter_clone_sources(app.store, "next"), "it may be promoted over its source"


def test_a_repeated_call_reports_done_and_a_refresh_empties_the_clone_again(app: FlightsApp) -> None:
    make(app)
    assert make(app).done
    FlightsApp(app.store, app.kafka, "next", clock=app.clock).step_all()
    with pytest.raises(Refused, match="exists already"):
        make(app)
    app.clock.now_ms += 3_600_000
    done = refresh(app.store, "next", channels=app.kafka, cache=None, by="ada@host", now_ms=app.clock.now_ms)
    assert done.initial_cut.stages == {}
    assert history.list_stages(app.store, "next") == ()


def test_a_clone_with_state_cannot_replace_an_empty_clone_of_the_same_name(app: FlightsApp) -> None:
    make(app)
    with pytest.raises(Refused, match="exists already"):
        make(app, terms=CloneTerms(owner="ada@host"))


def test_forget_lists_an_empty_clone_as_out_of_reach(app: FlightsApp) -> None:
    make(app)
    told = list_out_of_reach((Member(app.store, "flights", app.heads),), None)
    assert [each.name for each in told if each.what == "deep clone"] == ["next"]


@pytest.mark.parametrize(
    ("source", "terms"),
    [("flights@~1", EMPTY), ("flights", CloneTerms(empty=True, masks={"aircraft.flights": "null"}))],
)
def test_options_that_need_state_are_refused_with_empty(app: FlightsApp, source: str, terms: CloneTerms) -> None:
    with pytest.raises(Usage, match="--empty takes no state"):
        make(app, source, terms=terms)


def test_an_app_with_imported_rows_cannot_be_cloned_empty() -> None:
    app = FlightsApp(MemoryStore(), Kafka(), start=())
    commit(app.store, Manifest("flights", "carriers", 1, 1, "w", 1, "init"))
    with pytest.raises(Refused, match="carriers of flights began with imported rows"):
        make(app)
