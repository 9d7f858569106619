"""What one stage takes of the store, counted in all processes of a runner, until a version tells of it.

The driver counts in the stores that it uses for the stage; its sources' planners, processes of their own, in files of a
folder; tasks report theirs with their results. What failed attempts took is in the report of the next task of the same
worker, if there is one. The first stage that a runner runs is charged with what it asks for the whole app.
"""

import time
from collections.abc import Callable
from pathlib import Path

from ...store.objects.counting import CountingStore, shared_stats
from ...store.objects.stats import Stats


class StageMeter:
    """Adds up what one stage takes. Taken by one thread at a time; what it reads may be counted by any.

    `folder` is where the planners' processes count, a file each; `stores` are what the driver uses for the stage.
    """

    def __init__(self, folder: Path, *stores: CountingStore, clock: Callable[[], float] = time.monotonic) -> None:
        self.folder, self._stores, self._clock = folder, stores, clock
        self._since, self._planned, self._puts = clock(), Stats(), Stats()

    def put(self, seconds: float) -> None:
        """Note how long the put of a manifest took; the next version tells."""
        self._puts += Stats(commits=1, commit_ms=round(seconds * 1000))

    def take(self) -> Stats:
        """What came since the last time, but for what tasks report."""
        now, planned = self._clock(), shared_stats(self.folder)
        taken = sum(
            (*(store.take() for store in self._stores), planned - self._planned),
            self._puts + Stats(ms=round((now - self._since) * 1000)),
        )
        self._since, self._planned, self._puts = now, planned, Stats()
        return taken
