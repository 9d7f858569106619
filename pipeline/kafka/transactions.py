"""Transactional producer on librdkafka: records of a topic are committed together with an offset of another."""

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
"""Commits faster than this sent each request once, so that no duplicate request can still be in flight.

librdkafka resends EndTxn after `retry.backoff.ms`, minus up to a fifth, and TxnOffsetCommit after half a second.
"""
_FENCING_CODES = (
    KafkaError._FENCED,
    KafkaError.INVALID_PRODUCER_EPOCH,
    KafkaError.PRODUCER_FENCED,
    KafkaError.INVALID_PRODUCER_ID_MAPPING,
    KafkaError.INVALID_TXN_STATE,
)
_UNAUTHORISED_CODES = (
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    KafkaError.GROUP_AUTHORIZATION_FAILED,
)


class KafkaTransactions:
    """Implements `Transactions` with confluent-kafka."""

    def __init__(
        self, kafka: Properties, settings: TransactionSettings, max_bytes: Callable[[str], int | None] = lambda _: None
    ) -> None:
        """Create a closed producer; `max_bytes` is `Kafka.max_message_bytes`."""
        self._kafka, self._settings, self._topic, self._max_bytes = kafka, settings, settings.topic, max_bytes
        self._producer: Producer | None = None
        self._consumer: Consumer | None = None
        self._undelivered: KafkaError | None = None
        """Error of the first record that was not delivered. The transaction's own error gives no cause."""
        self._too_large: Message | None = None
        """The first record that was larger than the topic allows."""
        self._repeated: tuple[int, str] | None = None
        """The last commit, if a duplicate request of that commit may still be in flight; else None."""

    def open(self) -> tuple[int, str] | None:
        self.close()
        self._undelivered = self._repeated = self._too_large = None
        own_properties = {
            "transactional.id": self._settings.transactional_id,
            "transaction.timeout.ms": self._settings.timeout_s * 1000,
            "message.timeout.ms": int(min(self._settings.patience_s, 0.9 * self._settings.timeout_s) * 1000),
            "linger.ms": 5,
            "message.max.bytes": MESSAGE_BYTES,
            # librdkafka does not split a batch that exceeds the topic's max.message.bytes, so limit batches to that.
            "batch.size": min(_BATCH_BYTES, self._max_bytes(self._topic) or _BATCH_BYTES),
            "queue.buffering.max.messages": 1_000_000,
            "queue.buffering.max.kbytes": _QUEUED_BYTES_KB,
            # The default of Java clients, and so of Spark's sink.
            "partitioner": "murmur2_random",
            "on_delivery": self._delivered,
            "delivery.report.only.error": True,
            "retry.backoff.ms": _RETRY_MS,
            "retry.backoff.max.ms": 2 * _RETRY_MS,
            # With one broker, rebootstrapping would forget the coordinators during a transaction, and wait for them.
            "metadata.recovery.strategy": "none",
        }
        with self._translating():
            self._producer = Producer({**QUIET, **self._kafka, **own_properties})
            self._producer.init_transactions(_WAIT_S)
            consumer_properties = {"group.id": self._settings.group, "isolation.level": "read_committed"}
            self._consumer = Consumer({**QUIET, **self._kafka, **consumer_properties})
            (committed,) = self._consumer.committed([TopicPartition(self._settings.source, 0)], timeout=_WAIT_S)
            if committed.error is not None:
                raise KafkaException(committed.error)
        return (committed.offset, committed.metadata or "") if committed.offset >= 0 else None

    def begin(self) -> None:
        # Another producer may have committed since. `open` would fence that producer, and this one would continue from
        # a place that is out of date.
        if (last := self._repeated) is not None and self.open() != last:
            raise Overtaken("another producer has committed")
        with self._translating():
            self._open.begin_transaction()

    def add(
        self, keys: Sequence[bytes | None], values: Sequence[bytes | None], headers: Sequence[Headers] | None = None
    ) -> None:
        producer, topic = self._open, self._topic
        with self._translating():
            # One call per record is faster than `produce_batch`, which needs a dict per record.
            if headers is None:
                for key, value in zip(keys, values, strict=True):
                    try:
                        producer.produce(topic, value, key)
                    except BufferError:
                        self._put(key, value)
            else:
                for key, value, record_headers in zip(keys, values, headers, strict=True):
                    self._put(key, value, record_headers)
            producer.poll(0)

    def commit(self, offset: int, text: str) -> None:
        """Commit the transaction, and note whether a duplicate of its requests may still be in flight.

        librdkafka resends a request if no answer comes. If the first request arrives during the next transaction, the
        broker cannot tell it from a request of that transaction, since both have the same epoch: EndTxn would end the
        transaction half-way, and TxnOffsetCommit would move the place back. So after a commit that took long enough for
        a resend, the next transaction begins under a new epoch.
        """
        producer = self._open
        with self._translating():
            # Resent records need no check: brokers deduplicate them by sequence number. `flush` is not used, since its
            # callbacks run with an exception pending after this producer was fenced.
            while len(producer) and self._undelivered is None:
                producer.poll(_FLUSH_S)
            if self._undelivered is not None:
                raise KafkaException(self._undelivered)
            began = time.monotonic()
            assert self._consumer is not None  # noqa: S101  set together with the producer
            group = self._consumer.consumer_group_metadata()
            position = TopicPartition(self._settings.source, 0, offset, text)
            producer.send_offsets_to_transaction([position], group, self._settings.timeout_s / 2)
            producer.commit_transaction(self._settings.timeout_s)
            self._repeated = (offset, text) if time.monotonic() - began >= _SENT_ONCE_S else None

    def close(self) -> None:
        """Close the clients. The next producer with this id, or a timeout, aborts an open transaction.

        Both abort under the next epoch, which all partitions learn. Aborted under the current epoch, a record still in
        flight could join the next transaction on brokers before 3.6, which do not verify that.
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
            raise Broken("the producer is closed")
        return self._producer

    def _put(self, key: bytes | None, value: bytes | None, headers: Headers = ()) -> None:
        """Write one record, and wait while the queue is full: a delivery timeout makes room."""
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
    def _translating(self) -> Iterator[None]:
        """Translate librdkafka's errors to those of `Transactions` during the context."""
        try:
            yield
        except KafkaException as error:
            raise self._translate(error.args[0]) from error

    def _translate(self, error: KafkaError) -> Exception:
        if not error.fatal() and error.code() not in _FENCING_CODES:
            error = self._undelivered or error
        code = error.code()
        prefix = f"{server(self._kafka)} rejects records for {self._topic!r}"
        if refused := lacking(self._kafka, error, "Write", self._topic):
            return refused
        if code in GONE:
            return topic_gone(server(self._kafka), self._topic)
        if code == KafkaError.MSG_SIZE_TOO_LARGE:
            large = self._too_large
            key, size = (large.key(), len(large) + len(large.key() or b"")) if large is not None else (None, 0)
            return Refused(
                f"{prefix}: {TooLarge(key, size, self._max_bytes(self._topic)).words}",
                hint="raise max.message.bytes of the topic; nothing is lost",
            )
        if code in _UNAUTHORISED_CODES:
            return Refused(
                f"{prefix} in transactions of {self._settings.transactional_id!r}: {error.str()}",
                hint="a sink needs the rights Write and Describe on its TransactionalId, and Read on the stage's group",
            )
        if code == KafkaError.INVALID_TRANSACTION_TIMEOUT:
            timeout_ms = self._settings.timeout_s * 1000
            return Refused(
                f"{prefix} in transactions of up to {self._settings.timeout_s} s",
                hint=f"raise the broker's transaction.max.timeout.ms to at least {timeout_ms}",
            )
        if code in _FENCING_CODES or error.fatal():
            return Overtaken(error.str())
        return Broken(error.str())
