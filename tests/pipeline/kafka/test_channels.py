"""Kafka requests made by verification and by capturing in-flight records."""

from dataclasses import replace
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pytest
from slackwater.errors import Gone, NotFound
from slackwater.pipeline.kafka.channels import KafkaChannels
from slackwater.pipeline.kafka.memory import MemoryKafka
from slackwater.pipeline.kafka.messages import marker_header, send_messages, split_into_messages
from slackwater.snapshot.cut.in_flight import InFlight


def test_markers_are_distinguished_from_other_messages_and_missing_offsets(memory_kafka: MemoryKafka) -> None:
    topic = f"markers-{uuid4().hex[:8]}"
    memory_kafka.create_topics({topic: 1})
    for header in (b"attempt-1", marker_header("good")):
        send_messages(memory_kafka, topic, [(0, b"")], header, patience_s=180)
    channels = KafkaChannels(memory_kafka, patience_s=180)
    assert [channels.marker_at(topic, 0, offset) for offset in (0, 1, 2)] == ["", "good", None]
    assert channels.marker_at(topic, 1, 0) is None
    with pytest.raises(NotFound):
        channels.marker_at("no-such-topic", 0, 0)


def test_deleted_offsets_are_an_error_only_if_they_had_committed_rows(
    memory_kafka: MemoryKafka,
) -> None:
    topic = f"lossy-{uuid4().hex[:8]}"
    memory_kafka.create_topics({topic: 1})
    for header, numbers in ((b"dead", [0]), (b"ours", [1, 2]), (b"ours", [3])):
        messages = list(
            split_into_messages(pa.table({"n": pa.array(numbers, pa.int64())}), np.zeros(len(numbers), np.int32))
        )
        send_messages(memory_kafka, topic, messages, header, patience_s=180)
    flight = InFlight("c", topic, "up", "down", (0,), (3,), ("ours",), 3, (3,), 0, 2, "n long")

    def read(what: InFlight) -> list[int]:
        return [n for table in KafkaChannels(memory_kafka, patience_s=180).read(what) for n in table["n"].to_pylist()]

    assert read(flight) == [1, 2, 3]
    memory_kafka.delete_records(topic, 1)
    assert read(flight) == [1, 2, 3], "nobody misses what a dead attempt left"
    memory_kafka.delete_records(topic, 2)
    channels = KafkaChannels(memory_kafka)
    assert (channels.starts(topic), channels.starts("no-such-topic")) == ((2,), None)
    for what in (flight, replace(flight, counts=())):
        with pytest.raises(Gone, match=rf"offsets 0 to 1 of {topic}\[0\] are gone from Kafka") as gone:
            read(what)
        assert "a moment whose records Kafka still has" in gone.value.hint
        assert "accept-loss" not in gone.value.hint
    memory_kafka.delete_records(topic, 3)
    with pytest.raises(Gone, match=rf"offsets 0 to 2 of {topic}\[0\] are gone from Kafka"):
        read(flight)
    assert read(replace(flight, attempts=(), counts=(0,))) == []
