"""Kafka's clients, kept for the life of a process, and reading a range of a partition by one of them.

A new consumer takes 150 ms and more until its first record; Spark's Python workers, and so their clients, are reused.
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
from .patience import SETTING, Patience
from .protocol import MESSAGE_BYTES, Properties, gone_error

POLL_S = 0.25
QUIET: dict[str, object] = {"log_level": 0, "error_cb": lambda _error: None}
"""librdkafka would write each lost connection to stderr; Patience says it once, in words."""
GONE = (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION)
_UNAUTHORISED = (KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.CLUSTER_AUTHORIZATION_FAILED)
_FATAL = (*GONE, *_UNAUTHORISED, KafkaError._AUTHENTICATION, KafkaError.SASL_AUTHENTICATION_FAILED)
_CHUNK = 10_000

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


class Clients:
    """The clients of one process with the same properties, each made when it is first asked for."""

    def __init__(self, kafka: Properties) -> None:
        self._properties: dict[str, object] = {**QUIET, **kafka}
        self._producers: dict[float, Producer] = {}
        self._idle: list[Consumer] = []
        self._groups: dict[str, Consumer] = {}

    @cached_property
    def admin(self) -> AdminClient:
        """For topics, offsets and groups."""
        return AdminClient(self._properties)

    def producer(self, patience_s: float) -> Producer:
        """An idempotent producer that gives a message up after so many seconds."""
        if patience_s not in self._producers:
            ours = {"enable.idempotence": True, "linger.ms": 0, "message.max.bytes": MESSAGE_BYTES}
            ours["message.timeout.ms"] = int(patience_s * 1000)
            self._producers[patience_s] = Producer({**self._properties, **ours})
        return self._producers[patience_s]

    def discard_producer(self, patience_s: float) -> None:
        """Make a new one the next time: after an error, an idempotent producer may refuse to write ever again."""
        self._producers.pop(patience_s, None)

    @contextmanager
    def consumer(self) -> Iterator[Consumer]:
        """A consumer that nobody else reads with, and that fetches nothing once it is given back.

        What it would fetch ahead another worker reads, more often than not; and a fetch that waits at the end of one
        partition holds up the first of the next.
        """
        try:
            consumer = self._idle.pop()
        except IndexError:  # several threads read
            consumer = Consumer({**self._properties, **_READING})
        try:
            yield consumer
        finally:
            consumer.unassign()
            self._idle.append(consumer)

    def committer(self, group: str) -> Consumer:
        """A consumer that commits a group's offsets, and reads nothing. Raises `KafkaException` for want of a right."""
        if group not in self._groups:
            # Without that right a commit never ends, nor does the consumer's end.
            try:
                self.admin.describe_consumer_groups([group], request_timeout=3)[group].result()
            except KafkaException as error:
                if error.args[0].code() == KafkaError.GROUP_AUTHORIZATION_FAILED:
                    raise
            self._groups[group] = Consumer({**self._properties, "group.id": group, "enable.auto.commit": False})
        return self._groups[group]

    def close(self) -> None:
        """End the consumers, and with them their threads."""
        for consumer in (*self._idle, *self._groups.values()):
            consumer.close()
        self._idle.clear()
        self._groups.clear()


def clients(kafka: Properties) -> Clients:
    """This process's clients with these properties: a forked child must not use its parent's."""
    return _clients(os.getpid(), tuple(sorted(kafka.items())))


@cache
def _clients(pid: int, properties: tuple[tuple[str, str], ...]) -> Clients:
    """Closed while there is an interpreter to call back."""
    made = Clients(dict(properties))
    atexit.register(lambda: made.close() if os.getpid() == pid else None)
    return made


def server(kafka: Properties) -> str:
    """How messages name the brokers."""
    return f"Kafka at {kafka['bootstrap.servers']}"


def asking(kafka: Properties) -> AbstractContextManager[None]:
    """While the brokers are asked something: if they are silent, people hear early where their address is from."""
    return on_silence(lambda: warn_of(f"{server(kafka)} has not answered for {SILENT_S:.0f} s", SETTING))


def unavailable(kafka: Properties, error: KafkaException) -> Unavailable:
    """The error for brokers that do not answer."""
    return Unavailable(
        f"{server(kafka)} does not answer: {error.args[0].str()}",
        hint=f"{address_of(SETTING)}; `slackwater dev up` starts one for development",
    )


def lacking(kafka: Properties, error: KafkaError | None, right: str, topic: str) -> Refused | None:
    """The refusal for a broker's answer that a right on a topic is missing; None for any other answer.

    The right is in the words of Kafka's ACLs: `Describe`, `Read`, `Write` or `Create`.
    """
    if error is None or error.code() not in _UNAUTHORISED:
        return None
    return Refused(
        f"{server(kafka)} does not let this user do what it takes: the right {right} on topic {topic!r} is missing",
        hint=f"kafka-acls --bootstrap-server {kafka['bootstrap.servers']} --add --allow-principal User:NAME "
        f"--operation {right} --topic {topic}; docs/operating.md has all the rights that an app needs",
    )


def read_range(
    kafka: Properties, topic: str, partition: int, at: int, end: int, patience: Patience, gone: list[Gone] | None
) -> Iterator[Sequence[Message]]:
    """See `Kafka.read`."""
    place = TopicPartition(topic, partition, at)
    with clients(kafka).consumer() as consumer:
        if at < end:
            consumer.assign([place])
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
                    at = _behind_what_is_gone(consumer, place, at, end, gone)
                elif error.code() in _FATAL:
                    refused = Refused(f"{topic}[{partition}] cannot be read: {error.str()}")
                    raise lacking(kafka, error, "Read", topic) or refused
                elif error.code() != KafkaError.GROUP_AUTHORIZATION_FAILED:
                    # librdkafka looks for that group's coordinator unasked. Nobody joins it, and records come in.
                    patience.waited(error.str())
            messages = [message for message in chunk if message.error() is None] if errors else chunk
            if messages:
                # The end that came with them may lie further on: behind the marks of a transaction.
                at = max(at, messages[-1].offset() + 1)
            if at > end:
                messages = [message for message in messages if message.offset() < end]
            if messages:
                patience.answered()
                yield messages


def _behind_what_is_gone(
    consumer: Consumer, place: TopicPartition, at: int, end: int, allowed: list[Gone] | None
) -> int:
    """Go on at the first offset that is there, and return it; raise `Gone` where nobody allows for that."""
    try:
        first = int(consumer.get_watermark_offsets(place, timeout=10)[0])
    except KafkaException:
        first = at
    gone = gone_error(place.topic, place.partition, at, first, end)
    if allowed is None or first <= at:
        raise gone
    allowed.append(gone)
    if first < end:
        consumer.assign([TopicPartition(place.topic, place.partition, first)])
    return first
