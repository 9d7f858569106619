"""`slackwater run`: the one verb that starts Spark."""

from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from .. import options
from ..reporter import reporting
from ..session import Session, verb

if TYPE_CHECKING:
    from ...pipeline.batch.batch_report import BatchReport
    from ...pipeline.run.options import Options


class Compaction(StrEnum):
    """Who merges SSTs."""

    inline = "inline"
    external = "external"


@verb(
    "slackwater run flights.py",
    "slackwater run flights.py --until-caught-up --max-records 50000",
    "slackwater run flights.py --stage carriers --master 'local[4]'",
    "slackwater run flights.py --master spark://head:7077 --conf spark.executor.memory=2g --py-files rules.zip",
    "slackwater run flights.py --metrics 9464             # for Prometheus",
    "slackwater run flights.py --app flights-staging      # the same program as a clone of it",
    kafka=True,
)
def run(
    session: Session,
    file: Path = options.argument("FILE", "Python file that declares the app."),
    stage: list[str] | None = options.option("NAME", "Run only this stage; may be repeated. Default: all of them."),
    app_name: str | None = options.option("NAME", "Run the program as this app, for example as a clone.", name="--app"),
    until_caught_up: bool = options.flag("--until-caught-up", "Stop when all that is there at the start is read."),
    max_records: int | None = options.option(
        "N", "At most this many records of an input a batch. Default: as the program says.", min=1
    ),
    trigger: int | None = options.span("Shortest time from batch to batch. Default: as the program says."),
    max_unflushed: int | None = options.option(
        "N", "How many versions a stage may run ahead of its last commit. Default: as the program says.", min=0
    ),
    accept_loss: bool = options.flag("--accept-loss", "Go on when offsets not read yet are gone from Kafka."),
    master: str = options.option("URL", "Spark master.", "local[*]"),
    conf: options.Conf = None,
    py_files: options.PyFiles = None,
    patience: int = options.span(
        "How long to wait for a broker or store that is away. Default: 2m.", 120000, bare_seconds=True
    ),
    metrics: int | None = options.option(
        "PORT", "Serve metrics for Prometheus there; 0 for a free port.", min=0, max=65535
    ),
    compaction: Compaction = options.option(
        None, "Merge SSTs beside the batches, or leave that to `slackwater compact --watch`.", Compaction.inline
    ),
    compaction_threads: int = options.option(
        "N", "Merges of each stage that go on at once beside the batches.", 1, min=1
    ),
    gc: str = options.option("SPAN", "Collect garbage so often, if [retention] has rules: 1h, '1 day'; or off.", "1h"),
) -> None:
    """Run an app, or some of its stages, from where it stopped.

    Prints a line for each commit, and on standard error what it is doing meanwhile. Ctrl-C or SIGTERM stops it: the
    batch under way ends first, or is dropped whole after some seconds; a second Ctrl-C does not wait for it. A second
    runner of the same stage takes it over; the first says so and stops.
    """
    by_settings = session.settings.run_options()  # first says what is missing
    from ...pipeline.run.options import gc_every_ms

    chosen = replace(
        options.with_spark(session, by_settings, master, conf, py_files),
        stages=tuple(stage or ()),
        until_caught_up=until_caught_up,
        max_records=max_records,
        trigger_ms=trigger,
        max_unflushed=max_unflushed,
        accept_loss=accept_loss,
        patience_s=patience / 1_000,
        compaction_threads=compaction_threads if compaction is Compaction.inline else 0,
        gc_every_ms=gc_every_ms("--gc", gc),
    )
    _run(session, str(file), app=app_name, options=chosen, metrics=metrics)


def _run(session: Session, file: str, *, app: str | None, options: "Options", metrics: int | None) -> None:
    from ...pipeline.run.stopping import stop_signals

    with reporting(session.output, quiet=session.as_json) as reporter, stop_signals(reporter.asked) as stop:
        reporter.doing(f"loading {file}")
        with stop.at_once():
            # Spark's Python side takes a second or two.
            from ...pipeline.run.program import run_file
            from ...results.programs import commit_line

        observed = None
        if metrics is not None:
            from ...pipeline.run.metrics import Metrics

            observed = Metrics()
            session.note(f"metrics: http://localhost:{observed.serve(metrics)}/metrics")
            reporter.on_lags = observed.observe_lags

        def on_commit(commit: "BatchReport") -> None:
            reporter.show(commit, commit_line(commit))
            if observed is not None:
                observed.observe(commit)

        run_file(file, app=app, options=options, on_commit=on_commit, news=reporter, stop=stop)
