"""Reading a range of a partition with a consumer of librdkafka, whole batches of messages at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from ...errors import Gone, Refused
from .clients import GONE, POLL_S, clients, lacking
from .patience import Patience
from .protocol import Properties, gone_error

_CHUNK = 10_000
_FATAL = (
    KafkaError._AUTHENTICATION,
    KafkaError.SASL_AUTHENTICATION_FAILED,
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
)


def read_range(
    kafka: Properties, topic: str, partition: int, start: int, end: int, patience: Patience, gone: list[Gone] | None
) -> Iterator[Sequence[Message]]:
    """See `Kafka.read`."""
    with clients(kafka).consumer() as consumer:
        yield from _Range(consumer, kafka, topic, partition, end, gone).read(start, patience)


@dataclass(frozen=True, slots=True)
class _Range:
    """What a consumer reads of one partition."""

    consumer: Consumer
    kafka: Properties
    topic: str
    partition: int
    end: int
    gone: list[Gone] | None

    def read(self, at: int, patience: Patience) -> Iterator[list[Message]]:
        """Messages from offset `at` on."""
        if at >= self.end:
            return
        self.consumer.assign([TopicPartition(self.topic, self.partition, at)])
        while at < self.end:
            chunk = self.consumer.consume(min(_CHUNK, self.end - at), timeout=POLL_S)
            if not chunk:
                patience.waited()
                continue
            messages, at = self._sort_out(chunk, at, patience)
            if messages:
                patience.answered()
                yield messages

    def _sort_out(self, chunk: list[Message], at: int, patience: Patience) -> tuple[list[Message], int]:
        """Messages before the range's end, and the next offset."""
        errors = [message for message in chunk if message.error() is not None]
        for message in errors:
            error = message.error()
            if error.code() == KafkaError._PARTITION_EOF:
                at = max(at, message.offset())
            elif error.code() in (KafkaError.OFFSET_OUT_OF_RANGE, KafkaError._AUTO_OFFSET_RESET):
                at = self._behind_what_is_gone(at)
            elif error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED:
                # librdkafka looks for the group's coordinator unasked. Nobody joins the group, and records come in.
                continue
            elif error.code() in GONE or error.code() in _FATAL:
                refused = Refused(f"{self.topic}[{self.partition}] cannot be read: {error.str()}")
                raise lacking(self.kafka, error, "Read", self.topic) or refused
            else:
                patience.waited(error.str())
        messages = [message for message in chunk if message.error() is None] if errors else chunk
        if messages:
            # The end that came with them may lie further on: behind the marks of a transaction.
            at = max(at, messages[-1].offset() + 1)
        if at > self.end:
            messages = [message for message in messages if message.offset() < self.end]
        return messages, at

    def _behind_what_is_gone(self, at: int) -> int:
        """Go on at the first offset that is there, and return it; raise `Gone` where nobody allows for that."""
        place = TopicPartition(self.topic, self.partition)
        try:
            first = int(self.consumer.get_watermark_offsets(place, timeout=10)[0])
        except KafkaException:
            first = at
        gone = gone_error(self.topic, self.partition, at, first, self.end)
        if self.gone is None or first <= at:
            raise gone
        self.gone.append(gone)
        if first < self.end:
            self.consumer.assign([TopicPartition(self.topic, self.partition, first)])
        return first
