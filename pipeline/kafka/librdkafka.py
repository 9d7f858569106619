"""Implementation of `Kafka` with librdkafka: topics, offsets, writes and consumer groups.

Reads and transactions are in `clients`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, Message, TopicCollection, TopicPartition, Uuid
from confluent_kafka.admin import AclOperation, ConfigResource, NewTopic, OffsetSpec, TopicDescription

from ...common import runtime
from ...common.runtime import Future
from ...errors import Gone, NotFound, Refused
from ...state.records import Range, TopicState, id_of_epochs
from .clients import (
    NO_TOPIC_CODES,
    POLL_S,
    Clients,
    LibrdKafkaProducer,
    missing_right_error,
    process_clients,
    produce_waiting,
    read_ranges,
    server_name,
    unavailable_error,
    warn_on_silence,
)
from .protocol import (
    MAX_MESSAGE_BYTES,
    Kafka,
    Offsets,
    Properties,
    Record,
    SendFailed,
    TransactionSettings,
    check_topic_id,
    kafka_patience,
)

_NO_LEADER_CODES = (
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.FENCED_LEADER_EPOCH,
    KafkaError.UNKNOWN_LEADER_EPOCH,
)
_TIMEOUT_CODES = (KafkaError._TRANSPORT, KafkaError._TIMED_OUT, KafkaError.REQUEST_TIMED_OUT)
_METADATA_TIMEOUT_S = 10.0
_MAX_NEW_PARTITIONS = 100_000
"""librdkafka's limit for one topic. Brokers may have lower limits."""
_RECENT = 10_000
"""Number of offsets before a partition's end that are searched for a newly written record."""
_NO_ID = str(Uuid(0, 0))
"""Id of every topic on brokers without topic ids (before Kafka 2.8)."""
_Answer = TypeVar("_Answer")


@dataclass(frozen=True, slots=True)
class LibrdKafka(Kafka):
    """Implements `Kafka` with confluent-kafka.

    An instance has only properties; the connections of the process are in `process_clients`.
    """

    properties: Properties = field(repr=False)

    @property
    def name(self) -> str:
        return server_name(self.properties)

    @property
    def _clients(self) -> Clients:
        return process_clients(self.properties)

    def partition_counts(self, *, timeout_s: float = 10) -> dict[str, int]:
        try:
            with warn_on_silence(self.properties):
                topics = self._clients.admin.list_topics(timeout=timeout_s).topics
        except KafkaException as error:
            raise unavailable_error(self.properties, error) from None
        return {name: len(meta.partitions) for name, meta in topics.items()}

    def topic_state(self, topic: str, *, timeout_s: float = 10) -> TopicState:
        def ask(remaining_s: float) -> TopicState:
            count, topic_id = self._describe_topic(topic, remaining_s)
            earliest, _ = self._list_offsets(topic, [OffsetSpec.earliest()] * count, remaining_s)
            ends, epochs = self._list_offsets(topic, [OffsetSpec.latest()] * count, remaining_s)
            return TopicState(earliest, ends, topic_id or id_of_epochs(epochs))

        return self._retry_until_leader(ask, timeout_s)

    def offsets_for_times(self, topic: str, times_ms: Sequence[int]) -> Offsets:
        specs = [OffsetSpec.for_timestamp(time_ms) for time_ms in times_ms]
        return self._retry_until_leader(lambda remaining_s: self._list_offsets(topic, specs, remaining_s)[0], 10)

    def topic_ids(self, topics: Collection[str]) -> dict[str, str]:
        if not topics:
            return {}
        admin = self._clients.admin
        futures = admin.describe_topics(TopicCollection(sorted(topics)), request_timeout=10)
        absent = {name for name, _ in self._failures(futures, ())}
        return {name: _topic_id(future.result()) for name, future in futures.items() if name not in absent}

    def _retry_until_leader(self, request: Callable[[float], _Answer], timeout_s: float) -> _Answer:
        """Call `request` with the remaining seconds of the timeout. Repeat the call while partitions have no leader."""
        deadline = runtime.monotonic() + timeout_s
        while True:
            try:
                with warn_on_silence(self.properties):
                    return request(max(0.1, deadline - runtime.monotonic()))
            except KafkaException as error:
                # A new topic has no leaders yet, and neither have the partitions of a broker that is starting.
                if error.args[0].code() not in _NO_LEADER_CODES or runtime.monotonic() > deadline:
                    raise unavailable_error(self.properties, error) from None
            runtime.sleep(POLL_S)

    def _describe_topic(self, topic: str, timeout_s: float) -> tuple[int, str]:
        admin = self._clients.admin
        try:
            description = admin.describe_topics(TopicCollection([topic]), request_timeout=timeout_s)[topic].result()
        except KafkaException as error:
            if refused := missing_right_error(self.properties, error.args[0], "Describe", topic):
                raise refused from None
            if error.args[0].code() in NO_TOPIC_CODES:
                names = (name for name in self.partition_counts() if name[:2] != "__")
                raise NotFound("Kafka topic", topic, names) from None
            raise
        return len(description.partitions), _topic_id(description)

    def _list_offsets(self, topic: str, specs: Sequence[OffsetSpec], timeout_s: float) -> tuple[Offsets, Offsets]:
        """Return the requested offset of each partition, and its leader epoch (-1 if unknown)."""
        specs_by_partition = {TopicPartition(topic, partition): spec for partition, spec in enumerate(specs)}
        committed, admin = IsolationLevel.READ_COMMITTED, self._clients.admin
        futures = admin.list_offsets(specs_by_partition, isolation_level=committed, request_timeout=timeout_s)
        results = [futures[place].result() for place in specs_by_partition]
        epochs = (-1 if result.leader_epoch is None else result.leader_epoch for result in results)
        return tuple(result.offset for result in results), tuple(epochs)

    def create_topics(
        self, partitions: Mapping[str, int], *, validate_only: bool = False, config: Mapping[str, str] | None = None
    ) -> None:
        existing = self.partition_counts()
        missing = {topic: count for topic, count in partitions.items() if topic not in existing}
        if not missing:
            return
        for topic, count in missing.items():
            if count > _MAX_NEW_PARTITIONS:
                raise self._creation_error(topic, count, f"a client can create at most {_MAX_NEW_PARTITIONS:,}")
        # -1 stands for the brokers' default replication factor. One Arrow message may hold up to a megabyte of rows.
        large = {"max.message.bytes": str(MAX_MESSAGE_BYTES), **(config or {})}
        new = [NewTopic(topic, num_partitions=n, replication_factor=-1, config=large) for topic, n in missing.items()]
        admin = self._clients.admin
        futures = admin.create_topics(new, request_timeout=30, validate_only=validate_only)
        for topic, error in self._failures(futures, (KafkaError.TOPIC_ALREADY_EXISTS,)):
            refused = self._creation_error(topic, missing[topic], error.str())
            raise missing_right_error(self.properties, error, "Create", topic) or refused
        # Metadata reaches the other brokers a little later; until then, they report the topic as missing.
        deadline = runtime.monotonic() + _METADATA_TIMEOUT_S
        while not validate_only and missing.keys() - self.partition_counts().keys():
            if runtime.monotonic() > deadline:
                return
            runtime.sleep(POLL_S)

    def _creation_error(self, topic: str, partitions: int, reason: str) -> Refused:
        count = f"{partitions:,} partition{'' if partitions == 1 else 's'}"
        return Refused(
            f"{self.name} refuses to create topic {topic!r} with {count}: {reason}",
            hint="declare fewer partitions, or have the topic created before the first run",
        )

    def delete_topics(self, names: Sequence[str]) -> tuple[str, ...]:
        if not names:
            return ()
        admin = self._clients.admin
        futures = admin.delete_topics(list(names), request_timeout=30)
        return tuple(name for name, _ in self._failures(futures, NO_TOPIC_CODES))

    def delete_records(self, topic: str, offset: int, partition: int = 0) -> None:
        position, admin = TopicPartition(topic, partition, offset), self._clients.admin
        with suppress(KafkaException):
            admin.delete_records([position], request_timeout=10)[position].result()

    def topic_config(self, topic: str) -> dict[str, str]:
        admin = self._clients.admin
        futures = admin.describe_configs([ConfigResource("topic", topic)], request_timeout=10)
        with suppress(KafkaException):
            entries = next(iter(futures.values())).result().values()
            return {entry.name: entry.value for entry in entries if entry.value is not None}
        return {}

    def write_error(self, topic: str) -> Refused | None:
        topics, admin = TopicCollection([topic]), self._clients.admin
        futures = admin.describe_topics(topics, include_authorized_operations=True, request_timeout=10)
        for _, error in self._failures(futures, ()):
            return missing_right_error(self.properties, error, "Describe", topic)
        allowed = futures[topic].result().authorized_operations
        if not allowed or AclOperation.WRITE in allowed or AclOperation.ALL in allowed:
            return None
        return missing_right_error(self.properties, KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED), "Write", topic)

    def _failures(
        self, futures: Mapping[str, Future[object]], ignored: Collection[int]
    ) -> Iterator[tuple[str, KafkaError]]:
        for name, future in futures.items():
            try:
                future.result()
            except KafkaException as error:
                if error.args[0].code() in _TIMEOUT_CODES:
                    raise unavailable_error(self.properties, error) from None
                if error.args[0].code() not in ignored:
                    yield name, error.args[0]

    def read_ranges(
        self,
        topic: str,
        parts: Sequence[Range],
        *,
        patience_s: float,
        deletion_errors: Mapping[int, list[Gone]] | None = None,
        topic_id: str = "",
    ) -> Iterator[Sequence[Sequence[Message]]]:
        check_topic_id(self, topic, topic_id)
        return read_ranges(self.properties, topic, parts, kafka_patience(self, patience_s), deletion_errors)

    def send(self, topic: str, records: Iterable[Record], *, patience_s: float) -> dict[int, int]:
        producer = self._clients.producer(patience_s)
        ends: dict[int, int] = {}
        unknown: dict[int, Record] = {}
        failed: list[KafkaError] = []

        def deliver(record: Record, error: KafkaError | None, message: Message) -> None:
            partition, offset = message.partition(), message.offset()
            if error is not None:
                failed.append(error)
            elif offset is None:
                # If the answer to an earlier attempt was lost, the broker already has the record and may not return its
                # offset.
                unknown[partition] = record
            else:
                ends[partition] = max(ends.get(partition, 0), offset + 1)
                unknown.pop(partition, None)

        try:
            for record in records:
                extra = {
                    "partition": record.partition,
                    "timestamp": record.time_ms,
                    "headers": list(record.headers) or None,
                }
                keywords = {name: value for name, value in extra.items() if value is not None}
                produce_waiting(
                    producer, topic, record.value, record.key, on_delivery=partial(deliver, record), **keywords
                )
                producer.poll(0)
            patience = kafka_patience(self, patience_s + 5)
            while producer.flush(1) > 0:
                patience.record_silence(self._clients.explain_silence(producer))
            patience.record_answer()
        except (KafkaException, SystemError) as error:
            # A producer in a fatal state also raises inside callbacks, where confluent-kafka wraps the error.
            cause = error if isinstance(error, KafkaException) else error.__cause__ or error.__context__
            if not isinstance(cause, KafkaException):
                raise
            failed.insert(0, cause.args[0])
        if failed:
            self._clients.discard_producer(patience_s)
            passing = failed[0].retriable() or failed[0].code() in (KafkaError._TRANSPORT, KafkaError._MSG_TIMED_OUT)
            not_taken = SendFailed(self.name, topic, self._clients.reason(failed[0]), retriable=passing)
            raise missing_right_error(self.properties, failed[0], "Write", topic) or not_taken
        return ends | self._find_ends(topic, unknown, ends, patience_s) if unknown else ends

    def _find_ends(
        self, topic: str, records: Mapping[int, Record], ends: Mapping[int, int], patience_s: float
    ) -> dict[int, int]:
        """Return, by partition, the offset after a newly written record, by reading each partition's end.

        Raises `SendFailed` if a record is not found there.
        """
        resolved: dict[int, int] = {}
        for partition, record in records.items():
            with self._clients.consumer() as consumer:
                bounds = partial(consumer.get_watermark_offsets, TopicPartition(topic, partition))
                first, end = self._retry_until_leader(bounds, patience_s)
            start = max(first, ends.get(partition, end - _RECENT))
            offsets = [
                message.offset()
                for messages in self.read(topic, partition, start, end, patience_s=patience_s)
                for message in messages
                if (message.value(), message.key()) == (record.value, record.key)
                and (message.headers() or []) == list(record.headers)
            ]
            if not offsets:
                why = f"partition {partition} has no copy of a record that was acknowledged without an offset"
                raise SendFailed(self.name, topic, why, retriable=True)
            resolved[partition] = max(offsets) + 1
        return resolved

    def transactional_producer(self, settings: TransactionSettings) -> LibrdKafkaProducer:
        return LibrdKafkaProducer(self.properties, settings, self.max_message_bytes)

    def commit_offsets(self, group: str, positions: Mapping[str, Offsets], *, wait: bool = True) -> None:
        # Commit through a consumer outside of the group. The admin client's call aborts the process if a broker
        # disconnects during the call (an assertion in librdkafka).
        partitions = [
            TopicPartition(topic, partition, offset)
            for topic, offsets in positions.items()
            for partition, offset in enumerate(offsets)
        ]
        with suppress(KafkaException):
            self._clients.group_consumer(group).commit(offsets=partitions, asynchronous=not wait)

    def delete_groups(self, groups: Sequence[str]) -> None:
        if groups:
            admin = self._clients.admin
            futures = admin.delete_consumer_groups(list(groups), request_timeout=10)
            tuple(self._failures(futures, ()))


def _topic_id(description: TopicDescription) -> str:
    topic_id = str(description.topic_id)
    return "" if topic_id == _NO_ID else topic_id
