"""Kafka's records: whole ranges in, whole batches of messages out."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka import Message as Message

from ...errors import Gone, Refused, Unavailable
from .clients import GONE, POLL_S, Kafka, clients, lacking, patience_with, server
from .patience import Patience

_CHUNK = 10_000
_STAMP = pa.timestamp("us", "UTC")
_FATAL = (
    KafkaError._AUTHENTICATION,
    KafkaError.SASL_AUTHENTICATION_FAILED,
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
)


def read_range(
    kafka: Kafka, topic: str, partition: int, start: int, end: int, *, patience_s: float, gone: list[Gone] | None = None
) -> Iterator[Sequence[Message]]:
    """The messages at offsets start to end - 1 of one partition, in chunks; gaps in the offsets are passed over.

    Where the first of them are gone, the rest is read if there is a list `gone`, to which the error is added: what is
    gone may be what failed attempts left, or markers, which nobody misses.

    Raises:
        Gone: The offsets are no longer there.
        Refused: They cannot be read, or we may not read them.
        Unavailable: The broker has been away for longer than `patience_s`.
    """
    with clients(kafka).consumer() as consumer:
        yield from _Range(consumer, kafka, topic, partition, end, gone).read(start, patience_s)


def message_at(
    kafka: Kafka, topic: str, partition: int, offset: int, *, patience_s: float
) -> tuple[bytes | None, bytes | None, int, tuple[tuple[str, bytes | None], ...]]:
    """Key, value, timestamp in ms and headers of one message. Raises as `read_range` does."""
    for (message,) in read_range(kafka, topic, partition, offset, offset + 1, patience_s=patience_s):
        headers = tuple((name, value) for name, value in message.headers() or ())
        return message.key(), message.value(), message.timestamp()[1], headers
    raise Gone(f"there is no message at {topic}[{partition}]@{offset} any more")


def topic_columns(messages: Sequence[Message], needed: Collection[str] | None = None) -> list[pa.Array]:
    """The columns of Structured Streaming's Kafka source, in its order, a row for each message of one partition.

    Those that are not among the `needed`, where these are said, are null: what they take is a third of reading.
    """
    count = len(messages)
    is_timed = needed is None or "timestamp" in needed or "timestampType" in needed
    stamps = [message.timestamp() for message in messages] if is_timed else []
    made: dict[str, tuple[pa.DataType, Callable[[], pa.Array]]] = {
        "key": (pa.binary(), lambda: pa.array([message.key() for message in messages], pa.binary())),
        "value": (pa.binary(), lambda: pa.array([message.value() for message in messages], pa.binary())),
        "topic": (pa.string(), lambda: pa.repeat(pa.scalar(messages[0].topic(), pa.string()), count)),
        "partition": (pa.int32(), lambda: pa.repeat(pa.scalar(messages[0].partition(), pa.int32()), count)),
        "offset": (pa.int64(), lambda: pa.array([message.offset() for message in messages], pa.int64())),
        "timestamp": (_STAMP, lambda: pa.array([stamp for _, stamp in stamps], pa.timestamp("ms", "UTC")).cast(_STAMP)),
        # librdkafka counts the kinds from "not available" = 0, Kafka and Spark from CreateTime = 0.
        "timestampType": (pa.int32(), lambda: pa.array([kind - 1 for kind, _ in stamps], pa.int32())),
    }
    return [
        make() if needed is None or name in needed else pa.nulls(count, kind) for name, (kind, make) in made.items()
    ]


@dataclass(frozen=True, slots=True)
class _Range:
    """What a consumer reads of one partition."""

    consumer: Consumer
    kafka: Kafka
    topic: str
    partition: int
    end: int
    gone: list[Gone] | None

    def read(self, at: int, patience_s: float) -> Iterator[list[Message]]:
        """Messages from offset `at` on."""
        if at >= self.end:
            return
        self.consumer.assign([TopicPartition(self.topic, self.partition, at)])
        patience = patience_with(self.kafka, patience_s)
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
        last = (min(first, self.end) if first > at else self.end) - 1
        gone = Gone(
            f"offsets {at} to {last} of {self.topic}[{self.partition}] are gone from Kafka",
            hint="choose a moment whose records Kafka still has, or a snapshot, which keeps those in flight",
        )
        if self.gone is None or first <= at:
            raise gone
        self.gone.append(gone)
        if first < self.end:
            self.consumer.assign([TopicPartition(self.topic, self.partition, first)])
        return first


def flush(kafka: Kafka, producer: Producer, patience_s: float) -> None:
    """Wait until the broker has answered for all that was produced. Raises `Unavailable` once it takes too long."""
    patience = patience_with(kafka, patience_s + 5)
    while producer.flush(1) > 0:
        patience.waited()
    patience.answered()


def send(
    kafka: Kafka, topic: str, messages: Sequence[tuple[int, bytes]], header: bytes, *, patience_s: float
) -> dict[int, int]:
    """Write messages, (partition, value) each, durably and in order.

    Returns:
        The next offset after the last message written, by partition.

    Raises:
        Refused: We may not write there.
        Unavailable: The broker has been away for longer than `patience_s`; nobody will read what did get written,
            as no manifest will name this attempt.
    """
    producer = clients(kafka).producer(patience_s)
    ends: dict[int, int] = {}
    failed: list[KafkaError] = []

    def delivered(error: KafkaError | None, message: Message) -> None:
        if error is not None:
            failed.append(error)
        else:
            ends[message.partition()] = max(ends.get(message.partition(), 0), message.offset() + 1)

    try:
        for partition, value in messages:
            producer.produce(topic, value, partition=partition, headers=[("slackwater", header)], on_delivery=delivered)
            producer.poll(0)
        flush(kafka, producer, patience_s)
    except (KafkaException, SystemError) as error:
        # A producer that may never write again says so where it can: also while it calls us back.
        cause = error if isinstance(error, KafkaException) else error.__cause__ or error.__context__
        if not isinstance(cause, KafkaException):
            raise
        failed.insert(0, cause.args[0])
    if failed:
        clients(kafka).discard_producer(patience_s)
        away = Unavailable(f"{server(kafka)} did not take messages for {topic!r}: {failed[0].str()}")
        raise lacking(kafka, failed[0], "Write", topic) or away
    return ends
