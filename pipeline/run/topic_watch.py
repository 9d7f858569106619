"""Noticing, while an app runs, that one of its topics was deleted and made again under its name.

Who plans batches of users' topics sees that by itself (`source.planner`). Of repartition topics, and of the internal
topics of sinks, nobody asks for offsets while an app runs: for these, all ids are asked for at once now and then, and
when something fails.
"""

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from ...errors import AnotherTopic, SlackwaterError
from ...state.topics import are_two, is_known
from ..batch.stage_runner import StageRunner
from ..kafka.protocol import Kafka
from ..publish.prepare import another_internal
from .start_positions import another_channel, another_users_topic

_LOOK_S = 5.0


@dataclass(slots=True)
class TopicWatch:
    """Looks after the topics of the stages of one runner. `check` may be called by any thread."""

    kafka: Kafka
    app: str
    runners: Sequence[StageRunner]
    error: AnotherTopic | None = field(default=None, init=False)
    """The first topic that is another one than it was."""

    def work(self, over: threading.Event) -> None:
        """Look every few seconds, until it is `over` or there is something to say: one request each time."""
        while self.error is None and not over.wait(_LOOK_S):
            self.look(users=False)

    def look(self, *, users: bool = True) -> AnotherTopic | None:
        """The error of a topic that is another one now; None where all are the same, or Kafka does not answer.

        Without `users`, their topics are left out.
        """
        kept = {each[0]: each for runner in self.runners for each in self._topics(runner) if users or each[2]}
        try:
            now = self.kafka.topic_ids(kept.keys()) if kept else {}
        except SlackwaterError:
            return None  # whoever needs it says so
        for topic, topic_id in now.items():
            _, before, what, hint, stage = kept[topic]
            if are_two(before, topic_id):
                self.error = AnotherTopic(
                    f"stage {stage!r} cannot go on: {what or 'topic'} {topic!r} was deleted and made again while the "
                    f"app ran: it was the one of id {before}, and now it is the one of id {topic_id}",
                    hint=hint,
                )
                break
        return self.error

    def _topics(self, runner: StageRunner) -> Iterator[tuple[str, str, str, str, str]]:
        """Topic, id, what it is where it is none of users', the way on, and the stage, of all whose ids are known."""
        head = runner.head
        found = [
            *(
                (at.topic, at.topic_id, "repartition topic", another_channel(self.app))
                if at.upstream
                else (at.topic, at.topic_id, "", another_users_topic(self.app, at.topic))
                for at in head.inputs.values()
            ),
            *((at.topic, at.topic_id, "repartition topic", another_channel(self.app)) for at in head.outputs.values()),
            *((at.topic, at.topic_id, "internal topic", another_internal()) for at in head.sinks.values()),
        ]
        yield from ((*each, head.stage) for each in found if is_known(each[1]))
