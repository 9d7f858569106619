"""Write stalls: batches are delayed before unmerged SSTs slow down look-ups.

RocksDB's rule (wiki page "Write Stalls"): writers are slowed down from a first number of L0 SSTs on, and stopped from a
second one on. The state partition with most L0 SSTs counts, with the outputs of finished merges instead of their
inputs.

- Slowed down: each batch is delayed, by a fraction of a batch's duration that grows to the whole.
- Stopped: no batch starts while this runner merges. If another process should merge, a batch waits a minute for it;
  then batches continue slowed down: reads get slower, but the app runs.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf
from typing import Literal

from ..api.table import L0_SLOWDOWN, L0_STOP

Compacting = Literal["nothing", "under way", "finished"]
"""Progress of this runner's merges of L0 SSTs: `finished` outputs are committed with the next batch."""

_POLL_S = 0.1
_GIVE_UP_S = 60.0

_log = logging.getLogger("slackwater")


@dataclass(frozen=True, slots=True)
class Triggers:
    """Numbers of L0 SSTs in one state partition that delay or stop batches."""

    slowdown: int = L0_SLOWDOWN
    stop: int = L0_STOP

    def delay_s(self, l0: int, batch_s: float) -> float:
        """Return the delay of a batch in seconds: 0, up to `batch_s`, or infinity."""
        if l0 < self.slowdown:
            return 0.0
        if l0 >= self.stop:
            return inf
        return batch_s * (l0 - self.slowdown + 1) / (self.stop - self.slowdown)


@dataclass(slots=True)
class Stall:
    """Delays the batches of one stage. Logs once for each time that compaction falls behind."""

    stage: str
    """Name for messages."""
    triggers: Triggers
    l0: Callable[[], int]
    """Returns the number of L0 SSTs of the state partition that has most."""
    compacting: Callable[[], Compacting]
    """Returns the progress of this runner's merges."""
    begin: Callable[[], None]
    """Starts the merges if none runs, as after a start or a failed merge."""
    clock: Callable[[], float] = field(default=time.monotonic, kw_only=True)
    sleep: Callable[[float], None] = field(default=time.sleep, kw_only=True)
    _logged: set[str] = field(default_factory=set)
    _held_s: float = 0.0

    def wait(self, batch_s: float, stopping: Callable[[], bool]) -> float:
        """Delay a batch as needed, or until `stopping`; return the seconds. `batch_s` is the last batch's duration."""
        began = self.clock()
        waited_s = 0.0
        while not stopping():
            l0 = self.l0()
            delay_s = self.triggers.delay_s(l0, batch_s)
            self._log_state(l0, delay_s)
            if delay_s and not waited_s:
                self.begin()
            if delay_s == inf:
                delay_s = self._stopped_s(batch_s, waited_s)
            if waited_s >= delay_s:
                break
            self.sleep(min(_POLL_S, delay_s - waited_s))
            waited_s = self.clock() - began
        self._held_s += waited_s
        return waited_s

    def _stopped_s(self, batch_s: float, waited_s: float) -> float:
        """Return the delay of a batch that must not start."""
        if (compacting := self.compacting()) != "nothing":
            return inf if compacting == "under way" else 0.0
        if "gave up" in self._logged:
            return batch_s
        if waited_s >= _GIVE_UP_S:
            self._log_once("gave up", f"no compaction for {waited_s:.0f} s; batches continue, slowed down")
        return _GIVE_UP_S

    def _log_state(self, l0: int, delay_s: float) -> None:
        ssts, slowdown, stop = f"{l0} L0 SSTs in one state partition", self.triggers.slowdown, self.triggers.stop
        if delay_s == inf:
            self._log_once("stopped", f"{ssts} (l0_stop is {stop}): no batch starts before compaction has merged them")
        elif delay_s:
            rule = f"(l0_slowdown is {slowdown}): batches are delayed until compaction has caught up"
            self._log_once("slowed down", f"{ssts} {rule}")
        elif self._logged and l0 < slowdown:
            self._log_once("", f"{ssts}; batches were delayed for {self._held_s:.0f} s")
            self._logged.clear()
            self._held_s = 0.0

    def _log_once(self, state: str, message: str) -> None:
        if state not in self._logged:
            self._logged.add(state)
            _log.warning("%s: %s", self.stage, message)
