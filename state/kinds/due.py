"""Rows that fall due: a state with a time in each row, at which it is called with the row and no records.

Around `update` (`due="deadline"`) the user's function is; around `aggregate` and `upsert` over windows
(`event_time(emits="final")`) what is emitted is the row, once, when its window has ended.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec.structs import force_setattr

from ...errors import Usage
from ...store.sst.expiry import event_ms
from ...store.sst.types import DUE
from .kind import Bound, DueBy, Groups, Kind, Merged, as_kind, field_of
from .session import Sessions


class Final(Kind, frozen=True, tag="final"):
    """A state over windows that emits each row once, when the watermark has passed the end of its window."""

    state: Any
    once: ClassVar[bool] = True
    emission: ClassVar[Literal["rows"]] = "rows"

    def __post_init__(self) -> None:
        force_setattr(self, "state", as_kind(self.state))

    def __str__(self) -> str:
        return f"final({self.state})"

    @property
    def core(self) -> Kind:
        kind: Kind = self.state
        return kind

    def due_column(self, key: pa.Schema) -> str:
        return window_of(key) or ""

    def carried(self, column: str) -> str | None:
        return self.core.carried(column)

    @property
    def columns(self) -> Mapping[str, str]:
        return self.core.columns

    @property
    def declaration(self) -> Kind:
        return Final(self.core.declaration)

    def renamed(self, names: Mapping[str, str]) -> Kind:
        return Final(self.core.renamed(names))

    def goes_on_as(self, now: Kind) -> bool:
        return self.tag == now.tag and self.core.goes_on_as(now.core)

    def may_become(self, now: Kind) -> bool:
        return self.tag == now.tag and self.core.may_become(now.core)

    def by_session(self, column: str) -> Kind:
        return Sessions(self, column)

    def bind(self, rows: Sequence[pa.Schema], key: tuple[str, ...]) -> Bound:
        """Fix the columns. Raises as well `Usage` where the key has no window, or the state says what it emits."""
        bound = self.core.bind(rows, key)
        why, hint = self.core.not_final
        if why:
            raise Usage(f'event_time(emits="final") of state={why}', hint=hint)
        window = window_of(pa.schema([field_of(rows[0], name) for name in key]))
        if window is None:
            raise Usage('event_time(emits="final") of a stage without a window (F.window) in its key: nothing ends')
        return BoundDue(bound, window, "watermark", final=True)


@dataclass(frozen=True, slots=True)
class BoundDue(Bound):
    """A state that stores in `_due_at` when each row falls due; called without records, it gets rows that do."""

    inner: Bound
    column: str
    """The value column with the time; of a `final` one, the key column with the window."""
    due_by: DueBy
    final: bool = False
    """Whether rows are emitted when they fall due, as they are, and at no other time."""

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
        """With rows for none of the groups, these are rows that fall due."""
        if self.final and not rows.num_rows:
            known = dict(zip([*keys.column_names, *old.column_names], [*keys.columns, *old.columns], strict=True))
            (schema,) = self.emits
            emitted = pa.table([known[name] for name in schema.names], schema=schema)
            return Merged(old, changed=np.zeros(groups.num, bool), emitted=(emitted,))
        merged = self.inner.merge(rows, groups, keys, old.select(self.inner.values.names))
        times = pc.struct_field(keys[self.column], "end") if self.final else merged.values[self.column]
        values = merged.values.append_column(pa.field(DUE, pa.int64()), due_ms(times))
        emitted_now = tuple(schema.empty_table() for schema in self.emits) if self.final else merged.emitted
        return replace(merged, values=values, emitted=emitted_now)


def due_ms(times: Any) -> Any:
    """The first millisecond since 1970 UTC that is not before each of these times or dates."""
    found = event_ms(times)
    if pa.types.is_date32(times.type):
        return found
    return pc.add(found, pc.greater(times.cast(pa.int64()), pc.multiply(found, 1000)).cast(pa.int64()))


def window_of(key: pa.Schema) -> str | None:
    """The first column of a key that is a window of time, as `F.window` makes them."""
    for column in key:
        fields = list(column.type) if pa.types.is_struct(column.type) else []
        times = [field.name for field in fields if pa.types.is_timestamp(field.type)]
        if len(fields) == 2 and times == ["start", "end"]:
            return str(column.name)
    return None
