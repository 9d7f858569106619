"""Searches of `slackwater bisect`, saved per app in a local file; reports; and the evaluation of invariants.

The next command of the user continues a manual search. A finished search can be shown, or printed as a log.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from msgspec.structs import replace

from ..common import instants
from ..common.whole_file import atomic_file, check_parent_folder
from ..errors import NotFound, Refused, SlackwaterError, Usage
from ..pipeline.publish.tables.lookup import TableSnapshot, table_snapshots
from ..snapshot.bisect import session as kept
from ..snapshot.bisect.causes import TracedCause
from ..snapshot.bisect.endpoints import BEGINNING, stable_ref
from ..snapshot.bisect.evidence import collect_evidence
from ..snapshot.bisect.invariant import Invariant
from ..snapshot.bisect.predicate import AnswerNeeded, SqlPredicate
from ..snapshot.bisect.session import KnownAnswer, SearchRequest, SearchSession
from ..snapshot.bisect.verdict import Answer, Evaluation, Verdict
from ..snapshot.bisect.watcher import Findings, Watcher, run_failure_command
from ..snapshot.query.sql import names_channels
from ..snapshot.take.audit_log import record_operation
from ..store.versions.apps import folder_of, free_name, read_app, replace_name_by_folder
from .backends import Backends
from .history import AppHistory
from .show import verdict as shown
from .show.document import Page
from .show.render import html, markdown
from .show.report import Mask, ReportInput, report_page
from .show.shown import Result

_FOLDER = Path(".slackwater")
"""Folder of the files with saved searches, shared with `slackwater dev`."""
_HTML, _MARKDOWN = (".html", ".htm"), (".md", ".markdown")


def use_folder_names(client: Backends, question: SearchRequest) -> SearchRequest:
    """Return the question with the app's folder in place of the app's name, also within refs."""
    good, bad = (replace_name_by_folder(client.store, ref) if ref else "" for ref in (question.good, question.bad))
    return replace(question, app=folder_of(client.store, question.app), good=good, bad=bad)


def start_search(client: Backends, question: SearchRequest) -> SearchSession:
    """Create a search. A manual search begins with the answers for the moments `good` and `bad`, if given.

    Raises `Refused` if a manual search of the app is open.
    """
    app = question.app
    try:
        open_search = kept.read_session(_FOLDER, app)
    except NotFound:
        open_search = None
    if open_search is not None and open_search.wanted is not None:
        hint = f"`slackwater bisect log {app}` prints it, `slackwater bisect reset {app}` deletes it"
        moment = open_search.wanted or "the beginning"
        raise Refused(f"a manual search of {app} is open, and waits for an answer on {moment}", hint=hint)
    if not question.is_manual:
        return SearchSession(client.root, question)
    good = _known_answers(client, app, "good", filter(None, [question.good]))
    bad = _known_answers(client, app, "bad", filter(None, [question.bad]))
    question = replace(question, good=good[0].ref if good else "", bad=bad[0].ref if bad else "")
    return SearchSession(client.root, question).with_answers(*good, *bad)


def record_answer(client: Backends, app: str, answer: Answer, refs: list[str]) -> SearchSession:
    """Add a user's answer to the app's saved search, and return the search.

    Without `refs`, the answer is for the moment that the search last asked about. Raises `NotFound` for an unknown
    search or moment. Raises `Refused` if the search belongs to another store, or if `refs` is empty and the search has
    asked about no moment.
    """
    search, refs = read_search(client, app), [replace_name_by_folder(client.store, ref) for ref in refs]
    app = search.asked.app
    if not refs and search.wanted is None:
        why, hint = search.found or "the search was interrupted", f"slackwater bisect {answer} {app} REF"
        raise Refused(f"no moment of {app} waits for an answer: {why}", hint=f"name the moment: {hint}")
    answers = _known_answers(client, app, answer, refs) or [KnownAnswer(search.wanted or "", answer, by_hand=True)]
    return search.with_answers(*answers)


def _known_answers(client: Backends, app: str, answer: Answer, refs: Iterable[str]) -> list[KnownAnswer]:
    now_ms = instants.now_ms()
    fixed = ("" if ref == BEGINNING else stable_ref(client.store, app, ref, answer, now_ms) for ref in refs)
    return [KnownAnswer(ref, answer, by_hand=True) for ref in fixed]


def read_search(client: Backends, app: str) -> SearchSession:
    """Return the app's saved search. Raises `NotFound`, and `Refused` if it belongs to another store."""
    folder = folder_of(client.store, app)
    try:
        search = kept.read_session(_FOLDER, folder)
    except NotFound:
        read_app(client.store, folder)  # raises if the app does not exist
        raise
    if search.store != client.root:
        hint = f"give --store {search.store}, or delete it: `slackwater bisect reset {app}`"
        raise Refused(f"the search of {app} belongs to the store {search.store}, not to {client.root}", hint=hint)
    return search


def read_search_log(client: Backends, file: Path) -> SearchSession:
    """Read a search from a log file. Raises `NotFound` without the file, and `Usage` if it is no log."""
    try:
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        raise NotFound("log", str(file), found=error.strerror or "") from None
    return kept.parse_log(text, client.root)


def search_log(client: Backends, app: str) -> Result:
    """Return a result with the commands that recreate the app's saved search."""
    lines = tuple(kept.format_log(read_search(client, app)))
    return Result({"app": app, "lines": lines}, *lines)


def delete_search(app: str, open_client: Callable[[], Backends]) -> Result:
    """Delete the app's saved search. Raises `NotFound` if there is no search and the app is unknown."""
    path = kept.session_path(_FOLDER, app)
    was_there = path.exists()
    if not was_there:
        store = open_client().store
        read_app(store, folder_of(store, app))
    path.unlink(missing_ok=True)
    line = f"removed {path}" if was_there else f"{app} has no search"
    return Result({"app": app, "removed": was_there}, line)


def continue_search(client: Backends, search: SearchSession, on_step: Callable[[Evaluation], None]) -> Verdict | Result:
    """Continue a search, saving each answer. Returns the verdict, or a result that asks the user about a moment.

    Raises the errors of `StoredApp.bisect`.
    """
    question = search.asked

    def keep(step: Evaluation) -> None:
        nonlocal search
        on_step(step)
        search = search.with_step(step)
        _write(client, search)

    try:
        verdict = AppHistory(client, question.app).search(
            question.make_predicate(client.store),
            good=question.good or None,
            bad=question.bad or None,
            edge=question.edge,
            known_answers=search.answers_by_ref,
            on_step=keep,
        )
    except AnswerNeeded as wanted:
        search = replace(search, wanted=wanted.ref, asked=replace(question, bad=question.bad or wanted.ref))
        _write(client, search)
        return shown.pending_answer_result(search, wanted.cut, wanted.left)
    _write(client, replace(search, found=shown.verdict_sentence(verdict), wanted=None))
    for ref, cut in verdict.resolved.items():
        client.note_thinned(ref, cut.thinned)
    if verdict.gapless_start_ref:
        thinned = f"gc has thinned out the history of {verdict.app} before {verdict.gapless_start_ref}"
        client.note(f"note: {thinned}; only the kept moments are searched")
    return verdict


def _write(client: Backends, search: SearchSession) -> None:
    """Save the search. Raises `Refused` if the file of a manual search cannot be written.

    For any other search, prints a note instead, once the search has ended.
    """
    try:
        search.write(_FOLDER)
    except Refused as error:
        if search.asked.is_manual:
            raise
        if search.found:
            client.note(f"note: {error.message}")


def clone_name(client: Backends, verdict: Verdict) -> str:
    """Return an unused name for a clone in which a user can inspect the verdict."""
    return free_name(client.store, f"{verdict.app}-staging")


def sink_tables(client: Backends, verdict: Verdict) -> tuple[TableSnapshot, ...]:
    """Return the snapshots of the tables to which the bad version was published."""
    bad = None if verdict.candidates else verdict.bad.stages.get(verdict.stage)
    return tuple(table_snapshots(client.store, bad)) if bad is not None else ()


@dataclass(frozen=True, slots=True)
class Reports:
    """Report files that a user requested, and their options."""

    report: Path | None
    md: Path | None = None
    show_values: bool = False
    also_on_terminal: bool = False
    """True if `show_values` also applies to the terminal; False if it is allowed only with a report file."""

    def check(self) -> None:
        """Raise `Usage` for unusable options, and `Refused` if a file's folder does not exist. Call it first."""
        for option, path, endings in (("--report", self.report, _HTML), ("--md", self.md, _MARKDOWN)):
            if path is None:
                continue
            if path.suffix.lower() not in endings:
                expected = " or ".join(endings)
                raise Usage(f"{option} {path} has no supported format: expected a name that ends with {expected}")
            check_parent_folder(path, option)
        if self.show_values and not self.also_on_terminal and self.report is None and self.md is None:
            raise Usage("--show-values applies to reports", hint="add --report FILE or --md FILE")

    def write_verdict(self, client: Backends, verdict: Verdict, explanation: TracedCause) -> None:
        """Write the reports of a bisect's verdict and its cause, and print a note with their paths.

        Raises `NotFound` if garbage collection has removed a manifest that the report needs, `Refused` for a file that
        cannot be written, `Corruption` and `Unavailable`.
        """
        if self.report is None and self.md is None:
            return
        reader = client.channels_of(verdict.app) if verdict.predicate.reads_channels else None
        evidence = collect_evidence(client.store, client.cache, verdict, reader)
        case = ReportInput(verdict, explanation, evidence, clone_name(client, verdict), client.flags, instants.now_ms())
        self.write_page(client, report_page(case, Mask(self.show_values)))

    def write_page(self, client: Backends, page: Page) -> None:
        """Write a page to the files, and print notes with their paths. Raises `Refused` for an unwritable file."""
        for option, path, render in (("--report", self.report, html.render), ("--md", self.md, markdown.render)):
            if path is not None:
                with atomic_file(path, option) as temporary:
                    temporary.write_text(render(page), encoding="utf-8")
                client.note(f"the report is in {path}")


class WatchedApp(Watcher):
    """Evaluator of an app's invariants, for `slackwater watch`. Raises `Usage` if the settings have none."""

    def __init__(self, client: Backends, app: str) -> None:
        folder = folder_of(client.store, app)
        read_app(client.store, folder)
        invariants = [invariant for invariant in client.settings.invariants.values() if invariant.app in ("", app)]
        if not invariants:
            hint = 'add [invariants.NAME] to slackwater.toml, with where = "SELECT …" or check = "…"'
            raise Usage(f"no invariants configured for {app}", hint=hint)
        invariants = [invariant.for_app(client.store, folder) for invariant in invariants]
        reader = client.channels() if any(names_channels(invariant.where) for invariant in invariants) else None
        super().__init__(client.store, client.cache, folder, invariants, by=client.by, reader=reader)
        self._client = client

    def record_watch(self) -> None:
        """Record the watch in the app's log of operations."""
        record_operation(
            self.store, self.app, "watch", ", ".join(invariant.name for invariant in self.invariants), self.by
        )

    def bisect(self, invariant: Invariant, findings: Findings, on_step: Callable[[Evaluation], None]) -> Verdict | None:
        """Return the commit that broke an invariant. If it is not found, prints a note and returns None."""
        app, good = AppHistory(self._client, self.app), findings.last_good or None
        try:
            return app.search(SqlPredicate(invariant.where), good=good, bad=findings.ref, on_step=on_step)
        except SlackwaterError as error:
            self._client.note(f"the commit that broke {invariant.name} was not found: {error.message}")
            return None

    def write_report(
        self, invariant: Invariant, verdict: Verdict, explanation: TracedCause, folder: Path
    ) -> Path | None:
        """Write a report about a broken invariant into `folder`. On failure, prints a note and returns None."""
        about = f"{self.app}-{invariant.name}-{verdict.stage}-v{verdict.bad_version}"
        path = folder.absolute() / f"{re.sub(r'[^A-Za-z0-9._-]', '-', about)}.html"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            Reports(path).write_verdict(self._client, verdict, explanation)
        except OSError as error:
            self._client.note(f"{path} cannot be written: {error.strerror or error}; choose another --reports")
            return None
        return path

    def run_command(
        self, invariant: Invariant, findings: Findings, verdict: Verdict | None, report: Path | None
    ) -> None:
        """Run the `on_failure` command of an invariant, if it has one. Raises `Unavailable` if the command fails."""
        if not invariant.on_failure:
            return
        about = {
            "SLACKWATER_STORE": self._client.root,
            "SLACKWATER_APP": self.app,
            "SLACKWATER_INVARIANT": invariant.name,
            "SLACKWATER_REF": findings.ref,
            "SLACKWATER_LAST_GOOD": findings.last_good,
            "SLACKWATER_FIRST_BAD": verdict.bad_ref if verdict is not None else "",
            "SLACKWATER_REPORT": str(report) if report is not None else "",
        }
        run_failure_command(invariant.on_failure, about)
