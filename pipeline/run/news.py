"""What a run tells of itself besides its commits: what it is doing, and how far its stages are."""

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ...snapshot.gc.collect import Collected
    from ...snapshot.status.lag import StageLag
    from ..upkeep.archiver import ArchiveState


class News:
    """Its methods are called from several threads. This base passes on in words what goes on, and ignores the rest."""

    def __init__(self, tell: Callable[[str], None] = lambda _what: None) -> None:
        self._tell = tell

    def doing(self, what: str) -> None:
        """What goes on from now on: "starting Spark"; empty once batches run."""
        if what:
            self._tell(what)

    def batches(self) -> None:
        """From now on batches run, and to stop is to let them end."""

    def lags(self, stages: "tuple[StageLag, ...]") -> None:
        """How far every stage of the app is, every few seconds."""

    def collected(self, done: "Collected") -> None:
        """Garbage of the app was collected, beside the batches."""

    def archived(self, states: "tuple[ArchiveState, ...]") -> None:
        """How far the input archives of the topics that are read here are, every few seconds."""
