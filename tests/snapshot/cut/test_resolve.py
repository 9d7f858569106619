from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from slackwater.errors import NotFound
from slackwater.snapshot.cut.graph import Cut, channels, downstream_stages, topological_order, violations
from slackwater.snapshot.cut.in_flight import in_flight
from slackwater.snapshot.cut.moments import read_line
from slackwater.snapshot.cut.refs import AtTime, Ref, parse_ref
from slackwater.snapshot.cut.resolve import cut_of_ref, resolve
from slackwater.snapshot.cut.stored import cut_of_snapshot
from slackwater.snapshot.take.snapshots import pin_cut
from slackwater.store.objects.counting import CountingStore
from slackwater.store.objects.memory import MemoryStore
from slackwater.store.versions import apps
from slackwater.store.versions.manifest import AppInfo, Input, Manifest

from tests.models.profiles import scaled
from tests.support.histories import STAGES, START_MS, Clock, Flight, FlightsApp, Kafka, app_of, flights, rows_of


@pytest.fixture
def app() -> FlightsApp:
    return app_of(60)


def cut(app: FlightsApp, text: str, *, now_ms: int | None = None) -> Cut:
    return resolve(app.store, text, now_ms=app.clock.now_ms if now_ms is None else now_ms)


def counted(app: FlightsApp, at: Cut) -> dict[str, int]:
    """Return how many flights `legs` has read, and for each table how many are in the table or in its channel."""
    flying = {flight.channel: flight for flight in in_flight(app.store, at)}

    def between(channel: str) -> int:
        if channel not in flying:
            return 0
        messages = app.kafka.between(flying[channel])
        return sum(len(message.flights) for partition in messages for message in partition)

    def held(stage: str) -> int:
        rows = rows_of(app.store, at.stages[stage]) if stage in at.stages else {}
        return sum(number for number, _, _ in rows.values())

    aircraft, carriers = held("aircraft"), held("carriers")
    return {
        "legs": sum(at.stages["legs"].inputs["flights"].offsets) if "legs" in at.stages else 0,
        "aircraft": aircraft + between("by-aircraft"),
        "carriers": carriers + between("by-carrier") + between("by-aircraft"),
    }


def test_now_is_the_newest_version_of_every_stage(app: FlightsApp) -> None:
    assert cut(app, "flights").versions == {"legs": 7, "aircraft": 7, "carriers": 7}
    assert cut(app, "flights@now") == cut(app, "flights")


@pytest.mark.parametrize("moment", ["", "@now", "@-3s"])
def test_a_moment_of_a_stage_costs_as_many_requests_as_a_moment_of_the_app(app: FlightsApp, moment: str) -> None:
    of_app, of_stage = CountingStore(app.store), CountingStore(app.store)  # nothing read before is remembered for them
    whole = resolve(of_app, f"flights{moment}", now_ms=app.clock.now_ms)
    assert resolve(of_stage, f"flights/carriers{moment}", now_ms=app.clock.now_ms) == whole
    assert of_stage.counts == of_app.counts


def test_stages_are_in_the_order_of_the_data_flow(app: FlightsApp) -> None:
    assert topological_order(cut(app, "flights").stages) == STAGES
    assert downstream_stages(cut(app, "flights").stages, "aircraft") == {"carriers"}
    assert downstream_stages(cut(app, "flights").stages, "carriers") == frozenset()


def test_a_time_gives_the_newest_version_of_each_stage_by_then(app: FlightsApp) -> None:
    at_ms = app.version("aircraft", 4).time_ms
    assert cut(app, f"flights@-{(app.clock.now_ms - at_ms) // 1000}s").versions == {
        "legs": 4,
        "aircraft": 4,
        "carriers": 3,
    }


def test_a_stage_without_a_version_at_a_time_is_not_in_the_cut(app: FlightsApp) -> None:
    # The claims come one second apart.
    assert cut(app, "flights@-1s", now_ms=START_MS + 2_000).versions == {"legs": 1}


def test_the_error_for_a_time_before_the_first_version_names_the_earliest(app: FlightsApp) -> None:
    with pytest.raises(NotFound, match=r"history of flights begins at 2025-01-01T00:00:01\.000Z") as caught:
        cut(app, "flights@2024-12-01")
    earliest = caught.value.hint.removeprefix("the earliest is ")
    assert cut(app, earliest).versions == {"legs": 1}


def test_the_error_for_a_time_before_a_stages_first_version_names_that_stages_earliest(app: FlightsApp) -> None:
    with pytest.raises(NotFound, match="history of flights/carriers begins at") as caught:
        cut(app, "flights/carriers@2025-01-01T00:00:02Z", now_ms=START_MS + 1_000)
    assert cut(app, caught.value.hint.removeprefix("the earliest is ")).versions["carriers"] == 1


def test_steps_back_count_data_commits_of_all_stages(app: FlightsApp) -> None:
    assert cut(app, "flights@~0").versions == {"legs": 7, "aircraft": 7, "carriers": 7}
    assert cut(app, "flights@~1").versions == {"legs": 7, "aircraft": 7, "carriers": 6}
    assert cut(app, "flights@~3").versions == {"legs": 6, "aircraft": 6, "carriers": 6}


def test_steps_back_skip_claims_compactions_and_empty_batches(app: FlightsApp) -> None:
    app.compact("carriers")
    app.step_all()
    app.claim("legs")
    assert cut(app, "flights@~0").versions == {"legs": 7, "aircraft": 7, "carriers": 7}


def test_steps_back_of_a_stage_count_only_its_commits(app: FlightsApp) -> None:
    assert cut(app, "flights/aircraft@~2").versions == {"legs": 5, "aircraft": 5, "carriers": 4}


def test_the_error_for_too_many_steps_back_gives_the_number_of_commits(app: FlightsApp) -> None:
    assert cut(app, "flights@~17").versions == {"legs": 2, "aircraft": 1, "carriers": 1}
    with pytest.raises(NotFound, match="flights has 18 data commits, ~0 to ~17"):
        cut(app, "flights@~18")


def test_a_version_of_a_stage_is_combined_with_the_other_stages_at_its_time(app: FlightsApp) -> None:
    assert cut(app, "flights/aircraft@v5").versions == {"legs": 5, "aircraft": 5, "carriers": 4}


def test_a_version_that_does_not_exist_is_not_found(app: FlightsApp) -> None:
    with pytest.raises(NotFound):
        cut(app, "flights/aircraft@v99")


def test_a_snapshot_resolves_to_its_versions(app: FlightsApp) -> None:
    pinned = cut(app, "flights@~4")
    pin_cut(app.store, pinned, "good")
    assert cut(app, "flights@good").versions == pinned.versions
    assert cut(app, "flights/carriers@good").ref == "flights@good"


@pytest.mark.parametrize(
    ("text", "nearest"),
    [
        ("flight", "the nearest: flights"),
        ("flights@goood", "the nearest: good"),
        ("flights/carrier@v2", "the nearest: carriers"),
    ],
)
def test_the_error_for_an_unknown_name_suggests_the_nearest(app: FlightsApp, text: str, nearest: str) -> None:
    pin_cut(app.store, cut(app, "flights"), "good")
    with pytest.raises(NotFound, match=nearest):
        cut(app, text)


def test_an_app_that_never_ran_has_no_moments() -> None:
    store = MemoryStore()
    apps.create_app(store, AppInfo("flights", START_MS))
    with pytest.raises(NotFound, match="flights has no version yet"):
        resolve(store, "flights@now", now_ms=START_MS)


def test_the_beginning_is_the_first_commit(app: FlightsApp) -> None:
    assert read_line(app.store, "flights").beginning().versions == {"legs": 1}


def test_nothing_is_in_flight_once_every_stage_has_caught_up(app: FlightsApp) -> None:
    assert in_flight(app.store, cut(app, "flights")) == ()


def test_claims_of_a_sender_are_not_in_flight(app: FlightsApp) -> None:
    app.claim("legs")
    app.step("legs")
    assert in_flight(app.store, cut(app, "flights")) == ()


def test_sent_but_unconsumed_records_are_in_flight_with_the_winning_attempts(app: FlightsApp) -> None:
    for _ in range(2):
        app.send(*flights(4))
        app.step("legs")
    (flight,) = in_flight(app.store, cut(app, "flights"))
    assert (flight.channel, flight.sender, flight.receiver) == ("by-aircraft", "legs", "aircraft")
    assert (flight.after, flight.up_to, flight.rows) == (7, 9, 8)
    assert len(flight.attempts) == 2
    assert flight.starts == app.version("legs", 7).outputs["by-aircraft"].ends
    assert flight.ends == app.version("legs", 9).outputs["by-aircraft"].ends
    received = [f for partition in app.kafka.between(flight) for message in partition for f in message.flights]
    assert sorted(received) == sorted(flights(4) * 2)


def test_all_of_a_channel_without_a_reader_is_in_flight() -> None:
    app = FlightsApp(MemoryStore(), Kafka(), start=["legs"])
    app.send(*flights(6))
    app.step("legs")
    at = cut(app, "flights")
    (flight,) = in_flight(app.store, at)
    assert [(channel.name, channel.receiver) for channel in channels(at)] == [("by-aircraft", "")]
    assert (flight.receiver, flight.starts, flight.rows) == ("", (0, 0), 6)


def test_clock_skew_does_not_make_an_instant_cut_inconsistent() -> None:
    clock = Clock(skew_ms={"legs": 3_600_000, "carriers": -3_600_000})
    app = FlightsApp(MemoryStore(), Kafka(), clock=clock)
    app.run(flights(30))
    # By their clocks alone, carriers had read everything an hour before legs sent it.
    at = cut(app, "flights@-1s", now_ms=START_MS)
    assert at.versions == {"legs": 4, "aircraft": 4, "carriers": 4}
    assert not violations(at.stages)


def test_a_named_version_excludes_versions_that_consumed_later_ones() -> None:
    clock = Clock(skew_ms={"carriers": -3_600_000, "aircraft": -3_600_000})
    app = FlightsApp(MemoryStore(), Kafka(), clock=clock)
    app.run(flights(50))
    at = cut(app, "flights/legs@v3")
    assert at.versions == {"legs": 3, "aircraft": 2, "carriers": 2}
    assert not violations(at.stages)


def test_a_receiver_that_had_already_read_more_in_its_first_version_is_left_out() -> None:
    app = FlightsApp(MemoryStore(), Kafka(), start=["legs", "aircraft"])
    app.send(*flights(4))
    app.step("legs")
    head = app.version("legs", 2)
    receiver = replace(
        app.version("aircraft", 1),
        stage="carriers",
        time_ms=START_MS,
        inputs={"by-aircraft": Input("t", (1, 1), "legs", head.version)},
        outputs={},
    )
    app.commit(receiver)
    assert cut(app, "flights/legs@v1").versions == {"legs": 1}


def test_a_senders_head_is_raised_to_what_its_receivers_have_consumed() -> None:
    app = FlightsApp(MemoryStore(), Kafka())
    app.run(flights(20))

    class Racing(MemoryStore):
        """A store in which commits happen between two reads of heads."""

        def list(self, prefix: str, start_after: str = "") -> Iterator[object]:
            found = list(app.store.list(prefix, start_after))
            app.run(flights(10))
            return iter(found)

        def __getattribute__(self, name: str) -> object:
            own = name in ("list", "__class__", "__hash__", "__weakref__")
            return object.__getattribute__(self, name) if own else getattr(app.store, name)

    at = resolve(Racing(), "flights", now_ms=app.clock.now_ms)
    assert violations(at.stages) == ()


def test_a_cut_with_unsent_consumed_records_is_reported(app: FlightsApp) -> None:
    torn = Cut("flights", {"legs": app.version("legs", 2), "aircraft": app.version("aircraft", 5)})
    assert violations(torn.stages)
    assert violations(torn.stages) == ("aircraft@v5 consumed legs@v5, but the cut holds legs@v2",)


def test_a_history_that_does_not_begin_at_version_one_is_searched_from_its_first_version(app: FlightsApp) -> None:
    for stage in STAGES:
        for version in (1, 2):
            app.store.delete(f"flights/stages/{stage}/manifests/{version:020}.json")
    fresh = CountingStore(app.store)  # nothing read before is remembered for it
    assert read_line(fresh, "flights").beginning().versions == {"legs": 3, "aircraft": 3, "carriers": 3}
    at = app.version("legs", 3).time_ms
    ref = parse_ref("flights@-1s", now_ms=at + 1_000)
    assert cut_of_ref(fresh, ref).versions == {"legs": 3}
    with pytest.raises(NotFound, match="begins at"):
        cut_of_ref(fresh, parse_ref("flights@-1s", now_ms=START_MS + 3_000))


def test_stages_in_a_cycle_have_an_order() -> None:
    def reads(stage: str, sender: str) -> Manifest:
        return Manifest("a", stage, 1, 1, "w", 1, "batch", inputs={"c": Input("t", (0,), sender, 1)})

    assert topological_order({"x": reads("x", "y"), "y": reads("y", "x")}) == ("x", "y")


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("send"), st.integers(1, 6)),
        st.tuples(st.sampled_from(STAGES), st.integers(1, 3)),
        st.tuples(st.just("claim"), st.sampled_from(STAGES)),
        st.tuples(st.just("compact"), st.sampled_from(STAGES[1:])),
        st.tuples(st.just("wait"), st.integers(1, 3)),
    ),
    max_size=25,
)
SKEWS = st.fixed_dictionaries({stage: st.sampled_from([-7_500, -1_000, 0, 1_000, 7_500]) for stage in STAGES})


def play(steps: list[tuple[str, object]], skew_ms: dict[str, int]) -> FlightsApp:
    """Return an app after these steps."""
    app = FlightsApp(MemoryStore(), Kafka(), clock=Clock(skew_ms=skew_ms))
    for verb, what in steps:
        match verb, what:
            case "send", int(count):
                app.send(*(Flight(f"N{n}", f"C{n % 2}", n) for n in range(count)))
            case "claim", str(stage):
                app.claim(stage)
            case "compact", str(stage):
                app.compact(stage)
            case "wait", int(seconds):
                app.clock.now_ms += 1_000 * seconds
            case str(stage), int(count):
                app.step(stage, max_versions=count, max_records=count)
    return app


@scaled(60)
@given(steps=STEPS, skew_ms=SKEWS, data=st.data())
def test_at_any_moment_every_flight_is_counted_in_exactly_one_place(
    steps: list[tuple[str, object]], skew_ms: dict[str, int], data: st.DataObject
) -> None:
    app = play(steps, skew_ms)
    stage = data.draw(st.sampled_from(STAGES))
    version = data.draw(st.integers(1, app.heads[stage].version))
    earliest_ms = min(app.version(stage, 1).time_ms for stage in STAGES)
    time_ms = data.draw(st.integers(earliest_ms, app.clock.now_ms + 10_000))
    refs = [parse_ref(text, now_ms=0) for text in ("flights", f"flights/{stage}@v{version}")]
    for ref in (*refs, Ref("flights@then", "flights", "", AtTime(time_ms))):
        at = cut_of_ref(app.store, ref)
        assert violations(at.stages) == ()
        places = counted(app, at)
        assert len(set(places.values())) == 1, places
    assert cut(app, f"flights/{stage}@v{version}").stages[stage].version == version


@scaled(25)
@given(steps=STEPS, skew_ms=SKEWS)
def test_a_pinned_cut_stays_the_same(steps: list[tuple[str, object]], skew_ms: dict[str, int]) -> None:
    app = play(steps, skew_ms)
    now = cut(app, "flights")
    snapshot = pin_cut(app.store, now, "here")
    app.run(flights(10))
    assert cut_of_snapshot(app.store, snapshot).stages == now.stages
