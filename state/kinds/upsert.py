"""State of the latest row of each key: `upsert(by="updated_at", delete_when="cancelled")`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...common.arguments import check_arguments
from ...errors import Usage
from ...store.sst.hashing import hash_values
from .kind import BoundState, Groups, Kind, MergeResult, check_value_names, field_of, single_schema


@check_arguments
def upsert(*, by: str, delete_when: str | None = None) -> "Upsert":
    """Declare a table that holds, for each key, the row with the largest value in the column `by`.

    A row is ignored if its `by` is null, or smaller than the `by` of the stored row. A stage with outputs emits the
    rows that a batch changed, without deleted keys.

    Args:
        by: Column that orders a key's rows: a time, an offset, a sequence number.
        delete_when: Boolean column; true in the latest row deletes the key. The column is not stored, and neither is
            the `by` of a deleted key.
    """
    return Upsert(by, delete_when)


class Upsert(Kind, frozen=True, tag="upsert"):
    """Declared `upsert`."""

    by: str
    delete_when: str | None = None
    emission: ClassVar[Literal["table"]] = "table"

    def copied_column(self, column: str) -> str:
        return column

    def renamed(self, names: Mapping[str, str]) -> "Upsert":
        return Upsert(names.get(self.by, self.by), self.delete_when)

    def why_not_maskable(self, column: str) -> str:
        return "it says which of two rows is the later one" if column == self.by else ""

    def bind(self, rows: Sequence[pa.Schema], key: tuple[str, ...]) -> BoundState:
        schema = single_schema(rows, "upsert(...)")
        by = field_of(schema, self.by)
        if self.by in key or pa.types.is_nested(by.type):
            raise Usage(f"upsert by={self.by!r}: expected a plain value column that is not part of the key")
        if self.delete_when is not None and not pa.types.is_boolean(field_of(schema, self.delete_when).type):
            raise Usage(f"upsert delete_when={self.delete_when!r}: expected a boolean column")
        values = pa.schema([field for field in schema if field.name not in (*key, self.delete_when)])
        check_value_names(values.names, key)
        needs = tuple(name for name in schema.names if name not in key)
        emits = pa.schema([*(field_of(schema, column) for column in key), *values])
        return _BoundUpsert(self.by, self.delete_when, values, needs, (emits,))


@dataclass(frozen=True, slots=True)
class _BoundUpsert(BoundState):
    may_keep_rows: ClassVar[bool] = True
    by: str
    delete_when: str | None
    values: pa.Schema
    needed_columns: tuple[str, ...]
    emitted_schemas: tuple[pa.Schema, ...]

    def merge(self, rows: pa.Table, groups: Groups, keys: pa.Table, old: pa.Table) -> MergeResult:
        # Rows with equal `by` arrive in no fixed order. The other columns decide between them, so that replays are
        # deterministic.
        sortable = [name for name in self.needed_columns if name != self.by]
        table = rows.select([self.by, *sortable]).append_column("_group", pa.array(groups.ids))
        for name in sortable:
            if pa.types.is_nested(rows[name].type):
                at = table.schema.get_field_index(name)
                table = table.set_column(at, name, pa.array(hash_values(rows[name])))
        order = pc.sort_indices(
            table, [("_group", "ascending"), (self.by, "descending"), *((name, "descending") for name in sortable)]
        ).to_numpy()
        latest = rows.take(pa.array(order[groups.starts]))
        new_by, old_by = latest[self.by], old[self.by]
        changed = np.asarray(pc.fill_null(pc.greater_equal(new_by, old_by), pc.is_valid(new_by)))
        deleted = np.zeros(groups.num, bool)
        if self.delete_when:
            deleted = changed & np.asarray(pc.fill_null(latest[self.delete_when], False))
        values = latest.select(self.values.names).cast(self.values)
        emitted = pa.table([*keys.columns, *values.columns], schema=self.emitted_schemas[0]).filter(
            pa.array(changed & ~deleted)
        )
        return MergeResult(values, deleted, changed, (emitted,))
