"""Verbs for the day on which a store is lost: replicate an app elsewhere, and recover it from there."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from ...client.declared.operations import FailoverOptions
from ...client.show.shown import Result
from ...errors import Usage
from ..options import APP, DRY_RUN, Many, flag, option, pairs, span
from ..session import Session, verb
from ..terminal import Progress

if TYPE_CHECKING:
    from ...client.failover import Round


def _copying(progress: Progress, name: str) -> Callable[[int, int], None]:
    from ...client.show.formats import size

    return lambda objects, size_bytes: progress("", f"{name}: {objects:,} objects, {size(size_bytes)} copied")


@verb(
    "slackwater replicate flights --to s3://elsewhere/slackwater                 # goes on until Ctrl-C",
    "slackwater replicate flights --to s3://elsewhere/slackwater --once          # for a job that runs now and then",
    "slackwater replicate flights --to /backup/slackwater --once --dry-run",
    kafka=True,
    changes=True,
    goes_on=True,
)
def replicate(
    session: Session,
    app_name: str = APP,
    to: str = option("ROOT", "Store root of the replica: another bucket or region.", ...),
    once: bool = flag("--once", "Copy what is new, and end."),
    every: int = span("How often it looks for what is new. Default: 10s.", 10_000, least_ms=100, bare_seconds=True),
    workers: int = option("N", "Objects that are copied at once. Each is in memory as a whole.", 8, min=1),
    metrics: int | None = option("PORT", "Serve metrics for Prometheus there; 0 for a free port.", min=0, max=65535),
    end: bool = flag("--end", "Count the replica no more in status; what was copied stays."),
    dry_run: bool = DRY_RUN,
) -> None:
    """Copy an app to another store root, all the time.

    Every version is copied as soon as it is committed. Each object is copied once. Manifests come last, senders
    before receivers, and at the end of each round one object says up to which cut all is there: so whoever reads
    the replica finds a consistent whole. It can be queried, verified, compared and cloned as the app can. With
    --kafka, what was on the way between stages is kept with it. What gc takes from the app goes there, too. Killed
    anywhere, or started twice, it goes on where it was.
    """
    from ...client.show.failover import round_data, round_line

    app = session.app(app_name)
    if end:
        session.show(app.end_replica(to))
        return
    if once or dry_run:
        with session.progress() as progress:
            on_progress = _copying(progress, app_name)
            done = app.replicate(to, workers=workers, dry_run=dry_run, on_progress=on_progress)
        session.show(done)
        return
    from ...pipeline.run.stopping import stop_signals

    copies = app.replicator(to, workers=workers)
    if copies.reader is None:
        session.note("note: nothing says where Kafka is, so records on the way are not kept (--kafka)")
    observed = None
    if metrics is not None:
        from ...operations.disaster_recovery.replica_metrics import ReplicaMetrics

        observed = ReplicaMetrics(app.name, copies.target.url)
        session.note(f"metrics: http://localhost:{observed.serve(metrics)}/metrics")

    def show(done: "Round") -> None:
        if observed is not None:
            observed.observe(done)
        if done.is_news:
            session.show(Result(round_data(to, done), round_line(app_name, to, done)))

    with stop_signals() as stop:
        copies.run(every, stop, show, lambda error: session.note(f"{error.message}; trying again"))


@verb(
    "slackwater recover flights --from s3://elsewhere/slackwater --dry-run        # what would be lost?",
    "slackwater recover flights --from s3://elsewhere/slackwater",
    "slackwater recover flights --from s3://elsewhere/slackwater --kafka other:9092 --mirror primary",
    "slackwater recover flights --from s3://elsewhere/slackwater --drill --report drill.html",
    store=False,
    kafka=True,
    changes=True,
)
def recover(
    session: Session,
    app_name: str = APP,
    from_: str = option("ROOT", "Store root of the replica: there the app runs from then on.", ..., name="--from"),
    from_offset: Many = option(
        "TOPIC[N]=OFFSET", "Read partition N on from there, whatever else is known; may be repeated."
    ),
    as_it_is: bool = flag("--as-it-is", "Copy nothing more from where the app ran."),
    drill: bool = flag("--drill", "Try it, as a clone that goes again; prove that it is what the app was."),
    keep: bool = flag("--keep", "With --drill: let the clone stay."),
    report: Path | None = option("FILE", "With --drill: write what was found as one .html file."),
    md: Path | None = option("FILE", "With --drill: write it as Markdown."),
    dry_run: bool = DRY_RUN,
    **options: Unpack[FailoverOptions],
) -> None:
    from ...client.searches import Reports

    if (keep or report is not None or md is not None) and not drill:
        raise Usage("--keep, --report and --md go with --drill")
    if drill and (dry_run or as_it_is):
        raise Usage(f"--drill and {'--dry-run' if dry_run else '--as-it-is'} exclude each other")
    reports = Reports(report, md, alone=True)
    reports.check()
    session.store_option = from_
    offsets = pairs("--from-offset", from_offset, "TOPIC[N]=OFFSET", "orders[0]=1200")
    if wrong := next((text for text in offsets.values() if not text.isdecimal()), ""):
        raise Usage(f"--from-offset takes a whole number as the offset; found {wrong!r}")
    app, numbers = session.app(app_name), {name: int(text) for name, text in offsets.items()}
    with session.progress() as progress:
        if drill:
            done = app.drill(offsets=numbers, keep=keep, reports=reports, doing=progress, **options)
        else:
            done = app.recover(offsets=numbers, as_it_is=as_it_is, dry_run=dry_run, doing=progress, **options)
    session.show(done)
