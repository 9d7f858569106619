"""Whether the topics of a cut are still those whose offsets it has, as Kafka says."""

from collections.abc import Iterator

from ...errors import SlackwaterError
from ...state.topics import TopicState, are_two, why_another
from ...store.objects.protocol import ObjectStore
from ...store.versions import history
from ...store.versions.manifest import Manifest
from ..cut import replicas
from ..cut.graph import Cut
from ..cut.kafka_topics import Topics
from .report import Verified

TOPICS_SAY = "to check that topics were not recreated"
"""Why verifying asks Kafka's brokers."""
_Place = tuple[str, str]
"""What a stage does with a topic, and the topic."""


def check_topics(store: ObjectStore, cut: Cut, kafka: Topics, not_looked: list[str]) -> Iterator[Verified]:
    """See that each topic that stages of the cut read or wrote is the one that it was.

    One that was made again since, and with which the newest version goes on, is no difference: nothing is missing then
    but the way to read once more what was read. That, and why Kafka was not asked, is added to `not_looked`.
    """
    if (replica := replicas.find(store, cut.app)) is not None and replica.state == "copy":
        return  # its topics are in another Kafka
    states: dict[str, TopicState | None] = {}
    for stage, manifest in sorted(cut.stages.items()):
        for (does, topic), (kept, offsets) in _topics(manifest).items():
            try:
                if topic not in states:
                    states[topic] = kafka.state(topic)
            except SlackwaterError as error:
                if any(topic_id for each in cut.stages.values() for topic_id, _ in _topics(each).values()):
                    why = error.message
                    not_looked.append(f"whether topics are still those that were read was not looked at: {why}")
                return
            now, who = states[topic], f"{stage}@v{manifest.version}"
            if now is None:
                yield Verified("topics", topic, (f"{who} {does} topic {topic!r}, which does not exist any more",))
                continue
            why = why_another(topic, kept, offsets, now)
            if why and _goes_on(store, cut, stage, (does, topic), now):
                not_looked.append(f"what {who} {does} cannot be read once more: {why}")
                why = ""
            yield Verified("topics", topic, (f"{who} {does} another topic than is there now: {why}",) if why else ())


def _topics(at: Manifest) -> dict[_Place, tuple[str, tuple[int, ...]]]:
    """The ids and offsets that a version has."""
    found: dict[_Place, tuple[str, tuple[int, ...]]] = {}
    if at.attached is None and not at.retired:
        found |= {("read", each.topic): (each.topic_id, each.offsets) for each in at.inputs.values()}
        found |= {("wrote", each.topic): (each.topic_id, each.ends) for each in at.outputs.values()}
        found |= {("wrote", each.topic): (each.topic_id, (each.end,)) for each in at.sinks.values()}
    return found


def _goes_on(store: ObjectStore, cut: Cut, stage: str, place: _Place, now: TopicState) -> bool:
    """Whether the newest version of a stage has the topic that is there now."""
    head = history.head(store, cut.app, stage)
    kept, offsets = _topics(head).get(place, ("", ())) if head is not None else ("", ())
    return bool(kept) and not are_two(kept, now.id) and not why_another(place[1], kept, offsets, now)
