"""Verbs that create programs, and state from programs and queries: new, run, attach, adopt, init, migrate."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Unpack

import typer

from ...client.declared.operations import InitOptions, MigrateOptions
from ...client.show import formats
from ...common import runtime
from ...common.extras import require_extras
from ...errors import Usage
from ..options import CONF, DRY_RUN, PY_FILES, STAGE, Repeated, argument, duration_option, flag, option, program_option
from ..reporter import reporting
from ..session import Session, verb

if TYPE_CHECKING:
    from ...operations.exchange.initialise import LoadProgress
    from ...pipeline.run.options import Options


@verb(
    "slackwater new shop",
    "slackwater new shop --folder . --dry-run",
    store=False,
)
def new(
    session: Session,
    app: str = argument("APP", "Name of the new app."),
    folder: Path | None = option("DIR", "Folder of the project. Default: the app's name.", name="--folder"),
    dry_run: bool = DRY_RUN,
) -> None:
    """Write a project that runs: program, feeder, test and workflow.

    The workflow runs the test on each push, and `trial` on each pull request. No existing file is replaced.
    """
    from ...client.project.result import project_result
    from ...client.project.write import write_project

    session.show(project_result(write_project(app, folder, dry_run=dry_run), dry_run=dry_run))


@verb(
    "slackwater run flights.py",
    "slackwater run flights.py --until-caught-up --max-records 50000",
    "slackwater run flights.py --stage carriers --master 'local[4]'",
    "slackwater run flights.py --master spark://head:7077 --conf spark.executor.memory=2g --py-files rules.zip",
    "slackwater run flights.py --metrics 9464             # for Prometheus",
    "slackwater run flights.py --app flights-staging      # the same program as a clone of it",
    kafka=True,
    runs_long=True,
)
def run(
    session: Session,
    file: Path = argument("FILE", "Python file that declares the app."),
    stage: Repeated = option("NAME", "Run only this stage. Default: all. May be repeated."),
    app_name: str | None = option(
        "NAME", "Run as this app, for example a clone. Default: the program's name.", name="--app"
    ),
    until_caught_up: bool = flag(
        "--until-caught-up",
        "Stop once all records present at the start, and their results in later stages, are processed.",
    ),
    max_records: int | None = option("N", "Maximum records per input and batch. Overrides the program.", min=1),
    trigger: int | None = duration_option("Minimum time between batch starts. Overrides the program."),
    max_unflushed: int | None = option(
        "N", "Versions that a stage may run ahead of its last commit. Overrides the program.", min=0
    ),
    accept_loss: bool = flag(
        "--accept-loss", "Skip unread records that Kafka has deleted, and continue on recreated topics."
    ),
    master: str = option("URL", "Spark master.", "local[*]"),
    conf: Repeated = CONF,
    py_files: Repeated = PY_FILES,
    patience: int = duration_option(
        "How long to wait for an unreachable broker or store. Default: 2m.", 120000, bare_seconds=True
    ),
    metrics: int | None = option(
        "PORT", "Serve Prometheus metrics on this port; 0 picks a free one.", min=0, max=65535
    ),
    hung_after: int = duration_option(
        "With --metrics: fail /livez after this long without progress while there is work. Default: 10m.",
        600_000,
        min_ms=10_000,
    ),
    compaction: Literal["inline", "external"] = option(
        None, "Merge SSTs in this process, or leave it to `slackwater compact --watch`.", "inline"
    ),
    compaction_threads: int = option("N", "Parallel merges per stage.", 1, min=1),
    gc: str = option("SPAN", "How often to run gc when [retention] has rules; 'off' disables it.", "1h"),
) -> None:
    """Run an app, or some of its stages, from where it stopped.

    Prints a line per commit on stdout, progress on stderr. Ctrl-C or SIGTERM stops the app with exit code 0; the
    current batch gets some seconds to finish, a second Ctrl-C discards it. A second runner of a stage takes it over:
    the first is fenced and exits.
    """
    by_settings = session.settings.run_options()  # raises early if a setting is missing
    from ...pipeline.run.options import parse_gc_interval
    from ...pipeline.run.stopping import stop_signals

    chosen = replace(
        _with_spark(session, by_settings, master, conf, py_files),
        stages=tuple(stage or ()),
        until_caught_up=until_caught_up,
        max_records=max_records,
        trigger_ms=trigger,
        max_unflushed=max_unflushed,
        accept_loss=accept_loss,
        patience_s=patience / 1_000,
        compaction_threads=compaction_threads if compaction == "inline" else 0,
        gc_every_ms=parse_gc_interval("--gc", gc),
    )
    with reporting(session) as reporter, stop_signals(reporter.on_stop_requested) as stop:
        reporter.on_activity(f"loading {file}")
        with stop.interruptible():
            # Importing PySpark takes a second or two.
            from ...pipeline.listener import Listener, Listeners
            from ...pipeline.run.program import run_file

        listener: Listener = reporter
        if metrics is not None:
            from ...pipeline.run.monitoring import Health, Metrics

            observed = Metrics(Health(hung_after / 1_000))
            session.note(f"metrics: http://localhost:{observed.serve(metrics)}/metrics")
            listener = Listeners(reporter, observed, observed.health)
        run_file(str(file), app=app_name, options=chosen, listener=listener, stop=stop)


def _with_spark(
    session: Session, options: "Options", master: str, conf: list[str] | None, py_files: list[str] | None
) -> "Options":
    """Return the options with Spark's settings, and print a note that names secrets in them.

    Raises `Refused` without Spark, `Usage`, and `NotFound` for a file.
    """
    require_extras("spark", "running a program")
    from ...pipeline.spark.conf import check_py_files, parse_settings, secret_names

    spark_conf = parse_settings(conf or ())
    if secrets := secret_names(spark_conf):
        instead = "slackwater does not need it there; for other uses, put it into spark-defaults.conf"
        why = "a secret on the command line is visible to every user of this machine (`ps`)"
        session.note(f"{', '.join(secrets)}: {why}; {instead}")
    files = check_py_files(file for files in py_files or () for file in files.split(","))
    return replace(options, master=master, spark_conf=spark_conf, py_files=files)


_FORMATS = "string, bytes, long, int, double, json, registry, FILE:FUNCTION"


@verb(
    "slackwater attach /checkpoints/totals --app shop --dry-run",
    "slackwater attach /checkpoints/totals --app shop          # while the query runs, unchanged",
    "slackwater attach s3://bucket/checkpoints/totals --app shop --stage countries --once",
    "slackwater attach kafka:shop-totals-changelog --app shop --key string --value long",
    kafka=True,
    changes=True,
    runs_long=True,
)
def attach(
    session: Session,
    source: str = argument(
        "SOURCE",
        "Checkpoint of a Spark query (a folder, s3://bucket/prefix, or any path that Spark reads), or kafka:TOPIC.",
    ),
    app_name: str = option("APP", "Name of the app.", ..., name="--app"),
    stage: str = option(
        "STAGE", "Name of the stage and its table. Default: that of the checkpoint's folder or topic.", ""
    ),
    once: bool = flag("--once", "Read the existing batches and exit."),
    every: int = duration_option("How often to look for a new batch. Default: 1s.", 1_000, name="--every", min_ms=100),
    partitions: int = option("N", "State partitions of new tables.", 4, min=1),
    key: str = option(
        "FORMAT", f"Of a topic's keys: {_FORMATS}, windowed:FORMAT, session:FORMAT. Default: string.", ""
    ),
    value: str = option("FORMAT", f"Of a topic's values: {_FORMATS}. Default: json.", ""),
    columns: str = option("DDL", "Types of a topic's value fields, 'amount double, …'. Default: inferred.", ""),
    registry: str = option("URL", "Schema registry, for the format registry.", ""),
    master: str | None = option("URL", "Spark master for reading the checkpoint. Default: all cores of this machine."),
    conf: list[str] = CONF,
    dry_run: bool = DRY_RUN,
) -> None:
    """Follow a Spark query by its checkpoint, or a compacted topic.

    The writer keeps running unchanged; its data is only read. A query's state, a KTable, or the changelog of a Kafka
    Streams store becomes an app that you can query, diff, bisect, watch and export. The history begins with the oldest
    batch that the checkpoint can restore, or with the newest row of each key of the topic; batches that were cleaned up
    unread become one version. Runs until Ctrl-C or SIGTERM; resumable. A second attach replaces the first.
    """
    from ...client import attaching
    from ...pipeline.run.stopping import stop_signals

    if once and dry_run:
        raise Usage("--once and --dry-run exclude each other")

    formats = {"key": key, "value": value, "columns": columns, "registry": registry}
    how: dict[str, Any] = {"formats": {name: text for name, text in formats.items() if text}}
    starting = "reading the topic"
    if not source.startswith(attaching.TOPIC_PREFIX):
        require_extras("spark", "reading a checkpoint")
        from ...pipeline.spark.conf import parse_settings

        how, starting = how | {"spark_conf": parse_settings(conf or ())}, "starting Spark, which reads the checkpoint"
    opening = attaching.open_tail(
        session.client, source, app_name, stage=stage, partitions=partitions, master=master, **how
    )
    # On a shared machine, the query has a higher priority than this process.
    runtime.lower_priority()
    with stop_signals() as stop, stop.interruptible():
        with session.progress() as progress:
            progress(starting)
        with opening as tail:
            if once or dry_run:
                tell = session.show if not session.as_json else lambda _landed: None
                session.show(attaching.attach_batches(session.client, tail, tell, dry_run=dry_run))
                return
            followed = attaching.make_follower(session.client, tail, session.show)
            followed.run(stop, every / 1_000, lambda error: session.note(f"{error.message}; trying again"))


_DRAW_S = 0.1


@verb(
    "slackwater adopt /checkpoints/totals shop.py --stage totals --emit-program   # a declaration to begin with",
    "slackwater adopt /checkpoints/totals shop.py --stage totals --dry-run",
    "slackwater adopt /checkpoints/totals shop.py --stage totals --shadow         # while the query runs",
    "slackwater adopt /checkpoints/totals shop.py --stage totals                  # once it was stopped",
    "slackwater adopt /checkpoints/totals shop.py --stage totals --from-batch 8123",
    kafka=True,
    changes=True,
)
def adopt(
    session: Session,
    checkpoint: str = argument("CHECKPOINT", "Checkpoint of a Spark query: a folder or s3://bucket/prefix."),
    program: str = argument("PROGRAM", "Python file that declares the app."),
    stage: str = option("STAGE", "The stage that continues the query.", ..., name="--stage"),
    app_name: str = option("NAME", "Name of the app. Default: the program's.", "", name="--app"),
    from_batch: int | None = option(
        "N", "Continue from the end of this batch, for example when a later one is damaged. Default: the newest.", min=0
    ),
    offsets: Repeated = option(
        "TOPIC=WHERE", "Start of a topic that the query's offsets do not cover, written as for init. May be repeated."
    ),
    attached: str = option("APP", "Also take over the history of this app, which was attached to the query.", ""),
    emit_program: bool = flag("--emit-program", "Write a draft of PROGRAM that declares the stage, and exit."),
    shadow: bool = flag("--shadow", "Compare the stage with the running query, batch by batch. Adopts nothing."),
    batches: int | None = option("N", "With --shadow: exit after N batches. Default: on Ctrl-C.", min=1),
    master: str | None = option("URL", "Spark master for reading the checkpoint. Default: all cores of this machine."),
    conf: list[str] = CONF,
    dry_run: bool = DRY_RUN,
) -> None:
    """Turn a stopped Spark query, with its state, into a stage.

    Each batch that the checkpoint still has becomes a version of the stage; the last is compared with what Spark reads.
    `slackwater run PROGRAM` then continues at the next offset. Atomic and resumable; the checkpoint is only read. If
    columns do not fit the declared table, they are listed and nothing is written.

    --shadow compares the program with the running query instead, and exits with 1 if rows differ.
    """
    from ...client import attaching
    from ...client.show import programs as shown
    from ...pipeline.run.stopping import stop_signals
    from ...pipeline.spark.conf import parse_settings

    if sum((emit_program, shadow, dry_run)) > 1:
        raise Usage("--emit-program, --shadow and --dry-run exclude each other")
    if emit_program and not program.endswith(".py"):
        raise Usage(f"a program is a Python file: expected a name that ends with .py, found {program}")
    if batches is not None and not shadow:
        raise Usage("--batches needs --shadow")
    starting = "starting Spark, which reads the checkpoint"
    spark_conf = parse_settings(conf or ())
    query = attaching.request_adoption(
        checkpoint, program, stage, app_name, tuple(offsets or ()), from_batch, attached, master, spark_conf
    )
    if not shadow:
        with session.progress() as progress:
            progress(starting)
            if emit_program:
                done = attaching.emit_program(query)
            else:
                done = attaching.adopt(session.client, query, partial(progress, ""), dry_run=dry_run)
        session.show(done)
        return
    with stop_signals() as stop, stop.interruptible():
        with session.progress() as progress:
            progress(starting)
        compared = differing = 0
        with attaching.open_shadow(session.client, query) as comparison:
            while not stop.is_set() and compared != batches:
                for batch in comparison.compare_new_batches():
                    session.show(shown.shadow_result(batch, comparison.equal_batches, comparison.equal_ms))
                    compared += 1
                    differing += batch.different is not None
                    if stop.is_set() or compared == batches:
                        break
                else:
                    stop.wait(1.0)
    if differing:
        raise typer.Exit(1)


@verb(
    "slackwater init flights/aircraft aircraft.parquet --code flights.py",
    "slackwater init flights/aircraft 'old/*.csv' --code flights.py --at 2026-11-21T07:12Z --dry-run",
    "slackwater init flights/aircraft --code flights.py --offsets flights=latest --sql \"SELECT … FROM 'old.parquet'\"",
    'slackwater init flights/aircraft rows.parquet --code flights.py --offsets \'flights={"0":23,"1":42}\'',
    kafka=True,
    changes=True,
)
def init(
    session: Session,
    stage: str = STAGE,
    file: str = argument("FILE", "Rows: a Parquet, CSV or JSON file, a glob or a URL, read by DuckDB.", ""),
    code: Path | None = program_option("The program that declares the app."),
    offsets: list[str] = option(
        "TOPIC=WHERE",
        "Where to start reading a topic: earliest, latest, or JSON as in Spark's startingOffsets. "
        "Default: the program's. May be repeated.",
        [],
    ),
    **options: Unpack[InitOptions],
) -> None:
    from ...client.show.programs import init_result

    app, _ = session.stage(stage)
    program = session.client.program_path(app.name, code, "that declares the table")
    last_s, is_sorted = 0.0, False
    require_extras("spark", "reading the program's columns")
    with session.progress() as progress:
        progress("starting Spark, which knows the program's columns")

        def on_progress(so_far: "LoadProgress") -> None:
            nonlocal last_s, is_sorted
            rows = formats.plural(so_far.read, "row")
            line = f"read and sorted {rows}" if so_far.rows and not is_sorted else ""
            if line or runtime.monotonic() - last_s > _DRAW_S:
                last_s, is_sorted = runtime.monotonic(), so_far.rows > 0
                wrote = (
                    f"{formats.progress_bar(so_far.rows, so_far.read)}  wrote {so_far.rows:,} of {so_far.read:,} rows"
                )
                progress(line, wrote if so_far.rows else f"read {rows}")

        how: Any = {"offsets": offsets or (), "on_progress": on_progress, **options}
        done = session.client.init(stage, file, code=program, **how)
    session.show(init_result(done, program, dry_run=options["dry_run"]))


@verb(
    "slackwater migrate flights.py --dry-run",
    "slackwater migrate flights.py --rename delay=delay_min",
    "slackwater migrate flights.py --rename-stage carriers=airlines",
    "slackwater migrate flights.py --app flights-staging   # a clone first",
    kafka=True,
    changes=True,
)
def migrate(
    session: Session,
    file: Path = argument("FILE", "The changed program."),
    app_name: str | None = option(
        "NAME", "Migrate this app, for example a clone. Default: the program's name.", name="--app"
    ),
    master: str = option("URL", "Spark master, used only to read the program's columns.", "local[1]"),
    conf: Repeated = CONF,
    py_files: Repeated = PY_FILES,
    **options: Unpack[MigrateOptions],
) -> None:
    """Continue an app with a changed program on its stored state.

    Shows the changes, takes a snapshot, and commits one version per stage, atomically. Metadata-only; incompatible
    changes are refused. Fences a runner of the old program. New columns are computed from new records on; for the past,
    use `slackwater clone --empty`, run and promote.
    """
    settings = session.settings
    by_settings = settings.run_options(None if settings.brokers else {})
    run_options = _with_spark(session, by_settings, master, conf, py_files)
    with reporting(session) as reporter:
        reporter.on_activity(f"loading {file}")
        # Importing PySpark takes a second or two.
        from ...client.show.programs import migration_result
        from ...operations.program_changes import migrate_file

        names: Any = {"app": app_name, "renames": options["rename"], "stages": options["rename_stage"]}
        how: Any = {"options": run_options, "dry_run": options["dry_run"], "listener": reporter}
        done = migrate_file(str(file), **names, **how)
    session.show(migration_result(done, str(file), dry_run=options["dry_run"]))
