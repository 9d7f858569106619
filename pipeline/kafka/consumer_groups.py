"""Consumer groups that show Kafka's own tools how far an app has read.

Nothing here reads them back: the manifests say where a stage goes on. But whoever watches a cluster looks at lag by
group, so each stage has one, `slackwater-<app>-<stage>`, and its offsets follow the stage's commits.
"""

from __future__ import annotations

from collections.abc import Mapping

from confluent_kafka import KafkaException

from .topics import commit_offsets, delete_groups

__all__ = ["Announcer", "announce", "forget", "group_of"]

Positions = Mapping[str, tuple[int, ...]]
"""Offsets by topic."""


def group_of(app: str, stage: str) -> str:
    """The consumer group of a stage."""
    return f"slackwater-{app}-{stage}"


def announce(kafka: Mapping[str, str], app: str, stage: str, positions: Positions, *, wait: bool = True) -> None:
    """Set the offsets of a stage's group, by topic. Where Kafka does not let us, or is away, nothing happens."""
    try:
        commit_offsets(kafka, group_of(app, stage), positions, wait=wait)
    except KafkaException:
        return  # a courtesy to watchers, on which nothing depends


class Announcer:
    """Announces the stages' positions now and then; nobody waits for it."""

    def __init__(self, kafka: Mapping[str, str], app: str) -> None:
        self._kafka = kafka
        self._app = app
        self._announced: dict[str, Positions] = {}

    def look(self, positions: Mapping[str, Positions]) -> None:
        """Announce the stages whose offsets have moved."""
        for stage, topics in positions.items():
            if self._announced.get(stage) != topics:
                announce(self._kafka, self._app, stage, topics, wait=False)
                self._announced[stage] = topics


def forget(kafka: Mapping[str, str], app: str, stage: str) -> None:
    """Remove the group of a stage that is gone; no error when there is none, or Kafka does not let us.

    Raises:
        Unavailable: Kafka did not answer.
    """
    delete_groups(kafka, [group_of(app, stage)])
