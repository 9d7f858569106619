"""Rows that fall due: a state with a time in each row, at which it is called with the row and no records.

Around `update` (`due="deadline"`) the user's function is; around `aggregate` and `upsert` over windows
(`event_time(emits="final")`) what is emitted is the row, once, when its window has ended.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...errors import NotFound, Usage
from ...store.sst.expiry import event_ms
from ...store.sst.types import DUE
from .kind import BoundState, Groups, Merged, State, field_of
from .window import window_of

DueBy: TypeAlias = Literal["watermark", "clock"]


@dataclass(frozen=True, slots=True)
class Due:
    """A state whose rows fall due at the time in one of its value columns."""

    state: State
    column: str
    by: DueBy

    def describe(self) -> str:
        """As of any state."""
        clock = ", due_by=clock" if self.by == "clock" else ""
        return f"{self.state.describe()}(due={self.column}{clock})"

    def bind(self, rows: Sequence[pa.Schema], key: tuple[str, ...]) -> BoundState:
        """As of any state. Raises as well `NotFound` and `Usage` for a column that is not there or is no time."""
        bound = self.state.bind(rows, key)
        if self.column not in bound.values.names:
            raise NotFound("value column", self.column, bound.values.names, hint="due= is one of them")
        kind = bound.values.field(self.column).type
        if not (pa.types.is_date32(kind) or pa.types.is_timestamp(kind)):
            raise Usage(f"due={self.column!r} is {kind}; expected a timestamp or a date")
        return BoundDue(bound, self.column, self.by)


@dataclass(frozen=True, slots=True)
class Final:
    """A state over windows that emits each row once, when the watermark has passed the end of its window."""

    state: State

    def describe(self) -> str:
        """As of any state."""
        return f"final({self.state.describe()})"

    def bind(self, rows: Sequence[pa.Schema], key: tuple[str, ...]) -> BoundState:
        """As of any state. Raises as well `Usage` where the key has no window, or the state decides what it emits."""
        bound = self.state.bind(rows, key)
        if self.state.describe().startswith("join"):
            raise Usage(
                'event_time(emits="final") of state=join(...), which emits each pair once, when it is there',
                hint="leave emits= out; how='left' emits rows without a match when nothing can match them any more",
            )
        window = window_of(pa.schema([field_of(rows[0], name) for name in key]))
        if window is None:
            raise Usage('event_time(emits="final") of a stage without a window (F.window) in its key: nothing ends')
        if self.state.describe().startswith("update"):
            raise Usage(
                'event_time(emits="final") of state=update(...), whose function says itself what it emits',
                hint='keep the end of the window in a column of the state, and say update(..., due="that column")',
            )
        return BoundDue(bound, window, "watermark", final=True)


@dataclass(frozen=True, slots=True)
class BoundDue:
    """A state that stores in `_due_at` when each row falls due; called without records, it gets rows that do.

    Attributes:
        inner: What makes the other columns.
        column: The value column with the time; of a `final` one, the key column with the window.
        by: What passes that time.
        final: Whether rows are emitted when they fall due, as they are, and at no other time.
    """

    inner: BoundState
    column: str
    by: DueBy
    final: bool = False

    @property
    def values(self) -> pa.Schema:
        """As of any state."""
        return self.inner.values.append(pa.field(DUE, pa.int64()))

    @property
    def needs(self) -> tuple[str, ...]:
        """As of any state."""
        return self.inner.needs

    @property
    def emits(self) -> tuple[pa.Schema, ...]:
        """As of any state."""
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
