"""The class `App`: the name and the stages of a streaming app. Its decorator `App.stage` declares a stage."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Self, TypeVar

from ...common.arguments import check_arguments
from ...common.validation import check_whole
from ...errors import NotFound, Refused, Usage
from ...snapshot.cut.kafka_topics import internal_topic
from ...state.kinds.due import FinalKind
from ...state.kinds.kind import Kind
from ...store.versions.keys import check_name
from ...store.versions.side_tables import REJECTED, table_name
from .sink import Sink
from .stage import (
    DEFAULT_EVENT_TIME,
    EventTimeOptions,
    OnError,
    Stage,
    Transform,
    as_tuple,
    check_option_types,
    check_reject_options,
    check_stage,
    late_channel,
    pass_through,
)
from .table import DEFAULT_TABLE, TableOptions, check_tasks
from .topic import Repartition, StartingOffsets, Topic

_Function = TypeVar("_Function", bound=Transform)


@dataclass(slots=True)
class App:
    """A streaming application: stages joined by repartition topics. Programs create one as `slackwater.App(name)`."""

    name: str
    stages: dict[str, Stage] = field(default_factory=dict)
    file: Path | None = None
    """Program file that declares the app; None if the app was not loaded from a file."""

    def __post_init__(self) -> None:
        # A suffix ~1 names the app that a promotion replaced under this name; see `apps.folder_of`.
        if not isinstance(self.name, str):
            raise Usage(f"App: name is {self.name!r}; expected str", hint='for example App("shop")')
        check_name("app", self.name.partition("~")[0])

    @check_arguments
    def stage(
        self,
        *,
        reads: Topic | Repartition | str | Sequence[Topic | Repartition | str],
        writes: Repartition | Sink | Sequence[Repartition | Sink] = (),
        state: Kind | None = None,
        key: Sequence[str] | str | None = None,
        table: TableOptions | None = None,
        max_records: int | None = None,
        trigger: str | None = None,
        max_unflushed: int | None = None,
        on_error: OnError = "stop",
        max_rejected: int | None = None,
        rejects: str | None = None,
        event_time: EventTimeOptions | None = None,
        name: str | None = None,
    ) -> Callable[[_Function], _Function]:
        """Declare the decorated function, which maps DataFrames to a DataFrame, as a stage of this app.

        Args:
            reads: A `topic(...)`; a `repartition(...)` that a stage of this app writes, or its name; or several of
                these: then the function gets one DataFrame for each, in this order.
            writes: A `repartition(...)`, a `sink(...)`, a `delta(...)`, an `iceberg(...)`, a `foreach_version(...)`, or
                several of these: the destinations of the function's rows, for a stage without state, or of the rows
                that its state emits.
            state: `aggregate(...)`, `upsert(...)`, `update(...)` or `join(...)`; the table is named after the stage.
            key: Key columns of the state. Default: the key of the repartition topics that the stage reads, if all have
                the same key.
            table: `table(...)`: state partitions, time to live and compaction of the table.
            max_records: Maximum number of rows of each input per batch; default no limit. `run --max-records` takes
                precedence.
            trigger: Shortest time between two batches, as in Structured Streaming: `"10 seconds"`; `run --trigger`
                takes precedence.
            max_unflushed: Maximum number of unflushed versions: acknowledged, but not committed yet, with SSTs only on
                this machine (RocksDB's `max_write_buffer_number`). Default 0. `run --max-unflushed` takes precedence.
            on_error: Action when a record makes the function, Spark's expressions or the state fail: `"stop"` stops the
                stage without data loss; `"reject"` stores the record in the table `<stage>_rejected`, and commits the
                batch without that record.
            max_rejected: Maximum number of rejected records that wait for a retry; one more stops the stage. Default
                1,000.
            rejects: An existing Kafka topic to which rejected records are also sent, at least once.
            event_time: `event_time(...)`: options of event time in addition to `withWatermark` in the function.
            name: Name of the stage; default the function's name.

        Raises:
            Usage: The declaration contradicts itself or an earlier one.
            Refused: The stage has no effect, or closes a cycle of stages.
        """
        inputs = as_tuple(reads, (Topic, Repartition, str))
        outputs = as_tuple(writes, Repartition | Sink)
        columns = as_tuple(key or (), str)

        def declare(transform: _Function) -> _Function:
            stage_name = check_name("stage", name or str(getattr(transform, "__name__", type(transform).__name__)))

            def count(knob: str, value: int | None, least: int) -> int | None:
                return None if value is None else check_whole(f"stage {stage_name!r}: {knob}", value, least)

            check_option_types(stage_name, table=table, event_time=event_time, trigger=trigger)
            times = event_time or DEFAULT_EVENT_TIME
            check_reject_options(stage_name, on_error, max_rejected, rejects, outputs)
            late_table = late_channel(stage_name, columns, state) if times.late == "table" else None
            late = late_table or times.late
            self._add(
                Stage(
                    name=stage_name,
                    transform=transform,
                    reads=tuple(source.name if isinstance(source, Repartition) else source for source in inputs),
                    writes=outputs if isinstance(late, str) else (*outputs, late),
                    state=FinalKind(state) if state is not None and times.emits == "final" else state,
                    key=columns,
                    table=check_tasks(stage_name, table or DEFAULT_TABLE),
                    max_records=count("max_records", max_records, 1),
                    trigger=trigger,
                    max_unflushed=count("max_unflushed", max_unflushed, 0),
                    on_error=on_error,
                    max_rejected=count("max_rejected", max_rejected, 1) or 1_000,
                    rejects=rejects or "",
                    event_time=replace(times, late=late),
                )
            )
            if late_table is not None:
                late_options, late_name = replace(times, late="keep", emits="changes"), f"{stage_name}_late"
                self.stage(reads=late_table, state=state, table=table, event_time=late_options, name=late_name)(
                    pass_through
                )
            return transform

        return declare

    def stages_in_order(self) -> tuple[Stage, ...]:
        """Return the stages, upstream first. Call this after all stages are declared.

        Raises `NotFound` if a stage reads a repartition topic that no stage writes, and the errors of `key_of`.
        """
        for stage in self.stages.values():
            for channel in stage.channels:
                self._find(channel, f"stage {stage.name!r} reads it")
            if stage.state is not None:
                self.key_of(stage)
        return tuple(self.stages[name] for name in self._topological_sorter().static_order())

    def check_has_stages(self) -> None:
        """Raise `Usage` if the app has no stage. Call this after all stages are declared."""
        if not self.stages:
            raise Usage(
                f"app {self.name!r} has no stage, so it would do nothing",
                hint="declare one: @app.stage(reads=..., state=...) above a function",
            )

    def with_starting_offsets(self, starting_offsets: Mapping[str, StartingOffsets]) -> Self:
        """Return a copy of the app in which each topic in `starting_offsets` starts at these offsets."""

        def moved(source: Topic | str) -> Topic | str:
            return (
                replace(source, start=starting_offsets.get(source.name, source.start))
                if isinstance(source, Topic)
                else source
            )

        stages = {name: replace(stage, reads=tuple(map(moved, stage.reads))) for name, stage in self.stages.items()}
        return replace(self, stages=stages)

    @property
    def topics(self) -> frozenset[str]:
        """Names of the users' topics that the stages read."""
        return frozenset(
            source.name for stage in self.stages.values() for source in stage.reads if isinstance(source, Topic)
        )

    def writer_of(self, channel: str) -> Stage:
        """Return the stage that writes a repartition topic. Raises `NotFound` if no stage does."""
        return self._find(channel)[0]

    def input_writers(self, stage: Stage) -> dict[str, str]:
        """Return the name of the stage that writes each input, by input name; empty for a user's topic."""
        return {
            name: "" if isinstance(source, Topic) else self.writer_of(source).name
            for name, source in stage.inputs.items()
        }

    def channel(self, name: str) -> Repartition:
        """Return the repartition topic with this name. Raises `NotFound` if no stage writes one."""
        return self._find(name)[1]

    def select_stages(self, names: Sequence[str]) -> tuple[Stage, ...]:
        """Return the named stages, upstream first; all stages if no name is given.

        Raises `Usage` if the app has no stage, `NotFound` for an unknown name, and the errors of `stages_in_order`.
        """
        self.check_has_stages()
        for name in names:
            if name not in self.stages:
                raise NotFound(f"stage of app {self.name!r}", name, self.stages)
        return tuple(stage for stage in self.stages_in_order() if not names or stage.name in names)

    def key_of(self, stage: Stage) -> tuple[str, ...]:
        """Return the key columns of a stage's state: the stage's own `key`, or the key of the channels that it reads.

        Raises `NotFound` if no stage writes one of the channels. Raises `Usage` if there is no key, or if the channels
        have different keys, which would send rows with equal keys to different tasks.
        """
        if stage.key:
            return stage.key
        for source in stage.reads:
            if isinstance(source, Topic):
                raise Usage(
                    f"stage {stage.name!r} keeps state but has no key: it reads the topic {source.name!r}, which has "
                    "none",
                    hint="add key=[...] with the columns that identify a row of its table",
                )
        keys = {name: self.channel(name).key for name in stage.channels}
        if len(set(keys.values())) > 1:
            shown = ", ".join(f"{name!r} by ({', '.join(key)})" for name, key in keys.items())
            raise Usage(
                f"stage {stage.name!r} keeps state over inputs that are keyed differently: {shown}",
                hint="key these repartition topics by the same columns, or add key=[...] with columns that "
                "all inputs have",
            )
        return next(iter(keys.values()))

    def _written(self) -> dict[str, tuple[Stage, Repartition]]:
        return {output.name: (stage, output) for stage in self.stages.values() for output in stage.repartitions}

    def _find(self, channel: str, hint: str = "declare the stage that writes it") -> tuple[Stage, Repartition]:
        written = self._written()
        if channel not in written:
            hint = f"{hint}; a Kafka topic is read as slackwater.topic({channel!r})"
            raise NotFound("repartition topic", channel, written, hint=hint)
        return written[channel]

    def _topological_sorter(self) -> TopologicalSorter[str]:
        writers = {channel: stage.name for channel, (stage, _) in self._written().items()}
        graph = {
            name: [writers[channel] for channel in stage.channels if channel in writers]
            for name, stage in self.stages.items()
        }
        return TopologicalSorter(graph)

    def _add(self, stage: Stage) -> None:
        check_stage(stage)
        if stage.name in self.stages:
            raise Usage(f"app {self.name!r} has two stages named {stage.name!r}; give one another name=")
        for channel in stage.repartitions:
            if channel.name in self._written():
                raise Usage(f"repartition topic {channel.name!r} has two writers; only one stage may write it")
        for sink in stage.sinks:
            internal_topic(self.name, stage.name, sink.name)
        together = replace(self, stages={**self.stages, stage.name: stage})
        for other in together.stages.values():
            rejected = table_name(other.name, REJECTED)
            if other.can_reject and rejected in together.stages:
                raise Usage(
                    f"stage {rejected!r} has the name of a table: that of the rejected records of {other.name!r}"
                )
            if other.rejects in together.topics:
                raise Usage(
                    f"topic {other.rejects!r} is for rejected records, and app {self.name!r} reads it",
                    hint="rejected records would be rejected again, endlessly: read the topic in another app",
                )
        published = {sink.name for other in together.stages.values() for sink in other.sinks if sink.kind == "topic"}
        for name in sorted(published & together.topics):
            raise Refused(
                f"app {self.name!r} reads the topic {name!r}, and its sink publishes there: records would circulate "
                "forever",
                hint="connect stages by slackwater.repartition(...)",
            )
        try:
            together._topological_sorter().prepare()
        except CycleError as error:
            raise Refused(
                f"stage {stage.name!r} closes a cycle: {' -> '.join(error.args[1])}",
                hint="records would circulate forever, and no snapshot would complete; read only upstream stages",
            ) from None
        self.stages[stage.name] = stage
