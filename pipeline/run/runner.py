"""`run`: checks an app's program, claims its stages, builds their runners, and supervises them."""

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from ...common import instants, runtime
from ...common.whole_file import locked_folder, remove_dead_folders, temporary_folder
from ...errors import Refused
from ...snapshot.change.migrate import check_no_newer_migration
from ...snapshot.cut.stored import notify_runners
from ...snapshot.gc.reachable import Retention
from ...snapshot.status.overview import StageLag
from ...store.hot.places import PLACES
from ...store.versions import apps
from ...store.versions.manifest import AppInfo, Manifest
from ..api.app import App
from ..api.stage import Stage
from ..batch.committer import StageMeter, spool_root
from ..batch.job import Engine, StageConfig
from ..batch.schemas import StageSchemas
from ..batch.spark_engine import SparkEngine
from ..batch.stage_runner import StageRunner
from ..batch.turns import Turns
from ..kafka.channels import GroupOffsetCommitter, KafkaChannels
from ..kafka.open import open_kafka, served_to_workers
from ..listener import BatchReport, Listener, Listeners
from ..publish.publishers import Publishers
from ..reject.rejecter import BatchRejecter
from ..source.options import ScratchCheckpoint
from ..source.spool import InputSpool
from ..source.wake import Backpressure, PlannerFiles, RequestWatch
from ..spark.session import running_session, spark_session, warm_up
from ..spark.worker_resources import WorkerResources
from ..telemetry.lineage import DatasetNames, RunLineage, configured_lineage, last_events
from ..telemetry.logs import running_app
from ..telemetry.spans import Tracing, configured_tracing
from ..upkeep.archiver import Archiver
from ..upkeep.executors import MergeSlots, count_slots
from .background import Collector, background_thread
from .housekeeping import LagReporter, TopicWatch, poll_spark
from .options import Options
from .preflight import PreflightResult, check_kafka_reachable, check_unflushed, preflight
from .stopping import StopEvent, StopRequested, stop_signals
from .supervisor import CatchUp, RequestExecutor, SnapshotCompleter, Supervisor, snapshot_names
from .waiting import Wait, find_wait, input_behind

_MAX_DRAIN_S = 10.0
"""Maximum seconds for archiving the last records when a run ends. The next run archives the remaining records."""

OpenEngine = Callable[[str, Options, StopEvent], AbstractContextManager[Engine]]
"""Function that opens an engine, given the app's name, the options of the run and its stop event."""

_BATCHES_PER_CORE = 2
"""Maximum number of concurrent batches per core: while one batch waits for the store, another uses the core."""


def run(
    app: App,
    options: Options,
    listener: Listener,
    *,
    stop: StopEvent | None = None,
    engine: OpenEngine | None = None,
) -> None:
    """Run an app until it is stopped (SIGINT, SIGTERM) or, with `until_caught_up`, until it has caught up.

    `listener` gets the events of the run. The run ends when the event `stop` is set; if `stop` is None, this function
    handles the signals itself. `engine` opens the engine; None for Spark. Raises `StopRequested` if a given `stop` is
    set before the first batch, `Fenced` if a newer runner took a stage over, and other `SlackwaterError`s. Committed
    versions are never lost.
    """
    with ExitStack() as stack:
        stack.enter_context(running_app(app.name))
        stop = stop or stack.enter_context(stop_signals())
        options = replace(options, kafka=stack.enter_context(served_to_workers(options.kafka)))
        with stop.interruptible():
            # Checks that need no Spark come before Spark starts. Nothing is created before the last check.
            start = preflight(app, options, listener)
            listener.on_activity(f"starting Spark ({options.master or 'master of its configuration'})")
            is_cold = running_session() is None
            opened = stack.enter_context((engine or _open_spark)(app.name, options, stop))
        stack.callback(listener.on_activity, "waiting for Spark to end")
        with stop.uninterrupted():
            listener.on_activity("checking the program")
            check_unflushed(start.limits, opened.master)
            check_kafka_reachable(options.kafka, opened.master)
            if is_cold and isinstance(opened, SparkEngine):
                warm_up(opened.spark)
            stage_shapes = opened.derive_schemas(app)
        with stop.interruptible():
            claimed = _claim_stages(start, stage_shapes, listener, cores=opened.cores)
            parts = _RunComponents(
                options, start, stage_shapes, claimed, opened, stack, stop, options.retention(app.name), listener
            )
        supervisor = parts.start_supervision()
        with stop.uninterrupted():
            supervisor.run()


@contextmanager
def _open_spark(app: str, options: Options, stop: StopEvent) -> Iterator[Engine]:
    with spark_session(
        f"slackwater {app}",
        master=options.master,
        conf=options.spark_conf,
        py_files=options.py_files,
        hurry=stop.immediate,
    ) as spark:
        yield SparkEngine(spark)


def _claim_stages(
    start: PreflightResult, stage_shapes: Mapping[str, StageSchemas], listener: Listener, *, cores: int
) -> dict[str, Manifest]:
    store, app = start.store, start.claimer.app.name
    listener.on_activity(f"claiming {', '.join(stage.name for stage in start.stages)}")
    for stage in start.stages:
        start.claimer_of(stage).check_shape(stage, stage_shapes[stage.name], *start.checked[stage.name])
    if start.is_new:
        # Creating the app's identity makes it visible to everybody.
        info = apps.ensure_app(store, AppInfo(app, instants.now_ms()))
        if info.starts or info.initialised or info.origin:
            raise Refused(
                f"another process created app {app!r}, with offsets of its own, while this run started",
                hint="run it again: it continues from there",
            )
    if start.hot:
        PLACES.put(store, start.hot)
    check_no_newer_migration(store, app, start.claimer.migration)
    start.claimer.create_channels(start.stages)
    claimed = {}
    for stage in start.stages:
        shape = stage_shapes[stage.name]
        claimed[stage.name] = start.claimer_of(stage).claim(stage, shape, instants.now_ms(), cores=cores)
    # Former runners of these stages notice now that they are fenced.
    notify_runners(store, app)
    return claimed


@dataclass(slots=True)
class _RunComponents:
    """Components of a run whose stages are claimed. `stack` closes them and removes their files."""

    options: Options
    start: PreflightResult
    shapes: Mapping[str, StageSchemas]
    claimed: Mapping[str, Manifest]
    engine: Engine
    stack: ExitStack
    stop: StopEvent
    retention: Retention
    listener: Listener
    publishers: Publishers = field(init=False)
    run_folder: Path = field(init=False)
    planners: PlannerFiles = field(init=False)
    archiver: Archiver | None = None
    input_spool: InputSpool | None = None
    """Spool that readers fill for the archiver; None if there is no archiver, or if tasks run on other machines."""
    turns: Turns = field(init=False)
    backpressure: Backpressure = field(init=False)
    runners: tuple[StageRunner, ...] = ()
    _snapshot_names: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.publishers = self._new_publishers()
        self.stack.callback(self.publishers.close)
        self.run_folder = self.stack.enter_context(temporary_folder())
        self.planners = PlannerFiles(self.run_folder / "told")
        if self.options.archive and self.retention.archives:
            self.archiver = self._new_archiver()
        bounded = {
            name: limit.max_records for name, limit in self.start.limits.items() if limit.max_records is not None
        }
        self.turns = self._new_turns()
        # Listeners that act on commits get them before the caller's listener.
        self.backpressure = Backpressure(self.planners, bounded)
        acting = self.backpressure, self.publishers, self.archiver, self._new_lineage()
        self.listener = Listeners(*acting, self.listener)
        self._add_runners()
        self.publishers.start()

    def start_supervision(self) -> Supervisor:
        """Start the background threads. Returns the supervisor, which starts and watches the queries."""
        claimer, store, listener = self.start.claimer, self.start.store, self.listener
        watch, queued = RequestWatch(store, self._app, self.planners), set[str]()
        self._in_background("lag-reporter", self._new_reporter(watch, queued).run)
        if self.archiver is not None:
            self.stack.enter_context(
                self.archiver.running(lambda: 0.0 if self.stop.immediate.is_set() else _MAX_DRAIN_S)
            )
        every_ms = self.options.gc_every_ms
        if every_ms is not None and (self.retention.collects or self.start.hot):
            collector = Collector(store, self._app, self.retention, every_ms, claimer.by, self._epochs, listener)
            self._in_background("collector", collector.run)
        topics = TopicWatch(claimer.kafka, self._app, self.runners)
        self._in_background("topic-watch", topics.run)
        if isinstance(self.engine, SparkEngine):
            self._in_background("health", partial(poll_spark, self.engine.spark, listener, queued))
        triggers = {stage: limits.trigger_ms / 1_000 for stage, limits in self.start.limits.items()}
        listener.on_running(
            triggers,
            self.options.patience_s,
            lambda stage: watch.is_held or stage in self.backpressure.slow_readers or stage in self.turns.waiting,
        )
        channels = KafkaChannels(claimer.kafka, patience_s=self.options.patience_s)
        return Supervisor(
            self.runners,
            self.turns,
            watch,
            SnapshotCompleter(store, self._app, channels, claimer.by),
            RequestExecutor(store, self._app),
            GroupOffsetCommitter(claimer.kafka, self._app),
            self._new_catch_up() if self.options.until_caught_up else None,
            self.stop,
            listener,
            self.publishers,
            topics,
        )

    @property
    def _app(self) -> str:
        return self.start.claimer.app.name

    @property
    def _is_local(self) -> bool:
        return self.engine.master.startswith("local")

    def _in_background(self, name: str, work: Callable[[runtime.Event], None]) -> None:
        self.stack.enter_context(background_thread(name, work))

    def _epochs(self) -> dict[str, int]:
        return {runner.stage.name: runner.head.epoch for runner in self.runners}

    def _new_turns(self) -> Turns:
        stages, writer_of = self.start.stages, self.start.claimer.app.writer_of
        readers: dict[str, set[str]] = {}
        for stage in stages:
            for channel in stage.channels:
                readers.setdefault(writer_of(channel).name, set()).add(stage.name)
        # On a cluster, the driver has only a few of the cores.
        at_once = _BATCHES_PER_CORE * self.engine.cores if self._is_local else len(stages)
        return Turns(at_once, readers)

    def _new_publishers(self) -> Publishers:
        # A clone's sinks are published once it is promoted.
        has_sinks = any(stage.sinks for stage in self.start.stages)
        return Publishers(
            self.start.store,
            apps.read_app(self.start.store, self._app) if has_sinks else None,
            self.start.claimer.kafka,
            self.start.stages if self.options.publishes else (),
            self.claimed,
            accept_loss=self.options.accept_loss,
            patience_s=self.options.patience_s,
        )

    def _new_archiver(self) -> Archiver:
        claimer = self.start.claimer
        if self._is_local:
            spools = spool_root(self.options.cache_folder)
            self.input_spool = InputSpool(self.stack.enter_context(locked_folder(spools, f"{claimer.writer}-input")))
        return Archiver(
            self.start.store,
            self._app,
            open_kafka(self.options.kafka, lambda: self.start.store),
            self.retention.input_ms_of_topic,
            spool=self.input_spool,
            by=claimer.by,
            patience_s=self.options.patience_s,
            report=self.listener.on_archive_progress,
        )

    def _new_lineage(self) -> RunLineage | None:
        store = self.start.store

        def published(head: Manifest) -> Mapping[str, str]:
            return apps.published_sinks(store, apps.read_app(store, head.app), head.promotion) or {}

        where = DatasetNames(
            self.options.store, self.options.kafka["bootstrap.servers"], self.engine.version, published
        )
        if (lineage := configured_lineage(self.claimed, where)) is not None:
            self.stack.push(partial(self._end_lineage, lineage))
        return lineage

    def _end_lineage(self, lineage: RunLineage, _kind: object, error: BaseException | None, _trace: object) -> None:
        errors = dict.fromkeys(self.claimed) | {runner.stage.name: runner.error for runner in self.runners}
        lineage.end(last_events(errors, None if isinstance(error, StopRequested) else error))

    def _new_reporter(self, watch: RequestWatch, queued: Collection[str]) -> LagReporter:
        by_name = {runner.stage.name: runner for runner in self.runners}

        def waiting(lag: StageLag, not_run: Collection[str]) -> Wait | None:
            runner = by_name[lag.stage]
            return find_wait(
                lag,
                busy=runner.is_busy,
                queued=runner.job_group in queued,
                on_hold=watch.is_held,
                ahead=self.turns.stages_ahead(lag.stage),
                slow_readers=self.backpressure.slow_readers.get(lag.stage, ()),
                not_run=not_run,
                behind=input_behind(runner.head, self.shapes[lag.stage].inputs_with_watermark),
            )

        heartbeats, positions = self.start.heartbeats, self.publishers.positions
        return LagReporter(heartbeats, self.start.claimer, self.runners, self.listener, positions, waiting)

    def _new_catch_up(self) -> CatchUp:
        ends = {
            position.input.topic: position.ends
            for _, positions in self.start.checked.values()
            for position in positions.values()
            if not position.input.upstream
        }
        own = {
            runner.stage.name: self.shapes[runner.stage.name].inputs_with_declared_watermark for runner in self.runners
        }
        return CatchUp(self.start.store, self._app, {**ends, **self.options.until}, own)

    def _add_runners(self) -> None:
        spools = spool_root(self.options.cache_folder)
        remove_dead_folders(spools)
        runs_ahead = any(limits.max_unflushed for limits in self.start.limits.values())
        spool = self.stack.enter_context(locked_folder(spools, self.start.claimer.writer)) if runs_ahead else None
        merge_slots = None
        if isinstance(self.engine, SparkEngine) and not self._is_local:
            merge_slots = MergeSlots(partial(count_slots, self.engine.spark.sparkContext))
        if (tracing := configured_tracing()) is not None:
            self.stack.callback(tracing.close)
        for stage in self.start.stages:
            # Requests for the whole app belong to no stage, so the meter of the first stage counts them.
            shared = () if self.runners else (self.start.store, self.start.heartbeats)
            store = self.start.stores[stage.name]
            runner = StageRunner(
                self._config_of(stage, spool, tracing),
                self.claimed[stage.name],
                engine=self.engine,
                store=store,
                meter=StageMeter(self.run_folder / "counts" / stage.name, store, *shared),
                access=self.start.access,
                merge_slots=merge_slots,
                on_commit=self._report_batch,
                on_move=self.listener.on_version,
            )
            self.stack.callback(runner.close)
            self.listener.on_version(runner.head, runner.tip)
            self.runners += (runner,)

    def _report_batch(self, batch: BatchReport) -> None:
        names = snapshot_names(self.start.store, self._app, batch.snapshots, self._snapshot_names)
        self.listener.on_commit(replace(batch, snapshots=names))

    def _config_of(self, stage: Stage, spool: Path | None, tracing: Tracing | None) -> StageConfig:
        options, limits, shape = self.options, self.start.limits[stage.name], self.shapes[stage.name]
        resources = WorkerResources(
            self._app,
            stage.name,
            options.store,
            dict(options.kafka),
            (options.cache_folder, options.cache_bytes),
            options.patience_s,
            str(spool) if limits.max_unflushed else "",
            has_remote_tasks=not self._is_local,
            s3_settings=options.s3,
            hot=self.start.hot.root if self.start.hot else "",
        )
        rejecter, published = None, self.start.claimer.publishes or {}
        if stage.can_reject and isinstance(self.engine, SparkEngine):
            topic = "" if self.start.is_clone else stage.rejects
            rejecter = BatchRejecter(self.engine.spark, stage, shape, resources, topic, published)
        return StageConfig(
            stage,
            shape,
            resources,
            limits,
            ScratchCheckpoint(self.run_folder / "checkpoints" / stage.name),
            planners=self.planners,
            turns=self.turns,
            compaction_threads=options.compaction_threads,
            prefetch=options.prefetch and self._is_local,
            rescue=rejecter.rescue if rejecter and stage.on_error == "reject" else None,
            reject_too_large=rejecter.reject_too_large if rejecter else None,
            published_topics=published,
            retry_rejected=rejecter.retry if rejecter else None,
            input_spools=self._input_spools(),
            tracing=tracing,
        )

    def _input_spools(self) -> dict[str, str]:
        if self.input_spool is None:
            return {}
        read = {at.topic for head in self.claimed.values() for at in head.inputs.values()}
        return {
            topic: str(self.input_spool.folder) for topic in read if self.retention.input_ms_of_topic(topic) is not None
        }
