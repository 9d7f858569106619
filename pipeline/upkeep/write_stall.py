"""Write stalls: batches are held back before look-ups suffer from what compaction has not merged yet.

RocksDB's rule (wiki page "Write Stalls"): from so many L0 SSTs on writers are slowed down, from more on stopped. What
counts here is the state partition that has most of them, with finished merges in the place of their inputs.

- Slowed down, each batch starts later, by a part of a batch's time that grows up to the whole.
- Stopped, no batch starts while this runner merges. Where that is left to another process, a batch waits a minute for
  it. When none comes, batches go on slowed down: reads get slower, the app lives.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf
from typing import Literal

from ..api.table import L0_SLOWDOWN, L0_STOP

Compacting = Literal["nothing", "under way", "finished"]
"""What this runner does about its L0 SSTs: `finished` is merged, and comes with the next batch."""

_POLL_S = 0.1
_GIVE_UP_S = 60.0

_log = logging.getLogger("slackwater")


@dataclass(frozen=True, slots=True)
class Triggers:
    """Numbers of L0 SSTs in one state partition from which on batches are held back."""

    slowdown: int = L0_SLOWDOWN
    stop: int = L0_STOP

    def delay_s(self, l0: int, batch_s: float) -> float:
        """How long a batch is put off, in seconds: none, up to `batch_s`, or for ever."""
        if l0 < self.slowdown:
            return 0.0
        if l0 >= self.stop:
            return inf
        return batch_s * (l0 - self.slowdown + 1) / (self.stop - self.slowdown)


@dataclass(slots=True)
class Stall:
    """Holds back the batches of one stage. Says so in the log, once for each time that compaction falls behind."""

    stage: str
    """As people should read it."""
    triggers: Triggers
    l0: Callable[[], int]
    """Tells the L0 SSTs of the state partition that has most."""
    compacting: Callable[[], Compacting]
    """Tells what this runner does about them."""
    begin: Callable[[], None]
    """Has it begin, if it does nothing, as after a start or a merge that failed."""
    clock: Callable[[], float] = field(default=time.monotonic, kw_only=True)
    sleep: Callable[[float], None] = field(default=time.sleep, kw_only=True)
    _logged: set[str] = field(default_factory=set)
    _held_s: float = 0.0

    def wait(self, batch_s: float, stopping: Callable[[], bool]) -> float:
        """Hold a batch back while need be, or until `stopping`; seconds. `batch_s` is what the one before took."""
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
        """How long a batch waits that is not to start."""
        if (compacting := self.compacting()) != "nothing":
            return inf if compacting == "under way" else 0.0
        if "gave up" in self._logged:
            return batch_s
        if waited_s >= _GIVE_UP_S:
            self._log_once("gave up", f"nobody has compacted it for {waited_s:.0f} s; batches go on, slowed down")
        return _GIVE_UP_S

    def _log_state(self, l0: int, delay_s: float) -> None:
        ssts, slowdown, stop = f"{l0} L0 SSTs in one state partition", self.triggers.slowdown, self.triggers.stop
        if delay_s == inf:
            self._log_once("stopped", f"{ssts} (l0_stop is {stop}): no batch starts before compaction has merged them")
        elif delay_s:
            rule = f"(l0_slowdown is {slowdown}): batches start later until it has caught up"
            self._log_once("slowed down", f"{ssts} {rule}")
        elif self._logged and l0 < slowdown:
            self._log_once("", f"{ssts}; batches were held back for {self._held_s:.0f} s")
            self._logged.clear()
            self._held_s = 0.0

    def _log_once(self, what: str, message: str) -> None:
        if what not in self._logged:
            self._logged.add(what)
            _log.warning("%s: %s", self.stage, message)
