"""Runs an app: checks its program, claims its stages, builds their runners, and supervises them."""

from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path

from pyspark.sql import SparkSession

from ...common import instants
from ...common.whole_file import own_folder, sweep, temporary_folder
from ...errors import Refused
from ...snapshot.change.migrate import check_newest
from ...snapshot.cut.stored import notify
from ...snapshot.gc.reachable import Retention
from ...snapshot.status.overview import StageLag
from ...store.versions import apps
from ...store.versions.manifest import AppInfo, Manifest
from ..api.app import App
from ..batch.batch_report import BatchReport
from ..batch.committer import spools_beside
from ..batch.job import StageConfig
from ..batch.schemas import Shape, shapes
from ..batch.stage_runner import StageRunner
from ..kafka.channels import Announcer, KafkaChannels
from ..kafka.open import for_workers, open_kafka
from ..listener import Listener, Listeners
from ..publish.publishers import Publishers
from ..reject.rejecter import BatchRejecter
from ..source.checkpoint import ScratchCheckpoint
from ..source.spool import InputSpool
from ..source.wake import PlannerFiles, RequestWatch
from ..spark.places import Places
from ..spark.session import running_session, spark_session, warm_up
from ..telemetry.lineage import Datasets, RunLineage, ended, lineage_of
from ..telemetry.spans import Tracing, tracing_of
from ..telemetry.under_way import running
from ..upkeep.archiver import Archiver
from ..upkeep.meter import StageMeter
from .housekeeping import Collector, LagReporter, ask_spark, in_background
from .options import Options
from .preflight import Start, check_memory, check_unflushed, preflight
from .snapshot_completer import BetweenBatches, Completer, snapshot_names
from .stopping import Stop, StopRequested, stop_signals
from .supervisor import Backpressure, CatchUp, Supervisor
from .topic_watch import TopicWatch
from .waiting import waits_for

_DRAIN_S = 10.0
"""Seconds for archiving the last records when a run ends. The next run archives the rest."""


def run(
    app: App,
    options: Options,
    listener: Listener,
    *,
    stop: Stop | None = None,
) -> None:
    """Run an app until it is stopped (SIGINT, SIGTERM) or, with `until_caught_up`, until it has caught up.

    `listener` gets the events of the run. `stop` ends the run when set; with None, this function handles the signals
    itself. If `stop` was given and set before the first batch, raises `StopRequested`. Raises `Fenced` where a newer
    runner took a stage over, and another `SlackwaterError` for any other error. Nothing committed is lost.
    """
    with ExitStack() as stack:
        stack.enter_context(running(app.name))
        stop = stop or stack.enter_context(stop_signals())
        options = replace(options, kafka=stack.enter_context(for_workers(options.kafka)))
        with stop.at_once():
            # Refuse what needs no Spark before Spark starts. Nothing is created before the last check.
            start = preflight(app, options, listener)
            listener.doing(f"starting Spark ({options.master or 'master of its configuration'})")
            is_cold = running_session() is None
            session = spark_session(
                f"slackwater {app.name}",
                master=options.master,
                conf=options.spark_conf,
                py_files=options.py_files,
                hurry=stop.now,
            )
            spark = stack.enter_context(session)
        stack.callback(listener.doing, "waiting for Spark to end")
        with stop.in_order():
            listener.doing("checking the program")
            check_unflushed(start.limits, spark.sparkContext.master or "")
            check_memory(options.kafka, spark.sparkContext.master or "")
            if is_cold:
                warm_up(spark)
            stage_shapes = shapes(app, spark)
        with stop.at_once():
            claimed, claimer, store = _claim(start, stage_shapes, listener), start.claimer, start.store
            folder = claimer.app.name
            # A clone's sinks are published once it is promoted.
            has_sinks = any(stage.sinks for stage in start.stages)
            publishers = Publishers(
                store,
                apps.read_app(store, folder) if has_sinks else None,
                claimer.kafka,
                start.stages if options.publishes else (),
                claimed,
                accept_loss=options.accept_loss,
                patience_s=options.patience_s,
            )
            stack.callback(publishers.close)
            scratch = stack.enter_context(temporary_folder())
            planners = PlannerFiles(scratch / "told")
            retention = options.retention(app.name)
            archiver, spool = _archiver(start, options, retention, spark, listener, stack)
            runners: tuple[StageRunner, ...] = ()
            if (lineage := _lineage(start, options, claimed, spark)) is not None:
                stack.push(lambda _kind, error, _trace: _end_lineage(lineage, runners, error))
            limits = start.limits.items()
            bounded = {name: limit.max_records for name, limit in limits if limit.max_records is not None}
            # Listeners that act on commits get them before the caller's listener.
            listener = Listeners(Backpressure(planners, bounded), publishers, archiver, lineage, listener)
            spools = {} if spool is None else _topics_of(claimed, retention, str(spool.folder))
            tracing = tracing_of()
            if tracing is not None:
                stack.callback(tracing.close)
            runners = _build(
                start, options, stage_shapes, claimed, spark, listener, stack, scratch, planners, spools, tracing
            )
            publishers.start()
        reporter = LagReporter(start.heartbeats, claimer, runners, listener, publishers.places)
        stack.enter_context(in_background("lag-reporter", reporter.work))
        if archiver is not None:
            stack.enter_context(archiver.at_work(lambda: 0.0 if stop.now.is_set() else _DRAIN_S))
        if options.gc_every_ms is not None and not (retention.keeps_everything and not retention.archives):

            def epochs() -> dict[str, int]:
                return {runner.stage.name: runner.head.epoch for runner in runners}

            collector = Collector(store, folder, retention, options.gc_every_ms, claimer.by, epochs, listener)
            stack.enter_context(in_background("collector", collector.work))
        topics = TopicWatch(claimer.kafka, folder, runners)
        stack.enter_context(in_background("topic-watch", topics.work))
        catch_up = None
        if options.until_caught_up:
            ends = {
                position.at.topic: position.ends
                for _, positions in start.checked.values()
                for position in positions.values()
                if not position.at.upstream
            }
            own = {runner.stage.name: stage_shapes[runner.stage.name].own for runner in runners}
            catch_up = CatchUp(store, folder, {**ends, **options.until}, own)
        channels = KafkaChannels(claimer.kafka, patience_s=options.patience_s)
        completer = Completer(store, folder, channels, claimer.by)
        requests, announcer = BetweenBatches(store, folder), Announcer(claimer.kafka, folder)
        watch = RequestWatch(store, folder, planners)
        queued = set[str]()
        stack.enter_context(in_background("health", partial(ask_spark, spark, listener, queued)))
        by_name = {runner.stage.name: runner for runner in runners}

        def waiting(lag: StageLag) -> str:
            runner, is_held = by_name[lag.stage], planners.held(lag.stage)
            is_queued = runner.job_group in queued
            return waits_for(lag, busy=runner.busy, queued=is_queued, on_hold=watch.held, readers_lag=is_held)

        reporter.waits_for = waiting
        triggers = {runner.stage.name: start.limits[runner.stage.name].trigger_ms / 1_000 for runner in runners}
        listener.running(triggers, options.patience_s, lambda stage: watch.held or planners.held(stage))
        supervisor = Supervisor(
            spark, runners, watch, completer, requests, announcer, catch_up, stop, listener, publishers, topics
        )
        with stop.in_order():
            supervisor.until_done()


def _lineage(start: Start, options: Options, claimed: Mapping[str, Manifest], spark: SparkSession) -> RunLineage | None:
    def published(head: Manifest) -> Mapping[str, str]:
        return apps.publishes(start.store, apps.read_app(start.store, head.app), head.promotion) or {}

    where = Datasets(options.store, options.kafka["bootstrap.servers"], spark.version, published)
    return lineage_of(claimed, where)


def _end_lineage(lineage: RunLineage, runners: Iterable[StageRunner], error: BaseException | None) -> None:
    """Report the end of a run, with the error that ended it."""
    errors = dict.fromkeys(lineage.stages) | {runner.stage.name: runner.error for runner in runners}
    lineage.end(ended(errors, None if isinstance(error, StopRequested) else error))


def _archiver(
    start: Start, options: Options, retention: Retention, spark: SparkSession, listener: Listener, stack: ExitStack
) -> tuple[Archiver | None, InputSpool | None]:
    """Return the archiver of input records, and the spool that readers fill for it; None where not configured.

    There is a spool only if tasks run on this machine.
    """
    if not (options.archive and retention.archives):
        return None, None
    claimer, spool = start.claimer, None
    if (spark.sparkContext.master or "").startswith("local"):
        spools = spools_beside(options.cache_folder)
        spool = InputSpool(stack.enter_context(own_folder(spools, f"{claimer.writer}-input")))
    return (
        Archiver(
            start.store,
            claimer.app.name,
            open_kafka(options.kafka),
            retention.input_of,
            spool=spool,
            by=claimer.by,
            patience_s=options.patience_s,
            report=listener.archived,
        ),
        spool,
    )


def _topics_of(claimed: Mapping[str, Manifest], retention: Retention, folder: str) -> dict[str, str]:
    """Return the spool folder by archived topic."""
    read = {at.topic for head in claimed.values() for at in head.inputs.values()}
    return {topic: folder for topic in read if retention.input_of(topic) is not None}


def _claim(start: Start, stage_shapes: Mapping[str, Shape], listener: Listener) -> dict[str, Manifest]:
    """Check the columns, create what is missing in the store and in Kafka, claim the stages, and return the claims."""
    store, app = start.store, start.claimer.app.name
    listener.doing(f"claiming {', '.join(stage.name for stage in start.stages)}")
    for stage in start.stages:
        start.claimer_of(stage).check_shape(stage, stage_shapes[stage.name], *start.checked[stage.name])
    if start.new:
        # Creating the app's identity makes it visible to everybody.
        info = apps.ensure_app(store, AppInfo(app, instants.now_ms()))
        if info.starts or info.initialised or info.origin:
            raise Refused(
                f"another process created app {app!r}, with offsets of its own, while this run started",
                hint="run it again: it continues from there",
            )
    check_newest(store, app, start.claimer.migration)
    start.claimer.create_channels(start.stages)
    claimed = {}
    for stage in start.stages:
        claimed[stage.name] = start.claimer_of(stage).claim(stage, stage_shapes[stage.name], instants.now_ms())
    # Former runners of these stages find that they are fenced.
    notify(store, app)
    return claimed


def _build(
    start: Start,
    options: Options,
    stage_shapes: Mapping[str, Shape],
    claimed: Mapping[str, Manifest],
    spark: SparkSession,
    listener: Listener,
    stack: ExitStack,
    scratch: Path,
    planners: PlannerFiles,
    input_spools: Mapping[str, str],
    tracing: Tracing | None,
) -> tuple[StageRunner, ...]:
    """Return the runners of the claimed stages, upstream first. `stack` closes them and removes their files."""
    spools, app = spools_beside(options.cache_folder), start.claimer.app.name
    sweep(spools)
    runs_ahead = any(limits.max_unflushed for limits in start.limits.values())
    spool = stack.enter_context(own_folder(spools, start.claimer.writer)) if runs_ahead else None
    local = (spark.sparkContext.master or "").startswith("local")
    names: dict[str, str] = {}

    def report(batch: BatchReport) -> None:
        listener.committed(replace(batch, snapshots=snapshot_names(start.store, app, batch.snapshots, names)))

    runners: list[StageRunner] = []
    for stage in start.stages:
        limits, store, shape = start.limits[stage.name], start.stores[stage.name], stage_shapes[stage.name]
        # Requests for the whole app belong to no stage: the first stage's meter counts them.
        shared = () if runners else (start.store, start.heartbeats)
        places = Places(
            app,
            stage.name,
            options.store,
            dict(options.kafka),
            (options.cache_folder, options.cache_bytes),
            options.patience_s,
            str(spool) if limits.max_unflushed else "",
            elsewhere=not local,
            s3_settings=options.s3,
        )
        rejecter, published = None, start.claimer.publishes or {}
        if stage.rejects_some:
            rejecter = BatchRejecter(spark, stage, shape, places, "" if start.clone else stage.rejects, published)
        config = StageConfig(
            stage,
            shape,
            places,
            limits,
            ScratchCheckpoint(scratch / "checkpoints" / stage.name),
            planners=planners,
            compaction_threads=options.compaction_threads,
            prefetch=options.prefetch and local,
            rescue=rejecter.rescue if rejecter and stage.on_error == "reject" else None,
            set_aside=rejecter.set_aside if rejecter else None,
            published=published,
            retry=rejecter.retry if rejecter else None,
            input_spools=input_spools,
            tracing=tracing,
        )
        runner = StageRunner(
            config,
            claimed[stage.name],
            store=store,
            meter=StageMeter(scratch / "counts" / stage.name, store, *shared),
            access=start.access,
            on_commit=report,
            on_move=listener.move,
        )
        stack.callback(runner.close)
        listener.move(runner.head, runner.tip)
        runners.append(runner)
    return tuple(runners)
