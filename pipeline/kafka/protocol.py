"""Interface to Kafka for all other code: topics, offsets, reads, writes, transactions, group offsets.

`Patience` limits how long a client waits for a server that does not answer.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, NamedTuple, Protocol

from ...common import runtime
from ...common.silence import address_hint, warn_silent
from ...errors import AnotherTopic, Gone, Refused, SlackwaterError, Unavailable
from ...state.records import Range, TopicState, is_other_topic
from .declared_source import Source

Properties = Mapping[str, str]
"""librdkafka's client properties, at least `bootstrap.servers`; the input of `open_kafka`."""
Headers = Sequence[tuple[str, bytes | None]]
Offsets = tuple[int, ...]

HEADER_NAME = "slackwater"
UNLIMITED_RETENTION = {"retention.ms": "-1", "retention.bytes": "-1", "cleanup.policy": "delete"}
"""Properties of a sink's internal topic. Kafka deletes no records, because the publisher deletes published records."""


MAX_MESSAGE_BYTES = 8 << 20
MAX_RECORD_BYTES = MAX_MESSAGE_BYTES - (64 << 10)
"""Maximum bytes of a record's value in an internal topic. Leaves room for Kafka's overhead."""


class Record(NamedTuple):
    """Record to send. The key determines a missing partition; a missing time is the current time."""

    value: bytes | None
    partition: int | None = None
    key: bytes | None = None
    headers: Headers = ()
    time_ms: int | None = None


class RecordTooLarge(NamedTuple):
    """Record that exceeds its topic's maximum message size. `size` is 0 if unknown."""

    key: bytes | None
    size: int
    limit: int | None

    @property
    def description(self) -> str:
        key = "no key" if self.key is None else f"key {self.key[:_SHOWN_KEY_BYTES].decode(errors='backslashreplace')!r}"
        size = f" of {self.size:,} bytes" if self.size else ""
        limit = f" ({self.limit:,})" if self.limit is not None else ""
        return f"the record with {key}{size} exceeds the topic's max.message.bytes{limit}"


_SHOWN_KEY_BYTES = 200


class Message(Protocol):
    """Record that was read from Kafka, with the methods of confluent-kafka's `Message`."""

    def topic(self) -> str: ...
    def partition(self) -> int: ...
    def offset(self) -> int: ...
    def key(self) -> bytes | None: ...
    def value(self) -> bytes | None: ...
    def headers(self) -> Headers | None: ...
    def timestamp(self) -> tuple[int, int]:
        """Return the kind of the timestamp, and ms since 1970. The kind is Kafka's plus one, so 1 is CreateTime."""


Run = Sequence[Message]
"""One or more messages of one partition, in order."""
Chunk = Sequence[Run]
"""Runs that one request of a reader returned. A partition may have several runs."""


class SendFailed(Unavailable):
    """The brokers rejected records, or did not acknowledge them. `retriable` is True if a retry may succeed."""

    def __init__(self, kafka: str, topic: str, why: str, *, retriable: bool) -> None:
        super().__init__(f"{kafka} did not accept messages for {topic!r}: {why}")
        self.why = why
        self.passing = retriable


class ProducerFenced(Exception):
    """A later producer with this transactional id fenced this one, or the broker aborted the transaction."""


class TransactionFailed(Exception):
    """A transaction failed, and may be committed or not. The next call of `open` finds out.

    `error` is the error to show if retries keep failing; None if the brokers do not answer.
    """

    def __init__(self, why: str, error: SlackwaterError | None = None) -> None:
        super().__init__(why)
        self.error = error


class TransactionSettings(NamedTuple):
    """Settings of a transactional producer."""

    transactional_id: str
    group: str
    """Consumer group whose offset of partition 0 of `source` is the published position."""
    source: str
    topic: str
    patience_s: float
    timeout_s: int = 60
    """Seconds after which the broker aborts an open transaction and fences its producer."""


class TransactionalProducer(Protocol):
    """Transactional producer. A transaction commits records of one topic together with a publisher's position.

    Methods raise `Refused` for permanent errors. After `ProducerFenced` or `TransactionFailed`, call `open` before the
    next transaction.
    """

    def open(self) -> tuple[int, str] | None:
        """Fence earlier producers with this id. Return offset and text of the last published position, or None."""

    def begin(self) -> None: ...

    def write(
        self, keys: Sequence[bytes | None], values: Sequence[bytes | None], headers: Sequence[Headers] | None = None
    ) -> None:
        """Write records, which consumers with `read_committed` see only after `commit`."""

    def commit(self, offset: int, text: str) -> None:
        """Commit the records written since `begin`, together with the offset and text of the published position."""

    def close(self) -> None:
        """Close the producer without aborting its open transaction: the next producer, or a timeout, aborts it."""


class Kafka(Protocol):
    """Kafka cluster. Clients belong to this process; other processes open the cluster by its `properties`.

    Methods raise `Unavailable` if the brokers do not answer in time, and `Refused` if they deny permission.
    """

    @property
    def properties(self) -> Properties:
        """Properties from which `open_kafka` opens this cluster. They may hold secrets."""

    @property
    def name(self) -> str: ...

    def partition_counts(self, *, timeout_s: float = 10) -> dict[str, int]: ...

    def topic_state(self, topic: str, *, timeout_s: float = 10) -> TopicState:
        """Return a topic's id, and the earliest offset and the `read_committed` end offset of each partition.

        Raises `NotFound` if the topic does not exist.
        """

    def offset_bounds(self, topic: str, *, timeout_s: float = 10) -> tuple[Offsets, Offsets]:
        """Return two tuples: the earliest and the end offset of each partition. Raises `NotFound`."""
        return self.topic_state(topic, timeout_s=timeout_s)[:2]

    def offsets_for_times(self, topic: str, times_ms: Sequence[int]) -> Offsets:
        """Return, by partition, the offset of the first record at or after its time (ms since 1970); -1 for none."""

    def topic_ids(self, topics: Collection[str]) -> dict[str, str]:
        """Return the ids of existing topics, in one request. Ids are empty if the brokers do not support them."""

    def topic_id(self, topic: str) -> str:
        """Return a topic's id, which changes when the topic is deleted and created again; empty if unknown."""
        return self.topic_ids([topic]).get(topic, "")

    def create_topics(
        self, partitions: Mapping[str, int], *, validate_only: bool = False, config: Mapping[str, str] | None = None
    ) -> None:
        """Create the missing topics with these partition counts; `config` holds topic properties.

        With `validate_only`, the broker checks the request and creates nothing.
        """

    def delete_topics(self, names: Sequence[str]) -> tuple[str, ...]:
        """Delete existing topics. Return the topics that Kafka refuses to delete."""

    def delete_records(self, topic: str, offset: int, partition: int = 0) -> None:
        """Delete a partition's records before an offset. Errors are ignored; the records then stay."""

    def topic_config(self, topic: str) -> Mapping[str, str]:
        """Return a topic's properties, such as `cleanup.policy`. Empty if unknown, or if the topic does not exist."""

    def retention_ms(self, topic: str) -> int | None:
        """Return `retention.ms` of a topic, -1 for unlimited; None if it is unknown or the topic does not exist."""
        return whole_setting(self.topic_config(topic), "retention.ms")

    def max_message_bytes(self, topic: str) -> int | None:
        """Return `max.message.bytes` of a topic, the limit of one batch of records; None if unknown."""
        return whole_setting(self.topic_config(topic), "max.message.bytes")

    def write_error(self, topic: str) -> Refused | None:
        """Return the error that a write to the topic would raise; None if it would succeed, or if that is unknown."""

    def read(
        self,
        topic: str,
        partition: int,
        start: int,
        end: int,
        *,
        patience_s: float,
        deletion_errors: list[Gone] | None = None,
        topic_id: str = "",
    ) -> Iterator[Sequence[Message]]:
        """Yield the messages at offsets `start` to `end` - 1 of one partition, in chunks; see `read_ranges`."""
        errors = None if deletion_errors is None else {partition: deletion_errors}
        chunks = self.read_ranges(
            topic,
            (Range(partition, start, end),),
            patience_s=patience_s,
            deletion_errors=errors,
            topic_id=topic_id,
        )
        return (run for chunk in chunks for run in chunk)

    def read_ranges(
        self,
        topic: str,
        parts: Sequence[Range],
        *,
        patience_s: float,
        deletion_errors: Mapping[int, list[Gone]] | None = None,
        topic_id: str = "",
    ) -> Iterator[Chunk]:
        """Yield the messages of ranges of distinct partitions, which are read concurrently.

        A partition's messages come in order; offsets may have gaps. With a `topic_id`, the topic's current id is
        checked first, and `AnotherTopic` is raised if it differs.

        Raises `Gone` if Kafka has deleted the first of a range's records. If `deletion_errors` has a list for the
        partition, the error is appended to this list instead, and the remaining records are read: the deleted records
        may be markers or output of failed attempts, which no reader needs. Raises `Refused` if the broker denies
        access, and `Unavailable` if the broker does not answer, or returns no record, for longer than `patience_s`.
        """

    def send(self, topic: str, records: Iterable[Record], *, patience_s: float) -> dict[int, int]:
        """Write records durably and in order, outside of transactions. Return the end offset of each written partition.

        Raises `Refused` if the broker denies access, `SendFailed` if the broker rejects a record or does not
        acknowledge all records within `patience_s`, and `Unavailable` after `patience_s` without an answer.
        """

    def transactional_producer(self, settings: TransactionSettings) -> TransactionalProducer: ...

    def declare(self, source: Source) -> None:
        """Store a source that a program declares, and list all its files. Raises `Refused`."""
        raise Refused(f"{source.topic} cannot be read here: its list of files is in a store, and none is open")

    def place(self, topic: str, offset: int) -> str:
        """Return the file and line, or row, of a record of a source; empty for a record of Kafka."""
        return ""

    def end_of_files(self, topic: str, offset: int) -> int | None:
        """Return the end of a batch that begins at an offset, by a source's limit of files; None for no limit."""
        return None

    def commit_offsets(self, group: str, positions: Mapping[str, Offsets], *, wait: bool = True) -> None:
        """Set the offsets of a consumer group, by topic. Errors are ignored."""

    def delete_groups(self, groups: Sequence[str]) -> None:
        """Delete existing consumer groups. Errors are ignored, except `Unavailable`."""


def _member(name: str) -> Any:
    return property(attrgetter(f"kafka.{name}"))


class ForwardingKafka(Kafka):
    """Base of clients that forward what they do not change to another client, `kafka`."""

    __slots__ = ()

    properties = _member("properties")
    name = _member("name")
    partition_counts = _member("partition_counts")
    topic_ids = _member("topic_ids")
    create_topics = _member("create_topics")
    delete_topics = _member("delete_topics")
    delete_records = _member("delete_records")
    topic_config = _member("topic_config")
    write_error = _member("write_error")
    send = _member("send")
    transactional_producer = _member("transactional_producer")
    declare = _member("declare")
    place = _member("place")
    end_of_files = _member("end_of_files")
    commit_offsets = _member("commit_offsets")
    delete_groups = _member("delete_groups")


def records_deleted_error(topic: str, partition: int, at: int, first: int, end: int) -> Gone:
    last = (min(first, end) if first > at else end) - 1
    return Gone(
        f"offsets {at} to {last} of {topic}[{partition}] are gone from Kafka",
        hint="choose a moment whose records Kafka still has, or a snapshot, which stores its in-flight records",
    )


def whole_setting(config: Mapping[str, str], name: str) -> int | None:
    with suppress(KeyError, ValueError):
        return int(config[name])
    return None


def check_topic_id(kafka: Kafka, topic: str, topic_id: str) -> None:
    if topic_id and is_other_topic(topic_id, current := kafka.topic_id(topic)):
        raise topic_recreated_error(topic, topic_id, current)


def topic_recreated_error(topic: str, topic_id: str, current_id: str) -> AnotherTopic:
    return AnotherTopic(
        f"topic {topic!r} was deleted and created again since it was read: its id was {topic_id}, and is now "
        f"{current_id}",
        hint="choose a later moment; an input archive keeps what an app reads even if the topic is deleted: "
        "docs/archive.md",
    )


def topic_deleted_error(kafka: str, topic: str) -> Refused:
    return Refused(
        f"{kafka} rejects records for {topic!r}: the topic no longer exists",
        hint="create the topic again; nothing is lost",
    )


_log = logging.getLogger("slackwater")

KAFKA_SETTING = "--kafka, SLACKWATER_KAFKA or kafka in slackwater.toml"
_WARN_AFTER_S = 4
"""Seconds without an answer before a warning is logged. A busy broker may take almost this time."""


@dataclass(slots=True)
class Patience:
    """Timeout for a server that does not answer. Logs one warning when answers stop, and one when they resume."""

    server: str
    limit_s: float
    setting: str = ""
    _since: float | None = field(default=None, init=False)
    _warned: bool = field(default=False, init=False)

    def record_answer(self) -> None:
        if self._warned:
            _log.warning("%s is back", self.server)
        self._since, self._warned = None, False

    def record_silence(self, reason: str = "") -> None:
        """Record that a request got no answer. Raises `Unavailable` after `limit_s` seconds of silence."""
        now = runtime.monotonic()
        if self._since is None:
            self._since = now
        elapsed = now - self._since
        if elapsed > self.limit_s:
            next_step = "nothing is lost: restart when it is back, and the app resumes where it stopped"
            raise Unavailable(
                f"{self.server} has not answered for {elapsed:.0f} s{f' ({reason})' if reason else ''}",
                hint="; ".join(filter(None, (address_hint(self.setting), next_step))),
            )
        if not self._warned and elapsed > _WARN_AFTER_S:
            self._warned = True
            warn_silent(f"{self.server} does not answer; trying for {self.limit_s - elapsed:.0f} s more", self.setting)


def kafka_patience(kafka: Kafka, limit_s: float) -> Patience:
    return Patience(kafka.name, limit_s, KAFKA_SETTING)
