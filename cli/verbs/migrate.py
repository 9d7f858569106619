"""`slackwater migrate`: an app goes on with a changed program."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import Usage
from .. import formats, options
from ..reporter import reporting
from ..session import Session, verb
from ..terminal import Part

if TYPE_CHECKING:
    from ...snapshot.migrate.migrate import Migrated


@verb(
    "slackwater migrate flights.py --dry-run",
    "slackwater migrate flights.py --rename delay=delay_min",
    "slackwater migrate flights.py --rename-stage carriers=airlines",
    "slackwater migrate flights.py --app flights-staging   # a clone first",
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
    master: str = options.option("URL", "Spark master, which says what columns the program declares.", "local[1]"),
    conf: options.Conf = None,
    py_files: options.PyFiles = None,
    dry_run: options.DryRun = False,
) -> None:
    """Have an app go on with a changed program, with all that it has stored.

    Says what changes, table by table, pins a snapshot of the moment before, and commits one version a stage: all of
    them or none. No data is rewritten; what has another meaning now is refused. A runner of the old program stops.
    """
    renames, stages = _renames("--rename", "column", rename), _renames("--rename-stage", "stage", rename_stage)
    settings = session.settings
    by_settings = settings.run_options(None if settings.brokers else {})
    run_options = options.with_spark(session, by_settings, master, conf, py_files)
    with reporting(session.output, quiet=session.as_json) as reporter:
        reporter.doing(f"loading {file}")
        # Spark's Python side takes a second or two.
        from ...pipeline.migrate.program import migrate_file

        done = migrate_file(
            str(file), app=app_name, options=run_options, renames=renames, stages=stages, dry_run=dry_run, news=reporter
        )
    session.show(_data(done, dry_run), *_words(done, str(file), dry_run, session.flags))


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


def _data(done: "Migrated", dry_run: bool) -> dict[str, Any]:
    return {
        "app": done.plan.app,
        "migration": done.number or None,
        "snapshot": done.snapshot or None,
        "versions": done.versions,
        "finished": done.finished or None,
        "changes": done.plan.changes,
        "dry_run": dry_run,
    }


def _words(done: "Migrated", file: str, dry_run: bool, flags: str) -> Iterator[Part]:
    from ...snapshot.migrate.words import lines

    app = done.plan.app
    if done.finished:
        yield f"finished migration {done.finished}, which had been left half done"
    if not done.plan.changes:
        yield f"{app} is as {file} declares it: nothing to migrate"
        return
    for change in done.plan.changes:
        version = done.versions.get(change.stage)
        at = f"  v{version}" if version else f"  v{change.version} now" if change.version else ""
        yield f"{change.stage}{at}"
        yield from (f"  {line}" for line in lines(change))
    if dry_run:
        yield "nothing was changed (--dry-run)"
        return
    commits = formats.plural(len(done.versions), "commit")
    yield f"migration {done.number} of {app} is done: {commits}, no data rewritten"
    yield f"before it: {app}@{done.snapshot}"
    yield f"run it: slackwater run {file} --app {app}{flags}"
    yield (
        f"back to before, beside it: slackwater clone {app}@{done.snapshot} {app}-before{flags}, and run the old "
        f"program with --app {app}-before"
    )
