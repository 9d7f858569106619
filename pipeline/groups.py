"""Consumer groups that show Kafka's own tools how far an app has read.

Nothing here reads them back: the manifests say where a stage goes on. But whoever watches a cluster looks at lag by
group, so each stage has one, `slackwater-<app>-<stage>`, and its offsets follow the stage's commits.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor

from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException, TopicPartition

from .kafka import admin

__all__ = ["Announcer", "announce", "group_of"]

_log = logging.getLogger("slackwater")


def group_of(app: str, stage: str) -> str:
    """The consumer group of a stage."""
    return f"slackwater-{app}-{stage}"


def announce(
    kafka: Mapping[str, str], app: str, stage: str, positions: Mapping[str, tuple[int, ...]], *, timeout_s: float = 5
) -> bool:
    """Set the offsets of a stage's group, by topic. False, and a word in the log, where Kafka does not let us."""
    offsets = [
        TopicPartition(topic, partition, offset)
        for topic, ends in positions.items()
        for partition, offset in enumerate(ends)
    ]
    wanted = ConsumerGroupTopicPartitions(group_of(app, stage), offsets)
    try:
        (answer,) = admin(kafka).alter_consumer_group_offsets([wanted], request_timeout=timeout_s).values()
        answer.result(timeout_s + 1)
    except (KafkaException, TimeoutError) as error:
        _log.info("offsets of group %s are not set: %s", group_of(app, stage), error)
        return False
    return True


class Announcer:
    """Announces the stages' positions now and then, on a thread of its own: no batch waits for it."""

    def __init__(self, kafka: Mapping[str, str], app: str) -> None:
        self._kafka = kafka
        self._app = app
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="slackwater-groups")
        self._under_way: Future[None] | None = None
        self._announced: dict[str, Mapping[str, tuple[int, ...]]] = {}

    def look(self, positions: Mapping[str, Mapping[str, tuple[int, ...]]]) -> None:
        """Announce, in the background, the stages whose offsets (by topic) have moved."""
        if self._under_way is None or self._under_way.done():
            moved = {stage: topics for stage, topics in positions.items() if self._announced.get(stage) != topics}
            if moved:
                self._under_way = self._thread.submit(self._announce, moved)

    def close(self, positions: Mapping[str, Mapping[str, tuple[int, ...]]]) -> None:
        """Announce where the stages ended."""
        self._thread.shutdown()
        self._under_way = None
        self._announce({stage: topics for stage, topics in positions.items() if self._announced.get(stage) != topics})

    def _announce(self, positions: Mapping[str, Mapping[str, tuple[int, ...]]]) -> None:
        for stage, topics in positions.items():
            if announce(self._kafka, self._app, stage, topics, timeout_s=2):
                self._announced[stage] = topics
