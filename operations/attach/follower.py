"""Process that follows a Spark query or a topic until stopped. Threads do heartbeats, merges and garbage collection."""

import logging
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field

from ...common import runtime
from ...errors import SlackwaterError, Unavailable
from ...pipeline.listener import Listener
from ...pipeline.run.background import Collector, background_thread
from ...pipeline.run.stopping import StopEvent
from ...snapshot.gc.reachable import Retention
from ...snapshot.under_way.runners import Heartbeat, HeartbeatWriter
from ...store.objects.protocol import ObjectStore
from ..maintenance.compact import AppCompactor
from .tail import FollowedVersion, Tail

_log = logging.getLogger("slackwater")
_BEAT_S = 1.0
_MERGE_S = 5.0
_GC_MS = 3_600_000

OnVersion = Callable[[FollowedVersion], None]


@dataclass(slots=True)
class Follower:
    """Claims the stage of one query or topic, and follows it with a `Tail`."""

    tail: Tail
    store: ObjectStore
    on_version: OnVersion
    retention: Retention = field(default_factory=Retention)
    _compactor: AppCompactor = field(init=False)
    _stopped: runtime.Event = field(default_factory=runtime.event, init=False)

    def __post_init__(self) -> None:
        tail = self.tail
        # Versions have the commit times of the query's batches: a merge gets the time right after its predecessor.
        self._compactor = AppCompactor(
            self.store, tail.cache, tail.app, (tail.stage,), by=tail.by, threads=1, now_ms=lambda: 0, stop=self._stopped
        )

    def catch_up(self) -> int:
        """Read all new batches and run all due merges. Returns the number of new versions.

        Raises the errors of `Tail`.
        """
        count = 0
        self.tail.claim()
        with background_thread(f"attach-{self.tail.stage}", self._beat):
            while landed := self.tail.commit_next():
                count += self._report(landed)
            for _ in self._compactor.merge_due():
                pass
        return count

    def run(self, stop: StopEvent, every_s: float, on_trouble: Callable[[Unavailable], None]) -> None:
        """Read new batches every `every_s` seconds until `stop` is set. Retries after `Unavailable`.

        Raises all other errors of `Tail`.
        """
        self.tail.claim()
        with ExitStack() as background:
            background.callback(self._stopped.set)
            background.enter_context(background_thread(f"attach-{self.tail.stage}", self._beat))
            background.enter_context(background_thread(f"merge-{self.tail.stage}", self._merge))
            if not self.retention.keeps_everything:
                background.enter_context(background_thread("collector", self._collector().run))
            while not stop.is_set():
                try:
                    if self._report(self.tail.commit_next()):
                        continue
                except Unavailable as error:
                    on_trouble(error)
                stop.wait(every_s)

    def _collector(self) -> Collector:
        tail = self.tail

        def epochs() -> dict[str, int]:
            return {tail.stage: tail.head.epoch} if tail.head is not None else {}

        return Collector(self.store, tail.app, self.retention, _GC_MS, tail.by, epochs, Listener())

    def _report(self, landed: tuple[FollowedVersion, ...]) -> int:
        for version in landed:
            self.on_version(version)
        return len(landed)

    def _beat(self, stopped: runtime.Event) -> None:
        tail, heart = self.tail, HeartbeatWriter(self.store, self.tail.app)

        def beat() -> Heartbeat:
            epoch = tail.head.epoch if tail.head is not None else 0
            # A round may take long, so the query's newest batch is read again.
            newest = tail.newest_batch
            with suppress(Unavailable):
                newest = max(newest, tail.checkpoint.newest_batch())
            return Heartbeat(tail.writer, tail.by, {tail.stage: epoch}, {tail.stage: newest + 1})

        while not stopped.is_set():
            # Before the first round the lag is unknown.
            if tail.newest_batch >= 0:
                heart.write_if_due(beat)
            stopped.wait(_BEAT_S)
        heart.delete(tail.writer)

    def _merge(self, stopped: runtime.Event) -> None:
        while not stopped.wait(_MERGE_S):
            try:
                for _ in self._compactor.merge_due():
                    pass
            except SlackwaterError as error:
                # The tables are merged later; until then reads are slower.
                _log.warning("compaction of %s/%s put off: %s", self.tail.app, self.tail.stage, error.message)
