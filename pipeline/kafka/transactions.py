"""Records into a topic in transactions of librdkafka, each with the place behind it in another topic."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from ...errors import Refused
from .clients import GONE, QUIET, lacking, server
from .protocol import (
    MESSAGE_BYTES,
    Broken,
    Headers,
    Overtaken,
    Properties,
    TooLarge,
    TransactionSettings,
    topic_gone,
)

_QUEUED_BYTES_KB = 256 << 10
_BATCH_BYTES = 1_000_000
_WAIT_S = 10.0
_POLL_S = 0.1
_FLUSH_S = 0.005
_RETRY_MS = 500
_SENT_ONCE_S = 0.8 * _RETRY_MS / 1000
"""A commit that took less sent each request once: before librdkafka sends EndTxn again it waits for `retry.backoff.ms`,
of which it takes off up to a fifth, and with TxnOffsetCommit for half a second."""
_OVERTAKEN = (
    KafkaError._FENCED,
    KafkaError.INVALID_PRODUCER_EPOCH,
    KafkaError.PRODUCER_FENCED,
    KafkaError.INVALID_PRODUCER_ID_MAPPING,
    KafkaError.INVALID_TXN_STATE,
)
_NEVER = (
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    KafkaError.GROUP_AUTHORIZATION_FAILED,
)


class KafkaTransactions:
    """See the Protocol, and `Kafka.transactions`."""

    def __init__(
        self, kafka: Properties, settings: TransactionSettings, max_bytes: Callable[[str], int | None] = lambda _: None
    ) -> None:
        """`max_bytes` is `Kafka.max_message_bytes`."""
        self._kafka, self._settings, self._topic, self._max_bytes = kafka, settings, settings.topic, max_bytes
        self._producer: Producer | None = None
        self._consumer: Consumer | None = None
        self._undelivered: KafkaError | None = None
        """Why the first record that was not taken was not: the transaction itself only says that there is one."""
        self._too_large: Message | None = None
        """The first that was larger than the topic takes."""
        self._repeated: tuple[int, str] | None = None
        """What was committed last, where a request of that commit may have been sent again: one may be on its way."""

    def open(self) -> tuple[int, str] | None:
        self.close()
        self._undelivered = self._repeated = self._too_large = None
        ours = {
            "transactional.id": self._settings.transactional_id,
            "transaction.timeout.ms": self._settings.timeout_s * 1000,
            "message.timeout.ms": int(min(self._settings.patience_s, 0.9 * self._settings.timeout_s) * 1000),
            "linger.ms": 5,
            "message.max.bytes": MESSAGE_BYTES,
            # Records are sent in batches, which librdkafka does not divide where the topic takes no such large one.
            "batch.size": min(_BATCH_BYTES, self._max_bytes(self._topic) or _BATCH_BYTES),
            "queue.buffering.max.messages": 1_000_000,
            "queue.buffering.max.kbytes": _QUEUED_BYTES_KB,
            # As Java's clients, and so Spark's sink, place records by their key.
            "partitioner": "murmur2_random",
            "on_delivery": self._delivered,
            "delivery.report.only.error": True,
            "retry.backoff.ms": _RETRY_MS,
            "retry.backoff.max.ms": 2 * _RETRY_MS,
            # Of a cluster of one broker it would forget the coordinators amid a transaction, and wait for them.
            "metadata.recovery.strategy": "none",
        }
        with self._understood():
            self._producer = Producer({**QUIET, **self._kafka, **ours})
            self._producer.init_transactions(_WAIT_S)
            reading = {"group.id": self._settings.group, "isolation.level": "read_committed"}
            self._consumer = Consumer({**QUIET, **self._kafka, **reading})
            (found,) = self._consumer.committed([TopicPartition(self._settings.source, 0)], timeout=_WAIT_S)
            if found.error is not None:
                raise KafkaException(found.error)
        return (found.offset, found.metadata or "") if found.offset >= 0 else None

    def begin(self) -> None:
        # Another producer may have begun, and ended, since that commit: then this one would fence it, and go on behind
        # the wrong place.
        if (last := self._repeated) is not None and self.open() != last:
            raise Overtaken("another producer went on")
        with self._understood():
            self._open.begin_transaction()

    def add(
        self, keys: Sequence[bytes | None], values: Sequence[bytes | None], headers: Sequence[Headers] | None = None
    ) -> None:
        producer, topic = self._open, self._topic
        with self._understood():
            # A call for each record is faster than `produce_batch`, for which a dict has to be made of each.
            if headers is None:
                for key, value in zip(keys, values, strict=True):
                    try:
                        producer.produce(topic, value, key)
                    except BufferError:
                        self._put(key, value)
            else:
                for key, value, named in zip(keys, values, headers, strict=True):
                    self._put(key, value, named)
            producer.poll(0)

    def commit(self, offset: int, text: str) -> None:
        """See the Protocol.

        librdkafka sends a request again by itself when no answer comes. Should the first one arrive in the next
        transaction, the broker cannot tell it from one of that, as both have the same epoch: EndTxn would end it
        half-way, TxnOffsetCommit take its place back. So after a commit in which there was time for that, the next
        transaction begins under an epoch of its own.
        """
        producer = self._open
        with self._understood():
            # Not timed: records have numbers, by which the broker knows one that comes twice. And no `flush`, which
            # calls back with an exception pending when another producer has taken the id.
            while len(producer) and self._undelivered is None:
                producer.poll(_FLUSH_S)
            if self._undelivered is not None:
                raise KafkaException(self._undelivered)
            began = time.monotonic()
            assert self._consumer is not None  # noqa: S101  it is open
            group = self._consumer.consumer_group_metadata()
            place = TopicPartition(self._settings.source, 0, offset, text)
            producer.send_offsets_to_transaction([place], group, self._settings.timeout_s / 2)
            producer.commit_transaction(self._settings.timeout_s)
            self._repeated = (offset, text) if time.monotonic() - began >= _SENT_ONCE_S else None

    def close(self) -> None:
        """See the Protocol. What is open is ended by whoever takes the id over, or by the broker's clock.

        Either ends it under the next epoch, of which all partitions hear. Ended under this one, it would let a record
        that is still on its way into the next transaction, where the broker does not ask (before 3.6).
        """
        if self._producer is not None:
            self._producer.purge()
            self._producer = None
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = None

    @property
    def _open(self) -> Producer:
        if self._producer is None:
            raise Broken("it is not open")
        return self._producer

    def _put(self, key: bytes | None, value: bytes | None, headers: Headers = ()) -> None:
        """Write one record, once there is room for it: what the broker does not take in time is an error soon."""
        while True:
            try:
                self._open.produce(self._topic, value, key, headers=list(headers))
                return
            except BufferError:
                self._open.poll(_POLL_S)

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None and self._undelivered is None:
            self._undelivered = error
        if error is not None and self._too_large is None and error.code() == KafkaError.MSG_SIZE_TOO_LARGE:
            self._too_large = message

    @contextmanager
    def _understood(self) -> Iterator[None]:
        """While something is done: librdkafka's errors are raised as what they mean to whoever publishes."""
        try:
            yield
        except KafkaException as error:
            raise self._meaning(error.args[0]) from error

    def _meaning(self, error: KafkaError) -> Exception:
        if not error.fatal() and error.code() not in _OVERTAKEN:
            error = self._undelivered or error
        code = error.code()
        where = f"{server(self._kafka)} does not take records for {self._topic!r}"
        if refused := lacking(self._kafka, error, "Write", self._topic):
            return refused
        if code in GONE:
            return topic_gone(server(self._kafka), self._topic)
        if code == KafkaError.MSG_SIZE_TOO_LARGE:
            large = self._too_large
            key, size = (large.key(), len(large) + len(large.key() or b"")) if large is not None else (None, 0)
            return Refused(
                f"{where}: {TooLarge(key, size, self._max_bytes(self._topic)).words}",
                hint="raise max.message.bytes of the topic; nothing is lost",
            )
        if code in _NEVER:
            return Refused(
                f"{where} in transactions of {self._settings.transactional_id!r}: {error.str()}",
                hint="a sink needs the rights Write and Describe on its TransactionalId, and Read on the stage's group",
            )
        if code == KafkaError.INVALID_TRANSACTION_TIMEOUT:
            most_ms = self._settings.timeout_s * 1000
            return Refused(
                f"{where} in transactions of up to {self._settings.timeout_s} s",
                hint=f"the broker's transaction.max.timeout.ms is less than {most_ms}: raise it",
            )
        if code in _OVERTAKEN or error.fatal():
            return Overtaken(error.str())
        return Broken(error.str())
