"""Events of a run and their listeners: the terminal, metrics, probes, and components that follow commits."""

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..snapshot.gc.collect import Collected
    from ..snapshot.status.overview import StageLag
    from ..store.versions.manifest import Manifest
    from .batch.batch_report import BatchReport


@dataclass(frozen=True, slots=True)
class ArchiveState:
    """Progress of the input archive of a topic."""

    app: str
    topic: str
    behind: int
    """Offsets that committed batches have read and that are not archived yet."""
    objects: int
    bytes: int
    error: str = ""
    """Reason why the archive is stuck; empty if it is not."""


class Listener:
    """Receives the events of a run, from several threads. The methods of this base class do nothing."""

    def doing(self, what: str) -> None:
        """Report the current activity, such as "starting Spark"; empty once batches run."""

    def running(self, triggers_s: Mapping[str, float], patience_s: float, held: Callable[[str], bool]) -> None:
        """Report that batches of these stages run, each started at most once in its `triggers_s` seconds.

        `patience_s` is how long a store or broker may be unavailable. `held(stage)` is True while the stage starts no
        batch, because other stages lag.
        """

    def move(self, head: "Manifest", tip: "Manifest") -> None:
        """Report a stage's newest committed version, `head`, or its newest acknowledged one, `tip`."""

    def committed(self, batch: "BatchReport") -> None:
        """Report a committed batch."""

    def looped(self) -> None:
        """Report an iteration of the driver's loop."""

    def looked(self, stage: str, *, busy: bool, version: int) -> None:
        """Report the state of a stage: `busy` while a batch runs, and its newest version."""

    def checked(self) -> None:
        """Report that this runner owns all its stages."""

    def spark(self, tasks: Hashable) -> None:
        """Report an answer of Spark's JVM; `tasks` changes whenever a task has ended."""

    def lags(self, stages: "tuple[StageLag, ...]") -> None:
        """Report the lag of every stage of the app, every few seconds."""

    def archived(self, states: tuple[ArchiveState, ...]) -> None:
        """Report the progress of the input archives of the topics read by this run, every few seconds."""

    def collected(self, done: "Collected") -> None:
        """Report a garbage collection of the app."""

    def ending(self) -> None:
        """Report that no more batches start."""


class Listeners(Listener):
    """Passes each event to several listeners, in their order; None is ignored."""

    def __init__(self, *listeners: Listener | None) -> None:
        for name in [name for name in vars(Listener) if not name.startswith("_")]:
            setattr(self, name, _all([getattr(listener, name) for listener in listeners if listener is not None]))


def _all(methods: "list[Callable[..., None]]") -> Callable[..., None]:
    def told(*args: object, **how: object) -> None:
        for method in methods:
            method(*args, **how)

    return told


class Callbacks(Listener):
    """Calls a function with each activity, and another with each committed batch."""

    def __init__(
        self,
        doing: Callable[[str], None] = lambda _what: None,
        committed: "Callable[[BatchReport], None]" = lambda _batch: None,
    ) -> None:
        self._doing, self._committed = doing, committed

    def doing(self, what: str) -> None:
        if what:
            self._doing(what)

    def committed(self, batch: "BatchReport") -> None:
        self._committed(batch)
