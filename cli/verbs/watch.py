"""`slackwater watch`: evaluate an app's invariants while the app runs."""

from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

import typer

from ...client.show.shown import Result
from ...common import instants
from ...common.whole_file import check_folder_name
from ...errors import SlackwaterError, Unavailable, Usage
from ..options import APP, flag, option
from ..session import Session, repeat_when_due, verb

if TYPE_CHECKING:
    from ...client.searches import WatchedApp
    from ...snapshot.bisect.causes import TracedCause
    from ...snapshot.bisect.invariant import Invariant
    from ...snapshot.bisect.verdict import Evaluation, Verdict
    from ...snapshot.bisect.watcher import Findings

OnFail = Literal["bisect", "propose", "nothing"]
PostFormat = Literal["json", "slack"]


@verb(
    "slackwater watch flights                  # beside: slackwater run flights.py",
    "slackwater watch flights --on-fail propose --code flights.py --issues issues",
    "slackwater watch flights --once --json    # from cron, or in a test: exit code 1 when one fails",
    kafka=True,
    runs_long=True,
)
def watch(
    session: Session,
    app_name: str = APP,
    once: bool = flag("--once", "Evaluate all invariants once; exit code 1 unless all hold."),
    on_fail: OnFail = option(
        None, "Bisect from last-good and write a report; or propose a repair, too; or nothing.", "bisect"
    ),
    reports: Path = option("FOLDER", "Folder for the reports.", Path("slackwater-reports")),
    code: Path = option("FILE", "For a proposal: the program that ran. Default: that of [programs].", None),
    post: str = option("URL", "Webhook to which proposals are posted.", "", envvar="SLACKWATER_WEBHOOK"),
    post_format: PostFormat = option(None, "Fields of a posted proposal: all, or `text` alone for Slack.", "json"),
    issues: Path = option("FOLDER", "Write each proposal to a Markdown file, for a GitHub issue.", None),
    show_values: bool = flag("--show-values", "Show keys and values in proposals."),
) -> None:
    """Evaluate the invariants of slackwater.toml continuously.

    Tags the newest moment at which all invariants hold as `APP@last-good`, which gc keeps. When an invariant begins to
    fail, prints its rows, bisects for the commit that broke it, writes a report, and calls its on_failure. Runs until
    Ctrl-C or SIGTERM.

    With `--on-fail propose`, also replays that commit to find the records at fault, computes the rows without these
    records, and posts one message with the command that would remove them. Changes nothing. Values are hidden.
    """
    from ...client.searches import WatchedApp
    from ...pipeline.run.stopping import stop_signals

    check_folder_name(reports, "--reports")
    if on_fail != "propose" and (code or issues or show_values):
        raise Usage("--code, --issues and --show-values belong to a proposal", hint="add --on-fail propose")
    app, folder = WatchedApp(session.client, app_name), reports if on_fail != "nothing" else None
    proposing = _Proposing(code, post, post_format, issues, show_values) if on_fail == "propose" else None
    if once:
        if not _evaluate(session, app, folder, proposing):
            raise typer.Exit(1)
        return
    with stop_signals() as stop, stop.interruptible():
        _evaluate(session, app, folder, proposing)
        app.record_watch()
        repeat_when_due(session, stop, app.due_ms, lambda: _evaluate(session, app, folder, proposing))


class _Proposing(NamedTuple):
    """Options of proposals."""

    code: Path | None
    post: str
    post_format: PostFormat
    issues: Path | None
    show_values: bool


def _evaluate(session: Session, app: "WatchedApp", folder: Path | None, proposing: _Proposing | None) -> bool:
    """Evaluate the invariants that are due, print the results, and handle failures. Returns True if all hold.

    Reports are written to `folder`. If it is None, there is no search for the commit that broke an invariant. A
    proposal is made if `proposing` has its options.
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
            verdicts[name], reports[name] = _bisect_and_report(session, app, invariant, look, folder, proposing)
            try:
                app.run_command(invariant, look, verdicts[name], reports[name])
            except Unavailable as error:
                session.show_error(error)
    if session.as_json:
        session.show(Result(shown.invariants_data(look, verdicts, reports)))
    return look.is_good


def _bisect_and_report(
    session: Session,
    app: "WatchedApp",
    invariant: "Invariant",
    findings: "Findings",
    folder: Path | None,
    proposing: _Proposing | None,
) -> "tuple[Verdict | None, Path | None]":
    """Bisect for the commit that broke the invariant, and write a report. Returns the verdict and the report's path.

    The verdict is None if there was no search or no result, and the path is None if there is no report.
    """
    from ...client.replays import explain_verdict, replay_programs
    from ...client.show import verdict as shown

    if folder is None:
        return None, None
    with session.progress() as progress:

        def on_step(step: "Evaluation") -> None:
            progress(f"{step.number}/{step.total}  looked at {step.ref or 'the moment before the first commit'}")

        verdict = app.bisect(invariant, findings, on_step)
        if verdict is None:
            return None, None
        codes = (
            None if proposing is None else replay_programs(session.client, verdict, [*filter(None, [proposing.code])])
        )
        explanation = explain_verdict(session.client, verdict, codes, progress)
    if not session.as_json:
        session.show(Result(None, *shown.breaking_commit_blocks(verdict, explanation.cause, invariant)))
    report = None
    try:
        report = app.write_report(invariant, verdict, explanation, folder)
        if proposing is not None:
            _propose(session, verdict, explanation, invariant, report, proposing)
    except SlackwaterError as error:
        session.show_error(error)
    return verdict, report


def _propose(
    session: Session,
    verdict: "Verdict",
    explanation: "TracedCause",
    invariant: "Invariant",
    report: Path | None,
    options: _Proposing,
) -> None:
    from ...client.proposals.propose import propose_repair
    from ...client.proposals.send import post_proposal, write_issue
    from ...client.show.report import Mask

    mask = Mask(options.show_values)
    with session.progress() as progress:
        proposal = propose_repair(
            session.client, verdict, explanation, invariant, options.code, report=report, mask=mask, progress=progress
        )
    if not session.as_json:
        session.show(Result(None, "", proposal.heading, *proposal.text.splitlines()))
    if options.issues is not None:
        session.note(f"the proposal is in {write_issue(proposal, options.issues)}")
    if options.post:
        post_proposal(proposal, options.post, options.post_format)
        session.note("the proposal was posted to the webhook")
