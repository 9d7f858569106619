"""Check that Kafka's topics are still those whose offsets a cut has."""

from collections.abc import Iterator

from ...errors import SlackwaterError
from ...state.records import TopicState, are_two, why_another
from ...store.objects.protocol import ObjectStore
from ...store.versions import history
from ...store.versions.manifest import Manifest
from ..cut import replicas
from ..cut.graph import Cut
from ..cut.kafka_topics import Topics
from .report import Verified

TOPICS_SAY = "to check that topics were not recreated"
"""Reason for connecting to Kafka, for messages."""
_Place = tuple[str, str]
"""Verb ("read" or "wrote") and topic."""


def check_topics(store: ObjectStore, cut: Cut, kafka: Topics, not_looked: list[str]) -> Iterator[Verified]:
    """Check that each topic that stages of the cut read or wrote is still the same topic.

    A topic that was recreated, and that the newest version uses, is no difference: only its former records cannot be
    read again. That is added to `not_looked`, and so is the reason why Kafka could not be asked.
    """
    if (replica := replicas.find(store, cut.app)) is not None and replica.state == "copy":
        return  # its topics are in another Kafka
    states: dict[str, TopicState | None] = {}
    for stage, manifest in sorted(cut.stages.items()):
        for (verb, topic), (expected_id, offsets) in _topics(manifest).items():
            try:
                if topic not in states:
                    states[topic] = kafka.state(topic)
            except SlackwaterError as error:
                if any(topic_id for other in cut.stages.values() for topic_id, _ in _topics(other).values()):
                    reason = error.message
                    not_looked.append(f"topics were not checked for being recreated: {reason}")
                return
            current, version = states[topic], f"{stage}@v{manifest.version}"
            if current is None:
                yield Verified("topics", topic, (f"{version} {verb} topic {topic!r}, which no longer exists",))
                continue
            reason = why_another(topic, expected_id, offsets, current)
            if reason and _head_uses(store, cut, stage, (verb, topic), current):
                not_looked.append(f"what {version} {verb} cannot be read again: {reason}")
                reason = ""
            yield Verified(
                "topics", topic, (f"{version} {verb} another topic than the current one: {reason}",) if reason else ()
            )


def _topics(manifest: Manifest) -> dict[_Place, tuple[str, tuple[int, ...]]]:
    """Return the topic ids and offsets of a version."""
    topics: dict[_Place, tuple[str, tuple[int, ...]]] = {}
    if manifest.attached is None and not manifest.retired:
        topics |= {("read", source.topic): (source.topic_id, source.offsets) for source in manifest.inputs.values()}
        topics |= {("wrote", output.topic): (output.topic_id, output.ends) for output in manifest.outputs.values()}
        topics |= {("wrote", sink.topic): (sink.topic_id, (sink.end,)) for sink in manifest.sinks.values()}
    return topics


def _head_uses(store: ObjectStore, cut: Cut, stage: str, place: _Place, current: TopicState) -> bool:
    """Return True if the newest version of a stage uses the topic that exists now."""
    head = history.head(store, cut.app, stage)
    topic_id, offsets = _topics(head).get(place, ("", ())) if head is not None else ("", ())
    return (
        bool(topic_id) and not are_two(topic_id, current.id) and not why_another(place[1], topic_id, offsets, current)
    )
