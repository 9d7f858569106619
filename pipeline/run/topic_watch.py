"""Detects, while an app runs, that one of its topics was deleted and created again under its name.

Planners of users' topics notice that themselves (`source.planner`). Offsets of repartition topics and of sinks'
internal topics are not read while an app runs, so their ids are checked together now and then, and after failures.
"""

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from ...errors import AnotherTopic, SlackwaterError
from ...state.records import are_two, is_known
from ..batch.stage_runner import StageRunner
from ..kafka.protocol import Kafka
from ..publish.prepare import another_internal
from .start_positions import another_channel, another_users_topic

_LOOK_S = 5.0


@dataclass(slots=True)
class TopicWatch:
    """Watches the topics of one runner's stages. `look` is thread-safe."""

    kafka: Kafka
    app: str
    runners: Sequence[StageRunner]
    error: AnotherTopic | None = field(default=None, init=False)
    """Error of the first topic found re-created; None if there is none."""

    def work(self, over: threading.Event) -> None:
        """Check every few seconds, until `over` is set or a topic is re-created: one request each time."""
        while self.error is None and not over.wait(_LOOK_S):
            self.look(users=False)

    def look(self, *, users: bool = True) -> AnotherTopic | None:
        """Return the error of a re-created topic; None if all are the same or Kafka does not answer.

        Without `users`, users' topics are left out.
        """
        topics = {entry[0]: entry for runner in self.runners for entry in self._topics(runner) if users or entry[2]}
        try:
            now = self.kafka.topic_ids(topics.keys()) if topics else {}
        except SlackwaterError:
            return None  # a caller that needs Kafka reports the error
        for topic, topic_id in now.items():
            _, previous_id, kind, hint, stage = topics[topic]
            if are_two(previous_id, topic_id):
                self.error = AnotherTopic(
                    f"stage {stage!r} cannot go on: {kind or 'topic'} {topic!r} was deleted and made again while the "
                    f"app ran: it was the one of id {previous_id}, and now it is the one of id {topic_id}",
                    hint=hint,
                )
                break
        return self.error

    def _topics(self, runner: StageRunner) -> Iterator[tuple[str, str, str, str, str]]:
        """Yield topic, id, kind (empty for a user's topic), hint and stage, for all topics with a known id."""
        head = runner.head
        entries = [
            *(
                (at.topic, at.topic_id, "repartition topic", another_channel(self.app))
                if at.upstream
                else (at.topic, at.topic_id, "", another_users_topic(self.app, at.topic))
                for at in head.inputs.values()
            ),
            *((at.topic, at.topic_id, "repartition topic", another_channel(self.app)) for at in head.outputs.values()),
            *((at.topic, at.topic_id, "internal topic", another_internal()) for at in head.sinks.values()),
        ]
        yield from ((*entry, head.stage) for entry in entries if is_known(entry[1]))
