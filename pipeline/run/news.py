"""What a run tells of itself besides its commits: what it is doing, and how far its stages are."""

from __future__ import annotations

from typing import Protocol

from ...snapshot.status.lag import StageLag

__all__ = ["News", "Silence"]


class News(Protocol):
    """Is told from several threads."""

    def doing(self, what: str) -> None:
        """What goes on from now on: "starting Spark"."""
        ...

    def batches(self) -> None:
        """From now on batches run, and to stop is to let them end."""
        ...

    def lags(self, stages: tuple[StageLag, ...]) -> None:
        """How far every stage of the app is, every few seconds."""
        ...


class Silence:
    """Nobody listens."""

    def doing(self, what: str) -> None:
        """Nothing."""

    def batches(self) -> None:
        """Nothing."""

    def lags(self, stages: tuple[StageLag, ...]) -> None:
        """Nothing."""
