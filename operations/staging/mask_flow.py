"""Columns and tables in which a clone still shows the values that a mask hides, as far as names tell."""

from collections.abc import Iterator

from ...snapshot.change.copies import ColumnMask, Masks
from ...snapshot.cut.graph import Cut, descendants
from ...state.kinds.kind import kind_of
from ...store.sst.schema import visible_columns
from ...store.versions.manifest import Manifest


def still_shown(cut: Cut, masks: Masks) -> Iterator[str]:
    """Say for each mask which columns of a cut have its values by their names, and which tables may have them.

    A column has them that is called as the hidden one, or is made of such a column, as `max("email")` is. What the
    program's functions make of a column under another name nobody knows: tables that come from the hidden one's are
    named.
    """
    hidden = {(mask.table, mask.column) for mask in masks.each}
    for mask in masks.each:
        what, found = f"{mask.table}.{mask.column}", _named(cut, mask)
        shown = [each for place, each in found.items() if place not in hidden]
        if shown:
            yield f"{what} is hidden there alone: the same values are in {', '.join(shown)}, by the names"
        after = descendants(cut.stages, cut.tables[mask.table].stage)
        named = {table for table, _ in found}
        may = [name for name, at in cut.tables.items() if at.stage in after and name not in named]
        if may:
            yield f"{', '.join(may)} may have values of {what} under another name, as a function of the program gave it"


def _named(cut: Cut, mask: ColumnMask) -> dict[tuple[str, str], str]:
    """The other columns that have a mask's values by their names, by table and column, in words."""
    names, found = {mask.column}, dict[tuple[str, str], str]()
    while True:
        new = {
            (table, name): f"{table}.{name}{f' ({made})' if (made := _words(at, name)) else ''}"
            for table, at in cut.tables.items()
            for name, sources in _columns(at)
            if (table, name) not in found
            and (table, name) != (mask.table, mask.column)
            and not names.isdisjoint(sources)
        }
        if not new:
            return found
        found |= new
        names |= {name for _, name in new}


def _columns(at: Manifest) -> Iterator[tuple[str, tuple[str, ...]]]:
    """The visible columns of a version's table, each with the columns of rows that it is made of, itself among them."""
    assert at.table is not None  # noqa: S101  it is among a cut's tables
    kind = kind_of(at.table.state).core if at.table.state else None
    for column in (*at.table.key, *visible_columns(at.table)):
        yield column.name, (column.name, *(kind.made_of(column.name) if kind is not None else ()))


def _words(at: Manifest, column: str) -> str:
    state = at.table.state if at.table is not None else None
    return kind_of(state).columns.get(column, "") if state else ""
