"""`slackwater history`: each change of one key."""

from collections.abc import Iterator
from contextlib import closing
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from ... import instants
from ...results import formats
from ...results.document import Block, Table
from .. import options
from ..replaying import needed_program, program_here
from ..session import Session, verb

if TYPE_CHECKING:
    from ...snapshot.bisect.record import Guilty
    from ...snapshot.diff.history import Change, KeyHistory
    from ...store.read.cache import SstCache


@verb(
    "slackwater history flights carriers UA",
    "slackwater history flights aircraft N14228 --limit 0 --json",
    """slackwater history shop baskets '{"country": "DE", "number": 17}'""",
    "slackwater history flights carriers UA --limit 3 --why --code flights.py",
    kafka=True,
)
def history(
    session: Session,
    app_name: options.App,
    table: options.Table,
    key: options.Key,
    limit: int = options.option("N", "Show this many changes; 0 for all.", 20, min=0),
    why: bool = options.flag("--why", "Replay each change, and name the input record behind it."),
    code: Path | None = options.option(
        "FILE", "The program that ran, for --why. Default: [programs] of slackwater.toml."
    ),
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
        behind = _behind(session, found, cache, code) if why and found.changes else None
    session.show(_data(found, behind), _shown(found, " ".join(key), behind))
    for each in behind or ():
        if each is not None and each.reason:
            session.note(f"note: the record behind one change cannot be told: {each.reason}")
    for note in _notes(found, limit):
        session.note(note)
    if verbose:
        took = formats.plural(found.reads.requests, "request")
        session.note(f"read {formats.size(found.reads.bytes)} of SSTs in {took}")


def _behind(session: Session, found: "KeyHistory", cache: "SstCache", code: Path | None) -> "tuple[Guilty | None, ...]":
    """The record behind each change; None for a change that no batch made, or nobody knows which."""
    file = needed_program(session, found.app, code, "to replay the batches with (--why)", "FILE, the program that ran")
    with (
        session.output.progress() as progress,
        program_here(session, found.app, file, cache, progress) as program,
    ):
        from ...pipeline.replay.why import why

        def record_of(change: "Change") -> "Guilty | None":
            written = found.written(change)
            if written is None:
                return None
            progress(f"replaying {written.stage} v{written.version}")
            return why(program, written.stage, written.version, written.key)

        return tuple(map(record_of, found.changes))


def _data(found: "KeyHistory", behind: "tuple[Guilty | None, ...] | None") -> dict[str, object]:
    from ...results import values
    from ..bisect_tables import record_data

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
            "formerly": each.formerly or None,
            "gap": each.gap,
            "windows": each.windows,
            "before": each.before,
            "after": each.after,
            "record": record_data(record) if record is not None else None,
        }
        for each, record in zip(found.changes, behind or (None,) * len(found.changes), strict=True)
    )
    return {
        "app": found.app,
        "table": found.table,
        "key": key,
        "changes": values.stream(changes),
        "whole_from": found.whole_from or None,
        "read": {"requests": found.reads.requests, "bytes": found.reads.bytes},
    }


def _shown(found: "KeyHistory", key: str, behind: "tuple[Guilty | None, ...] | None") -> Block:
    if not found.changes:
        return f"table {found.table} of {found.app} never had a key {key}, in the versions that are left"
    headings = ("committed", ">version", "", "column", ">before", ">after", "read" if behind is None else "because of")
    reads = [formats.windows(map(str, change.windows)) for change in found.changes]
    records = reads if behind is None else [str(each.hops[-1].record) if each and each.hops else "-" for each in behind]
    lines = (_lines(change, record) for change, record in zip(found.changes, records, strict=True))
    return Table.of(headings, chain.from_iterable(lines))


def _lines(change: "Change", read: str) -> Iterator[tuple[str, ...]]:
    """A line for each value that changed; the first says when, by which version, and of what it came."""
    from ...results.values import differing

    about = (instants.when(change.time_ms), f"v{change.version}", _what(change))
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
        elif change.inherited == "renamed":
            yield (
                f"* {found.table} was called {change.formerly} until v{change.version}, and the row was there: "
                f"slackwater history {found.app} {change.formerly} KEY goes on"
            )
        elif change.inherited:
            yield f"* the row was there at v{change.version}, and what was before that gc has collected"
    if any(change.gap for change in found.changes):
        yield "* gc collected versions right before: what changed in them shows as one change"
    if found.whole_from:
        whole = f"whole from v{found.whole_from} on; older versions were thinned out by gc"
        yield f"note: the history of {found.app}/{found.table} is {whole}"
