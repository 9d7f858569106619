"""Kafka through librdkafka: topics, offsets, sending and groups; `clients` reads, `transactions` publishes."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TypeVar

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, Message, TopicCollection, TopicPartition, Uuid
from confluent_kafka.admin import AclOperation, ConfigResource, NewTopic, OffsetSpec, TopicDescription

from ...errors import Gone, NotFound, Refused
from ...state.topics import TopicState, id_of_epochs
from .clients import GONE, POLL_S, Clients, asking, clients, lacking, read_range, server, unavailable
from .patience import patience_with
from .protocol import MESSAGE_BYTES, NotTaken, Offsets, Properties, Record, TransactionSettings, check_read
from .transactions import KafkaTransactions

_NO_LEADER = (
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.FENCED_LEADER_EPOCH,
    KafkaError.UNKNOWN_LEADER_EPOCH,
)
_SILENT = (KafkaError._TRANSPORT, KafkaError._TIMED_OUT, KafkaError.REQUEST_TIMED_OUT)
_HEARD_S = 10.0
_NO_ID = str(Uuid(0, 0))
"""Of brokers from before topics had ids."""
_Answer = TypeVar("_Answer")


@dataclass(frozen=True, slots=True)
class LibrdKafka:
    """See the Protocol. It is only the address: its clients are the process's (`clients`)."""

    properties: Properties = field(repr=False)

    @property
    def name(self) -> str:
        return server(self.properties)

    @property
    def _clients(self) -> Clients:
        return clients(self.properties)

    def partition_counts(self, *, timeout_s: float = 10) -> dict[str, int]:
        try:
            with asking(self.properties):
                listed = self._clients.admin.list_topics(timeout=timeout_s).topics
        except KafkaException as error:
            raise unavailable(self.properties, error) from None
        return {name: len(meta.partitions) for name, meta in listed.items()}

    def state(self, topic: str, *, timeout_s: float = 10) -> TopicState:
        def ask(left_s: float) -> TopicState:
            count, topic_id = self._describe(topic, left_s)
            earliest, _ = self._list(topic, [OffsetSpec.earliest()] * count, left_s)
            ends, epochs = self._list(topic, [OffsetSpec.latest()] * count, left_s)
            return TopicState(earliest, ends, topic_id or id_of_epochs(epochs))

        return self._until_led(ask, timeout_s)

    def offsets(self, topic: str, *, timeout_s: float = 10) -> tuple[Offsets, Offsets]:
        return self.state(topic, timeout_s=timeout_s)[:2]

    def offsets_since(self, topic: str, times_ms: Sequence[int]) -> Offsets:
        specs = [OffsetSpec.for_timestamp(at) for at in times_ms]
        return self._until_led(lambda left_s: self._list(topic, specs, left_s)[0], 10)

    def topic_ids(self, topics: Collection[str]) -> dict[str, str]:
        if not topics:
            return {}
        asked = self._clients.admin.describe_topics(TopicCollection(sorted(topics)), request_timeout=10)
        absent = {name for name, _ in self._failures(asked, ())}
        return {name: _id_of(answer.result()) for name, answer in asked.items() if name not in absent}

    def topic_id(self, topic: str) -> str:
        return self.topic_ids([topic]).get(topic, "")

    def _until_led(self, ask: Callable[[float], _Answer], timeout_s: float) -> _Answer:
        """What `ask` gives within the seconds it is told, tried again while partitions have no leader."""
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                with asking(self.properties):
                    return ask(max(0.1, deadline - time.monotonic()))
            except KafkaException as error:
                # A topic made a moment ago, or a broker that starts, has no leaders yet.
                if error.args[0].code() not in _NO_LEADER or time.monotonic() > deadline:
                    raise unavailable(self.properties, error) from None
            time.sleep(POLL_S)

    def _describe(self, topic: str, timeout_s: float) -> tuple[int, str]:
        """The topic's number of partitions, and its id. Raises `NotFound`, and `Refused` where we may not look."""
        admin = self._clients.admin
        try:
            about = admin.describe_topics(TopicCollection([topic]), request_timeout=timeout_s)[topic].result()
        except KafkaException as error:
            if refused := lacking(self.properties, error.args[0], "Describe", topic):
                raise refused from None
            if error.args[0].code() in GONE:
                known = (name for name in self.partition_counts() if name[:2] != "__")
                raise NotFound("Kafka topic", topic, known) from None
            raise
        return len(about.partitions), _id_of(about)

    def _list(self, topic: str, specs: Sequence[OffsetSpec], timeout_s: float) -> tuple[Offsets, Offsets]:
        """The offset that each partition's spec asks for, and the leader epoch there, -1 where nobody says."""
        places = {TopicPartition(topic, partition): spec for partition, spec in enumerate(specs)}
        committed = IsolationLevel.READ_COMMITTED
        asked = self._clients.admin.list_offsets(places, isolation_level=committed, request_timeout=timeout_s)
        found = [asked[place].result() for place in places]
        epochs = (-1 if each.leader_epoch is None else each.leader_epoch for each in found)
        return tuple(each.offset for each in found), tuple(epochs)

    def create_topics(
        self, partitions: Mapping[str, int], *, only_ask: bool = False, config: Mapping[str, str] | None = None
    ) -> None:
        known = self.partition_counts()
        missing = {topic: count for topic, count in partitions.items() if topic not in known}
        if not missing:
            return
        # Replication as the brokers' default says (-1); one Arrow message may hold up to a megabyte of rows.
        large = {"max.message.bytes": str(MESSAGE_BYTES), **(config or {})}
        new = [NewTopic(topic, num_partitions=n, replication_factor=-1, config=large) for topic, n in missing.items()]
        asked = self._clients.admin.create_topics(new, request_timeout=30, validate_only=only_ask)
        for topic, error in self._failures(asked, (KafkaError.TOPIC_ALREADY_EXISTS,)):
            refused = Refused(f"{self.name} refuses to create topic {topic!r}: {error.str()}")
            raise lacking(self.properties, error, "Create", topic) or refused
        # Brokers hear of it a little later than its maker, and whoever asks them meanwhile hears that there is none.
        deadline = time.monotonic() + _HEARD_S
        while not only_ask and missing.keys() - self.partition_counts().keys():
            if time.monotonic() > deadline:
                return
            time.sleep(POLL_S)

    def delete_topics(self, names: Sequence[str]) -> tuple[str, ...]:
        if not names:
            return ()
        asked = self._clients.admin.delete_topics(list(names), request_timeout=30)
        return tuple(name for name, _ in self._failures(asked, GONE))

    def delete_records(self, topic: str, offset: int, partition: int = 0) -> None:
        place = TopicPartition(topic, partition, offset)
        with suppress(KafkaException):
            self._clients.admin.delete_records([place], request_timeout=10)[place].result()

    def retention_ms(self, topic: str) -> int | None:
        return self._setting(topic, "retention.ms")

    def max_message_bytes(self, topic: str) -> int | None:
        return self._setting(topic, "max.message.bytes")

    def _setting(self, topic: str, name: str) -> int | None:
        asked = self._clients.admin.describe_configs([ConfigResource("topic", topic)], request_timeout=10)
        with suppress(KafkaException, KeyError, ValueError):
            return int(next(iter(asked.values())).result()[name].value)
        return None

    def not_writable(self, topic: str) -> Refused | None:
        topics, admin = TopicCollection([topic]), self._clients.admin
        asked = admin.describe_topics(topics, include_authorized_operations=True, request_timeout=10)
        for _, error in self._failures(asked, ()):
            return lacking(self.properties, error, "Describe", topic)
        allowed = asked[topic].result().authorized_operations
        if not allowed or AclOperation.WRITE in allowed or AclOperation.ALL in allowed:
            return None
        return lacking(self.properties, KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED), "Write", topic)

    def _failures(self, asked: Mapping[str, Future[object]], fine: Collection[int]) -> Iterator[tuple[str, KafkaError]]:
        """Those of these requests that the broker refused, and how, unless the answer's code is among `fine`."""
        for name, answer in asked.items():
            try:
                answer.result()
            except KafkaException as error:
                if error.args[0].code() in _SILENT:
                    raise unavailable(self.properties, error) from None
                if error.args[0].code() not in fine:
                    yield name, error.args[0]

    def read(
        self,
        topic: str,
        partition: int,
        start: int,
        end: int,
        *,
        patience_s: float,
        gone: list[Gone] | None = None,
        topic_id: str = "",
    ) -> Iterator[Sequence[Message]]:
        check_read(self, topic, topic_id)
        return read_range(self.properties, topic, partition, start, end, patience_with(self, patience_s), gone)

    def send(self, topic: str, records: Iterable[Record], *, patience_s: float) -> dict[int, int]:
        producer = self._clients.producer(patience_s)
        ends: dict[int, int] = {}
        failed: list[KafkaError] = []

        def delivered(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                failed.append(error)
            else:
                ends[message.partition()] = max(ends.get(message.partition(), 0), message.offset() + 1)

        try:
            for each in records:
                more = {"partition": each.partition, "timestamp": each.time_ms, "headers": list(each.headers) or None}
                named = {name: value for name, value in more.items() if value is not None}
                while True:
                    try:
                        producer.produce(topic, each.value, each.key, on_delivery=delivered, **named)
                        break
                    except BufferError:
                        # What the broker does not take in time makes room by its error.
                        producer.poll(POLL_S)
                producer.poll(0)
            patience = patience_with(self, patience_s + 5)
            while producer.flush(1) > 0:
                patience.waited()
            patience.answered()
        except (KafkaException, SystemError) as error:
            # A producer that may never write again says so where it can: also while it calls us back.
            cause = error if isinstance(error, KafkaException) else error.__cause__ or error.__context__
            if not isinstance(cause, KafkaException):
                raise
            failed.insert(0, cause.args[0])
        if failed:
            self._clients.discard_producer(patience_s)
            passing = failed[0].retriable() or failed[0].code() in (KafkaError._TRANSPORT, KafkaError._MSG_TIMED_OUT)
            not_taken = NotTaken(self.name, topic, failed[0].str(), passing=passing)
            raise lacking(self.properties, failed[0], "Write", topic) or not_taken
        return ends

    def transactions(self, settings: TransactionSettings) -> KafkaTransactions:
        return KafkaTransactions(self.properties, settings, self.max_message_bytes)

    def commit_offsets(self, group: str, positions: Mapping[str, Offsets], *, wait: bool = True) -> None:
        # Through a consumer, which is no member: the admin client's call for it ends the whole process when a broker
        # goes away in the middle (an assertion in librdkafka).
        placed = ((topic, at, offset) for topic, each in positions.items() for at, offset in enumerate(each))
        places = [TopicPartition(*each) for each in placed]
        with suppress(KafkaException):
            self._clients.committer(group).commit(offsets=places, asynchronous=not wait)

    def delete_groups(self, groups: Sequence[str]) -> None:
        if groups:
            asked = self._clients.admin.delete_consumer_groups(list(groups), request_timeout=10)
            tuple(self._failures(asked, ()))


def _id_of(about: TopicDescription) -> str:
    """A topic's id; empty where the broker gives none."""
    found = str(about.topic_id)
    return "" if found == _NO_ID else found
