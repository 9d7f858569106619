"""The one narrow seam to Kafka: topics and their offsets, reading, sending, transactions, groups' offsets."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

from ...errors import AnotherTopic, Gone, Refused, SlackwaterError, Unavailable
from ...state.topics import TopicState, are_two

Properties = Mapping[str, str]
"""What Kafka is opened by (`open_kafka`): librdkafka's client properties, `bootstrap.servers` at least."""
Headers = Sequence[tuple[str, bytes | None]]
Offsets = tuple[int, ...]
"""One for each partition of a topic."""

HEADER = "slackwater"
"""The header of what is ours."""
FOR_EVER = {"retention.ms": "-1", "retention.bytes": "-1", "cleanup.policy": "delete"}
"""Properties of a sink's internal topic: its records go when they are published, and not before."""


MESSAGE_BYTES = 8 << 20
"""What our own topics take of one batch of records, and our producers of one record."""
MOST_RECORD = MESSAGE_BYTES - (64 << 10)
"""Bytes that one record's value may have there: with room for all that Kafka puts around it."""


class Record(NamedTuple):
    """What is sent. Without a partition it goes where its key says, without a time it is of now."""

    value: bytes | None
    partition: int | None = None
    key: bytes | None = None
    headers: Headers = ()
    time_ms: int | None = None


class TooLarge(NamedTuple):
    """A record that is larger than a topic takes."""

    key: bytes | None
    size: int
    """Bytes, 0 where they are not known."""
    limit: int | None

    @property
    def words(self) -> str:
        """As messages say it."""
        key = "no key" if self.key is None else f"key {self.key[:_SHOWN].decode(errors='backslashreplace')!r}"
        size = f" of {self.size:,} bytes" if self.size else ""
        limit = f" {self.limit:,}" if self.limit is not None else ""
        return f"the record with {key}{size} is larger than the topic takes (max.message.bytes{limit})"


_SHOWN = 200
"""Bytes of a key that messages show."""


class Message(Protocol):
    """A record as it is read; the methods of confluent-kafka's."""

    def topic(self) -> str: ...
    def partition(self) -> int: ...
    def offset(self) -> int: ...
    def key(self) -> bytes | None: ...
    def value(self) -> bytes | None: ...
    def headers(self) -> Headers | None: ...
    def timestamp(self) -> tuple[int, int]:
        """Librdkafka's number of its kind, one more than Kafka's (1 is CreateTime), and ms since 1970."""


class NotTaken(Unavailable):
    """The brokers did not take records that were sent: why, and whether that may pass."""

    def __init__(self, kafka: str, topic: str, why: str, *, passing: bool) -> None:
        super().__init__(f"{kafka} did not take messages for {topic!r}: {why}")
        self.why = why
        self.passing = passing


class Overtaken(Exception):
    """Another producer with this transactional id began, or the broker gave the transaction up. It has no effect."""


class Broken(Exception):
    """Something of a transaction failed; whether it counts is known when it is opened again.

    `error` is what to say where it does not get better; None where nobody answers.
    """

    def __init__(self, why: str, error: SlackwaterError | None = None) -> None:
        super().__init__(why)
        self.error = error


class TransactionSettings(NamedTuple):
    """Who publishes what, for `Kafka.transactions`."""

    transactional_id: str
    """Of which one producer at a time may write."""
    group: str
    """The consumer group that has the place, as the offset of partition 0 of `source`."""
    source: str
    """The topic of the place."""
    topic: str
    """Where records go."""
    patience_s: float
    """How long a message may wait for its broker."""
    timeout_s: int = 60
    """The broker gives up a transaction that is open for longer, and whoever began it is overtaken."""


class Transactions(Protocol):
    """A producer in transactions, each of which commits records of one topic together with a place, an offset.

    Its methods raise `Refused` where Kafka never will do it, and `Overtaken` or `Broken` where it does not now.
    """

    def open(self) -> tuple[int, str] | None:
        """Fence whoever wrote with this id; the offset and the text that were committed last, None where none were."""

    def begin(self) -> None:
        """Begin a transaction."""

    def add(
        self, keys: Sequence[bytes | None], values: Sequence[bytes | None], headers: Sequence[Headers] | None = None
    ) -> None:
        """Write records, for nobody to read yet."""

    def commit(self, offset: int, text: str) -> None:
        """Make what was written readable, together with the place."""

    def close(self) -> None:
        """Leave what is open to whoever takes the id over; readers wait until then."""


class Kafka(Protocol):
    """Kafka, opened by its address and settings. What is opened stays in its process; others open it by `properties`.

    Methods raise `Unavailable` when the brokers did not answer in time, and `Refused` where they do not allow it.
    """

    @property
    def properties(self) -> Properties:
        """What `open_kafka` makes this of. They may hold secrets."""

    @property
    def name(self) -> str:
        """How messages name the brokers: `Kafka at host:port`."""

    def partition_counts(self, *, timeout_s: float = 10) -> dict[str, int]:
        """Number of partitions by name of topic."""

    def state(self, topic: str, *, timeout_s: float = 10) -> TopicState:
        """Its id, and earliest and end offset of each partition, the end as a committed reader sees it.

        Raises `NotFound`.
        """

    def offsets(self, topic: str, *, timeout_s: float = 10) -> tuple[Offsets, Offsets]:
        """Earliest and end offset of each partition, as `state`."""

    def offsets_since(self, topic: str, times_ms: Sequence[int]) -> Offsets:
        """Of each partition the offset of its first record of its time or later, in ms since 1970; -1 for none."""

    def topic_ids(self, topics: Collection[str]) -> dict[str, str]:
        """Kafka's ids of those of these topics that are there, in one request; empty where the brokers give none."""

    def topic_id(self, topic: str) -> str:
        """Kafka's id of a topic, which one that is made anew under its name has not; empty where nobody knows."""

    def create_topics(
        self, partitions: Mapping[str, int], *, only_ask: bool = False, config: Mapping[str, str] | None = None
    ) -> None:
        """Make those of these topics that there are not, with so many partitions; `config` are their properties.

        With `only_ask`, the broker says whether it would, and makes none.
        """

    def delete_topics(self, names: Sequence[str]) -> tuple[str, ...]:
        """Remove topics that are there; returns those that Kafka does not let us remove."""

    def delete_records(self, topic: str, offset: int, partition: int = 0) -> None:
        """Delete what a partition has before an offset; where Kafka does not let us, or is away, it stays."""

    def retention_ms(self, topic: str) -> int | None:
        """How long a topic keeps records, -1 for as long as there is room; None where nobody says, or there is none."""

    def max_message_bytes(self, topic: str) -> int | None:
        """What one batch of records may have at most in a topic (`batch_bytes`); None where nobody says."""

    def not_writable(self, topic: str) -> Refused | None:
        """Why we may not write to a topic; None where we may, or the broker does not say."""

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
        """The messages at offsets start to end - 1 of one partition, in chunks; gaps in the offsets are passed over.

        With a `topic_id`, Kafka is asked first whether its topic is that one, or `AnotherTopic` is raised.

        Where the first of them are gone, the rest is read if there is a list `gone`, to which the error is added: what
        is gone may be what failed attempts left, or markers, which nobody misses. Raises `Gone`, `Refused`, and
        `Unavailable` when the broker has been away, or has had nothing there, for longer than `patience_s`.
        """

    def send(self, topic: str, records: Iterable[Record], *, patience_s: float) -> dict[int, int]:
        """Write records, durably and in order, outside of transactions; by partition, the offset after the last one.

        Raises `Refused`, `NotTaken` where the broker did not take all of them within `patience_s`, or takes one of them
        never, and `Unavailable` when it has been away for longer.
        """

    def transactions(self, settings: TransactionSettings) -> Transactions:
        """Transactions of which nothing is begun."""

    def commit_offsets(self, group: str, positions: Mapping[str, Offsets], *, wait: bool = True) -> None:
        """Set the offsets of a consumer group, by topic. Where Kafka does not let us, or is away, nothing happens."""

    def delete_groups(self, groups: Sequence[str]) -> None:
        """Remove consumer groups that are there and that Kafka lets us remove."""


def gone_error(topic: str, partition: int, at: int, first: int, end: int) -> Gone:
    """The error for a range from `at` to `end` of which Kafka has nothing before `first`."""
    last = (min(first, end) if first > at else end) - 1
    return Gone(
        f"offsets {at} to {last} of {topic}[{partition}] are gone from Kafka",
        hint="choose a moment whose records Kafka still has, or a snapshot, which keeps those in flight",
    )


def check_read(kafka: Kafka, topic: str, topic_id: str) -> None:
    """Raise `AnotherTopic` where Kafka's topic is not the one of this id, if there is one."""
    if topic_id and are_two(topic_id, now := kafka.topic_id(topic)):
        raise another_read(topic, topic_id, now)


def another_read(topic: str, topic_id: str, now: str) -> AnotherTopic:
    """The error for records of the past whose topic is not there any more, and another one has its name."""
    return AnotherTopic(
        f"topic {topic!r} is another one than was read then: it was the one of id {topic_id}, and was deleted and made "
        f"again since; now it is the one of id {now}",
        hint="an input archive keeps what an app reads, whatever becomes of the topic: docs/archive.md; or choose a "
        "later moment",
    )


def topic_gone(kafka: str, topic: str) -> Refused:
    """The error for records that are published to a topic that was there."""
    return Refused(
        f"{kafka} does not take records for {topic!r}: there is no such topic any more",
        hint="make it again; nothing is lost",
    )
