"""A stage as an app has declared it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from ...fold.kinds.kind import Kind
from .event_time import DEFAULT_EVENT_TIME, EventTimeOptions
from .sink import Sink
from .table import TableOptions
from .topic import Repartition, Topic

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Transform = Callable[..., "DataFrame"]
OnError = Literal["stop", "reject"]


@dataclass(frozen=True, slots=True)
class Stage:
    """One Structured Streaming query: inputs, the user's transformation, at most one keyed table, outputs."""

    name: str
    transform: Transform
    reads: tuple[Topic | str, ...]
    writes: tuple[Repartition | Sink, ...]
    """In the order in which the function, or the state, gives each its rows."""
    state: Kind | None
    key: tuple[str, ...]
    """As declared; empty when it is that of the channels that are read. `App.key_of` tells."""
    table: TableOptions
    max_records: int | None = None
    trigger: str | None = None
    max_unflushed: int | None = None
    on_error: OnError = "stop"
    max_rejected: int = 1_000
    rejects: str = ""
    """The topic that rejected records are sent to as well; empty for none."""
    event_time: EventTimeOptions = DEFAULT_EVENT_TIME

    @property
    def inputs(self) -> dict[str, Topic | str]:
        """What is read, by its declared name, in the order of the function's arguments."""
        return {one.name if isinstance(one, Topic) else one: one for one in self.reads}

    @property
    def repartitions(self) -> tuple[Repartition, ...]:
        """The repartition topics among what it writes."""
        return tuple(one for one in self.writes if isinstance(one, Repartition))

    @property
    def sinks(self) -> tuple[Sink, ...]:
        """The sinks among what it writes."""
        return tuple(one for one in self.writes if not isinstance(one, Repartition))

    @property
    def late(self) -> Repartition | Sink | None:
        """Where rows go that come too late; None for nowhere."""
        late = self.event_time.late
        return None if isinstance(late, str) else late

    @property
    def emits_to(self) -> tuple[Repartition | Sink, ...]:
        """Where its rows go, or those that its state emits: all that it writes but the late ones."""
        return tuple(one for one in self.writes if one != self.late)

    @property
    def channels(self) -> tuple[str, ...]:
        """The repartition topics among the inputs."""
        return tuple(one for one in self.reads if isinstance(one, str))
