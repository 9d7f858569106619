"""What a run tells of itself besides its commits: what it is doing, and how far its stages are."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...keep.gc.collect import Collected
    from ...moments.status.lag import StageLag


class News:
    """Is told from several threads. This one keeps it to itself."""

    def doing(self, what: str) -> None:
        """What goes on from now on: "starting Spark"; empty once batches run."""

    def batches(self) -> None:
        """From now on batches run, and to stop is to let them end."""

    def lags(self, stages: tuple[StageLag, ...]) -> None:
        """How far every stage of the app is, every few seconds."""

    def collected(self, done: Collected) -> None:
        """Garbage of the app was collected, beside the batches."""


class Told(News):
    """Tells somebody in words what goes on."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell

    def doing(self, what: str) -> None:
        """What goes on; that batches run now is none of it."""
        if what:
            self._tell(what)
