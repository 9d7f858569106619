"""A stage as an app has declared it, and what is wrong with one by itself."""

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
    def rejects_some(self) -> bool:
        """Whether it may reject records: those that fail, or those that one of its sinks does not take."""
        return self.on_error == "reject" or any(one.on_error == "reject" for one in self.sinks)

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


def several(said: object, single: type | tuple[type, ...]) -> tuple[Any, ...]:
    """What may be said as one value or as several: a tuple of all; `check_stage` tells what is wrong with them."""
    if isinstance(said, single) or not isinstance(said, Iterable):
        return (said,)
    return tuple(said)


def check_rejects(
    stage: str, on_error: str, max_rejected: int | None, rejects: str | None, outputs: Iterable[Repartition | Sink]
) -> None:
    """Raise `Usage` where what becomes of failing records is said in a way that contradicts itself."""
    if on_error not in get_args(OnError):
        raise Usage(f'stage {stage!r}: on_error is {on_error!r}; expected "stop" or "reject"')
    rejecting = [one for one in outputs if isinstance(one, TopicSink) and one.on_error == "reject"]
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


def check_options(stage: str, **said: object) -> None:
    """Raise `Usage` where an option of a stage is of another type than it can be; None stands for its default."""
    for name, value in said.items():
        kind, wrote = _OPTIONS[name]
        if value is not None and not isinstance(value, kind):
            raise Usage(f"stage {stage!r}: {name} is {value!r}; expected such as {wrote}", hint=f"{name}={wrote}")


def _check_types(stage: Stage) -> None:
    """Raise `Usage` where an argument of a stage is of a type that it cannot be."""
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
    """Raise `Usage` where a stage contradicts itself, and `Refused` where it would do nothing."""
    _check_types(stage)
    for one in stage.reads:
        if not isinstance(one, Topic | str):
            raise Usage(
                f"stage {stage.name!r} reads {one!r}; expected a slackwater.topic(...), a "
                "slackwater.repartition(...) or the name of one, or several of them"
            )
    if not stage.reads or len(stage.inputs) != len(stage.reads):
        names = ", ".join(repr(one.name if isinstance(one, Topic) else one) for one in stage.reads) or "nothing"
        raise Usage(f"stage {stage.name!r} reads {names}; expected one or more inputs of different names")
    for output in stage.writes:
        if not isinstance(output, Repartition | TopicSink | FunctionSink):
            raise Usage(
                f"stage {stage.name!r} writes {output!r}; expected a slackwater.repartition(...), a "
                "slackwater.sink(...) or a slackwater.foreach_version(...), or several of them"
            )
    written = [output.name for output in stage.writes]
    if twice := [name for name in written if written.count(name) > 1]:
        raise Usage(f"stage {stage.name!r} writes {twice[0]!r} twice; expected different names")
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
