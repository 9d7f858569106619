"""Background threads of a process that commits versions, and garbage collection in a background thread. No Spark."""

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from ...common import instants, runtime
from ...errors import Refused, SlackwaterError, Unavailable
from ...snapshot.cut.graph import topological_order
from ...snapshot.cut.moments import heads_of
from ...snapshot.gc.collect import Collected, collect
from ...snapshot.gc.inventory import last_collection
from ...snapshot.gc.reachable import Retention
from ...snapshot.under_way.exclusion import Intent, check_exclusion
from ...snapshot.under_way.runners import live_heartbeats, runner_of
from ...store.objects.protocol import ObjectStore
from ...store.objects.wrapper import StoreWrapper
from ...store.versions import history
from ..listener import Listener

_log = logging.getLogger("slackwater")
_JOIN_TIMEOUT_S = 2.0
_COLLECTION_POLL_S = 300.0
_RETRY_MS = 600_000


@contextmanager
def background_thread(name: str, work: Callable[[runtime.Event], None]) -> Iterator[None]:
    over = runtime.event()
    thread = runtime.thread(work, over, name=name)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(_JOIN_TIMEOUT_S)


@dataclass(slots=True)
class Collector:
    """Collects garbage by the retention rules. Batches do not wait for it, and killing it does no harm.

    The store records the app's last collection by any process. If an app has several runners, the runner of the first
    running stage collects; the epoch of this stage identifies the runner. If that runner does not collect in time, a
    different runner does. Two concurrent collections do no harm.
    """

    store: ObjectStore
    app: str
    retention: Retention
    every_ms: int
    by: str
    epochs: Callable[[], Mapping[str, int]]
    listener: Listener
    _first_call_ms: int = 0
    _settled_ms: int = 0

    def run(self, stopping: runtime.Event) -> None:
        """Collect garbage when due, until `stopping` is set.

        Does not collect right at the start, because first batches need the cores. A collection that still runs at the
        end is abandoned, and the next collection continues its work.
        """
        while not stopping.wait(min(_COLLECTION_POLL_S, self.every_ms / 4_000)):
            # A failure must not end the run or later collections.
            try:
                done = self.collect_if_due(instants.now_ms())
            except (Refused, Unavailable):
                pass  # another process collects, or the next attempt succeeds
            except SlackwaterError as error:
                _log.warning("gc of %s: nothing was deleted: %s", self.app, error.message)
            except Exception:
                _log.exception("gc of %s failed; the next one continues", self.app)
            else:
                if done is not None:
                    self.listener.on_gc(done)

    def collect_if_due(self, now_ms: int) -> Collected | None:
        """Collect if a collection is due and it is this runner's turn; return its result, else None.

        Without rules, only moves SSTs from hot places. Raises the errors of `collect`. Costs one listing if no
        collection is due.
        """
        self._first_call_ms = self._first_call_ms or now_ms
        if not self.retention.collects:
            if isinstance(self.store, StoreWrapper) and now_ms - self._settled_ms >= self.every_ms:
                check_exclusion(self.store, self.app, Intent.COLLECT)
                self.store.settle(self.app, now_ms)
                self._settled_ms = now_ms
            return None
        last_ms, ended = last_collection(self.store, self.app)
        wait_ms = self.every_ms if ended else min(self.every_ms, _RETRY_MS)
        # The runner whose turn it is may not collect: collection may be off there, or without rules.
        passed = now_ms - max(last_ms, self._first_call_ms) >= 2 * self.every_ms
        if now_ms - last_ms < wait_ms or not (passed or self._has_turn(now_ms)):
            return None
        return collect(self.store, self.app, self.retention, by=self.by)

    def _has_turn(self, now_ms: int) -> bool:
        heads = heads_of(self.store, self.app, history.list_stages(self.store, self.app))
        alive = live_heartbeats(self.store, self.app, now_ms)
        epochs = self.epochs()
        first = next(
            (name for name in topological_order(heads) if name in epochs or runner_of(heads[name], alive)), None
        )
        return first is not None and epochs.get(first) == heads[first].epoch
