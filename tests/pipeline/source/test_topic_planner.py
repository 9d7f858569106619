"""Batches of a user's topic."""

import socket
import time
from dataclasses import replace

import pytest
from slackwater.errors import AnotherTopic, Unavailable
from slackwater.pipeline.kafka.memory import MemoryKafka
from slackwater.pipeline.kafka.open import open_kafka
from slackwater.pipeline.kafka.protocol import Kafka, Patience, Record
from slackwater.pipeline.source.planner import Pace, TopicPlanner
from slackwater.state.records import Position

START = Position("t", (0, 0, 0, 0))


class Clock:
    """A clock in seconds that tests advance."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


class Topic:
    """A topic, with planners that read it."""

    def __init__(self, kafka: Kafka) -> None:
        self.kafka = kafka
        kafka.create_topics({"t": 4})
        self.asked: list[str] = []

    def send(self, *partitions: int) -> None:
        self.kafka.send("t", [Record(b"a record", partition) for partition in partitions], patience_s=180)

    def planner(
        self, pace: Pace | None = None, *, max_records: int | None = None, handled: tuple[str, ...] = ()
    ) -> TopicPlanner:
        return TopicPlanner(
            self.kafka,
            "t",
            pace=pace or Pace(0),
            max_records=max_records,
            patience=Patience("Kafka", 30),
            requests=lambda: tuple(self.asked),
            handled_snapshots=set(handled),
        )


@pytest.fixture
def topic(memory_kafka: MemoryKafka) -> Topic:
    topic = Topic(memory_kafka)
    topic.send(0, 0, 1, 3)
    return topic


def until(planner: TopicPlanner, start: Position, expected: Position) -> None:
    """Plan repeatedly, as Spark does, until the end is `expected`; until then it must be the start."""
    deadline = time.monotonic() + 30
    while (found := planner.plan_end(start)) != expected:
        assert found == start
        assert time.monotonic() < deadline


def test_a_batch_ends_at_the_ends_of_the_topic_and_the_next_one_starts_there(topic: Topic) -> None:
    planner = topic.planner()
    first = Position("t", (2, 1, 0, 1))
    until(planner, START, first)
    assert planner.plan_end(first) == first
    topic.send(2)
    until(planner, first, Position("t", (2, 1, 1, 1)))


def test_no_batch_has_more_than_its_limit(topic: Topic) -> None:
    topic.send(*[0] * 8)
    until(topic.planner(max_records=5), Position("t", (0, 1, 0, 1)), Position("t", (5, 1, 0, 1)))


def test_a_reader_with_end_offsets_reads_no_further(topic: Topic) -> None:
    planner = topic.planner()
    planner.end_offsets = (1, 0, 9)  # of the partition that came later, nothing
    first = Position("t", (1, 0, 0, 0))
    until(planner, START, first)
    topic.send(0, 1, 2)
    until(planner, first, Position("t", (1, 0, 1, 0)))


def test_only_the_position_at_which_a_snapshot_ended_names_it(topic: Topic) -> None:
    until(topic.planner(), Position("t", (0, 0, 0, 0), snapshots=("s1",)), Position("t", (2, 1, 0, 1)))


def test_a_batch_starts_the_trigger_interval_and_no_batch_starts_within_it(topic: Topic) -> None:
    clock = Clock()
    planner = topic.planner(Pace(10, clock))
    first = Position("t", (2, 1, 0, 1))
    until(planner, START, first)
    topic.send(2)
    assert planner.plan_end(first) == first
    clock.now = 10
    until(planner, first, Position("t", (2, 1, 1, 1)))


def test_an_empty_plan_does_not_start_the_trigger_interval(topic: Topic) -> None:
    pace = Pace(10, Clock())
    planner = topic.planner(pace)
    ends = Position("t", (2, 1, 0, 1))
    assert planner.plan_end(ends) == ends
    assert pace.is_due()


def test_a_request_ends_a_batch_at_once_and_is_reported_once(topic: Topic) -> None:
    topic.asked = ["old"]
    pace = Pace(3600)
    pace.record_start()
    planner = topic.planner(pace, handled=("old",))
    assert planner.plan_end(START) == START, "the interval is long, and the old request was handled"
    topic.asked += ["s1", "s2"]
    # Without the records that wait: the snapshot need not.
    at_first = Position("t", START.offsets, snapshots=("s1", "s2"))
    until(planner, START, at_first)
    assert planner.plan_end(at_first) == at_first
    # Still open, and said no more, also when another is asked.
    topic.asked.append("s3")
    until(planner, at_first, Position("t", START.offsets, snapshots=("s3",)))


def test_a_request_does_not_wait_for_the_first_read_of_the_topics_ends(topic: Topic) -> None:
    topic.asked = ["s1"]
    assert topic.planner().plan_end(START) == Position("t", START.offsets, snapshots=("s1",))


def test_a_broker_outage_beyond_the_patience_is_reported() -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        servers = {"bootstrap.servers": f"127.0.0.1:{nobody.getsockname()[1]}"}
        planner = TopicPlanner(
            open_kafka(servers),
            "t",
            pace=Pace(0),
            max_records=None,
            patience=Patience("Kafka", 0.1),
            requests=tuple,
            handled_snapshots=set(),
        )
        assert planner.plan_end(START) == START, "it is waited for"
        expected = f"^Kafka has not answered for .* s \\(Kafka at {servers['bootstrap.servers']} does not answer"
        with pytest.raises(Unavailable, match=expected):
            until(planner, START, Position("t", (1, 0, 0, 0)))


def test_a_held_planner_stops_at_the_hold_offsets_or_where_it_already_is(topic: Topic) -> None:
    bounds: list[tuple[int, ...] | None] = [(1, 5)]
    planner = replace(topic.planner(), hold_offsets=lambda: bounds[0])
    held = Position("t", (1, 1, 0, 0))
    until(planner, START, held)
    topic.send(0, 1, 2, 3)
    until(planner, held, Position("t", (1, 2, 0, 0)))
    passed = Position("t", (2, 2, 0, 1))
    assert planner.plan_end(passed) == passed
    bounds[0] = None
    until(planner, passed, Position("t", (3, 2, 1, 2)))


@pytest.mark.parametrize("partitions", [1, 4, 6])
def test_a_topic_that_is_recreated_while_it_is_read_stops_the_planner(topic: Topic, partitions: int) -> None:
    memory = topic.kafka
    assert isinstance(memory, MemoryKafka)
    planner = replace(topic.planner(), topic_id=memory.topic_id("t"))
    first = Position("t", (2, 1, 0, 1))
    until(planner, START, first)
    former = memory.topic_id("t")
    memory.delete_topics(["t"])
    assert planner.plan_end(first) == first  # nothing is new in a topic that is gone
    memory.create_topics({"t": partitions})
    topic.send(*[0] * 12)
    with pytest.raises(AnotherTopic, match=f"id {former} and 4 .* and {partitions} partition.* holds t.0. 0..12") as no:
        until(planner, first, first.__class__("t", (-1,)))
    assert "A batch that was committed after" in no.value.message


def test_reading_a_topics_state_is_one_request_and_its_id_costs_none(topic: Topic) -> None:
    memory, clock = topic.kafka, Clock()
    assert isinstance(memory, MemoryKafka)
    before = memory.state_requests
    planner = topic.planner(Pace(0, clock))
    until(planner, START, Position("t", (2, 1, 0, 1)))
    for _ in range(1_000):
        planner.plan_end(Position("t", (2, 1, 0, 1)))
    assert 1 <= memory.state_requests - before <= 20
