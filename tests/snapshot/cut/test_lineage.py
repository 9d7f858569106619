from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from slackwater.errors import NotFound
from slackwater.snapshot.cut.graph import Cut
from slackwater.snapshot.cut.lineage import Window, trace
from slackwater.snapshot.cut.resolve import resolve
from slackwater.snapshot.query.log import log_entries
from slackwater.snapshot.take.snapshots import pin_cut
from slackwater.snapshot.take.taking import request_snapshot, try_complete
from slackwater.store.objects.counting import CountingStore
from slackwater.store.objects.memory import MemoryStore

from tests.models.profiles import scaled
from tests.support.histories import STAGES, Flight, FlightsApp, Kafka, flights


def moment(app: FlightsApp, text: str) -> Cut:
    return resolve(app.store, text, now_ms=app.clock.now_ms)


def offsets(app: FlightsApp, stage: str, version: int) -> tuple[int, ...]:
    (source,) = app.version(stage, version).inputs.values()
    return source.offsets


def test_windows_of_a_stage_that_reads_a_users_topic_are_on_that_topic(app: FlightsApp) -> None:
    found = trace(app.store, app.version("legs", 3), app.version("legs", 4))
    low, high = offsets(app, "legs", 3), offsets(app, "legs", 4)
    assert found.direct == found.sources
    assert found.direct == tuple(Window("flights", p, low[p], high[p]) for p in (0, 1))
    assert str(found.direct[0]) == f"flights[0] {low[0]}..{high[0]}"


def test_windows_of_a_later_stage_are_traced_through_its_channels_to_the_users_topic(app: FlightsApp) -> None:
    found = trace(app.store, app.version("carriers", 3), app.version("carriers", 4))
    assert {window.topic for window in found.direct} == {"flights-by-carrier-repartition"}
    assert found.sources == trace(app.store, app.version("legs", 3), app.version("legs", 4)).sources


def test_a_batch_over_several_upstream_versions_is_traced_over_all_of_them(app: FlightsApp) -> None:
    for _ in range(3):
        app.send(*flights(6))
        app.step("legs")
    app.compact("aircraft")
    app.step("aircraft")
    app.step("carriers")
    found = trace(app.store, app.version("carriers", 5), app.heads["carriers"])
    assert found.sources == trace(app.store, app.version("legs", 5), app.heads["legs"]).direct


def test_without_a_previous_version_lineage_starts_at_the_beginning(app: FlightsApp) -> None:
    found = trace(app.store, None, app.heads["carriers"])
    assert found.sources == tuple(Window("flights", p, 0, end) for p, end in enumerate(offsets(app, "legs", 5)))


def test_versions_that_read_nothing_have_no_windows(app: FlightsApp) -> None:
    app.compact("carriers")
    app.claim("carriers")
    app.step("carriers")
    found = trace(app.store, app.version("carriers", 5), app.heads["carriers"])
    assert (found.direct, found.sources) == ((), ())
    assert trace(app.store, None, app.version("carriers", 1)).direct == ()


@scaled(40)
@given(steps=st.lists(st.tuples(st.sampled_from(["send", *STAGES]), st.integers(1, 3)), max_size=25), data=st.data())
def test_the_windows_contain_exactly_the_flights_a_table_got(steps: list[tuple[str, int]], data: st.DataObject) -> None:
    app = FlightsApp(MemoryStore(), Kafka())
    held = {1: Counter[str]()}
    number = 0
    for verb, count in steps:
        if verb == "send":
            for _ in range(count):
                number += 1
                app.send(Flight(f"N{number}", f"C{number % 2}", number))
        else:
            # One version at a time, so that what a version read is told by its upstream versions.
            app.step(verb, max_versions=count, max_records=count)
            held[app.heads["aircraft"].version] = Counter(app.state["aircraft"].keys())
    low = data.draw(st.sampled_from(sorted(held)))
    high = data.draw(st.sampled_from([version for version in held if version >= low]))
    found = trace(app.store, app.version("aircraft", low), app.version("aircraft", high))
    traced = {
        flight.tail
        for window in found.sources
        for message in app.kafka.topics["flights"][window.partition][window.start : window.end]
        for flight in message.flights
    }
    assert traced == set(held[high] - held[low])


def test_the_log_shows_the_versions_of_all_stages_newest_first(app: FlightsApp) -> None:
    app.compact("carriers")
    log = log_entries(app.store, "flights", 4)
    assert [(entry.stage, entry.version, entry.kind) for entry in log] == [
        ("carriers", 6, "compaction"),
        ("carriers", 5, "batch"),
        ("aircraft", 5, "batch"),
        ("legs", 5, "batch"),
    ]
    aircraft = log[2]
    assert (aircraft.rows_in, aircraft.rows_out, aircraft.duration_ms) == (10, 10, 85)
    assert aircraft.windows == trace(app.store, app.version("aircraft", 4), app.version("aircraft", 5)).direct
    assert log[0].windows == ()


def test_the_log_of_a_stage_shows_only_its_own_versions(app: FlightsApp) -> None:
    assert [entry.version for entry in log_entries(app.store, "flights", stage="aircraft")] == [5, 4, 3, 2, 1]
    with pytest.raises(NotFound, match="the nearest: aircraft"):
        log_entries(app.store, "flights", stage="aircrafts")


def test_the_log_names_the_snapshots_that_hold_a_version(app: FlightsApp) -> None:
    asked = request_snapshot(app.store, "flights", "marked", "ada")
    app.step_all()
    try_complete(app.store, "flights", asked)
    pin_cut(app.store, moment(app, "flights@~0"), "pinned")
    named = {
        (entry.stage, entry.version): entry.snapshots for entry in log_entries(app.store, "flights") if entry.snapshots
    }
    assert named == {
        ("carriers", 6): ("marked",),
        ("aircraft", 6): ("marked",),
        ("legs", 6): ("marked",),
        ("carriers", 5): ("pinned",),
        ("aircraft", 5): ("pinned",),
        ("legs", 5): ("pinned",),
    }


def test_the_log_reads_only_what_it_shows() -> None:
    store = CountingStore(MemoryStore())
    app = FlightsApp(store, Kafka())
    app.run(flights(100), a_batch=1)
    fresh = CountingStore(store)  # nothing read before is remembered for it
    log_entries(fresh, "flights", 6)
    assert fresh.counts["get_range"] <= 6 + 3 + 1 + 1  # and who the app is, as it has no snapshots; it is no replica


def test_the_log_of_an_app_that_never_ran_is_empty_and_that_of_an_unknown_app_an_error() -> None:
    app = FlightsApp(MemoryStore(), Kafka(), start=[])
    assert log_entries(app.store, "flights") == ()
    with pytest.raises(NotFound, match="flights"):
        log_entries(app.store, "flight")
