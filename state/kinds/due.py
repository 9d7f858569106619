"""Rows that fall due: a stored row is handled when its due time has passed, without new records of its key.

For `update` (`due="deadline"`), the user's function is called. For `aggregate` and `upsert` over windows
(`event_time(emits="final")`), the row is emitted once, when its window has ended.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec.structs import force_setattr

from ...errors import Usage
from ...store.sst.schema import DUE, event_ms
from .kind import BoundState, DueBy, Groups, Kind, MergeResult, decode_nested_kind, field_of
from .session import Sessions


class FinalKind(Kind, frozen=True, tag="final"):
    """State over time windows that emits each row once, when the watermark has passed the end of its window."""

    state: Any
    emits_once: ClassVar[bool] = True
    emission: ClassVar[Literal["rows"]] = "rows"

    def __post_init__(self) -> None:
        force_setattr(self, "state", decode_nested_kind(self.state))

    def __str__(self) -> str:
        return f"final({self.state})"

    @property
    def core(self) -> Kind:
        kind: Kind = self.state
        return kind

    def due_column(self, key: pa.Schema) -> str:
        return window_of(key) or ""

    def copied_column(self, column: str) -> str | None:
        return self.core.copied_column(column)

    @property
    def columns(self) -> Mapping[str, str]:
        return self.core.columns

    @property
    def declaration(self) -> Kind:
        return FinalKind(self.core.declaration)

    def renamed(self, names: Mapping[str, str]) -> Kind:
        return FinalKind(self.core.renamed(names))

    def is_compatible_with(self, now: Kind) -> bool:
        return self.tag == now.tag and self.core.is_compatible_with(now.core)

    def may_become(self, now: Kind) -> bool:
        return self.tag == now.tag and self.core.may_become(now.core)

    def by_session(self, column: str) -> Kind:
        return Sessions(self, column)

    def bind(self, rows: Sequence[pa.Schema], key: tuple[str, ...]) -> BoundState:
        """Bind the state to the columns of its rows.

        Raises `Usage` if the key has no window, or if the user's function decides what to emit; see `Kind.bind`.
        """
        bound = self.core.bind(rows, key)
        why, hint = self.core.not_final
        if why:
            raise Usage(f'event_time(emits="final") cannot be used with state={why}', hint=hint)
        window = window_of(pa.schema([field_of(rows[0], name) for name in key]))
        if window is None:
            raise Usage('event_time(emits="final") needs a window (F.window) in the key of the stage')
        return BoundDue(bound, window, "watermark", final=True)


@dataclass(frozen=True, slots=True)
class BoundDue(BoundState):
    """State that stores due times in `_due_at`. A `merge` call without records gets the keys that fall due."""

    inner: BoundState
    column: str
    due_by: DueBy
    final: bool = False

    @property
    def partial_aggregates(self) -> tuple[tuple[str, Any], ...]:
        return self.inner.partial_aggregates if self.final else ()

    def over_partials(self, columns: tuple[str, ...]) -> BoundState:
        return replace(self, inner=self.inner.over_partials(columns))

    @property
    def values(self) -> pa.Schema:
        return self.inner.values.append(pa.field(DUE, pa.int64()))

    @property
    def needed_columns(self) -> tuple[str, ...]:
        return self.inner.needed_columns

    @property
    def emitted_schemas(self) -> tuple[pa.Schema, ...]:
        return self.inner.emitted_schemas

    def merge(self, rows: pa.Table, groups: Groups, keys: pa.Table, old: pa.Table) -> MergeResult:
        if self.final and not rows.num_rows:
            columns = dict(zip([*keys.column_names, *old.column_names], [*keys.columns, *old.columns], strict=True))
            (schema,) = self.emitted_schemas
            emitted = pa.table([columns[name] for name in schema.names], schema=schema)
            return MergeResult(old, changed=np.zeros(groups.num, bool), emitted=(emitted,))
        merged = self.inner.merge(rows, groups, keys, old.select(self.inner.values.names))
        times = pc.struct_field(keys[self.column], "end") if self.final else merged.values[self.column]
        values = merged.values.append_column(pa.field(DUE, pa.int64()), due_ms(times))
        emitted_now = tuple(schema.empty_table() for schema in self.emitted_schemas) if self.final else merged.emitted
        return replace(merged, values=values, emitted=emitted_now)


def due_ms(times: Any) -> Any:
    """Convert times or dates to due times in ms since 1970 UTC, rounded up."""
    whole_ms = event_ms(times)
    if pa.types.is_date32(times.type):
        return whole_ms
    return pc.add(whole_ms, pc.greater(times.cast(pa.int64()), pc.multiply(whole_ms, 1000)).cast(pa.int64()))


def window_of(key: pa.Schema) -> str | None:
    """Return the name of the first key column that is a time window (`F.window`), or None."""
    for column in key:
        fields = list(column.type) if pa.types.is_struct(column.type) else []
        times = [field.name for field in fields if pa.types.is_timestamp(field.type)]
        if len(fields) == 2 and times == ["start", "end"]:
            return str(column.name)
    return None
