"""Reads and rewrites Spark's query plans: finds needed columns, shares streams, traces rows to records.

Spark reads a source once for each branch of a plan that leads to it: two DataFrames of one stream read every record
twice, and compute their common part twice. So an exchange is inserted at the point where the branches separate. Spark
computes equal exchanges once, and both branches read the result.

Two exchanges are equal only if Spark's optimiser has not pushed a filter or projection of one branch below its
exchange. An observed metric over all columns prevents this: no filter can be pushed through it, and it needs every
column.

The plan also determines the input record of each row that the function returns. Each input has a column with record
numbers, which a projection hides from the function. `add_record_numbers` removes this projection from the function's
plan, and adds the number to each projection above. So one job returns the rows of all records, each with its record's
number. This is correct only if a row comes from one record: for projections, filters, explode, unions, row-wise Python
functions, and joins with tables that do not stream. Any other operator may mix records, so no such plan exists.
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
from ...store.sst.hashing import SHARE_GRANULARITY, KeyShare
from ...store.versions.column_types import quote_for_spark
from .placement import repartition_by_number


def analysed_plan(frame: DataFrame) -> Any:
    return frame._jdf.queryExecution().analyzed()


def optimised_plan(frame: DataFrame) -> Any:
    return frame._jdf.queryExecution().optimizedPlan()


def frame_of(plan: Any, spark: SparkSession) -> DataFrame:
    jvm: Any = spark._jvm
    return DataFrame(jvm.org.apache.spark.sql.classic.Dataset.ofRows(spark._jsparkSession, plan), spark)


def to_list(sequence: Any) -> list[Any]:
    return [sequence.apply(at) for at in range(sequence.size())]


def to_scala_seq(spark: SparkSession, items: Iterable[Any]) -> Any:
    jvm: Any = spark._jvm
    return jvm.org.apache.spark.api.python.PythonUtils.toSeq([*items])


@dataclass(frozen=True, slots=True)
class RecordCounts:
    """Counts the records that the current batch of a streaming query reads. Each job of the batch adds its records."""

    scans: tuple[tuple[str, Any], ...]

    @classmethod
    def from_query(cls, query: StreamingQuery) -> "RecordCounts":
        plan = query._jsq.streamingQuery().lastExecution().executedPlan()
        scans = [node for node in to_list(plan.collectLeaves()) if class_name(node) == "MicroBatchScanExec"]
        return cls(
            tuple((json.loads(scan.end().json())["input"], scan.metrics().apply("numOutputRows")) for scan in scans)
        )

    def read(self) -> dict[str, int]:
        return {name: int(count.value()) for name, count in self.scans}


def class_name(node: Any) -> str:
    return str(node.getClass().getSimpleName())


def children(plan: Any) -> list[Any]:
    return to_list(plan.children())


def nodes(plan: Any) -> Iterator[Any]:
    """Yield a plan's nodes in pre-order, from left to right: the order in which Spark numbers sources."""
    yield plan
    for child in children(plan):
        yield from nodes(child)


def stream_paths(plan: Any) -> list[list[Any]]:
    """Return, for each stream of a plan, the nodes from the stream up to the root."""
    below = children(plan)
    if not below:
        return [[plan]] if plan.isStreaming() else []
    return [[*path, plan] for child in below for path in stream_paths(child)]


def first_column_id(plan: Any) -> int:
    return int(plan.output().head().exprId().id())


def optimised_stream_paths(frame: DataFrame) -> list[list[Any]]:
    """Return `stream_paths` of a streaming DataFrame's optimised plan. The call takes a few tenths of a second."""
    return stream_paths(frame.sparkSession._jsparkSession.sessionState().optimizer().execute(analysed_plan(frame)))


def needed_columns(optimised: Iterable[Sequence[Any]]) -> dict[int, frozenset[str]]:
    """Return the columns that are needed from each stream, by the stream's `first_column_id`.

    `optimised` is the result of `optimised_stream_paths`. A stream whose needed columns are unknown is left out.
    """
    columns: dict[int, set[str] | None] = {}
    for stream, *above in optimised:
        # A stream with two uses needs the columns of both.
        previous, needed = columns.setdefault(first_column_id(stream), set()), _needed_by_nodes(above)
        columns[first_column_id(stream)] = None if previous is None or needed is None else previous | needed
    return {stream: frozenset(names) for stream, names in columns.items() if names is not None}


def _needed_by_nodes(above: Sequence[Any]) -> set[str] | None:
    names: set[str] = set()
    for node in above:
        names |= {column.name() for column in to_list(node.references().toSeq())}
        if class_name(node) == "Project":
            return names
        # Other nodes do not pass on the columns of their inputs.
        if class_name(node) not in ("Filter", "EventTimeWatermark"):
            break
    return None


def rebuild(plan: Any, spark: SparkSession, replace: Callable[[Any, Any], Any]) -> Any:
    """Rebuild a plan bottom-up. `replace` gets each old node, and a copy of it with the new children."""
    old_children = children(plan)
    new_children = [rebuild(child, spark, replace) for child in old_children]
    changed = any(new is not old for old, new in zip(old_children, new_children, strict=True))
    node = plan.withNewChildren(to_scala_seq(spark, new_children)) if changed else plan
    return replace(plan, node)


def share_streams(frames: Sequence[DataFrame]) -> tuple[DataFrame, ...]:
    """Return DataFrames with the same rows as `frames`, whose union reads each stream once.

    Each DataFrame may use a stream at most once. A computation is shared only between DataFrames that derive from one
    common DataFrame.
    """
    plans = [analysed_plan(frame) for frame in frames]
    parting = _branch_points(plans)
    if not parting:
        return tuple(frames)
    spark, exchanges = frames[0].sparkSession, dict[int, Any]()

    def replace(old: Any, new: Any) -> Any:
        for number, node in enumerate(parting):
            if old.fastEquals(node):
                if number not in exchanges:
                    exchanges[number] = analysed_plan(_add_exchange(frame_of(new, spark), number))
                return exchanges[number]
        return new

    return tuple(frame_of(rebuild(plan, spark, replace), spark) for plan in plans)


def _branch_points(plans: Sequence[Any]) -> list[Any]:
    """Return, for each stream that several plans use, the highest node above the stream that all these plans share."""
    by_stream: dict[int, list[list[Any]]] = {}
    for path in (path for plan in plans for path in stream_paths(plan)):
        by_stream.setdefault(first_column_id(path[0]), []).append(path)
    partings: list[Any] = []
    for used in by_stream.values():
        if len(used) > 1:
            levels = zip(*used, strict=False)
            shared = [level[0] for level in takewhile(lambda level: all(map(level[0].fastEquals, level[1:])), levels)]
            node = shared[-1]
            if not any(node.fastEquals(other) for other in partings):
                partings.append(node)
    return partings


def _add_exchange(frame: DataFrame, number: int) -> DataFrame:
    tasks = frame.sparkSession.sparkContext.defaultParallelism
    # A meaningless metric that refers to every column and that no optimiser rule simplifies.
    columns = [(F.col(quote_for_spark(field.name)), field.dataType.simpleString()) for field in frame.schema]
    # Spark cannot hash maps.
    hashable = [column.cast("string") if "map<" in ddl else column for column, ddl in columns]
    named = F.max(F.hash(*hashable)).alias("_")
    return repartition_by_number(frame, F.spark_partition_id() % tasks, tasks).observe(f"_once_{number}", named)


_ROW_BY_ROW = frozenset(
    {"Filter", "Generate", "SubqueryAlias", "Union", "Join", "ResolvedHint", "ArrowEvalPython", "BatchEvalPython"}
)
"""Operators that keep all columns of their input, and compute an output row from a single input row."""


def hide_record_numbers(frame: DataFrame) -> DataFrame:
    return frame.select(*(quote_for_spark(name) for name in frame.columns if name != RECORD))


def with_record_numbers(frame: DataFrame, feeds: Sequence[DataFrame]) -> DataFrame | None:
    """Add the record number, as a column `RECORD`, to the rows of a function's DataFrame.

    `feeds` are the DataFrames that the function got, without record numbers. Returns None if the plan mixes records, or
    has an unknown operator.
    """
    shown = [analysed_plan(hidden_feed) for hidden_feed in feeds]
    plan = add_record_numbers(
        analysed_plan(frame),
        frame.sparkSession,
        lambda node: any(node.fastEquals(plan) for plan in shown),
        lambda node: children(node)[0],
    )
    if plan is None:
        return None
    return frame_of(plan, frame.sparkSession).select(*map(quote_for_spark, (*frame.columns, RECORD)))


def add_record_numbers(
    plan: Any, spark: SparkSession, is_feed: Callable[[Any], bool], shown: Callable[[Any], Any]
) -> Any:
    """Add the column `RECORD` to a plan; None if the plan mixes records, or has an unknown operator.

    `is_feed` returns True for the plan of an input; `shown` returns an input's plan with record numbers.
    """

    def passes_on(node: Any) -> bool:
        if is_feed(node):
            return True
        with_feed = sum(any(is_feed(below) for below in nodes(child)) for child in children(node))
        operator = class_name(node)
        # A join of two feeds would make a row from two records.
        return (
            not with_feed
            or operator == "Project"
            or (operator in _ROW_BY_ROW and (operator != "Join" or with_feed == 1))
        )

    def replace(old: Any, new: Any) -> Any:
        if is_feed(old):
            return shown(new)
        if (
            class_name(new) != "Project"
            or record_number_attribute(new) is not None
            or (number := record_number_attribute(children(new)[0])) is None
        ):
            return new
        jvm: Any = spark._jvm
        columns = to_scala_seq(spark, [*to_list(new.projectList()), number])
        return jvm.org.apache.spark.sql.catalyst.plans.logical.Project(columns, children(new)[0])

    if not all(map(passes_on, nodes(plan))):
        return None
    result = rebuild(plan, spark, replace)
    return result if record_number_attribute(result) is not None else None


def record_number_attribute(node: Any) -> Any:
    return next((attribute for attribute in to_list(node.output()) if attribute.name() == RECORD), None)


_SEED = 42


def filter_by_share(frame: DataFrame, share: KeyShare) -> DataFrame:
    hashed = F.xxhash64(*(F.col(quote_for_spark(name)) for name in share.columns))
    return frame.where(F.pmod(hashed, F.lit(SHARE_GRANULARITY)) < share.parts)


def needed_shares(optimised: Iterable[Sequence[Any]]) -> dict[int, KeyShare]:
    """Return the fraction of keys (by hash) that is needed from each stream, by the stream's `first_column_id`.

    `optimised` is the result of `optimised_stream_paths`. Streams from which all rows are needed are left out. Each
    stream occurs once, because a second use of a stream has different column ids.
    """
    filters = {
        first_column_id(stream): above[0] for stream, *above in optimised if above and class_name(above[0]) == "Filter"
    }
    shares = {stream: [*_shares_of_condition(node.condition())] for stream, node in filters.items()}
    return {stream: candidates[0] for stream, candidates in shares.items() if candidates}


def _shares_of_condition(condition: Any) -> Iterator[KeyShare]:
    """Yield the fractions of keys (`xxhash64(key) % granularity < n`) to which a filter restricts a source."""
    if class_name(condition) == "And":
        yield from (share for side in children(condition) for share in _shares_of_condition(side))
    elif class_name(condition) == "LessThan":
        remainder, parts = children(condition)
        if class_name(remainder) == "Pmod" and class_name(parts) == "Literal":
            hashed, shares = children(remainder)
            whole = (
                class_name(hashed) == "XxHash64" and hashed.seed() == _SEED and str(shares) == str(SHARE_GRANULARITY)
            )
            columns = [_hashed_column(expression) for expression in children(hashed)] if whole else [""]
            if all(columns):
                yield KeyShare(tuple(columns), int(parts.value()))


def _hashed_column(expression: Any) -> str:
    """Return the source column whose hash equals the expression's hash; empty if there is none.

    Spark hashes the bytes of a string, so a cast from binary does not change the hash.
    """
    if class_name(expression) == "Cast" and expression.dataType().simpleString() == "string":
        (below,) = children(expression)
        if below.dataType().simpleString() != "binary":
            return ""
        expression = below
    return str(expression.name()) if class_name(expression) == "AttributeReference" else ""
