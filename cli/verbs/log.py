"""`slackwater log`: the commits of an app, and what people did to it."""

from typing import TYPE_CHECKING

from ... import instants
from ...errors import Refused, Unavailable
from ...results import formats
from ...results.document import Block, Table
from .. import options
from ..session import Session, verb

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ...snapshot.query.log import Entry
    from ...snapshot.take.audit_log import Operation

_HEADINGS = ("committed", "stage", ">version", "kind", ">rows", ">took", "snapshots")


@verb(
    "slackwater log flights",
    "slackwater log flights --stage carriers --limit 5",
    "slackwater log flights --operations",
    kafka=True,
)
def log(
    session: Session,
    app_name: options.App,
    limit: int = options.option("N", "Show this many; 0 for all.", 20, min=0),
    stage: str = options.option("NAME", "Only this stage.", ""),
    operations: bool = options.flag("--operations", "Show what was done to the app, by whom, not its commits."),
) -> None:
    """Show the commits of an app, newest first.

    Each with its rows, the offsets it read (from the first up to, not including, the second), and the
    snapshots it is part of; versions that were thinned out cannot be restored. Where Kafka is known, also whether it
    still holds what each version read, so that it can be replayed. --operations shows instead who took, removed or
    cloned what.
    """
    from ...snapshot.query.log import entries
    from ...snapshot.take.audit_log import list_operations
    from ...store.versions.apps import read_app

    if operations:
        read_app(session.store, app_name)
        done = list_operations(session.store, app_name, limit)
        session.show(done, _operations(done, app_name))
    else:
        topics = session.settings.open_channels()
        try:
            commits = entries(session.store, app_name, limit, stage=stage, topics=topics)
        except (Unavailable, Refused) as error:
            if topics is None:
                raise
            session.note(f"note: nobody knows what can be replayed: {error.message}")
            commits, topics = entries(session.store, app_name, limit, stage=stage), None
        session.show(commits, _commits(commits, app_name, asked_kafka=topics is not None))


def _commits(commits: "tuple[Entry, ...]", app_name: str, *, asked_kafka: bool) -> Block:
    if not commits:
        return f"{app_name} has no commit yet; `slackwater run FILE` makes them"
    timed = any(entry.watermark_ms is not None for entry in commits)
    headings = (
        *_HEADINGS,
        *(["watermark"] if timed else []),
        *(["can be"] if asked_kafka else []),
        "read",
    )
    lines = (line for entry in commits for line in _lines(entry, asked_kafka=asked_kafka, timed=timed))
    return Table.of(headings, lines)


def _lines(entry: "Entry", *, asked_kafka: bool, timed: bool) -> "Iterator[tuple[str, ...]]":
    """The version, and those right before it that are gone."""
    watermark = "-" if entry.watermark_ms is None else instants.iso(entry.watermark_ms)
    yield (
        instants.when(entry.time_ms),
        entry.stage,
        f"v{entry.version}",
        entry.kind,
        *_work(entry),
        ", ".join(entry.snapshots),
        *([watermark] if timed else []),
        *(["restored, replayed" if entry.replayable else "restored"] if asked_kafka else []),
        formats.windows(map(str, entry.windows)) or "; ".join((*_lost(entry), *_added(entry), *_renamed(entry))),
    )
    if entry.thinned is not None:
        first, last = entry.thinned
        versions = f"v{first}..v{last}" if first < last else f"v{first}"
        yield (
            "",
            entry.stage,
            versions,
            "gone",
            "-",
            "-",
            "",
            *(["-"] if timed else []),
            *(["-"] if asked_kafka else []),
            "thinned out by gc",
        )


def _lost(entry: "Entry") -> "Iterator[str]":
    """What a claim went on without."""
    for lost in entry.lost.values():
        versions = f", v{lost.after + 1} to v{lost.up_to} of its writer" if lost.up_to else ""
        rows = f" ({formats.plural(sum(lost.rows), 'row')}{versions})" if lost.rows else ""
        yield f"lost {formats.between(lost.topic, lost.starts, lost.ends)}{rows}"


def _added(entry: "Entry") -> "Iterator[str]":
    """Since when a table has a column."""
    if entry.added:
        yield f"since here: {', '.join(entry.added)}"
    if entry.backfilled:
        yield f"backfilled: {', '.join(entry.backfilled)}"


def _renamed(entry: "Entry") -> "Iterator[str]":
    """What the stage is called after this version, or was called before."""
    if entry.renamed:
        yield f"{'was called' if entry.kind == 'rename' else 'is called'} {entry.renamed}"


def _work(entry: "Entry") -> tuple[str, str]:
    """The rows that it read, and how long that took; of versions that are there for something else, neither."""
    if entry.kind in ("compaction", "rescale", "retire", "init", "migration", "rename", "backfill"):
        return "-", "-"
    return formats.count(entry.rows_in), formats.duration(entry.duration_ms)


def _operations(done: "tuple[Operation, ...]", app_name: str) -> Block:
    if not done:
        return f"nothing was done to {app_name} from the command line yet"
    rows = ((instants.when(each.time_ms), each.verb, each.detail, each.by) for each in done)
    return Table.of(("done", "what", "detail", "by"), rows)
