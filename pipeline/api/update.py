"""`update(...)`: a table that a vectorised user function updates. Also contains parsers of declared columns."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

import pyarrow as pa

from ...common.arguments import check_arguments
from ...errors import Usage
from ...state.kinds.kind import DueBy
from ...state.kinds.update import Function, Update, UpdateCode

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

DeclaredColumns: TypeAlias = "str | pa.Schema | StructType"
"""Columns as a DDL string, an Arrow schema, or Spark's type."""


@check_arguments
def update(
    function: Function,
    *,
    state: DeclaredColumns,
    emits: DeclaredColumns | tuple[DeclaredColumns, ...] | None = None,
    order_by: Sequence[str] | str = (),
    due: str | None = None,
    due_by: DueBy = "watermark",
) -> Update:
    """Declare a table kept by your own function, called once per batch and state partition.

    `function(rows, state)` gets Arrow tables and returns the new state, or `(state, emitted)` with `emits=`:

    - `rows`: the batch's rows. A column `_key` (int32) has the position in `state` of each row's key; rows are sorted
      by `_key` and then by `order_by`. If the stage's function returns a tuple of DataFrames, one per input, the
      function gets one such table per input: `function(flights, weather, state)`. All but one of these tables may be
      empty.
    - `state`: exactly one row for each key of the batch: the key columns, then the declared columns, null for a new
      key. Return the same number of rows in the same order; the key columns may be left out. A boolean column
      `_deleted` deletes the keys in which it is true.
    - `emitted`: rows for the stage's outputs, with the columns that `emits` declares. If `emits` is a tuple, one for
      each of the stage's outputs, return a table for each in the same order: `(state, first, second)`.

    Work on whole columns (pyarrow.compute, numpy, pandas, polars); a Python loop over rows is slow.

    Args:
        function: See above. Must be deterministic, so that replays give the same result.
        state: Value columns of the table as a DDL string, `"last_dest string, landed timestamp"`, or an Arrow schema.
        emits: Columns of the emitted rows, in the same forms; required if the stage has outputs. One declaration for
            all outputs, which then get the same rows, or a tuple with one declaration for each output, in the order of
            `writes`.
        order_by: Columns that sort a key's rows; with several inputs, all must have them.
        due: Timestamp or date column of the state. Once a row's time in this column has passed, the function is called
            with that row in `state` and an empty `rows`, and may emit, change or delete the row. Null means never.
        due_by: Time by which rows fall due: the stage's `"watermark"`, or the wall `"clock"`.

    Raises `Usage` for an invalid `due_by`.
    """
    if due_by not in ("watermark", "clock"):
        raise Usage(f"update: due_by is {due_by!r}; expected 'watermark' or 'clock'")
    columns = (order_by,) if isinstance(order_by, str) else tuple(order_by)
    outputs = emits if isinstance(emits, tuple | list) else () if emits is None else (emits,)
    code = UpdateCode(
        function,
        partial(schema_of, state),
        tuple(partial(schema_of, columns_of_output) for columns_of_output in outputs),
        columns,
    )
    return Update(due or "", due_by if due else "watermark", code=code)


def schema_of(columns: DeclaredColumns) -> pa.Schema:
    """Return the Arrow schema of declared columns. Raises `Usage` if Spark cannot parse their DDL."""
    if isinstance(columns, pa.Schema):
        return columns
    # Imported here so that importing the package does not load Spark.
    from pyspark.errors import ParseException

    from ..source.spark_types import arrow_schema_of

    try:
        return arrow_schema_of(parse_ddl(columns) if isinstance(columns, str) else columns)
    except ParseException as error:
        raise Usage(f"columns {columns!r} are not a DDL string such as 'n long, at timestamp': {error}") from error


def parse_ddl(ddl: str) -> StructType:
    """Parse a DDL string such as "n long, at timestamp". Raises pyspark's `ParseException`."""
    from pyspark.sql.types import StructType

    columns = StructType.fromDDL(ddl)
    assert isinstance(columns, StructType)  # noqa: S101 always a StructType for a list of columns
    return columns
