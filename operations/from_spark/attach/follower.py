"""Following a query until somebody asks to stop: rounds, and beside them signs of life and merges."""

import logging
import threading
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field

from ....errors import SlackwaterError, Unavailable
from ....pipeline.listener import Listener
from ....pipeline.run.housekeeping import Collector, in_background
from ....pipeline.run.stopping import Stop
from ....snapshot.gc.retention import Retention
from ....snapshot.under_way.runners import Beat, Heart
from ....store.objects.protocol import ObjectStore
from ...maintenance.compact import AppCompactor
from .tail import Landed, Tail

_log = logging.getLogger("slackwater")
_LOOK_S = 1.0
_MERGE_S = 5.0
_GC_MS = 3_600_000

OnLanded = Callable[[Landed], None]


@dataclass(slots=True)
class Follower:
    """Follows one query with a `Tail`, which has the stage for as long as this goes on."""

    tail: Tail
    store: ObjectStore
    on_landed: OnLanded
    retention: Retention = field(default_factory=Retention)
    _compactor: AppCompactor = field(init=False)
    _over: threading.Event = field(default_factory=threading.Event, init=False)

    def __post_init__(self) -> None:
        tail = self.tail
        # Versions have the times of the query's batches: one in between comes right after the one before it.
        self._compactor = AppCompactor(
            self.store, tail.cache, tail.app, (tail.stage,), by=tail.by, threads=1, now_ms=lambda: 0, stop=self._over
        )

    def catch_up(self) -> int:
        """Read all that there is now, and merge what is due; how many versions that made. Raises as `Tail`."""
        count = 0
        self.tail.claim()
        with in_background(f"attach-{self.tail.stage}", self._beat):
            while landed := self.tail.round():
                count += self._told(landed)
            for _ in self._compactor.merge_due():
                pass
        return count

    def run(self, stop: Stop, every_s: float, on_trouble: Callable[[Unavailable], None]) -> None:
        """Look every so many seconds, until somebody asks to stop. What is away is tried again. Raises as `Tail`."""
        self.tail.claim()
        with ExitStack() as beside:
            beside.callback(self._over.set)
            beside.enter_context(in_background(f"attach-{self.tail.stage}", self._beat))
            beside.enter_context(in_background(f"merge-{self.tail.stage}", self._merge))
            if not self.retention.keeps_everything:
                beside.enter_context(in_background("collector", self._collector().work))
            while not stop.is_set():
                try:
                    if self._told(self.tail.round()):
                        continue
                except Unavailable as error:
                    on_trouble(error)
                stop.wait(every_s)

    def _collector(self) -> Collector:
        tail = self.tail

        def epochs() -> dict[str, int]:
            return {tail.stage: tail.head.epoch} if tail.head is not None else {}

        return Collector(self.store, tail.app, self.retention, _GC_MS, tail.by, epochs, Listener())

    def _told(self, landed: tuple[Landed, ...]) -> int:
        for each in landed:
            self.on_landed(each)
        return len(landed)

    def _beat(self, over: threading.Event) -> None:
        tail, heart = self.tail, Heart(self.store, self.tail.app)

        def beat() -> Beat:
            epoch = tail.head.epoch if tail.head is not None else 0
            # A round may take long: how far the query is by now is asked anew.
            newest = tail.newest_batch
            with suppress(Unavailable):
                newest = max(newest, tail.checkpoint.newest())
            return Beat(tail.writer, tail.by, {tail.stage: epoch}, {tail.stage: newest + 1})

        while not over.is_set():
            # Before the first look, nobody knows how far behind it is.
            if tail.newest_batch >= 0:
                heart.beat(beat)
            over.wait(_LOOK_S)
        heart.end(tail.writer)

    def _merge(self, over: threading.Event) -> None:
        while not over.wait(_MERGE_S):
            try:
                for _ in self._compactor.merge_due():
                    pass
            except SlackwaterError as error:
                # Tables stay as they are, and are merged later: slower, never wrong.
                _log.warning("compaction of %s/%s put off: %s", self.tail.app, self.tail.stage, error.message)
