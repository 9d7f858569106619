"""Running an app: check its program, claim its stages, build a runner for each, and have them supervised."""

from __future__ import annotations

import logging
import os
import socket
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from pyspark.sql import SparkSession
from ulid import ULID

from ...durations import parse_ms
from ...errors import Refused
from ...snapshot.clone.first_versions import unfinished
from ...snapshot.maintain.retire import absent
from ...store.objects.counting import CountingStore
from ...store.objects.open import access_to, open_store
from ...store.objects.protocol import ObjectStore
from ...store.objects.s3.access import S3Access
from ...store.versions import apps
from ...store.versions.manifest import AppInfo, Manifest
from ..api.app import App, Stage
from ..batch.batch_report import BatchReport
from ..batch.claim import Checked, Claimer
from ..batch.meter import StageMeter
from ..batch.places import Places
from ..batch.schemas import Shape, shapes
from ..batch.stage_runner import Limits, StageConfig, StageRunner
from ..batch.write_stall import Triggers
from ..kafka import topics
from ..kafka.channels import KafkaChannels
from ..kafka.clients import server
from ..kafka.consumer_groups import Announcer
from ..source.checkpoint import Checkpoint
from ..spark.session import spark_session
from ..spark.warm_up import warm_up
from .backpressure import Backpressure, LimitedReader
from .catch_up import CatchUp
from .news import News, Silence
from .options import Options
from .outlook import Outlook
from .snapshot_completer import Completer
from .snapshot_names import SnapshotNames
from .spool_folder import beside, spool_folder, sweep
from .stopping import Stop, stop_signals
from .supervisor import Supervisor

__all__ = ["Options", "run"]

_log = logging.getLogger("slackwater")
_BEAT_PATIENCE_S = 3.0


def limits_of(stage: Stage, options: Options) -> Limits:
    """What bounds a stage's batches: whoever starts the app wins over what its file says. Raises `Usage`."""
    declared_ms = 0 if stage.trigger is None else parse_ms("trigger", stage.trigger)
    return Limits(
        stage.max_records if options.max_records is None else options.max_records,
        declared_ms if options.trigger is None else parse_ms("trigger", options.trigger),
        Triggers(stage.table.l0_slowdown, stage.table.l0_stop),
        (stage.max_unflushed or 0) if options.max_unflushed is None else options.max_unflushed,
    )


def run(
    app: App,
    options: Options,
    on_commit: Callable[[BatchReport], None],
    *,
    news: News | None = None,
    stop: Stop | None = None,
) -> None:
    """Run an app until it is stopped (SIGINT, SIGTERM) or, if so asked, until it has caught up.

    Args:
        app: The program.
        options: How to run it.
        on_commit: Told of each committed batch.
        news: Told of all else.
        stop: Set when it is to stop; None to hear the signals here.

    Raises:
        StopRequested: `stop`, which somebody else looks after, was set before the first batch.
        Fenced: A newer runner took a stage over.
        SlackwaterError: Anything else that stopped it; nothing committed is lost.
    """
    news = news or Silence()
    with ExitStack() as stack:
        stop = stop or stack.enter_context(stop_signals())
        with stop.at_once():
            # All that can be refused without Spark is, before it starts; what is made, is made after the last check.
            start = _preflight(app, options, news)
            news.doing(f"starting Spark ({options.master or 'as it is configured'})")
            session = spark_session(
                f"slackwater {app.name}",
                master=options.master,
                conf=options.spark_conf,
                py_files=options.py_files,
                hurry=stop.now,
            )
            spark = stack.enter_context(session)
        stack.callback(news.doing, "waiting for Spark to end")
        with stop.in_order():
            news.doing("checking the program")
            check_unflushed(start.limits, spark.sparkContext.master or "")
            warm_up(spark)
            known = shapes(app, spark)
        with stop.at_once():
            claimed = _claim(start, known, news)
            runners = _build(start, known, claimed, spark, on_commit, stack)
        outlook = Outlook(
            start.beats, options.kafka, app.name, writer=start.writer, by=start.by, runners=runners, news=news
        )
        stack.callback(outlook.close)
        outlook.start()
        catch_up = CatchUp(start.store, app.name, start.ends) if options.until_caught_up else None
        channels = KafkaChannels(options.kafka, patience_s=options.patience_s)
        completer = Completer(start.store, app.name, channels, start.by)
        supervisor = Supervisor(spark, runners, completer, Announcer(options.kafka, app.name), catch_up, stop, news)
        with stop.in_order():
            supervisor.until_done()


@dataclass(frozen=True, slots=True)
class _Start:
    """What is known of a run before Spark starts: nothing is written yet.

    Attributes:
        stages: Those of this run, upstream first.
        limits, stores, checked: By the stage's name. Each stage has a store of its own over the same one, and is
            counted by itself.
        access: How workers get to the store.
        store: For what belongs to no stage.
        beats: Likewise, of little patience.
        claimer: Claims stages, by way of `store`.
        new: Whether the app is not in the store yet.
    """

    app: App
    options: Options
    stages: tuple[Stage, ...]
    limits: Mapping[str, Limits]
    access: Callable[[], S3Access | None]
    store: CountingStore
    beats: CountingStore
    stores: Mapping[str, CountingStore]
    claimer: Claimer
    checked: Mapping[str, Checked]
    new: bool

    @property
    def writer(self) -> str:
        """Unique id of this run."""
        return self.claimer.writer

    @property
    def by(self) -> str:
        """host:pid."""
        return self.claimer.by

    @property
    def ends(self) -> dict[str, tuple[int, ...]]:
        """Where the topics that are read ended when they were checked."""
        return {topic: ends for checked in self.checked.values() for topic, (_, ends) in checked.offsets.items()}

    def claimer_of(self, stage: Stage) -> Claimer:
        """Claims one stage, whose store counts what that takes."""
        return replace(self.claimer, store=self.stores[stage.name])


def _preflight(app: App, options: Options, news: News) -> _Start:
    """Wait for Kafka and check all that needs no Spark. Raises `NotFound`, `Refused`, `Unavailable` or `Usage`."""
    stages = app.select(options.stages)
    limits = {stage.name: limits_of(stage, options) for stage in stages}
    news.doing(f"waiting for {server(options.kafka)}")
    topics.wait_for(options.kafka, options.patience_s)
    opened = open_store(options.store, patience_s=options.patience_s, settings=options.s3)
    store = CountingStore(opened)
    news.doing("checking the app")
    if master := _known_master(options):
        check_unflushed(limits, master)
    info = apps.find_app(store, app.name)
    if info is not None:
        if missing := unfinished(store, info):
            raise Refused(
                f"app {app.name!r} is a clone that was not finished: {', '.join(missing)} have no state yet",
                hint="run the same `slackwater clone` again; it goes on where it stopped",
            )
        _tell_absent(store, app)
    claimer = Claimer(
        store=store,
        kafka=options.kafka,
        app=app,
        topics=info.origin.topics if info and info.origin else {},
        writer=str(ULID()),
        by=f"{socket.gethostname()}:{os.getpid()}",
        accept_loss=options.accept_loss,
    )
    stores = {stage.name: CountingStore(opened) for stage in stages}
    checked = {stage.name: replace(claimer, store=stores[stage.name]).check(stage) for stage in stages}
    claimer.check_channels(stages)
    return _Start(
        app,
        options,
        stages,
        limits,
        partial(access_to, opened),
        store,
        CountingStore(open_store(options.store, patience_s=_BEAT_PATIENCE_S, settings=options.s3)),
        stores,
        claimer,
        checked,
        info is None,
    )


def _claim(start: _Start, known: Mapping[str, Shape], news: News) -> dict[str, Manifest]:
    """Check the columns, make what is missing in the store and in Kafka, and claim the stages; their claims."""
    news.doing(f"claiming {', '.join(stage.name for stage in start.stages)}")
    for stage in start.stages:
        start.claimer_of(stage).check_shape(stage, known[stage.name], start.checked[stage.name])
    if start.new:
        # From its identity on an app is there for everybody.
        apps.ensure_app(start.store, AppInfo(start.app.name, _now_ms()))
    start.claimer.create_channels(start.stages)
    return {
        stage.name: start.claimer_of(stage).claim(stage, known[stage.name], _now_ms(), start.checked[stage.name])
        for stage in start.stages
    }


def _build(
    start: _Start,
    known: Mapping[str, Shape],
    claimed: Mapping[str, Manifest],
    spark: SparkSession,
    on_commit: Callable[[BatchReport], None],
    stack: ExitStack,
) -> tuple[StageRunner, ...]:
    """The runners of the claimed stages, upstream first. `stack` closes them, and removes what they leave on disk."""
    options, stages = start.options, start.stages
    scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="slackwater-", ignore_cleanup_errors=True)))
    spools = beside(options.cache_folder)
    sweep(spools)
    runs_ahead = any(limits.max_unflushed for limits in start.limits.values())
    spool = stack.enter_context(spool_folder(spools, start.writer)) if runs_ahead else None
    local = (spark.sparkContext.master or "").startswith("local")
    backpressure = Backpressure(scratch / "held", _limited_readers(stages, start.limits))
    names = SnapshotNames(start.store, start.app.name)

    def report(batch: BatchReport) -> None:
        on_commit(replace(batch, snapshots=names.of(batch.snapshots)))

    def build(stage: Stage) -> StageRunner:
        limits, store = start.limits[stage.name], start.stores[stage.name]
        # What is asked for the whole app belongs to no stage: the first one is charged with it.
        shared = (start.store, start.beats) if stage is stages[0] else ()
        places = Places(
            start.app.name,
            stage.name,
            options.store,
            dict(options.kafka),
            (str(options.cache_folder), options.cache_bytes, options.cache_memory_bytes),
            options.patience_s,
            str(spool) if limits.max_unflushed else "",
            elsewhere=not local,
            s3_settings=options.s3,
        )
        config = StageConfig(
            stage,
            known[stage.name],
            places,
            limits,
            Checkpoint(scratch / "checkpoints" / stage.name),
            hold=backpressure.flag(stage.name),
            compaction_threads=options.compaction_threads,
            prefetch=options.prefetch and local,
        )
        runner = StageRunner(
            config,
            claimed[stage.name],
            store=store,
            meter=StageMeter(scratch / "counts" / stage.name, store, *shared),
            access=start.access,
            on_commit=report,
            on_move=backpressure.move,
        )
        stack.callback(runner.close)
        backpressure.move(runner.head, runner.tip)
        return runner

    return tuple(build(stage) for stage in stages)


def _tell_absent(store: ObjectStore, app: App) -> None:
    """Say which stages the app has and the program has not: snapshots and garbage collection wait for them."""
    if names := absent(store, app.name, app.stages.keys()):
        verbs = ", ".join(f"slackwater retire {app.name}/{name}" for name in names)
        _log.warning(
            "%s has %s, which this program has not; snapshots wait for %s. If gone for good: %s",
            app.name,
            " and ".join(names),
            "it" if len(names) == 1 else "them",
            verbs,
        )


def _known_master(options: Options) -> str | None:
    """Spark's master, as far as that is known before it starts."""
    running = SparkSession.getActiveSession()
    if running is not None:
        return running.sparkContext.master
    return options.spark_conf.get("spark.master", options.master)


def check_unflushed(limits: Mapping[str, Limits], master: str) -> None:
    """See that stages which run ahead of the store have their executors where the SSTs wait.

    Raises:
        Refused: Executors may be on other machines.
    """
    ahead = [stage for stage, limit in limits.items() if limit.max_unflushed]
    if ahead and not master.startswith("local"):
        raise Refused(
            f"stage {ahead[0]!r} has max_unflushed={limits[ahead[0]].max_unflushed}, so its SSTs wait on the disk of "
            f"the runner's machine, and executors of {master} do not share that disk",
            hint="run it with --master 'local[*]', or with max_unflushed=0",
        )


def _limited_readers(stages: Iterable[Stage], limits: Mapping[str, Limits]) -> tuple[LimitedReader, ...]:
    """The stages that read channels under an admission limit."""
    return tuple(
        LimitedReader(stage.name, stage.channels, limit)
        for stage in stages
        if stage.channels and (limit := limits[stage.name].max_records) is not None
    )


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
