"""`slackwater migrate`: an app goes on with a changed program."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ... import instants
from ...errors import Usage
from ...results import formats
from ...results.document import Block
from .. import options
from ..reporter import reporting
from ..session import Session, verb

if TYPE_CHECKING:
    from ...pipeline.migrate.backfilled import Backfilled, Filled
    from ...snapshot.migrate.migrate import Migrated


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
    data, words = _data(done, dry_run), _words(done, str(file), dry_run, session.flags)
    if past is None:
        session.show(data, *words)
    else:
        session.show({**data, "backfill": _past_data(past)}, *words, *past_words(past, dry_run))


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


def _words(done: "Migrated", file: str, dry_run: bool, flags: str) -> Iterator[Block]:
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


def _past_data(past: "Backfilled") -> dict[str, Any]:
    return {
        "columns": [
            {
                "stage": each.target.stage,
                "columns": each.target.columns,
                "since": each.target.since,
                "version": each.version or None,
                "complete_from": each.starts,
                "until": each.target.ends,
                "whole": each.whole,
                "records": each.records,
                "from_ms": each.from_ms,
                "keys": each.keys,
                "keys_exact": each.keys_exact,
                "ssts": each.ssts,
                "bytes": each.bytes,
                "needed": each.needed or None,
            }
            for each in past.filled
        ],
        "left": past.left,
    }


def past_words(past: "Backfilled", dry_run: bool) -> Iterator[Block]:
    """What a backfill did, or would do, column by column."""
    if not past.filled and not past.left:
        yield "nothing to backfill: no column is without the past"
    for each in past.filled:
        target, columns, read = each.target, ", ".join(each.target.columns), _read_of(each)
        if dry_run:
            yield f"{target.stage}: {columns} would be computed from {read}"
        else:
            keys, ssts = formats.plural(each.keys, "key"), formats.plural(each.ssts, "SST")
            keys = keys if each.keys_exact else f"at most {keys}"
            yield f"{target.stage}  v{each.version}"
            yield f"  {columns} computed from {read}"
            yield f"  {keys} brought in by one commit, {ssts} rewritten, {formats.size(each.bytes)}"
        yield f"  {_complete(each)}"
        if each.needed:
            yield f"  {each.needed} stays, as a batch under way may need it; the next --backfill removes it"
    for left in past.left:
        stay = "stays" if len(left.columns) == 1 else "stay"
        yield f"{left.stage}: {', '.join(left.columns)} {stay} as before: {left.why}"
        if left.hint:
            yield f"  {left.hint}"


def _read_of(each: "Filled") -> str:
    windows = [formats.between(topic, at, each.target.ends[topic]) for topic, at in each.starts.items()]
    told = ", ".join(filter(None, windows)) or "nothing: nothing was read before"
    since = f", from {instants.iso(each.from_ms)} on" if each.from_ms is not None else ""
    return f"{told} (about {formats.plural(each.records, 'record')}{since})"


def _complete(each: "Filled") -> str:
    if each.whole:
        return "complete: of all that the stage ever read"
    return f"complete from {formats.starts(each.starts)} on; what came before is not in it"
