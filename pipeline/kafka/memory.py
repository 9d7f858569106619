"""An in-memory Kafka for tests and experiments in one process.

Differences from a cluster: there are no ACLs, retention deletes nothing, records may have any size, and transactions
never time out.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from zlib import crc32

from ...common import runtime
from ...common.durations import DAY_MS
from ...errors import Gone, NotFound, Refused
from ...state.records import Range, TopicState, id_of_epochs
from .protocol import (
    MAX_MESSAGE_BYTES,
    Headers,
    Kafka,
    Offsets,
    ProducerFenced,
    Properties,
    Record,
    SendFailed,
    TransactionFailed,
    TransactionSettings,
    check_topic_id,
    kafka_patience,
    records_deleted_error,
    topic_deleted_error,
)

_CHUNK = 10_000
_POLL_S = 0.01
_CREATE_TIME = 1
_DEFAULTS = {
    "cleanup.policy": "delete",
    "delete.retention.ms": str(DAY_MS),
    "max.message.bytes": str(MAX_MESSAGE_BYTES),
    "retention.ms": str(7 * DAY_MS),
}


@dataclass(frozen=True, slots=True)
class _Message:
    """Record with its topic, partition and offset, and the interface of a Kafka message."""

    _topic_partition_offset: tuple[str, int, int]
    _record: Record
    _time_ms: int

    def topic(self) -> str:
        return self._topic_partition_offset[0]

    def partition(self) -> int:
        return self._topic_partition_offset[1]

    def offset(self) -> int:
        return self._topic_partition_offset[2]

    def key(self) -> bytes | None:
        return self._record.key

    def value(self) -> bytes | None:
        return self._record.value

    def headers(self) -> Headers | None:
        return list(self._record.headers) or None

    def timestamp(self) -> tuple[int, int]:
        return _CREATE_TIME, self._time_ms


@dataclass(slots=True)
class _Partition:
    """Log of one partition; records before `start` are deleted."""

    start: int = 0
    log: list[_Message | None] = field(default_factory=list)
    """Messages by offset; None stands for a control record of a transaction, or for a record that was compacted."""
    epoch: int = 0


class MemoryKafka(Kafka):
    """Implements `Kafka` in the memory of its process. Thread-safe."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.groups: dict[str, dict[tuple[str, int], tuple[int, str]]] = {}
        """Committed offset and text of each consumer group, by topic and partition."""
        self._topics: dict[str, list[_Partition]] = {}
        self._configs: dict[str, Mapping[str, str]] = {}
        """Properties of the topics. They have no effect on retention here."""
        self._ids: dict[str, str] = {}
        self.has_topic_ids = True
        """True if topics have ids; False imitates old brokers."""
        self.state_requests = 0
        """Number of calls of `state`."""
        self._producers: dict[str, object] = {}
        """Token of the current producer, by transactional id."""
        self._lock = runtime.lock()

    @staticmethod
    @cache
    def named(address: str) -> MemoryKafka:
        """Return this process's Kafka at an address, `memory://NAME`; create an empty one on first use."""
        return MemoryKafka(address)

    @property
    def properties(self) -> Properties:
        return {"bootstrap.servers": self.address}

    @property
    def name(self) -> str:
        return f"Kafka at {self.address}"

    def partition_counts(self, *, timeout_s: float = 10) -> dict[str, int]:
        with self._lock:
            return {name: len(partitions) for name, partitions in self._topics.items()}

    def topic_state(self, topic: str, *, timeout_s: float = 10) -> TopicState:
        self.state_requests += 1
        with self._lock:
            partitions = self._partitions(topic)
            starts, ends = tuple(part.start for part in partitions), tuple(len(part.log) for part in partitions)
            topic_id = self._ids[topic] if self.has_topic_ids else id_of_epochs([part.epoch for part in partitions])
            return TopicState(starts, ends, topic_id)

    def offsets_for_times(self, topic: str, times_ms: Sequence[int]) -> Offsets:
        return tuple(
            next((entry.offset() for entry in part.log[part.start :] if entry and entry.timestamp()[1] >= ms), -1)
            for ms, part in zip(times_ms, self._partitions(topic), strict=True)
        )

    def topic_ids(self, topics: Collection[str]) -> dict[str, str]:
        with self._lock:
            return {name: self._ids[name] if self.has_topic_ids else "" for name in topics if name in self._topics}

    def create_topics(
        self, partitions: Mapping[str, int], *, validate_only: bool = False, config: Mapping[str, str] | None = None
    ) -> None:
        with self._lock:
            for name, count in partitions.items() if not validate_only else ():
                if name not in self._topics:
                    self._topics[name] = [_Partition() for _ in range(count)]
                    self._configs[name] = {**_DEFAULTS, **(config or {})}
                    self._ids[name] = runtime.random_hex()

    def elect_leaders(self, topic: str) -> None:
        with self._lock:
            for partition in self._partitions(topic):
                partition.epoch += 1

    def add_partitions(self, topic: str, count: int) -> None:
        partitions = self._partitions(topic)
        with self._lock:
            partitions += [_Partition() for _ in range(count - len(partitions))]

    def delete_topics(self, names: Sequence[str]) -> tuple[str, ...]:
        with self._lock:
            for name in names:
                self._topics.pop(name, None)
                self._ids.pop(name, None)
        return ()

    def delete_records(self, topic: str, offset: int, partition: int = 0) -> None:
        for partition_log in self._topics.get(topic, ())[partition : partition + 1]:
            with self._lock:
                if partition_log.start < offset <= len(partition_log.log):
                    partition_log.start = offset

    def compact(self, topic: str, *, tombstones: bool = False) -> None:
        """Delete the records that a later record of their key supersedes; with `tombstones`, also tombstones."""
        with self._lock:
            for partition in self._partitions(topic):
                newest = {entry.key(): entry.offset() for entry in partition.log if entry is not None}
                partition.log[:] = [
                    None
                    if entry is None or newest[entry.key()] != offset or (tombstones and entry.value() is None)
                    else entry
                    for offset, entry in enumerate(partition.log)
                ]

    def topic_config(self, topic: str) -> Mapping[str, str]:
        return self._configs.get(topic, {}) if topic in self._topics else {}

    def write_error(self, topic: str) -> Refused | None:
        return None

    def read_ranges(
        self,
        topic: str,
        parts: Sequence[Range],
        *,
        patience_s: float,
        deletion_errors: Mapping[int, list[Gone]] | None = None,
        topic_id: str = "",
    ) -> Iterator[list[Sequence[_Message]]]:
        check_topic_id(self, topic, topic_id)
        patience = kafka_patience(self, patience_s)
        unread = {part.partition: (part.first, part.last) for part in parts if part.first < part.last}
        while unread:
            runs, came = list[Sequence[_Message]](), False
            for partition, (at, end) in list(unread.items()):
                lost = None if deletion_errors is None else deletion_errors[partition]
                first, messages_and_markers = self._read_log(topic, partition, at, end, lost)
                came |= bool(messages_and_markers)
                unread[partition] = first + len(messages_and_markers), end
                if unread[partition][0] >= end:
                    del unread[partition]
                if messages := [message for message in messages_and_markers if message is not None]:
                    runs.append(messages)
            if runs:
                yield runs
            elif unread and not came:
                patience.record_silence()
                runtime.sleep(_POLL_S)

    def _read_log(
        self, topic: str, partition: int, at: int, end: int, deletion_errors: list[Gone] | None
    ) -> tuple[int, list[_Message | None]]:
        """Return a chunk of a partition's log: the offset of its first record, and its messages."""
        try:
            partition_log = self._topics[topic][partition]
        except (KeyError, IndexError):
            raise Refused(f"{topic}[{partition}] cannot be read: there is no such partition") from None
        with self._lock:
            first, last = partition_log.start, len(partition_log.log)
            chunk = partition_log.log[max(at, first) : min(end, max(at, first) + _CHUNK)]
        if at < first or at > last:
            error = records_deleted_error(topic, partition, at, first, end)
            if deletion_errors is None or at > last:
                raise error
            deletion_errors.append(error)
        return max(at, first), chunk

    def read_all(
        self, topic: str, parts: Sequence[Range], patience_s: float, *, lossy: bool, topic_id: str = ""
    ) -> tuple[list[list[Sequence[_Message]]], dict[int, list[Gone]]]:
        gone: dict[int, list[Gone]] = {part.partition: [] for part in parts}
        chunks = self.read_ranges(
            topic, parts, patience_s=patience_s, deletion_errors=gone if lossy else None, topic_id=topic_id
        )
        return list(chunks), gone

    def send(self, topic: str, records: Iterable[Record], *, patience_s: float) -> dict[int, int]:
        sent = list(records)
        with self._lock:
            try:
                return self._append(topic, sent)
            except (KeyError, IndexError):
                raise SendFailed(self.name, topic, "there is no such topic or partition", retriable=False) from None

    def transactional_producer(self, settings: TransactionSettings) -> MemoryTransactionalProducer:
        return MemoryTransactionalProducer(self, settings)

    def commit_offsets(self, group: str, positions: Mapping[str, Offsets], *, wait: bool = True) -> None:
        with self._lock:
            for topic, offsets in positions.items():
                committed = {(topic, partition): (offset, "") for partition, offset in enumerate(offsets)}
                self.groups.setdefault(group, {}).update(committed)

    def delete_groups(self, groups: Collection[str]) -> None:
        with self._lock:
            for group in groups:
                self.groups.pop(group, None)

    def _partitions(self, topic: str) -> list[_Partition]:
        try:
            return self._topics[topic]
        except KeyError:
            raise NotFound("Kafka topic", topic, self._topics) from None

    def _append(self, topic: str, records: Iterable[Record], *, transactional: bool = False) -> dict[int, int]:
        """Append records. With `transactional`, also append a control record. The caller holds the lock."""
        partitions, ends, now_ms = self._topics[topic], dict[int, int](), runtime.time_ns() // 1_000_000
        for record in records:
            by_key = crc32(record.key or b"") % len(partitions)
            partition = by_key if record.partition is None else record.partition
            log = partitions[partition].log
            log.append(
                _Message((topic, partition, len(log)), record, now_ms if record.time_ms is None else record.time_ms)
            )
            ends[partition] = len(log)
        for partition in ends if transactional else ():
            partitions[partition].log.append(None)
        return ends


class MemoryTransactionalProducer:
    """Implements `TransactionalProducer` in memory. Buffers records until the commit."""

    def __init__(self, kafka: MemoryKafka, settings: TransactionSettings) -> None:
        self._kafka, self._id, self._topic = kafka, settings.transactional_id, settings.topic
        self._group, self._topic_partition = settings.group, (settings.source, 0)
        self._token: object | None = None
        self._written: list[Record] = []

    def open(self) -> tuple[int, str] | None:
        with self._kafka._lock:
            self._token = self._kafka._producers[self._id] = object()
            self._written = []
            return self._kafka.groups.get(self._group, {}).get(self._topic_partition)

    def begin(self) -> None:
        self._check_current()
        self._written = []

    def write(
        self, keys: Sequence[bytes | None], values: Sequence[bytes | None], headers: Sequence[Headers] | None = None
    ) -> None:
        self._check_current()
        for key, value, record_headers in zip(keys, values, headers or [()] * len(keys), strict=True):
            self._written.append(Record(value, None, key, record_headers))

    def commit(self, offset: int, text: str) -> None:
        with self._kafka._lock:
            self._check_current()
            if self._topic not in self._kafka._topics:
                raise topic_deleted_error(self._kafka.name, self._topic)
            self._kafka._append(self._topic, self._written, transactional=True)
            self._kafka.groups.setdefault(self._group, {})[self._topic_partition] = (offset, text)
            self._written = []

    def close(self) -> None:
        self._token = None

    def _check_current(self) -> None:
        if self._token is None:
            raise TransactionFailed("the producer is closed")
        if self._kafka._producers[self._id] is not self._token:
            raise ProducerFenced("another producer has this transactional id")
