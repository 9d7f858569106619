"""What a user's program declares: an app, its stages, and the topics between them. Values only, no Spark."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..store.errors import NotFound, Refused, Usage
from ..store.keys import check_name
from .states import State

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["App", "Repartition", "Stage", "Topic", "repartition", "topic"]

Transform = Callable[..., "DataFrame"]


@dataclass(frozen=True, slots=True)
class Topic:
    """A user's Kafka topic. Its rows have the columns of Structured Streaming's Kafka source."""

    name: str
    starting_offsets: str


@dataclass(frozen=True, slots=True)
class Repartition:
    """An internal topic between two stages: its rows go to the Kafka partition that their key says."""

    name: str
    key: tuple[str, ...]
    partitions: int


def topic(name: str, *, starting_offsets: str = "earliest") -> Topic:
    """Read a Kafka topic.

    Args:
        name: The topic.
        starting_offsets: Where a stage that has no state yet begins: `earliest` or `latest`, as in Structured
            Streaming. A stage with state always goes on where its last version stopped.

    Raises:
        Usage: `starting_offsets` is neither.
    """
    if starting_offsets not in ("earliest", "latest"):
        raise Usage(f"starting_offsets of topic {name!r} is {starting_offsets!r}: expected 'earliest' or 'latest'")
    return Topic(name, starting_offsets)


def repartition(name: str, key: Sequence[str] | str, *, partitions: int = 4) -> Repartition:
    """Write a stage's rows to an internal topic, keyed, for later stages to read by `name`.

    Args:
        name: What later stages say in `reads=`; the Kafka topic is `<app>-<name>-repartition`.
        key: The column or columns that decide the partition; also the default key of a stage that reads it.
        partitions: Partitions of the Kafka topic when it is first made.

    Raises:
        Usage: The name, the key or the number of partitions is not usable.
    """
    columns = (key,) if isinstance(key, str) else tuple(key)
    check_name("repartition topic", name)
    if not columns or len(set(columns)) != len(columns):
        raise Usage(f"repartition {name!r}: key is {columns!r}; expected one or more different column names")
    if partitions < 1:
        raise Usage(f"repartition {name!r}: partitions is {partitions}; expected 1 or more")
    return Repartition(name, columns, partitions)


@dataclass(frozen=True, slots=True)
class Stage:
    """One Structured Streaming query: inputs, the user's transformation, at most one keyed table, outputs."""

    name: str
    transform: Transform
    reads: Topic | str
    writes: tuple[Repartition, ...]
    state: State | None
    key: tuple[str, ...]
    partitions: int
    max_records: int | None
    trigger: str | None


@dataclass(slots=True)
class App:
    """A streaming application: stages joined by repartition topics.

    Example:
        >>> app = App("flights")
        >>> @app.stage(reads=topic("flights"), writes=repartition("by-route", key=["origin", "dest"]))
        ... def legs(flights): return flights.selectExpr("cast(value as string) as json")
    """

    name: str
    stages: dict[str, Stage] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_name("app", self.name)

    def stage(
        self,
        *,
        reads: Topic | str,
        writes: Repartition | Sequence[Repartition] = (),
        state: State | None = None,
        key: Sequence[str] | str | None = None,
        partitions: int = 4,
        max_records: int | None = None,
        trigger: str | None = None,
        name: str | None = None,
    ) -> Callable[[Transform], Transform]:
        """Declare the decorated function, DataFrame in, DataFrame out, as a stage of this app.

        Args:
            reads: A `topic(...)`, or the name of a repartition topic that an earlier stage writes.
            writes: Where the stage's rows go: the function's rows, for a stage without state; for a stage with
                state, the rows its state emits.
            state: `aggregate(...)`, `upsert(...)` or `update(...)`; the table is named after the stage.
            key: The state's key columns; default the key of the repartition topic that is read.
            partitions: State partitions: tasks that work on the state at once, and SSTs a version writes at most.
            max_records: At most so many input rows a batch; default what `run` says.
            trigger: Shortest time between two batches, as in Structured Streaming: `"10 seconds"`.
            name: Default the function's name.

        Raises:
            Usage: The declaration contradicts itself or what was declared before.
            NotFound: `reads` names a repartition topic that no earlier stage writes.
        """
        outputs = (writes,) if isinstance(writes, Repartition) else tuple(writes)

        def declare(transform: Transform) -> Transform:
            stage_name = check_name("stage", name or transform.__name__)
            self._add(
                Stage(
                    name=stage_name,
                    transform=transform,
                    reads=reads,
                    writes=outputs,
                    state=state,
                    key=self._key_of(stage_name, reads, key) if state is not None else (),
                    partitions=partitions,
                    max_records=max_records,
                    trigger=trigger,
                )
            )
            return transform

        return declare

    def writer_of(self, channel: str) -> Stage:
        """The stage that writes a repartition topic. Raises `NotFound`."""
        for stage in self.stages.values():
            if any(output.name == channel for output in stage.writes):
                return stage
        raise NotFound(
            "repartition topic",
            channel,
            self._channels(),
            hint="declare the stage that writes it first, or read a Kafka topic as slackwater.topic(name)",
        )

    def channel(self, name: str) -> Repartition:
        """A repartition topic by its name. Raises `NotFound`."""
        return next(output for output in self.writer_of(name).writes if output.name == name)

    def select(self, names: Sequence[str]) -> tuple[Stage, ...]:
        """The stages of these names in order of declaration, all when none is named. Raises `NotFound`."""
        for name in names:
            if name not in self.stages:
                raise NotFound(f"stage of app {self.name!r}", name, self.stages)
        return tuple(stage for stage in self.stages.values() if not names or stage.name in names)

    def _channels(self) -> tuple[str, ...]:
        return tuple(output.name for stage in self.stages.values() for output in stage.writes)

    def _key_of(self, stage: str, reads: Topic | str, key: Sequence[str] | str | None) -> tuple[str, ...]:
        if key is not None:
            columns = (key,) if isinstance(key, str) else tuple(key)
            if not columns or len(set(columns)) != len(columns):
                raise Usage(f"stage {stage!r}: key is {columns!r}; expected one or more different column names")
            return columns
        if isinstance(reads, str):
            return self.channel(reads).key
        raise Usage(
            f"stage {stage!r} keeps state but has no key: it reads the topic {reads.name!r}, which has none",
            hint="say key=[...] with the columns that identify a row of its table",
        )

    def _add(self, stage: Stage) -> None:
        if stage.name in self.stages:
            raise Usage(f"app {self.name!r} has two stages named {stage.name!r}; give one another name=")
        if isinstance(stage.reads, str):
            self.writer_of(stage.reads)
        elif not isinstance(stage.reads, Topic):
            raise Usage(
                f"stage {stage.name!r} reads {stage.reads!r}; expected one slackwater.topic(...) or the name of "
                "one repartition topic"
            )
        for output in stage.writes:
            if output.name in self._channels():
                raise Usage(f"repartition topic {output.name!r} has two writers; one stage writes a topic")
        if stage.partitions < 1 or (stage.max_records is not None and stage.max_records < 1):
            raise Usage(f"stage {stage.name!r}: partitions and max_records are 1 or more")
        if stage.state is None and not stage.writes:
            raise Refused(
                f"stage {stage.name!r} neither keeps state nor writes a topic, so it would do nothing",
                hint="give it state= or writes=",
            )
        self.stages[stage.name] = stage
