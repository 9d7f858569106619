"""What `withWatermark` says in a stage's function: which column of its rows is their event time, and the delay.

Spark keeps it in the plan, as a node and as metadata of the column. The query keeps no state that would need it, so
Spark makes nothing of it; the stage does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...errors import Refused
from .plans import nodes, plan_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

_DELAY = "spark.watermarkDelayMs"
_NODE = "EventTimeWatermark"


@dataclass(frozen=True, slots=True)
class Declared:
    """A watermark on the rows of one DataFrame: the column that is their event time, and the delay."""

    column: str
    delay_ms: int


def declared(stage: str, frames: Sequence[DataFrame]) -> tuple[Declared | None, ...]:
    """Of each DataFrame that a stage's function returned, its watermark. Raises `Refused` where it cannot be kept."""
    return tuple(_declared(stage, plan_of(frame), frame.schema) for frame in frames)


def _declared(stage: str, plan: Any, schema: StructType) -> Declared | None:
    count = sum(map(_is_watermark, nodes(plan)))
    if not count:
        return None
    for node in nodes(plan):
        if node.getClass().getSimpleName() == "Union" and any(map(_is_watermark, nodes(node))):
            raise Refused(
                f"stage {stage!r} unites DataFrames that have watermarks of their own, whose rows nobody could tell "
                "apart any more",
                hint="say withWatermark of the union; or return a tuple of the DataFrames, for state=update(...)",
            )
    if count > 1:
        raise Refused(
            f"stage {stage!r} says withWatermark {count} times of the same rows", hint="leave all but one out"
        )
    for field in schema:
        if _DELAY in field.metadata and field.dataType.typeName() in ("timestamp", "timestamp_ntz"):
            return Declared(field.name, int(field.metadata[_DELAY]))
    node = next(filter(_is_watermark, nodes(plan)))
    column = node.eventTime().name()
    raise Refused(
        f"stage {stage!r} has a watermark on column {column!r}, which the rows that it returns do not have",
        hint=f"select {column!r} too: the watermark follows from the rows that the function returns",
    )


def _is_watermark(node: Any) -> bool:
    return str(node.getClass().getSimpleName()) == _NODE
