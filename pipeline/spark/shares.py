"""A share of keys in Spark: a filter of rows, and where Spark's optimiser has moved it to what a source reads.

Where the key that rows are chosen by is a column of the source, or its key as a string, the optimiser puts the filter
right above the source: then the source can pass over the others itself, which never come to Spark. The filter stays
where it is, so what a source leaves out is what the plan would; where nobody sees it, the source leaves out nothing.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from ...store.sst.key_share import SHARES, KeyShare
from ...store.versions.column_types import in_backticks
from .plans import children, first_column, kind

_SEED = 42


def of_share(frame: DataFrame, share: KeyShare) -> DataFrame:
    """The rows of a DataFrame, which has the columns, that are of the share."""
    return frame.where(_condition(*(F.col(in_backticks(name)) for name in share.columns), parts=share.parts))


def _condition(*columns: Column, parts: int) -> Column:
    return F.pmod(F.xxhash64(*columns), F.lit(SHARES)) < parts


def needed_shares(optimised: Iterable[Sequence[Any]]) -> dict[int, KeyShare]:
    """Of each stream of these `plans.optimised_paths`, by its `first_column`: the share that its needed rows are of.

    Streams of which all rows may be needed are left out. Each stream is used once: one that is used again has other
    columns there.
    """
    filters = {first_column(stream): above[0] for stream, *above in optimised if above and kind(above[0]) == "Filter"}
    found = {stream: [*_shares(node.condition())] for stream, node in filters.items()}
    return {stream: each[0] for stream, each in found.items() if each}


def _shares(condition: Any) -> Iterator[KeyShare]:
    """The shares that all rows are of for which a condition over a source's columns holds."""
    if kind(condition) == "And":
        yield from (share for side in children(condition) for share in _shares(side))
    elif kind(condition) == "LessThan":
        rest, parts = children(condition)
        if kind(rest) == "Pmod" and kind(parts) == "Literal":
            hashed, shares = children(rest)
            whole = kind(hashed) == "XxHash64" and hashed.seed() == _SEED and str(shares) == str(SHARES)
            columns = [_column(each) for each in children(hashed)] if whole else [""]
            if all(columns):
                yield KeyShare(tuple(columns), int(parts.value()))


def _column(expression: Any) -> str:
    """The source's column that an expression hashes as; empty where it is another value.

    Spark hashes a string as its bytes, and a cast leaves these as they are.
    """
    if kind(expression) == "Cast" and expression.dataType().simpleString() == "string":
        (below,) = children(expression)
        if below.dataType().simpleString() != "binary":
            return ""
        expression = below
    return str(expression.name()) if kind(expression) == "AttributeReference" else ""
