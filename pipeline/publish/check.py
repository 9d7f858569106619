"""What is refused of sinks before anything starts: topics that are not there, not writable, or read by the app."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...errors import NotFound, Refused
from ..api.app import App
from ..api.stage import Stage
from ..kafka.protocol import Kafka
from .claimed import written


def check_targets(
    kafka: Kafka, app: App, stages: Sequence[Stage], reads: Mapping[str, str], publishes: Mapping[str, str] | None
) -> None:
    """See that sinks can be published.

    Args:
        kafka: Kafka, opened.
        app: As declared.
        stages: Those that are to run.
        reads: Topics that the app reads under another name, by the declared name.
        publishes: The topic of each sink in a clone; None where they are as declared.

    Raises:
        NotFound: A topic is not there.
        Refused: It may not be written, or the app reads it.
        Unavailable: The broker did not answer.
    """
    wanted = {
        (publishes or {}).get(one.name, one.name): stage.name
        for stage in stages
        for one in written(stage, publishes)
        if one.kind == "topic"
    }
    if not wanted:
        return
    read = {reads.get(name, name) for name in app.topics}
    there = kafka.partition_counts()
    for topic, stage in wanted.items():
        if topic not in there:
            known = [name for name in there if not name.startswith("__")]
            raise NotFound(
                "Kafka topic", topic, known, hint=f"stage {stage!r} has a sink that publishes there: make it"
            )
        if topic in read:
            raise Refused(
                f"app {app.name!r} reads the topic {topic!r}, and its sink publishes there: records would go round for "
                "ever",
                hint="let the sink publish to another topic",
            )
        if refused := kafka.not_writable(topic):
            raise refused
