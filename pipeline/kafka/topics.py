"""Kafka's topics and their offsets, as slackwater needs them."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future

from confluent_kafka import Consumer, IsolationLevel, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from ...errors import NotFound, Refused, Unavailable
from .clients import GONE, POLL_S, Kafka, clients, kept, properties, server, unavailable
from .patience import Patience
from .rights import lacking

__all__ = [
    "commit_offsets",
    "create_topic",
    "create_topics",
    "delete_groups",
    "delete_topics",
    "end_offsets",
    "offsets",
    "topics",
    "wait_for",
]


_PASSING = (
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.FENCED_LEADER_EPOCH,
    KafkaError.UNKNOWN_LEADER_EPOCH,
)
_SILENT = (KafkaError._TRANSPORT, KafkaError._TIMED_OUT, KafkaError.REQUEST_TIMED_OUT)


def _admin(kafka: Kafka) -> AdminClient:
    key = kept("admin", kafka)
    if key not in clients:
        clients[key] = AdminClient(properties(kafka))
    return clients[key]


def topics(kafka: Kafka, *, timeout_s: float = 10) -> dict[str, int]:
    """Number of partitions by name of topic. Raises `Unavailable`."""
    try:
        listed = _admin(kafka).list_topics(timeout=timeout_s).topics
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
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            return _offsets(kafka, topic, max(0.1, deadline - time.monotonic()))
        except KafkaException as error:
            # A topic made a moment ago, or a broker that starts, has no leaders yet.
            if error.args[0].code() not in _PASSING or time.monotonic() > deadline:
                raise unavailable(kafka, error) from None
        time.sleep(POLL_S)


def _offsets(kafka: Kafka, topic: str, timeout_s: float) -> tuple[tuple[int, ...], tuple[int, ...]]:
    client = _admin(kafka)
    meta = client.list_topics(topic, timeout=timeout_s).topics.get(topic)
    if meta is not None and (refused := lacking(kafka, meta.error, "Describe", topic)):
        raise refused
    if meta is None or not meta.partitions or (meta.error is not None and meta.error.code() in GONE):
        raise NotFound("Kafka topic", topic, (name for name in topics(kafka) if not name.startswith("__")))
    partitions = [TopicPartition(topic, partition) for partition in sorted(meta.partitions)]

    def ask(spec: OffsetSpec) -> tuple[int, ...]:
        asked = client.list_offsets(
            dict.fromkeys(partitions, spec),
            isolation_level=IsolationLevel.READ_COMMITTED,
            request_timeout=timeout_s,
        )
        return tuple(asked[partition].result().offset for partition in partitions)

    return ask(OffsetSpec.earliest()), ask(OffsetSpec.latest())


def end_offsets(kafka: Kafka, topic: str, *, timeout_s: float = 10) -> tuple[int, ...] | None:
    """End offset of each partition, or None when there is no such topic. Raises `Unavailable`."""
    try:
        return offsets(kafka, topic, timeout_s=timeout_s)[1]
    except NotFound:
        return None


def create_topic(kafka: Kafka, topic: str, partitions: int) -> None:
    """Make the topic if there is none; one that is there stays as it is. Raises as `create_topics`."""
    create_topics(kafka, {topic: partitions})


def create_topics(
    kafka: Kafka, partitions: Mapping[str, int], *, only_ask: bool = False, timeout_s: float = 30
) -> None:
    """Make those of these topics that there are not; those that are there stay as they are.

    Args:
        kafka: Client properties.
        partitions: How many each topic gets, by its name.
        only_ask: Have the broker say whether it would, and make none.
        timeout_s: How long the broker may take.

    Raises:
        Refused: The broker does not allow it.
        Unavailable: The broker did not answer in time.
    """
    known = topics(kafka, timeout_s=timeout_s)
    missing = {topic: count for topic, count in partitions.items() if topic not in known}
    if not missing:
        return
    # Replication as the brokers' default says (-1); one Arrow message may hold up to a megabyte of rows.
    large = {"max.message.bytes": "8388608"}
    new = [NewTopic(topic, num_partitions=n, replication_factor=-1, config=large) for topic, n in missing.items()]
    asked = _admin(kafka).create_topics(new, request_timeout=timeout_s, validate_only=only_ask)
    for topic, answer in asked.items():
        try:
            answer.result()
        except KafkaException as error:
            code = error.args[0].code()
            if code == KafkaError.TOPIC_ALREADY_EXISTS:
                continue
            if code in _SILENT:
                raise unavailable(kafka, error) from None
            refused = Refused(f"{server(kafka)} refuses to create topic {topic!r}: {error.args[0].str()}")
            raise (lacking(kafka, error.args[0], "Create", topic) or refused) from None
    if only_ask:
        return
    # Brokers hear of it a little later than its maker, and whoever asks them meanwhile hears that there is none.
    deadline = time.monotonic() + timeout_s
    while not missing.keys() <= topics(kafka, timeout_s=timeout_s).keys() and time.monotonic() < deadline:
        time.sleep(POLL_S)


def commit_offsets(kafka: Kafka, group: str, positions: Mapping[str, tuple[int, ...]], *, wait: bool) -> None:
    """Set a consumer group's offsets, by topic and partition; nobody is a member of the group.

    Through a consumer: the admin client's call for it ends the whole process when a broker goes away in the middle
    (an assertion in librdkafka).

    Raises:
        KafkaException: Kafka refuses it, or does not answer. Without `wait` nobody is told.
    """
    key = kept("group", kafka, group)
    if key not in clients:
        # Without a right on the group a commit never ends, nor does the consumer's end.
        try:
            _admin(kafka).describe_consumer_groups([group], request_timeout=3)[group].result()
        except KafkaException as error:
            if error.args[0].code() == KafkaError.GROUP_AUTHORIZATION_FAILED:
                raise
        clients[key] = Consumer(properties(kafka, **{"group.id": group, "enable.auto.commit": False}))
    consumer: Consumer = clients[key]
    places = [
        TopicPartition(topic, partition, offset)
        for topic, offsets in positions.items()
        for partition, offset in enumerate(offsets)
    ]
    consumer.commit(offsets=places, asynchronous=not wait)


def delete_groups(kafka: Kafka, groups: Sequence[str], *, timeout_s: float = 10) -> None:
    """Remove consumer groups; those that are not there, or that Kafka does not let us remove, stay as they are.

    Raises `Unavailable`.
    """
    if groups:
        _each(kafka, _admin(kafka).delete_consumer_groups(list(groups), request_timeout=timeout_s))


def delete_topics(kafka: Kafka, names: Sequence[str], *, timeout_s: float = 30) -> tuple[str, ...]:
    """Remove topics; no error for those that are not there. Returns those that Kafka does not let us remove.

    Raises `Unavailable`.
    """
    return _each(kafka, _admin(kafka).delete_topics(list(names), request_timeout=timeout_s)) if names else ()


def _each(kafka: Kafka, asked: Mapping[str, Future[object]]) -> tuple[str, ...]:
    """Wait for all of these; returns those that were refused, without those that are gone already."""
    refused = []
    for name, answer in asked.items():
        try:
            answer.result()
        except KafkaException as error:
            code = error.args[0].code()
            if code in _SILENT:
                raise unavailable(kafka, error) from None
            if code not in (*GONE, KafkaError.GROUP_ID_NOT_FOUND):
                refused.append(name)
    return tuple(refused)


def wait_for(kafka: Kafka, patience_s: float) -> None:
    """Return once the broker answers. Raises `Unavailable` after `patience_s`."""
    patience = Patience(server(kafka), patience_s)
    while True:
        try:
            topics(kafka, timeout_s=2)
        except Unavailable as error:
            patience.waited(error.message)
            time.sleep(0.2)
        else:
            patience.answered()
            return
