"""State as a vectorised function of the user's own: whole Arrow tables in, whole Arrow tables out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...errors import Refused, Usage
from . import multi_input
from .due import Due, DueBy
from .protocol import BoundState, Groups, Merged, State, check_value_names, field_of

Update = Callable[..., "pa.Table | tuple[pa.Table, ...]"]
Columns: TypeAlias = "str | pa.Schema"
"""As a DDL string, or an Arrow schema."""


def update(
    function: Update,
    *,
    state: Columns,
    emits: Columns | tuple[Columns, ...] | None = None,
    order_by: Sequence[str] | str = (),
    due: str | None = None,
    due_by: DueBy = "watermark",
) -> State:
    """Declare a table that a function of yours keeps, called once per batch and state partition.

    `function(rows, state)` gets Arrow tables and returns the new state, or `(state, emitted)` with `emits=`:

    - `rows`: the batch's rows. A column `_key` (int32) says which row of `state` each belongs to; rows are sorted by
      it and then by `order_by`. Where the stage's function returns a tuple of DataFrames, one per input, there is one
      such table for each: `function(flights, weather, state)`; a batch may have rows in one of them only.
    - `state`: exactly one row for each key of the batch: the key columns, then the declared columns, null where the
      key is new. Return as many rows in the same order; the key columns may be left out. A boolean column `_deleted`
      removes the keys in which it is true.
    - `emitted`: rows for the stage's outputs, with the columns that `emits` declares. Where `emits` is a tuple, one for
      each of the stage's outputs, return as many tables in the same order: `(state, first, second)`.

    Work on whole columns (pyarrow.compute, numpy, pandas, polars); a Python loop over rows is what makes it slow.

    Args:
        function: See above. It must give the same result for the same rows, so that a replay can be trusted.
        state: The table's value columns as a DDL string, `"last_dest string, landed timestamp"`, or an Arrow schema.
        emits: Columns of the emitted rows, likewise; needed when the stage has outputs. One for all outputs, which then
            get the same rows, or a tuple with one for each, in the order of `writes`.
        order_by: Columns that sort a key's rows; with several inputs, columns that each of them has.
        due: A column of the state, timestamp or date: when that time has passed, the function is called with the row
            in `state` and no rows, and may emit, change or delete it. Null: never.
        due_by: What passes it: the stage's `"watermark"`, or the wall `"clock"`.

    Raises:
        Usage: `due_by` is something else.
    """
    if due_by not in ("watermark", "clock"):
        raise Usage(f"update: due_by is {due_by!r}; expected 'watermark' or 'clock'")
    columns = (order_by,) if isinstance(order_by, str) else tuple(order_by)
    each = emits if isinstance(emits, tuple | list) else () if emits is None else (emits,)
    made = _Update(function, state, tuple(each), columns)
    return made if due is None else Due(made, due, due_by)


@dataclass(frozen=True, slots=True)
class _Update:
    function: Update
    state: Columns
    emitted: tuple[Columns, ...]
    order_by: tuple[str, ...]

    def describe(self) -> str:
        # The columns are compared by themselves; a new function over the same columns is a release, not a break.
        return "update"

    def bind(self, rows: Sequence[pa.Schema], key: tuple[str, ...]) -> BoundState:
        values = _schema(self.state)
        check_value_names(values.names, key)
        for schema in rows:
            for column in self.order_by:
                field_of(schema, column)
        emits = tuple(map(_schema, self.emitted)) or (pa.schema([]),)
        needs = multi_input.columns(rows, key)
        return _BoundUpdate(self.function, key, tuple(rows), values, needs, emits, self.order_by)


def _schema(ddl: Columns) -> pa.Schema:
    if isinstance(ddl, pa.Schema):
        return ddl
    from pyspark.errors import ParseException
    from pyspark.sql.pandas.types import to_arrow_schema

    from .ddl import parse_ddl

    try:
        return to_arrow_schema(parse_ddl(ddl), timezone="UTC")
    except ParseException as error:
        raise Usage(f"columns {ddl!r} are not a DDL string such as 'n long, at timestamp': {error}") from error


@dataclass(frozen=True, slots=True)
class _BoundUpdate:
    function: Update
    key: tuple[str, ...]
    inputs: tuple[pa.Schema, ...]
    values: pa.Schema
    needs: tuple[str, ...]
    emits: tuple[pa.Schema, ...]
    order_by: tuple[str, ...]

    def merge(self, rows: pa.Table, groups: Groups, keys: pa.Table, old: pa.Table) -> Merged:
        tables = multi_input.untag(rows, self.inputs, self.key, groups.ids)
        before = pa.table([*keys.columns, *old.columns], names=[*keys.column_names, *old.column_names])
        returned = self.function(*map(self._sorted, tables), before)
        after, *emitted = returned if isinstance(returned, tuple) else (returned,)
        self._check(after, *emitted)
        if after.num_rows != groups.num:
            raise Refused(
                f"the update function returned {after.num_rows} state rows; expected {groups.num}, "
                "one for each row of `state`, in its order"
            )
        deleted = None
        if "_deleted" in after.column_names:
            deleted = np.asarray(pc.fill_null(after["_deleted"], False).to_numpy())
        return Merged(
            _conform("state", after, self.values),
            deleted,
            emitted=tuple(_conform("emitted", *each) for each in zip(emitted, self.emits, strict=False)),
        )

    def _check(self, *returned: object) -> None:
        """See that the function returned the state and rows for each of `emits`, all of them Arrow tables."""
        declared = [schema for schema in self.emits if len(schema)]
        if len(returned) == 1 and declared:
            raise Refused("the update function returned no emitted rows, but declares emits=; return (state, rows)")
        if declared and len(returned) != 1 + len(declared):
            raise Refused(
                f"the update function returned {len(returned)} tables; expected {1 + len(declared)}: "
                f"the state, and rows for each of the {len(declared)} that emits= declares"
            )
        for table in returned:
            if not isinstance(table, pa.Table):
                raise Refused(f"the update function returned {type(table).__name__}; expected an Arrow table")

    def _sorted(self, rows: pa.Table) -> pa.Table:
        if not self.order_by:
            return rows
        order = [("_key", "ascending"), *((column, "ascending") for column in self.order_by)]
        return rows.take(pc.sort_indices(rows, order))


def _conform(what: str, table: pa.Table, schema: pa.Schema) -> pa.Table:
    """The declared columns, cast without loss. Raises `Refused` naming the column."""
    columns = []
    for field in schema:
        if field.name not in table.column_names:
            raise Refused(f"the update function's {what} rows lack column {field.name!r} ({field.type})")
        try:
            columns.append(table[field.name].cast(field.type))
        except pa.ArrowInvalid as error:
            raise Refused(
                f"the update function's {what} column {field.name!r} does not fit {field.type}: {error}"
            ) from error
    return pa.table(columns, schema=schema)
