"""Metering of a stage's store requests in all processes of a runner, reported with its versions.

The driver counts in the stores that it uses for the stage; the planners of its sources, which are separate processes,
in files of a folder; tasks report with their results. Requests of failed attempts are in the report of the next task of
the same worker, if any. Requests for the whole app are charged to the first stage of a runner.
"""

import time
from collections.abc import Callable
from pathlib import Path

from ...store.objects.counting import CountingStore, Stats, shared_stats


class StageMeter:
    """Adds up the requests of one stage. Used by one thread at a time; its counters are updated by any.

    `folder` has the counts of the planners' processes, a file each; `stores` are those that the driver uses for the
    stage.
    """

    def __init__(self, folder: Path, *stores: CountingStore, clock: Callable[[], float] = time.monotonic) -> None:
        self.folder, self._stores, self._clock = folder, stores, clock
        self._since, self._planned, self._puts = clock(), Stats(), Stats()

    def put(self, seconds: float) -> None:
        """Note the duration of a manifest's put; the next version reports it."""
        self._puts += Stats(commits=1, commit_ms=round(seconds * 1000))

    def take(self) -> Stats:
        """Return the counts since the last call, without those that tasks report."""
        now, planned = self._clock(), shared_stats(self.folder)
        total = sum(
            (*(store.take() for store in self._stores), planned - self._planned),
            self._puts + Stats(ms=round((now - self._since) * 1000)),
        )
        self._since, self._planned, self._puts = now, planned, Stats()
        return total
