"""What a run shows beside its commits: what it is doing, whether it waits, what an end waits for.

On a terminal one live line on standard error; elsewhere a line when something takes a second, one when nothing comes
in, and another a minute later.
"""

import logging
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ..client.show import formats
from ..client.show.shown import Result
from ..pipeline.listener import Listener
from . import terminal

if TYPE_CHECKING:
    from ..pipeline.batch.batch_report import BatchReport
    from ..pipeline.run.stopping import Stop
    from ..snapshot.gc.collect import Collected
    from ..snapshot.status.lag import StageLag

_TICK_S = 0.2
_WORTH_A_LINE_S = 1.0
_IDLE_S = 3.0
_IDLE_AGAIN_S = 60.0
_STOPPING_AGAIN_S = 2.0


class Reporter(Listener):
    """Takes from any thread what goes on, and prints it from its own.

    It is `live` where standard error is a terminal on which a line can be redrawn.
    """

    def __init__(self, output: terminal.Printer, *, live: bool) -> None:
        self._output = output
        self._live = live
        self._lock = threading.RLock()
        self._doing = ""
        self._since = time.monotonic()
        self._last_commit: float | None = None
        self._last_doing = ""
        """The last line about what goes on."""
        self._last_idle: dict[str, float] = {}
        """When there was a line of each kind last, by its first word."""
        self._batches = False
        self._stop_asked: float | None = None
        self._last_stopping = 0.0
        self._lags: tuple[StageLag, ...] = ()
        self._drawn = ""

    def doing(self, what: str) -> None:
        """What goes on from now on; empty once nothing is to be said but whether records come in."""
        with self._lock:
            if what != self._doing:
                self._doing, self._since = what, time.monotonic()

    def running(self, *_args: object) -> None:
        """From now on, to stop is to let batches end."""
        self._batches = True

    def lags(self, stages: "tuple[StageLag, ...]") -> None:
        """How far the stages are."""
        self._lags = stages

    def committed(self, batch: "BatchReport") -> None:
        """A commit, as a line."""
        from ..client.show.programs import commit_line

        self.show(batch, commit_line(batch))

    def show(self, data: object, line: str) -> None:
        """A commit."""
        with self._lock:
            self._last_commit = time.monotonic()
            self.draw("")
            self._output.show(Result(data, line))

    def note(self, line: str) -> None:
        """A line beside the commits."""
        with self._lock:
            self.draw("")
            self._output.note(line)

    def collected(self, done: "Collected") -> None:
        """What went; nothing where that is nothing."""
        if done.objects:
            self.note(f"gc: collected {formats.plural(done.objects, 'object')}, {formats.size(done.bytes)}")

    def asked(self, stop: "Stop") -> None:
        """Somebody asked to stop; says so at once."""
        if stop.now.is_set():
            self.note("stopping now: what is not committed is dropped whole, and read again by the next run")
            return
        self.note("stopping: the batch under way ends first" if self._batches else "stopping: no batch is under way")
        self._stop_asked = self._last_stopping = time.monotonic()

    def tick(self) -> None:
        """Say what is due."""
        with self._lock:
            now = time.monotonic()
            if self._stop_asked is not None:
                if now - self._last_stopping >= _STOPPING_AGAIN_S:
                    self._last_stopping = now
                    self.note(f"stopping: {self._doing or 'waiting'}, {now - self._stop_asked:.0f} s")
            elif self._doing:
                words = f"{self._doing} …"
                if self._live:
                    self.draw(f"{words} {now - self._since:.0f} s")
                elif words != self._last_doing and now - self._since >= _WORTH_A_LINE_S:
                    self._last_doing = words
                    self._output.note(words)
            elif self._batches and now - max(self._since, self._last_commit or 0.0) >= _IDLE_S:
                line = idle(self._lags, None if self._last_commit is None else now - self._last_commit)
                kind = line.partition(" ")[0]
                if self._live:
                    self.draw(line)
                elif now - self._last_idle.get(kind, -_IDLE_AGAIN_S) >= _IDLE_AGAIN_S:
                    self._last_idle[kind] = now
                    self._output.note(line)

    def draw(self, text: str) -> None:
        """The live line as it is now; empty to take it away."""
        with self._lock:
            if self._live and text != self._drawn:
                self._drawn = text
                terminal.redraw(text)


def idle(stages: "Sequence[StageLag]", quiet_s: float | None) -> str:
    """A line for a run that has committed nothing for `quiet_s`, or nothing at all."""
    stopped = [one.stage for one in stages if one.running is False]
    behind = [f"{one.stage} {formats.plural(one.records, one.unit)}" for one in stages if one.records]
    all_read = stages and all(one.records is not None for one in stages)
    words = f"behind: {', '.join(behind)}" if behind else "waiting for records"
    if all_read and not behind:
        words += ": everything is read"
    words += "; no commit yet" if quiet_s is None else f"; no commit for {quiet_s:.0f} s"
    return words + (f"; not running: {', '.join(stopped)}" if stopped else "")


@contextmanager
def reporting(output: terminal.Printer) -> Iterator[Reporter]:
    """A reporter for the time of a run. Machines get commits alone."""
    if output.as_json and not terminal.logs_json():
        yield Reporter(output, live=False)
        return
    reporter = Reporter(output, live=terminal.is_terminal(stderr=True) and not terminal.logs_json())
    over = threading.Event()

    def go_on() -> None:
        while not over.wait(_TICK_S):
            reporter.tick()

    ticking = threading.Thread(target=go_on, name="reporter", daemon=True)
    log, handler = logging.getLogger("slackwater"), terminal.Lines(reporter.note, quoting=False)
    ticking.start()
    log.addHandler(handler)
    try:
        yield reporter
    finally:
        over.set()
        ticking.join()
        log.removeHandler(handler)
        reporter.draw("")
