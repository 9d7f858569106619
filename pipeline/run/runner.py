"""Running an app: check and claim its stages, and hand their queries to who looks after them."""

from __future__ import annotations

import logging
import os
import re
import shutil
import socket
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

from pyspark.sql import SparkSession
from ulid import ULID

from ...errors import Refused, Usage
from ...snapshot.clone.clone import unfinished
from ...snapshot.maintain.retire import absent
from ...store.objects.counting import CountingStore
from ...store.objects.open import access_to, open_store
from ...store.objects.protocol import ObjectStore
from ...store.read.cache import SstCache
from ...store.versions import apps
from ...store.versions.manifest import AppInfo
from ..api.app import App, Stage
from ..batch.claim import Claimer
from ..batch.meter import StageMeter
from ..batch.progress import Progress
from ..batch.schemas import shapes
from ..batch.stage_runner import Limits, StageRunner
from ..batch.task import Places
from ..batch.write_stall import Triggers
from ..kafka import topics
from ..kafka.clients import server
from ..source.checkpoint import Checkpoint
from ..spark.session import spark_session
from ..spark.warm_up import warm_up
from .backpressure import Backpressure, Reader
from .news import News, Silence
from .options import Options
from .outlook import Outlook
from .snapshot_names import SnapshotNames
from .spool_folder import beside, spool_folder, sweep
from .stopping import Stop, stop_signals
from .supervisor import Watch

__all__ = ["Options", "run"]

_log = logging.getLogger("slackwater")
_BEAT_PATIENCE_S = 3.0
_INTERVAL = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(milliseconds?|ms|seconds?|s|minutes?|min|hours?|h)\s*")


def interval_ms(text: str | None) -> int:
    """Milliseconds of a trigger interval such as "10 seconds"; 0 for None. Raises `Usage`."""
    if text is None:
        return 0
    match = _INTERVAL.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise Usage(f"trigger {text!r} is not an interval; expected something like '10 seconds' or '500 ms'")
    number, unit = float(match[1]), match[2]
    scale = 1 if unit.startswith(("ms", "milli")) else {"s": 1000, "m": 60_000, "h": 3_600_000}[unit[0]]
    return round(number * scale)


def limits_of(stage: Stage, options: Options) -> Limits:
    """What bounds a stage's batches: whoever starts the app wins over what its file says. Raises `Usage`."""
    declared = interval_ms(stage.trigger)
    return Limits(
        stage.max_records if options.max_records is None else options.max_records,
        declared if options.trigger is None else interval_ms(options.trigger),
        Triggers(stage.table.l0_slowdown, stage.table.l0_stop),
        (stage.max_unflushed or 0) if options.max_unflushed is None else options.max_unflushed,
    )


def run(
    app: App,
    options: Options,
    on_progress: Callable[[Progress], None],
    *,
    news: News | None = None,
    stop: Stop | None = None,
) -> None:
    """Run an app until it is stopped (SIGINT, SIGTERM) or, if so asked, until it has caught up.

    Args:
        app: The program.
        options: How to run it.
        on_progress: Told of each committed batch.
        news: Told of all else.
        stop: Set when it is to stop; None to hear the signals here.

    Raises:
        Stopped: `stop`, which somebody else looks after, was set before the first batch.
        Fenced: A newer runner took a stage over.
        SlackwaterError: Anything else that stopped it; nothing committed is lost.
    """
    stages = app.select(options.stages)
    limits = {stage.name: limits_of(stage, options) for stage in stages}
    news = news or Silence()
    with ExitStack() as stack:
        stop = stop or stack.enter_context(stop_signals())
        with stop.at_once():
            news.doing(f"waiting for {server(options.kafka)}")
            topics.wait_for(options.kafka, options.patience_s)
            opened = open_store(options.store, patience_s=options.patience_s)
        store = CountingStore(opened)
        beats = CountingStore(open_store(options.store, patience_s=_BEAT_PATIENCE_S))
        # Each stage has a store of its own over the same one, and is counted by itself.
        stores = {stage.name: CountingStore(opened) for stage in stages}
        with stop.at_once():
            # All that can be refused without Spark is, before it starts; what is made, is made after the last check.
            news.doing("checking the app")
            if asked := _known_master(options):
                check_unflushed(limits, asked)
            info = apps.find_app(store, app.name)
            if info is not None:
                if missing := unfinished(store, info):
                    raise Refused(
                        f"app {app.name!r} is a clone that was not finished: {', '.join(missing)} have no state yet",
                        hint="run the same `slackwater clone` again; it goes on where it stopped",
                    )
                _tell_absent(store, app)
            any_claimer = Claimer(
                store=store,
                kafka=options.kafka,
                app=app,
                topics=info.origin.topics if info and info.origin else {},
                writer=str(ULID()),
                by=f"{socket.gethostname()}:{os.getpid()}",
                accept_loss=options.accept_loss,
            )
            claimers = {name: replace(any_claimer, store=counted) for name, counted in stores.items()}
            for stage in stages:
                claimers[stage.name].check_declared(stage)
            any_claimer.check_channels(stages)
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
            master = spark.sparkContext.master or ""
            local = master.startswith("local")
            check_unflushed(limits, master)
            warm_up(spark)
            known = shapes(app, spark)
        news.doing(f"claiming {', '.join(stage.name for stage in stages)}")
        starting = stack.enter_context(ExitStack())
        starting.enter_context(stop.at_once())
        for stage in stages:
            claimers[stage.name].check(stage, known[stage.name])
        if info is None:
            # From its identity on an app is there for everybody.
            apps.ensure_app(store, AppInfo(app.name, time.time_ns() // 1_000_000))
        any_claimer.create_channels(stages)
        scratch = Path(stack.enter_context(_scratch()))
        spools = beside(options.cache_folder)
        sweep(spools)
        runs_ahead = any(limit.max_unflushed for limit in limits.values())
        spool = stack.enter_context(spool_folder(spools, any_claimer.writer)) if runs_ahead else None
        runners: list[StageRunner] = []
        backpressure = Backpressure(scratch / "held", _readers(stages, limits))

        def look() -> None:
            heads = {runner.stage.name: runner.head for runner in runners}
            backpressure.look(heads, {runner.stage.name: runner.tip for runner in runners})

        names = SnapshotNames(store, app.name)

        def on_commit(progress: Progress) -> None:
            look()
            on_progress(replace(progress, snapshots=names.of(progress.snapshots)))

        for stage in stages:
            claimed = claimers[stage.name].claim(stage, known[stage.name], time.time_ns() // 1_000_000)
            shared = () if runners else (store, beats)
            meter = StageMeter(scratch / "counts" / stage.name, stores[stage.name], *shared)
            places = Places(
                app.name,
                stage.name,
                options.store,
                dict(options.kafka),
                (str(options.cache_folder), options.cache_bytes, options.cache_memory_bytes),
                options.patience_s,
                str(spool) if limits[stage.name].max_unflushed else "",
                elsewhere=not local,
            )
            runner = StageRunner(
                stage,
                known[stage.name],
                claimed,
                places=places,
                limits=limits[stage.name],
                store=stores[stage.name],
                meter=meter,
                cache=SstCache(options.cache_folder, options.cache_bytes, hot_bytes=options.cache_memory_bytes),
                checkpoint=Checkpoint(scratch / "checkpoints" / stage.name),
                hold=backpressure.flag(stage.name),
                on_commit=on_commit,
                on_acknowledged=look,
                compaction_threads=options.compaction_threads,
                prefetch=options.prefetch and local,
                access=partial(access_to, opened),
            )
            stack.callback(runner.close)
            runners.append(runner)
        look()
        starting.close()
        outlook = Outlook(
            beats,
            options.kafka,
            app.name,
            writer=any_claimer.writer,
            by=any_claimer.by,
            runners=tuple(runners),
            news=news,
        )
        stack.callback(outlook.close)
        outlook.start()
        with stop.in_order():
            Watch(app, options, store, spark, tuple(runners), stop, news).until_done()


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


def _readers(stages: Iterable[Stage], limits: Mapping[str, Limits]) -> tuple[Reader, ...]:
    """The stages that read channels under an admission limit."""
    return tuple(
        Reader(stage.name, stage.channels, limit)
        for stage in stages
        if stage.channels and (limit := limits[stage.name].max_records) is not None
    )


@contextmanager
def _scratch() -> Iterator[str]:
    folder = tempfile.mkdtemp(prefix="slackwater-")
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
