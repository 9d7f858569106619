"""The offsets at which a new stage starts on a topic, by the options of Spark's Kafka source."""

import json
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from uuid import uuid4

import pytest
import slackwater as sw
from hypothesis import given
from hypothesis import strategies as st
from slackwater.errors import Gone, Refused, Usage
from slackwater.pipeline.api.topic import Topic, parse_offsets_arguments, starting_offsets_at, stored_starting_offsets
from slackwater.pipeline.kafka.memory import MemoryKafka
from slackwater.pipeline.kafka.protocol import Record
from slackwater.pipeline.run.claim import Claimer
from slackwater.pipeline.run.start_positions import StartFinder
from slackwater.state.records import TopicState
from slackwater.store.objects.local import LocalStore
from slackwater.store.objects.memory import MemoryStore

EARLIEST, ENDS = (5, 0, 7), (20, 10, 7)


def nothing_since(times_ms: Sequence[int]) -> tuple[int, ...]:
    return (-1,) * len(times_ms)


def begins(topic: Topic) -> tuple[int, ...]:
    return topic.start.resolve("flights", EARLIEST, ENDS, nothing_since)


def at(*offsets: int) -> str:
    return json.dumps({"flights": {str(partition): offset for partition, offset in enumerate(offsets)}})


def test_earliest_latest_and_offsets_by_partition_are_accepted() -> None:
    assert begins(sw.topic("flights")) == begins(sw.topic("flights", starting_offsets="earliest")) == EARLIEST
    assert begins(sw.topic("flights", starting_offsets="latest")) == ENDS
    assert begins(sw.topic("flights", starting_offsets=at(-2, 3, -1))) == (5, 3, 7)


@given(st.tuples(*(st.integers(first, end) for first, end in zip(EARLIEST, ENDS, strict=True))))
def test_existing_offsets_are_used_unchanged(offsets: tuple[int, ...]) -> None:
    assert begins(sw.topic("flights", starting_offsets=at(*offsets))) == offsets


@pytest.mark.parametrize(
    ("offsets", "said"),
    [
        (at(4, 0, 7), r"flights\[0\] is to begin at 4, but holds 5\.\.20"),
        (at(5, 11, 8), r"flights\[1\] is to begin at 11, but holds 0\.\.10; flights\[2\] is to begin at 8"),
        (at(5, 0), "names the partitions 0, 1; expected each of 0 to 2"),
        (at(5, 0, 7, 0), "names the partitions 0, 1, 2, 3; expected each of 0 to 2"),
        (at(), "names the partitions none"),
    ],
)
def test_offsets_outside_the_topic_are_refused(offsets: str, said: str) -> None:
    with pytest.raises(Refused, match=f"starting_offsets of topic 'flights'.*{said}"):
        begins(sw.topic("flights", starting_offsets=offsets))


def test_a_time_after_all_records_is_refused_unless_the_strategy_is_latest() -> None:
    for late in ({"starting_timestamp": 9}, {"starting_offsets_by_timestamp": at(9, 9, 9)}):
        with pytest.raises(Refused, match=r"no record at or after flights\[0\] 9, flights\[1\] 9"):
            begins(sw.topic("flights", **late))  # type: ignore[arg-type]
        topic = sw.topic("flights", **late, starting_offsets_by_timestamp_strategy="latest")  # type: ignore[arg-type]
        assert begins(topic) == ENDS


def test_the_precedence_of_options_is_that_of_spark() -> None:
    every = {"starting_offsets": "latest", "starting_offsets_by_timestamp": at(1, 2, 3), "starting_timestamp": "4"}
    asked: list[Sequence[int]] = []

    def since(times_ms: Sequence[int]) -> Sequence[int]:
        asked.append(times_ms)
        return EARLIEST

    for _ in range(3):
        sw.topic("flights", **every).start.resolve("flights", EARLIEST, ENDS, since)  # type: ignore[arg-type]
        every.popitem()
    assert asked == [[4, 4, 4], [1, 2, 3]]


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("starting_offsets", "first"),
        ("starting_offsets", "7"),
        ("starting_offsets", None),
        ("starting_offsets", json.dumps({"other": {"0": 1}})),
        ("starting_offsets", json.dumps({"flights": {"0": 1}, "other": {"0": 1}})),
        ("starting_offsets", json.dumps({"flights": [1]})),
        ("starting_offsets", json.dumps({"flights": {"-1": 1}})),
        ("starting_offsets", at(-3)),
        ("starting_offsets", json.dumps({"flights": {"0": 1.5}})),
        ("starting_offsets_by_timestamp", "latest"),
        ("starting_offsets_by_timestamp", at(-1)),
        ("starting_timestamp", -1),
        ("starting_timestamp", "yesterday"),
        ("starting_timestamp", 1.5),
        ("starting_offsets_by_timestamp_strategy", "earliest"),
    ],
)
def test_values_that_spark_would_refuse_are_refused_in_the_declaration(option: str, value: object) -> None:
    with pytest.raises(Usage, match=f"^{option} of topic 'flights'"):
        sw.topic("flights", **{option: value})  # type: ignore[arg-type]


def test_a_stage_is_claimed_at_the_offsets_that_kafka_returns_for_a_time(
    memory_kafka: MemoryKafka, tmp_path: Path
) -> None:
    name = f"flights-{uuid4().hex[:8]}"
    memory_kafka.create_topics({name: 2})
    records = [Record(b"x", number % 2, time_ms=1_000 + number) for number in range(10)]
    memory_kafka.send(name, records, patience_s=180)

    def claimed(**start: object) -> tuple[int, ...]:
        app = sw.App(f"a{uuid4().hex[:8]}")
        app.stage(reads=sw.topic(name, **start), key="n", state=sw.upsert(by="at"), name="s")(lambda rows: rows)  # type: ignore[arg-type]
        claimer = Claimer(LocalStore(tmp_path), memory_kafka, app, {}, "w", "test", accept_loss=False)
        return claimer.check_stage(app.stages["s"])[1][name].input.offsets

    def by_partition(*values: int) -> str:
        return json.dumps({name: {str(partition): value for partition, value in enumerate(values)}})

    assert claimed() == (0, 0)
    assert claimed(starting_offsets="latest") == (5, 5)
    assert claimed(starting_offsets=by_partition(3, -1)) == (3, 5)
    assert claimed(starting_timestamp=1_004) == (2, 2)
    assert claimed(starting_offsets_by_timestamp=by_partition(0, 1_008)) == (0, 4)
    with pytest.raises(Refused, match=rf"no record at or after {name}\[0\] 1009"):
        claimed(starting_timestamp=1_009)
    assert claimed(starting_timestamp=1_009, starting_offsets_by_timestamp_strategy="latest") == (5, 4)
    with pytest.raises(Refused, match=rf"{name}\[1\] is to begin at 6, but holds 0\.\.5"):
        claimed(starting_offsets=by_partition(0, 6))


NAMES = st.from_regex(r"\A[a-zA-Z0-9._-]{1,20}\Z")
WHERE = st.one_of(st.sampled_from(["earliest", "latest"]), st.lists(st.integers(-2, 1000), min_size=1, max_size=4))


@given(st.dictionaries(NAMES, WHERE, min_size=1, max_size=3), st.booleans())
def test_offsets_of_the_command_line_are_parsed_like_those_of_a_topic(
    said: dict[str, str | list[int]], as_spark_does: bool
) -> None:
    by_partition = {topic: dict(enumerate(at)) if isinstance(at, list) else at for topic, at in said.items()}
    together = {topic: at for topic, at in by_partition.items() if isinstance(at, dict) and as_spark_does}
    words = [json.dumps(together)] if together else []
    words += [
        f"{topic}={at if isinstance(at, str) else json.dumps(at)}"
        for topic, at in by_partition.items()
        if topic not in together
    ]
    found = parse_offsets_arguments(words)
    assert found.keys() == said.keys()
    for topic, at in by_partition.items():
        declared = sw.topic(topic, starting_offsets=at if isinstance(at, str) else json.dumps({topic: at})).start
        assert replace(found[topic], option="starting_offsets") == declared


@pytest.mark.parametrize(
    "word", ["flights", "latest", "flights=soon", "flights={", "[1]", "{}", '{"flights":3}', '{"0":"x"}']
)
def test_malformed_offsets_on_the_command_line_are_refused(word: str) -> None:
    with pytest.raises(Usage):
        parse_offsets_arguments([word])


def test_naming_a_topic_twice_is_refused() -> None:
    with pytest.raises(Usage, match="each topic once"):
        parse_offsets_arguments(["flights=latest", '{"flights":{"0":1}}'])


def test_a_partition_without_records_after_the_time_starts_at_its_end() -> None:
    asked: list[Sequence[int]] = []

    def first_since(times_ms: Sequence[int]) -> tuple[int, ...]:
        asked.append(times_ms)
        return (9, -1, -1)

    assert starting_offsets_at(1_700).resolve("flights", EARLIEST, ENDS, first_since) == (9, 10, 7)
    assert asked == [[1_700] * 3]


def test_stored_starting_offsets_are_checked_against_kafka_again() -> None:
    start = stored_starting_offsets({"flights": (5, 3, 7)})["flights"]
    assert start.resolve("flights", EARLIEST, ENDS, nothing_since) == (5, 3, 7)
    # What Kafka lost since is refused or accepted as for a stage that has begun.
    assert stored_starting_offsets({"flights": (4, 3, 7)})["flights"].resolve(
        "flights", EARLIEST, ENDS, nothing_since
    ) == (
        4,
        3,
        7,
    )
    assert (
        stored_starting_offsets({"flights": (5, 3)})["flights"].resolve("flights", EARLIEST, ENDS, nothing_since)[2]
        == EARLIEST[2]
    )
    beyond = (5, 3, ENDS[2] + 1)
    with pytest.raises(Refused, match=r"the start by `slackwater init` of topic 'flights': flights.2. is to begin at"):
        stored_starting_offsets({"flights": beyond})["flights"].resolve("flights", EARLIEST, ENDS, nothing_since)


@pytest.mark.parametrize("accept_loss", [False, True])
def test_starting_offsets_that_kafka_has_deleted_are_refused_unless_accepted(accept_loss: bool) -> None:
    start = stored_starting_offsets({"flights": (EARLIEST[0] - 1, *EARLIEST[1:])})["flights"]
    finder = StartFinder(MemoryStore(), "app", "legs", None, lambda _topic: TopicState(EARLIEST, ENDS), accept_loss)
    begin = partial(start.resolve, "flights", first_since=nothing_since)
    if accept_loss:
        found = finder.start_on_topic("flights", "flights", begin)
        assert found.input.offsets == EARLIEST
        assert "gone from Kafka" in found.unseen
    else:
        with pytest.raises(Gone, match="is to begin at offsets that are gone from Kafka") as gone:
            finder.start_on_topic("flights", "flights", begin)
        assert "--accept-loss" in gone.value.hint
