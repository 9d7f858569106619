"""Spark's analysed plans, walked and rebuilt from Python."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def plan_of(frame: DataFrame) -> Any:
    """The analysed plan of a DataFrame: a node that has its children below it."""
    return frame._jdf.queryExecution().analyzed()


def frame_of(plan: Any, spark: SparkSession) -> DataFrame:
    """A DataFrame of this plan."""
    jvm: Any = spark._jvm
    return DataFrame(jvm.org.apache.spark.sql.classic.Dataset.ofRows(spark._jsparkSession, plan), spark)


def children(plan: Any) -> tuple[Any, ...]:
    """What is right below a node, from left to right."""
    below = plan.children()
    return tuple(below.apply(at) for at in range(below.size()))


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
    jvm: Any = spark._jvm
    before = children(plan)
    after = [rebuilt(child, spark, replace) for child in before]
    changed = any(new is not old for old, new in zip(before, after, strict=True))
    node = plan.withNewChildren(jvm.org.apache.spark.api.python.PythonUtils.toSeq(after)) if changed else plan
    return replace(plan, node)
