"""Sinks before anything is published: what is refused of them, their internal topics, and where they begin."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql.types import StructType

from ...errors import NotFound, Refused
from ...store.objects.protocol import ObjectStore
from ...store.versions import apps, published
from ...store.versions.manifest import Manifest, Sink
from ..api import sink as api
from ..api.app import App
from ..api.stage import Stage
from ..kafka.open import end_offsets
from ..kafka.protocol import FOR_EVER, Kafka
from ..messages import outgoing
from ..source.spark_types import arrow_of

_PATIENCE_S = 30.0


def written(stage: Stage, publishes: Mapping[str, str] | None) -> Iterator[api.Sink]:
    """The sinks that a stage writes: all, or, in a clone, those that it was told to publish."""
    return (one for one in stage.sinks if publishes is None or one.name in publishes)


def check_targets(
    kafka: Kafka, app: App, stages: Sequence[Stage], reads: Mapping[str, str], publishes: Mapping[str, str] | None
) -> None:
    """See that the sinks of stages that are to run can be published.

    `reads` are topics that the app reads under another name, by the declared name; `publishes` is the topic of each
    sink in a clone, None where they are as declared. Raises `NotFound`, and `Refused` where one may not be written, or
    the app reads it.
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
            hint = f"stage {stage!r} has a sink that publishes there: make it"
            raise NotFound("Kafka topic", topic, known, hint=hint)
        if topic in read:
            raise Refused(
                f"app {app.name!r} reads the topic {topic!r}, and its sink publishes there: records would go round for "
                "ever",
                hint="let the sink publish to another topic",
            )
        if refused := kafka.not_writable(topic):
            raise refused


def create_internal(
    kafka: Kafka, app: str, stages: Sequence[Stage], publishes: Mapping[str, str] | None, *, only_ask: bool
) -> None:
    """Make the internal topics of the stages' sinks, where there are none. Raises `Refused`."""
    wanted = {api.internal_topic(app, at.name, one.name): 1 for at in stages for one in written(at, publishes)}
    if wanted:
        kafka.create_topics(wanted, only_ask=only_ask, config=FOR_EVER)


@dataclass(frozen=True, slots=True)
class InternalTopics:
    """What a promotion asks of Kafka (`keep.promote.switch.Promotable`)."""

    kafka: Kafka

    def ends(self, topic: str, /) -> tuple[int, ...] | None:
        """The end offset of each partition, or None when there is no such topic."""
        return end_offsets(self.kafka, topic)

    def internal(self, app: str, stage: str, sink: str, /) -> tuple[str, int]:
        """The internal topic of a sink, which is made where there is none, and where it ends."""
        topic = api.internal_topic(app, stage, sink)
        self.kafka.create_topics({topic: 1}, config=FOR_EVER)
        return topic, self.kafka.offsets(topic)[1][0]


def prepare(stage: Stage, emits: Mapping[str, StructType], publishes: Mapping[str, str] | None) -> None:
    """Register schemas of what the sinks will publish. Raises `Refused`."""
    for one in written(stage, publishes):
        if one.encoding is not None:
            outgoing.prepare(one.encoding, arrow_of(emits[one.name]), _PATIENCE_S)


def claimed(
    store: ObjectStore,
    kafka: Kafka,
    stage: Stage,
    draft: Manifest,
    publishes: Mapping[str, str] | None,
    accept_loss: bool,
) -> dict[str, Sink]:
    """The sinks of a claim: those that were there go on, and new ones begin with it.

    Those that a promotion gave which was withdrawn are given up: nothing of them was to be published.

    Raises `Refused` where one is gone from the program and not all of its rows are published, which `accept_loss` gives
    up.
    """
    declared = {one.name: one for one in written(stage, publishes)}
    found, promotion = {}, draft.promotion
    withdrawn = promotion is not None and promotion.to == draft.app and apps.outcome(store, promotion) is False
    for name, sink in draft.sinks.items():
        if withdrawn:
            continue
        if name in declared and declared[name].kind == sink.kind:
            found[name] = sink
        elif not accept_loss and (behind := published.behind(sink, published.newest(store, draft, name))):
            raise Refused(
                f"stage {draft.stage!r} no longer has the sink {name!r}, and not all of its rows are published yet: "
                f"{behind:,} to go",
                hint="run the program that has it until `slackwater status` shows that all is published, or give "
                "these rows up by --accept-loss",
            )
    for name in declared.keys() - found.keys():
        topic = api.internal_topic(draft.app, stage.name, name)
        found[name] = Sink(topic, kafka.offsets(topic)[1][0], draft.version, declared[name].kind)
    return {name: found[name] for name in declared}
