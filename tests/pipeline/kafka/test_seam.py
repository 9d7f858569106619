"""Rules for every implementation of the `Kafka` protocol: in memory, and on a real broker."""

import re
from collections.abc import Iterator
from contextlib import closing, suppress
from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka.admin import AdminClient
from slackwater.common.durations import DAY_MS
from slackwater.errors import AnotherTopic, Gone, NotFound, Refused, Unavailable
from slackwater.pipeline.kafka.channels import KafkaChannels
from slackwater.pipeline.kafka.clients import process_clients
from slackwater.pipeline.kafka.memory import MemoryKafka
from slackwater.pipeline.kafka.memory_server import RemoteMemoryKafka
from slackwater.pipeline.kafka.open import EndOffsets, end_offsets, wait_until_available
from slackwater.pipeline.kafka.protocol import (
    MAX_MESSAGE_BYTES,
    Kafka,
    Message,
    ProducerFenced,
    Record,
    SendFailed,
    TransactionalProducer,
    TransactionFailed,
    TransactionSettings,
)
from slackwater.state.records import Range
from slackwater.store.versions.manifest import Input

from tests.support.running import eventually


@pytest.fixture
def kafka(any_kafka: Kafka) -> Kafka:
    return any_kafka


@pytest.fixture
def topic(kafka: Kafka) -> str:
    """Return a topic of two partitions."""
    name = f"t-{uuid4().hex[:8]}"
    kafka.create_topics({name: 2})
    return name


def read(kafka: Kafka, topic: str, partition: int, start: int = 0, end: int | None = None) -> list[Message]:
    end = kafka.offset_bounds(topic)[1][partition] if end is None else end
    return [one for chunk in kafka.read(topic, partition, start, end, patience_s=180) for one in chunk]


def values(kafka: Kafka, topic: str, partition: int) -> list[bytes | None]:
    return [one.value() for one in read(kafka, topic, partition)]


def numbered(*numbers: int, partition: int = 0) -> Iterator[Record]:
    return (Record(b"%d" % number, partition) for number in numbers)


def test_a_created_topic_exists_with_its_partitions_and_is_not_created_twice(kafka: Kafka, topic: str) -> None:
    wait_until_available(kafka, 10)
    assert kafka.partition_counts()[topic] == 2
    assert kafka.offset_bounds(topic) == ((0, 0), (0, 0))
    kafka.create_topics({topic: 5, f"{topic}-other": 1}, validate_only=True)
    assert f"{topic}-other" not in kafka.partition_counts()
    kafka.create_topics({topic: 5, f"{topic}-other": 1})
    assert (kafka.partition_counts()[topic], kafka.partition_counts()[f"{topic}-other"]) == (2, 1)
    assert kafka.write_error(topic) is None
    for name, kept_ms in ((f"{topic}-week", 7 * DAY_MS), (f"{topic}-kept", -1)):
        kafka.create_topics({name: 1}, config={"retention.ms": str(kept_ms)})
    wait_until_available(kafka, 10)
    kept = [kafka.retention_ms(each) for each in (f"{topic}-week", f"{topic}-kept", f"{topic}-not-there")]
    assert kept == [7 * DAY_MS, -1, None]
    kafka.create_topics({f"{topic}-small": 1}, config={"max.message.bytes": "4000"})
    wait_until_available(kafka, 10)
    taken = [kafka.max_message_bytes(each) for each in (topic, f"{topic}-small", f"{topic}-not-there")]
    assert taken == [MAX_MESSAGE_BYTES, 4_000, None]


def test_a_missing_topic_cannot_be_found_read_or_written(kafka: Kafka) -> None:
    with pytest.raises(NotFound, match="no Kafka topic named 'nowhere'"):
        kafka.offset_bounds("nowhere")
    assert end_offsets(kafka, "nowhere") is None
    with pytest.raises((Refused, Unavailable)):
        list(kafka.read("nowhere", 0, 0, 1, patience_s=0.5))
    with pytest.raises(SendFailed, match="did not accept messages for 'nowhere'") as refused:
        kafka.send("nowhere", numbered(1), patience_s=5)
    assert kafka.name in refused.value.message
    assert kafka.delete_topics(["nowhere"]) == ()


def test_a_deleted_topic_is_gone_and_is_empty_when_recreated(kafka: Kafka, topic: str) -> None:
    kafka.send(topic, numbered(1, 2), patience_s=180)
    former = kafka.topic_id(topic)
    assert kafka.delete_topics([topic]) == ()
    eventually(lambda: topic not in kafka.partition_counts(), "it is gone")
    assert kafka.topic_id(topic) == ""
    kafka.create_topics({topic: 1})
    assert kafka.offset_bounds(topic) == ((0,), (0,))
    assert kafka.topic_id(topic) not in ("", former)


def test_a_topics_state_has_its_offsets_and_its_id(kafka: Kafka, topic: str) -> None:
    kafka.send(topic, numbered(1, 2), patience_s=180)
    state = kafka.topic_state(topic)
    assert state == ((0, 0), (2, 0), kafka.topic_id(topic))
    other = f"{topic}-other"
    kafka.create_topics({other: 1})
    assert kafka.topic_ids([topic, other, f"{topic}-nowhere"]) == {topic: state.id, other: kafka.topic_id(other)}
    assert kafka.topic_ids([]) == {}
    assert len({*kafka.topic_ids([topic, other]).values()}) == 2


def test_the_id_of_a_topic_costs_no_extra_request(kafka: Kafka, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if isinstance(kafka, MemoryKafka):
        assert kafka.topic_state(topic).id
        assert kafka.state_requests == 1
        return
    if isinstance(kafka, RemoteMemoryKafka):
        assert kafka.topic_state(topic).id == kafka.topic_id(topic)
        return
    assert kafka.topic_state(topic).id  # of a topic that was just made it may have to ask again
    mine = process_clients(kafka.properties)
    asked: list[str] = []

    class Counted:
        """A client that counts requests and forwards them to the brokers."""

        def __init__(self, admin: AdminClient) -> None:
            self.admin = admin

        def __getattr__(self, name: str) -> Any:
            asked.append(name)
            return getattr(self.admin, name)

    monkeypatch.setattr(mine, "_admin", Counted(mine.admin))
    assert kafka.topic_state(topic).id
    assert asked == ["describe_topics", "list_offsets", "list_offsets"]
    asked.clear()
    kafka.topic_ids([topic, f"{topic}-nowhere"])
    assert asked == ["describe_topics"]


def test_records_of_a_recreated_topic_are_not_taken_for_those_of_the_old_one(kafka: Kafka, topic: str) -> None:
    kafka.send(topic, numbered(1, 2), patience_s=180)
    former = kafka.topic_id(topic)
    about = {"patience_s": 30, "topic_id": former}
    assert [one.value() for chunk in kafka.read(topic, 0, 0, 2, **about) for one in chunk] == [b"1", b"2"]
    kafka.delete_topics([topic])
    eventually(lambda: topic not in kafka.partition_counts(), "it is gone")
    # It stays empty: a producer that has written to the former may end in a SystemError of the client library.
    kafka.create_topics({topic: 2})
    said = f"topic {topic!r} was deleted and created again since it was read: its id was {re.escape(former)}"
    with pytest.raises(AnotherTopic, match=said):
        list(kafka.read(topic, 0, 0, 2, **about))
    channels = KafkaChannels(kafka, patience_s=180)
    channels.check_topic(topic, (0, 0), "")
    with pytest.raises(AnotherTopic, match="deleted and created again since it was read"):
        channels.check_topic(topic, (2, 0), former)
    # Nor are its end offsets those of the former topic: the distance cannot be told.
    ends = EndOffsets(kafka, timeout_s=10)
    assert ends(Input(topic, (0, 0), topic_id=kafka.topic_id(topic))) == (0, 0)
    assert ends(Input(topic, (1, 0), topic_id=former)) is None
    assert ends.missing_reasons[topic].startswith(f"topic {topic!r} was deleted and created again")
    assert ends(Input("nowhere", (0,))) is None


def test_records_are_read_as_they_were_sent_from_an_offset_on(kafka: Kafka, topic: str) -> None:
    headers = [("a", b"1"), ("a", None), ("b", b"")]
    ends = kafka.send(topic, [Record(b"v", 1, b"k", headers, 1_234), *numbered(1, 2, partition=1)], patience_s=180)
    assert ends == {1: 3}
    assert kafka.offset_bounds(topic) == ((0, 0), (0, 3))
    first, *others = read(kafka, topic, 1)
    assert (first.topic(), first.partition(), first.offset()) == (topic, 1, 0)
    assert (first.key(), first.value(), first.headers(), first.timestamp()) == (b"k", b"v", headers, (1, 1_234))
    assert [(one.key(), one.value(), one.headers()) for one in others] == [(None, b"1", None), (None, b"2", None)]
    assert [one.offset() for one in read(kafka, topic, 1, 1, 2)] == [1]
    assert read(kafka, topic, 1, 2, 2) == []


def test_a_record_without_a_value_is_read_and_equal_keys_go_to_the_same_partition(kafka: Kafka, topic: str) -> None:
    ends = kafka.send(topic, [Record(None, key=b"k")] * 4, patience_s=180)
    ((partition, end),) = ends.items()
    assert end == 4
    assert values(kafka, topic, partition) == [None] * 4


def test_the_offset_for_a_time_is_the_first_record_at_or_after_it(kafka: Kafka, topic: str) -> None:
    kafka.send(topic, [Record(b"x", 0, time_ms=at) for at in (1_000, 3_000, 2_000)], patience_s=180)
    assert kafka.offsets_for_times(topic, (0, 0)) == (0, -1)
    assert kafka.offsets_for_times(topic, (1_001, 1)) == (1, -1)
    assert kafka.offsets_for_times(topic, (3_001, 1)) == (-1, -1)


def test_a_range_with_deleted_records_is_refused_unless_deletions_are_accepted(kafka: Kafka, topic: str) -> None:
    kafka.send(topic, numbered(*range(6)), patience_s=180)
    kafka.delete_records(topic, 4)
    eventually(lambda: kafka.offset_bounds(topic) == ((4, 0), (6, 0)), "they are deleted")
    with pytest.raises(Gone, match=rf"offsets 1 to 3 of {topic}\[0\] are gone from Kafka"):
        read(kafka, topic, 0, 1)
    with pytest.raises(Gone, match="offsets 1 to 1 of"):
        read(kafka, topic, 0, 1, 2)
    gone: list[Gone] = []
    found = [
        one.offset() for chunk in kafka.read(topic, 0, 1, 6, patience_s=180, deletion_errors=gone) for one in chunk
    ]
    assert (found, len(gone)) == ([4, 5], 1)
    assert [one.offset() for one in read(kafka, topic, 0, 4)] == [4, 5]
    kafka.delete_records("nowhere", 1)


def read_together(kafka: Kafka, topic: str, parts: list[Range], **more: Any) -> dict[int, list[int]]:
    """Return the offsets read from each partition, in the order of arrival."""
    found: dict[int, list[int]] = {part.partition: [] for part in parts}
    for chunk in kafka.read_ranges(topic, parts, patience_s=180, **more):
        for run in chunk:
            assert {each.partition() for each in run} == {run[0].partition()}
            found[run[0].partition()] += [each.offset() for each in run]
    return found


def test_ranges_of_many_partitions_are_read_together_completely_and_in_order(kafka: Kafka, topic: str) -> None:
    name = f"{topic}-wide"
    kafka.create_topics({name: 40})
    kafka.send(name, [Record(b"%d" % n, number) for n in range(20) for number in range(40)], patience_s=180)
    parts = [Range(number, number % 3, 20 - number % 5) for number in range(40)]
    assert read_together(kafka, name, parts) == {part.partition: [*range(part.first, part.last)] for part in parts}
    # Other partitions next, and some of the same from elsewhere.
    parts = [Range(7, 0, 20), Range(3, 19, 20), Range(39, 5, 5)]
    assert read_together(kafka, name, parts) == {7: [*range(20)], 3: [19], 39: []}
    assert read_together(kafka, name, []) == {}


def test_if_deletions_are_accepted_each_range_starts_at_its_first_existing_record(kafka: Kafka, topic: str) -> None:
    kafka.send(topic, [*numbered(*range(6)), *numbered(*range(6), partition=1)], patience_s=180)
    kafka.delete_records(topic, 4, 1)
    eventually(lambda: kafka.offset_bounds(topic) == ((0, 4), (6, 6)), "they are deleted")
    parts = [Range(0, 0, 6), Range(1, 1, 6)]
    with pytest.raises(Gone, match=rf"offsets 1 to 3 of {topic}\[1\] are gone from Kafka"):
        read_together(kafka, topic, parts)
    gone: dict[int, list[Gone]] = {0: [], 1: []}
    assert read_together(kafka, topic, parts, deletion_errors=gone) == {0: [*range(6)], 1: [4, 5]}
    assert [len(errors) for errors in gone.values()] == [0, 1]
    gone[1].clear()
    assert read_together(kafka, topic, [Range(0, 5, 6), Range(1, 0, 3)], deletion_errors=gone) == {0: [5], 1: []}
    assert len(gone[1]) == 1


def opened(kafka: Kafka, topic: str) -> tuple[TransactionalProducer, tuple[int, str] | None]:
    """Return an open producer and its stored position, once the broker has coordinators."""
    made = kafka.transactional_producer(TransactionSettings(topic, f"group-{topic}", f"{topic}-source", topic, 30))
    found: list[tuple[int, str] | None] = []

    def answers() -> bool:
        with suppress(TransactionFailed):
            found.append(made.open())
        return bool(found)

    eventually(answers, "the broker answers")
    return made, found[0]


def published(kafka: Kafka, topic: str) -> list[bytes | None]:
    return sorted((one for partition in (0, 1) for one in values(kafka, topic, partition)), key=str)


@pytest.fixture
def target(kafka: Kafka, topic: str) -> str:
    """Return a topic to publish to. Also creates the topic to which positions refer."""
    kafka.create_topics({f"{topic}-source": 1})
    return topic


def test_records_of_a_transaction_become_visible_together_with_its_position(kafka: Kafka, target: str) -> None:
    mine, at = opened(kafka, target)
    with closing(mine):
        assert at is None
        mine.begin()
        mine.write([b"k", b"k"], [b"1", None], [[("h", b"x")], []])
        assert published(kafka, target) == []
        mine.commit(7, "first")
        eventually(lambda: len(published(kafka, target)) == 2, "they are there")
        mine.begin()
        mine.write([b"k"], [b"3"])
        mine.commit(9, "second")
        eventually(lambda: len(published(kafka, target)) == 3, "they are there")
        (partition,) = (number for number in (0, 1) if values(kafka, target, number))
        found = read(kafka, target, partition)
        assert [(one.value(), one.headers()) for one in found] == [(b"1", [("h", b"x")]), (None, None), (b"3", None)]
        # The mark of each transaction takes an offset, which readers pass over.
        assert [one.offset() for one in found] == [0, 1, 3]
        assert kafka.offset_bounds(target)[1][partition] == 5
        kafka.send(target, numbered(1, 2, partition=1 - partition), patience_s=180)
        parts = [Range(partition, 0, 5), Range(1 - partition, 0, 2)]
        assert read_together(kafka, target, parts) == {partition: [0, 1, 3], 1 - partition: [0, 1]}
    mine, at = opened(kafka, target)
    with closing(mine):
        assert at == (9, "second")


def test_a_new_producer_with_the_same_id_fences_the_old_one_and_aborts_its_transaction(
    kafka: Kafka, target: str
) -> None:
    old, _ = opened(kafka, target)
    with closing(old):
        old.begin()
        old.write([b"k"], [b"old"])
        new, at = opened(kafka, target)
        with closing(new):
            assert at is None
            with pytest.raises(ProducerFenced):
                old.commit(1, "old")
            new.begin()
            new.write([b"k"], [b"new"])
            new.commit(1, "new")
            eventually(lambda: published(kafka, target) == [b"new"], "it is there")
            assert new.open() == (1, "new")
        with pytest.raises(TransactionFailed):
            new.begin()


def test_a_transaction_without_records_only_moves_the_position(kafka: Kafka, target: str) -> None:
    mine, _ = opened(kafka, target)
    with closing(mine):
        mine.begin()
        mine.commit(3, "x")
        assert mine.open() == (3, "x")
    assert published(kafka, target) == []


def test_a_deleted_group_has_no_position_and_its_offsets_can_be_set(kafka: Kafka, target: str) -> None:
    kafka.commit_offsets(f"group-{target}", {f"{target}-source": (4,)})
    mine, at = opened(kafka, target)
    mine.close()
    assert at == (4, "")
    kafka.delete_groups([f"group-{target}", "no-such-group"])
    mine, at = opened(kafka, target)
    mine.close()
    assert at is None
