"""What flows between stages: the schema of every stage's rows and of every repartition topic.

A user's functions are applied to empty streams once, upstream first, so that one stage can also run alone. What cannot
be kept or sent is refused, before anything is written.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from ...errors import NotFound, Refused, Usage
from ...fold.event_time import TimeRules, Watermark
from ...fold.fits import check_default
from ...fold.kinds.due import window_of
from ...fold.kinds.kind import Bound, DueBy, Kind, key_of_table, of_input
from ...fold.multi_input import name_of
from ...store.sst.arrow_types import from_arrow, to_arrow
from ...store.sst.hashing import hash_keys
from ...store.versions import keys
from ...store.versions.manifest import Column, Table
from ..api.app import App
from ..api.sink import Sink
from ..api.stage import Stage
from ..api.table import check_ttl
from ..api.topic import Repartition, Topic
from ..api.update import parse_ddl
from ..messages import outgoing
from ..messages.registry import forget_latest
from ..source.data_source import TOPIC_SCHEMA
from .applied import Applied, apply, each_output

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

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
    bound: Bound | None
    rows: tuple[pa.Schema, ...] = ()
    watermarks: tuple[Watermark, ...] = ()
    timed: frozenset[str] = frozenset()
    late_by: tuple[str, ...] = ()
    late: Mapping[str, str] = field(default_factory=dict)

    @property
    def due_by(self) -> DueBy | None:
        """What passes the time at which rows of the table fall due; None where they never do."""
        return self.bound.due_by if self.bound is not None else None

    @property
    def behind_ms(self) -> int:
        """How much earlier than the watermark the times may be of what the stage still emits."""
        return self.bound.behind_ms if self.bound is not None else 0

    @property
    def time_rules(self) -> TimeRules:
        """How the stage keeps event time."""
        return TimeRules(self.watermarks, self.timed, self.due_by, self.behind_ms)

    @property
    def own(self) -> frozenset[str]:
        """The inputs of whose rows the function says the watermark."""
        return frozenset(name for one in self.watermarks for name in one.inputs)


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
    """The columns by which the kind of state says that rows are late."""
    if shape.table is None or shape.bound is None:
        return ()
    return shape.bound.late_by(window_of(pa.schema([(each.name, to_arrow(each.type)) for each in shape.table.key])))


def _with_late(stage: Stage, shape: Shape, applied: Applied) -> Shape:
    """The schemas with that of late rows, where these go somewhere. Raises `Refused` where no row is ever late."""
    if stage.late is None:
        return shape
    if shape.bound is not None and shape.late_by and (late := shape.bound.late_rows) is not None:
        _check_output(stage.late, late[0])
        return replace(shape, emits=shape.emits | {stage.late.name: from_arrow_schema(late[0])}, late=late[1])
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
    if found and (single or each_output(stage, applied.frames)):
        # The same rows, or parts of them: what each input brought is not told apart.
        return (Watermark(tuple(columns.values()), max(one.delay_ms for one in found.values()), tuple(stage.inputs)),)
    names = tuple(stage.inputs)
    # A key column is one for all DataFrames.
    return tuple(
        Watermark((columns[at],), one.delay_ms, (names[at],), at if not single and one.column in key else None)
        for at, one in found.items()
    )


def ddl_of(rows: StructType) -> str:
    """The columns of a repartition topic as manifests keep them."""
    return ", ".join(f"`{field.name}` {field.dataType.simpleString()}" for field in rows)


def _shape(stage: Stage, key: tuple[str, ...], inputs: dict[str, StructType], applied: Applied) -> Shape:
    rows = [frame.schema for frame in applied.frames]
    arrow = [to_arrow_schema(schema, timezone="UTC") for schema in rows]
    if stage.state is None:
        if len(rows) > 1 and not each_output(stage, rows):
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
    if stage.table.ttl is not None and state.no_ttl[0]:
        why, instead = state.no_ttl
        raise Refused(f"stage {stage.name!r} has a ttl, and {why}", hint=f"leave ttl= out of its table(...): {instead}")
    check_ttl(stage.name, stage.table.ttl, bound.values)
    _check_defaults(stage, bound.values)
    table = Table(
        key=tuple(Column(name, from_arrow(arrow[0].field(name).type)) for name in key),
        values=tuple(_value(stage, field) for field in bound.values),
        partitions=stage.table.partitions,
        state=state.stored,
        compaction=stage.table.compaction,
        ttl=stage.table.ttl,
    )
    return Shape(inputs, emits, key, table, bound)


def _state(stage: Stage, state: Kind, key: Sequence[str], rows: Sequence[StructType]) -> Kind:
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
    if (by_session := state.by_session(session)) is None:
        raise Refused(
            f"{what}, and does not emit sessions when they have ended: nobody could take back one that was emitted "
            "before, when it becomes part of another",
            hint='say writes=... and event_time=slackwater.event_time(emits="final"); a later stage keeps what it gets',
        )
    return by_session


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


def _emitted(stage: Stage, bound: Bound) -> dict[str, StructType]:
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
