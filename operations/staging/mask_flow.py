"""Search for columns and tables of a clone that still show masked values, judged by column names."""

from collections.abc import Iterator

from ...snapshot.change.copies import ColumnMask, Masks
from ...snapshot.cut.graph import Cut, descendants
from ...state.kinds.kind import kind_of
from ...store.sst.schema import visible_columns
from ...store.versions.manifest import Manifest


def still_shown(cut: Cut, masks: Masks) -> Iterator[str]:
    """Yield a sentence for each place of a cut that shows, or may show, values of a masked column.

    A column shows them if it has the masked column's name, or is computed from such a column, as `max("email")` is. A
    program's function may also return the values under another name; so tables downstream of the masked one are listed.
    """
    hidden = {(mask.table, mask.column) for mask in masks.each}
    for mask in masks.each:
        masked, columns = f"{mask.table}.{mask.column}", _same_values(cut, mask)
        shown = [text for column, text in columns.items() if column not in hidden]
        if shown:
            yield f"{masked} is masked, but by name the same values are in {', '.join(shown)}, which are not masked"
        after = descendants(cut.stages, cut.tables[mask.table].stage)
        named = {table for table, _ in columns}
        uncertain = [name for name, at in cut.tables.items() if at.stage in after and name not in named]
        if uncertain:
            yield (
                f"{', '.join(uncertain)} may have values of {masked} under other names, from functions of the program"
            )


def _same_values(cut: Cut, mask: ColumnMask) -> dict[tuple[str, str], str]:
    """Return the other columns that show a mask's values, by table and column, each with a description."""
    names, columns = {mask.column}, dict[tuple[str, str], str]()
    while True:
        new = {
            (table, name): f"{table}.{name}{f' ({description})' if (description := _description(at, name)) else ''}"
            for table, at in cut.tables.items()
            for name, sources in _columns(at)
            if (table, name) not in columns
            and (table, name) != (mask.table, mask.column)
            and not names.isdisjoint(sources)
        }
        if not new:
            return columns
        columns |= new
        names |= {name for _, name in new}


def _columns(at: Manifest) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the visible columns of a version's table, each with its name and the columns it is computed from."""
    assert at.table is not None  # noqa: S101  it is among a cut's tables
    kind = kind_of(at.table.state).core if at.table.state else None
    for column in (*at.table.key, *visible_columns(at.table)):
        yield column.name, (column.name, *(kind.made_of(column.name) if kind is not None else ()))


def _description(at: Manifest, column: str) -> str:
    state = at.table.state if at.table is not None else None
    return kind_of(state).columns.get(column, "") if state else ""
