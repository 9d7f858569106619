"""Looking for what is asked of the stages that run here: often, and at the price of one read of one small object."""

from __future__ import annotations

import time
from collections.abc import Callable

from ...moments.cut.stored import newest_notice, open_requests
from ...store.objects.protocol import ObjectStore
from .wake import Asked

_BUSY_S = 0.25
_IDLE_S = 1.5
"""Of an app that does nothing these reads are most of what it costs."""
_LIST_S = 300.0
"""Whoever asked may have died before notifying anybody."""


class RequestWatch:
    """Looks for one runner, and tells the planners of its stages which snapshots are asked for.

    A listing costs twelve times a read: so requests are listed only where a notice says that there is something new.

    Args:
        store: Where the app lives.
        app: Its name.
        asked: Where the planners look.
        clock: Seconds, never going back.
    """

    def __init__(
        self, store: ObjectStore, app: str, asked: Asked, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._store, self._app, self._asked, self._clock = store, app, asked, clock
        self._seen: bytes | None = None
        self._looked_s = self._listed_s = float("-inf")

    def look(self, *, busy: bool) -> bool:
        """Look, if it is time. Whether anything may have been asked for since: a snapshot, a retry, or the stages.

        Args:
            busy: Whether batches were committed since the last call: beside these, more reads hardly count.

        Raises:
            Unavailable: The store has not answered for as long as there is patience.
            Corruption: A request is damaged.
        """
        now_s = self._clock()
        if now_s - self._looked_s < (_BUSY_S if busy else _IDLE_S):
            return False
        self._looked_s = now_s
        notice = newest_notice(self._store, self._app)
        if notice == self._seen and now_s - self._listed_s < _LIST_S:
            return False
        self._asked.tell(each.id for each in open_requests(self._store, self._app))
        # Not before: what failed is looked for again.
        self._seen, self._listed_s = notice, now_s
        return True
