"""Kafka's topics and their offsets, as slackwater needs them."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import TypeVar

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AclOperation, NewTopic, OffsetSpec

from ...errors import NotFound, Refused, SlackwaterError, Unavailable
from .clients import GONE, POLL_S, Kafka, asking, clients, lacking, patience_with, server, unavailable

_PASSING = (
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.FENCED_LEADER_EPOCH,
    KafkaError.UNKNOWN_LEADER_EPOCH,
)
_SILENT = (KafkaError._TRANSPORT, KafkaError._TIMED_OUT, KafkaError.REQUEST_TIMED_OUT)
_Answer = TypeVar("_Answer")


def partition_counts(kafka: Kafka, *, timeout_s: float = 10) -> dict[str, int]:
    """Number of partitions by name of topic. Raises `Unavailable`."""
    try:
        with asking(kafka):
            listed = clients(kafka).admin.list_topics(timeout=timeout_s).topics
    except KafkaException as error:
        raise unavailable(kafka, error) from None
    return {name: len(meta.partitions) for name, meta in listed.items()}


def offsets(kafka: Kafka, topic: str, *, timeout_s: float = 10) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Earliest and end offset of each partition, the end as a committed reader sees it.

    Raises:
        NotFound: There is no such topic.
        Refused: The broker does not let us look.
        Unavailable: The broker did not answer in time.
    """

    def ask(left_s: float) -> tuple[tuple[int, ...], tuple[int, ...]]:
        count = _count(kafka, topic, left_s)
        earliest, latest = ([spec] * count for spec in (OffsetSpec.earliest(), OffsetSpec.latest()))
        return _list(kafka, topic, earliest, left_s), _list(kafka, topic, latest, left_s)

    return _until_led(kafka, ask, timeout_s)


def start_offsets(kafka: Kafka, topic: str, *, timeout_s: float = 10) -> tuple[int, ...] | None:
    """The first offset that each partition still holds, None when there is no such topic. Raises as `offsets`."""

    def ask(left_s: float) -> tuple[int, ...]:
        return _list(kafka, topic, [OffsetSpec.earliest()] * _count(kafka, topic, left_s), left_s)

    try:
        return _until_led(kafka, ask, timeout_s)
    except NotFound:
        return None


def offsets_since(kafka: Kafka, topic: str, times_ms: Sequence[int]) -> tuple[int, ...]:
    """Of each partition the offset of its first record that is as late as its time, in ms since 1970, or later.

    -1 where there is none. Raises `Unavailable`.
    """
    specs = [OffsetSpec.for_timestamp(at) for at in times_ms]
    return _until_led(kafka, lambda left_s: _list(kafka, topic, specs, left_s), 10)


def end_offsets(kafka: Kafka, topic: str, *, timeout_s: float = 10) -> tuple[int, ...] | None:
    """End offset of each partition, or None when there is no such topic. Raises `Refused` and `Unavailable`."""
    try:
        return offsets(kafka, topic, timeout_s=timeout_s)[1]
    except NotFound:
        return None


class EndOffsets:
    """Where topics end, each asked for once; after Kafka's first silence no more, as each question takes seconds.

    Attributes:
        silence: Why nothing more is known; empty while Kafka answers.
    """

    def __init__(self, kafka: Kafka, *, timeout_s: float) -> None:
        self.silence = ""
        self._kafka = kafka
        self._timeout_s = timeout_s
        self._known: dict[str, tuple[int, ...] | None] = {}

    def __call__(self, topic: str) -> tuple[int, ...] | None:
        """End offset of each partition; None when it is not known, or there is no such topic."""
        if topic not in self._known and not self.silence:
            try:
                self._known[topic] = end_offsets(self._kafka, topic, timeout_s=self._timeout_s)
            except SlackwaterError as error:
                self.silence = error.message
        return self._known.get(topic)


def _until_led(kafka: Kafka, ask: Callable[[float], _Answer], timeout_s: float) -> _Answer:
    """What `ask` gives within the seconds it is told, tried again while partitions have no leader."""
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            with asking(kafka):
                return ask(max(0.1, deadline - time.monotonic()))
        except KafkaException as error:
            # A topic made a moment ago, or a broker that starts, has no leaders yet.
            if error.args[0].code() not in _PASSING or time.monotonic() > deadline:
                raise unavailable(kafka, error) from None
        time.sleep(POLL_S)


def _count(kafka: Kafka, topic: str, timeout_s: float) -> int:
    """The topic's number of partitions. Raises `NotFound`, or `Refused` where the broker does not let us look."""
    meta = clients(kafka).admin.list_topics(topic, timeout=timeout_s).topics.get(topic)
    if meta is not None and (refused := lacking(kafka, meta.error, "Describe", topic)):
        raise refused
    if meta is None or not meta.partitions or (meta.error is not None and meta.error.code() in GONE):
        raise NotFound("Kafka topic", topic, (name for name in partition_counts(kafka) if not name.startswith("__")))
    return len(meta.partitions)


def _list(kafka: Kafka, topic: str, specs: Sequence[OffsetSpec], timeout_s: float) -> tuple[int, ...]:
    """The offset that each partition's spec asks for."""
    places = {TopicPartition(topic, partition): spec for partition, spec in enumerate(specs)}
    admin, committed = clients(kafka).admin, IsolationLevel.READ_COMMITTED
    asked = admin.list_offsets(places, isolation_level=committed, request_timeout=timeout_s)
    return tuple(asked[place].result().offset for place in places)


def create_topics(
    kafka: Kafka,
    partitions: Mapping[str, int],
    *,
    only_ask: bool = False,
    timeout_s: float = 30,
    config: Mapping[str, str] | None = None,
) -> None:
    """Make those of these topics that there are not, with so many partitions; the others stay as they are.

    With `only_ask`, the broker says whether it would, and makes none. `config` are further properties of the topics.

    Raises:
        Refused: The broker does not allow it.
        Unavailable: The broker did not answer in time.
    """
    known = partition_counts(kafka, timeout_s=timeout_s)
    missing = {topic: count for topic, count in partitions.items() if topic not in known}
    if not missing:
        return
    # Replication as the brokers' default says (-1); one Arrow message may hold up to a megabyte of rows.
    large = {"max.message.bytes": "8388608", **(config or {})}
    new = [NewTopic(topic, num_partitions=n, replication_factor=-1, config=large) for topic, n in missing.items()]
    asked = clients(kafka).admin.create_topics(new, request_timeout=timeout_s, validate_only=only_ask)
    for topic, error in failures(kafka, asked, (KafkaError.TOPIC_ALREADY_EXISTS,)):
        refused = Refused(f"{server(kafka)} refuses to create topic {topic!r}: {error.str()}")
        raise lacking(kafka, error, "Create", topic) or refused
    if only_ask:
        return
    # Brokers hear of it a little later than its maker, and whoever asks them meanwhile hears that there is none.
    deadline = time.monotonic() + timeout_s
    while not missing.keys() <= partition_counts(kafka, timeout_s=timeout_s).keys() and time.monotonic() < deadline:
        time.sleep(POLL_S)


def not_writable(kafka: Kafka, topic: str, *, timeout_s: float = 10) -> Refused | None:
    """Why we may not write to a topic; None where we may, or the broker does not say. Raises `Unavailable`."""
    asked = clients(kafka).admin.describe_topics(
        TopicCollection([topic]), include_authorized_operations=True, request_timeout=timeout_s
    )
    for _, error in failures(kafka, asked, ()):
        return lacking(kafka, error, "Describe", topic)
    allowed = asked[topic].result().authorized_operations
    if not allowed or AclOperation.WRITE in allowed or AclOperation.ALL in allowed:
        return None
    return lacking(kafka, KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED), "Write", topic)


def delete_topics(kafka: Kafka, names: Sequence[str]) -> tuple[str, ...]:
    """Remove topics that are there; returns those that Kafka does not let us remove. Raises `Unavailable`."""
    if not names:
        return ()
    asked = clients(kafka).admin.delete_topics(list(names), request_timeout=30)
    return tuple(name for name, _ in failures(kafka, asked, GONE))


def delete_records(kafka: Kafka, topic: str, offset: int) -> None:
    """Delete what a topic of one partition has before an offset; where Kafka does not let us, or is away, it stays."""
    place = TopicPartition(topic, 0, offset)
    with suppress(KafkaException):
        clients(kafka).admin.delete_records([place], request_timeout=10)[place].result()


def failures(
    kafka: Kafka, asked: Mapping[str, Future[object]], fine: Collection[int]
) -> Iterator[tuple[str, KafkaError]]:
    """Those of these requests that the broker refused, and how, unless the answer's code is among `fine`.

    Raises `Unavailable`.
    """
    for name, answer in asked.items():
        try:
            answer.result()
        except KafkaException as error:
            if error.args[0].code() in _SILENT:
                raise unavailable(kafka, error) from None
            if error.args[0].code() not in fine:
                yield name, error.args[0]


def wait_for(kafka: Kafka, patience_s: float) -> None:
    """Return once the broker answers. Raises `Unavailable` after `patience_s`."""
    patient = patience_with(kafka, patience_s)
    while True:
        try:
            partition_counts(kafka, timeout_s=2)
        except Unavailable as error:
            patient.waited(error.message)
            time.sleep(0.2)
        else:
            patient.answered()
            return
