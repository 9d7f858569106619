"""Verbs that tell what has happened: log, history, diff, verify."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ... import instants
from ...errors import Refused, Unavailable, Usage
from .. import options
from ..replaying import STARTING, needed_program
from ..session import Session, verb

if TYPE_CHECKING:
    import pyarrow as pa

    from ...moments.diff.key_history import Change, KeyHistory
    from ...moments.diff.moments import TableDiff
    from ...search.verdict import Guilty


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
    from ...moments.query.log import entries
    from ...moments.take.audit_log import list_operations
    from ...results import history
    from ...store.versions.apps import read_app

    if operations:
        read_app(session.store, app_name)
        session.show(history.operations(list_operations(session.store, app_name, limit), app_name))
        return
    topics = session.client.channels()
    try:
        commits = entries(session.store, app_name, limit, stage=stage, topics=topics)
    except (Unavailable, Refused) as error:
        if topics is None:
            raise
        session.note(f"note: nobody knows what can be replayed: {error.message}")
        commits, topics = entries(session.store, app_name, limit, stage=stage), None
    session.show(history.log(commits, app_name, asked_kafka=topics is not None))


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
    from ...moments.diff.key_history import key_history
    from ...results.history import key_history as shown

    values, now_ms = options.key_values(key), instants.now_ms()
    found = key_history(session.store, session.cache, app_name, table, values, limit=limit, now_ms=now_ms)
    behind = _behind(session, found, code) if why and found.changes else None
    session.show(shown(found, " ".join(key), behind, limit=limit, verbose=verbose))


def _behind(session: Session, found: "KeyHistory", code: Path | None) -> "tuple[Guilty | None, ...]":
    """The record behind each change; None for a change that no batch made, or nobody knows which."""
    file = needed_program(session, found.app, code, "to replay the batches with (--why)", "FILE, the program that ran")
    from ...client.programs import opened_program

    with session.output.progress() as progress:
        progress(STARTING)
        with opened_program(session.client, found.app, file, session.settings.open_kafka()) as program:
            from ...pipeline.replay.why import why

            def record_of(change: "Change") -> "Guilty | None":
                written = found.written(change)
                if written is None:
                    return None
                progress(f"replaying {written.stage} v{written.version}")
                return why(program, written.stage, written.version, written.key)

            return tuple(map(record_of, found.changes))


@verb(
    "slackwater diff flights@-1h flights",
    "slackwater diff flights/carriers@v12 flights/carriers@v13 --table carriers",
    "slackwater diff flights@before-deploy flights-staging --stat",
    "slackwater diff flights@-1d flights --table carriers --out changed.parquet",
)
def diff(
    session: Session,
    before: str = options.argument("A", "A moment, as everywhere: app, app@name, app@-5m, app/stage@v42."),
    after: str = options.argument("B", "Another moment, of the same app or of another one."),
    table: str = options.option("NAME", "Only this table.", ""),
    stat: bool = options.flag("--stat", "Only how many rows differ."),
    keys: bool = options.flag("--keys", "Only the keys of the rows that differ, not their values."),
    out: Path | None = options.option("FILE", "Write all rows that differ to a .parquet, .csv or .json file."),
    to: str | None = options.option("ROOT", "Store root of B. Default: A's."),
) -> None:
    """Show which rows differ between two moments.

    For each table the rows that B added to A, removed or changed, with their values on both sides, and how far each
    column agrees. What both have is not read: versions of one app, or of an app and its clone, share most of their
    state. Exits with 1 when something differs.
    """
    from ...moments.diff.moments import StoredCut
    from ...moments.diff.moments import diff as differences
    from ...results import values
    from ...results.history import diff as shown

    if stat and keys:
        raise Usage("--stat shows no keys, so it does not go with --keys", hint="leave one of them out")
    if out is not None:
        values.check_ending(out)
    stores = session.store, session.store.at(to or "")
    sides = [
        StoredCut(store, session.cut_around(ref, "compared", store)[0])
        for store, ref in zip(stores, (before, after), strict=True)
    ]
    found = differences(session.cache, *sides, table=table)
    if out is not None:
        values.write(_stacked(found), out)
    session.show(shown((before, after), sides, found, with_rows=not stat, with_values=not keys, out=out))


def _stacked(found: "Sequence[TableDiff]") -> "pa.Table":
    """The rows of all tables, with the table's name before them; columns that a table does not have are null."""
    import pyarrow as pa

    flat = ((each.table, each.changes.flat()) for each in found)
    tables = [rows.add_column(0, "table", pa.array([name] * rows.num_rows, pa.string())) for name, rows in flat]
    try:
        return pa.concat_tables(tables, promote_options="default")
    except pa.ArrowException as error:
        raise Usage(f"these tables do not fit into one file: {error}", hint="--table NAME writes one of them") from None


_TELL_S = 1.0


@verb(
    "slackwater verify flights@before-deploy",
    "slackwater verify flights@before-deploy --deep   # every byte, every row, the whole history",
    "slackwater verify flights --json                 # all differences, for machines",
    kafka=True,
)
def verify(
    session: Session,
    ref: options.Ref,
    deep: bool = options.flag(
        "--deep", "Read every object and the whole history, and what Kafka still has, instead of sizes."
    ),
) -> None:
    """Prove that a moment is whole: that it is consistent, complete and undamaged.

    Every record that a stage sent is accounted for, as consumed or in flight; versions follow each other; every object
    is there. Changes nothing. Exits with 1 at any difference.
    """
    from ...keep.verify.verify import verify as prove
    from ...results.snapshots import verification

    opened, reader = session.store, session.client.channels() if deep else None
    with session.output.progress() as progress:
        report = prove(opened, ref, now_ms=instants.now_ms(), deep=deep, reader=reader, on_progress=_seldom(progress))
    session.note_thinned(ref, report.thinned_out)
    session.show(verification(report))


def _seldom(progress: Callable[[str], None]) -> Callable[[str], None]:
    """`progress`, not more often than a person reads."""
    last_s = time.monotonic()

    def now_and_then(line: str) -> None:
        nonlocal last_s
        if time.monotonic() - last_s > _TELL_S:
            last_s = time.monotonic()
            progress(line)

    return now_and_then
