"""Functions that open a Kafka cluster, wait until it answers, and return end offsets of topics."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from ...common import runtime
from ...errors import NotFound, Refused, SlackwaterError, Unavailable
from ...state.records import TopicState, explain_recreated_topic
from ...store.objects.protocol import ObjectStore
from ...store.versions.manifest import Input
from .login import check_login
from .protocol import Kafka, Offsets, kafka_patience

simulated_clusters: dict[str, Kafka] = {}
"""Clusters of a simulation in this process, by address."""


def open_kafka(
    at: str | Mapping[str, str], store: Callable[[], ObjectStore] | None = None, *, finds_new: bool = False
) -> Kafka:
    """Open Kafka at `host:port` or by librdkafka's client properties; `memory://NAME` is an in-memory Kafka for tests.

    With `store`, sources of that store are topics, too. With `finds_new`, this client adds new files to their lists.

    Makes no request: call `wait_until_available` to check that the brokers answer. Raises `Usage` for invalid login
    settings.
    """
    properties = {"bootstrap.servers": at} if isinstance(at, str) else at
    if store is not None:
        from .sources.topics import SourcedKafka

        return SourcedKafka(open_kafka(properties), store, finds_new)
    if (simulated := simulated_clusters.get(properties["bootstrap.servers"])) is not None:
        return simulated
    if is_in_memory(properties):
        from .memory_server import open_memory_kafka

        return open_memory_kafka(properties)
    check_login(properties)
    # Import late: loading librdkafka takes time, and many commands make no request to Kafka.
    from .librdkafka import LibrdKafka

    return LibrdKafka(properties)


def is_in_memory(properties: Mapping[str, str]) -> bool:
    return properties["bootstrap.servers"].startswith("memory://")


@contextmanager
def served_to_workers(properties: Mapping[str, str]) -> Iterator[Mapping[str, str]]:
    """Yield properties with which other processes of this machine can open this Kafka during the context.

    Raises `Refused` for an in-memory Kafka without topics, because other processes cannot create topics in it.
    """
    if not is_in_memory(properties):
        yield properties
        return
    from .memory import MemoryKafka
    from .memory_server import serve

    kafka = MemoryKafka.named(properties["bootstrap.servers"])
    if not kafka.partition_counts():
        raise Refused(
            f"{kafka.name} is an in-memory Kafka of this process, and has no topic to read",
            hint="in a test, slackwater.testing.run(app, {TOPIC: rows}) creates one; "
            "`slackwater dev up` starts a broker",
        )
    with serve(kafka) as reachable:
        yield reachable


def wait_until_available(kafka: Kafka, patience_s: float) -> None:
    patience = kafka_patience(kafka, patience_s)
    while True:
        try:
            kafka.partition_counts(timeout_s=2)
        except Unavailable as error:
            patience.record_silence(error.message)
            runtime.sleep(0.2)
        else:
            patience.record_answer()
            return


def end_offsets(kafka: Kafka, topic: str, *, timeout_s: float = 10) -> Offsets | None:
    try:
        return kafka.offset_bounds(topic, timeout_s=timeout_s)[1]
    except NotFound:
        return None


@dataclass(slots=True)
class EndOffsets:
    """Cached end offsets of topics.

    After the first timeout it makes no further requests, since each would take seconds.
    """

    kafka: Kafka
    timeout_s: float = field(kw_only=True)
    timeout_message: str = ""
    missing_reasons: dict[str, str] = field(default_factory=dict)
    """Reasons for missing end offsets, by topic: the topic does not exist, or was created again since it was read."""
    _states: dict[str, TopicState] = field(default_factory=dict)

    def __call__(self, source: Input) -> Offsets | None:
        """Return the end offset of each partition of an input's topic.

        Returns None if the offsets are unknown, or if the topic does not exist or was created again since it was read.
        """
        topic = source.topic
        if not (topic in self._states or topic in self.missing_reasons or self.timeout_message):
            try:
                self._states[topic] = self.kafka.topic_state(topic, timeout_s=self.timeout_s)
            except NotFound:
                self.missing_reasons[topic] = f"topic {topic!r} does not exist"
            except SlackwaterError as error:
                self.timeout_message = error.message
        current = self._states.get(topic)
        if current is None:
            return None
        if reason := explain_recreated_topic(topic, source.topic_id, source.offsets, current):
            self.missing_reasons[topic] = reason
            return None
        return current.ends
