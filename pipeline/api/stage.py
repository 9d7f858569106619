"""Declaration of a stage (`Stage`), its event-time options, and checks of a stage that need no other stage."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import UnionType
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

from ...common.arguments import check_arguments
from ...common.durations import parse_ms
from ...errors import Refused, Usage
from ...state.kinds.kind import Kind
from ...store.versions.keys import check_topic
from ...store.versions.limits import MAX_TTL_MS
from .sink import Sink, TopicSink
from .table import DEFAULT_TABLE, TableOptions
from .topic import Repartition, Topic, repartition

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


EmitMode: TypeAlias = Literal["changes", "final"]
LateHandling: TypeAlias = Literal["drop", "keep", "table"] | Repartition | Sink


@dataclass(frozen=True, slots=True)
class EventTimeOptions:
    """Event-time options of a stage, created by `event_time`."""

    ahead_ms: int
    late: LateHandling = "drop"
    emits: EmitMode = "changes"


@check_arguments
def event_time(*, ahead: str = "1 day", late: LateHandling = "drop", emits: EmitMode = "changes") -> EventTimeOptions:
    """Return event-time options that Spark's `withWatermark` lacks, for a stage whose rows have a watermark.

    Args:
        ahead: Maximum time by which an event may be ahead of the wall clock. Events beyond this limit do not move the
            watermark, so that a single record from the year 55,840 cannot advance the watermark.
        late: Handling of late rows. A row is late if the window (`F.window`) in its key ended before the watermark, or
            begins later than `ahead` allows. `"keep"`: they change the table like other rows. Otherwise they do not
            change the table and are counted: `"drop"` only counts them; `"table"` adds a stage `<stage>_late` with the
            same key and state; a `repartition(...)`, a `sink(...)` or a `foreach_version(...)` receives the late rows,
            with the columns that the stage's function returns.
        emits: Emitted rows of a stage whose key has a window: `"changes"`, the rows that each batch changed; `"final"`,
            each row once, after the watermark has passed the end of its window. Sessions (`F.session_window`) are
            always final.

    Raises `Usage` if `ahead` is no duration from 0 to a million days, if `late` or `emits` is invalid, or if late rows
    would change windows that were already emitted as final.
    """
    ahead_ms = parse_ms("event_time: ahead", ahead)
    if not 0 <= ahead_ms <= MAX_TTL_MS:
        raise Usage(f"event_time: ahead is {ahead!r}; expected 0 seconds to 1,000,000 days")
    if late not in ("drop", "keep", "table") and not isinstance(late, Repartition | Sink):
        raise Usage(
            f"event_time: late is {late!r}; expected 'drop', 'keep', 'table', a slackwater.repartition(...) or a "
            "slackwater.sink(...)"
        )
    if emits not in ("changes", "final"):
        raise Usage(f"event_time: emits is {emits!r}; expected 'changes' or 'final'")
    if emits == "final" and late == "keep":
        raise Usage('event_time: late="keep" would change windows that emits="final" has emitted; change one of them')
    return EventTimeOptions(ahead_ms, late, emits)


DEFAULT_EVENT_TIME = event_time()


def late_channel(stage: str, key: tuple[str, ...], state: Kind | None) -> Repartition:
    """Return the channel that carries a stage's late rows to the stage that stores them.

    Raises `Usage` if the stage cannot have a table of late rows.
    """
    if state is not None and state.no_late_table:
        raise Usage(
            f"stage {stage!r} cannot have a table of late rows: it would be {state.no_late_table}",
            hint='set late=slackwater.repartition(...), and keep these rows in a stage of your own; or late="drop"',
        )
    if not key or state is None:
        raise Usage(
            f"stage {stage!r} has a table of late rows, but no {'state' if state is None else 'key'}= for it",
            hint="the table uses the stage's own state= and key=[...], with a window in the key",
        )
    return repartition(f"{stage}-late", key)


def pass_through(rows: "DataFrame") -> "DataFrame":
    """Return the rows unchanged. This is the function of a stage that stores late rows."""
    return rows


Transform = Callable[..., "DataFrame | tuple[DataFrame, ...]"]
OnError = Literal["stop", "reject"]


@dataclass(frozen=True, slots=True)
class Stage:
    """A Structured Streaming query: inputs, the user's transformation, at most one keyed table, outputs."""

    name: str
    transform: Transform
    reads: tuple[Topic | str, ...]
    writes: tuple[Repartition | Sink, ...]
    """Outputs, in the order in which the function or the state returns rows for them."""
    state: Kind | None
    key: tuple[str, ...]
    """Declared key; empty if the stage uses the key of its channels (`App.key_of`)."""
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
    def can_reject(self) -> bool:
        """True if the stage may reject records that make it fail or that exceed the size limit of a sink's topic."""
        return self.on_error == "reject" or any(sink.on_error == "reject" for sink in self.sinks)

    @property
    def late_output(self) -> Repartition | Sink | None:
        """Destination of late rows; None if late rows are not sent anywhere."""
        late = self.event_time.late
        return None if isinstance(late, str) else late

    @property
    def emits_to(self) -> tuple[Repartition | Sink, ...]:
        """Outputs that get the stage's rows: all outputs except the destination of late rows."""
        return tuple(output for output in self.writes if output != self.late_output)

    @property
    def channels(self) -> tuple[str, ...]:
        """Repartition topics among the inputs."""
        return tuple(source for source in self.reads if isinstance(source, str))


def as_tuple(argument: object, single: type | UnionType | tuple[type, ...]) -> tuple[Any, ...]:
    """Return an argument as a tuple. A single value of type `single` becomes a tuple with one element."""
    if isinstance(argument, single) or not isinstance(argument, Iterable):
        return (argument,)
    return tuple(argument)


def check_reject_options(
    stage: str, on_error: str, max_rejected: int | None, rejects: str | None, outputs: Iterable[Repartition | Sink]
) -> None:
    """Raise `Usage` if a stage's options for failing records contradict each other."""
    if on_error not in get_args(OnError):
        raise Usage(f'stage {stage!r}: on_error is {on_error!r}; expected "stop" or "reject"')
    rejecting = [output for output in outputs if isinstance(output, TopicSink) and output.on_error == "reject"]
    if on_error == "stop" and not rejecting and (max_rejected is not None or rejects is not None):
        knob = "max_rejected" if max_rejected is not None else "rejects"
        raise Usage(
            f"stage {stage!r} has {knob}=, but rejects no records", hint=f'set on_error="reject", or remove {knob}='
        )
    if rejects is not None:
        check_topic(rejects)


_OPTIONS = {
    "table": (TableOptions, "slackwater.table(partitions=4)"),
    "event_time": (EventTimeOptions, 'slackwater.event_time(emits="final")'),
    "trigger": (str, '"10 seconds"'),
}


def check_option_types(stage: str, **options: object) -> None:
    """Raise `Usage` if an option of a stage has the wrong type. None means the option's default."""
    for name, value in options.items():
        kind, example = _OPTIONS[name]
        if value is not None and not isinstance(value, kind):
            raise Usage(
                f"stage {stage!r}: {name} is {value!r}; expected a value such as {example}", hint=f"{name}={example}"
            )


def _check_types(stage: Stage) -> None:
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
            raise Usage(f"{where}: key is {column!r}; expected a column name, or several", hint='key="country"')


def check_stage(stage: Stage) -> None:
    """Raise `Usage` if a stage contradicts itself, and `Refused` if it has no effect."""
    _check_types(stage)
    _check_inputs(stage)
    _check_outputs(stage)
    if len(set(stage.key)) != len(stage.key):
        raise Usage(f"stage {stage.name!r}: key is {stage.key!r}, which names a column twice; name each column once")
    if stage.table is not DEFAULT_TABLE and stage.state is None:
        raise Usage(f"stage {stage.name!r} has table=, but no state= and so no table; remove one or add the other")
    if stage.event_time.emits == "final" and (stage.state is None or not stage.emits_to):
        lacks = "keeps no state" if stage.state is None else "writes nothing"
        raise Usage(f'stage {stage.name!r} has event_time(emits="final") and {lacks}')
    if stage.state is None and not stage.writes:
        raise Refused(
            f"stage {stage.name!r} neither keeps state nor writes a topic, so it would do nothing",
            hint="give it state= or writes=",
        )


def _check_inputs(stage: Stage) -> None:
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


def _check_outputs(stage: Stage) -> None:
    for output in stage.writes:
        if not isinstance(output, Repartition | Sink):
            raise Usage(
                f"stage {stage.name!r} writes {output!r}; expected a slackwater.repartition(...), a "
                "slackwater.sink(...), a slackwater.delta(...), a slackwater.iceberg(...) or a "
                "slackwater.foreach_version(...), or several of them"
            )
    written = [output.name for output in stage.writes]
    if duplicates := [name for name in written if written.count(name) > 1]:
        raise Usage(f"stage {stage.name!r} writes {duplicates[0]!r} twice; expected different names")
