"""Checks sinks before publishing, creates their internal topics, and computes the sinks of a claimed stage."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence

from msgspec.structs import replace
from pyspark.sql.types import StructType

from ...common import runtime
from ...errors import AnotherTopic, NotFound, Refused, SlackwaterError, Unavailable
from ...snapshot.cut.kafka_topics import internal_topic
from ...state.records import TopicState, explain_recreated_topic, id_to_store
from ...store.objects.protocol import ObjectStore
from ...store.versions import apps, published
from ...store.versions.manifest import Manifest, Sink
from ..api import sink as api
from ..api.app import App
from ..api.stage import Stage
from ..api.table_sink import TableSink
from ..kafka.protocol import UNLIMITED_RETENTION, Kafka, TransactionFailed
from ..messages import outgoing
from ..source.spark_types import arrow_schema_of
from .tables.open import open_table

_log = logging.getLogger("slackwater")

_PATIENCE_S = 30.0


def published_sinks(stage: Stage, publishes: Mapping[str, str] | None) -> Iterator[api.Sink]:
    """Yield the sinks that a stage publishes: in a clone only the sinks in `publishes`, otherwise all sinks."""
    return (sink for sink in stage.sinks if publishes is None or sink.name in publishes)


def check_targets(
    kafka: Kafka, app: App, stages: Sequence[Stage], reads: Mapping[str, str], publishes: Mapping[str, str] | None
) -> None:
    """Check that the sinks of the stages to run can be published.

    `reads` maps declared topics to the topics that the app reads instead. `publishes` maps the sinks of a clone to
    their topics; None if topics are as declared. Raises `NotFound` for a missing topic. Raises `Refused` for a topic
    that the app reads, for a topic without the right to write, and for a table that cannot be read.
    """
    _check_tables(stages, publishes)
    targets = {
        (publishes or {}).get(sink.name, sink.name): stage.name
        for stage in stages
        for sink in published_sinks(stage, publishes)
        if sink.kind == "topic"
    }
    if not targets:
        return
    read = {reads.get(name, name) for name in app.topics}
    partition_counts = kafka.partition_counts()
    for topic, stage in targets.items():
        if topic not in partition_counts:
            visible = [name for name in partition_counts if not name.startswith("__")]
            hint = f"stage {stage!r} has a sink that publishes there: create the topic"
            raise NotFound("Kafka topic", topic, visible, hint=hint)
        if topic in read:
            raise Refused(
                f"app {app.name!r} reads the topic {topic!r}, and its sink publishes there: records would circulate "
                "forever",
                hint="publish to another topic",
            )
        if refused := kafka.write_error(topic):
            raise refused


def _check_tables(stages: Sequence[Stage], publishes: Mapping[str, str] | None) -> None:
    for stage in stages:
        for sink in published_sinks(stage, publishes):
            if isinstance(sink, TableSink):
                try:
                    open_table(sink, table_address(sink, publishes)).load("", "")
                except TransactionFailed as failed:
                    error: SlackwaterError = failed.error or Unavailable(str(failed))
                    error.begin_with(f"stage {stage.name!r}")
                    raise error from failed


def table_address(sink: TableSink, publishes: Mapping[str, str] | None) -> str:
    return (publishes or {}).get(sink.name, sink.address)


def create_internal_topics(
    kafka: Kafka, app: str, stages: Sequence[Stage], publishes: Mapping[str, str] | None, *, validate_only: bool
) -> None:
    topics = {
        internal_topic(app, stage.name, sink.name): 1 for stage in stages for sink in published_sinks(stage, publishes)
    }
    if topics:
        kafka.create_topics(topics, validate_only=validate_only, config=UNLIMITED_RETENTION)


def register_schemas(stage: Stage, emits: Mapping[str, StructType], publishes: Mapping[str, str] | None) -> None:
    for sink in published_sinks(stage, publishes):
        if sink.encoding is not None:
            outgoing.register_schema(sink.encoding, arrow_schema_of(emits[sink.name]), _PATIENCE_S)


def claim_sinks(
    store: ObjectStore,
    kafka: Kafka,
    stage: Stage,
    draft: Manifest,
    publishes: Mapping[str, str] | None,
    accept_loss: bool,
) -> dict[str, Sink]:
    """Return the sinks of a claim: existing sinks continue, and new sinks begin with the claim.

    Sinks of a withdrawn promotion are dropped, because their rows must not be published. Raises `Refused` if a sink
    with unpublished rows is missing in the program; with `accept_loss`, that sink is dropped.
    """
    declared = {sink.name: sink for sink in published_sinks(stage, publishes)}
    sinks, promotion = {}, draft.promotion
    withdrawn = (
        promotion is not None and promotion.to == draft.app and apps.is_promotion_decided(store, promotion) is False
    )
    for name, sink in draft.sinks.items():
        if withdrawn:
            continue
        if name in declared and declared[name].kind == sink.kind:
            same = _continue_sink(kafka, draft.stage, name, sink, accept_loss)
            if same is not None:
                sinks[name] = _with_table(draft.stage, declared[name], same, publishes)
        elif not accept_loss and (
            unpublished := published.unpublished_rows(sink, published.newest(store, draft, name))
        ):
            raise Refused(
                f"stage {draft.stage!r} no longer has the sink {name!r}, but {unpublished:,} of its rows are not "
                "published yet",
                hint="run the program with the sink until `slackwater status` shows that all is published, or "
                "drop these rows: --accept-loss",
            )
    for name in declared.keys() - sinks.keys():
        topic = internal_topic(draft.app, stage.name, name)
        now = kafka.topic_state(topic)
        new = Sink(topic, now.ends[0], draft.version, declared[name].kind, topic_id=now.id)
        sinks[name] = _with_table(draft.stage, declared[name], new, publishes)
    return {name: sinks[name] for name in declared}


def _with_table(stage: str, declared: api.Sink, sink: Sink, publishes: Mapping[str, str] | None) -> Sink:
    if not isinstance(declared, TableSink):
        return sink
    table = f"{declared.format}:{table_address(declared, publishes)}"
    if sink.table and sink.table != table:
        raise Refused(
            f"the sink {declared.name!r} of stage {stage!r} publishes to {table}; until now it published to "
            f"{sink.table}, which has all of its rows",
            hint="for a new table, give the sink another name=; for a moved one, publish to the former address",
        )
    return replace(sink, table=table, id=sink.id or str(runtime.ulid()))


def check_internal_topics(
    kafka: Kafka, stage: Stage, head: Manifest, publishes: Mapping[str, str] | None, accept_loss: bool
) -> None:
    declared = {sink.name: sink.kind for sink in published_sinks(stage, publishes)}
    for name, sink in head.sinks.items():
        if declared.get(name) == sink.kind:
            _continue_sink(kafka, head.stage, name, sink, accept_loss)


def _continue_sink(kafka: Kafka, stage: str, name: str, sink: Sink, accept_loss: bool) -> Sink | None:
    """Return an existing sink for the next claim; None if the sink has to start again from its beginning.

    A sink starts again if its internal topic was re-created and loss is accepted. Raises `AnotherTopic` if loss is not
    accepted.
    """
    try:
        now = kafka.topic_state(sink.topic)
    except NotFound:
        now = TopicState((0,), (0,))  # created before the claim
    if why := explain_recreated_topic(sink.topic, sink.topic_id, (sink.end,), now):
        if not accept_loss:
            raise AnotherTopic(
                f"sink {name!r} of stage {stage!r} cannot continue: {why}", hint=recreated_internal_topic_hint()
            )
        _log.warning("sink %r of stage %r starts over, without rows not published yet: %s", name, stage, why)
        return None
    return replace(sink, topic_id=id_to_store(sink.topic_id, now.id))


def recreated_internal_topic_hint() -> str:
    return (
        "rows committed but not published yet were lost with the topic: run the app with --accept-loss, which "
        "continues with new rows"
    )
