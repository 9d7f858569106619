"""Liveness and readiness of a run, as probes ask for them. No threads and no I/O.

A run is live while it makes progress on pending work. Waiting for records, or for a broker or a store within its
timeout, is healthy: a restart would not help. These hang: a JVM that does not answer, a driver loop that does not come
round, a batch in which no Spark task ends, and a stage that starts no batch although records are there. Times are
seconds of a monotonic clock.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, field

from ...snapshot.status.overview import StageLag
from ..listener import Listener

HUNG_S = 600.0
"""Seconds without progress after which pending work counts as hanging, at least."""
_TIMES_USUAL = 10
"""Allowed duration without progress, as a multiple of the longest of a stage's recent batches."""
_SPARK_S = 60.0
"""Seconds that Spark's JVM may not answer, for example during garbage collection."""
_LOOP_S = 60.0
"""Seconds that one round of the driver's loop may take, beyond the timeout of store and broker."""
_CHECKED_S = 30.0
"""Seconds for which a check that this runner owns its stages counts; the runner checks every five seconds."""
_REMEMBERED = 20
"""Number of recent batches of a stage."""


@dataclass(slots=True)
class _Stage:
    """Observed progress of one stage."""

    moved_s: float
    """Time of the last progress: a batch began or ended, a version was committed, or a Spark task ended."""
    trigger_s: float
    busy: bool = False
    version: int = 0
    began_s: float = 0.0
    took_s: deque[float] = field(default_factory=lambda: deque(maxlen=_REMEMBERED))
    unread: bool = False
    unread_s: float = 0.0
    """Time since which records wait for the stage."""


@dataclass(slots=True)
class Health(Listener):
    """Collects signs of progress, and answers probes. Thread-safe."""

    hung_s: float = HUNG_S
    clock: Callable[[], float] = time.monotonic
    _loop_s: float = _LOOP_S
    _stages: dict[str, _Stage] = field(default_factory=dict)
    """Progress by stage. Empty before batches run, and after `ending`."""
    _is_held: Callable[[str], bool] = lambda _stage: False
    _doing: str = "starting"
    _at_s: float = 0.0
    """Time when the loop last came round, or when the current step outside of the loop began."""
    _spark_s: float = 0.0
    _spark: Hashable = None
    _checked_s: float = float("-inf")
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self._at_s = self.clock()

    def doing(self, what: str) -> None:
        with self._lock:
            self._doing, self._at_s = what, self.clock()

    def running(self, triggers_s: Mapping[str, float], patience_s: float, held: Callable[[str], bool]) -> None:
        with self._lock:
            now = self.clock()
            self._loop_s, self._is_held = patience_s + min(_LOOP_S, self.hung_s), held
            self._at_s = self._spark_s = self._checked_s = now
            self._stages = {name: _Stage(now, trigger_s) for name, trigger_s in triggers_s.items()}

    def ending(self) -> None:
        with self._lock:
            self._stages, self._checked_s, self._at_s = {}, float("-inf"), self.clock()

    def looped(self) -> None:
        self._at_s = self.clock()

    def looked(self, stage: str, *, busy: bool, version: int) -> None:
        with self._lock:
            if (seen := self._stages.get(stage)) is None or (seen.busy, seen.version) == (busy, version):
                return
            now = self.clock()
            if seen.busy and not busy:
                seen.took_s.append(now - seen.began_s)
            if busy:
                seen.began_s = now
            seen.busy, seen.version, seen.moved_s = busy, version, now

    def spark(self, tasks: Hashable) -> None:
        with self._lock:
            self._spark_s = now = self.clock()
            if tasks != self._spark:
                self._spark = tasks
                for seen in self._stages.values():
                    if seen.busy:
                        seen.moved_s = now

    def checked(self) -> None:
        self._checked_s = self.clock()

    def lags(self, stages: tuple[StageLag, ...]) -> None:
        with self._lock:
            for lag in stages:
                if (seen := self._stages.get(lag.stage)) is not None:
                    unread = bool(lag.records)
                    if unread and not seen.unread:
                        seen.unread_s = self.clock()
                    seen.unread = unread

    def hangs(self) -> tuple[str, ...]:
        """Return what hangs, as sentences; empty for a live run."""
        with self._lock:
            return tuple(self._hanging(self.clock()))

    def lacks(self) -> tuple[str, ...]:
        """Return why this runner may not write now, as sentences; empty if it owns its stages and runs batches."""
        with self._lock:
            if not self._stages:
                return (f"no batches are running: {self._doing}",)
            since_s = self.clock() - self._checked_s
            return () if since_s <= _CHECKED_S else (f"ownership of its stages was last confirmed {since_s:.0f} s ago",)

    def _hanging(self, now: float) -> Iterator[str]:
        quiet_s = now - self._at_s
        if not self._stages:
            if quiet_s > max(self.hung_s, self._loop_s):
                yield f"{self._doing} for {quiet_s:.0f} s"
            return
        if quiet_s > self._loop_s:
            yield f"the driver's loop has been stuck for {quiet_s:.0f} s"
        if (silent_s := now - self._spark_s) > min(_SPARK_S, self.hung_s):
            yield f"Spark's JVM has not answered for {silent_s:.0f} s"
        for name, seen in self._stages.items():
            usual_s = max(seen.took_s, default=0.0)
            allowed_s = max(self.hung_s, self._loop_s, _TIMES_USUAL * usual_s, 3 * seen.trigger_s)
            if seen.busy and now - seen.moved_s > allowed_s:
                yield f"stage {name!r}: no task of its batch has ended for {now - seen.moved_s:.0f} s"
            elif not seen.busy and seen.unread:
                waited_s = now - max(seen.moved_s, seen.unread_s)
                if waited_s > allowed_s and not self._is_held(name):
                    yield f"stage {name!r}: records are waiting, but no batch has started for {waited_s:.0f} s"
