"""What a migration changes, in a line for each change: for the verb, and for `run` that refuses a changed program."""

from collections.abc import Iterator

from ...durations import format_ms
from ...fold.columns import ColumnChange
from ...store.versions.manifest import Ttl
from .plan import StageChange


def lines(change: StageChange) -> Iterator[str]:
    """The changes of one stage, without its name."""
    if change.formerly:
        yield f"until now {change.formerly}: its history before is under that name"
    if change.kind == "retired":
        yield "retired: the program has it no more; its history and its table stay"
        if change.may_be:
            yield f"is {change.may_be} what it was? Then say --rename-stage {change.stage}={change.may_be}"
    if change.kind == "added":
        yield "new: begins with the next run"
    yield from map(of_column, change.columns)
    if change.due is not None:
        yield _due(*change.due)
    elif change.others:
        yield "its columns are declared in another order or in other words; rows stay as they are"
    if change.ttl is not None:
        yield f"time to live: {_span(change.ttl[1])}, until now {_span(change.ttl[0])}"
    yield from (f"reads {name} from then on" for name in change.inputs)
    yield from (f"reads {name} no more" for name in change.gone)
    yield from (f"writes {name} from its next start on" for name in change.outputs)
    yield from (f"writes {name} no more from its next start on" for name in change.dropped)
    for old, new in change.guesses:
        yield f"is {new} what {old} was? Then say --rename {old}={new}; without that, {old} goes"


def of_column(change: ColumnChange) -> str:
    """One change of a column."""
    match change.kind:
        case "added":
            told = f" = {change.meaning}" if change.meaning else ""
            since = ", from here on" if change.meaning else ""
            before = "null" if change.default is None else change.default
            return f"+ {change.column} {change.type}{told}{since}; rows from before have {before}"
        case "removed":
            return f"- {change.column} {change.type}"
        case "renamed":
            return f"~ {change.before} is called {change.column}"
        case "widened":
            return f"~ {change.column} is {change.type}, until now {change.before}"


def _due(before: str, after: str) -> str:
    if not before:
        return f"+ {after}: rows fall due from here on; those from before once they are written again"
    if not after:
        return f"- {before}: rows fall due no more"
    return f"~ {after}, until now {before}; rows from before fall due at the times that they have"


def _span(ttl: Ttl | None) -> str:
    if ttl is None or not ttl.ms:
        return "none"
    return f"{format_ms(ttl.ms)}{f' by {ttl.column}' if ttl.column else ''}"
