"""`slackwater watch`: standing invariants of an app, evaluated beside it."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from ... import instants
from ...errors import SlackwaterError, Unavailable, Usage
from ...results.document import Block, Result
from .. import options
from ..output import Progress
from ..session import Session, verb

if TYPE_CHECKING:
    from ...pipeline.run.stopping import Stop
    from ...search.verdict import Step, Verdict
    from ...search.watcher import Invariant, Look, Watcher

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
    from ...moments.query.answers import names_channels
    from ...moments.take.audit_log import record
    from ...pipeline.run.stopping import stop_signals
    from ...search.watcher import Watcher

    invariants = [each for each in session.settings.invariants.values() if each.app in ("", app_name)]
    if not invariants:
        raise Usage(
            f"nothing says what must hold of {app_name}",
            hint='write [invariants.NAME] into slackwater.toml, with where = "SELECT …" or check = "…"',
        )
    invariants = [each.of(session.store, app_name) for each in invariants]
    asks = any(names_channels(each.where) for each in invariants)
    reader, by = session.client.channels() if asks else None, session.client.by
    watcher = Watcher(session.store, session.cache, app_name, invariants, by=by, reader=reader)
    report = _Report(session, app_name, reports if bisect else None)
    if once:
        if not report(watcher.look(instants.now_ms())):
            raise typer.Exit(1)
        return
    with stop_signals() as stop, stop.at_once():
        report(watcher.look(instants.now_ms()))
        record(session.store, app_name, "watch", ", ".join(each.name for each in invariants), by)
        _go_on(session, watcher, report, stop)


def _go_on(session: Session, watcher: "Watcher", report: "_Report", stop: "Stop") -> None:
    said = ""
    while not stop.wait(max(0.0, (watcher.due_ms() - instants.now_ms()) / 1_000)):
        try:
            report(watcher.look(instants.now_ms()))
            said = ""
        except SlackwaterError as error:
            # Storage will be there again, and what is damaged may be mended; nothing is lost meanwhile.
            if error.message != said:
                session.output.failure(error)
                session.note(f"trying again every {_AGAIN_S:g} s")
            said = error.message
            stop.wait(_AGAIN_S)


class _Report:
    """Tells what was found, and does what is to be done about it."""

    def __init__(self, session: Session, app_name: str, folder: Path | None) -> None:
        self._session = session
        self._app = app_name
        self._folder = folder
        """For files about failures; None to leave the search out."""

    def __call__(self, look: "Look | None") -> bool:
        """Whether all that was asked holds."""
        from ...results import invariants as shown

        if look is None:
            return True
        self._say(shown.line(look))
        verdicts: dict[str, Verdict | None] = {}
        reports: dict[str, Path | None] = {}
        for result in look.news:
            invariant = result.invariant
            if result.error is not None:
                self._session.note(f"{invariant.name} cannot be asked: {result.error.message}")
            if result.rows is not None and result.state == "fails":
                self._say(*shown.failing(result.rows, invariant, look))
                verdict = verdicts[invariant.name] = self._bisect(invariant, look) if self._folder else None
                report = reports[invariant.name] = (
                    self._write(verdict, invariant, self._folder) if verdict and self._folder else None
                )
                self._call(invariant, look, verdict, report)
        if self._session.as_json:
            self._session.show(Result(shown.data(look, verdicts, reports)))
        return look.is_good

    def _say(self, *parts: Block) -> None:
        if not self._session.as_json:
            self._session.show(Result(None, *parts))

    def _call(self, invariant: "Invariant", look: "Look", verdict: "Verdict | None", report: Path | None) -> None:
        from ...search.watcher import call

        if not invariant.on_failure:
            return
        about = {
            "SLACKWATER_STORE": self._session.store.url,
            "SLACKWATER_APP": self._app,
            "SLACKWATER_INVARIANT": invariant.name,
            "SLACKWATER_REF": look.ref,
            "SLACKWATER_LAST_GOOD": look.last_good,
            "SLACKWATER_FIRST_BAD": verdict.bad_ref if verdict is not None else "",
            "SLACKWATER_REPORT": str(report) if report is not None else "",
        }
        try:
            call(invariant.on_failure, about)
        except Unavailable as error:
            self._session.output.failure(error)

    def _bisect(self, invariant: "Invariant", look: "Look") -> "Verdict | None":
        good, bad = look.last_good or None, look.ref
        try:
            app = self._session.client.app(self._app)
            with self._session.output.progress() as progress:
                verdict = app.bisect(where=invariant.where, good=good, bad=bad, on_step=_steps(progress)).verdict
        except SlackwaterError as error:
            self._session.note(f"the commit that broke {invariant.name} was not found: {error.message}")
            return None
        from ...results import invariants as shown

        self._say(*shown.found(verdict, invariant, self._session.flags))
        return verdict

    def _write(self, verdict: "Verdict", invariant: "Invariant", folder: Path) -> Path | None:
        """The report of a failure, without values; None when it could not be written."""
        from ..reports import Reports

        about = f"{self._app}-{invariant.name}-{verdict.stage}-v{verdict.bad_version}"
        path = folder.absolute() / f"{re.sub(r'[^A-Za-z0-9._-]', '-', about)}.html"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            Reports(path, None, show_values=False).write(self._session, verdict, None)
        except OSError as error:
            self._session.note(f"{path} cannot be written: {error.strerror or error}; choose another --reports")
            return None
        except SlackwaterError as error:
            self._session.output.failure(error)
            return None
        return path


def _steps(progress: Progress) -> "Callable[[Step], None]":
    def on_step(step: "Step") -> None:
        progress(f"{step.number}/{step.total}  looked at {step.ref or 'the moment before the first commit'}")

    return on_step
