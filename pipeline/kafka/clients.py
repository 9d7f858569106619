"""Pools of Kafka clients, kept for the lifetime of a process; reads of offset ranges; the transactional producer.

A new consumer takes 150 ms or more to return its first record. Spark reuses its Python workers, so their clients are
reused, too.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from itertools import chain
from typing import Any

import numpy as np
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from ...common import runtime
from ...common.silence import SILENCE_S, address_hint, call_on_silence, warn_silent
from ...errors import Gone, Refused, Unavailable
from ...state.records import Range
from .login import Login
from .protocol import (
    KAFKA_SETTING,
    MAX_MESSAGE_BYTES,
    Headers,
    Patience,
    ProducerFenced,
    Properties,
    RecordTooLarge,
    TransactionFailed,
    TransactionSettings,
    records_deleted_error,
    topic_deleted_error,
)

POLL_S = 0.25
NO_TOPIC_CODES = (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION)
_UNAUTHORISED_CODES = (KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.CLUSTER_AUTHORIZATION_FAILED)
_LOGIN_CODES = (KafkaError._AUTHENTICATION, KafkaError.SASL_AUTHENTICATION_FAILED)
_FATAL_CODES = (*NO_TOPIC_CODES, *_UNAUTHORISED_CODES, *_LOGIN_CODES)
_REFUSAL_S = 30.0
"""Seconds for which a refused login explains a silent broker. librdkafka repeats a refused login every 10 s."""
_CHUNK = 10_000

_CONSUMER_PROPERTIES = {
    "group.id": "slackwater",  # librdkafka requires a group; it is never joined, and no offsets are committed to it
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "enable.partition.eof": True,
    "auto.offset.reset": "error",
    "fetch.wait.max.ms": 50,
    # Prefetched messages cost the worker's memory, with an overhead of half a kilobyte each. So prefetch little, in
    # small fetches, and retry soon after the queue was full: after the default of a second, a fast reader would have to
    # wait.
    "queued.min.messages": 20_000,
    "queued.max.messages.kbytes": 8 << 10,
    "fetch.queue.backoff.ms": 5,
    "fetch.max.bytes": 8 << 20,
}
_FEW_PARTITIONS = 32
_FETCH_BYTES = {True: 1 << 20, False: 64 << 10}
"""Maximum bytes per partition in one fetch: for reads of at most `_FEW_PARTITIONS` partitions (True), and for others.

A broker sends up to this number of bytes of each partition, even if a batch needs only two records of the partition.
"""


class Clients:
    """Kafka clients of one process that share their properties. Each client is created on its first use.

    After a secret in a file has changed, each client is replaced at its next use, because librdkafka cannot change most
    properties of a client. Clients in use keep their connections.
    """

    def __init__(self, kafka: Properties) -> None:
        self._login = Login(kafka)
        self._secrets: dict[str, str] | None = None
        self._refusal = (-_REFUSAL_S, "")
        """Time of the last refused login (monotonic seconds), and the reason."""
        self._lock = runtime.rlock()
        self._admin: AdminClient | None = None
        self._producers: dict[float, Producer] = {}
        self._idle: dict[int, list[Consumer]] = {size: [] for size in _FETCH_BYTES.values()}
        self._groups: dict[str, Consumer] = {}

    def properties(self, **ours: object) -> dict[str, object]:
        """Return the properties of a new client; the errors are those of `Login.properties`.

        The properties stop librdkafka from logging each lost connection to stderr, because `Patience` logs an outage
        once.
        """
        return {"log_level": 0, "error_cb": self._record_error, **self._login.properties(), **ours}

    def secrets(self) -> dict[str, str]:
        """Return the current secrets from files. If a secret has changed, discards the clients first."""
        with self._lock:
            secrets, previous = self._login.secrets(), self._secrets
            if secrets != previous:
                self._secrets = secrets
                if previous is not None:
                    self._discard_all()
            return secrets

    def _discard_all(self) -> None:
        self._admin = None
        self._producers.clear()
        for idle in self._idle.values():
            idle.clear()
        self._groups.clear()

    def _record_error(self, error: KafkaError) -> None:
        if error.code() in _LOGIN_CODES:
            self._refusal = runtime.monotonic(), error.str()

    def refusal(self) -> str:
        """Return the reason why a recent login failed: no token, or a refused login; empty if no login failed."""
        if (error := self._login.token_error) is not None:
            return error.message
        if (admin := self._admin) is not None:  # another thread may discard it
            admin.poll(0)  # calls `_record_error`
        at, refusal = self._refusal
        return f"it refuses the login ({refusal})" if refusal and runtime.monotonic() - at < _REFUSAL_S else ""

    def login_hint(self) -> str:
        """Return the next step after a failed login; empty if there was no failure."""
        if (error := self._login.token_error) is not None:
            return error.hint
        if not self.refusal():
            return ""
        hint = "check the user and the secret: docs/operating.md#kafka-logins"
        return "; ".join((hint, *self._login.unread_secrets))

    def reason(self, error: KafkaError) -> str:
        """Return the reason why the brokers do not answer: an error's text, and a recent refused login."""
        return ": ".join(filter(None, (error.str(), self.refusal())))

    def explain_silence(self, waiting: Consumer | Producer) -> str:
        """Return the reason why the brokers do not answer. Passes a new password to the client that waits for them."""
        password = self.secrets().get("sasl.password")
        if password is not None:
            waiting.set_sasl_credentials(str(self._login.properties().get("sasl.username", "")), password)
        return self.refusal()

    @property
    def admin(self) -> AdminClient:
        """Client for requests. Keep it in a variable until its futures are done: another thread may discard it.

        Without a reference, the client is destroyed; its unfinished requests then get no answer, or a wrong answer.
        """
        with self._lock:
            self.secrets()
            admin = self._admin
            if admin is None:
                admin = self._admin = AdminClient(self.properties())
            return admin

    def producer(self, patience_s: float) -> Producer:
        self.secrets()
        producer = self._producers.get(patience_s)
        if producer is None:
            ours = {"enable.idempotence": True, "linger.ms": 0, "message.max.bytes": MAX_MESSAGE_BYTES}
            ours["message.timeout.ms"] = int(patience_s * 1000)
            producer = self._producers[patience_s] = Producer(self.properties(**ours))
        return producer

    def discard_producer(self, patience_s: float) -> None:
        """Discard the producer after an error, because an idempotent producer may refuse all later writes."""
        self._producers.pop(patience_s, None)

    @contextmanager
    def consumer(self, partitions: int = 1) -> Iterator[Consumer]:
        """Lend a consumer for exclusive use during the context. `partitions` is the number of partitions to read.

        An idle consumer has no assignment and fetches nothing.

        If an idle consumer had an assignment, it would prefetch records that usually a different worker reads. Also, a
        fetch that waits at the end of one partition would delay the first fetch from the next partition.
        """
        fetch_bytes = _FETCH_BYTES[partitions <= _FEW_PARTITIONS]
        idle, secrets = self._idle[fetch_bytes], self.secrets()
        try:
            consumer = idle.pop()
        except IndexError:  # all consumers are in use by other threads
            ours = {**_CONSUMER_PROPERTIES, "fetch.message.max.bytes": fetch_bytes}
            consumer = Consumer(self.properties(**ours))
        try:
            yield consumer
        finally:
            consumer.unassign()
            if secrets == self._secrets:
                idle.append(consumer)

    def group_consumer(self, group: str) -> Consumer:
        """Return a consumer that only commits a group's offsets. Raises `KafkaException` if not authorised."""
        self.secrets()
        consumer = self._groups.get(group)
        if consumer is None:
            # Without the right Read on the group, `commit` and `close` would block forever.
            admin = self.admin
            try:
                admin.describe_consumer_groups([group], request_timeout=3)[group].result()
            except KafkaException as error:
                if error.args[0].code() == KafkaError.GROUP_AUTHORIZATION_FAILED:
                    raise
            ours = {"group.id": group, "enable.auto.commit": False}
            consumer = self._groups[group] = Consumer(self.properties(**ours))
        return consumer

    def close(self) -> None:
        for consumer in (*chain(*self._idle.values()), *self._groups.values()):
            consumer.close()
        for idle in self._idle.values():
            idle.clear()
        self._groups.clear()


def process_clients(kafka: Properties) -> Clients:
    return _clients(os.getpid(), tuple(sorted(kafka.items())))


@cache
def _clients(pid: int, properties: tuple[tuple[str, str], ...]) -> Clients:
    new_clients = Clients(dict(properties))
    atexit.register(lambda: new_clients.close() if os.getpid() == pid else None)
    return new_clients


def server_name(kafka: Properties) -> str:
    return f"Kafka at {kafka['bootstrap.servers']}"


def warn_on_silence(kafka: Properties) -> AbstractContextManager[None]:
    return call_on_silence(
        lambda: warn_silent(f"{server_name(kafka)} has not answered for {SILENCE_S:.0f} s", KAFKA_SETTING)
    )


def unavailable_error(kafka: Properties, error: KafkaException) -> Unavailable:
    clients = process_clients(kafka)
    return Unavailable(
        f"{server_name(kafka)} does not answer: {clients.reason(error.args[0])}",
        hint=clients.login_hint() or f"{address_hint(KAFKA_SETTING)}; `slackwater dev up` starts one for development",
    )


def missing_right_error(kafka: Properties, error: KafkaError | None, right: str, topic: str) -> Refused | None:
    """Return an error if the broker denied an ACL right, such as `Read`, on the topic; None for any other error."""
    if error is None or error.code() not in _UNAUTHORISED_CODES:
        return None
    return Refused(
        f"{server_name(kafka)} denies this user the right {right} on topic {topic!r}",
        hint=f"kafka-acls --bootstrap-server {kafka['bootstrap.servers']} --add --allow-principal User:NAME "
        f"--operation {right} --topic {topic}; docs/operating.md lists all rights that an app needs",
    )


def produce_waiting(producer: Producer, topic: str, value: bytes | None, key: bytes | None, **keywords: Any) -> None:
    """Write one record, after waiting while librdkafka's queue is full."""
    while True:
        try:
            producer.produce(topic, value, key, **keywords)
            return
        except BufferError:
            producer.poll(POLL_S)


def read_ranges(
    kafka: Properties,
    topic: str,
    parts: Sequence[Range],
    patience: Patience,
    deletion_errors: Mapping[int, list[Gone]] | None,
) -> Iterator[list[Sequence[Message]]]:
    with process_clients(kafka).consumer(len(parts)) as consumer:
        reading = _Reading(kafka, topic, consumer, patience, deletion_errors)
        reading.assign(parts)
        while reading.unread:
            if runs := reading.poll():
                patience.record_answer()
                yield runs


class _Reading:
    """Ranges that a consumer reads, with the progress in each."""

    def __init__(
        self,
        kafka: Properties,
        topic: str,
        consumer: Consumer,
        patience: Patience,
        deletion_errors: Mapping[int, list[Gone]] | None,
    ) -> None:
        self._kafka, self._topic, self._consumer = kafka, topic, consumer
        self._patience, self._deletion_errors = patience, deletion_errors
        self.unread: dict[int, tuple[int, int]] = {}
        """Next offset and end offset of each partition that is not yet read completely."""
        self._is_single = False

    def assign(self, parts: Sequence[Range]) -> None:
        self.unread = {part.partition: (part.first, part.last) for part in parts if part.first < part.last}
        self._is_single = len(self.unread) == 1
        if self.unread:
            self._consumer.assign(
                [TopicPartition(self._topic, partition, at) for partition, (at, _) in self.unread.items()]
            )

    def poll(self) -> list[Sequence[Message]]:
        """Return the next messages, in runs; an empty list if none has arrived."""
        missing = sum(end - at for at, end in self.unread.values())
        chunk = self._consumer.consume(min(_CHUNK, missing), timeout=POLL_S)
        if not chunk:
            self._patience.record_silence(process_clients(self._kafka).explain_silence(self._consumer))
            return []
        runs, passed = list[Sequence[Message]](), dict[int, int]()
        errors = [message for message in chunk if message.error() is not None]
        messages = [message for message in chunk if message.error() is None] if errors else chunk
        for partition, run in self._split(messages):
            if partition not in self.unread:
                continue  # fetched before its end was reached
            end = self.unread[partition][1]
            passed[partition] = run[-1].offset() + 1
            if passed[partition] > end:
                run = [message for message in run if message.offset() < end]
            if run:
                runs.append(run)
        # An end-of-partition event may have a higher offset than the last message, because of transaction markers.
        for message in errors:
            self._handle_error(message, passed)
        self._advance(passed)
        return runs

    def _split(self, messages: Sequence[Message]) -> list[tuple[int, Sequence[Message]]]:
        if not messages:  # the chunk had only end-of-partition events
            return []
        if self._is_single:
            return [(messages[0].partition(), messages)]
        partitions = np.fromiter(map(Message.partition, messages), np.int32, len(messages))
        starts = np.flatnonzero(np.diff(partitions, prepend=-1)).tolist()
        spans = zip(starts, (*starts[1:], len(messages)), strict=True)
        return [(int(partitions[first]), messages[first:end]) for first, end in spans]

    def _handle_error(self, message: Message, passed: dict[int, int]) -> None:
        error, partition = message.error(), message.partition()
        if error.code() == KafkaError._PARTITION_EOF:
            passed[partition] = max(passed.get(partition, 0), message.offset())
        elif error.code() in (KafkaError.OFFSET_OUT_OF_RANGE, KafkaError._AUTO_OFFSET_RESET):
            if partition in self.unread:
                passed[partition] = self._skip_deleted(partition, passed.get(partition, 0))
        elif error.code() in _FATAL_CODES:
            where = self._topic if partition is None or partition < 0 else f"{self._topic}[{partition}]"
            refused = Refused(f"{where} cannot be read: {error.str()}")
            raise missing_right_error(self._kafka, error, "Read", self._topic) or refused
        elif error.code() != KafkaError.GROUP_AUTHORIZATION_FAILED:
            # librdkafka looks up the group's coordinator although the group is unused; reads work without a
            # coordinator.
            self._patience.record_silence(error.str())

    def _advance(self, passed: Mapping[int, int]) -> None:
        read = []
        for partition, next_offset in passed.items():
            if partition in self.unread:
                at, end = self.unread[partition]
                self.unread[partition] = max(at, next_offset), end
                if next_offset >= end:
                    read.append(partition)
                    del self.unread[partition]
        if read and self.unread:
            # Otherwise the records after the ends of these ranges would fill the consumer's queue.
            self._consumer.incremental_unassign([TopicPartition(self._topic, partition) for partition in read])

    def _skip_deleted(self, partition: int, passed: int) -> int:
        """Skip a partition's deleted records. Returns the first existing offset, at which the read continues.

        Appends an error to the partition's list in `deletion_errors`. If the partition has no list there, raises the
        error (`Gone`).
        """
        at, end = self.unread[partition]
        at, position = max(at, passed), TopicPartition(self._topic, partition)
        try:
            first = int(self._consumer.get_watermark_offsets(position, timeout=10)[0])
        except KafkaException:
            first = at
        gone = records_deleted_error(self._topic, partition, at, first, end)
        if self._deletion_errors is None or first <= at:
            raise gone
        self._deletion_errors[partition].append(gone)
        if first < end:
            self._consumer.incremental_unassign([position])
            self._consumer.incremental_assign([TopicPartition(self._topic, partition, first)])
        return first


_QUEUE_KB = 256 << 10
_BATCH_BYTES = 1_000_000
_OPEN_TIMEOUT_S = 10.0
_FLUSH_S = 0.005
_RETRY_MS = 500
_SENT_ONCE_S = 0.8 * _RETRY_MS / 1000
"""Seconds: in a commit that takes less time, librdkafka has certainly sent each request only once.

librdkafka sends EndTxn again after `retry.backoff.ms`, minus up to a fifth, and TxnOffsetCommit after half a second.
"""
_FENCING_CODES = (
    KafkaError._FENCED,
    KafkaError.INVALID_PRODUCER_EPOCH,
    KafkaError.PRODUCER_FENCED,
    KafkaError.INVALID_PRODUCER_ID_MAPPING,
    KafkaError.INVALID_TXN_STATE,
)
_UNAUTHORISED_TRANSACTION_CODES = (
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    KafkaError.GROUP_AUTHORIZATION_FAILED,
)


class LibrdKafkaProducer:
    """Implements `TransactionalProducer` with confluent-kafka."""

    def __init__(
        self, kafka: Properties, settings: TransactionSettings, max_bytes: Callable[[str], int | None] = lambda _: None
    ) -> None:
        self._kafka, self._settings, self._topic, self._max_bytes = kafka, settings, settings.topic, max_bytes
        self._secrets: dict[str, str] = {}
        """Secrets in files with which the open clients log in."""
        self._producer: Producer | None = None
        self._consumer: Consumer | None = None
        self._undelivered: KafkaError | None = None
        """Error of the first record that was not delivered. Kept, because the transaction's error names no cause."""
        self._too_large: Message | None = None
        """The first record that was larger than the topic allows."""
        self._position: tuple[int, str] | None = None
        """Offset and text of the last known published position; None if nothing was published."""
        self._may_resend_commit = False
        """True if a duplicate request of the last commit may still be in flight."""

    def open(self) -> tuple[int, str] | None:
        self.close()
        self._undelivered = self._too_large = None
        self._may_resend_commit = False
        own_properties = {
            "transactional.id": self._settings.transactional_id,
            "transaction.timeout.ms": self._settings.timeout_s * 1000,
            "message.timeout.ms": int(min(self._settings.patience_s, 0.9 * self._settings.timeout_s) * 1000),
            "linger.ms": 5,
            "message.max.bytes": MAX_MESSAGE_BYTES,
            # librdkafka does not split a batch that exceeds the topic's max.message.bytes, so limit batches to that.
            "batch.size": min(_BATCH_BYTES, self._max_bytes(self._topic) or _BATCH_BYTES),
            "queue.buffering.max.messages": 1_000_000,
            "queue.buffering.max.kbytes": _QUEUE_KB,
            # The default of Java clients, and so of Spark's sink.
            "partitioner": "murmur2_random",
            "on_delivery": self._on_delivery,
            "delivery.report.only.error": True,
            "retry.backoff.ms": _RETRY_MS,
            "retry.backoff.max.ms": 2 * _RETRY_MS,
            # With one broker, rebootstrapping would forget the coordinators during a transaction, and wait until they
            # are found again.
            "metadata.recovery.strategy": "none",
        }
        clients = process_clients(self._kafka)
        with self._translated_errors():
            self._secrets = clients.secrets()
            self._producer = Producer(clients.properties(**own_properties))
            self._producer.init_transactions(_OPEN_TIMEOUT_S)
            consumer_properties = {"group.id": self._settings.group, "isolation.level": "read_committed"}
            self._consumer = Consumer(clients.properties(**consumer_properties))
            (committed,) = self._consumer.committed([TopicPartition(self._settings.source, 0)], timeout=_OPEN_TIMEOUT_S)
            if committed.error is not None:
                raise KafkaException(committed.error)
        self._position = (committed.offset, committed.metadata or "") if committed.offset >= 0 else None
        return self._position

    def begin(self) -> None:
        if self._may_resend_commit or process_clients(self._kafka).secrets() != self._secrets:
            # Another producer may have committed since. `open` would fence that producer, and this producer would
            # continue from an outdated position.
            last = self._position
            if self.open() != last:
                raise ProducerFenced("another producer has committed")
        with self._translated_errors():
            self._open_producer.begin_transaction()

    def write(
        self, keys: Sequence[bytes | None], values: Sequence[bytes | None], headers: Sequence[Headers] | None = None
    ) -> None:
        producer, topic = self._open_producer, self._topic
        with self._translated_errors():
            # One call per record is faster than `produce_batch`, which needs a dict per record.
            if headers is None:
                for key, value in zip(keys, values, strict=True):
                    try:
                        producer.produce(topic, value, key)
                    except BufferError:
                        produce_waiting(producer, topic, value, key)
            else:
                for key, value, record_headers in zip(keys, values, headers, strict=True):
                    produce_waiting(producer, topic, value, key, headers=list(record_headers))
            producer.poll(0)

    def commit(self, offset: int, text: str) -> None:
        """Commit the transaction. Remembers the commit if a duplicate of its requests may still be in flight.

        librdkafka resends a request that gets no answer. The first copy may arrive during the next transaction. The
        broker cannot distinguish this copy from a request of the next transaction, because both have the same epoch. A
        late EndTxn would end the transaction too early, and a late TxnOffsetCommit would move the published position
        back. So after a slow commit, the next transaction begins under a new epoch.
        """
        producer = self._open_producer
        with self._translated_errors():
            # Resent records need no check, because brokers deduplicate them by sequence number. `flush` is not used:
            # after this producer was fenced, `flush` runs its callbacks with an exception pending.
            while len(producer) and self._undelivered is None:
                producer.poll(_FLUSH_S)
            if self._undelivered is not None:
                raise KafkaException(self._undelivered)
            began = runtime.monotonic()
            assert self._consumer is not None  # noqa: S101 set in the same place as the producer
            group = self._consumer.consumer_group_metadata()
            position = TopicPartition(self._settings.source, 0, offset, text)
            producer.send_offsets_to_transaction([position], group, self._settings.timeout_s / 2)
            producer.commit_transaction(self._settings.timeout_s)
            self._position = offset, text
            self._may_resend_commit = runtime.monotonic() - began >= _SENT_ONCE_S

    def close(self) -> None:
        """Close the clients. An open transaction is aborted by the next producer with this id, or by a timeout.

        Both abort the transaction under the next epoch, which is announced to all partitions. Brokers before 3.6 do not
        check to which transaction a late record belongs. If the transaction were aborted under the current epoch, a
        record in flight could become part of the next transaction.
        """
        if self._producer is not None:
            self._producer.purge()
            self._producer = None
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = None

    @property
    def _open_producer(self) -> Producer:
        if self._producer is None:
            raise TransactionFailed("the producer is closed")
        return self._producer

    def _on_delivery(self, error: KafkaError | None, message: Message) -> None:
        if error is not None and self._undelivered is None:
            self._undelivered = error
        if error is not None and self._too_large is None and error.code() == KafkaError.MSG_SIZE_TOO_LARGE:
            self._too_large = message

    @contextmanager
    def _translated_errors(self) -> Iterator[None]:
        try:
            yield
        except KafkaException as error:
            raise self._translate(error.args[0]) from error
        except Unavailable as error:  # of a login
            raise TransactionFailed(error.message, error) from error

    def _translate(self, error: KafkaError) -> Exception:
        if not error.fatal() and error.code() not in _FENCING_CODES:
            error = self._undelivered or error
        code = error.code()
        prefix = f"{server_name(self._kafka)} rejects records for {self._topic!r}"
        if refused := missing_right_error(self._kafka, error, "Write", self._topic):
            return refused
        if code in NO_TOPIC_CODES:
            return topic_deleted_error(server_name(self._kafka), self._topic)
        if code == KafkaError.MSG_SIZE_TOO_LARGE:
            large = self._too_large
            key, size = (large.key(), len(large) + len(large.key() or b"")) if large is not None else (None, 0)
            return Refused(
                f"{prefix}: {RecordTooLarge(key, size, self._max_bytes(self._topic)).description}",
                hint="raise max.message.bytes of the topic; nothing is lost",
            )
        if code in _UNAUTHORISED_TRANSACTION_CODES:
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
            return ProducerFenced(error.str())
        return TransactionFailed(process_clients(self._kafka).reason(error))
