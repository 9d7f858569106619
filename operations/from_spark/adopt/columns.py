"""Mapping of a query's columns to a table's, by name or by position, with the problems of columns that do not fit."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pyarrow as pa

from ....snapshot.query.row_source import is_convertible
from ....store.sst.arrow_types import to_arrow
from ....store.sst.schema import arrow_schema
from ....store.versions.manifest import Column, Table
from ..checkpoint.protocol import DELETED

Array = Any  # pyarrow's compute functions take and return Array or ChunkedArray alike


@dataclass(frozen=True, slots=True)
class MappedColumn:
    """One column of a table, and its sources."""

    column: str
    of: tuple[str, ...]
    """Columns of the query's state."""
    make: Callable[[pa.Table], Array]
    """Computes the column from rows with the source columns."""
    how: str = ""
    """Description of the computation; empty if the source is copied."""


def with_deleted(put: pa.Table, deleted: pa.Table, table: Table) -> pa.Table:
    """Return the changes of a batch with `DELETED`: the rows `put`, and the keys `deleted` with null values."""
    null_values = [pa.nulls(deleted.num_rows, value.type) for value in arrow_schema(table.values)]
    deleted_rows = pa.table([*deleted.columns, *null_values], schema=put.schema)
    flags = pa.array([False] * put.num_rows + [True] * deleted_rows.num_rows, pa.bool_())
    return pa.concat_tables([put, deleted_rows]).append_column(DELETED, flags)


@dataclass(slots=True)
class ColumnSearch:
    """Columns that are mapped so far, and problems of the others."""

    columns: list[MappedColumn] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    @property
    def used(self) -> set[str]:
        """Columns of the state that are mapped."""
        return {name for mapped in self.columns for name in mapped.of}

    def copy_column(self, column: str, source: pa.Field, kind: pa.DataType, how: str = "") -> None:
        """Map a column to a column of the state if its type can store the values; otherwise add a problem."""
        if is_convertible(source.type, kind):
            self.columns.append(MappedColumn(column, (source.name,), lambda rows: rows[source.name], how))
        else:
            self.problems.append(f"column {column!r} is {kind}, but {source.name!r} of the state is {source.type}")


def by_name_or_place(columns: Sequence[Column], state: pa.Schema, search: ColumnSearch, label: str) -> None:
    """Map columns to columns of the same name; if as many are left over on both sides, by position."""
    unmatched = {state_field.name.casefold(): state_field for state_field in state}
    sources = {
        declared.name: unmatched.pop(declared.name.casefold())
        for declared in columns
        if declared.name.casefold() in unmatched
    }
    missing = [declared for declared in columns if declared.name not in sources]
    if len(missing) == len(unmatched):
        # Spark chooses the names of expressions, so these are mapped by position.
        sources |= zip((declared.name for declared in missing), unmatched.values(), strict=True)
    elif missing:
        stored = ", ".join(f"{state_field.name} {state_field.type}" for state_field in state) or "none"
        search.problems += [
            f"{label} {declared.name!r} ({to_arrow(declared.type)}) is missing in the state, which has: {stored}"
            for declared in missing
        ]
        return
    else:
        search.problems += [
            f"{label} {state_field.name!r} ({state_field.type}) of the state is missing in the table"
            for state_field in unmatched.values()
        ]
    for column in columns:
        kind, source = to_arrow(column.type), sources[column.name]
        if is_convertible(source.type, kind):
            how = "" if column.name.casefold() == source.name.casefold() else "by position"
            search.columns.append(MappedColumn(column.name, (source.name,), partial(_cast, source.name, kind), how))
        else:
            search.problems.append(
                f"{label} {column.name!r} is {kind}, but {source.name!r} of the state is {source.type}"
            )


def _cast(name: str, kind: pa.DataType, rows: pa.Table) -> Array:
    return rows[name].cast(kind)
