"""What readers of a published topic see."""

from collections.abc import Iterator

from confluent_kafka import Message
from slackwater.pipeline.kafka import records, topics


def committed(bootstrap: str, topic: str) -> Iterator[Message]:
    """All that a `read_committed` reader of a topic gets, partition after partition."""
    kafka = {"bootstrap.servers": bootstrap}
    starts, ends = topics.offsets(kafka, topic)
    for partition, (start, end) in enumerate(zip(starts, ends, strict=True)):
        for messages in records.read_range(kafka, topic, partition, start, end, patience_s=60):
            yield from messages
