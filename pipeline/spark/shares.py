"""A share of keys in Spark: a filter of rows, pushed down to the source where Spark's optimiser allows.

If the filter's key is a column of the source, or that column cast to a string, the optimiser moves the filter right
above the source. Then the source can skip the other rows before they reach Spark. The filter stays in the plan, so the
source drops only rows that the plan would drop; if the filter is not found, the source drops nothing.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from ...store.sst.hashing import SHARES, KeyShare
from ...store.versions.column_types import in_backticks
from .plans import children, first_column, kind

_SEED = 42


def of_share(frame: DataFrame, share: KeyShare) -> DataFrame:
    """Return the rows of a DataFrame, with the share's columns, that belong to the share."""
    return frame.where(_condition(*(F.col(in_backticks(name)) for name in share.columns), parts=share.parts))


def _condition(*columns: Column, parts: int) -> Column:
    return F.pmod(F.xxhash64(*columns), F.lit(SHARES)) < parts


def needed_shares(optimised: Iterable[Sequence[Any]]) -> dict[int, KeyShare]:
    """Return the share of keys that each stream in `plans.optimised_paths` needs, by its `first_column`.

    Streams that need all rows are left out. Each stream occurs once, because a repeated use has other column ids.
    """
    filters = {first_column(stream): above[0] for stream, *above in optimised if above and kind(above[0]) == "Filter"}
    shares = {stream: [*_shares(node.condition())] for stream, node in filters.items()}
    return {stream: candidates[0] for stream, candidates in shares.items() if candidates}


def _shares(condition: Any) -> Iterator[KeyShare]:
    """Yield the shares that contain all rows for which a condition over a source's columns holds."""
    if kind(condition) == "And":
        yield from (share for side in children(condition) for share in _shares(side))
    elif kind(condition) == "LessThan":
        remainder, parts = children(condition)
        if kind(remainder) == "Pmod" and kind(parts) == "Literal":
            hashed, shares = children(remainder)
            whole = kind(hashed) == "XxHash64" and hashed.seed() == _SEED and str(shares) == str(SHARES)
            columns = [_column(expression) for expression in children(hashed)] if whole else [""]
            if all(columns):
                yield KeyShare(tuple(columns), int(parts.value()))


def _column(expression: Any) -> str:
    """Return the source column that an expression hashes like; empty if the expression has another value.

    Spark hashes a string by its bytes, which a cast from binary leaves unchanged.
    """
    if kind(expression) == "Cast" and expression.dataType().simpleString() == "string":
        (below,) = children(expression)
        if below.dataType().simpleString() != "binary":
            return ""
        expression = below
    return str(expression.name()) if kind(expression) == "AttributeReference" else ""
