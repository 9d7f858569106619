"""`slackwater watch`: standing invariants of an app, evaluated beside it."""

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from ... import instants
from ...errors import SlackwaterError, Unavailable
from ...results.document import Block
from ...results.shown import Result
from .. import options
from ..reports import Reports
from ..session import Session, verb

if TYPE_CHECKING:
    from ...client.watching import WatchedApp
    from ...pipeline.run.stopping import Stop
    from ...search.verdict import Evaluation, Verdict
    from ...search.watcher import Findings, Invariant

_AGAIN_S = 5.0
"""After so long storage that did not answer is asked again."""


@verb(
    "slackwater watch flights                  # beside: slackwater run flights.py",
    "slackwater watch flights --once --json    # from cron, or in a test: exit code 1 when one fails",
    kafka=True,
)
def watch(
    session: Session,
    app_name: options.App,
    once: bool = options.flag("--once", "Evaluate all of them once; exit with 1 unless all hold."),
    bisect: bool = options.option(
        None, "Search for the commit that broke one, from last-good on.", True, name="--bisect/--no-bisect"
    ),
    reports: Path = options.option("FOLDER", "Where a report of each failure is written.", Path("slackwater-reports")),
) -> None:
    """Evaluate the invariants of slackwater.toml at an app's newest moment, again and again.

    The newest moment at which all of them hold is APP@last-good, a ref like any other, which gc keeps. When one begins
    to fail, its rows are printed, the commit that broke it is searched for and reported in a file, and its on_failure
    is called. Ctrl-C or SIGTERM ends it.
    """
    from ...client.watching import WatchedApp
    from ...pipeline.run.stopping import stop_signals

    app = WatchedApp(session.client, app_name)
    report = _Report(session, app, reports if bisect else None)
    if once:
        if not report(app.look(instants.now_ms())):
            raise typer.Exit(1)
        return
    with stop_signals() as stop, stop.at_once():
        report(app.look(instants.now_ms()))
        app.record()
        _go_on(session, app, report, stop)


def _go_on(session: Session, app: "WatchedApp", report: "_Report", stop: "Stop") -> None:
    said = ""
    while not stop.wait(max(0.0, (app.due_ms() - instants.now_ms()) / 1_000)):
        try:
            report(app.look(instants.now_ms()))
            said = ""
        except SlackwaterError as error:
            # Storage will be there again, and what is damaged may be mended; nothing is lost meanwhile.
            if error.message != said:
                session.output.failure(error)
                session.note(f"trying again every {_AGAIN_S:g} s")
            said = error.message
            stop.wait(_AGAIN_S)


class _Report:
    """Tells what was found, and does what is to be done about it; files go to `folder`, without it none is searched."""

    def __init__(self, session: Session, app: "WatchedApp", folder: Path | None) -> None:
        self._session = session
        self._app = app
        self._folder = folder

    def __call__(self, look: "Findings | None") -> bool:
        """Whether all that was asked holds."""
        from ...results import invariants as shown

        if look is None:
            return True
        self._say(shown.line(look))
        verdicts: dict[str, Verdict | None] = {}
        reports: dict[str, Path | None] = {}
        for result in look.news:
            invariant, name = result.invariant, result.invariant.name
            if result.error is not None:
                self._session.note(f"{name} cannot be asked: {result.error.message}")
            if result.rows is not None and result.state == "fails":
                self._say(*shown.failing(result.rows, invariant, look))
                verdicts[name], reports[name] = self._search(invariant, look)
                try:
                    self._app.call(invariant, look, verdicts[name], reports[name])
                except Unavailable as error:
                    self._session.output.failure(error)
        if self._session.output.as_json:
            self._session.show(Result(shown.data(look, verdicts, reports)))
        return look.is_good

    def _say(self, *parts: Block) -> None:
        if not self._session.output.as_json:
            self._session.show(Result(None, *parts))

    def _search(self, invariant: "Invariant", look: "Findings") -> "tuple[Verdict | None, Path | None]":
        """What broke the invariant, and the report of that; None for what there is not."""
        from ...results import invariants as shown

        if self._folder is None:
            return None, None
        with self._session.output.progress() as progress:

            def on_step(step: "Evaluation") -> None:
                progress(f"{step.number}/{step.total}  looked at {step.ref or 'the moment before the first commit'}")

            verdict = self._app.bisect(invariant, look, on_step)
        if verdict is None:
            return None, None
        self._say(*shown.found(verdict, invariant, self._session.client.flags))
        path = self._app.report_file(invariant, verdict, self._folder)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            Reports(path).write(self._session, verdict, None)
        except OSError as error:
            self._session.note(f"{path} cannot be written: {error.strerror or error}; choose another --reports")
        except SlackwaterError as error:
            self._session.output.failure(error)
        else:
            return verdict, path
        return verdict, None
