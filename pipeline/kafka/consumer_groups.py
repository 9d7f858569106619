"""Consumer groups that show Kafka's own tools how far an app has read.

Nothing here reads them back: the manifests say where a stage goes on. But whoever watches a cluster looks at lag by
group, so each stage has one, `slackwater-<app>-<stage>`, and its offsets follow the stage's commits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from confluent_kafka import KafkaException, TopicPartition

from .clients import Kafka, clients
from .topics import failures

Positions = Mapping[str, tuple[int, ...]]
"""Offsets by topic and partition."""


def group_of(app: str, stage: str) -> str:
    """The consumer group of a stage."""
    return f"slackwater-{app}-{stage}"


def announce(kafka: Kafka, app: str, stage: str, positions: Positions, *, wait: bool = True) -> None:
    """Set the offsets of a stage's group, of which nobody is a member.

    Where Kafka does not let us, or is away, nothing happens: this is a courtesy to watchers, on which nothing depends.
    It goes through a consumer: the admin client's call for it ends the whole process when a broker goes away in the
    middle (an assertion in librdkafka).
    """
    places = [TopicPartition(topic, at, offset) for topic, each in positions.items() for at, offset in enumerate(each)]
    try:
        clients(kafka).committer(group_of(app, stage)).commit(offsets=places, asynchronous=not wait)
    except KafkaException:
        return


class Announcer:
    """Announces the stages' positions now and then; nobody waits for it."""

    def __init__(self, kafka: Kafka, app: str) -> None:
        self._kafka = kafka
        self._app = app
        self._announced: dict[str, Positions] = {}

    def announce_moved(self, positions: Mapping[str, Positions]) -> None:
        """Announce the stages whose offsets have moved."""
        for stage, topics in positions.items():
            if self._announced.get(stage) != topics:
                announce(self._kafka, self._app, stage, topics, wait=False)
                self._announced[stage] = topics


def delete_groups(kafka: Kafka, groups: Sequence[str]) -> None:
    """Remove consumer groups that are there and that Kafka lets us remove. Raises `Unavailable`."""
    if groups:
        asked = clients(kafka).admin.delete_consumer_groups(list(groups), request_timeout=10)
        tuple(failures(kafka, asked, ()))
