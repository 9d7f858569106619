"""`slackwater watch`: standing invariants of an app, evaluated beside it."""

import re
import shlex
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from ... import instants
from ...errors import SlackwaterError, Unavailable, Usage
from ...results import formats
from ...results.document import Block, Result, Title
from .. import options
from ..output import Progress
from ..session import Session, verb

if TYPE_CHECKING:
    import pyarrow as pa

    from ...pipeline.run.stopping import Stop
    from ...snapshot.bisect.invariants import Invariant
    from ...snapshot.bisect.verdict import Step, Verdict
    from ...snapshot.bisect.watcher import Look, State, Watcher
    from ...snapshot.bisect.watcher import Result as Evaluated
    from ...snapshot.take.capture import ChannelReader
    from ...store.read.cache import SstCache

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
    from ...pipeline.run.stopping import stop_signals
    from ...snapshot.bisect.watcher import Watcher
    from ...snapshot.query.channel_tables import names_channels
    from ...snapshot.take.audit_log import record, whoami

    invariants = [each for each in session.settings.invariants.values() if each.app in ("", app_name)]
    if not invariants:
        raise Usage(
            f"nothing says what must hold of {app_name}",
            hint='write [invariants.NAME] into slackwater.toml, with where = "SELECT …" or check = "…"',
        )
    invariants = [each.of(session.store, app_name) for each in invariants]
    asks = any(names_channels(each.where) for each in invariants)
    reader, by = session.settings.open_channels() if asks else None, whoami()
    with closing(session.settings.open_cache()) as cache:
        watcher = Watcher(session.store, cache, app_name, invariants, by=by, reader=reader)
        report = _Report(session, cache, app_name, reader, reports if bisect else None)
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

    def __init__(
        self, session: Session, cache: "SstCache", app_name: str, reader: "ChannelReader | None", folder: Path | None
    ) -> None:
        self._session = session
        self._cache = cache
        self._app = app_name
        self._reader = reader
        self._folder = folder
        """For files about failures; None to leave the search out."""

    def __call__(self, look: "Look | None") -> bool:
        """Whether all that was asked holds."""
        if look is None:
            return True
        self._say(_line(look))
        verdicts: dict[str, Verdict | None] = {}
        reports: dict[str, Path | None] = {}
        for result in look.news:
            invariant = result.invariant
            if result.error is not None:
                self._session.note(f"{invariant.name} cannot be asked: {result.error.message}")
            if result.rows is not None and result.state == "fails":
                self._say(*_failing(result.rows, invariant, look))
                verdict = verdicts[invariant.name] = self._bisect(invariant, look) if self._folder else None
                report = reports[invariant.name] = (
                    self._write(verdict, invariant, self._folder) if verdict and self._folder else None
                )
                self._call(invariant, look, verdict, report)
        if self._session.as_json:
            self._session.show(Result(_data(look, verdicts, reports)))
        return look.is_good

    def _say(self, *parts: Block) -> None:
        if not self._session.as_json:
            self._session.show(Result(None, *parts))

    def _call(self, invariant: "Invariant", look: "Look", verdict: "Verdict | None", report: Path | None) -> None:
        from ...snapshot.bisect.invariants import call

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
        from ...snapshot.bisect import search
        from ...snapshot.query.channel_tables import names_channels

        try:
            with self._session.output.progress() as progress:
                verdict = search.bisect(
                    self._session.store,
                    self._cache,
                    self._app,
                    invariant.where,
                    good=look.last_good or None,
                    bad=look.ref,
                    on_step=_steps(progress),
                    reader=self._reader if names_channels(invariant.where) else None,
                )
        except SlackwaterError as error:
            self._session.note(f"the commit that broke {invariant.name} was not found: {error.message}")
            return None
        self._say(*_found(verdict, invariant, self._session.flags))
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


def _line(look: "Look") -> str:
    """One line for a look: when, where, and how many invariants are what."""
    by_state = Counter(result.state for result in look.results)
    words: dict[State, tuple[str, str]] = {
        "holds": ("holds", "hold"),
        "fails": ("fails", "fail"),
        "unknown": ("cannot be asked", "cannot be asked"),
    }
    states = ", ".join(f"{n} {words[state][n > 1]}" for state in words if (n := by_state[state]))
    again = [each.invariant.name for each in look.news if each.state == "holds"]
    parts = (
        instants.iso(look.cut.time_ms),
        look.ref,
        states,
        f"{', '.join(again)} again" if again else "",
        f"last good: {look.last_good}" if look.last_good and not look.is_good else "",
    )
    return "  ".join(filter(None, parts))


def _failing(rows: "pa.Table", invariant: "Invariant", look: "Look") -> Iterator[Block]:
    from ...results import values

    yield Title(f"{invariant.name} does not hold at {look.ref}")
    yield values.grid(rows, formats.MOST_SHOWN)
    if rows.num_rows > formats.MOST_SHOWN:
        yield f"and more; slackwater query {look.ref} {shlex.quote(invariant.where)} shows them"


def _found(verdict: "Verdict", invariant: "Invariant", flags: str) -> Iterator[Block]:
    yield f"{verdict.stage} v{verdict.bad_version} broke {invariant.name}; before it: {verdict.good_ref or '-'}"
    if verdict.lineage.sources:
        yield f"it read {formats.windows(map(str, verdict.lineage.sources))}"
    good = f" --good {verdict.good_ref}" if verdict.good_ref else ""
    where = shlex.quote(invariant.where)
    yield f"slackwater bisect {verdict.app}{good} --bad {verdict.bad_ref} --where {where}{flags} tells more"


def _data(look: "Look", verdicts: "dict[str, Verdict | None]", reports: dict[str, Path | None]) -> dict[str, Any]:
    return {
        "app": look.cut.app,
        "ref": look.ref,
        "time_ms": look.cut.time_ms,
        "versions": look.cut.versions,
        "last_good": look.last_good or None,
        "invariants": [
            _result(each, verdicts.get(each.invariant.name), reports.get(each.invariant.name)) for each in look.results
        ],
    }


def _result(result: "Evaluated", verdict: "Verdict | None", report: Path | None) -> dict[str, Any]:
    from ...results import values

    return {
        "name": result.invariant.name,
        "state": result.state,
        "rows": values.for_json(result.rows)["rows"] if result.rows is not None else None,
        "error": result.error.message if result.error is not None else None,
        "first_bad": verdict.bad_ref if verdict is not None else None,
        "last_good": verdict.good_ref or None if verdict is not None else None,
        "source_windows": verdict.lineage.sources if verdict is not None else None,
        "report": str(report) if report is not None else None,
    }
