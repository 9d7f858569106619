"""A runner's background work: reports lags and heartbeats, watches topics, and collects garbage.

Stages' reasons to wait, as their runner knows them, are in its heartbeats, where `status` reads them. A topic that was
deleted and created again under its name is detected while the app runs: planners of users' topics notice that
themselves (`source.planner`); offsets of repartition topics and of sinks' internal topics are not read while an app
runs, so their ids are checked together now and then, and after failures.
"""

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace
from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from ...common import instants
from ...errors import AnotherTopic, Corruption, Refused, SlackwaterError, Unavailable
from ...snapshot.cut.graph import order
from ...snapshot.cut.moments import heads_of
from ...snapshot.gc.collect import Collected, collect
from ...snapshot.gc.inventory import last_collection
from ...snapshot.gc.reachable import Retention
from ...snapshot.status.overview import StageLag, input_lag, sink_lags
from ...snapshot.under_way.runners import BEAT_S, Beat, Heart, beats, runner_of
from ...state.records import are_two, is_known
from ...store.objects.protocol import ObjectStore
from ...store.versions import history
from ...store.versions.manifest import Manifest
from ...store.versions.published import Place
from ..batch.stage_runner import StageRunner
from ..kafka.open import EndOffsets
from ..kafka.protocol import Kafka
from ..listener import Listener
from ..publish.sinks import another_internal
from .claim import Claimer
from .start_positions import another_channel, another_users_topic

_log = logging.getLogger("slackwater")

_END_S = 2.0
_REPORT_S = 5.0
_ASK_S = 2.0
_OTHERS_S = 60.0
_KAFKA_S = 2.0
_POLL_S = 300.0
_RETRY_MS = 600_000
"""Wait, in ms, after a collection without an end, which was interrupted or is still under way."""


@contextmanager
def in_background(name: str, work: Callable[[threading.Event], None]) -> Iterator[None]:
    over = threading.Event()
    thread = threading.Thread(target=work, args=(over,), name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(_END_S)


def ask_spark(spark: SparkSession, listener: Listener, queued: set[str], over: threading.Event) -> None:
    """Poll the progress of Spark's tasks every few seconds. A JVM that hangs blocks only this thread.

    Updates `queued`, less often, with the job groups that wait for a core (`queued_job_groups`).
    """
    tracker, due_s = spark.sparkContext.statusTracker(), 0.0
    while not over.is_set():
        stages = ((stage_id, tracker.getStageInfo(stage_id)) for stage_id in tracker.getActiveStageIds())
        try:
            listener.spark(tuple((stage_id, info.numCompletedTasks) for stage_id, info in stages if info is not None))
            if time.monotonic() >= due_s:
                waiting = set(queued_groups(spark))
                queued &= waiting
                queued |= waiting
                due_s = time.monotonic() + BEAT_S / 2
        except (Py4JError, ConnectionError):
            return  # the queries report that Spark is gone
        over.wait(_ASK_S)


@dataclass(slots=True)
class LagReporter:
    """Reports lags and writes heartbeats every few seconds. Batches do not wait for it or depend on it."""

    store: ObjectStore
    claimer: Claimer
    runners: Sequence[StageRunner]
    listener: Listener
    sink_places: Callable[[str], Mapping[str, Place | None]]
    waits_for: Callable[[StageLag], str] = lambda _stage: ""
    _waits: dict[str, str] = field(default_factory=dict)
    _other_heads: dict[str, Manifest] = field(default_factory=dict)
    _alive: tuple[Beat, ...] | None = None

    def work(self, over: threading.Event) -> None:
        app, epochs = self.claimer.app.name, {runner.stage.name: runner.head.epoch for runner in self.runners}
        beat, heart = Beat(self.claimer.writer, self.claimer.by, epochs), Heart(self.store, app)
        others_due = 0.0
        while not over.is_set():
            heart.beat(lambda: replace(beat, waits=self._waits))
            if time.monotonic() >= others_due:
                others_due = time.monotonic() + _OTHERS_S
                self._refresh_others(app)
            lags = self._lags(app)
            own = (lag for lag in lags if lag.stage in epochs)
            self._waits = {lag.stage: reason for lag in own if (reason := self.waits_for(lag))}
            self.listener.lags(lags)
            over.wait(_REPORT_S)
        heart.end(beat.writer)

    def _refresh_others(self, app: str) -> None:
        try:
            self._alive = beats(self.store, app, instants.now_ms())
            names = set(history.list_stages(self.store, app)) - {runner.stage.name for runner in self.runners}
            heads = {}
            for stage in sorted(names):
                previous = self._other_heads.get(stage)
                head = history.head(self.store, app, stage, hint=previous.version if previous else 0)
                if head is not None and not head.retired:
                    heads[stage] = head
            self._other_heads = heads
        except (Unavailable, Corruption, Refused):
            # A caller that needs the heads reports this error; here the state of other stages is unknown.
            self._alive = None

    def _lags(self, app: str) -> tuple[StageLag, ...]:
        own = {runner.stage.name: runner.head for runner in self.runners}
        heads = self._other_heads | own
        ends_of = EndOffsets(self.claimer.kafka, timeout_s=_KAFKA_S)
        lags = []
        for stage, head in sorted(heads.items()):
            inputs = tuple(input_lag(name, head, heads, ends_of) for name in head.inputs)
            if stage in own:
                lags.append(StageLag(app, stage, inputs, True, sink_lags(head, self.sink_places(stage))))
            else:
                runs = None if self._alive is None else bool(runner_of(head, self._alive))
                lags.append(StageLag(app, stage, inputs, runs, ()))
        return tuple(lags)


@dataclass(slots=True)
class Collector:
    """Collects garbage by the retention rules. Batches do not wait for it, and killing it does no harm.

    The store records the app's last collection by any process. Among several runners of an app, the one that owns the
    first running stage collects, as its epoch shows. If that runner misses its turn, another one collects. Two
    concurrent collections do no harm.
    """

    store: ObjectStore
    app: str
    retention: Retention
    every_ms: int
    by: str
    epochs: Callable[[], Mapping[str, int]]
    listener: Listener
    _since_ms: int = 0

    def work(self, over: threading.Event) -> None:
        """Collect garbage when due, until `stopping` is set.

        Does not begin at once, because first batches need the cores. A collection under way at the end is abandoned,
        and the next one continues it.
        """
        while not over.wait(min(_POLL_S, self.every_ms / 4_000)):
            # A failure must not end the run or later collections.
            try:
                done = self.look(instants.now_ms())
            except (Refused, Unavailable):
                pass  # another process collects, or the next look retries
            except SlackwaterError as error:
                _log.warning("gc of %s: nothing was deleted: %s", self.app, error.message)
            except Exception:
                _log.exception("gc of %s failed; the next one continues", self.app)
            else:
                if done is not None:
                    self.listener.collected(done)

    def look(self, now_ms: int) -> Collected | None:
        """Collect if a collection is due and it is this runner's turn; return its result, else None.

        Raises the errors of `collect`. Costs one listing if no collection is due.
        """
        self._since_ms = self._since_ms or now_ms
        last_ms, ended = last_collection(self.store, self.app)
        wait_ms = self.every_ms if ended else min(self.every_ms, _RETRY_MS)
        # The runner whose turn it is may not collect: collection may be off there, or without rules.
        passed = now_ms - max(last_ms, self._since_ms) >= 2 * self.every_ms
        if now_ms - last_ms < wait_ms or not (passed or self._leads(now_ms)):
            return None
        return collect(self.store, self.app, self.retention, by=self.by)

    def _leads(self, now_ms: int) -> bool:
        heads = heads_of(self.store, self.app, history.list_stages(self.store, self.app))
        alive = beats(self.store, self.app, now_ms)
        epochs = self.epochs()
        first = next((name for name in order(heads) if name in epochs or runner_of(heads[name], alive)), None)
        return first is not None and epochs.get(first) == heads[first].epoch


def waits_for(stage: StageLag, *, busy: bool, queued: bool, on_hold: bool, readers_lag: bool) -> str:
    """Return the cause for which a stage waits, as a phrase; empty while the stage works, or if that is unknown.

    `busy`: a batch is under way. `queued`: no task of the stage runs, but tasks of other stages do. `on_hold`: a
    promotion holds the app. `readers_lag`: the stage starts no batch until the readers of its channels have caught up.
    """
    if busy:
        return "a free core" if queued else ""
    if on_hold:
        return "the end of a promotion"
    if readers_lag:
        return "its readers to catch up"
    if stage.records == 0:
        return f"new records of {', '.join(dict.fromkeys(source.upstream or source.topic for source in stage.inputs))}"
    return ""


def queued_groups(spark: SparkSession) -> Collection[str]:
    """Return the Spark job groups without a running task, if any other group has running tasks.

    The jobs of a streaming query are in the group named by its run id. Costs a few JVM calls for each active job.
    """
    jvm: Any = spark.sparkContext._jvm
    statuses = jvm.java.util.ArrayList()
    statuses.add(jvm.org.apache.spark.JobExecutionStatus.RUNNING)
    jobs: Any = spark.sparkContext._jsc.sc().statusStore().jobsList(statuses)
    active: dict[str, int] = {}
    for number in range(jobs.size()):
        job = jobs.apply(number)
        if (group := job.jobGroup()).isDefined():
            active[group.get()] = active.get(group.get(), 0) + job.numActiveTasks()
    return {group for group, tasks in active.items() if not tasks} if any(active.values()) else ()


_LOOK_S = 5.0


@dataclass(slots=True)
class TopicWatch:
    """Checks if topics of one runner's stages were deleted and created again. `check` is thread-safe."""

    kafka: Kafka
    app: str
    runners: Sequence[StageRunner]
    error: AnotherTopic | None = field(default=None, init=False)

    def work(self, over: threading.Event) -> None:
        while self.error is None and not over.wait(_LOOK_S):
            self.look(users=False)

    def look(self, *, users: bool = True) -> AnotherTopic | None:
        """Return the error of a topic that was created again; None if there is none, or if Kafka does not answer."""
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
        """Yield all topics with a known id: topic, id, kind (empty for a user's topic), hint and stage."""
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
