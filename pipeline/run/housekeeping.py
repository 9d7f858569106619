"""What a runner does beside its batches: it says how far stages are and that it lives, and collects garbage."""

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from msgspec.structs import replace
from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from ...common import instants
from ...errors import Corruption, Refused, SlackwaterError, Unavailable
from ...snapshot.cut.graph import order
from ...snapshot.cut.moments import heads_of
from ...snapshot.gc.collect import Collected, collect
from ...snapshot.gc.inventory import last_collection
from ...snapshot.gc.retention import Retention
from ...snapshot.status.lag import StageLag, input_lag, sink_lags
from ...snapshot.under_way.runners import BEAT_S, Beat, Heart, beats, runner_of
from ...store.objects.protocol import ObjectStore
from ...store.versions import history
from ...store.versions.manifest import Manifest
from ...store.versions.published import Place
from ..batch.stage_runner import StageRunner
from ..kafka.open import EndOffsets
from ..listener import Listener
from .claim import Claimer
from .waiting import queued_groups

_log = logging.getLogger("slackwater")

_END_S = 2.0
_REPORT_S = 5.0
_ASK_S = 2.0
_OTHERS_S = 60.0
_KAFKA_S = 2.0
_POLL_S = 300.0
_RETRY_MS = 600_000
"""After a collection that did not end: it broke off, unless it is still under way."""


@contextmanager
def in_background(name: str, work: Callable[[threading.Event], None]) -> Iterator[None]:
    """Inside, this goes on, on a thread of its own, until it is told to end; what takes long is left."""
    over = threading.Event()
    thread = threading.Thread(target=work, args=(over,), name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(_END_S)


def ask_spark(spark: SparkSession, listener: Listener, queued: set[str], over: threading.Event) -> None:
    """Ask Spark's JVM every few seconds how far its tasks are. Where it hangs, this does too, and nobody else.

    `queued` are the groups of jobs that wait for a core (`queued_groups`), looked for less often.
    """
    tracker, due_s = spark.sparkContext.statusTracker(), 0.0
    while not over.is_set():
        stages = ((each, tracker.getStageInfo(each)) for each in tracker.getActiveStageIds())
        try:
            listener.spark(tuple((each, info.numCompletedTasks) for each, info in stages if info is not None))
            if time.monotonic() >= due_s:
                found = set(queued_groups(spark))
                queued &= found
                queued |= found
                due_s = time.monotonic() + BEAT_S / 2
        except (Py4JError, ConnectionError):
            return  # that Spark is gone, its queries say
        over.wait(_ASK_S)


@dataclass(slots=True)
class LagReporter:
    """Works every few seconds: no batch waits for it, and nothing depends on what it finds."""

    store: ObjectStore
    """Of little patience."""
    claimer: Claimer
    """Who runs what."""
    runners: Sequence[StageRunner]
    listener: Listener
    places: Callable[[str], Mapping[str, Place | None]]
    """How far the sinks of a stage of this run are."""
    waits_for: Callable[[StageLag], str] = lambda _stage: ""
    """What a stage of this run waits for."""
    _waits: dict[str, str] = field(default_factory=dict)
    _others: dict[str, Manifest] = field(default_factory=dict)
    """Heads of stages that run elsewhere, or nowhere."""
    _alive: tuple[Beat, ...] | None = None

    def work(self, over: threading.Event) -> None:
        """Report and write heartbeats, of which the last one goes when it is `over`."""
        app, epochs = self.claimer.app.name, {runner.stage.name: runner.head.epoch for runner in self.runners}
        beat, heart = Beat(self.claimer.writer, self.claimer.by, epochs), Heart(self.store, app)
        others_due = 0.0
        while not over.is_set():
            heart.beat(lambda: replace(beat, waits=self._waits))
            if time.monotonic() >= others_due:
                others_due = time.monotonic() + _OTHERS_S
                self._refresh_others(app)
            found = self._lags(app)
            own = (each for each in found if each.stage in epochs)
            self._waits = {each.stage: what for each in own if (what := self.waits_for(each))}
            self.listener.lags(found)
            over.wait(_REPORT_S)
        heart.end(beat.writer)

    def _refresh_others(self, app: str) -> None:
        try:
            self._alive = beats(self.store, app, instants.now_ms())
            names = set(history.list_stages(self.store, app)) - {runner.stage.name for runner in self.runners}
            found = {}
            for stage in sorted(names):
                known = self._others.get(stage)
                head = history.head(self.store, app, stage, hint=known.version if known else 0)
                if head is not None and not head.retired:
                    found[stage] = head
            self._others = found
        except (Unavailable, Corruption, Refused):
            # Whoever needs them says it; here, nobody knows.
            self._alive = None

    def _lags(self, app: str) -> tuple[StageLag, ...]:
        own = {runner.stage.name: runner.head for runner in self.runners}
        heads = self._others | own
        ends_of = EndOffsets(self.claimer.kafka, timeout_s=_KAFKA_S)
        found = []
        for stage, head in sorted(heads.items()):
            inputs = tuple(input_lag(name, head, heads, ends_of) for name in head.inputs)
            if stage in own:
                found.append(StageLag(app, stage, inputs, True, sink_lags(head, self.places(stage))))
            else:
                runs = None if self._alive is None else bool(runner_of(head, self._alive))
                found.append(StageLag(app, stage, inputs, runs, ()))
        return tuple(found)


@dataclass(slots=True)
class Collector:
    """Collects by the rules of retention: no batch waits for it, and killing it does no harm.

    When the app was collected last, by whomever, the store says. Of several runners of an app that one collects which
    holds the first of the stages that run, by its epoch; any, where that one has let its turn pass. Two at once do no
    harm either.
    """

    store: ObjectStore
    app: str
    retention: Retention
    every_ms: int
    """How long from one collection to the next."""
    by: str
    epochs: Callable[[], Mapping[str, int]]
    """The stages that this one holds, and under which epoch."""
    listener: Listener
    _since_ms: int = 0
    """When this one first looked."""

    def work(self, over: threading.Event) -> None:
        """Look now and then whether a collection is due; not at once, for the first batches have enough to do.

        A collection under way when it is `over` is left where it is, and the next one goes on from there.
        """
        while not over.wait(min(_POLL_S, self.every_ms / 4_000)):
            # Whatever fails, ends neither the run nor the collections to come.
            try:
                done = self.look(instants.now_ms())
            except (Refused, Unavailable):
                pass  # somebody else is at it, or the next look finds it due
            except SlackwaterError as error:
                _log.warning("gc of %s: nothing was deleted: %s", self.app, error.message)
            except Exception:
                _log.exception("gc of %s broke off; the next one goes on from there", self.app)
            else:
                if done is not None:
                    self.listener.collected(done)

    def look(self, now_ms: int) -> Collected | None:
        """Collect, if it is due and this runner's to do. A listing where it is not due. Raises as `collect`."""
        self._since_ms = self._since_ms or now_ms
        last_ms, ended = last_collection(self.store, self.app)
        wait_ms = self.every_ms if ended else min(self.every_ms, _RETRY_MS)
        # Whose turn it is may not collect: it was told so, or has no rules.
        passed = now_ms - max(last_ms, self._since_ms) >= 2 * self.every_ms
        if now_ms - last_ms < wait_ms or not (passed or self._leads(now_ms)):
            return None
        return collect(self.store, self.app, self.retention, by=self.by)

    def _leads(self, now_ms: int) -> bool:
        """Whether the first stage that runs is this runner's."""
        heads = heads_of(self.store, self.app, history.list_stages(self.store, self.app))
        alive = beats(self.store, self.app, now_ms)
        mine = self.epochs()
        first = next((name for name in order(heads) if name in mine or runner_of(heads[name], alive)), None)
        return first is not None and mine.get(first) == heads[first].epoch
