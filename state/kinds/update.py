"""State of a vectorised user function, which takes and returns whole Arrow tables: `update(fn, ...)`."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec.structs import replace

from ...errors import NotFound, Refused, Usage
from .. import multi_input
from .due import BoundDue
from .kind import BoundState, DueBy, Groups, Kind, MergeResult, OfCode, check_names_once, check_value_names, field_of

Function = Callable[..., "pa.Table | tuple[pa.Table, ...]"]


@dataclass(frozen=True, slots=True)
class UpdateCode:
    """Parts of a declared `update` that manifests do not store, such as the function."""

    function: Function
    state: Callable[[], pa.Schema]
    emits: tuple[Callable[[], pa.Schema], ...] = ()
    order_by: tuple[str, ...] = ()


class Update(OfCode, frozen=True, tag="update"):
    """Declared `update`: a vectorised user function."""

    due: str = ""
    due_by: DueBy = "watermark"
    not_final: ClassVar[tuple[str, str]] = (
        "update(...), whose function decides what to emit",
        'keep the end of the window in a column of the state, and set update(..., due="that column")',
    )

    def __str__(self) -> str:
        return f"update({self.due_text})" if self.due else "update"

    @property
    def declaration(self) -> "Update":
        return Update(self.due, self.due_by)

    @property
    def due_text(self) -> str:
        return f"due={self.due}{', due_by=clock' if self.due_by == 'clock' else ''}" if self.due else ""

    def due_column(self, _key: pa.Schema) -> str:
        return self.due

    def renamed(self, names: Mapping[str, str]) -> "Update":
        return replace(self, due=names.get(self.due, self.due))

    def is_compatible_with(self, now: Kind) -> bool:
        return self.tag == now.tag

    def why_not_maskable(self, column: str) -> str:
        return "it decides when rows fall due" if column == self.due else ""

    def bind(self, rows: Sequence[pa.Schema], key: tuple[str, ...]) -> BoundState:
        values = self.code.state()
        check_value_names(values.names, key)
        for schema in rows:
            for column in self.code.order_by:
                field_of(schema, column)
        emits = tuple(schema() for schema in self.code.emits) or (pa.schema([]),)
        for schema in emits:
            check_names_once(schema.names, "emits")
        needs = multi_input.union_columns(rows, key)
        bound = _BoundUpdate(self.code.function, key, tuple(rows), values, needs, emits, self.code.order_by)
        if not self.due:
            return bound
        if self.due not in values.names:
            raise NotFound("value column", self.due, values.names, hint="due= is one of them")
        kind = values.field(self.due).type
        if not (pa.types.is_date32(kind) or pa.types.is_timestamp(kind)):
            raise Usage(f"due={self.due!r} is {kind}; expected a timestamp or a date")
        return BoundDue(bound, self.due, self.due_by)


@dataclass(frozen=True, slots=True)
class _BoundUpdate(BoundState):
    function: Function
    key: tuple[str, ...]
    inputs: tuple[pa.Schema, ...]
    values: pa.Schema
    needed_columns: tuple[str, ...]
    emitted_schemas: tuple[pa.Schema, ...]
    order_by: tuple[str, ...]

    def merge(self, rows: pa.Table, groups: Groups, keys: pa.Table, old: pa.Table) -> MergeResult:
        tables = multi_input.split_with_keys(rows, self.inputs, self.key, groups.ids, self.order_by)
        old_state = pa.table([*keys.columns, *old.columns], names=[*keys.column_names, *old.column_names])
        returned = self.function(*tables, old_state)
        new_state, *emitted = returned if isinstance(returned, tuple) else (returned,)
        declared = [schema for schema in self.emitted_schemas if len(schema)]
        if declared and not emitted:
            raise Refused("the update function returned no emitted rows, but declares emits=; return (state, rows)")
        if declared and len(emitted) != len(declared):
            raise Refused(
                f"the update function returned {1 + len(emitted)} tables; expected {1 + len(declared)}: "
                f"the state, and rows for each of the {len(declared)} that emits= declares"
            )
        for table in (new_state, *emitted):
            if not isinstance(table, pa.Table):
                raise Refused(f"the update function returned {type(table).__name__}; expected an Arrow table")
        if new_state.num_rows != groups.num:
            raise Refused(
                f"the update function returned {new_state.num_rows} state rows; expected {groups.num}, "
                "one for each row of `state`, in its order"
            )
        deleted = None
        if "_deleted" in new_state.column_names:
            _check_once("state", new_state, "_deleted")
            deleted = np.asarray(pc.fill_null(new_state["_deleted"], False).to_numpy())
        return MergeResult(
            _conform("state", new_state, self.values),
            deleted,
            emitted=tuple(_conform("emitted", *pair) for pair in zip(emitted, self.emitted_schemas, strict=False)),
        )


def _check_once(role: str, table: pa.Table, name: str) -> None:
    if (count := table.column_names.count(name)) > 1:
        raise Refused(
            f"the update function's {role} rows have column {name!r} {count} times",
            hint="return only one of them, or give the others another name",
        )


def _conform(role: str, table: pa.Table, schema: pa.Schema) -> pa.Table:
    columns = []
    for field in schema:
        if field.name not in table.column_names:
            raise Refused(f"the update function's {role} rows lack column {field.name!r} ({field.type})")
        _check_once(role, table, field.name)
        try:
            columns.append(table[field.name].cast(field.type))
        except pa.ArrowInvalid as error:
            raise Refused(
                f"the update function's {role} column {field.name!r} does not fit {field.type}: {error}"
            ) from error
    return pa.table(columns, schema=schema)
