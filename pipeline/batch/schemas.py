"""What flows between stages: the schema of every stage's rows and of every repartition topic.

A user's functions are applied to empty streams once, upstream first, so that one stage can also run alone. Here, too,
what would keep state where no snapshot sees it is refused, before anything is written.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from ...errors import NotFound, Refused, Usage
from ...snapshot.migrate.columns import check_default
from ...store.sst.arrow_types import from_arrow, to_arrow
from ...store.sst.hashing import hash_keys
from ...store.versions import keys
from ...store.versions.manifest import Column, Table
from ..api import ttl
from ..api.app import App, Repartition, Stage, Topic
from ..api.sink import Sink
from ..event_time.watermarks import Declared, Watermark, declared
from ..messages import outgoing
from ..messages.decode import reading
from ..messages.registry import forget_latest
from ..source.data_source import TOPIC_SCHEMA
from ..spark.fan_out import once
from ..spark.plans import children, first_column, nodes, plan_of
from ..spark.user_errors import as_user_error
from ..state.ddl import parse_ddl
from ..state.due import BoundDue, DueBy, Final
from ..state.join import BoundJoin
from ..state.multi_input import name_of, tag
from ..state.protocol import BoundState, State, Timely, of_input
from ..state.session import BoundSessions, Sessions, key_of_table
from ..state.window import window_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Operators of Spark's plans that keep state between the batches of a streaming query, and what to say instead.
_STATEFUL = {
    "Aggregate": "state=slackwater.aggregate(...)",
    "Deduplicate": "state=slackwater.upsert(by=...)",
    "DeduplicateWithinWatermark": "state=slackwater.upsert(by=...)",
    "Distinct": "state=slackwater.upsert(by=...)",
    "FlatMapGroupsWithState": "state=slackwater.update(...)",
    "FlatMapGroupsInPandasWithState": "state=slackwater.update(...)",
    "TransformWithState": "state=slackwater.update(...)",
    "TransformWithStateInPySpark": "state=slackwater.update(...)",
    "GlobalLimit": "state=slackwater.update(...)",
    "Window": "state=slackwater.update(..., order_by=...)",
}


_SESSION = "spark.sessionWindow"
"""Spark's mark on a column that is a session window."""


@dataclass(frozen=True, slots=True)
class Shape:
    """The schemas of one stage.

    Attributes:
        inputs: Rows that the function gets, by the input's declared name.
        emits: Rows that go to the stage's outputs, by the output's name.
        key: The state's key columns; none without state.
        table: The stage's table; None without state.
        bound: The state, bound to the rows that the function gives.
        rows: Without state: of each output, where the function gives each its own rows; empty where all get the same.
        watermarks: Those that the function says.
        timed: The inputs that have a watermark, so or from the stage that writes them.
        late_by: The columns of a batch's rows by which they are late; empty where none can be.
        late: The columns of late rows, where these go somewhere, each with its name there.
    """

    inputs: dict[str, StructType]
    emits: dict[str, StructType]
    key: tuple[str, ...]
    table: Table | None
    bound: BoundState | None
    rows: tuple[pa.Schema, ...] = ()
    watermarks: tuple[Watermark, ...] = ()
    timed: frozenset[str] = frozenset()
    late_by: tuple[str, ...] = ()
    late: Mapping[str, str] = field(default_factory=dict)

    @property
    def due_by(self) -> DueBy | None:
        """What passes the time at which rows of the table fall due; None where they never do."""
        return self.bound.by if isinstance(self.bound, BoundDue | BoundSessions | BoundJoin) else None

    @property
    def behind_ms(self) -> int:
        """How much earlier than the watermark the times may be of what the stage still emits."""
        return self.bound.behind_ms if isinstance(self.bound, BoundJoin) else 0

    @property
    def own(self) -> frozenset[str]:
        """The inputs of whose rows the function says the watermark."""
        return frozenset(name for one in self.watermarks for name in one.inputs)


@dataclass(frozen=True, slots=True)
class Applied:
    """What a stage's function makes of its inputs.

    Attributes:
        frames: As returned: one DataFrame, or one for each input (with state) or output (without). Those for outputs
            read each stream once between them.
        sources: The inputs' names in the order in which Spark numbers the sources of the query.
        declared: Of each DataFrame, its watermark.
    """

    frames: tuple[DataFrame, ...]
    sources: tuple[str, ...]
    declared: tuple[Declared | None, ...] = ()

    def rows(self, key: Sequence[str]) -> DataFrame:
        """All rows in one DataFrame, for a micro-batch is one job. `key` are columns that all frames have."""
        return tag(self.frames, key)


def shapes(app: App, spark: SparkSession) -> dict[str, Shape]:
    """Schemas of all stages of an app, by name, upstream first.

    Raises:
        NotFound: A key or a state names a column that the function does not give.
        Refused: A function fails, gives no DataFrame, or keeps state of its own.
        Usage: Inputs that come together have keys of different types.
    """
    known: dict[str, Shape] = {}
    forget_latest()
    with tempfile.TemporaryDirectory(prefix="slackwater-") as empty:
        for stage in app.in_order():
            inputs = {
                name: parse_ddl(TOPIC_SCHEMA) if isinstance(one, Topic) else known[app.writer_of(one).name].emits[one]
                for name, one in stage.inputs.items()
            }
            # A folder without files is the cheapest stream there is: no process of its own, and never started.
            streams = {
                name: spark.readStream.schema(schema).parquet(f"file:{empty}") for name, schema in inputs.items()
            }
            applied = apply(stage, streams)
            key = app.key_of(stage) if stage.state is not None else ()
            watermarks = _watermarks(stage, key, applied)
            passed_on = {name for name in stage.channels if known[app.writer_of(name).name].timed}
            shape = _shape(stage, key, inputs, applied)
            shape = replace(shape, watermarks=watermarks)
            timed = shape.own | passed_on
            closes = timed and stage.event_time.late != "keep"
            shape = replace(shape, timed=timed, late_by=_late_by(shape) if closes else ())
            if shape.due_by == "watermark" and not timed:
                raise Refused(
                    f"stage {stage.name!r} has rows that fall due and no watermark that would pass their time",
                    hint='say withWatermark where the topic is read; or update(..., due_by="clock")',
                )
            known[stage.name] = _with_late(stage, shape, applied)
    return known


def _late_by(shape: Shape) -> tuple[str, ...]:
    """The times of a join's rows, or the column of the stage's key that is a window."""
    if isinstance(shape.bound, BoundJoin):
        return shape.bound.times
    if shape.table is None:
        return ()
    if isinstance(shape.bound, BoundSessions):
        return (shape.bound.column,)
    window = window_of(pa.schema([(column.name, to_arrow(column.type)) for column in shape.table.key]))
    return (window,) if window else ()


def _with_late(stage: Stage, shape: Shape, applied: Applied) -> Shape:
    """The schemas with that of late rows, where these go somewhere. Raises `Refused` where no row is ever late."""
    if stage.late is None:
        return shape
    if isinstance(shape.bound, BoundJoin) and shape.late_by:
        # Rows of either side, with what a pair has of it.
        _check_output(stage.late, shape.bound.emitted)
        rows = from_arrow_schema(shape.bound.emitted)
        return replace(shape, emits=shape.emits | {stage.late.name: rows}, late=shape.bound.called)
    if not shape.late_by:
        lacks = "a window (F.window) in the key of a table" if shape.timed else "a watermark (withWatermark)"
        raise Refused(
            f"stage {stage.name!r} says where late rows go, and has not {lacks}: no row is ever late",
            hint="leave late= out of its event_time(...)",
        )
    if len(applied.frames) > 1:
        raise Refused(
            f"stage {stage.name!r} says where late rows go, and returns {len(applied.frames)} DataFrames",
            hint="return their union, or leave late= out of its event_time(...)",
        )
    rows = applied.frames[0].schema
    _check_output(stage.late, to_arrow_schema(rows, timezone="UTC"))
    emits = shape.emits | {stage.late.name: _without_sessions(rows)}
    return replace(shape, emits=emits, late={name: name for name in rows.names})


def _without_sessions(rows: StructType) -> StructType:
    """The rows' columns, with sessions as windows of their own: what is late makes no session any more."""
    columns = StructType()
    for one in rows:
        marks = {name: value for name, value in one.metadata.items() if name != _SESSION}
        columns.add(one.name, one.dataType, one.nullable, marks)
    return columns


def _watermarks(stage: Stage, key: Sequence[str], applied: Applied) -> tuple[Watermark, ...]:
    """The watermarks that a stage's function says, by the columns of its batches."""
    found = {at: one for at, one in enumerate(applied.declared) if one is not None}
    single = len(applied.frames) == 1
    columns = {at: one.column if single or one.column in key else name_of(at, one.column) for at, one in found.items()}
    if found and (single or _each_output(stage, applied.frames)):
        # The same rows, or parts of them: what each input brought is not told apart.
        return (Watermark(tuple(columns.values()), max(one.delay_ms for one in found.values()), tuple(stage.inputs)),)
    names = tuple(stage.inputs)
    # A key column is one for all DataFrames.
    return tuple(
        Watermark((columns[at],), one.delay_ms, (names[at],), at if not single and one.column in key else None)
        for at, one in found.items()
    )


@contextmanager
def _calling(stage: Stage) -> Iterator[None]:
    """While a stage's function runs. Raises `Refused` where it fails."""
    topics = [one.name for one in stage.inputs.values() if isinstance(one, Topic)]
    with as_user_error(f"stage {stage.name!r}", stage.transform), reading(topics):
        yield


def ddl_of(rows: StructType) -> str:
    """The columns of a repartition topic as manifests keep them."""
    return ", ".join(f"`{field.name}` {field.dataType.simpleString()}" for field in rows)


def apply(stage: Stage, inputs: Mapping[str, DataFrame]) -> Applied:
    """The stage's function applied to one DataFrame for each input. Raises `Refused` as `shapes` does."""
    with _calling(stage):
        frames = _frames(stage, inputs.values())
        _check_frames(stage, frames)
        for frame in frames:
            frame.schema  # noqa: B018  Spark analyses the plan here
    for frame in frames:
        if not frame.isStreaming:
            raise Refused(
                f"stage {stage.name!r} returned a DataFrame that does not come from its stream",
                hint="build what it returns from the DataFrame it is given",
            )
        _refuse_state(stage, plan_of(frame))
    sources = _sources(stage, inputs, frames)
    times = declared(stage.name, frames)
    return Applied(once(frames) if _each_output(stage, frames) else frames, sources, times)


def over(stage: Stage, inputs: Sequence[DataFrame]) -> tuple[DataFrame, ...]:
    """What the stage's function makes of DataFrames that do not stream, as `Applied.frames`. Raises `Refused`."""
    with _calling(stage):
        return _frames(stage, inputs)


def _frames(stage: Stage, inputs: Iterable[DataFrame]) -> tuple[DataFrame, ...]:
    made = stage.transform(*inputs)
    return tuple(made) if isinstance(made, tuple | list) else (made,)


def _each_output(stage: Stage, frames: Sequence[object]) -> bool:
    """Whether these are a DataFrame for each output: without state, there is nothing else that they could be."""
    return stage.state is None and len(frames) > 1 and len(frames) == len(stage.writes)


def _check_frames(stage: Stage, frames: tuple[object, ...]) -> None:
    for frame in frames:
        if not isinstance(frame, DataFrame):
            raise Refused(f"stage {stage.name!r} returned {type(frame).__name__}; expected a DataFrame")
    if len(frames) == 1 or _each_output(stage, frames):
        return
    outputs = ", ".join(repr(output.name) for output in stage.writes)
    if stage.state is None and len(stage.writes) > 1:
        raise Refused(
            f"stage {stage.name!r} returned {len(frames)} DataFrames; expected one, whose rows go to each of its "
            f"outputs, or one for each of these: {outputs}",
            hint="return a tuple in the order of writes=",
        )
    if len(frames) != len(stage.reads):
        expected = "one" if stage.state is None else f"one, or one for each of its {len(stage.reads)} inputs"
        emits = (
            f"{outputs} get what the state emits: state=slackwater.update(..., emits=(…, …)) gives each rows of its own"
        )
        raise Refused(
            f"stage {stage.name!r} returned {len(frames)} DataFrames; expected {expected}",
            hint=emits if len(stage.writes) > 1 else "",
        )


def _refuse_state(stage: Stage, plan: Any) -> None:
    for node in nodes(plan):
        name = node.getClass().getSimpleName()
        if not node.isStreaming():
            continue
        if name in _STATEFUL:
            raise Refused(
                f"stage {stage.name!r} uses a streaming {name}, whose state no snapshot would see",
                hint=f"say it as {_STATEFUL[name]} on the stage, or do it on the rows of one event",
            )
        if name != "Union" and sum(child.isStreaming() for child in children(node)) > 1:
            raise Refused(
                f"stage {stage.name!r} uses a {name} of two streams, whose state no snapshot would see",
                hint="return the DataFrames as a tuple, one for each input: state=slackwater.join(...) joins them by "
                "key and time, and the function of state=slackwater.update(...) gets the rows of each",
            )


def _sources(stage: Stage, inputs: Mapping[str, DataFrame], frames: tuple[DataFrame, ...]) -> tuple[str, ...]:
    """The inputs' names in the order of the streams in the plan. Raises `Refused` unless each is there once."""
    names = {first_column(plan_of(frame)): name for name, frame in inputs.items()}
    # A stream that is used again gets new column ids the second time.
    each = [[names.get(first_column(leaf)) for leaf in _streams(plan_of(frame))] for frame in frames]
    found = [name for used in each for name in used]
    for name in inputs:
        if name not in found:
            raise Refused(
                f"stage {stage.name!r} reads {name!r}, but nothing it returns comes from there",
                hint="leave the input out of reads=, or use it",
            )
    # What several outputs have in common is read once; what one of them uses twice is not.
    twice = [used for used in (each if _each_output(stage, frames) else [found]) if len(used) > len({*used} - {None})]
    if twice:
        raise Refused(
            f"stage {stage.name!r} uses its {'stream' if len(inputs) == 1 else 'streams'} {len(twice[0])} times; "
            "each use would read all of its input again",
            hint="write it as one pass: a union of selects becomes one select with explode(array(...))",
        )
    return tuple(name for name in found if name is not None)


def _streams(plan: Any) -> list[Any]:
    return [node for node in nodes(plan) if not children(node) and node.isStreaming()]


def _shape(stage: Stage, key: tuple[str, ...], inputs: dict[str, StructType], applied: Applied) -> Shape:
    rows = [frame.schema for frame in applied.frames]
    arrow = [to_arrow_schema(schema, timezone="UTC") for schema in rows]
    if stage.state is None:
        if len(rows) > 1 and not _each_output(stage, rows):
            raise Refused(
                f"stage {stage.name!r} returned {len(rows)} DataFrames, and has no state to bring them together",
                hint="return their union: a.unionByName(b, allowMissingColumns=True)",
            )
        sent = dict(zip(stage.writes, rows if len(rows) > 1 else rows * len(stage.writes), strict=True))
        for output, schema in sent.items():
            _check_output(output, to_arrow_schema(schema, timezone="UTC"))
        emits = {output.name: schema for output, schema in sent.items()}
        return Shape(inputs, emits, (), None, None, tuple(arrow) if len(rows) > 1 else ())
    for schema in arrow:
        _check_columns(f"stage {stage.name!r}", key, schema)
    read = {name: to_arrow_schema(inputs[name], timezone="UTC") for name in stage.channels}
    _check_same_types(stage, key, read if not stage.key else {})
    _check_same_types(stage, key, dict(zip(stage.inputs, arrow, strict=True)) if len(arrow) > 1 else {})
    state = _state(stage, stage.state, key, rows)
    times = [one.column if one else None for one in applied.declared]
    marked = [of_input(*each) for each in zip(arrow, stage.inputs, times, strict=False)]
    bound = state.bind(marked, key)
    key = key_of_table(key, bound.values.names)
    emits = _emitted(stage, bound)
    keys.check_columns(f"stage {stage.name!r}", [*key, *bound.values.names])
    if stage.table.ttl is not None and isinstance(bound, Timely):
        raise Refused(
            f"stage {stage.name!r} has a ttl, and keeps what waits for the watermark, which would be gone too soon",
            hint="leave ttl= out of its table(...): rows leave when the watermark has passed them",
        )
    ttl.check_column(stage.name, stage.table.ttl, bound.values)
    _check_defaults(stage, bound.values)
    table = Table(
        key=tuple(Column(name, from_arrow(arrow[0].field(name).type)) for name in key),
        values=tuple(_value(stage, field) for field in bound.values),
        partitions=stage.table.partitions,
        state=state.describe(),
        compaction=stage.table.compaction,
        ttl=stage.table.ttl,
    )
    return Shape(inputs, emits, key, table, bound)


def _state(stage: Stage, state: State, key: Sequence[str], rows: Sequence[StructType]) -> State:
    """What a stage keeps, where its key has a session: that is no part of what identifies a row, for it grows.

    Raises:
        Refused: There are sessions that could not be kept, or not be final.
    """
    found = list(dict.fromkeys(name for name in key for schema in rows if _SESSION in schema[name].metadata))
    if not found:
        return state
    session, what = found[0], f"stage {stage.name!r} has the session window {found[0]!r} in its key"
    if len(found) > 1:
        raise Refused(f"{what}, and {found[1]!r}", hint="leave one of them out")
    if len(key) == 1:
        raise Refused(f"{what}, and nothing else", hint="add what the sessions are of, such as a user")
    if not isinstance(state, Final):
        raise Refused(
            f"{what}, and does not emit sessions when they have ended: nobody could take back one that was emitted "
            "before, when it becomes part of another",
            hint='say writes=... and event_time=slackwater.event_time(emits="final"); a later stage keeps what it gets',
        )
    return Sessions(state, session)


def _check_defaults(stage: Stage, values: pa.Schema) -> None:
    visible = [name for name in values.names if not name.startswith("_")]
    for name in stage.table.defaults:
        if name not in visible:
            raise NotFound("value column", name, visible, hint=f"defaults= of stage {stage.name!r} names some of them")


def _value(stage: Stage, field: pa.Field) -> Column:
    default = stage.table.defaults.get(field.name)
    kind = from_arrow(field.type)
    if default is None:
        return Column(field.name, kind)
    return Column(field.name, kind, default=check_default(stage.name, field.name, default, to_arrow(kind)))


def _emitted(stage: Stage, bound: BoundState) -> dict[str, StructType]:
    """What the state gives each output. Raises `Refused` where that is not one for all, or one for each."""
    if len(bound.emits) > 1 and len(bound.emits) != len(stage.emits_to):
        raise Refused(
            f"stage {stage.name!r}: its state emits rows for {len(bound.emits)} outputs, and it writes "
            f"{len(stage.emits_to)}",
            hint="emits= has one for each of writes=, in that order, or one for all of them",
        )
    each = bound.emits if len(bound.emits) > 1 else bound.emits * len(stage.emits_to)
    for output, rows in zip(stage.emits_to, each, strict=True):
        _check_output(output, rows)
    return {output.name: from_arrow_schema(rows) for output, rows in zip(stage.emits_to, each, strict=True)}


def _check_same_types(stage: Stage, key: tuple[str, ...], rows: Mapping[str, pa.Schema]) -> None:
    """Rows of one key come together only where the key has one type: 1 and "1" hash differently."""
    for column in key:
        types = {name: str(schema.field(column).type) for name, schema in rows.items()}
        if len(set(types.values())) > 1:
            shown = ", ".join(f"{kind} in {name!r}" for name, kind in types.items())
            raise Usage(
                f"stage {stage.name!r}: key column {column!r} is {shown}; rows of one key would not come together",
                hint=f"cast it to one type where {column!r} is written",
            )


def _check_output(output: Repartition | Sink, rows: pa.Schema) -> None:
    if isinstance(output, Repartition):
        _check_columns(f"repartition topic {output.name!r}", output.key, rows)
    elif output.encoding is not None:
        outgoing.check(f"sink {output.name!r}", output.encoding, rows)


def _check_columns(what: str, key: tuple[str, ...], rows: pa.Schema) -> None:
    for name in key:
        if name not in rows.names:
            raise NotFound("key column", name, rows.names, hint=f"{what} is keyed by it")
    # Hashing no rows tells whether the types can be hashed.
    hash_keys(rows.empty_table(), key)
