"""Which record of a stage's input each row of its function comes from, where Spark's plan tells.

A feed has a number for each of its records, in a column that the function does not see: a projection hides it. In the
analysed plan of what the function returns, that projection is taken away and each one above it passes the number on. So
one job gives the rows of all records apart. It is right where a row comes of one record alone: projections, filters,
explode, unions, and joins with tables that do not stream. Any other operator, such as a function over whole batches,
may mix records, and then there is no such plan.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame

from .plans import children, frame_of, nodes, plan_of, rebuilt

if TYPE_CHECKING:
    pass

RECORD = "_slackwater_record"
"""The column with a record's number, a long."""

_ROW_BY_ROW = frozenset({"Filter", "Generate", "SubqueryAlias", "Union", "Join", "ResolvedHint"})
"""Operators that pass on all columns of what is below them, and make each row of one row of it."""


def hidden(feed: DataFrame) -> DataFrame:
    """The feed as a stage's function gets it: without the records' numbers."""
    return feed.select(*(name for name in feed.columns if name != RECORD))


def with_records(frame: DataFrame, feeds: Sequence[DataFrame]) -> DataFrame | None:
    """The rows of a function's DataFrame, each with the number of its record.

    Args:
        frame: What the function made of the feeds.
        feeds: What `hidden` gave it.

    Returns:
        The same columns, and `RECORD` as the last. None where the plan mixes records, or what it does is not known.
    """
    spark = frame.sparkSession
    shown = [plan_of(feed) for feed in feeds]
    if not all(_passes_on(node, shown) for node in nodes(plan_of(frame))):
        return None

    def replace(before: Any, after: Any) -> Any:
        if _is_feed(before, shown):
            return children(after)[0]
        if _kind(after) != "Project" or (number := _number(children(after)[0])) is None:
            return after
        jvm: Any = spark._jvm
        columns = jvm.org.apache.spark.api.python.PythonUtils.toSeq([*_listed(after.projectList()), number])
        return jvm.org.apache.spark.sql.catalyst.plans.logical.Project(columns, children(after)[0])

    plan = rebuilt(plan_of(frame), spark, replace)
    if _number(plan) is None:
        return None
    return frame_of(plan, spark).select(*(f"`{name}`" for name in (*frame.columns, RECORD)))


def _passes_on(node: Any, shown: Sequence[Any]) -> bool:
    """Whether a record's number comes through this node of the plan, if it comes up to it."""
    if _is_feed(node, shown):
        return True
    with_feed = sum(any(_is_feed(below, shown) for below in nodes(child)) for child in children(node))
    kind = _kind(node)
    # Two feeds in a join would be two records in a row.
    return not with_feed or kind == "Project" or (kind in _ROW_BY_ROW and (kind != "Join" or with_feed == 1))


def _is_feed(node: Any, shown: Sequence[Any]) -> bool:
    return any(node.fastEquals(feed) for feed in shown)


def _kind(node: Any) -> str:
    return str(node.getClass().getSimpleName())


def _number(node: Any) -> Any:
    """The attribute with the record's number among those that a node gives, None where it is not."""
    return next((each for each in _listed(node.output()) if each.name() == RECORD), None)


def _listed(scala: Any) -> list[Any]:
    return [scala.apply(at) for at in range(scala.size())]
