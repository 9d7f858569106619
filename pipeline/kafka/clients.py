"""Pools of Kafka clients, kept for the lifetime of a process, and reads of a partition's range.

A new consumer takes 150 ms or more to return its first record; Spark reuses its Python workers, and so their clients.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import cache, cached_property

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from ...common.silence import SILENT_S, address_of, on_silence, warn_of
from ...errors import Gone, Refused, Unavailable
from .protocol import MESSAGE_BYTES, SETTING, Patience, Properties, gone_error

POLL_S = 0.25
QUIET: dict[str, object] = {"log_level": 0, "error_cb": lambda _error: None}
"""Properties that stop librdkafka from logging each lost connection to stderr; `Patience` reports an outage once."""
GONE = (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION)
_UNAUTHORISED = (KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.CLUSTER_AUTHORIZATION_FAILED)
_FATAL = (*GONE, *_UNAUTHORISED, KafkaError._AUTHENTICATION, KafkaError.SASL_AUTHENTICATION_FAILED)
_CHUNK = 10_000

_READING = {
    "group.id": "slackwater",  # required by librdkafka; never joined, no offsets are committed to it
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "enable.partition.eof": True,
    "auto.offset.reset": "error",
    "fetch.wait.max.ms": 50,
    # Prefetched messages cost the worker's memory, with an overhead of half a kilobyte each. So prefetch little, in
    # small fetches, and retry soon when the queue was full: after the default of a second, a fast reader would have to
    # wait.
    "fetch.message.max.bytes": 1 << 20,
    "queued.min.messages": 20_000,
    "queued.max.messages.kbytes": 8 << 10,
    "fetch.queue.backoff.ms": 5,
}


class Clients:
    """Kafka clients of one process with the same properties, each created on first use."""

    def __init__(self, kafka: Properties) -> None:
        self._properties: dict[str, object] = {**QUIET, **kafka}
        self._producers: dict[float, Producer] = {}
        self._idle: list[Consumer] = []
        self._groups: dict[str, Consumer] = {}

    @cached_property
    def admin(self) -> AdminClient:
        return AdminClient(self._properties)

    def producer(self, patience_s: float) -> Producer:
        """Return an idempotent producer whose delivery timeout is `patience_s`."""
        if patience_s not in self._producers:
            ours = {"enable.idempotence": True, "linger.ms": 0, "message.max.bytes": MESSAGE_BYTES}
            ours["message.timeout.ms"] = int(patience_s * 1000)
            self._producers[patience_s] = Producer({**self._properties, **ours})
        return self._producers[patience_s]

    def discard_producer(self, patience_s: float) -> None:
        """Drop a producer after an error, since an idempotent one may refuse all later writes."""
        self._producers.pop(patience_s, None)

    @contextmanager
    def consumer(self) -> Iterator[Consumer]:
        """Lend a consumer for exclusive use. A returned consumer has no assignment and fetches nothing.

        Records fetched ahead would usually be read by another worker, and a fetch that waits at the end of one
        partition delays the first fetch of the next.
        """
        try:
            consumer = self._idle.pop()
        except IndexError:  # every consumer is in use by another thread
            consumer = Consumer({**self._properties, **_READING})
        try:
            yield consumer
        finally:
            consumer.unassign()
            self._idle.append(consumer)

    def committer(self, group: str) -> Consumer:
        """Return a consumer that only commits a group's offsets. Raises `KafkaException` if not authorised."""
        if group not in self._groups:
            # Without the right Read on the group, `commit` and `close` would block forever.
            try:
                self.admin.describe_consumer_groups([group], request_timeout=3)[group].result()
            except KafkaException as error:
                if error.args[0].code() == KafkaError.GROUP_AUTHORIZATION_FAILED:
                    raise
            self._groups[group] = Consumer({**self._properties, "group.id": group, "enable.auto.commit": False})
        return self._groups[group]

    def close(self) -> None:
        for consumer in (*self._idle, *self._groups.values()):
            consumer.close()
        self._idle.clear()
        self._groups.clear()


def clients(kafka: Properties) -> Clients:
    """Return this process's clients with these properties. A forked child gets its own."""
    return _clients(os.getpid(), tuple(sorted(kafka.items())))


@cache
def _clients(pid: int, properties: tuple[tuple[str, str], ...]) -> Clients:
    new_clients = Clients(dict(properties))
    atexit.register(lambda: new_clients.close() if os.getpid() == pid else None)
    return new_clients


def server(kafka: Properties) -> str:
    """Return the name of the brokers for messages."""
    return f"Kafka at {kafka['bootstrap.servers']}"


def asking(kafka: Properties) -> AbstractContextManager[None]:
    """Warn if the brokers do not answer during the context, naming the setting with their address."""
    return on_silence(lambda: warn_of(f"{server(kafka)} has not answered for {SILENT_S:.0f} s", SETTING))


def unavailable(kafka: Properties, error: KafkaException) -> Unavailable:
    return Unavailable(
        f"{server(kafka)} does not answer: {error.args[0].str()}",
        hint=f"{address_of(SETTING)}; `slackwater dev up` starts one for development",
    )


def lacking(kafka: Properties, error: KafkaError | None, right: str, topic: str) -> Refused | None:
    """Return the error for a broker's answer that a right on a topic is missing; None for any other answer.

    The right is named as in Kafka's ACLs: `Describe`, `Read`, `Write` or `Create`.
    """
    if error is None or error.code() not in _UNAUTHORISED:
        return None
    return Refused(
        f"{server(kafka)} denies this user the right {right} on topic {topic!r}",
        hint=f"kafka-acls --bootstrap-server {kafka['bootstrap.servers']} --add --allow-principal User:NAME "
        f"--operation {right} --topic {topic}; docs/operating.md lists all rights that an app needs",
    )


def read_range(
    kafka: Properties, topic: str, partition: int, at: int, end: int, patience: Patience, gone: list[Gone] | None
) -> Iterator[Sequence[Message]]:
    """Yield messages of a range of one partition; implements `Kafka.read`."""
    position = TopicPartition(topic, partition, at)
    with clients(kafka).consumer() as consumer:
        if at < end:
            consumer.assign([position])
        while at < end:
            chunk = consumer.consume(min(_CHUNK, end - at), timeout=POLL_S)
            if not chunk:
                patience.waited()
            errors = [message for message in chunk if message.error() is not None]
            for message in errors:
                error = message.error()
                if error.code() == KafkaError._PARTITION_EOF:
                    at = max(at, message.offset())
                elif error.code() in (KafkaError.OFFSET_OUT_OF_RANGE, KafkaError._AUTO_OFFSET_RESET):
                    at = _skip_deleted(consumer, position, at, end, gone)
                elif error.code() in _FATAL:
                    refused = Refused(f"{topic}[{partition}] cannot be read: {error.str()}")
                    raise lacking(kafka, error, "Read", topic) or refused
                elif error.code() != KafkaError.GROUP_AUTHORIZATION_FAILED:
                    # librdkafka looks up the group's coordinator although the group is not used; reads work without it.
                    patience.waited(error.str())
            messages = [message for message in chunk if message.error() is None] if errors else chunk
            if messages:
                # An end-of-partition event in the same chunk may be further on, after transaction markers.
                at = max(at, messages[-1].offset() + 1)
            if at > end:
                messages = [message for message in messages if message.offset() < end]
            if messages:
                patience.answered()
                yield messages


def _skip_deleted(consumer: Consumer, position: TopicPartition, at: int, end: int, allowed: list[Gone] | None) -> int:
    """Assign the consumer to the first existing offset and return that; raise `Gone` if `allowed` is None."""
    try:
        first = int(consumer.get_watermark_offsets(position, timeout=10)[0])
    except KafkaException:
        first = at
    gone = gone_error(position.topic, position.partition, at, first, end)
    if allowed is None or first <= at:
        raise gone
    allowed.append(gone)
    if first < end:
        consumer.assign([TopicPartition(position.topic, position.partition, first)])
    return first
