"""Looking for what is asked of the stages that run here: often, and at the price of one read of one small object."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from ...moments.cut.stored import newest_notice, open_requests
from ...store.objects.protocol import ObjectStore
from .wake import PlannerFiles

_BUSY_S = 0.25
_IDLE_S = 1.5
"""Of an app that does nothing these reads are most of what it costs."""
_LIST_S = 300.0
"""Whoever asked may have died before notifying anybody."""


@dataclass(slots=True)
class RequestWatch:
    """Looks for one runner, and tells the planners of its stages which snapshots are asked for.

    A listing costs twelve times a read: so requests are listed only where a notice says that there is something new.
    `clock` gives seconds, and never goes back.
    """

    store: ObjectStore
    app: str
    planners: PlannerFiles
    clock: Callable[[], float] = field(default=time.monotonic, kw_only=True)
    _seen: bytes | None = None
    _looked_s: float = float("-inf")
    _listed_s: float = float("-inf")

    def look(self, *, busy: bool) -> bool:
        """Look, if it is time. Whether anything may have been asked for since: a snapshot, a retry, or the stages.

        `busy`: batches were committed since the last call; beside these, more reads hardly count. Raises `Unavailable`,
        and `Corruption` where a request is damaged.
        """
        now_s = self.clock()
        if now_s - self._looked_s < (_BUSY_S if busy else _IDLE_S):
            return False
        self._looked_s = now_s
        notice = newest_notice(self.store, self.app)
        if notice == self._seen and now_s - self._listed_s < _LIST_S:
            return False
        self.planners.ask(each.id for each in open_requests(self.store, self.app))
        # Not before: what failed is looked for again.
        self._seen, self._listed_s = notice, now_s
        return True
