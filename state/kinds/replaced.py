"""Replace stored rows by given rows: the state with which `slackwater edit` changes a table of any kind."""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...errors import Refused
from ...store.sst.schema import DUE, arrow_schema
from ...store.versions.manifest import Table
from .due import BoundDue
from .kind import BoundState, Groups, MergeResult, kind_of

DELETED = "_deleted"
"""Column of an edit: True for rows to delete."""


@dataclass(frozen=True, slots=True)
class BoundReplacement(BoundState):
    """State that takes one row for each key, with all value columns and `DELETED`, as the new row."""

    values: pa.Schema

    @property
    def needed_columns(self) -> tuple[str, ...]:
        return (*self.values.names, DELETED)

    @property
    def emitted_schemas(self) -> tuple[pa.Schema, ...]:
        return ()

    def merge(self, rows: pa.Table, groups: Groups, keys: pa.Table, old: pa.Table) -> MergeResult:
        return MergeResult(rows.select(self.values.names), np.asarray(pc.fill_null(rows[DELETED], False), np.bool_))


def bind_replacement(table: Table, name: str) -> BoundState:
    """Return the state that applies an edit to a table. Edited rows fall due as written rows do.

    Raises `Refused` if no program writes the rows, if rows wait for other rows, or if only the program knows when they
    fall due.
    """
    kind, values = kind_of(table.state), arrow_schema(table.values)
    if kind.external_owner:
        raise Refused(
            f"cannot edit {name}: its rows are {kind.external_owner}",
            hint="slackwater adopt turns them into the state of a stage, which can be edited",
        )
    if kind.waiting_rows:
        raise Refused(
            f"cannot edit {name}: its rows hold {kind.waiting_rows}",
            hint="reject or correct the records that they come from, and rewind to before these records",
        )
    if DUE not in values.names:
        return BoundReplacement(values)
    if not (column := kind.due_column(arrow_schema(table.key))):
        raise Refused(
            f"cannot edit {name} while its app is stopped: only its program knows when rows fall due",
            hint="start a runner of the app, which then applies the edit, and repeat this command",
        )
    return BoundDue(
        BoundReplacement(values.remove(values.get_field_index(DUE))), column, kind.due_by, final=kind.emits_once
    )
