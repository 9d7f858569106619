"""`slackwater watch`: evaluate an app's invariants while the app runs."""

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from ...client.show.shown import Result
from ...common import instants
from ...common.whole_file import check_folder_name
from ...errors import SlackwaterError, Unavailable
from ..options import APP, flag, option
from ..session import Session, repeat_when_due, verb

if TYPE_CHECKING:
    from ...client.searches import WatchedApp
    from ...snapshot.bisect.invariant import Invariant
    from ...snapshot.bisect.verdict import Evaluation, Verdict
    from ...snapshot.bisect.watcher import Findings


@verb(
    "slackwater watch flights                  # beside: slackwater run flights.py",
    "slackwater watch flights --once --json    # from cron, or in a test: exit code 1 when one fails",
    kafka=True,
    runs_long=True,
)
def watch(
    session: Session,
    app_name: str = APP,
    once: bool = flag("--once", "Evaluate all invariants once; exit code 1 unless all hold."),
    bisect: bool = option(
        None, "Bisect from last-good when an invariant fails, and write a report.", True, name="--bisect/--no-bisect"
    ),
    reports: Path = option("FOLDER", "Folder for the reports.", Path("slackwater-reports")),
) -> None:
    """Evaluate the invariants of slackwater.toml continuously.

    Tags the newest moment at which all invariants hold as `APP@last-good`, which gc keeps. When an invariant begins to
    fail, prints its rows, bisects for the commit that broke it, writes a report, and calls its on_failure. Runs until
    Ctrl-C or SIGTERM.
    """
    from ...client.searches import WatchedApp
    from ...pipeline.run.stopping import stop_signals

    check_folder_name(reports, "--reports")
    app, folder = WatchedApp(session.client, app_name), reports if bisect else None
    if once:
        if not _evaluate(session, app, folder):
            raise typer.Exit(1)
        return
    with stop_signals() as stop, stop.interruptible():
        _evaluate(session, app, folder)
        app.record_watch()
        repeat_when_due(session, stop, app.due_ms, lambda: _evaluate(session, app, folder))


def _evaluate(session: Session, app: "WatchedApp", folder: Path | None) -> bool:
    """Evaluate the invariants that are due, print the results, and handle failures. Returns True if all hold.

    Reports are written to `folder`. If it is None, there is no search for the commit that broke an invariant.
    """
    from ...client.show import verdict as shown

    look = app.evaluate_due(instants.now_ms())
    if look is None:
        return True
    if not session.as_json:
        session.show(Result(None, shown.invariants_line(look)))
    verdicts: dict[str, Verdict | None] = {}
    reports: dict[str, Path | None] = {}
    for result in look.changed_results:
        invariant, name = result.invariant, result.invariant.name
        if result.error is not None:
            session.note(f"{name} cannot be evaluated: {result.error.message}")
        if result.rows is not None and result.state == "fails":
            if not session.as_json:
                session.show(Result(None, *shown.failure_blocks(result.rows, invariant, look)))
            verdicts[name], reports[name] = _bisect_and_report(session, app, invariant, look, folder)
            try:
                app.run_command(invariant, look, verdicts[name], reports[name])
            except Unavailable as error:
                session.show_error(error)
    if session.as_json:
        session.show(Result(shown.invariants_data(look, verdicts, reports)))
    return look.is_good


def _bisect_and_report(
    session: Session, app: "WatchedApp", invariant: "Invariant", findings: "Findings", folder: Path | None
) -> "tuple[Verdict | None, Path | None]":
    """Bisect for the commit that broke the invariant, and write a report. Returns the verdict and the report's path.

    The verdict is None if there was no search or no result, and the path is None if there is no report.
    """
    from ...client.replays import explain_verdict
    from ...client.show import verdict as shown

    if folder is None:
        return None, None
    with session.progress() as progress:

        def on_step(step: "Evaluation") -> None:
            progress(f"{step.number}/{step.total}  looked at {step.ref or 'the moment before the first commit'}")

        verdict = app.bisect(invariant, findings, on_step)
    if verdict is None:
        return None, None
    explanation = explain_verdict(session.client, verdict, None)
    if not session.as_json:
        session.show(Result(None, *shown.breaking_commit_blocks(verdict, explanation.cause, invariant)))
    try:
        return verdict, app.write_report(invariant, verdict, explanation, folder)
    except SlackwaterError as error:
        session.show_error(error)
    return verdict, None
