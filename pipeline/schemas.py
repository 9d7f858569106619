"""What flows between stages: the schema of every stage's rows and of every repartition topic.

A user's functions are applied to empty streams once, upstream first, so that one stage can also run alone. Here, too,
what would keep state where no snapshot sees it is refused, before anything is written.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from ..store import keys
from ..store.errors import NotFound, Refused, Usage
from ..store.hashing import hash_keys
from ..store.manifest import Column, Table
from ..store.types import from_arrow
from . import lifetime
from .app import App, Repartition, Stage, Topic
from .blame import told_as_the_users
from .fanin import tag
from .source import TOPIC_SCHEMA, parse_ddl
from .states import BoundState

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Applied", "Shape", "apply", "shapes"]

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


@dataclass(frozen=True, slots=True)
class Shape:
    """The schemas of one stage.

    Attributes:
        inputs: Rows that the function gets, by the input's declared name.
        emits: Rows that go to the stage's outputs.
        key: The state's key columns; none without state.
        table: The stage's table; None without state.
        bound: The state, bound to the rows that the function gives.
    """

    inputs: dict[str, StructType]
    emits: StructType
    key: tuple[str, ...]
    table: Table | None
    bound: BoundState | None


@dataclass(frozen=True, slots=True)
class Applied:
    """What a stage's function makes of its inputs.

    Attributes:
        frames: As returned: one DataFrame, or one for each input.
        sources: The inputs' names in the order in which Spark numbers the sources of the query.
    """

    frames: tuple[DataFrame, ...]
    sources: tuple[str, ...]

    def rows(self, key: Sequence[str]) -> DataFrame:
        """All rows in one DataFrame, for a micro-batch is one job."""
        return tag(self.frames, key)


def shapes(app: App, spark: SparkSession) -> dict[str, Shape]:
    """Schemas of all stages of an app, by name, upstream first.

    Raises:
        NotFound: A key or a state names a column that the function does not give.
        Refused: A function fails, gives no DataFrame, or keeps state of its own.
        Usage: Inputs that come together have keys of different types.
    """
    known: dict[str, Shape] = {}
    with tempfile.TemporaryDirectory(prefix="slackwater-") as empty:
        for stage in app.in_order():
            inputs = {
                name: parse_ddl(TOPIC_SCHEMA) if isinstance(one, Topic) else known[app.writer_of(one).name].emits
                for name, one in stage.inputs.items()
            }
            # A folder without files is the cheapest stream there is: no process of its own, and never started.
            streams = {
                name: spark.readStream.schema(schema).parquet(f"file:{empty}") for name, schema in inputs.items()
            }
            applied = apply(stage, streams)
            key = app.key_of(stage) if stage.state is not None else ()
            known[stage.name] = _shape(stage, key, inputs, applied)
    return known


def apply(stage: Stage, inputs: Mapping[str, DataFrame]) -> Applied:
    """The stage's function applied to one DataFrame for each input. Raises `Refused` as `shapes` does."""
    with told_as_the_users(f"stage {stage.name!r}", stage.transform):
        made = stage.transform(*inputs.values())
        frames = tuple(made) if isinstance(made, tuple | list) else (made,)
        _check_frames(stage, frames)
        for frame in frames:
            frame.schema  # noqa: B018  Spark analyses the plan here
    for frame in frames:
        if not frame.isStreaming:
            raise Refused(
                f"stage {stage.name!r} returned a DataFrame that does not come from its stream",
                hint="build what it returns from the DataFrame it is given",
            )
        _refuse_state(stage, _plan(frame))
    return Applied(frames, _sources(stage, inputs, frames))


def _check_frames(stage: Stage, frames: tuple[object, ...]) -> None:
    for frame in frames:
        if not isinstance(frame, DataFrame):
            raise Refused(f"stage {stage.name!r} returned {type(frame).__name__}; expected a DataFrame")
    if len(frames) not in (1, len(stage.reads)):
        raise Refused(
            f"stage {stage.name!r} returned {len(frames)} DataFrames; expected one, or one for each of its "
            f"{len(stage.reads)} inputs"
        )


def _plan(frame: DataFrame) -> Any:
    return frame._jdf.queryExecution().analyzed()


def _nodes(plan: Any) -> Iterator[Any]:
    """A plan's nodes, each before what is below it, from left to right: the order in which Spark numbers sources."""
    yield plan
    for child in _each(plan.children()):
        yield from _nodes(child)


def _each(seq: Any) -> Iterator[Any]:
    """The elements of a Scala Seq."""
    return (seq.apply(at) for at in range(seq.size()))


def _refuse_state(stage: Stage, plan: Any) -> None:
    for node in _nodes(plan):
        name = node.getClass().getSimpleName()
        if not node.isStreaming():
            continue
        if name in _STATEFUL:
            raise Refused(
                f"stage {stage.name!r} uses a streaming {name}, whose state no snapshot would see",
                hint=f"say it as {_STATEFUL[name]} on the stage, or do it on the rows of one event",
            )
        if name != "Union" and sum(child.isStreaming() for child in _each(node.children())) > 1:
            raise Refused(
                f"stage {stage.name!r} uses a {name} of two streams, whose state no snapshot would see",
                hint="return the DataFrames as a tuple, one for each input, and bring them together in "
                "state=slackwater.update(...), whose function gets the rows of each",
            )


def _sources(stage: Stage, inputs: Mapping[str, DataFrame], frames: tuple[DataFrame, ...]) -> tuple[str, ...]:
    """The inputs' names in the order of the streams in the plan. Raises `Refused` unless each is there once."""
    names = {_first_column(_plan(frame)): name for name, frame in inputs.items()}
    leaves = [leaf for frame in frames for leaf in _each(_plan(frame).collectLeaves()) if leaf.isStreaming()]
    # A stream that is used again gets new column ids the second time.
    found = [names.get(_first_column(leaf)) for leaf in leaves]
    for name in inputs:
        if name not in found:
            raise Refused(
                f"stage {stage.name!r} reads {name!r}, but nothing it returns comes from there",
                hint="leave the input out of reads=, or use it",
            )
    if len(found) > len(inputs):
        raise Refused(
            f"stage {stage.name!r} uses its {'stream' if len(inputs) == 1 else 'streams'} {len(found)} times; "
            "each use would read all of its input again",
            hint="write it as one pass: a union of selects becomes one select with explode(array(...))",
        )
    return tuple(name for name in found if name is not None)


def _first_column(plan: Any) -> int:
    return int(plan.output().head().exprId().id())


def _shape(stage: Stage, key: tuple[str, ...], inputs: dict[str, StructType], applied: Applied) -> Shape:
    rows = [frame.schema for frame in applied.frames]
    arrow = [to_arrow_schema(schema, timezone="UTC") for schema in rows]
    if stage.state is None:
        if len(rows) > 1:
            raise Refused(
                f"stage {stage.name!r} returned {len(rows)} DataFrames, and has no state to bring them together",
                hint="return their union: a.unionByName(b, allowMissingColumns=True)",
            )
        for output in stage.writes:
            _check_key(f"repartition topic {output.name!r}", output, arrow[0])
        return Shape(inputs, rows[0], (), None, None)
    for schema in arrow:
        _check_columns(f"stage {stage.name!r}", key, schema)
    read = {name: to_arrow_schema(inputs[name], timezone="UTC") for name in stage.channels}
    _check_same_types(stage, key, read if not stage.key else {})
    _check_same_types(stage, key, dict(zip(stage.inputs, arrow, strict=True)) if len(arrow) > 1 else {})
    bound = stage.state.bind(arrow, key)
    for output in stage.writes:
        _check_key(f"repartition topic {output.name!r}", output, bound.emits)
    keys.check_columns(f"stage {stage.name!r}", [*key, *bound.values.names])
    table = Table(
        key=tuple(Column(name, from_arrow(arrow[0].field(name).type)) for name in key),
        values=tuple(Column(field.name, from_arrow(field.type)) for field in bound.values),
        partitions=stage.partitions,
        state=stage.state.describe(),
        compaction=stage.compaction,
        ttl=lifetime.bind(stage.name, stage.ttl_ms, stage.ttl_by, bound.values),
    )
    return Shape(inputs, from_arrow_schema(bound.emits), key, table, bound)


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


def _check_key(what: str, output: Repartition, rows: pa.Schema) -> None:
    _check_columns(what, output.key, rows)


def _check_columns(what: str, key: tuple[str, ...], rows: pa.Schema) -> None:
    for name in key:
        if name not in rows.names:
            raise NotFound("key column", name, rows.names, hint=f"{what} is keyed by it")
    # Hashing no rows tells whether the types can be hashed.
    hash_keys(rows.empty_table(), key)
