from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from slackwater.errors import NotFound, Refused, SlackwaterError, Unavailable, Usage
from slackwater.operations.staging.clone import ClonePlan, clone
from slackwater.snapshot.cut.graph import violations
from slackwater.snapshot.cut.in_flight import in_flight
from slackwater.snapshot.cut.lineage import trace
from slackwater.snapshot.cut.moments import read_line
from slackwater.snapshot.cut.resolve import resolve
from slackwater.snapshot.cut.stored import list_snapshots, read_snapshot
from slackwater.snapshot.take.snapshots import delete_snapshot, pin_cut
from slackwater.store.objects.counting import CountingStore
from slackwater.store.objects.local import LocalStore
from slackwater.store.objects.memory import MemoryStore
from slackwater.store.objects.protocol import ObjectStore
from slackwater.store.versions import apps, history
from slackwater.store.versions.commit import successor
from slackwater.store.versions.manifest import AppInfo, EventTime, Manifest, Sink, VersionSpan

from tests.models.profiles import scaled
from tests.store.objects.faulty_store import FaultyStore
from tests.support.histories import STAGES, Clock, Flight, FlightsApp, InFlight, Kafka, app_of, copied, flights, rows_of

T = TypeVar("T")


@pytest.fixture
def app() -> FlightsApp:
    return running(MemoryStore())


def running(store: ObjectStore) -> FlightsApp:
    """Return an app with records in flight on both channels."""
    app = copied(app_of(), store)
    app.send(*flights(10))
    app.step("legs")
    app.step("aircraft")
    app.send(*flights(6))
    app.step("legs")
    return app


def make(app: FlightsApp, source: str = "flights", name: str = "staging", **more: object) -> ClonePlan:
    arguments = {"topics": {}, "channels": app.kafka, "by": "ada@host", "now_ms": app.clock.now_ms} | more
    return clone(app.store, source, name, **arguments)


def started(app: FlightsApp, name: str = "staging", store: ObjectStore | None = None) -> FlightsApp:
    return FlightsApp(store or app.store, app.kafka, name, clock=app.clock)


def test_a_clone_continues_as_its_source_does(app: FlightsApp) -> None:
    make(app)
    staging = started(app)
    app.send(*flights(8))
    for each in (app, staging):
        each.step_all()
    assert staging.state == app.state
    assert staging.state["carriers"] == rows_of(app.store, staging.heads["carriers"])


def test_stages_without_a_version_start_in_a_clone_at_the_offsets_given_to_init() -> None:
    store = MemoryStore()
    apps.create_app(store, AppInfo("flights", 1, starts={"flights": (3, 4)}, initialised="legs"))
    make(FlightsApp(store, Kafka(), start=["legs"]))
    staging = apps.read_app(store, "staging")
    assert (staging.starts, staging.initialised) == ({"flights": (3, 4)}, "")


def test_a_clone_of_an_earlier_moment_catches_up_from_that_moment(app: FlightsApp) -> None:
    make(app, "flights/aircraft@v3")
    staging = started(app)
    assert sum(number for number, _, _ in staging.state["aircraft"].values()) == 20
    for each in (app, staging):
        each.step_all()
    assert staging.state == app.state


def test_a_clone_can_read_other_topics(app: FlightsApp) -> None:
    """Production failed after `good`; staging reads corrected events from that moment on."""
    app.step_all()
    pin_cut(app.store, resolve(app.store, "flights", now_ms=0), "good")
    app.kafka.topics["corrected"] = [list(messages) for messages in app.kafka.topics["flights"]]
    app.send(*flights(10, delay=300))
    app.kafka.send("corrected", flights(10, delay=5))
    plan = make(app, "flights@good", topics={"flights": "corrected"})
    assert plan.info.origin is not None
    assert plan.info.origin.topics == {"flights": "corrected"}
    staging = started(app)
    for each in (app, staging):
        each.step_all()
    assert {delay // number for number, delay, _ in staging.state["carriers"].values()} == {5}
    assert {delay // number for number, delay, _ in app.state["carriers"].values()} != {5}


def test_a_clone_shares_every_sst_and_copies_only_in_flight_records(app: FlightsApp) -> None:
    plan = make(app)
    for stage in STAGES:
        source, first = (
            plan.source.stages[stage],
            history.read(app.store, "staging", stage, plan.source.stages[stage].version),
        )
        assert {*first.ssts} == {*source.ssts}
        assert (first.kind, first.epoch, first.app, first.recorded) == ("clone", 1, "staging", {})
    assert [(flight.channel, flight.rows) for flight in plan.in_flight] == [
        ("by-aircraft", 6),
        ("by-carrier", 10),
    ]
    assert not list(app.store.list("staging/stages/aircraft/sst/"))
    at = resolve(app.store, "staging", now_ms=app.clock.now_ms)
    assert violations(at.stages) == ()
    assert {flight.rows for flight in in_flight(app.store, at)} == {6, 10}
    assert not any(
        m.attempt.startswith("dead") for f in in_flight(app.store, at) for p in app.kafka.between(f) for m in p
    )


def test_a_clone_does_not_take_part_in_running_snapshots_of_its_source(app: FlightsApp) -> None:
    head = app.step("aircraft")
    draft = successor(head, kind="batch", epoch=head.epoch, writer=head.writer, by="test:1", now_ms=head.time_ms + 1)
    under_way = {"recorded": {"id": 3}, "awaited": {"id": ("x",)}, "captured": {"id": {"x": VersionSpan(1, 2)}}}
    version = app.commit(replace(draft, **under_way)).version
    make(app)
    first = history.read(app.store, "staging", "aircraft", version)
    assert (first.recorded, first.awaited, first.captured) == ({}, {}, {})


def test_a_clone_never_writes_to_its_sources_topics(app: FlightsApp) -> None:
    before = {topic: app.kafka.ends(topic) for topic in app.kafka.topics}
    make(app)
    started(app).step_all()
    assert {topic: app.kafka.ends(topic) for topic in before} == before


def test_the_clones_moment_stays_pinned_in_the_source(app: FlightsApp) -> None:
    plan = make(app)
    snapshot = read_snapshot(app.store, "flights", "clone-staging")
    assert (snapshot.kind, snapshot.clone, snapshot.stages) == ("clone", "staging", plan.source.versions)
    with pytest.raises(Refused, match="'staging' is a clone that uses"):
        delete_snapshot(app.store, "flights", "clone-staging")


def test_version_numbers_continue_from_the_sources_so_that_newer_rows_win(app: FlightsApp) -> None:
    plan = make(app)
    assert read_line(app.store, "staging").beginning().versions == plan.source.versions
    staging = started(app)
    staging.run(flights(20))
    assert rows_of(app.store, staging.heads["carriers"]) == staging.state["carriers"]
    assert staging.heads["legs"].version == plan.source.versions["legs"] + 3


def test_a_clone_can_be_cloned(app: FlightsApp) -> None:
    app.kafka.topics["corrected"] = [list(messages) for messages in app.kafka.topics["flights"]]
    make(app, topics={"flights": "corrected"})
    staging = started(app)
    staging.send(*flights(5))
    staging.step("legs")
    plan = make(staging, "staging", "second")
    assert plan.topics == {"flights": "corrected"}
    second = started(app, "second")
    assert second.topic == "corrected"
    for each in (staging, second):
        each.step_all()
    assert second.state == staging.state


def test_a_clone_under_another_root_refers_to_its_source(tmp_path: Path) -> None:
    app = running(LocalStore(tmp_path / "production"))
    other = LocalStore(tmp_path / "staging")
    plan = make(app, target_store=other)
    assert plan.target_root == other.url
    staging = started(app, store=other)
    assert {run.root for run in history.read(other, "staging", "aircraft", plan.source.versions["aircraft"]).ssts} == {
        app.store.url
    }
    for each in (app, staging):
        each.step_all()
    assert staging.state == app.state
    # And from there home again: its own SSTs are the other root's, those of the first app are at home.
    back = make(staging, "staging", "back", target_store=app.store)
    roots = {run.root for run in history.read(app.store, "back", "carriers", back.source.versions["carriers"]).ssts}
    assert roots == {"", other.url}
    assert started(app, "back").state == staging.state


def test_each_reader_of_a_channel_continues_from_its_own_position() -> None:
    app = FlightsApp(MemoryStore(), Kafka(), start=["legs", "aircraft"])
    app.send(*flights(4))
    app.step("legs")
    app.step("aircraft")
    app.send(*flights(3))
    app.step("legs")
    head = app.heads["aircraft"]
    second = {"stage": "second", "version": 1, "outputs": {}, "table": None, "ssts": ()}
    app.commit(Manifest(**{name: getattr(head, name) for name in head.__struct_fields__} | second))
    app.step("aircraft")
    app.send(*flights(2))
    app.step("legs")
    plan = make(app)
    by_aircraft = {(flight.receiver, flight.rows) for flight in plan.in_flight if flight.sender == "legs"}
    assert by_aircraft == {("aircraft", 2), ("second", 5)}
    at = resolve(app.store, "staging", now_ms=app.clock.now_ms)
    found = {
        flight.receiver: sum(len(m.flights) for partition in app.kafka.between(flight) for m in partition)
        for flight in in_flight(app.store, at)
        if flight.sender == "legs"
    }
    assert found == {"aircraft": 2, "second": 5}


def test_a_clone_has_its_sources_watermarks_including_those_in_flight() -> None:
    app = FlightsApp(MemoryStore(), Kafka())
    app.run(flights(4))

    def at_ms(stage: str, watermark_ms: int, read_ms: int | None) -> None:
        now_ms = app.clock.now_ms + 10**6
        draft = successor(app.heads[stage], kind="batch", epoch=1, writer="w", by="h:1", now_ms=now_ms)
        inputs = {name: replace(one, watermark_ms=read_ms) for name, one in draft.inputs.items()}
        counts = EventTime(watermark_ms, 2, 5, 3, 7, bound_ms=10**6)
        app.commit(replace(draft, inputs=inputs, event_time=counts))

    at_ms("legs", 90, 90)
    at_ms("aircraft", 70, 70)
    at_ms("carriers", 70, 70)
    plan = make(app, now_ms=app.clock.now_ms + 10**7)
    firsts = {stage: history.head(app.store, "staging", stage) for stage in STAGES}
    for stage, first in firsts.items():
        assert first is not None
        assert first.event_time == EventTime(plan.source.stages[stage].watermark_ms, 0, 5, 0, 7)
        source = plan.source.stages[stage].inputs
        assert {name: one.watermark_ms for name, one in first.inputs.items()} == {
            name: one.watermark_ms for name, one in source.items()
        }
    legs, aircraft = firsts["legs"], firsts["aircraft"]
    assert legs is not None
    assert aircraft is not None
    assert aircraft.inputs["by-aircraft"].version == legs.version - 1, "the watermark of legs is still to be read"


def test_a_stage_that_had_not_started_finds_all_its_input_in_the_clone() -> None:
    app = FlightsApp(MemoryStore(), Kafka(), start=["legs", "aircraft"])
    for _ in range(2):
        app.send(*flights(4))
        app.step("legs")
        app.step("aircraft")
    make(app)
    staging = started(app)
    staging.step("carriers")
    assert sum(number for number, _, _ in staging.state["carriers"].values()) == 8


def test_lineage_in_a_clone_ends_at_the_clones_beginning(app: FlightsApp) -> None:
    make(app)
    staging = started(app)
    staging.send(*flights(4))
    staging.step_all()
    found = trace(app.store, None, staging.heads["carriers"])
    assert {window.topic for window in found.sources} == {"flights"}
    ends = app.kafka.ends("flights")
    assert ends is not None
    assert sum(window.end - window.start for window in found.sources) == 4


def test_planning_a_clone_changes_nothing(app: FlightsApp) -> None:
    keys = [info.key for info in app.store.list("")]
    topics = set(app.kafka.topics)
    plan = make(app, "flights@~2", dry_run=True)
    assert plan.source == resolve(app.store, "flights@~2", now_ms=0)
    assert [info.key for info in app.store.list("")] == keys
    assert set(app.kafka.topics) == topics


@pytest.mark.parametrize(
    ("source", "name", "more", "error", "words"),
    [
        ("flights", "Staging", {}, Usage, "app name 'Staging' is not usable"),
        ("flights@@", "staging", {}, Usage, "ref 'flights@@'"),
        ("fligths", "staging", {}, NotFound, "the nearest: flights"),
        ("flights@goood", "staging", {}, NotFound, "no snapshot of app 'flights' named 'goood'"),
        ("flights", "flights", {}, Refused, "cannot be cloned onto itself"),
        ("flights", "other", {}, Refused, "app 'other' exists already"),
        ("flights", "staging", {"topics": {"fligths": "x"}}, NotFound, "the nearest: flights"),
        ("flights", "staging", {"topics": {"flights": "corected"}}, NotFound, "the nearest: corrected"),
        ("flights", "staging", {"topics": {"flights": "short"}}, Refused, "topic 'short' holds"),
        ("flights", "taken", {}, Refused, "topic 'taken-by-carrier-repartition' exists already in Kafka"),
    ],
)
def test_an_impossible_clone_is_refused_before_anything_changes(
    app: FlightsApp, source: str, name: str, more: dict[str, object], error: type[SlackwaterError], words: str
) -> None:
    FlightsApp(app.store, Kafka(), "other")
    app.kafka.topics["corrected"] = app.kafka.topics["flights"]
    app.kafka.create("short")
    app.kafka.create("taken-by-carrier-repartition")
    keys = [info.key for info in app.store.list("")]
    with pytest.raises(error, match=words):
        make(app, source, name, **more)
    assert [info.key for info in app.store.list("")] == keys


def test_a_clone_whose_in_flight_records_are_deleted_is_refused_before_anything_changes(app: FlightsApp) -> None:
    plan = make(app, dry_run=True)
    app.kafka.earliest["flights-by-aircraft-repartition"] = plan.in_flight[0].ends
    keys = [info.key for info in app.store.list("")]
    with pytest.raises(Refused, match="'flights-by-aircraft-repartition' holds"):
        make(app)
    assert [info.key for info in app.store.list("")] == keys


def test_a_finished_clone_is_not_created_again(app: FlightsApp) -> None:
    made = make(app)
    again = make(app)
    assert (made.done, again.done, again.info) == (False, True, made.info)
    assert again.source.versions == made.source.versions


@pytest.mark.parametrize(
    ("source", "more"),
    [("flights@~2", {}), ("flights/legs@v2", {}), ("flights", {"topics": {"flights": "corrected"}})],
)
def test_another_clone_under_an_existing_name_is_refused(app: FlightsApp, source: str, more: dict[str, object]) -> None:
    app.kafka.topics["corrected"] = [list(messages) for messages in app.kafka.topics["flights"]]
    make(app)
    with pytest.raises(Refused, match=r"exists already under .*, a clone of flights@clone-staging"):
        make(app, source, **more)


def test_a_repeated_clone_call_is_refused_once_the_clone_has_run(app: FlightsApp) -> None:
    pin_cut(app.store, resolve(app.store, "flights", now_ms=0), "good")
    make(app)
    make(app, "flights@good", "fixed")
    for name in ("staging", "fixed"):
        started(app, name).step_all()
    with pytest.raises(Refused, match="exists already"):
        make(app)
    assert make(app, "flights@good", "fixed").done


class Crash(BaseException):
    """Simulated crash of the machine."""


class CrashingStore(CountingStore):
    """A store that raises `Crash` after a given number of writes."""

    def __init__(self, inner: ObjectStore, writes_left: int) -> None:
        super().__init__(inner)
        self.writes_left = writes_left

    def put_if_absent(self, key: str, data: bytes) -> None:
        if not self.writes_left:
            raise Crash
        self.writes_left -= 1
        super().put_if_absent(key, data)


class CrashingKafka(Kafka):
    """An in-memory Kafka that raises `Crash` after a given number of copied records."""

    copies_left = 0

    def copy(
        self, in_flight: InFlight, topic: str, app: str, kept: object = None
    ) -> tuple[tuple[int, ...], str, tuple[int, ...]]:
        result = super().copy(in_flight, topic, app, kept)
        if not self.copies_left:
            raise Crash
        self.copies_left -= 1
        return result


def finished_after(app: FlightsApp, crash: object) -> FlightsApp:
    """Repeat the call after a crash, and return the clone."""
    source, topics = app.store, app.kafka
    try:
        app.store, app.kafka = (crash, topics) if isinstance(crash, CrashingStore) else (source, crash)
        with pytest.raises(Crash):
            make(app)
    finally:
        app.store, app.kafka = source, topics
    make(app)
    assert is_whole(source)
    staging = started(app)
    for each in (app, staging):
        each.step_all()
    return staging


@pytest.mark.parametrize("writes", range(7))
def test_a_clone_that_crashed_at_any_write_is_finished_by_the_same_call(app: FlightsApp, writes: int) -> None:
    staging = finished_after(app, CrashingStore(app.store, writes))
    assert staging.state == app.state


@pytest.mark.parametrize("copies", range(2))
def test_a_clone_that_crashed_while_copying_is_finished_by_the_same_call(app: FlightsApp, copies: int) -> None:
    crashing = CrashingKafka()
    crashing.topics, crashing.copies_left = app.kafka.topics, copies
    staging = finished_after(app, crashing)
    assert staging.state == app.state


def is_whole(store: ObjectStore, name: str = "staging") -> bool:
    return apps.find_app(store, name) is not None and apps.find_clone_journal(store, name) is None


def begun(app: FlightsApp, source: str = "flights", **more: object) -> None:
    """Start a clone; the call crashes before the clone's last stage."""
    store = app.store
    app.store = CrashingStore(store, 6)
    with pytest.raises(Crash):
        make(app, source, **more)
    app.store = store
    with pytest.raises(Refused, match="'staging' is incomplete"):
        apps.read_app(store, "staging")
    assert apps.list_apps(store) == ("flights",)


def test_an_unfinished_clone_keeps_its_moment_even_if_the_app_has_moved_on(app: FlightsApp) -> None:
    begun(app, "flights@now")
    versions = resolve(app.store, "flights", now_ms=0).versions
    app.run(flights(20))
    plan = make(app, "flights@now")
    assert plan.resumed
    assert plan.source.versions == versions
    assert read_line(app.store, "staging").beginning().versions == versions


def test_resuming_an_unfinished_clone_checks_the_offsets_of_its_own_moment(app: FlightsApp) -> None:
    app.kafka.topics["frozen"] = [list(messages) for messages in app.kafka.topics["flights"]]
    begun(app, "flights@now", topics={"flights": "frozen"})
    app.run(flights(20))
    ends = app.kafka.ends("frozen")
    assert ends is not None
    app.kafka.earliest["frozen"] = ends
    app.kafka.topics["frozen"] = [[*messages, messages[0]] for messages in app.kafka.topics["frozen"]]
    assert make(app, "flights@now", topics={"flights": "frozen"}).resumed


def test_an_unfinished_clone_is_refused_if_its_offsets_are_deleted(app: FlightsApp) -> None:
    begun(app, "flights@now")
    app.run(flights(20))
    ends = app.kafka.ends("flights")
    assert ends is not None
    app.kafka.earliest["flights"] = ends
    with pytest.raises(Refused, match="topic 'flights' holds"):
        make(app, "flights@now")


def test_an_unfinished_clone_cannot_be_resumed_with_other_arguments(app: FlightsApp) -> None:
    pin_cut(app.store, resolve(app.store, "flights@~3", now_ms=0), "other")
    app.kafka.topics["corrected"] = app.kafka.topics["flights"]
    begun(app)
    for source, more in (("flights@other", {}), ("flights", {"topics": {"flights": "corrected"}})):
        with pytest.raises(Refused, match=r"unfinished clone of flights@clone-staging .*, and this call has another"):
            make(app, source, **more)
    assert make(app).resumed


def test_the_pin_of_a_clone_that_was_never_created_is_not_reused(app: FlightsApp) -> None:
    store = app.store
    app.store = CrashingStore(store, 1)
    with pytest.raises(Crash):
        make(app)
    app.store = store
    app.run(flights(10))
    make(app)
    # The snapshot is deleted as soon as a clone exists that no other clone can be made from.
    assert [snapshot.name for snapshot in list_snapshots(store, "flights")] == ["clone-staging-2"]
    assert apps.read_app(store, "staging").origin.snapshot == "clone-staging-2"


@scaled(17, in_ci=150)
@given(seed=st.integers(0, 2**32))
def test_a_clone_through_an_unreliable_store_is_complete_in_the_end(seed: int) -> None:
    app = running(MemoryStore())
    faulty = FaultyStore(app.store, seed, refused=0.03, lost=0.03, late=0.0, echoed=0.03)
    for _ in range(200):
        try:
            clone(faulty, "flights", "staging", topics={}, channels=app.kafka, by="ada", now_ms=0)
        except Unavailable:
            continue
        except Refused:
            pass  # it was finished, only the last answer was lost
        break
    assert is_whole(app.store)
    staging = started(app)
    for each in (app, staging):
        each.step_all()
    assert staging.state == app.state


@scaled(40)
@given(
    steps=st.lists(st.tuples(st.sampled_from(["send", "compact", "rescale", *STAGES]), st.integers(1, 3)), max_size=25),
    data=st.data(),
)
def test_a_clone_of_any_moment_ends_in_the_same_state_as_its_source(
    steps: list[tuple[str, int]], data: st.DataObject
) -> None:
    app = FlightsApp(MemoryStore(), Kafka(), clock=Clock(skew_ms={"aircraft": 2_500, "carriers": -2_500}))
    for number, (verb, count) in enumerate(steps):
        if verb == "send":
            app.send(*(Flight(f"N{n}", f"C{n % 2}", number) for n in range(count)))
        elif verb == "compact":
            app.compact(STAGES[1 + count % 2])
        elif verb == "rescale":
            app.rescale(STAGES[1 + number % 2], count)
        else:
            app.step(verb, max_versions=count, max_records=count)
    stage = data.draw(st.sampled_from(STAGES))
    version = data.draw(st.integers(1, app.heads[stage].version))
    make(app, f"flights/{stage}@v{version}")
    staging = started(app)
    for each in (app, staging):
        each.step_all()
    assert staging.state == app.state
    assert rows_of(app.store, staging.heads["carriers"]) == staging.state["carriers"]


def requests_of_a_clone(num_keys: int) -> tuple[dict[str, int], int]:
    app = FlightsApp(MemoryStore(), Kafka())
    app.run(flights(20))
    app.load("aircraft", num_keys)
    app.step_all()
    app.send(*flights(5))
    app.step("legs")
    counting = CountingStore(app.store)
    app.store, ssts = counting, {info.key for info in app.store.list("") if "/sst/" in info.key}
    make(app)
    assert {info.key for info in app.store.list("") if "/sst/" in info.key} == ssts
    return counting.counts, counting.bytes_read + counting.bytes_written


def test_a_clone_takes_the_same_number_of_requests_for_any_size_of_state() -> None:
    small, small_bytes = requests_of_a_clone(10_000)
    large, large_bytes = requests_of_a_clone(200_000)
    assert small == large
    assert large_bytes < small_bytes + 100  # longer numbers in the manifests; no byte of an SST


def test_a_clone_takes_at_most_six_store_requests_per_stage(app: FlightsApp) -> None:
    """The limit counts neither requests per app nor the reads of versions with records in flight."""
    app.step_all()
    app.store = counting = Recording(app.store)
    make(app)
    by_stage = {stage: [key for key in counting.keys if f"/stages/{stage}/" in key] for stage in STAGES}
    assert max(map(len, by_stage.values())) <= 6
    assert len(counting.keys) <= 35 + sum(map(len, by_stage.values()))


class Recording(CountingStore):
    """A store that records requests."""

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self.keys: list[str] = []

    def _forward(self, method: str, key: str, request: Callable[[], T], sent: bytes = b"") -> T:
        self.keys.append(key)
        return super()._forward(method, key, request, sent)


def test_a_clone_publishes_only_the_given_sinks_and_from_the_start(app: FlightsApp) -> None:
    head = app.heads["legs"]
    draft = successor(head, kind="batch", epoch=head.epoch, writer=head.writer, by="test", now_ms=head.time_ms + 1)
    declared = {
        "alerts": Sink("internal", 5, since=2, sent=5),
        "to-lake": Sink("internal-too", 5, since=2, kind="function", sent=5),
        "counts": Sink("internal-3", 5, since=2, kind="table", sent=5, table="delta:s3://lake/counts"),
    }
    app.commit(replace(draft, sinks=declared))
    for name, said in (("nothing", "no sink of flights named 'nothing'"), ("alerts", "publishes to the topic")):
        with pytest.raises(SlackwaterError, match=said):
            make(app, sinks={name: "alerts"})
    with pytest.raises(NotFound, match="no Kafka topic named 'gone'"):
        make(app, sinks={"alerts": "gone"})
    with pytest.raises(Refused, match="would read the topic 'flights' and publish to it: an endless loop"):
        make(app, sinks={"alerts": "flights"})
    with pytest.raises(Refused, match="flights publishes to the table s3://lake/counts itself"):
        make(app, sinks={"counts": "s3a://lake/other/../counts/"})
    with pytest.raises(Usage, match="--sink counts is a URL with a password") as refused:
        make(app, sinks={"counts": "s3://me:SECRET@lake/copy"})
    assert "SECRET" not in str(refused.value)
    app.kafka.create("trial")
    sinks = {"alerts": "trial", "counts": "s3://lake/copy", "to-lake": "to-lake"}
    plan = make(app, sinks=sinks | {"counts": "s3://lake/copy/"})
    assert plan.info.origin is not None
    assert plan.info.origin.sinks == sinks
    # What the source has not published, it publishes itself.
    assert history.read(app.store, "staging", "legs", app.heads["legs"].version).sinks == {}
    assert make(app, sinks=sinks).done
    with pytest.raises(Refused, match="exists already"):
        make(app)
