"""Verbs that change stored state, such as rewind, reset, promote, edit, forget, compact and gc."""

from pathlib import Path
from typing import Unpack

from ...client.declared.operations import (
    CompactOptions,
    EditOptions,
    ForgetOptions,
    GuardedOptions,
    PromoteOptions,
    RemoveOptions,
    RepairOptions,
    ResetOptions,
    RetentionOptions,
    RewindOptions,
)
from ...client.show.shown import Result
from ...common import runtime
from ...common.durations import HOUR_MS
from ...errors import Usage
from ..options import (
    APP,
    DRY_RUN,
    FORGOTTEN_KEY,
    STAGE,
    TABLE,
    Repeated,
    argument,
    duration_option,
    flag,
    option,
    parse_keys,
    parse_pairs,
    program_option,
)
from ..session import Session, group, throttle, verb


@verb(
    "slackwater rewind flights@before-upgrade --dry-run",
    "slackwater rewind flights --before-deploy",
    "slackwater rewind flights/carriers@v16 --keep-offsets    # repair the tables, and keep the offsets",
    kafka=True,
    changes=True,
)
def rewind(
    session: Session,
    to: str = argument("APP[@REF]", "The app and the moment to roll back to."),
    **options: Unpack[RewindOptions],
) -> None:
    app, ref = session.app(to), to if "@" in to or "/" in to else ""
    session.show(app.rewind(ref, **options))


@verb(
    "slackwater reset flights --all-topics --to-earliest --dry-run",
    "slackwater reset flights --topic flights:0,1 --shift-by -1000",
    "slackwater reset flights --topic flights --to-datetime 2026-11-21T07:12Z",
    "slackwater reset flights --topic flights --by-duration PT30M --message 'the feed sent them again'",
    kafka=True,
    changes=True,
)
def reset(
    session: Session,
    app_name: str = APP,
    topic: Repeated = option("NAME[:0,1]", "A topic that the app reads, or some of its partitions. May be repeated."),
    **options: Unpack[ResetOptions],
) -> None:
    session.show(session.app(app_name).reset(*(topic or ()), **options))


@verb(
    "slackwater promote flights-staging --over flights --dry-run",
    "slackwater promote flights-staging --over flights --message 'delays by carrier'",
    "slackwater promote --back --over flights",
    kafka=True,
    changes=True,
)
def promote(
    session: Session,
    staging: str = argument("[STAGING]", "The clone that takes over.", ""),
    over: str = option("APP", "The app whose name and sinks it takes over.", ...),
    **options: Unpack[PromoteOptions],
) -> None:
    with session.progress() as progress:
        if bool(staging) == options["back"]:
            raise Usage(
                "give either STAGING or --back: STAGING gets the name, --back returns it to the app that had it before"
            )
        # With --back, the app that has the name gives the name back; otherwise the clone takes the name.
        app, name = (session.app(over), "") if options["back"] else (session.app(staging), over)
        done = app.promote(name, on_wait=progress, **options)
    session.show(done)


@verb(
    "slackwater edit flights/carriers --sql \"UPDATE carriers SET delay = 0 WHERE carrier = 'UA'\" --dry-run",
    "slackwater edit flights/carriers --sql \"DELETE FROM carriers WHERE n < 0\" --message 'a count is never negative'",
    "slackwater edit flights/carriers --rows corrected.parquet",
    changes=True,
)
def edit(
    session: Session,
    table_name: str = TABLE,
    sql: str = option(
        "SQL", "One UPDATE, DELETE, INSERT or MERGE on the table, in DuckDB SQL; may read the app's other tables.", ""
    ),
    rows: Path | None = option(
        "FILE", "Parquet, CSV or JSON file with rows to upsert, with all columns of the table.", exists=True
    ),
    hide_values: bool = flag("--hide-values", "Show only the number of changed rows."),
    **options: Unpack[EditOptions],
) -> None:
    app, name = session.table(table_name)
    session.show(app.edit(name, sql, rows=rows or "", show_values=not hide_values, **options))


@verb(
    "slackwater repair flights --drop 'flights[1]@49625' --code flights.py --dry-run",
    "slackwater repair flights --drop 'flights[1]@49625' --no-sinks --message 'sent twice'",
    "slackwater repair flights --replace 'flights[1]@49625=corrected.json'",
    "slackwater repair flights --undo",
    kafka=True,
    changes=True,
)
def repair(
    session: Session,
    app_name: str = APP,
    drop: Repeated = option("RECORD", "Record to take out: TOPIC[PARTITION]@OFFSET, in quotes. May be repeated."),
    replace: Repeated = option("RECORD=FILE", "Record and a file with the value to put in its place. May be repeated."),
    code: Path | None = program_option("The program that ran."),
    **options: Unpack[RepairOptions],
) -> None:
    pairs = parse_pairs("--replace", replace, "RECORD=FILE", "flights[1]@49625=corrected.json")
    with session.progress() as progress:
        done = session.app(app_name).repair(drop=drop or (), replace=pairs, code=code, on_progress=progress, **options)
    session.show(done)


@verb(
    "slackwater rescale flights/carriers --partitions 8",
    "slackwater rescale flights/aircraft --partitions 2 --dry-run",
    changes=True,
)
def rescale(
    session: Session,
    stage: str = STAGE,
    partitions: int = option("N", "New number of state partitions.", ..., min=1),
    dry_run: bool = DRY_RUN,
) -> None:
    """Change the number of state partitions of a stage's table.

    One commit, whatever the table's size: no state is copied. Fences a running stage; start it again, with the same
    program. Earlier moments and clones are unaffected.
    """
    app, name = session.stage(stage)
    session.show(app.rescale(name, partitions, dry_run=dry_run))


@verb("slackwater retire flights/carriers --dry-run", "slackwater retire flights/carriers", kafka=True, changes=True)
def retire(session: Session, stage: str = STAGE, **options: Unpack[GuardedOptions]) -> None:
    """Drop a stage that was removed from the program.

    Afterwards snapshots, clones, verify and the lag ignore the stage, and gc may delete input that it has not read. Its
    history and table are kept: APP/STAGE is its last state. A program that declares the stage again continues it from
    there. Retire receivers before senders.
    """
    app, name = session.stage(stage)
    session.show(app.retire(name, **options))


@verb(
    "slackwater compact flights --dry-run",
    "slackwater compact flights --stage carriers --full",
    "slackwater compact flights --watch --threads 2     # beside: slackwater run flights.py --compaction external",
    changes=True,
    runs_long=True,
)
def compact(
    session: Session,
    app_name: str = APP,
    stage: Repeated = option("NAME", "Only the table of this stage. Default: all. May be repeated."),
    watch: bool = flag("--watch", "Run due merges until Ctrl-C or SIGTERM."),
    every: int = duration_option("How often --watch looks for work. Default: 5s.", 5000, min_ms=100, bare_seconds=True),
    **options: Unpack[CompactOptions],
) -> None:
    from ...client.show.maintenance import compacted_line

    if watch and (options["full"] or options["dry_run"]):
        raise Usage(f"--watch and {'--full' if options['full'] else '--dry-run'} exclude each other")
    app, stages = session.app(app_name), stage or []
    if options["dry_run"]:
        session.show(app.compact(stages, **options))
        return
    runtime.lower_priority()
    if not watch:
        with session.progress() as progress:
            done = app.compact(stages, on_version=lambda version: progress(compacted_line(version)), **options)
        session.show(done)
        return
    from ...pipeline.run.stopping import stop_signals

    every_s = every / 1_000
    retry_note = f"trying again in {every_s:g} s"

    def put_off(stage: str, error: Exception) -> None:
        session.note(f"compaction of {app.name}/{stage} postponed; {retry_note}")
        session.show_error(error)

    # Without --watch, a signal ends the process immediately.
    with stop_signals() as stop:
        app.compactor(stages, options["threads"], stop).watch(
            every_s,
            on_version=lambda done: session.show(Result(done, compacted_line(done))),
            on_failure=put_off,
            on_unavailable=lambda error: session.note(f"{error.message}; {retry_note}"),
        )


@verb(
    "slackwater gc flights --dry-run",
    "slackwater gc flights --all 1d --hourly 7d",
    "slackwater gc flights --explain flights/stages/carriers/sst/01K9TZ3Y5C8V0WQ2X4N6M8R0TB.parquet",
    changes=True,
    declared_first=True,
)
def gc(
    session: Session,
    app_name: str = APP,
    margin: int = duration_option("Keep unreferenced objects for this long. Default and minimum: 1h.", HOUR_MS),
    explain: str | None = option("OBJECT", "Explain why this object is kept or not; delete nothing."),
    dry_run: bool = DRY_RUN,
    **rules: Unpack[RetentionOptions],
) -> None:
    session.show(session.app(app_name).gc(margin_ms=margin, explained=explain or "", dry_run=dry_run, **rules))


app = group("Remove an app.", "slackwater app rm flights-staging --dry-run")


@verb(
    "slackwater app rm flights-staging --dry-run",
    "slackwater app rm flights-staging --topics          # with its topics and consumer groups in Kafka",
    parent=app,
    kafka=True,
    changes=True,
)
def rm(session: Session, app_name: str = APP, **options: Unpack[RemoveOptions]) -> None:
    session.show(session.app(app_name).remove(**options))


@verb(
    "slackwater protect flights --message 'production'",
    "slackwater protect flights --off --yes-really flights",
    changes=True,
)
def protect(
    session: Session,
    app_name: str = APP,
    off: bool = flag("--off", "Turn the protection off."),
    yes_really: str = option("APP", "Confirm with the app's name. Default: prompt.", ""),
) -> None:
    """Require the app's name to confirm destructive commands.

    These are rewind, reset, edit, repair, forget, retire, promote, app rm, clone rm and clone refresh. At a terminal,
    the command asks for the name; scripts pass --yes-really APP. After a promotion, the new app is protected.
    """
    app = session.app(app_name)
    session.show(app.unprotect(yes_really=yes_really) if off else app.protect())


@verb(
    "slackwater archive flights",
    "slackwater archive flights --from flights@-7d --dry-run",
    "slackwater archive flights --from beginning        # everything read that Kafka still has",
    kafka=True,
    changes=True,
)
def archive(
    session: Session,
    app_name: str = APP,
    start: str = option(
        "REF", "Add the records read since this moment (or `beginning`) that Kafka still has.", "", name="--from"
    ),
    dry_run: bool = DRY_RUN,
) -> None:
    """Show the input archives of an app, and fill them from Kafka.

    With input = "30d" under [retention] in slackwater.toml, a run archives what it reads as Parquet, for replays,
    bisects, trials and input('TOPIC') of a query. --from adds records that the app read before the archive was turned
    on. Resumable.
    """
    with session.progress() as progress:
        result = session.app(app_name).archive(start or None, dry_run=dry_run, on_progress=progress)
    session.show(result)


@verb(
    "slackwater forget shop/customers 4711 --dry-run",
    "slackwater forget shop --key customers=4711 --key orders_by_customer=4711 --message 'request 2026-118'",
    "slackwater forget shop --keys gone.txt",
    "slackwater forget shop/baskets DE 17",
    "slackwater forget shop/people ada@example.org --also Ada@Example.org --field 'people=$.user.email'",
    kafka=True,
    changes=True,
)
def forget(
    session: Session,
    where: str = argument("APP[/TABLE]", "The app, or one of its tables followed by KEY."),
    words: list[str] = argument("KEY", "A key of that table, written as for get.", []),
    key: Repeated = FORGOTTEN_KEY,
    give_up: bool = flag("--give-up", "Abandon an interrupted forget whose keys are lost."),
    **options: Unpack[ForgetOptions],
) -> None:
    app, keys = session.app(where), parse_keys(where, words, key or [], options["files"])
    if give_up:
        if keys or options["files"]:
            raise Usage("--give-up takes no keys; with the keys, run the same forget again to finish it")
        session.show(app.give_up_forgetting())
        return

    with session.progress() as progress:
        done = app.forget(keys, on_progress=throttle(progress), **options)
    session.show(done)
