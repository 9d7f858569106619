"""Kafka as slackwater needs it: topics, their offsets, whole ranges in, whole batches of messages out.

Clients are kept for the life of a process (a new consumer takes 150 ms and more until its first record); Spark's
Python workers are reused, so that their clients are too.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from confluent_kafka import (
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from ..store.errors import NotFound, Refused, Unavailable
from .outage import Patience

__all__ = ["commit_offsets", "create_topic", "end_offsets", "offsets", "read_range", "send", "topics"]

Kafka = Mapping[str, str]
"""librdkafka client properties; `bootstrap.servers` at least."""

_CHUNK = 10_000
_POLL_S = 0.25

_READING = {
    "group.id": "slackwater",  # asked for by librdkafka; never joined, nothing is committed to it
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "enable.partition.eof": True,
    "auto.offset.reset": "error",
    "fetch.wait.max.ms": 50,
    # What is fetched ahead lies in the worker's memory, with half a kilobyte around each message. So little is, in
    # small pieces, and the fetcher looks again soon: its default is a second, in which a faster reader would wait.
    "fetch.message.max.bytes": 1 << 20,
    "queued.min.messages": 20_000,
    "queued.max.messages.kbytes": 8 << 10,
    "fetch.queue.backoff.ms": 5,
}

# By process, as a forked child must not use its parent's clients.
_clients: dict[tuple[object, ...], Any] = {}

_GONE = (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION)
_PASSING = (
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.FENCED_LEADER_EPOCH,
    KafkaError.UNKNOWN_LEADER_EPOCH,
)
_FATAL = (
    KafkaError._AUTHENTICATION,
    KafkaError.SASL_AUTHENTICATION_FAILED,
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    KafkaError.GROUP_AUTHORIZATION_FAILED,
)


def _properties(kafka: Kafka, **ours: object) -> dict[str, object]:
    # librdkafka would write each lost connection to stderr; Patience says it once, in words.
    return {"log_level": 0, "error_cb": _ignore, **kafka, **ours}


def _ignore(_error: KafkaError) -> None:
    return None


def _server(kafka: Kafka) -> str:
    return f"Kafka at {kafka['bootstrap.servers']}"


def _kept(kind: str, kafka: Kafka, *more: object) -> tuple[object, ...]:
    return (os.getpid(), kind, tuple(sorted(kafka.items())), *more)


def _admin(kafka: Kafka) -> AdminClient:
    key = _kept("admin", kafka)
    if key not in _clients:
        _clients[key] = AdminClient(_properties(kafka))
    return _clients[key]


def topics(kafka: Kafka, *, timeout_s: float = 10) -> dict[str, int]:
    """Number of partitions by name of topic. Raises `Unavailable`."""
    try:
        listed = _admin(kafka).list_topics(timeout=timeout_s).topics
    except KafkaException as error:
        raise _unavailable(kafka, error) from None
    return {name: len(meta.partitions) for name, meta in listed.items()}


def offsets(kafka: Kafka, topic: str, *, timeout_s: float = 10) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Earliest and end offset of each partition, the end as a committed reader sees it.

    Raises:
        NotFound: There is no such topic.
        Unavailable: The broker did not answer in time.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            return _offsets(kafka, topic, max(0.1, deadline - time.monotonic()))
        except KafkaException as error:
            # A topic made a moment ago, or a broker that starts, has no leaders yet.
            if error.args[0].code() not in _PASSING or time.monotonic() > deadline:
                raise _unavailable(kafka, error) from None
        time.sleep(_POLL_S)


def _offsets(kafka: Kafka, topic: str, timeout_s: float) -> tuple[tuple[int, ...], tuple[int, ...]]:
    client = _admin(kafka)
    meta = client.list_topics(topic, timeout=timeout_s).topics.get(topic)
    if meta is None or not meta.partitions or (meta.error is not None and meta.error.code() in _GONE):
        raise NotFound("Kafka topic", topic, (name for name in topics(kafka) if not name.startswith("__")))
    partitions = [TopicPartition(topic, partition) for partition in sorted(meta.partitions)]

    def ask(spec: OffsetSpec) -> tuple[int, ...]:
        asked = client.list_offsets(
            dict.fromkeys(partitions, spec),
            isolation_level=IsolationLevel.READ_COMMITTED,
            request_timeout=timeout_s,
        )
        return tuple(asked[partition].result().offset for partition in partitions)

    return ask(OffsetSpec.earliest()), ask(OffsetSpec.latest())


def end_offsets(kafka: Kafka, topic: str, *, timeout_s: float = 10) -> tuple[int, ...] | None:
    """End offset of each partition, or None when there is no such topic. Raises `Unavailable`."""
    try:
        return offsets(kafka, topic, timeout_s=timeout_s)[1]
    except NotFound:
        return None


def create_topic(kafka: Kafka, topic: str, partitions: int, *, timeout_s: float = 30) -> None:
    """Make the topic if there is none; one that is there stays as it is.

    Raises:
        Refused: The broker does not allow it.
        Unavailable: The broker did not answer in time.
    """
    if topic in topics(kafka, timeout_s=timeout_s):
        return
    # Replication as the brokers' default says (-1); one Arrow message may hold up to a megabyte of rows.
    new = NewTopic(topic, num_partitions=partitions, replication_factor=-1, config={"max.message.bytes": "8388608"})
    try:
        _admin(kafka).create_topics([new], request_timeout=timeout_s)[topic].result()
    except KafkaException as error:
        code = error.args[0].code()
        if code == KafkaError.TOPIC_ALREADY_EXISTS:
            return
        if code in (KafkaError._TRANSPORT, KafkaError._TIMED_OUT, KafkaError.REQUEST_TIMED_OUT):
            raise _unavailable(kafka, error) from None
        raise Refused(f"{_server(kafka)} refuses to create topic {topic!r}: {error.args[0].str()}") from None
    # Brokers hear of it a little later than its maker, and whoever asks them meanwhile hears that there is none.
    deadline = time.monotonic() + timeout_s
    while topic not in topics(kafka, timeout_s=timeout_s) and time.monotonic() < deadline:
        time.sleep(_POLL_S)


def read_range(
    kafka: Kafka, topic: str, partition: int, start: int, end: int, *, patience_s: float
) -> Iterator[Sequence[Message]]:
    """The messages at offsets start to end - 1 of one partition, in chunks; gaps in the offsets are passed over.

    Raises:
        Refused: The offsets are no longer there.
        Unavailable: The broker has been away for longer than `patience_s`.
    """
    with _consumer(kafka) as consumer:
        yield from _Range(consumer, _server(kafka), topic, partition, end).read(start, patience_s)


@contextmanager
def _consumer(kafka: Kafka) -> Iterator[Consumer]:
    """A consumer that nobody else reads with, and that fetches nothing once it is given back.

    What it would fetch ahead another worker reads, more often than not; and a fetch that waits at the end of one
    partition holds up the first of the next.
    """
    idle: list[Consumer] = _clients.setdefault(_kept("consumers", kafka), [])
    consumer = idle.pop() if idle else Consumer(_properties(kafka, **_READING))
    try:
        yield consumer
    finally:
        consumer.unassign()
        idle.append(consumer)


@dataclass(frozen=True, slots=True)
class _Range:
    """What a consumer reads of one partition."""

    consumer: Consumer
    server: str
    topic: str
    partition: int
    end: int

    def read(self, at: int, patience_s: float) -> Iterator[list[Message]]:
        """Messages from offset `at` on."""
        if at >= self.end:
            return
        self.consumer.assign([TopicPartition(self.topic, self.partition, at)])
        patience = Patience(self.server, patience_s)
        while at < self.end:
            chunk = self.consumer.consume(min(_CHUNK, self.end - at), timeout=_POLL_S)
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
                raise Refused(
                    f"offsets {at} to {self.end - 1} of {self.topic}[{self.partition}] are gone from Kafka",
                    hint="they outlived the topic's retention; --accept-loss goes on without them",
                )
            elif error.code() in _GONE or error.code() in _FATAL:
                raise Refused(f"{self.topic}[{self.partition}] cannot be read: {error.str()}")
            else:
                patience.waited(error.str())
        messages = [message for message in chunk if message.error() is None] if errors else chunk
        if messages:
            at = messages[-1].offset() + 1
        if at > self.end:
            messages = [message for message in messages if message.offset() < self.end]
        return messages, at


def send(
    kafka: Kafka, topic: str, messages: Sequence[tuple[int, bytes]], header: bytes, *, patience_s: float
) -> dict[int, int]:
    """Write messages, (partition, value) each, durably and in order.

    Returns:
        The next offset after the last message written, by partition.

    Raises:
        Unavailable: The broker has been away for longer than `patience_s`; nobody will read what did get written,
            as no manifest will name this attempt.
    """
    key = _kept("producer", kafka, patience_s)
    if key not in _clients:
        _clients[key] = Producer(
            _properties(
                kafka,
                **{
                    "enable.idempotence": True,
                    "linger.ms": 0,
                    "message.max.bytes": 8 << 20,
                    "message.timeout.ms": int(patience_s * 1000),
                },
            )
        )
    producer: Producer = _clients[key]
    ends: dict[int, int] = {}
    failed: list[KafkaError] = []

    def delivered(error: KafkaError | None, message: Message) -> None:
        if error is not None:
            failed.append(error)
        else:
            ends[message.partition()] = max(ends.get(message.partition(), 0), message.offset() + 1)

    for partition, value in messages:
        producer.produce(topic, value, partition=partition, headers=[("slackwater", header)], on_delivery=delivered)
        producer.poll(0)
    patience = Patience(_server(kafka), patience_s + 5)
    while producer.flush(1) > 0:
        patience.waited()
    patience.answered()
    if failed:
        _clients.pop(key, None)
        raise Unavailable(f"{_server(kafka)} did not take messages for {topic!r}: {failed[0].str()}")
    return ends


def commit_offsets(kafka: Kafka, group: str, positions: Mapping[str, tuple[int, ...]], *, wait: bool) -> None:
    """Set a consumer group's offsets, by topic and partition; nobody is a member of the group.

    Through a consumer: the admin client's call for it ends the whole process when a broker goes away in the middle
    (an assertion in librdkafka).

    Raises:
        KafkaException: Kafka refuses it, or does not answer. Without `wait` nobody is told.
    """
    key = _kept("group", kafka, group)
    if key not in _clients:
        _clients[key] = Consumer(_properties(kafka, **{"group.id": group, "enable.auto.commit": False}))
    consumer: Consumer = _clients[key]
    places = [
        TopicPartition(topic, partition, offset)
        for topic, offsets in positions.items()
        for partition, offset in enumerate(offsets)
    ]
    consumer.commit(offsets=places, asynchronous=not wait)


def wait_for(kafka: Kafka, patience_s: float) -> None:
    """Return once the broker answers. Raises `Unavailable` after `patience_s`."""
    patience = Patience(_server(kafka), patience_s)
    while True:
        try:
            topics(kafka, timeout_s=2)
        except Unavailable as error:
            patience.waited(error.message)
            time.sleep(0.2)
        else:
            patience.answered()
            return


def _unavailable(kafka: Kafka, error: KafkaException) -> Unavailable:
    return Unavailable(
        f"{_server(kafka)} does not answer: {error.args[0].str()}",
        hint="is it running, and is the address right? `slackwater dev up` starts one for development",
    )
