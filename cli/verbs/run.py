"""`slackwater run`: the one verb that starts Spark."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ...durations import format_ms
from ...settings import load
from .. import humane, options
from ..output import Output, output_for
from ..reporter import reporting

if TYPE_CHECKING:
    from ...pipeline.batch.batch_report import BatchReport
    from ...pipeline.run.metrics import Metrics
    from ...pipeline.run.options import Options

__all__ = ["app"]

app = typer.Typer(add_completion=False)


class Compaction(StrEnum):
    """Who merges SSTs."""

    inline = "inline"
    external = "external"


@app.command(
    epilog=options.examples(
        "slackwater run flights.py",
        "slackwater run flights.py --until-caught-up --max-records 50000",
        "slackwater run flights.py --stage carriers --master 'local[4]'",
        "slackwater run flights.py --master spark://head:7077 --conf spark.executor.memory=2g --py-files rules.zip",
        "slackwater run flights.py --metrics 9464             # for Prometheus",
        "slackwater run flights.py --app flights-staging      # the same program as a clone of it",
    )
)
def run(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="Python file that declares the app.", show_default=False)
    ],
    stage: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Run only this stage; may be repeated. Default: all of them."),
    ] = None,
    app_name: Annotated[
        str | None,
        typer.Option("--app", metavar="NAME", help="Run the program as this app, for example as a clone."),
    ] = None,
    until_caught_up: Annotated[
        bool, typer.Option("--until-caught-up", help="Stop when all that is there at the start is read.")
    ] = False,
    max_records: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=1, help="At most this many records of an input a batch. Default: as the program says."
        ),
    ] = None,
    trigger: Annotated[
        int | None, options.span("Shortest time from batch to batch. Default: as the program says.")
    ] = None,
    max_unflushed: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=0,
            help="How many versions a stage may run ahead of its last commit. Default: as the program says.",
        ),
    ] = None,
    accept_loss: Annotated[
        bool, typer.Option("--accept-loss", help="Go on when offsets not read yet are gone from Kafka.")
    ] = False,
    master: Annotated[str, typer.Option(metavar="URL", help="Spark master.")] = "local[*]",
    conf: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="A setting of Spark, before all others; may be repeated."),
    ] = None,
    py_files: Annotated[
        list[str] | None,
        typer.Option(metavar="FILES", help="Python files and zips for the tasks, comma between; may be repeated."),
    ] = None,
    patience: Annotated[
        int, options.span("How long to wait for a broker or store that is away. Default: 2m.", bare_seconds=True)
    ] = 120_000,
    metrics: Annotated[
        int | None,
        typer.Option(metavar="PORT", min=0, max=65535, help="Serve metrics for Prometheus there; 0 for a free port."),
    ] = None,
    compaction: Annotated[
        Compaction,
        typer.Option(help="Merge SSTs beside the batches, or leave that to `slackwater compact --watch`."),
    ] = Compaction.inline,
    compaction_threads: Annotated[
        int, typer.Option(metavar="N", min=1, help="Merges of each stage that go on at once beside the batches.")
    ] = 1,
    store: options.Store = None,
    kafka: options.Kafka = None,
    as_json: options.Json = False,
) -> None:
    """Run an app, or some of its stages, from where it stopped.

    Prints a line for each commit, and on standard error what it is doing meanwhile. Ctrl-C or SIGTERM stops it: the
    batch under way ends first, or is dropped whole after some seconds; a second Ctrl-C does not wait for it. A second
    runner of the same stage takes it over; the first says so and stops.
    """
    settings, output = load(store=store, kafka=kafka), output_for(json=as_json)
    root, brokers = settings.store_root(), settings.kafka()
    from ...pipeline.run.options import Options
    from ...pipeline.spark.conf import check_py_files, secrets_in, settings_of

    spark_conf = settings_of(conf or ())
    if secrets := secrets_in(spark_conf):
        output.note(
            f"{', '.join(secrets)}: a secret on the command line can be read by everybody on this machine (`ps`); "
            "slackwater needs none there, and for other uses it can stand in spark-defaults.conf"
        )
    files = check_py_files(file for files in py_files or () for file in files.split(","))
    _run(
        str(file),
        app=app_name,
        options=Options(
            store=root,
            kafka=brokers,
            s3=settings.s3,
            stages=tuple(stage or ()),
            until_caught_up=until_caught_up,
            max_records=max_records,
            trigger=None if trigger is None else format_ms(trigger),
            max_unflushed=max_unflushed,
            accept_loss=accept_loss,
            master=master,
            spark_conf=spark_conf,
            py_files=files,
            patience_s=patience / 1_000,
            cache_folder=Path(settings.cache),
            cache_bytes=settings.cache_max_bytes,
            compaction_threads=compaction_threads if compaction is Compaction.inline else 0,
            cache_memory_bytes=settings.cache_memory_bytes,
            prefetch=settings.prefetch,
        ),
        output=output,
        quiet=as_json,
        metrics=metrics,
    )


def _run(file: str, *, app: str | None, options: "Options", output: Output, quiet: bool, metrics: int | None) -> None:
    from ...pipeline.run.stopping import stop_signals

    with reporting(output, quiet=quiet) as reporter, stop_signals(reporter.asked) as stop:
        reporter.doing(f"loading {file}")
        with stop.at_once():
            # Spark's Python side takes a second or two.
            from ...pipeline.run.program import run_file

        observed = _serve(metrics, output) if metrics is not None else None

        def on_commit(commit: "BatchReport") -> None:
            reporter.show(commit, _line(commit))
            if observed is not None:
                observed.observe(commit)

        if observed is not None:
            reporter.also_told = observed.observe_lags
        run_file(file, app=app, options=options, on_commit=on_commit, news=reporter, stop=stop)


def _serve(port: int, output: Output) -> "Metrics":
    from ...pipeline.run.metrics import Metrics

    metrics = Metrics()
    output.note(f"metrics: http://localhost:{metrics.serve(port)}/metrics")
    return metrics


def _line(commit: "BatchReport") -> str:
    rate = commit.rows_in / commit.seconds if commit.seconds else 0
    words = (
        humane.moment(commit.time_ms),
        f"{commit.stage} v{commit.version}",
        humane.plural(commit.rows_in, "row"),
        f"{humane.plural(commit.keys, 'key')} written" if commit.keys else "",
        f"{humane.count(commit.rows_out)} out" if commit.rows_out else "",
        f"{commit.seconds:.1f} s ({rate:,.0f}/s)",
        f"held back {commit.stall_seconds:.1f} s by {commit.state.l0_files} L0 SSTs" if commit.stall_seconds else "",
        f"{commit.unflushed} unflushed" if commit.unflushed else "",
        humane.windows(commit.windows),
        f"snapshot {', '.join(commit.snapshots)}" if commit.snapshots else "",
    )
    return "  ".join(filter(None, words))
