"""What stored values mean, read from how their state was declared (`Table.state`).

A table of aggregates is declared column by column, `aggregate(flights=count(), delay=sum(arr_delay))`; an upsert by
what orders its rows. Every other kind is one text, which either is the same or is not.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

_AGGREGATE = re.compile(r"(?:, )?(?P<name>[^=]+?)=(?P<meaning>(?:count|sum|min|max|mean|first|last)\([^()]*\))")
_UPSERT = re.compile(r"upsert\(by=(?P<by>.*?)(?P<more>, delete_when=.*)?\)")
_PARTS = ("_sum", "_count", "_by")
"""What the internal columns of an aggregate end with."""


@dataclass(frozen=True, slots=True)
class Meaning:
    """What the columns of a table mean."""

    kind: str
    """`aggregate`, `upsert`, `update`, …; the whole text where it is of no kind whose columns are known."""
    columns: Mapping[str, str]
    """Of an aggregate, by its column: `sum(arr_delay)`. Empty for other kinds."""

    def of(self, column: str) -> str:
        """What one column is; empty for one that is what the program puts there."""
        return self.columns.get(column, "")


def meaning_of(state: str, renamed: Mapping[str, str]) -> Meaning:
    """The meaning of a table that was declared so; `renamed` says what its columns are called now."""
    if state.startswith("aggregate(") and (columns := _aggregates(state)):
        return Meaning("aggregate", {renamed.get(name, name): meaning for name, meaning in columns.items()})
    if match := _UPSERT.fullmatch(state):
        return Meaning(f"upsert(by={renamed.get(match['by'], match['by'])}{match['more'] or ''})", {})
    return Meaning(state, {})


def with_internal(state: str, renames: Mapping[str, str]) -> dict[str, str]:
    """The renames, with the internal columns of the aggregates among them: `_delay_sum` goes with `delay`."""
    inside = {
        f"_{old}{part}": f"_{new}{part}"
        for old, new in renames.items()
        for part in (_PARTS if state.startswith("aggregate(") else ())
    }
    return {**inside, **renames}


def differences(stored: str, declared: str) -> Iterator[str]:
    """What a declaration changes of the aggregates of another, without their types; nothing of other kinds."""
    was, now = meaning_of(stored, {}).columns, meaning_of(declared, {}).columns
    yield from (f"+ {name} = {now[name]}" for name in now if name not in was)
    yield from (f"- {name}" for name in was if name not in now)


def _aggregates(state: str) -> dict[str, str]:
    """The aggregates by their column; none where the text is another than one of them writes."""
    inside = state.removeprefix("aggregate(").removesuffix(")")
    found = {match["name"]: match["meaning"] for match in _AGGREGATE.finditer(inside)}
    told = ", ".join(f"{name}={meaning}" for name, meaning in found.items())
    return found if told == inside else {}
