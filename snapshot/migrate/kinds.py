"""What stored values mean, read from how their state was declared (`Table.state`).

A table of aggregates is declared column by column, `aggregate(flights=count(), delay=sum(arr_delay))`; an upsert by
what orders its rows; an update by the column at whose time its rows fall due. Around the first two may be `final(…)`,
which says when their rows are emitted. Every other kind is one text, which either is the same or is not.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from ...durations import format_ms

_AGGREGATE = re.compile(r"(?:, )?(?P<name>[^=]+?)=(?P<meaning>(?:count|sum|min|max|mean|first|last)\([^()]*\))")
_UPSERT = re.compile(r"upsert\(by=(?P<by>.*?)(?P<more>, delete_when=.*)?\)")
_UPDATE = re.compile(r"update(?:\(due=(?P<due>.*?)(?P<clock>, due_by=clock)?\))?")
_JOIN = re.compile(r"join\((?P<sides>.*), within=(?P<within>\d+) ms, how=(?P<how>\w+)\)")
_FINAL = re.compile(r"final\((?P<inner>.*)\)")
FINAL = "final "
"""What the kind of a table begins with whose rows are emitted once, when their window has ended."""
JOIN, SESSIONS = "join(", "sessions("
"""What the text of a table begins with that has lists of what waits, or of the sessions that are open."""
_CHANGED = ("aggregate", "upsert", "update")
"""What a kind begins with of which a migration can make another."""
_PARTS = ("_sum", "_count", "_by")
"""What the internal columns of an aggregate end with."""


@dataclass(frozen=True, slots=True)
class Meaning:
    """What the columns of a table mean."""

    kind: str
    """`aggregate`, `upsert(by=…)`, `update`, these behind `FINAL`, or the whole text where it is none of them."""
    columns: Mapping[str, str]
    """Of an aggregate, by its column: `sum(arr_delay)`. Empty for other kinds."""
    due: str = ""
    """Of an update, the column at whose time its rows fall due; empty where they never do."""
    by_clock: bool = False
    """Whether the wall clock passes that time; else the watermark."""

    @property
    def due_text(self) -> str:
        """By what rows fall due, as it is declared; empty where they never do."""
        return f"due={self.due}{', due_by=clock' if self.by_clock else ''}" if self.due else ""

    def of(self, column: str) -> str:
        """What one column is; empty for one that is what the program puts there."""
        return self.columns.get(column, "")


def meaning_of(state: str, renamed: Mapping[str, str]) -> Meaning:
    """The meaning of a table that was declared so; `renamed` says what its columns are called now."""
    if match := _FINAL.fullmatch(state):
        inner = meaning_of(match["inner"], renamed)
        return replace(inner, kind=f"{FINAL}{inner.kind}")
    if state.startswith("aggregate(") and (columns := _aggregates(state)):
        return Meaning("aggregate", {renamed.get(name, name): meaning for name, meaning in columns.items()})
    if match := _UPSERT.fullmatch(state):
        return Meaning(f"upsert(by={renamed.get(match['by'], match['by'])}{match['more'] or ''})", {})
    if match := _UPDATE.fullmatch(state):
        due = match["due"] or ""
        return Meaning("update", {}, renamed.get(due, due), bool(match["clock"]))
    return Meaning(state, {})


def may_become(stored: str, declared: str) -> bool:
    """Whether a migration may have one state go on as another, as far as their kinds say."""
    was, now = (meaning_of(each, {}).kind.partition("(")[0] for each in (stored, declared))
    return was == now and was.removeprefix(FINAL) in _CHANGED


def as_declared(state: str) -> str:
    """The text of a state, a join's as a program says it: `join(orders, payments, within=1h, how=left)`."""
    if match := _JOIN.fullmatch(state):
        return f"join({match['sides']}, within={format_ms(int(match['within']))}, how={match['how']})"
    return state


def with_internal(state: str, renames: Mapping[str, str]) -> dict[str, str]:
    """The renames, with the internal columns of the aggregates among them: `_delay_sum` goes with `delay`."""
    inside = {
        f"_{old}{part}": f"_{new}{part}"
        for old, new in renames.items()
        for part in (_PARTS if meaning_of(state, {}).columns else ())
    }
    return {**inside, **renames}


def differences(stored: str, declared: str) -> Iterator[str]:
    """What a declaration changes of the aggregates of another, without their types, or of what rows fall due by."""
    was, now = meaning_of(stored, {}), meaning_of(declared, {})
    yield from (f"+ {name} = {now.of(name)}" for name in now.columns if name not in was.columns)
    yield from (f"- {name}" for name in was.columns if name not in now.columns)
    if was.due_text != now.due_text:
        yield from (f"{sign} {text}" for sign, text in (("-", was.due_text), ("+", now.due_text)) if text)


def _aggregates(state: str) -> dict[str, str]:
    """The aggregates by their column; none where the text is another than one of them writes."""
    inside = state.removeprefix("aggregate(").removesuffix(")")
    found = {match["name"]: match["meaning"] for match in _AGGREGATE.finditer(inside)}
    told = ", ".join(f"{name}={meaning}" for name, meaning in found.items())
    return found if told == inside else {}
