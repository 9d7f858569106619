"""Running an app: claim its stages, start their queries, look after them, and stop cleanly."""

from __future__ import annotations

import logging
import os
import re
import shutil
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from ulid import ULID

from ..snapshot.clone import unfinished
from ..store import apps, errors, history
from ..store.cache import SstCache
from ..store.errors import Refused, SlackwaterError, Unavailable, Usage
from ..store.manifest import AppInfo, Input
from ..store.open import open_store
from . import kafka as kafka_client
from .app import App, Stage
from .channels import KafkaChannels
from .checkpoint import Checkpoint
from .claiming import Claimer
from .completer import Completer
from .groups import Announcer
from .progress import Progress
from .schemas import shapes
from .session import spark_session
from .stage_runner import Limits, StageRunner
from .task import Places

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

__all__ = ["Options", "run"]

_log = logging.getLogger("slackwater")

_LOOK_S = 0.1
_HOUSEKEEPING_S = 0.5
_EPOCH_S = 3.0
_STOP_S = 6.0
_START_S = 15.0
_STARTING = ("Initializing", "Getting offsets", "Starting")
"""How Spark's words for what a query does begin before its sources have answered."""
_INTERVAL = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(milliseconds?|ms|seconds?|s|minutes?|min|hours?|h)\s*")


@dataclass(frozen=True, slots=True)
class Options:
    """How to run an app.

    Attributes:
        store: The store root.
        kafka: librdkafka client properties, `bootstrap.servers` among them.
        stages: Run only these; empty for all.
        until_caught_up: Stop when nothing is left to read.
        max_records: At most so many input records a batch, for stages that do not say it themselves.
        trigger: Shortest time between batches, likewise.
        accept_loss: Go on without input records that are gone.
        master: Spark's master URL; None for Spark's own configuration.
        patience_s: How long a broker or a store may be away.
        cache_folder: Where this machine keeps SSTs for look-ups.
        cache_bytes: How much of it.
        spark_conf: Further Spark settings.
    """

    store: str
    kafka: Mapping[str, str]
    stages: tuple[str, ...] = ()
    until_caught_up: bool = False
    max_records: int | None = None
    trigger: str | None = None
    accept_loss: bool = False
    master: str | None = None
    patience_s: float = 120
    cache_folder: Path = field(default_factory=lambda: Path.home() / ".cache" / "slackwater" / "sst")
    cache_bytes: int = 10 << 30
    spark_conf: dict[str, str] = field(default_factory=dict)


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
        runners = []
        for stage in stages:
            claimed = claimer.claim(stage, known[stage.name], time.time_ns() // 1_000_000)
            places = Places(
                app.name,
                stage.name,
                options.store,
                dict(options.kafka),
                (str(options.cache_folder), options.cache_bytes),
                options.patience_s,
            )
            runner = StageRunner(
                stage,
                known[stage.name],
                claimed,
                places=places,
                limits=limits[stage.name],
                store=store,
                cache=SstCache(options.cache_folder, options.cache_bytes),
                checkpoint=Checkpoint(scratch / stage.name),
                on_commit=on_progress,
            )
            stack.callback(runner.close)
            runners.append(runner)
        _Watch(app, options, spark, tuple(runners), stop).until_done()


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


class _Watch:
    """Looks after the running queries of one runner."""

    def __init__(
        self,
        app: App,
        options: Options,
        spark: SparkSession,
        runners: tuple[StageRunner, ...],
        stop: threading.Event,
    ) -> None:
        self._app = app
        self._options = options
        self._spark = spark
        self._runners = runners
        self._stop = stop
        self._store = open_store(options.store, patience_s=options.patience_s)
        by = f"{socket.gethostname()}:{os.getpid()}"
        reader = KafkaChannels(options.kafka, patience_s=options.patience_s)
        self._completer = Completer(self._store, app.name, reader, by)
        self._announcer = Announcer(options.kafka, app.name)
        self._queries: list[StreamingQuery] = []

    def until_done(self) -> None:
        with closing(self._completer):
            try:
                for runner in self._runners:
                    self._start(runner)
                self._look_after()
            finally:
                self._halt()
                self._announcer.close(self._positions())
            if not self._stop.is_set():
                self._raise_failures()
            self._complete_snapshots()

    def _start(self, runner: StageRunner) -> None:
        """Start a query, and wait until its sources have answered for the first time.

        Each source is a process of its own, and Spark gives each ten seconds to come up: started all at once, those of
        a large app would take longer than that on a small machine.
        """
        query = runner.start(self._spark)
        self._queries.append(query)
        deadline = time.monotonic() + _START_S
        while query.isActive and str(query.status["message"]).startswith(_STARTING):
            if time.monotonic() > deadline or self._stop.wait(_LOOK_S / 2):
                return

    def _look_after(self) -> None:
        housekeeping = epochs = 0.0
        while not self._stop.wait(_LOOK_S):
            self._raise_failures()
            now = time.monotonic()
            if now >= housekeeping:
                self._complete_snapshots()
                self._announcer.look(self._positions())
                if self._options.until_caught_up and self._caught_up():
                    break
                housekeeping = now + _HOUSEKEEPING_S
            if now >= epochs:
                for runner in self._runners:
                    runner.check_epoch()
                epochs = now + _EPOCH_S

    def _positions(self) -> dict[str, dict[str, tuple[int, ...]]]:
        """The offsets that each stage has read up to, by topic."""
        return {
            runner.stage.name: {read.topic: read.offsets for read in runner.positions.values()}
            for runner in self._runners
        }

    def _halt(self) -> None:
        """Let batches under way end for a while, then drop them whole."""
        for runner in self._runners:
            runner.stopping = True
        deadline = time.monotonic() + _STOP_S
        for runner in self._runners:
            runner.idle(max(0.0, deadline - time.monotonic()))
        failures = {runner.stage.name: runner.error for runner in self._runners}
        for query in self._queries:
            query.stop()
        # What fails because it was stopped is no failure.
        for runner in self._runners:
            runner.error = failures[runner.stage.name]

    def _raise_failures(self) -> None:
        for runner, query in zip(self._runners, self._queries, strict=False):
            failed = None if query.isActive else query.exception()
            if runner.error is None and failed is None:
                continue
            if isinstance(runner.error, SlackwaterError):
                raise runner.error
            text = "\n".join(
                f"{type(error).__name__}: {error}" for error in (failed, runner.error) if error is not None
            )
            raise _translate(runner.stage, text) from (runner.error or failed)

    def _complete_snapshots(self) -> None:
        """Complete what every stage has answered; note what nobody asks for any more."""
        closed = self._completer.look([runner.head for runner in self._runners])
        for runner in self._runners:
            runner.closed_snapshots = closed

    def _caught_up(self) -> bool:
        try:
            return all(self._has_caught_up(runner) for runner in self._runners)
        except Unavailable:
            # Whether the broker has been away for too long is the planners' to say.
            return False

    def _has_caught_up(self, runner: StageRunner) -> bool:
        return all(self._at_the_end(name, at) for name, at in runner.positions.items())

    def _at_the_end(self, name: str, at: Input) -> bool:
        if not at.upstream:
            return kafka_client.end_offsets(self._options.kafka, at.topic) == at.offsets
        sent = (
            manifest.outputs.get(name)
            for manifest in history.after(self._store, self._app.name, at.upstream, at.version)
        )
        return not any(output.rows or output.markers for output in sent if output is not None)


_RAISED = re.compile(r"^\s*((?!org\.apache\.spark\.api\.)[\w.]+(?:Error|Exception)\b: .*)", re.MULTILINE)
_ENDED = re.compile(r"terminated with exception: (.*)")
_OURS = re.compile(r"slackwater\.store\.errors\.(\w+): (.*)")


def _translate(stage: Stage, text: str) -> SlackwaterError:
    """What stopped a query, in one sentence, from what Spark says of it: errors cross from workers as text."""
    ours = _OURS.findall(text)
    if ours:
        kind, message = ours[-1]
        known = getattr(errors, kind, None)
        error = known.__new__(known) if isinstance(known, type) and issubclass(known, SlackwaterError) else Refused("")
        SlackwaterError.__init__(error, f"stage {stage.name!r}: {message.strip()}")
        return error
    raised = _RAISED.findall(text)
    ended = _ENDED.findall(text)
    reason = (raised or ended or ["no reason given"])[-1].strip()
    return Refused(
        f"stage {stage.name!r} stopped: {reason}",
        hint="the batch was dropped whole and nothing is lost; mend the cause and run again "
        "(SLACKWATER_DEBUG=1 shows Spark's own words)",
    )
