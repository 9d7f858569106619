"""Several DataFrames made of the same stream, from one pass over it.

Spark reads a source again for each branch of a plan that leads to it: two DataFrames of one stream are two reads of
every record, and all that is computed before they part is computed twice. So where they part an exchange is put, of
which Spark makes one where two are the same. Then both branches read what the exchange wrote.

Two exchanges are the same only while Spark's optimiser has not moved one branch's filter or choice of columns below
its own. Metrics over all columns keep it from that: no filter passes them, and no column is superfluous to them.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F

from .plans import first_column, frame_of, plan_of, rebuilt, ways

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructField


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
