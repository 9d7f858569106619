"""Changed programs whose declared table differs from the stored one, and their effect on rows."""

from collections.abc import Callable

from hypothesis import strategies as st
from msgspec.structs import replace
from slackwater.store.versions.manifest import Column, Table

from tests.models.tables import LARGER
from tests.support.state_rows import Values

Change = Callable[[Values], Values]


def another_program(data: st.DataObject, table: Table) -> tuple[Table, dict[str, str], Change]:
    """Draw another declaration of the table. Returns the declaration, its renamed columns, and the effect on rows."""
    first, second, *added, last = table.values
    wide = [place for place, each in enumerate(added) if each.type in LARGER]
    what = data.draw(
        st.sampled_from(["add", "rename", *(["remove"] if added else []), *(["widen"] if wide else [])]), "migrated by"
    )
    renames: dict[str, str] = {}
    change: Change = lambda row: row  # noqa: E731
    if what == "add":
        # A name may have been another column's.
        name = next(f"x{n}" for n in range(9) if f"x{n}" not in {each.name for each in added})
        default = data.draw(st.sampled_from([None, 7]), "default")
        place = data.draw(st.integers(0, len(added)), "place")
        added.insert(place, Column(name, "int8", default=None if default is None else str(default)))
        change = lambda row: (*row[: place + 2], default, *row[place + 2 :])  # noqa: E731
    elif what == "rename":
        renamed = "v" if first.name == "u" else "u"
        renames, first = {first.name: renamed}, replace(first, name=renamed)
    elif what == "remove":
        gone = data.draw(st.integers(0, len(added) - 1), "removed")
        del added[gone]
        change = lambda row: (*row[: gone + 2], *row[gone + 3 :])  # noqa: E731
    else:
        place = data.draw(st.sampled_from(wide), "widened")
        added[place] = replace(added[place], type=LARGER[added[place].type])
    plain = (Column(each.name, each.type, default=each.default) for each in (first, second, *added, last))
    return replace(table, values=tuple(plain)), renames, change
