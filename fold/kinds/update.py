"""State as a vectorised function of the user's own: whole Arrow tables in, whole Arrow tables out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...errors import Refused
from .. import multi_input
from .kind import BoundState, Groups, Merged, check_value_names, field_of

Function = Callable[..., "pa.Table | tuple[pa.Table, ...]"]
"""Of the user's; see `slackwater.update`."""


@dataclass(frozen=True, slots=True)
class Update:
    """A declared update. Schemas are asked for when it is bound: who says them as text needs Spark to read it."""

    function: Function
    state: Callable[[], pa.Schema]
    emitted: tuple[Callable[[], pa.Schema], ...]
    order_by: tuple[str, ...]

    def describe(self) -> str:
        """As of any state."""
        # The columns are compared by themselves; a new function over the same columns is a release, not a break.
        return "update"

    def bind(self, rows: Sequence[pa.Schema], key: tuple[str, ...]) -> BoundState:
        """As of any state."""
        values = self.state()
        check_value_names(values.names, key)
        for schema in rows:
            for column in self.order_by:
                field_of(schema, column)
        emits = tuple(schema() for schema in self.emitted) or (pa.schema([]),)
        needs = multi_input.columns(rows, key)
        return _BoundUpdate(self.function, key, tuple(rows), values, needs, emits, self.order_by)


@dataclass(frozen=True, slots=True)
class _BoundUpdate:
    function: Function
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
