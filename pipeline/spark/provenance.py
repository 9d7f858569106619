"""Which record of a stage's input each row of its function comes from, where Spark's plan tells.

A feed has a number for each of its records, in a column that the function does not see: a projection hides it. In the
plan of what the function returns, that projection is taken away and each one above it passes the number on. So one job
gives the rows of all records apart. It is right where a row comes of one record alone: projections, filters, explode,
unions, Python's functions of one row, and joins with tables that do not stream. Any other operator, such as a function
over whole batches, may mix records, and then there is no such plan.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame

from ...fold.failing import RECORD
from .plans import children, frame_of, kind, listed, nodes, plan_of, rebuilt, sequence

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    Feed = Callable[[Any], bool]

_ROW_BY_ROW = frozenset(
    {"Filter", "Generate", "SubqueryAlias", "Union", "Join", "ResolvedHint", "ArrowEvalPython", "BatchEvalPython"}
)
"""Operators that pass on all columns of what is below them, and make each row of one row of it."""


def hidden(feed: DataFrame) -> DataFrame:
    """The feed as a stage's function gets it: without the records' numbers."""
    return feed.select(*(name for name in feed.columns if name != RECORD))


def with_records(frame: DataFrame, feeds: Sequence[DataFrame]) -> DataFrame | None:
    """The rows of a function's DataFrame, each with the number of its record: the same columns, and `RECORD` behind.

    `feeds` are what `hidden` gave the function. None where the plan mixes records, or what it does is not known.
    """
    shown = [plan_of(feed) for feed in feeds]
    plan = numbered(
        plan_of(frame),
        frame.sparkSession,
        lambda node: any(node.fastEquals(feed) for feed in shown),
        lambda feed: children(feed)[0],
    )
    if plan is None:
        return None
    return frame_of(plan, frame.sparkSession).select(*(f"`{name}`" for name in (*frame.columns, RECORD)))


def numbered(plan: Any, spark: SparkSession, is_feed: Feed, shown: Callable[[Any], Any]) -> Any:
    """A plan over feeds with `RECORD` among its columns; None where it mixes records, or what it does is not known.

    `is_feed` says whether a node is a feed, `shown` gives the feed with its records' numbers.
    """

    def passes_on(node: Any) -> bool:
        """Whether a record's number comes through this node, if it comes up to it."""
        if is_feed(node):
            return True
        with_feed = sum(any(is_feed(below) for below in nodes(child)) for child in children(node))
        found = kind(node)
        # Two feeds in a join would be two records in a row.
        return not with_feed or found == "Project" or (found in _ROW_BY_ROW and (found != "Join" or with_feed == 1))

    def replace(before: Any, after: Any) -> Any:
        if is_feed(before):
            return shown(after)
        if (
            kind(after) != "Project"
            or number_of(after) is not None
            or (number := number_of(children(after)[0])) is None
        ):
            return after
        jvm: Any = spark._jvm
        columns = sequence(spark, [*listed(after.projectList()), number])
        return jvm.org.apache.spark.sql.catalyst.plans.logical.Project(columns, children(after)[0])

    if not all(map(passes_on, nodes(plan))):
        return None
    found = rebuilt(plan, spark, replace)
    return found if number_of(found) is not None else None


def number_of(node: Any) -> Any:
    """The attribute with the record's number among those that a node gives, None where it is not."""
    return next((each for each in listed(node.output()) if each.name() == RECORD), None)
