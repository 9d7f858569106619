"""Collecting an app's garbage now and then, beside the batches, by one of its runners."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence

from ... import instants
from ...errors import Refused, SlackwaterError, Unavailable
from ...keep.gc.collect import Collected, collect
from ...keep.gc.inventory import last_collection
from ...keep.gc.retention import Retention
from ...moments.cut.graph import order
from ...moments.cut.moments import heads_of
from ...moments.status import lag
from ...store.objects.protocol import ObjectStore
from ...store.versions import history
from ..batch.stage_runner import StageRunner
from .news import News

_log = logging.getLogger("slackwater")

_LOOK_S = 300.0
_END_S = 2.0
_AGAIN_MS = 600_000
"""After a collection that did not end: it broke off, unless it is still under way."""


class Collector:
    """Collects by the rules of retention, on a thread of its own: no batch waits for it, and killing it does no harm.

    When the app was collected last, by whomever, the store says. Of several runners of an app that one collects which
    holds the first of the stages that run, by its epoch; any, where that one has let its turn pass. Two at once do no
    harm either.

    Attributes:
        every_ms: How long from one collection to the next.
    """

    def __init__(
        self,
        store: ObjectStore,
        app: str,
        retention: Retention,
        *,
        every_ms: int,
        by: str,
        runners: Sequence[StageRunner],
        news: News,
    ) -> None:
        self.every_ms = every_ms
        self._store, self._app, self._retention, self._by = store, app, retention, by
        self._runners = runners
        self._news = news
        self._since_ms = 0
        """When this one first looked."""
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._go_on, name="collector", daemon=True)

    def start(self) -> None:
        """Look from now on whether a collection is due; not at once, for the first batches have enough to do."""
        self._thread.start()

    def close(self) -> None:
        """Stop; a collection under way is left where it is, and the next one goes on from there."""
        self._over.set()
        self._thread.join(_END_S)

    def look(self, now_ms: int) -> Collected | None:
        """Collect, if it is due and this runner's to do. A listing where it is not due.

        Raises:
            Refused: Another collection went on at the same time.
            SlackwaterError: What is stored cannot be read; nothing was deleted.
            Unavailable: The store did not answer.
        """
        self._since_ms = self._since_ms or now_ms
        last_ms, ended = last_collection(self._store, self._app)
        wait_ms = self.every_ms if ended else min(self.every_ms, _AGAIN_MS)
        # Whose turn it is may not collect: it was told so, or has no rules.
        passed = now_ms - max(last_ms, self._since_ms) >= 2 * self.every_ms
        if now_ms - last_ms < wait_ms or not (passed or self._leads(now_ms)):
            return None
        return collect(self._store, self._app, self._retention, by=self._by)

    def _leads(self, now_ms: int) -> bool:
        """Whether the first stage that runs is this runner's."""
        heads = heads_of(self._store, self._app, history.list_stages(self._store, self._app))
        alive = lag.beats(self._store, self._app, now_ms)
        mine = {runner.stage.name: runner.head.epoch for runner in self._runners}
        running = (name for name in order(heads) if name in mine or lag.runner_of(heads[name], alive))
        first = next(running, None)
        return first is not None and mine.get(first) == heads[first].epoch

    def _go_on(self) -> None:
        while not self._over.wait(min(_LOOK_S, self.every_ms / 4_000)):
            try:
                done = self.look(instants.now_ms())
            except (Refused, Unavailable):
                # Somebody else is at it, or the next look finds it due.
                continue
            except SlackwaterError as error:
                _log.warning("gc of %s: nothing was deleted: %s", self._app, error.message)
                continue
            except Exception:
                # Whatever it is, it ends neither the run nor the collections to come.
                _log.exception("gc of %s broke off; the next one goes on from there", self._app)
                continue
            if done is not None:
                self._news.collected(done)
