"""Spark's plans, walked and rebuilt from Python: which columns they need, several outputs by one pass, records' rows.

Spark reads a source again for each branch of a plan that leads to it: two DataFrames of one stream are two reads of
every record, and all that is computed before they part is computed twice. So where they part an exchange is put, of
which Spark makes one where two are the same. Then both branches read what the exchange wrote.

Two exchanges are the same only while Spark's optimiser has not moved one branch's filter or choice of columns below
its own. Metrics over all columns keep it from that: no filter passes them, and no column is superfluous to them.

Which record of a stage's input each row of its function comes from, the plan tells, too. A feed has a number for each
record, in a column that a projection hides from the function. In the plan of what the function returns, that projection
is taken away and each one above it passes the number on. So one job gives the rows of all records apart. It is right
where a row comes of one record alone: projections, filters, explode, unions, Python's functions of one row, and joins
with tables that do not stream. Any other operator may mix records, and then there is no such plan.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from ...state.failing import RECORD
from ...store.versions.column_types import in_backticks
from .exchange import to_partitions


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


@dataclass(frozen=True, slots=True)
class RecordCounts:
    """Counts the records that the batch under way of a streaming query reads. Each job over its rows reads anew."""

    scans: tuple[tuple[str, Any], ...]
    """The name of a source's input, and Spark's count of the rows of its scan, which retried tasks do not change."""

    @classmethod
    def of(cls, query: StreamingQuery) -> "RecordCounts":
        """Of the sources of a query, as they are planned for its batch."""
        plan = query._jsq.streamingQuery().lastExecution().executedPlan()
        scans = [each for each in listed(plan.collectLeaves()) if kind(each) == "MicroBatchScanExec"]
        return cls(
            tuple((json.loads(each.end().json())["input"], each.metrics().apply("numOutputRows")) for each in scans)
        )

    def now(self) -> dict[str, int]:
        """By input, what was read so far."""
        return {name: int(count.value()) for name, count in self.scans}


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


def paths(plan: Any) -> list[list[Any]]:
    """The nodes from each stream of a plan up to its root."""
    below = children(plan)
    if not below:
        return [[plan]] if plan.isStreaming() else []
    return [[*path, plan] for child in below for path in paths(child)]


def first_column(plan: Any) -> int:
    """The id of a node's first column, by which a stream is known."""
    return int(plan.output().head().exprId().id())


def optimised_paths(frame: DataFrame) -> list[list[Any]]:
    """`paths` of a streaming DataFrame's plan as Spark's optimiser would have it. It takes a few tenths of a second."""
    return paths(frame.sparkSession._jsparkSession.sessionState().optimizer().execute(plan_of(frame)))


def needed_columns(optimised: Iterable[Sequence[Any]]) -> dict[int, frozenset[str]]:
    """Of each stream of these `optimised_paths`, by its `first_column`: the names of those columns that are needed.

    Where that is not plain to see, the stream is left out.
    """
    found: dict[int, set[str] | None] = {}
    for stream, *above in optimised:
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
        # Others do not give the columns they get.
        if kind(node) not in ("Filter", "EventTimeWatermark"):
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
    spark, made = frames[0].sparkSession, dict[int, Any]()

    def replace(before: Any, after: Any) -> Any:
        for number, node in enumerate(parting):
            if before.fastEquals(node):
                if number not in made:
                    made[number] = plan_of(_exchanged(frame_of(after, spark), number))
                return made[number]
        return after

    return tuple(frame_of(rebuilt(plan, spark, replace), spark) for plan in plans)


def _partings(plans: Sequence[Any]) -> list[Any]:
    """For each stream that several plans use, the last node on the way up from it that all of these have."""
    by_stream: dict[int, list[list[Any]]] = {}
    for path in (path for plan in plans for path in paths(plan)):
        by_stream.setdefault(first_column(path[0]), []).append(path)
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
    columns = [(F.col(in_backticks(field.name)), field.dataType.simpleString()) for field in frame.schema]
    # Spark hashes whatever holds no map.
    hashable = [column.cast("string") if "map<" in ddl else column for column, ddl in columns]
    named = F.max(F.hash(*hashable)).alias("_")
    return to_partitions(frame, F.spark_partition_id() % tasks, tasks).observe(f"_once_{number}", named)


_ROW_BY_ROW = frozenset(
    {"Filter", "Generate", "SubqueryAlias", "Union", "Join", "ResolvedHint", "ArrowEvalPython", "BatchEvalPython"}
)
"""Operators that pass on all columns of what is below them, and make each row of one row of it."""


def hidden(feed: DataFrame) -> DataFrame:
    """The feed as a stage's function gets it: without the records' numbers."""
    return feed.select(*(in_backticks(name) for name in feed.columns if name != RECORD))


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
    return frame_of(plan, frame.sparkSession).select(*map(in_backticks, (*frame.columns, RECORD)))


def numbered(plan: Any, spark: SparkSession, is_feed: Callable[[Any], bool], shown: Callable[[Any], Any]) -> Any:
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
