"""How the columns of a table are made of a query's: by name, by place, as structs; and what each one lacks."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ...store.sst.arrow_types import to_arrow
from ...store.sst.types import arrow_schema
from ...store.versions.manifest import Column, Table
from ..attach.checkpoint import DELETED
from ..init.source import taken

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


@dataclass(frozen=True, slots=True)
class _Leaf:
    """A plain part of a column."""

    column: str
    path: tuple[str, ...]
    type: pa.DataType

    @property
    def flat(self) -> str:
        """What it is called where nested columns are flat."""
        return "_".join((self.column, *self.path))


def by_name_or_place(wanted: Sequence[Column], state: pa.Schema, found: ColumnSearch, what: str) -> None:
    """Columns that are the query's under the same name; where there are as many, the others by their place.

    A struct, such as a window of time, is made of the columns of its fields, `window_start` and `window_end`.
    """
    leaves = [leaf for each in wanted for leaf in _leaves(each.name, (), to_arrow(each.type))]
    names = {each.name.casefold(): each for each in state}
    at = {leaf: names.pop(leaf.flat.casefold()) for leaf in leaves if leaf.flat.casefold() in names}
    rest = [leaf for leaf in leaves if leaf not in at]
    if len(rest) == len(names):
        # What an expression is called is Spark's to say.
        at |= dict(zip(rest, names.values(), strict=True))
    elif rest:
        has = ", ".join(f"{each.name} {each.type}" for each in state) or "none"
        found.problems += [
            f"{what} {leaf.flat!r} ({leaf.type}) is none of the state's, which are: {has}" for leaf in rest
        ]
        return
    found.problems += [
        f"{what} {each.name!r} ({each.type}) of the state is none of the table's" for each in names.values() if not rest
    ]
    for column in wanted:
        mine = [(leaf, at[leaf]) for leaf in leaves if leaf.column == column.name]
        wrong = [
            f"{what} {leaf.flat!r} is {leaf.type}, and {of.name!r} of the state is {of.type}"
            for leaf, of in mine
            if not taken(of.type, leaf.type)
        ]
        found.problems += wrong
        if wrong:
            continue
        kind, of = to_arrow(column.type), {leaf.path: each.name for leaf, each in mine}
        how = (
            ""
            if len(mine) == 1 and mine[0][0].flat == mine[0][1].name
            else "by its place"
            if len(mine) == 1
            else "a struct of them"
        )
        found.made.append(MadeColumn(column.name, tuple(of.values()), partial(_built, kind, (), of), how))


def _leaves(column: str, path: tuple[str, ...], kind: pa.DataType) -> Iterator[_Leaf]:
    if pa.types.is_struct(kind):
        for each in kind:
            yield from _leaves(column, (*path, each.name), each.type)
    else:
        yield _Leaf(column, path, kind)


def _built(kind: pa.DataType, path: tuple[str, ...], of: Mapping[tuple[str, ...], str], rows: pa.Table) -> Array:
    if not pa.types.is_struct(kind):
        return rows[of[path]].cast(kind)
    parts = [_one(_built(each.type, (*path, each.name), of, rows)) for each in kind]
    # A struct that is null has nothing but nulls in it, as flat columns.
    nothing = parts[0].is_null()
    for each in parts[1:]:
        nothing = pc.and_(nothing, each.is_null())
    return pa.StructArray.from_arrays(parts, fields=list(kind), mask=_one(nothing))


def _one(column: Array) -> pa.Array:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
