"""Consumer groups that show Kafka's own tools how far an app has read.

Nothing here reads them back: the manifests say where a stage goes on. But whoever watches a cluster looks at lag by
group, so each stage has one, `slackwater-<app>-<stage>`, and its offsets follow the stage's commits.
"""

from __future__ import annotations

from collections.abc import Mapping

from .protocol import Kafka, Offsets


def group_of(app: str, stage: str) -> str:
    """The consumer group of a stage."""
    return f"slackwater-{app}-{stage}"


def announce(kafka: Kafka, app: str, stage: str, positions: Mapping[str, Offsets], *, wait: bool = True) -> None:
    """Set the offsets of a stage's group: a courtesy to watchers, on which nothing depends, and so it does not fail."""
    kafka.commit_offsets(group_of(app, stage), positions, wait=wait)


class Announcer:
    """Announces the stages' positions now and then; nobody waits for it."""

    def __init__(self, kafka: Kafka, app: str) -> None:
        self._kafka = kafka
        self._app = app
        self._announced: dict[str, Mapping[str, Offsets]] = {}

    def announce_moved(self, positions: Mapping[str, Mapping[str, Offsets]]) -> None:
        """Announce the stages whose offsets have moved."""
        for stage, topics in positions.items():
            if self._announced.get(stage) != topics:
                announce(self._kafka, self._app, stage, topics, wait=False)
                self._announced[stage] = topics
