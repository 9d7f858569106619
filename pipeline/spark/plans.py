"""Spark's plans, walked and rebuilt from Python."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


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


def first_column(plan: Any) -> int:
    """The id of a node's first column, by which a stream is known."""
    return int(plan.output().head().exprId().id())


def rebuilt(plan: Any, spark: SparkSession, replace: Callable[[Any, Any], Any]) -> Any:
    """The plan with each node replaced, from below: `replace` gets it as it was, and with its new children."""
    before = children(plan)
    after = [rebuilt(child, spark, replace) for child in before]
    changed = any(new is not old for old, new in zip(before, after, strict=True))
    node = plan.withNewChildren(sequence(spark, after)) if changed else plan
    return replace(plan, node)
