"""Spark's plans, walked and rebuilt from Python; and several DataFrames of one stream, made by one pass over it.

Spark reads a source again for each branch of a plan that leads to it: two DataFrames of one stream are two reads of
every record, and all that is computed before they part is computed twice. So where they part an exchange is put, of
which Spark makes one where two are the same. Then both branches read what the exchange wrote.

Two exchanges are the same only while Spark's optimiser has not moved one branch's filter or choice of columns below
its own. Metrics over all columns keep it from that: no filter passes them, and no column is superfluous to them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructField


def plan_of(frame: DataFrame) -> Any:
    """The analysed plan of a DataFrame: a node that has its children below it."""
    return frame._jdf.queryExecution().analyzed()


def optimised(frame: DataFrame) -> Any:
    """The plan that Spark computes: without columns that nobody needs, and with Python functions as nodes."""
    return frame._jdf.queryExecution().optimizedPlan()


def frame_of(plan: Any, spark: SparkSession) -> DataFrame:
    """A DataFrame of this plan."""
    jvm: Any = spark._jvm
    return DataFrame(jvm.org.apache.spark.sql.classic.Dataset.ofRows(spark._jsparkSession, plan), spark)


def listed(sequence: Any) -> list[Any]:
    """A sequence of Scala's as a list."""
    return [sequence.apply(at) for at in range(sequence.size())]


def sequence(spark: SparkSession, items: Iterable[Any]) -> Any:
    """Items as a sequence of Scala's."""
    jvm: Any = spark._jvm
    return jvm.org.apache.spark.api.python.PythonUtils.toSeq([*items])


def kind(node: Any) -> str:
    """What a node, or an expression, is called: `Project`, `Cast`."""
    return str(node.getClass().getSimpleName())


def children(plan: Any) -> list[Any]:
    """What is right below a node, from left to right."""
    return listed(plan.children())


def nodes(plan: Any) -> Iterator[Any]:
    """A plan's nodes, each before what is below it, from left to right: the order in which Spark numbers sources."""
    yield plan
    for child in children(plan):
        yield from nodes(child)


def ways(plan: Any) -> list[list[Any]]:
    """The nodes from each stream of a plan up to its root."""
    below = children(plan)
    if not below:
        return [[plan]] if plan.isStreaming() else []
    return [[*way, plan] for child in below for way in ways(child)]


def first_column(plan: Any) -> int:
    """The id of a node's first column, by which a stream is known."""
    return int(plan.output().head().exprId().id())


_PASSING = ("Filter", "EventTimeWatermark")
"""Nodes that give the columns they get."""


def needed_columns(frame: DataFrame) -> dict[int, frozenset[str]]:
    """Of each stream that a DataFrame is made of, by its `first_column`: the names of those columns that it needs.

    Where that is not plain to see in its optimised plan, the stream is left out.
    """
    optimiser = frame.sparkSession._jsparkSession.sessionState().optimizer()
    found: dict[int, set[str] | None] = {}
    for stream, *above in ways(optimiser.execute(plan_of(frame))):
        # One that is used twice needs what either use does.
        known, more = found.setdefault(first_column(stream), set()), _needed(above)
        found[first_column(stream)] = None if known is None or more is None else known | more
    return {stream: frozenset(names) for stream, names in found.items() if names is not None}


def _needed(above: Sequence[Any]) -> set[str] | None:
    """What the nodes above a stream, from it upwards, need of its columns; None for what nobody knows."""
    names: set[str] = set()
    for node in above:
        names |= {column.name() for column in listed(node.references().toSeq())}
        if kind(node) == "Project":
            return names
        if kind(node) not in _PASSING:
            break
    return None


def rebuilt(plan: Any, spark: SparkSession, replace: Callable[[Any, Any], Any]) -> Any:
    """The plan with each node replaced, from below: `replace` gets it as it was, and with its new children."""
    before = children(plan)
    after = [rebuilt(child, spark, replace) for child in before]
    changed = any(new is not old for old, new in zip(before, after, strict=True))
    node = plan.withNewChildren(sequence(spark, after)) if changed else plan
    return replace(plan, node)


def once(frames: Sequence[DataFrame]) -> tuple[DataFrame, ...]:
    """The same rows; united into one DataFrame, these read each stream once.

    Each of them uses a stream at most once. What they share, they have by using the same DataFrame.
    """
    plans = [plan_of(frame) for frame in frames]
    parting = _partings(plans)
    if not parting:
        return tuple(frames)
    spark = frames[0].sparkSession
    made: list[Any] = [None] * len(parting)

    def replace(before: Any, after: Any) -> Any:
        for number, node in enumerate(parting):
            if before.fastEquals(node):
                if made[number] is None:
                    made[number] = plan_of(_exchanged(frame_of(after, spark), number))
                return made[number]
        return after

    return tuple(frame_of(rebuilt(plan, spark, replace), spark) for plan in plans)


def _partings(plans: Sequence[Any]) -> list[Any]:
    """For each stream that several plans use, the last node on the way up from it that all of these have."""
    by_stream: dict[int, list[list[Any]]] = {}
    for plan in plans:
        for way in ways(plan):
            by_stream.setdefault(first_column(way[0]), []).append(way)
    found: list[Any] = []
    for used in by_stream.values():
        if len(used) > 1:
            levels = zip(*used, strict=False)
            shared = [level[0] for level in takewhile(lambda level: all(map(level[0].fastEquals, level[1:])), levels)]
            node = shared[-1]
            if not any(node.fastEquals(other) for other in found):
                found.append(node)
    return found


def _exchanged(frame: DataFrame, number: int) -> DataFrame:
    """The same rows behind an exchange that several branches can share."""
    tasks = frame.sparkSession.sparkContext.defaultParallelism
    # A number that says nothing, but names every column, and that no rule of the optimiser simplifies.
    named = F.max(F.hash(*(_hashable(field) for field in frame.schema))).alias("_")
    return frame.repartitionById(tasks, F.spark_partition_id()).observe(f"_once_{number}", named)


def _hashable(field: StructField) -> Column:
    column = F.col(f"`{field.name}`")
    # Spark hashes whatever holds no map.
    return column.cast("string") if "map<" in field.dataType.simpleString() else column
