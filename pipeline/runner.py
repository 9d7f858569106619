"""Running an app: check and claim its stages, and hand their queries to who looks after them."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType

from ulid import ULID

from ..snapshot.clone import unfinished
from ..store import apps
from ..store.cache import SstCache
from ..store.errors import Refused, Usage
from ..store.manifest import AppInfo
from ..store.open import open_store
from . import kafka as kafka_client
from .app import App, Stage
from .backpressure import Backpressure, Reader
from .checkpoint import Checkpoint
from .claiming import Claimer
from .options import Options
from .progress import Progress
from .schemas import shapes
from .session import spark_session
from .stage_runner import Limits, StageRunner
from .task import Places
from .watch import Watch

__all__ = ["Options", "run"]

_INTERVAL = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(milliseconds?|ms|seconds?|s|minutes?|min|hours?|h)\s*")


def interval_ms(text: str | None) -> int:
    """Milliseconds of a trigger interval such as "10 seconds"; 0 for None. Raises `Usage`."""
    if text is None:
        return 0
    match = _INTERVAL.fullmatch(text)
    if match is None:
        raise Usage(f"trigger {text!r} is not an interval; expected something like '10 seconds' or '500 ms'")
    number, unit = float(match[1]), match[2]
    scale = 1 if unit.startswith(("ms", "milli")) else {"s": 1000, "m": 60_000, "h": 3_600_000}[unit[0]]
    return round(number * scale)


def run(app: App, options: Options, on_progress: Callable[[Progress], None]) -> None:
    """Run an app until it is stopped (SIGINT, SIGTERM) or, if so asked, until it has caught up.

    Raises:
        Fenced: A newer runner took a stage over.
        SlackwaterError: Anything else that stopped it; nothing committed is lost.
    """
    stages = app.select(options.stages)
    limits = {
        stage.name: Limits(stage.max_records or options.max_records, interval_ms(stage.trigger or options.trigger))
        for stage in stages
    }
    kafka_client.wait_for(options.kafka, options.patience_s)
    store = open_store(options.store, patience_s=options.patience_s)
    with ExitStack() as stack:
        session = spark_session(f"slackwater {app.name}", master=options.master, conf=options.spark_conf)
        spark = stack.enter_context(session)
        # After Spark, which sets a handler of its own.
        stop = stack.enter_context(_stop_signals())
        known = shapes(app, spark)
        info = apps.ensure_app(store, AppInfo(app.name, time.time_ns() // 1_000_000))
        if missing := unfinished(store, info):
            raise Refused(
                f"app {app.name!r} is a clone that was not finished: {', '.join(missing)} have no state yet",
                hint="run the same `slackwater clone` again; it goes on where it stopped",
            )
        claimer = Claimer(
            store=store,
            kafka=options.kafka,
            app=app,
            topics=info.origin.topics if info.origin else {},
            writer=str(ULID()),
            by=f"{socket.gethostname()}:{os.getpid()}",
            accept_loss=options.accept_loss,
        )
        claimer.create_channels(stages)
        for stage in stages:
            claimer.check(stage, known[stage.name])
        scratch = Path(stack.enter_context(_scratch()))
        runners: list[StageRunner] = []
        backpressure = Backpressure(scratch / "held", _readers(stages, limits))

        def on_commit(progress: Progress) -> None:
            backpressure.look({runner.stage.name: runner.head for runner in runners})
            on_progress(progress)

        for stage in stages:
            claimed = claimer.claim(stage, known[stage.name], time.time_ns() // 1_000_000)
            places = Places(
                app.name,
                stage.name,
                options.store,
                dict(options.kafka),
                (str(options.cache_folder), options.cache_bytes, options.cache_memory_bytes),
                options.patience_s,
            )
            runner = StageRunner(
                stage,
                known[stage.name],
                claimed,
                places=places,
                limits=limits[stage.name],
                store=store,
                cache=SstCache(options.cache_folder, options.cache_bytes, hot_bytes=options.cache_memory_bytes),
                checkpoint=Checkpoint(scratch / "checkpoints" / stage.name),
                hold=backpressure.flag(stage.name),
                on_commit=on_commit,
                prefetch=options.prefetch and (spark.sparkContext.master or "").startswith("local"),
            )
            stack.callback(runner.close)
            runners.append(runner)
        backpressure.look({runner.stage.name: runner.head for runner in runners})
        Watch(app, options, store, spark, tuple(runners), stop).until_done()


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


@contextmanager
def _stop_signals() -> Iterator[threading.Event]:
    """An event that SIGINT and SIGTERM set; where this is not the main thread, nobody sets it."""
    stop = threading.Event()

    def handle(_number: int, _frame: FrameType | None) -> None:
        stop.set()

    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
