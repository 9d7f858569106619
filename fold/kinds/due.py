"""Rows that fall due: a state with a time in each row, at which it is called with the row and no records.

Around `update` (`due="deadline"`) the user's function is; around `aggregate` and `upsert` over windows
(`event_time(emits="final")`) what is emitted is the row, once, when its window has ended.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...errors import NotFound, Usage
from ...store.sst.expiry import event_ms
from ...store.sst.types import DUE
from .kind import Bound, DueBy, Groups, Merged


def check_time(column: str, values: pa.Schema) -> None:
    """See that rows can fall due by a value column. Raises `NotFound` or `Usage`."""
    if column not in values.names:
        raise NotFound("value column", column, values.names, hint="due= is one of them")
    kind = values.field(column).type
    if not (pa.types.is_date32(kind) or pa.types.is_timestamp(kind)):
        raise Usage(f"due={column!r} is {kind}; expected a timestamp or a date")


@dataclass(frozen=True, slots=True)
class BoundDue(Bound):
    """A state that stores in `_due_at` when each row falls due; called without records, it gets rows that do."""

    inner: Bound
    """What makes the other columns."""
    column: str
    """The value column with the time; of a `final` one, the key column with the window."""
    by: DueBy
    """What passes that time."""
    final: bool = False
    """Whether rows are emitted when they fall due, as they are, and at no other time."""

    @property
    def due_by(self) -> DueBy:
        return self.by

    @property
    def added_up(self) -> tuple[tuple[str, Any], ...]:
        return self.inner.added_up if self.final else ()

    def over_partials(self, columns: tuple[str, ...]) -> Bound:
        return replace(self, inner=self.inner.over_partials(columns))

    @property
    def values(self) -> pa.Schema:
        return self.inner.values.append(pa.field(DUE, pa.int64()))

    @property
    def needs(self) -> tuple[str, ...]:
        return self.inner.needs

    @property
    def emits(self) -> tuple[pa.Schema, ...]:
        return self.inner.emits

    def merge(self, rows: pa.Table, groups: Groups, keys: pa.Table, old: pa.Table) -> Merged:
        """As of any state; with rows for none of the groups, these are rows that fall due."""
        if self.final and not rows.num_rows:
            known = dict(zip([*keys.column_names, *old.column_names], [*keys.columns, *old.columns], strict=True))
            (schema,) = self.emits
            emitted = pa.table([known[name] for name in schema.names], schema=schema)
            return Merged(old, changed=np.zeros(groups.num, bool), emitted=(emitted,))
        merged = self.inner.merge(rows, groups, keys, old.select(self.inner.values.names))
        times = pc.struct_field(keys[self.column], "end") if self.final else merged.values[self.column]
        values = merged.values.append_column(pa.field(DUE, pa.int64()), _ms(times))
        emitted_now = tuple(schema.empty_table() for schema in self.emits) if self.final else merged.emitted
        return replace(merged, values=values, emitted=emitted_now)


def _ms(times: pa.ChunkedArray | pa.Array) -> pa.ChunkedArray | pa.Array:
    """The first millisecond since 1970 UTC that is not before each of these times."""
    whole = event_ms(times)
    if pa.types.is_date32(times.type):
        return whole
    return pc.add(whole, pc.greater(times.cast(pa.int64()), pc.multiply(whole, 1000)).cast(pa.int64()))


def window_of(key: pa.Schema) -> str | None:
    """The first column of a key that is a window of time, as `F.window` makes them."""
    return next((field.name for field in key if _is_window(field.type)), None)


def _is_window(kind: pa.DataType) -> bool:
    return (
        pa.types.is_struct(kind)
        and [field.name for field in kind] == ["start", "end"]
        and all(pa.types.is_timestamp(field.type) for field in kind)
    )
