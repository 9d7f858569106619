"""`slackwater init`: a table begins with rows from elsewhere."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from ...results import formats
from .. import options
from ..output import Progress
from ..replaying import needed_program
from ..session import Session, verb

if TYPE_CHECKING:
    from ...pipeline.maintain.first_version import FirstVersion
    from ...snapshot.init.load import Loaded

_DRAW_S = 0.1


@verb(
    "slackwater init flights/aircraft aircraft.parquet --code flights.py",
    "slackwater init flights/aircraft 'old/*.csv' --code flights.py --at 2026-11-21T07:12Z --dry-run",
    "slackwater init flights/aircraft --code flights.py --offsets flights=latest --sql \"SELECT … FROM 'old.parquet'\"",
    'slackwater init flights/aircraft rows.parquet --code flights.py --offsets \'flights={"0":23,"1":42}\'',
    kafka=True,
)
def init(
    session: Session,
    stage: options.Stage,
    file: str = options.argument("FILE", "Rows that DuckDB reads: Parquet, CSV or JSON; a pattern or URL, too.", ""),
    sql: str = options.option("SQL", "A query that returns the rows, in the place of FILE.", ""),
    code: Path | None = options.option(
        "FILE", "The program that declares the app. Default: [programs] of slackwater.toml."
    ),
    offsets: list[str] = options.option(
        "TOPIC=WHERE",
        "Where the app begins to read a topic: earliest, latest, or JSON by partition, as Spark's startingOffsets; may "
        "be repeated. Default: as the program says.",
        [],
    ),
    at: str = options.option(
        "TIME", "Begin all other topics at their first record of this time (2026-11-21T07:12Z, -5m).", ""
    ),
    dry_run: options.DryRun = False,
) -> None:
    """Begin a stage's table with rows from elsewhere: they become its version 1.

    The rows have the columns that the program declares, and one row of each key; otherwise nothing is changed. One
    commit: before it nobody sees anything, and a call that was interrupted is made good by the same call. The first
    `slackwater run` goes on from it; the app's other stages begin empty, at these offsets or where the program says.
    """
    from ...results.programs import initialised
    from ...snapshot.init.initialise import initialise
    from ...snapshot.init.source import Source

    app, name = options.names_of_stage(stage)
    source = Source(file, sql)
    program = needed_program(session, app, code, "declares the table")
    with session.output.progress() as progress:
        first = _first_version(session, app, name, program, offsets, at, progress)
        done = initialise(
            session.store,
            first.manifest,
            source,
            info=first.info,
            channels=first.channels,
            dry_run=dry_run,
            on_progress=_drawn(progress),
        )
    session.show(initialised(done, first, program, dry_run=dry_run))


def _first_version(
    session: Session, app: str, name: str, program: str, offsets: list[str], at: str, progress: Progress
) -> "FirstVersion":
    kafka, store = session.settings.kafka(), session.store
    progress("starting Spark, which knows the program's columns")
    # Spark's Python side takes a second or two.
    from ...pipeline.maintain.first_version import first_version_of
    from ...snapshot.take.audit_log import whoami

    return first_version_of(program, app, name, store, kafka, offsets=offsets, at=at, by=whoami())


def _drawn(progress: Progress) -> "Callable[[Loaded], None]":
    """Shows how far loading is: rows read, and from when they are sorted a bar of those written."""
    last_s, sorted_rows = 0.0, False

    def on_progress(so_far: "Loaded") -> None:
        nonlocal last_s, sorted_rows
        line = ""
        if so_far.rows and not sorted_rows:
            sorted_rows, line = True, f"read and sorted {formats.plural(so_far.read, 'row')}"
        if line or time.monotonic() - last_s > _DRAW_S:
            last_s = time.monotonic()
            read = f"read {formats.plural(so_far.read, 'row')}"
            wrote = f"{formats.bar(so_far.rows, so_far.read)}  wrote {so_far.rows:,} of {so_far.read:,} rows"
            progress(line, wrote if so_far.rows else read)

    return on_progress
