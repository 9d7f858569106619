"""Sinks before anything is published: what is refused of them, their internal topics, and where they begin."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence

from msgspec.structs import replace
from pyspark.sql.types import StructType

from ...errors import AnotherTopic, NotFound, Refused
from ...snapshot.cut.kafka_topics import internal_topic
from ...state.topics import TopicState, merged, why_another
from ...store.objects.protocol import ObjectStore
from ...store.versions import apps, published
from ...store.versions.manifest import Manifest, Sink
from ..api import sink as api
from ..api.app import App
from ..api.stage import Stage
from ..kafka.protocol import FOR_EVER, Kafka
from ..messages import outgoing
from ..source.spark_types import arrow_of

_log = logging.getLogger("slackwater")

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
    wanted = {internal_topic(app, at.name, one.name): 1 for at in stages for one in written(at, publishes)}
    if wanted:
        kafka.create_topics(wanted, only_ask=only_ask, config=FOR_EVER)


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
            same = _same(kafka, draft.stage, name, sink, accept_loss)
            if same is not None:
                found[name] = same
        elif not accept_loss and (behind := published.behind(sink, published.newest(store, draft, name))):
            raise Refused(
                f"stage {draft.stage!r} no longer has the sink {name!r}, and not all of its rows are published yet: "
                f"{behind:,} to go",
                hint="run the program that has it until `slackwater status` shows that all is published, or give "
                "these rows up by --accept-loss",
            )
    for name in declared.keys() - found.keys():
        topic = internal_topic(draft.app, stage.name, name)
        now = kafka.state(topic)
        found[name] = Sink(topic, now.ends[0], draft.version, declared[name].kind, topic_id=now.id)
    return {name: found[name] for name in declared}


def check_internal(
    kafka: Kafka, stage: Stage, head: Manifest, publishes: Mapping[str, str] | None, accept_loss: bool
) -> None:
    """See that the internal topics of the sinks that go on are those that they were. Raises `AnotherTopic`."""
    declared = {one.name: one.kind for one in written(stage, publishes)}
    for name, sink in head.sinks.items():
        if declared.get(name) == sink.kind:
            _same(kafka, head.stage, name, sink, accept_loss)


def _same(kafka: Kafka, stage: str, name: str, sink: Sink, accept_loss: bool) -> Sink | None:
    """A sink that goes on; None where its internal topic was made again and loss is accepted: it begins anew.

    Raises `AnotherTopic` where loss is not accepted.
    """
    try:
        now = kafka.state(sink.topic)
    except NotFound:
        now = TopicState((0,), (0,))  # it is made before the claim
    if why := why_another(sink.topic, sink.topic_id, (sink.end,), now):
        if not accept_loss:
            raise AnotherTopic(f"sink {name!r} of stage {stage!r} cannot go on: {why}", hint=another_internal())
        _log.warning("sink %r of stage %r begins anew, without what was not published yet: %s", name, stage, why)
        return None
    return replace(sink, topic_id=merged(sink.topic_id, now.id))


def another_internal() -> str:
    """The way on from an internal topic that was made again."""
    return (
        "rows that were committed and not published yet went with it: run the app with --accept-loss, which goes on "
        "with what comes from then on"
    )
