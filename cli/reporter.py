"""Progress lines of a run besides its commits: the current activity, idleness, and a stop in progress.

On a terminal, the progress is one live line on stderr. Elsewhere, a line is printed when an activity takes longer than
a second, or when no records arrive; then one line per minute.
"""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ..client.show import formats
from ..client.show.shown import Result
from ..common import runtime
from ..pipeline.listener import Listener
from . import terminal

if TYPE_CHECKING:
    from ..pipeline.listener import BatchReport
    from ..pipeline.run.stopping import StopEvent
    from ..snapshot.gc.collect import Collected
    from ..snapshot.status.overview import StageLag

_TICK_S = 0.2
_PRINT_AFTER_S = 1.0
_IDLE_S = 3.0
_IDLE_AGAIN_S = 60.0
_STOPPING_AGAIN_S = 2.0


class Reporter(Listener):
    """Listener that takes events from any thread, and prints progress from a thread of its own.

    With `live`, stderr is a terminal on which a line can be redrawn.
    """

    def __init__(self, output: terminal.Printer, *, live: bool) -> None:
        self._output = output
        self._live = live
        self._lock = runtime.rlock()
        self._activity = ""
        self._activity_since_s = runtime.monotonic()
        self._last_commit: float | None = None
        self._last_activity_line = ""
        self._last_idle: dict[str, float] = {}
        """Time of the last idle line of each kind, by the line's first word."""
        self._runs_batches = False
        self._stop_requested_s: float | None = None
        self._last_stopping = 0.0
        self._lags: tuple[StageLag, ...] = ()
        self._live_text = ""

    def on_activity(self, activity: str) -> None:
        with self._lock:
            if activity != self._activity:
                self._activity, self._activity_since_s = activity, runtime.monotonic()

    def on_running(self, *_args: object) -> None:
        self._runs_batches = True

    def on_lags(self, stages: "tuple[StageLag, ...]") -> None:
        self._lags = stages

    def on_commit(self, batch: "BatchReport") -> None:
        from ..client.show.programs import commit_line

        self.show(batch, commit_line(batch))

    def show(self, data: object, line: str) -> None:
        with self._lock:
            self._last_commit = runtime.monotonic()
            self.draw("")
            self._output.show(Result(data, line))

    def note(self, line: str) -> None:
        with self._lock:
            self.draw("")
            self._output.note(line)

    def on_gc(self, done: "Collected") -> None:
        if done.objects:
            self.note(f"gc: collected {formats.plural(done.objects, 'object')}, {formats.size(done.bytes)}")

    def on_stop_requested(self, stop: "StopEvent") -> None:
        if stop.immediate.is_set():
            self.note("stopping now: the uncommitted batch is discarded, and the next run reads it again")
            return
        self.note("stopping: finishing the current batch" if self._runs_batches else "stopping: no batch is running")
        self._stop_requested_s = self._last_stopping = runtime.monotonic()

    def tick(self) -> None:
        with self._lock:
            now = runtime.monotonic()
            if self._stop_requested_s is not None:
                if now - self._last_stopping >= _STOPPING_AGAIN_S:
                    self._last_stopping = now
                    self.note(f"stopping: {self._activity or 'waiting'}, {now - self._stop_requested_s:.0f} s")
            elif self._activity:
                activity = f"{self._activity} …"
                if self._live:
                    self.draw(f"{activity} {now - self._activity_since_s:.0f} s")
                elif activity != self._last_activity_line and now - self._activity_since_s >= _PRINT_AFTER_S:
                    self._last_activity_line = activity
                    self._output.note(activity)
            elif self._runs_batches and now - max(self._activity_since_s, self._last_commit or 0.0) >= _IDLE_S:
                line = idle_line(self._lags, None if self._last_commit is None else now - self._last_commit)
                kind = line.partition(" ")[0]
                if self._live:
                    self.draw(line)
                elif now - self._last_idle.get(kind, -_IDLE_AGAIN_S) >= _IDLE_AGAIN_S:
                    self._last_idle[kind] = now
                    self._output.note(line)

    def draw(self, text: str) -> None:
        """Redraw the live line; an empty text removes it."""
        with self._lock:
            if self._live and text != self._live_text:
                self._live_text = text
                terminal.redraw_line(text)


def idle_line(stages: "Sequence[StageLag]", quiet_s: float | None) -> str:
    """Return the progress line for a run without a commit for `quiet_s` seconds.

    `quiet_s` is None if the run has made no commit yet.
    """
    stopped = [stage.stage for stage in stages if stage.running is False]
    lagging = [f"{stage.stage} {formats.plural(stage.records, stage.unit)}" for stage in stages if stage.records]
    all_read = stages and all(stage.records is not None for stage in stages)
    line = f"behind: {', '.join(lagging)}" if lagging else "waiting for records"
    if all_read and not lagging:
        line += ": everything is read"
    line += "; no commit yet" if quiet_s is None else f"; no commit for {quiet_s:.0f} s"
    return line + (f"; not running: {', '.join(stopped)}" if stopped else "")


@contextmanager
def reporting(output: terminal.Printer) -> Iterator[Reporter]:
    """Yield a reporter for the duration of a run. With --json, only commits are printed."""
    if output.as_json and not terminal.logs_json():
        yield Reporter(output, live=False)
        return
    reporter = Reporter(output, live=terminal.is_terminal(stderr=True) and not terminal.logs_json())
    over = runtime.event()

    def go_on() -> None:
        while not over.wait(_TICK_S):
            reporter.tick()

    ticking = runtime.thread(go_on, name="reporter")
    log, handler = logging.getLogger("slackwater"), terminal.NoteHandler(reporter.note, quoting=False)
    ticking.start()
    log.addHandler(handler)
    try:
        yield reporter
    finally:
        over.set()
        ticking.join()
        log.removeHandler(handler)
        reporter.draw("")
