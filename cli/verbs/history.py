"""`slackwater history`: each change of one key."""

from collections.abc import Iterator
from contextlib import closing
from typing import TYPE_CHECKING

from ... import instants
from .. import formats, options
from ..session import Session, verb
from ..tables import Grid
from ..terminal import Part

if TYPE_CHECKING:
    from ...snapshot.diff.history import Change, KeyHistory


@verb(
    "slackwater history flights carriers UA",
    "slackwater history flights aircraft N14228 --limit 0 --json",
    """slackwater history shop baskets '{"country": "DE", "number": 17}'""",
)
def history(
    session: Session,
    app_name: options.App,
    table: options.Table,
    key: options.Key,
    limit: int = options.option("N", "Show this many changes; 0 for all.", 20, min=0),
    verbose: bool = options.flag("--verbose", "Also say what was read for it.", "-v"),
) -> None:
    """Show each change of the row of one key, newest first.

    With the version that made it, the offsets that this version read, and the values before and after. Rows that
    expired are among them. Versions that did not write the key are not read.
    """
    from ...snapshot.diff.history import key_history

    with closing(session.settings.open_cache()) as cache:
        found = key_history(
            session.store, cache, app_name, table, options.key_values(key), limit=limit, now_ms=instants.now_ms()
        )
    session.show(_data(found), _shown(found, " ".join(key)))
    for note in _notes(found, limit):
        session.note(note)
    if verbose:
        took = formats.plural(found.reads.requests, "request")
        session.note(f"read {formats.size(found.reads.bytes)} of SSTs in {took}")


def _data(found: "KeyHistory") -> dict[str, object]:
    from .. import values

    (key,) = values.rows(found.key)
    changes = (
        {
            "stage": each.stage,
            "version": each.version,
            "after_version": each.after_version,
            "time_ms": each.time_ms,
            "change": each.kind,
            "expired": each.expired,
            "inherited": each.inherited or None,
            "gap": each.gap,
            "windows": each.windows,
            "before": each.before,
            "after": each.after,
        }
        for each in found.changes
    )
    return {
        "app": found.app,
        "table": found.table,
        "key": key,
        "changes": values.stream(changes),
        "whole_from": found.whole_from or None,
        "read": {"requests": found.reads.requests, "bytes": found.reads.bytes},
    }


def _shown(found: "KeyHistory", key: str) -> Part:
    if not found.changes:
        return f"table {found.table} of {found.app} never had a key {key}, in the versions that are left"
    headings = ("committed", ">version", "", "column", ">before", ">after", "read")
    return Grid.of(headings, (line for change in found.changes for line in _lines(change)))


def _lines(change: "Change") -> Iterator[tuple[str, ...]]:
    """A line for each value that changed; the first says when, and by which version."""
    from ..values import differing

    about = (instants.when(change.time_ms), f"v{change.version}", _what(change))
    read = formats.windows(map(str, change.windows))
    for number, line in enumerate(differing(change.before, change.after)):
        yield (*(about if number == 0 else ("", "", "")), *line, read if number == 0 else "")


def _what(change: "Change") -> str:
    return "expired" if change.expired else f"{change.kind} *" if change.gap or change.inherited else change.kind


def _notes(found: "KeyHistory", limit: int) -> Iterator[str]:
    """What the list does not say: older changes, and versions that are not there any more."""
    if found.changes and len(found.changes) == limit:
        yield f"the newest {formats.plural(limit, 'change')}; --limit 0 shows all"
    for change in found.changes:
        if change.inherited == "clone":
            yield f"* {found.app} is a clone: the row was there when it was made, and its history is the source's"
        elif change.inherited:
            yield f"* the row was there at v{change.version}, and what was before that gc has collected"
    if any(change.gap for change in found.changes):
        yield "* gc collected versions right before: what changed in them shows as one change"
    if found.whole_from:
        whole = f"whole from v{found.whole_from} on; older versions were thinned out by gc"
        yield f"note: the history of {found.app}/{found.table} is {whole}"
