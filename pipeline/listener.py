"""Events of a run and their listeners: the terminal, metrics, probes, and components that follow commits."""

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..snapshot.gc.collect import Collected
    from ..snapshot.status.lag import StageLag
    from ..store.versions.manifest import Manifest
    from .batch.batch_report import BatchReport


@dataclass(frozen=True, slots=True)
class ArchiveState:
    """Progress of the input archive of a topic."""

    app: str
    topic: str
    behind: int
    """Offsets that committed batches have read, and that are not in it yet."""
    objects: int
    bytes: int
    error: str = ""
    """Why it gets no further; empty where it does."""


class Listener:
    """Receives the events of a run, from several threads. The methods of this base do nothing."""

    def doing(self, what: str) -> None:
        """Activity from now on, such as "starting Spark"; empty once batches run."""

    def running(self, triggers_s: Mapping[str, float], patience_s: float, held: Callable[[str], bool]) -> None:
        """Batches of these stages run from now on, each started at most once in its `triggers_s` seconds.

        `patience_s` is how long a store or broker may be away. `held` says of a stage that it starts none, as others
        are behind.
        """

    def move(self, head: "Manifest", tip: "Manifest") -> None:
        """A stage has another newest committed version, `head`, or newest acknowledged one, `tip`."""

    def committed(self, batch: "BatchReport") -> None:
        """A batch was committed."""

    def looped(self) -> None:
        """The driver's loop came round."""

    def looked(self, stage: str, *, busy: bool, version: int) -> None:
        """State of a stage: `busy` while a batch is under way; its newest version."""

    def checked(self) -> None:
        """All stages were seen to be this runner's."""

    def spark(self, tasks: Hashable) -> None:
        """Spark's JVM answered; `tasks` is another value when a task has ended since."""

    def lags(self, stages: "tuple[StageLag, ...]") -> None:
        """Lag of every stage of the app, every few seconds."""

    def archived(self, states: tuple[ArchiveState, ...]) -> None:
        """Progress of the input archives of the topics that are read here, every few seconds."""

    def collected(self, done: "Collected") -> None:
        """Garbage of the app was collected, beside the batches."""

    def ending(self) -> None:
        """No batch starts any more."""


class Listeners(Listener):
    """Passes each event to several listeners, in their order. None is left out."""

    def __init__(self, *listeners: Listener | None) -> None:
        for name in [name for name in vars(Listener) if not name.startswith("_")]:
            setattr(self, name, _all([getattr(one, name) for one in listeners if one is not None]))


def _all(methods: "list[Callable[..., None]]") -> Callable[..., None]:
    def told(*args: object, **how: object) -> None:
        for method in methods:
            method(*args, **how)

    return told


class Callbacks(Listener):
    """Calls a function with each activity, and another one with each committed batch."""

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
