"""How the columns of a table are made of a query's: by name, by place; and what each one lacks."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pyarrow as pa

from ....snapshot.query.row_source import taken
from ....store.sst.arrow_types import to_arrow
from ....store.sst.types import arrow_schema
from ....store.versions.manifest import Column, Table
from ..checkpoint.protocol import DELETED

Array = Any  # pyarrow's compute functions take and return Array or ChunkedArray alike


@dataclass(frozen=True, slots=True)
class MadeColumn:
    """One column of a table, and of what it is made."""

    column: str
    of: tuple[str, ...]
    """Columns of the query's state."""
    make: Callable[[pa.Table], Array]
    """Gets rows with these columns."""
    how: str = ""
    """In words; empty where it is just that column."""


def with_gone(there: pa.Table, gone: pa.Table, table: Table) -> pa.Table:
    """Rows of a table that a batch put, and with `DELETED` those that it deleted, of which `gone` has the keys."""
    nothing = [pa.nulls(gone.num_rows, each.type) for each in arrow_schema(table.values)]
    left = pa.table([*gone.columns, *nothing], schema=there.schema)
    flags = pa.array([False] * there.num_rows + [True] * left.num_rows, pa.bool_())
    return pa.concat_tables([there, left]).append_column(DELETED, flags)


@dataclass(slots=True)
class ColumnSearch:
    """The columns that were found so far, and what is wrong with others."""

    made: list[MadeColumn] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    @property
    def used(self) -> set[str]:
        """The columns of the state of which something is made."""
        return {name for each in self.made for name in each.of}

    def as_it_is(self, column: str, of: pa.Field, kind: pa.DataType, how: str = "") -> None:
        """A column that is one of the query's, if its type holds the values."""
        if taken(of.type, kind):
            self.made.append(MadeColumn(column, (of.name,), lambda rows: rows[of.name], how))
        else:
            self.problems.append(f"column {column!r} is {kind}, and {of.name!r} of the state is {of.type}")


def by_name_or_place(wanted: Sequence[Column], state: pa.Schema, found: ColumnSearch, what: str) -> None:
    """Columns that are the query's under the same name; where there are as many, the others by their place."""
    names = {each.name.casefold(): each for each in state}
    at = {each.name: names.pop(each.name.casefold()) for each in wanted if each.name.casefold() in names}
    rest = [each for each in wanted if each.name not in at]
    if len(rest) == len(names):
        # What an expression is called is Spark's to say.
        at |= zip((each.name for each in rest), names.values(), strict=True)
    elif rest:
        has = ", ".join(f"{each.name} {each.type}" for each in state) or "none"
        found.problems += [
            f"{what} {each.name!r} ({to_arrow(each.type)}) is none of the state's, which are: {has}" for each in rest
        ]
        return
    else:
        found.problems += [
            f"{what} {each.name!r} ({each.type}) of the state is none of the table's" for each in names.values()
        ]
    for column in wanted:
        kind, of = to_arrow(column.type), at[column.name]
        if taken(of.type, kind):
            how = "" if column.name.casefold() == of.name.casefold() else "by its place"
            found.made.append(MadeColumn(column.name, (of.name,), partial(_cast, of.name, kind), how))
        else:
            found.problems.append(f"{what} {column.name!r} is {kind}, and {of.name!r} of the state is {of.type}")


def _cast(name: str, kind: pa.DataType, rows: pa.Table) -> Array:
    return rows[name].cast(kind)
