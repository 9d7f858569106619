"""What two parts of a key's records make together, from what an aggregate keeps of each: its law of merging.

An aggregate of a batch is merged so into what is stored, and what was stored since a migration into a backfill of what
came before. Arrow columns in and out, one value for each key.
"""

from collections.abc import Mapping
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

Array = Any  # pyarrow's compute functions take and return Array or ChunkedArray alike
Columns: TypeAlias = "Mapping[str, Array] | pa.Table"


def merged(function: str, name: str, earlier: Columns, later: Columns) -> dict[str, Array]:
    """The stored columns of the aggregate `name` over both parts; null is of no records.

    `function` is one of count, sum, min, max, mean, first and last. Both parts have the columns that the aggregate
    keeps: `name`, and of a mean `_name_sum` and `_name_count`, of first and last `_name_by`. Raises `ArrowInvalid`
    where a sum has no room.
    """
    old, new = earlier[name], later[name]
    match function:
        case "count":
            return {name: pc.add(pc.fill_null(old, 0), pc.fill_null(new, 0))}
        case "sum":
            return {name: plus(old, new)}
        case "mean":
            total = plus(earlier[f"_{name}_sum"], later[f"_{name}_sum"])
            number = pc.add(pc.fill_null(earlier[f"_{name}_count"], 0), pc.fill_null(later[f"_{name}_count"], 0))
            divisor = pc.if_else(pc.equal(number, 0), pa.scalar(None, pa.int64()), number).cast(pa.float64())
            # Of sums beyond 2^53 a double is the nearest.
            return {
                name: pc.divide(total.cast(pa.float64(), safe=False), divisor),
                f"_{name}_sum": total,
                f"_{name}_count": number,
            }
        case "min" | "max":
            # By comparison, as Arrow's min_element_wise knows neither times with a zone nor strings.
            better = pc.less(new, old) if function == "min" else pc.greater(new, old)
            return {name: pc.if_else(pc.fill_null(better, pc.is_null(old)), new, old)}
        case "first" | "last":
            by, old_by = later[f"_{name}_by"], earlier[f"_{name}_by"]
            newer = pc.greater_equal(by, old_by) if function == "last" else pc.less(by, old_by)
            use_new = pc.fill_null(newer, pc.and_(pc.is_null(old_by), pc.is_valid(by)))
            return {name: pc.if_else(use_new, new, old), f"_{name}_by": pc.if_else(use_new, by, old_by)}
    raise ValueError(f"{function} is no aggregate that is known here")


def plus(old: Array, new: Array) -> Array:
    """SQL's sum of two partial sums: null only where both are."""
    kind = old.type
    # Arrow wants a digit more for a decimal sum; the cast back refuses what does not fit.
    wide = pa.decimal256(38, kind.scale) if pa.types.is_decimal(kind) else kind
    total = pc.add_checked(old.cast(wide), new.cast(wide))
    return pc.coalesce(total.cast(kind), old, new)
