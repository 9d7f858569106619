"""What flows between stages: the schema of every stage's rows and of every repartition topic.

A user's functions are applied to empty streams once, upstream first, so that one stage can also run alone. Here, too,
what would keep state where no snapshot sees it is refused, before anything is written.
"""

from __future__ import annotations

import json
import tempfile
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from ..store.errors import NotFound, Refused
from ..store.hashing import hash_keys
from ..store.manifest import Column, Table
from ..store.types import from_arrow
from .app import App, Repartition, Stage, Topic
from .source import TOPIC_SCHEMA, parse_ddl
from .states import BoundState

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Shape", "apply", "shapes"]

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
        input: Rows that the function gets.
        rows: Rows that the function gives.
        emits: Rows that go to the stage's outputs.
        table: The stage's table; None without state.
        bound: The state, bound to `rows`.
    """

    input: StructType
    rows: StructType
    emits: StructType
    table: Table | None
    bound: BoundState | None


def shapes(app: App, spark: SparkSession) -> dict[str, Shape]:
    """Schemas of all stages of an app, by name, in order of declaration.

    Raises:
        NotFound: A key or a state names a column that the function does not give.
        Refused: A function fails, gives no DataFrame, or keeps state of its own.
    """
    known: dict[str, Shape] = {}
    with tempfile.TemporaryDirectory(prefix="slackwater-") as empty:
        for stage in app.stages.values():
            if isinstance(stage.reads, Topic):
                schema = parse_ddl(TOPIC_SCHEMA)
            else:
                schema = known[app.writer_of(stage.reads).name].emits
            # A folder without files is the cheapest stream there is: no process of its own, and never started.
            stream = spark.readStream.schema(schema).parquet(f"file:{empty}")
            known[stage.name] = _shape(stage, schema, apply(stage, stream).schema)
    return known


def apply(stage: Stage, source: DataFrame) -> DataFrame:
    """The stage's function applied to a DataFrame. Raises `Refused` as `shapes` does."""
    try:
        made = stage.transform(source)
        if not isinstance(made, DataFrame):
            raise Refused(f"stage {stage.name!r} returned {type(made).__name__}; expected a DataFrame")
        made.schema  # noqa: B018  Spark analyses the plan here
    except AnalysisException as error:
        raise Refused(f"stage {stage.name!r} does not run: {error.getMessage()}") from error
    if not made.isStreaming:
        raise Refused(
            f"stage {stage.name!r} returned a DataFrame that does not come from its stream",
            hint="build what it returns from the DataFrame it is given",
        )
    _refuse_state(stage, made)
    return made


def _refuse_state(stage: Stage, made: DataFrame) -> None:
    plan = json.loads(made._jdf.queryExecution().analyzed().toJSON())
    names = [node["class"].rsplit(".", 1)[-1] for node in plan]
    for name in names:
        if name in _STATEFUL:
            raise Refused(
                f"stage {stage.name!r} uses a streaming {name}, whose state no snapshot would see",
                hint=f"say it as {_STATEFUL[name]} on the stage, or do it on the rows of one event",
            )
    streams = sum(name.startswith(("StreamingRelation", "StreamingDataSource")) for name in names)
    if streams > 1:
        raise Refused(
            f"stage {stage.name!r} uses its stream {streams} times; each use would read all of its input again",
            hint="write it as one pass: a union of selects becomes one select with explode(array(...))",
        )


def _shape(stage: Stage, source: StructType, rows: StructType) -> Shape:
    arrow = to_arrow_schema(rows, timezone="UTC")
    if stage.state is None:
        for output in stage.writes:
            _check_key(f"repartition topic {output.name!r}", output, arrow)
        return Shape(source, rows, rows, None, None)
    _check_columns(f"stage {stage.name!r}", stage.key, arrow)
    bound = stage.state.bind(arrow, stage.key)
    for output in stage.writes:
        _check_key(f"repartition topic {output.name!r}", output, bound.emits)
    table = Table(
        key=tuple(Column(name, from_arrow(arrow.field(name).type)) for name in stage.key),
        values=tuple(Column(field.name, from_arrow(field.type)) for field in bound.values),
        partitions=stage.partitions,
        state=stage.state.describe(),
    )
    return Shape(source, rows, from_arrow_schema(bound.emits), table, bound)


def _check_key(what: str, output: Repartition, rows: pa.Schema) -> None:
    _check_columns(what, output.key, rows)


def _check_columns(what: str, key: tuple[str, ...], rows: pa.Schema) -> None:
    for name in key:
        if name not in rows.names:
            raise NotFound("key column", name, rows.names, hint=f"{what} is keyed by it")
    # Hashing no rows tells whether the types can be hashed.
    hash_keys(rows.empty_table(), key)
