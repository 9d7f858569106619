"""A runner's background work: reports lags and heartbeats, and watches topics.

Heartbeats also state the reason why a stage waits; the command `status` shows it. A topic that is deleted and created
again while the app runs is detected. For users' topics, the planners do this (`source.planner`). For repartition topics
and sinks' internal topics, the topic ids are compared at intervals and after failures.
"""

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace
from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from ...common import instants, runtime
from ...errors import AnotherTopic, Corruption, Refused, SlackwaterError, Unavailable
from ...snapshot.status.overview import StageLag, input_lag, sink_lags
from ...snapshot.under_way.runners import BEAT_S, Heartbeat, HeartbeatWriter, live_heartbeats, runner_of
from ...state.records import is_kafka_id, is_other_topic
from ...store.objects.protocol import ObjectStore
from ...store.versions import history
from ...store.versions.manifest import Manifest
from ...store.versions.published import PublishedPosition
from ..batch.stage_runner import StageRunner
from ..kafka.open import EndOffsets
from ..kafka.protocol import Kafka
from ..listener import Listener
from ..publish.sinks import recreated_internal_topic_hint
from .claim import Claimer
from .start_positions import recreated_channel_hint, recreated_user_topic_hint
from .waiting import LongWaits, Wait, queued_job_groups

_log = logging.getLogger("slackwater")

_REPORT_EVERY_S = 5.0
_SPARK_POLL_S = 2.0
_OTHERS_EVERY_S = 60.0
_KAFKA_TIMEOUT_S = 2.0


def poll_spark(spark: SparkSession, listener: Listener, queued: set[str], stopping: runtime.Event) -> None:
    """Poll the progress of Spark's tasks every few seconds. A JVM that hangs blocks only this thread.

    Updates `queued`, less often, with the job groups that wait for a core (`queued_job_groups`).
    """
    tracker, due_s = spark.sparkContext.statusTracker(), 0.0
    while not stopping.is_set():
        stages = ((stage_id, tracker.getStageInfo(stage_id)) for stage_id in tracker.getActiveStageIds())
        try:
            listener.on_spark_answered(
                tuple((stage_id, info.numCompletedTasks) for stage_id, info in stages if info is not None)
            )
            if runtime.monotonic() >= due_s:
                waiting = set(queued_job_groups(spark))
                queued &= waiting
                queued |= waiting
                due_s = runtime.monotonic() + BEAT_S / 2
        except (Py4JError, ConnectionError):
            return  # the queries report that Spark is gone
        stopping.wait(_SPARK_POLL_S)


@dataclass(slots=True)
class LagReporter:
    """Reports lags and writes heartbeats every few seconds. Batches do not wait for it or depend on it."""

    store: ObjectStore
    claimer: Claimer
    runners: Sequence[StageRunner]
    listener: Listener
    sink_positions: Callable[[str], Mapping[str, PublishedPosition | None]]
    find_wait: Callable[[StageLag, Collection[str]], Wait | None] = lambda _stage, _not_run: None
    """Function that returns what a stage waits for; its argument is the set of stages without a runner."""
    _waits: dict[str, Wait] = field(default_factory=dict)
    _long_waits: LongWaits = field(default_factory=LongWaits)
    _other_heads: dict[str, Manifest] = field(default_factory=dict)
    _live_runners: tuple[Heartbeat, ...] | None = None

    def run(self, stopping: runtime.Event) -> None:
        app, epochs = self.claimer.app.name, {runner.stage.name: runner.head.epoch for runner in self.runners}
        beat, heart = Heartbeat(self.claimer.writer, self.claimer.by, epochs), HeartbeatWriter(self.store, app)
        others_due = 0.0
        while not stopping.is_set():
            heart.write_if_due(lambda: replace(beat, waits={name: at.reason for name, at in self._waits.items()}))
            if runtime.monotonic() >= others_due:
                others_due = runtime.monotonic() + _OTHERS_EVERY_S
                self._refresh_others(app)
            lags = self._lags(app)
            not_run = [lag.stage for lag in lags if lag.running is False]
            own = (lag for lag in lags if lag.stage in epochs)
            self._waits = {lag.stage: wait for lag in own if (wait := self.find_wait(lag, not_run)) is not None}
            self._long_waits.record(self._waits)
            self.listener.on_lags(lags)
            stopping.wait(_REPORT_EVERY_S)
        heart.delete(beat.writer)

    def _refresh_others(self, app: str) -> None:
        try:
            self._live_runners = live_heartbeats(self.store, app, instants.now_ms())
            names = set(history.list_stages(self.store, app)) - {runner.stage.name for runner in self.runners}
            heads = {}
            for stage in sorted(names):
                previous = self._other_heads.get(stage)
                head = history.head(self.store, app, stage, hint=previous.version if previous else 0)
                if head is not None and not head.retired:
                    heads[stage] = head
            self._other_heads = heads
        except (Unavailable, Corruption, Refused):
            # A caller that needs the heads reports this error. Here it means that the state of other stages is unknown.
            self._live_runners = None

    def _lags(self, app: str) -> tuple[StageLag, ...]:
        own = {runner.stage.name: runner.head for runner in self.runners}
        heads = self._other_heads | own
        ends_of = EndOffsets(self.claimer.kafka, timeout_s=_KAFKA_TIMEOUT_S)
        lags = []
        for stage, head in sorted(heads.items()):
            inputs = tuple(input_lag(name, head, heads, ends_of) for name in head.inputs)
            if stage in own:
                lags.append(StageLag(app, stage, inputs, True, sink_lags(head, self.sink_positions(stage))))
            else:
                runs = None if self._live_runners is None else bool(runner_of(head, self._live_runners))
                lags.append(StageLag(app, stage, inputs, runs, ()))
        return tuple(lags)


_TOPIC_CHECK_S = 5.0


@dataclass(slots=True)
class TopicWatch:
    """Checks if topics of one runner's stages were deleted and created again. `check` is thread-safe."""

    kafka: Kafka
    app: str
    runners: Sequence[StageRunner]
    error: AnotherTopic | None = field(default=None, init=False)

    def run(self, stopping: runtime.Event) -> None:
        while self.error is None and not stopping.wait(_TOPIC_CHECK_S):
            self.check(user_topics=False)

    def check(self, *, user_topics: bool = True) -> AnotherTopic | None:
        """Return an error if a topic was created again; None if no topic was, or if Kafka does not answer."""
        topics = {
            entry[0]: entry
            for runner in self.runners
            for entry in self._known_topics(runner)
            if user_topics or entry[2]
        }
        try:
            now = self.kafka.topic_ids(topics.keys()) if topics else {}
        except SlackwaterError:
            return None  # a caller that needs Kafka reports the error
        for topic, topic_id in now.items():
            _, previous_id, kind, hint, stage = topics[topic]
            if is_other_topic(previous_id, topic_id):
                self.error = AnotherTopic(
                    f"stage {stage!r} cannot continue: {kind or 'topic'} {topic!r} was deleted and created again while "
                    f"the app ran: its id was {previous_id}, and is now {topic_id}",
                    hint=hint,
                )
                break
        return self.error

    def _known_topics(self, runner: StageRunner) -> Iterator[tuple[str, str, str, str, str]]:
        head = runner.head
        entries = [
            *(
                (at.topic, at.topic_id, "repartition topic", recreated_channel_hint(self.app))
                if at.upstream
                else (at.topic, at.topic_id, "", recreated_user_topic_hint(self.app, at.topic))
                for at in head.inputs.values()
            ),
            *(
                (at.topic, at.topic_id, "repartition topic", recreated_channel_hint(self.app))
                for at in head.outputs.values()
            ),
            *((at.topic, at.topic_id, "internal topic", recreated_internal_topic_hint()) for at in head.sinks.values()),
        ]
        yield from ((*entry, head.stage) for entry in entries if is_kafka_id(entry[1]))
