"""Verbs for disaster recovery: replicate an app to another store, and recover the app there."""

from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from ...client.declared.operations import FailoverOptions
from ...client.show.formats import size
from ...client.show.shown import Result
from ...errors import Usage
from ..options import APP, DRY_RUN, Repeated, duration_option, flag, option, parse_pairs
from ..session import Session, verb

if TYPE_CHECKING:
    from ...client.failover import RoundResult


@verb(
    "slackwater replicate flights --to s3://elsewhere/slackwater                 # runs until Ctrl-C",
    "slackwater replicate flights --to s3://elsewhere/slackwater --once          # for a job that runs now and then",
    "slackwater replicate flights --to /backup/slackwater --once --dry-run",
    kafka=True,
    changes=True,
    runs_long=True,
)
def replicate(
    session: Session,
    app_name: str = APP,
    to: str = option("ROOT", "Store root of the replica, in another bucket or region.", ...),
    once: bool = flag("--once", "Copy what is new and exit."),
    every: int = duration_option(
        "How often to look for new versions. Default: 10s.", 10_000, min_ms=100, bare_seconds=True
    ),
    workers: int = option("N", "Parallel object copies; each object is held in memory.", 8, min=1),
    metrics: int | None = option(
        "PORT", "Serve Prometheus metrics on this port; 0 picks a free one.", min=0, max=65535
    ),
    end: bool = flag("--end", "Stop tracking this replica; copied data is kept."),
    dry_run: bool = DRY_RUN,
) -> None:
    """Replicate an app to another store root, continuously.

    A replica is consistent at any time, and can be queried, verified, compared and cloned. With --kafka, it also keeps
    in-flight records. gc and forget reach it with the next round. Several replicators may run; each is resumable.
    """
    from ...client.show.failover import round_data, round_line

    app = session.app(app_name)
    if end:
        session.show(app.end_replica(to))
        return
    if once or dry_run:
        with session.progress() as progress:

            def on_progress(objects: int, num_bytes: int) -> None:
                progress("", f"{app_name}: {objects:,} objects, {size(num_bytes)} copied")

            done = app.replicate(to, workers=workers, dry_run=dry_run, on_progress=on_progress)
        session.show(done)
        return
    from ...pipeline.run.stopping import stop_signals

    copies = app.replicator(to, workers=workers)
    if copies.reader is None:
        session.note("note: no Kafka configured (--kafka), so in-flight records are not replicated")
    observed = None
    if metrics is not None:
        from ...operations.disaster_recovery.replica_metrics import ReplicaMetrics

        observed = ReplicaMetrics(app.name, copies.target.url)
        session.note(f"metrics: http://localhost:{observed.serve(metrics)}/metrics")

    def show(done: "RoundResult") -> None:
        if observed is not None:
            observed.observe(done)
        if done.has_changes:
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
    from_: str = option("ROOT", "Store root of the replica. The app runs there from now on.", ..., name="--from"),
    from_offset: Repeated = option(
        "TOPIC[N]=OFFSET", "Continue partition N at this offset, overriding what is detected. May be repeated."
    ),
    as_it_is: bool = flag("--as-it-is", "Do not copy newer versions from the original store."),
    drill: bool = flag("--drill", "Disaster-recovery drill: recover into a temporary clone and verify it."),
    keep: bool = flag("--keep", "With --drill: keep the clone."),
    report: Path | None = option("FILE", "With --drill: write a report as one .html file."),
    md: Path | None = option("FILE", "With --drill: write a report as Markdown."),
    dry_run: bool = DRY_RUN,
    **options: Unpack[FailoverOptions],
) -> None:
    from ...client.searches import Reports

    if (keep or report is not None or md is not None) and not drill:
        raise Usage("--keep, --report and --md need --drill")
    if drill and (dry_run or as_it_is):
        raise Usage(f"--drill and {'--dry-run' if dry_run else '--as-it-is'} exclude each other")
    reports = Reports(report, md, also_on_terminal=True)
    reports.check()
    session.store_option = from_
    offsets = parse_pairs("--from-offset", from_offset, "TOPIC[N]=OFFSET", "orders[0]=1200")
    if wrong := next((text for text in offsets.values() if not text.isdecimal()), ""):
        raise Usage(f"--from-offset takes a whole number as the offset; found {wrong!r}")
    app, numbers = session.app(app_name), {name: int(text) for name, text in offsets.items()}
    with session.progress() as progress:
        if drill:
            done = app.drill(offsets=numbers, keep=keep, reports=reports, on_progress=progress, **options)
        else:
            done = app.recover(offsets=numbers, as_it_is=as_it_is, dry_run=dry_run, on_progress=progress, **options)
    session.show(done)
