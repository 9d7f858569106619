"""`slackwater migrate`: an app goes on with a changed program."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import Usage
from .. import options
from ..reporter import reporting
from ..session import Session, verb

if TYPE_CHECKING:
    pass


@verb(
    "slackwater migrate flights.py --dry-run",
    "slackwater migrate flights.py --rename delay=delay_min",
    "slackwater migrate flights.py --rename-stage carriers=airlines",
    "slackwater migrate flights.py --app flights-staging   # a clone first",
    "slackwater migrate flights.py --backfill              # compute what is new over the past, too",
    kafka=True,
)
def migrate(
    session: Session,
    file: Path = options.argument("FILE", "Python file that declares the app, as it is to be from now on."),
    app_name: str | None = options.option("NAME", "Migrate this app, for example a clone.", name="--app"),
    rename: list[str] | None = options.option(
        "OLD=NEW", "A stored column has this name in the program; TABLE.OLD=NEW for one table. May be repeated."
    ),
    rename_stage: list[str] | None = options.option(
        "OLD=NEW", "A stored stage has this name in the program: its table goes on under that. May be repeated."
    ),
    backfill: bool = options.flag(
        "--backfill", "Compute what was added over the past too, from Kafka, beside the running app."
    ),
    since: str = options.option("REF", "With --backfill: from this moment of the app on.", "", name="--from"),
    master: str = options.option(
        "URL",
        "Spark master. Default: local[1], which says what columns the program declares; to backfill, local[*].",
        "",
    ),
    conf: options.Conf = None,
    py_files: options.PyFiles = None,
    dry_run: options.DryRun = False,
) -> None:
    """Have an app go on with a changed program, with all that it has stored.

    Says what changes, table by table, pins a snapshot of the moment before, and commits one version a stage: all of
    them or none. No data is rewritten; what has another meaning now is refused. A runner of the old program stops.

    With --backfill, columns that this migration or an earlier one added get the values that they would have had, as
    far back as Kafka goes; the app runs meanwhile. Broken off, the same command goes on.
    """
    if since and not backfill:
        raise Usage("--from goes with --backfill")
    renames, stages = _renames("--rename", "column", rename), _renames("--rename-stage", "stage", rename_stage)
    settings = session.settings
    by_settings = settings.run_options(None if settings.brokers else {})
    spark = master or ("local[*]" if backfill else "local[1]")
    run_options = options.with_spark(session, by_settings, spark, conf, py_files)
    with reporting(session.output, quiet=session.as_json) as reporter:
        reporter.doing(f"loading {file}")
        # Spark's Python side takes a second or two.
        from ...pipeline.migrate.backfill import backfill_file
        from ...pipeline.migrate.program import migrate_file
        from ...results.programs import migrated

        given: Any = {
            "app": app_name,
            "options": run_options,
            "renames": renames,
            "stages": stages,
            "dry_run": dry_run,
            "news": reporter,
        }
        past = backfill_file(str(file), since=since, **given) if backfill else None
        done = past.migrated if past is not None else migrate_file(str(file), **given)
    session.show(migrated(done, past, str(file), session.flags, dry_run=dry_run))


def _renames(option: str, what: str, said: list[str] | None) -> dict[str, str]:
    found: dict[str, str] = {}
    for each in said or ():
        old, equals, new = each.partition("=")
        if not (old and equals and new):
            raise Usage(f"{option} {each!r} names no {what} and what it is called; expected OLD=NEW")
        if old in found:
            raise Usage(f"{option} names {old!r} twice")
        found[old] = new
    return found
