"""Opening Kafka by its address, waiting until it answers, and where topics end."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from ...errors import NotFound, Refused, SlackwaterError, Unavailable
from ...state.topics import TopicState, why_another
from ...store.versions.manifest import Input
from .patience import patience_with
from .protocol import Kafka, Offsets


def open_kafka(at: str | Mapping[str, str]) -> Kafka:
    """Kafka at `host:port`, or as librdkafka's client properties say; or, for tests, `memory://NAME` in this process.

    No request is made: see `wait_for`.
    """
    properties = {"bootstrap.servers": at} if isinstance(at, str) else at
    if in_memory(properties):
        from .memory_server import opened

        return opened(properties)
    # Who asks nothing need not wait until librdkafka is loaded.
    from .librdkafka import LibrdKafka

    return LibrdKafka(properties)


def in_memory(properties: Mapping[str, str]) -> bool:
    """Whether it is a Kafka in the memory of a process."""
    return properties["bootstrap.servers"].startswith("memory://")


@contextmanager
def for_workers(properties: Mapping[str, str]) -> Iterator[Mapping[str, str]]:
    """While this lasts, properties by which other processes of this machine open the same Kafka.

    Raises `Refused` where it is in the memory of this process and has no topic: nobody else can make one.
    """
    if not in_memory(properties):
        yield properties
        return
    from .memory import MemoryKafka
    from .memory_server import served

    kafka = MemoryKafka.named(properties["bootstrap.servers"])
    if not kafka.partition_counts():
        raise Refused(
            f"{kafka.name} is in the memory of this process, which has made no topic there: nothing could be read",
            hint="in a test, slackwater.testing.run(app, {TOPIC: rows}) makes one; `slackwater dev up` starts a broker",
        )
    with served(kafka) as reachable:
        yield reachable


def wait_for(kafka: Kafka, patience_s: float) -> None:
    """Return once the broker answers. Raises `Unavailable` after `patience_s`."""
    patience = patience_with(kafka, patience_s)
    while True:
        try:
            kafka.partition_counts(timeout_s=2)
        except Unavailable as error:
            patience.waited(error.message)
            time.sleep(0.2)
        else:
            patience.answered()
            return


def end_offsets(kafka: Kafka, topic: str, *, timeout_s: float = 10) -> Offsets | None:
    """End offset of each partition, or None when there is no such topic. Raises `Refused`."""
    try:
        return kafka.offsets(topic, timeout_s=timeout_s)[1]
    except NotFound:
        return None


@dataclass(slots=True)
class EndOffsets:
    """Where topics end, each asked for once; after Kafka's first silence no more, as each question takes seconds."""

    kafka: Kafka
    timeout_s: float = field(kw_only=True)
    silence: str = ""
    """Why nothing more is known; empty while Kafka answers."""
    another: dict[str, str] = field(default_factory=dict)
    """By topic, why it is not the one that was read, of those that are another one or do not exist."""
    _known: dict[str, TopicState] = field(default_factory=dict)

    def __call__(self, source: Input) -> Offsets | None:
        """End offset of each partition of an input's topic.

        None when it is not known, and where there is no such topic, or another one than was read.
        """
        topic = source.topic
        if not (topic in self._known or topic in self.another or self.silence):
            try:
                self._known[topic] = self.kafka.state(topic, timeout_s=self.timeout_s)
            except NotFound:
                self.another[topic] = f"topic {topic!r} does not exist"
            except SlackwaterError as error:
                self.silence = error.message
        now = self._known.get(topic)
        if now is None:
            return None
        if why := why_another(topic, source.topic_id, source.offsets, now):
            self.another[topic] = why
            return None
        return now.ends
