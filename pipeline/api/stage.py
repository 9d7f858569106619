"""A stage as an app declares it, and its validation without the other stages."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

from ...errors import Refused, Usage
from ...state.kinds.kind import Kind
from ...store.versions.keys import check_topic
from .event_time import DEFAULT_EVENT_TIME, EventTimeOptions
from .sink import FunctionSink, Sink, TopicSink
from .table import DEFAULT_TABLE, TableOptions
from .topic import Repartition, Topic

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Transform = Callable[..., "DataFrame"]
OnError = Literal["stop", "reject"]


@dataclass(frozen=True, slots=True)
class Stage:
    """A Structured Streaming query: inputs, the user's transformation, at most one keyed table, outputs."""

    name: str
    transform: Transform
    reads: tuple[Topic | str, ...]
    writes: tuple[Repartition | Sink, ...]
    """Outputs in the order in which the function or the state returns their rows."""
    state: Kind | None
    key: tuple[str, ...]
    """Declared key; empty if the key is that of the channels. `App.key_of` resolves it."""
    table: TableOptions
    max_records: int | None = None
    trigger: str | None = None
    max_unflushed: int | None = None
    on_error: OnError = "stop"
    max_rejected: int = 1_000
    rejects: str = ""
    """Topic to which rejected records are also sent; empty for none."""
    event_time: EventTimeOptions = DEFAULT_EVENT_TIME

    @property
    def inputs(self) -> dict[str, Topic | str]:
        """Inputs by their declared names, in the order of the function's arguments."""
        return {source.name if isinstance(source, Topic) else source: source for source in self.reads}

    @property
    def repartitions(self) -> tuple[Repartition, ...]:
        """Repartition topics that the stage writes."""
        return tuple(output for output in self.writes if isinstance(output, Repartition))

    @property
    def sinks(self) -> tuple[Sink, ...]:
        """Sinks that the stage writes."""
        return tuple(output for output in self.writes if not isinstance(output, Repartition))

    @property
    def rejects_some(self) -> bool:
        """True if the stage may reject records that fail, or that exceed the size limit of a sink's topic."""
        return self.on_error == "reject" or any(sink.on_error == "reject" for sink in self.sinks)

    @property
    def late(self) -> Repartition | Sink | None:
        """Destination of late rows; None without one."""
        late = self.event_time.late
        return None if isinstance(late, str) else late

    @property
    def emits_to(self) -> tuple[Repartition | Sink, ...]:
        """Destinations of the stage's rows, or of those that its state emits: all outputs except that of late rows."""
        return tuple(output for output in self.writes if output != self.late)

    @property
    def channels(self) -> tuple[str, ...]:
        """Repartition topics among the inputs."""
        return tuple(source for source in self.reads if isinstance(source, str))


def several(argument: object, single: type | tuple[type, ...]) -> tuple[Any, ...]:
    """Return an argument that may be one value or several as a tuple; `check_stage` reports wrong values."""
    if isinstance(argument, single) or not isinstance(argument, Iterable):
        return (argument,)
    return tuple(argument)


def check_rejects(
    stage: str, on_error: str, max_rejected: int | None, rejects: str | None, outputs: Iterable[Repartition | Sink]
) -> None:
    """Raise `Usage` if the options for failing records contradict each other."""
    if on_error not in get_args(OnError):
        raise Usage(f'stage {stage!r}: on_error is {on_error!r}; expected "stop" or "reject"')
    rejecting = [output for output in outputs if isinstance(output, TopicSink) and output.on_error == "reject"]
    if on_error == "stop" and not rejecting and (max_rejected is not None or rejects is not None):
        knob = "max_rejected" if max_rejected is not None else "rejects"
        raise Usage(f"stage {stage!r} has {knob}= and rejects nothing", hint='say on_error="reject", or leave it out')
    if rejects is not None:
        check_topic(rejects)


_OPTIONS = {
    "table": (TableOptions, "slackwater.table(partitions=4)"),
    "event_time": (EventTimeOptions, 'slackwater.event_time(emits="final")'),
    "trigger": (str, '"10 seconds"'),
}


def check_options(stage: str, **options: object) -> None:
    """Raise `Usage` for a stage's option of a wrong type; None stands for its default."""
    for name, value in options.items():
        kind, example = _OPTIONS[name]
        if value is not None and not isinstance(value, kind):
            raise Usage(f"stage {stage!r}: {name} is {value!r}; expected such as {example}", hint=f"{name}={example}")


def _check_types(stage: Stage) -> None:
    """Raise `Usage` for a stage's argument of a wrong type."""
    state, where = stage.state, f"stage {stage.name!r}"
    if not callable(stage.transform):
        raise Usage(
            f"{where} is a {type(stage.transform).__name__}; expected a function, DataFrame in, DataFrame out",
            hint="write @app.stage(...) above the line with def",
        )
    if state is not None and not isinstance(state, Kind):
        shown = f"{type(state).__name__} {state!r}" if isinstance(state, dict) else repr(state)
        raise Usage(
            f"{where}: state is {shown}; expected slackwater.aggregate(...), upsert(...), update(...) or another kind",
            hint="an aggregate names its columns: state=slackwater.aggregate(orders=slackwater.count())",
        )
    for column in stage.key:
        if not isinstance(column, str):
            raise Usage(f"{where}: key is {column!r}; expected the name of a column, or several", hint='key="country"')


def check_stage(stage: Stage) -> None:
    """Raise `Usage` if a stage contradicts itself, and `Refused` if it has no effect."""
    _check_types(stage)
    for source in stage.reads:
        if not isinstance(source, Topic | str):
            raise Usage(
                f"stage {stage.name!r} reads {source!r}; expected a slackwater.topic(...), a "
                "slackwater.repartition(...) or the name of one, or several of them"
            )
    if not stage.reads or len(stage.inputs) != len(stage.reads):
        names = (
            ", ".join(repr(source.name if isinstance(source, Topic) else source) for source in stage.reads) or "nothing"
        )
        raise Usage(f"stage {stage.name!r} reads {names}; expected one or more inputs of different names")
    for output in stage.writes:
        if not isinstance(output, Repartition | TopicSink | FunctionSink):
            raise Usage(
                f"stage {stage.name!r} writes {output!r}; expected a slackwater.repartition(...), a "
                "slackwater.sink(...) or a slackwater.foreach_version(...), or several of them"
            )
    written = [output.name for output in stage.writes]
    if duplicates := [name for name in written if written.count(name) > 1]:
        raise Usage(f"stage {stage.name!r} writes {duplicates[0]!r} twice; expected different names")
    if len(set(stage.key)) != len(stage.key):
        raise Usage(f"stage {stage.name!r}: key is {stage.key!r}; expected different column names")
    if stage.table is not DEFAULT_TABLE and stage.state is None:
        raise Usage(f"stage {stage.name!r} has table= and keeps no state, so it has no table")
    if stage.event_time.emits == "final" and (stage.state is None or not stage.emits_to):
        lacks = "keeps no state" if stage.state is None else "writes nothing"
        raise Usage(f'stage {stage.name!r} has event_time(emits="final") and {lacks}')
    if stage.state is None and not stage.writes:
        raise Refused(
            f"stage {stage.name!r} neither keeps state nor writes a topic, so it would do nothing",
            hint="give it state= or writes=",
        )
