"""A `read_committed` reader of a published topic."""

from collections.abc import Iterator

from slackwater.pipeline.kafka.protocol import Kafka, Message


def committed(kafka: Kafka, topic: str) -> Iterator[Message]:
    """Yield all records of a topic that a `read_committed` consumer gets, partition by partition."""
    starts, ends = kafka.offset_bounds(topic)
    for partition, (start, end) in enumerate(zip(starts, ends, strict=True)):
        for messages in kafka.read(topic, partition, start, end, patience_s=60):
            yield from messages
