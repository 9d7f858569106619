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
                self._kafka.commit_offsets(group_of(self._app, stage), topics, wait=False)
                self._announced[stage] = topics
