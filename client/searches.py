"""Searches for the first bad commit as the command line makes them: each is kept, in a file beside its user's work.

So one that a person answers goes on with the next word, and any is shown, or printed as a log, when it has ended.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from msgspec.structs import replace

from ..common import instants
from ..common.whole_file import check_folder, whole_file
from ..errors import NotFound, Refused, SlackwaterError, Usage
from ..snapshot.bisect import session as kept
from ..snapshot.bisect.causes import Behind, Cause
from ..snapshot.bisect.endpoints import BEGINNING, pinned
from ..snapshot.bisect.evidence import collect
from ..snapshot.bisect.predicate import Wanted, Where
from ..snapshot.bisect.session import Asked, KeptSearch, KnownAnswer
from ..snapshot.bisect.verdict import Answer, Evaluation, Verdict
from ..snapshot.bisect.watcher import Findings, Invariant, Watcher, call
from ..snapshot.query.sql import names_channels
from ..snapshot.take.audit_log import record
from ..store.versions.apps import folder_of, free_name, in_folder, read_app
from .backends import Backends
from .history import AppHistory
from .replays import cause_behind
from .show import verdict as shown
from .show.document import Page
from .show.render import html, markdown
from .show.report import Case, Mask, document
from .show.shown import Result

_FOLDER = Path(".slackwater")
"""Where they are kept, beside what `dev` keeps."""
_HTML, _MARKDOWN = (".html", ".htm"), (".md", ".markdown")


def in_folders(client: Backends, asked: Asked) -> Asked:
    """The same with the folder of the app in the place of its name."""
    good, bad = (in_folder(client.store, ref) if ref else "" for ref in (asked.good, asked.bad))
    return replace(asked, app=folder_of(client.store, asked.app), good=good, bad=bad)


def begun(client: Backends, asked: Asked) -> KeptSearch:
    """A search that begins; of one by hand, ends that are named have their answers. Raises `Refused` if one is open."""
    app = asked.app
    try:
        before = kept.read(_FOLDER, app)
    except NotFound:
        before = None
    if before is not None and before.wanted is not None:
        hint = f"`slackwater bisect log {app}` prints it, `slackwater bisect reset {app}` forgets it"
        moment = before.wanted or "the beginning"
        raise Refused(f"a search of {app} by hand is open: {moment} is to be looked at", hint=hint)
    if not asked.by_hand:
        return KeptSearch(client.root, asked)
    good = _marks(client, app, "good", filter(None, [asked.good]))
    bad = _marks(client, app, "bad", filter(None, [asked.bad]))
    asked = replace(asked, good=good[0].ref if good else "", bad=bad[0].ref if bad else "")
    return KeptSearch(client.root, asked).with_marks(*good, *bad)


def answered(client: Backends, app: str, answer: Answer, refs: list[str]) -> KeptSearch:
    """The app's search, with a person's answer for these moments; without any, for the one that is to be looked at.

    Raises `NotFound` for the search or a moment, and `Refused` where it is one of another store, or none is to be
    looked at.
    """
    search, refs = of_app(client, app), [in_folder(client.store, ref) for ref in refs]
    app = search.asked.app
    if not refs and search.wanted is None:
        why, hint = search.found or "the search was interrupted", f"slackwater bisect {answer} {app} REF"
        raise Refused(f"no moment of {app} is to be looked at: {why}", hint=f"name the moment: {hint}")
    marks = _marks(client, app, answer, refs) or [KnownAnswer(search.wanted or "", answer, by_hand=True)]
    return search.with_marks(*marks)


def _marks(client: Backends, app: str, answer: Answer, refs: Iterable[str]) -> list[KnownAnswer]:
    now_ms = instants.now_ms()
    fixed = ("" if ref == BEGINNING else pinned(client.store, app, ref, answer, now_ms) for ref in refs)
    return [KnownAnswer(ref, answer, by_hand=True) for ref in fixed]


def of_app(client: Backends, app: str) -> KeptSearch:
    """The app's search. Raises `NotFound`, and `Refused` when it is one of another store."""
    folder = folder_of(client.store, app)
    try:
        search = kept.read(_FOLDER, folder)
    except NotFound:
        read_app(client.store, folder)  # it may be the app that there is not
        raise
    if search.store != client.root:
        hint = f"give --store {search.store}, or forget it: `slackwater bisect reset {app}`"
        raise Refused(f"the search of {app} is one in {search.store}, not in {client.root}", hint=hint)
    return search


def of_log(client: Backends, file: Path) -> KeptSearch:
    """The search that a log gives. Raises `NotFound` for the file, and `Usage` where it is none."""
    try:
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        raise NotFound("log", str(file), found=error.strerror or "") from None
    return kept.of_log(text, client.root)


def log(client: Backends, app: str) -> Result:
    """The commands that give the app's search again."""
    lines = tuple(kept.log_of(of_app(client, app)))
    return Result({"app": app, "lines": lines}, *lines)


def reset(app: str, opened: Callable[[], Backends]) -> Result:
    """Forget the app's search. Raises `NotFound` for an app without one that `opened`, a store, has not either."""
    path = kept.path_of(_FOLDER, app)
    was_there = path.exists()
    if not was_there:
        store = opened().store
        read_app(store, folder_of(store, app))
    path.unlink(missing_ok=True)
    line = f"removed {path}" if was_there else f"there is no search of {app}"
    return Result({"app": app, "removed": was_there}, line)


def go_on(client: Backends, search: KeptSearch, on_step: Callable[[Evaluation], None]) -> Verdict | Result:
    """Search with what is known, and keep what is found out; a result says what a person is to look at first.

    Raises as `StoredApp.bisect`.
    """
    asked = search.asked

    def keep(step: Evaluation) -> None:
        nonlocal search
        on_step(step)
        search = search.with_step(step)
        _write(client, search)

    try:
        found = AppHistory(client, asked.app).search(
            asked.predicate(client.store),
            good=asked.good or None,
            bad=asked.bad or None,
            edge=asked.edge,
            known=search.known,
            on_step=keep,
        )
    except Wanted as wanted:
        search = replace(search, wanted=wanted.ref, asked=replace(asked, bad=asked.bad or wanted.ref))
        _write(client, search)
        return shown.wanted(search, wanted.cut, wanted.left)
    _write(client, replace(search, found=shown.sentence(found), wanted=None))
    for ref, cut in found.resolved.items():
        client.note_thinned(ref, cut.thinned)
    if found.begins:
        before = f"the history of {found.app} before {found.begins} was thinned out by gc"
        client.note(f"note: {before}; of that, the moments that are left are searched")
    return found


def _write(client: Backends, search: KeptSearch) -> None:
    """Keep it. One that a predicate makes goes on where the folder cannot be written."""
    try:
        search.write(_FOLDER)
    except Refused as error:
        if search.asked.by_hand:
            raise
        if search.found:
            client.note(f"note: {error.message}")


def clone_name(client: Backends, verdict: Verdict) -> str:
    """A name for a clone, to look into a verdict, that no app has."""
    return free_name(client.store, f"{verdict.app}-staging")


@dataclass(frozen=True, slots=True)
class Reports:
    """The files in which a verdict is reported; None for none."""

    report: Path | None
    """For HTML."""
    md: Path | None = None
    """For Markdown."""
    show_values: bool = False
    """Without, values are hidden."""
    alone: bool = False
    """Whether `show_values` says something without them, too."""

    def check(self) -> None:
        """Before the search: raise `Usage` or `Refused` where they could not be written."""
        for option, path, endings in (("--report", self.report, _HTML), ("--md", self.md, _MARKDOWN)):
            if path is None:
                continue
            if path.suffix.lower() not in endings:
                expected = " or ".join(endings)
                raise Usage(f"{option} {path} has another format: expected a name that ends with {expected}")
            check_folder(path, option)
        if self.show_values and not self.alone and self.report is None and self.md is None:
            raise Usage("--show-values says what is in a report", hint="give --report FILE or --md FILE with it")

    def write(self, client: Backends, verdict: Verdict, behind: Behind) -> None:
        """Write them, and say so, of a verdict and what is behind it.

        Raises `NotFound` where a manifest around it was collected meanwhile, and `Refused` for a file that cannot be
        written; `Corruption` and `Unavailable` as all that reads a store.
        """
        if self.report is None and self.md is None:
            return
        reader = client.channels_of(verdict.app) if verdict.predicate.channels else None
        evidence = collect(client.store, client.cache, verdict, reader)
        case = Case(verdict, behind, evidence, clone_name(client, verdict), client.flags, instants.now_ms())
        self.put(client, document(case, Mask(self.show_values)))

    def put(self, client: Backends, made: Page) -> None:
        """Write a page into them, and say so. Raises `Refused` for a file that cannot be written."""
        for option, path, render in (("--report", self.report, html.render), ("--md", self.md, markdown.render)):
            if path is not None:
                with whole_file(path, option) as temporary:
                    temporary.write_text(render(made), encoding="utf-8")
                client.note(f"the report is in {path}")


class WatchedApp(Watcher):
    """Watches an app's invariants. Raises `Usage` where the settings have none for it."""

    def __init__(self, client: Backends, app: str) -> None:
        folder = folder_of(client.store, app)
        read_app(client.store, folder)
        invariants = [each for each in client.settings.invariants.values() if each.app in ("", app)]
        if not invariants:
            hint = 'write [invariants.NAME] into slackwater.toml, with where = "SELECT …" or check = "…"'
            raise Usage(f"nothing says what must hold of {app}", hint=hint)
        invariants = [each.of(client.store, folder) for each in invariants]
        reader = client.channels() if any(names_channels(each.where) for each in invariants) else None
        super().__init__(client.store, client.cache, folder, invariants, by=client.by, reader=reader)
        self._client = client

    def record(self) -> None:
        """Write into the app's log that it is watched."""
        record(self.store, self.app, "watch", ", ".join(each.name for each in self.invariants), self.by)

    def bisect(self, invariant: Invariant, look: Findings, on_step: Callable[[Evaluation], None]) -> Verdict | None:
        """The commit that broke an invariant; None, and a note, where it is not found."""
        app, good = AppHistory(self._client, self.app), look.last_good or None
        try:
            return app.search(Where(invariant.where), good=good, bad=look.ref, on_step=on_step)
        except SlackwaterError as error:
            self._client.note(f"the commit that broke {invariant.name} was not found: {error.message}")
            return None

    def cause(self, verdict: Verdict) -> Cause:
        """What is behind the commit that broke an invariant, as far as the store tells without a replay."""
        return cause_behind(self._client, verdict, None).cause

    def report(self, invariant: Invariant, verdict: Verdict, folder: Path) -> Path | None:
        """Report a failure in a file of the folder; None, and a note, where it cannot be written."""
        about = f"{self.app}-{invariant.name}-{verdict.stage}-v{verdict.bad_version}"
        path = folder.absolute() / f"{re.sub(r'[^A-Za-z0-9._-]', '-', about)}.html"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            Reports(path).write(self._client, verdict, cause_behind(self._client, verdict, None))
        except OSError as error:
            self._client.note(f"{path} cannot be written: {error.strerror or error}; choose another --reports")
            return None
        return path

    def call(self, invariant: Invariant, look: Findings, verdict: Verdict | None, report: Path | None) -> None:
        """Run the invariant's command, if it has one. Raises `Unavailable` as `watcher.call`."""
        if not invariant.on_failure:
            return
        about = {
            "SLACKWATER_STORE": self._client.root,
            "SLACKWATER_APP": self.app,
            "SLACKWATER_INVARIANT": invariant.name,
            "SLACKWATER_REF": look.ref,
            "SLACKWATER_LAST_GOOD": look.last_good,
            "SLACKWATER_FIRST_BAD": verdict.bad_ref if verdict is not None else "",
            "SLACKWATER_REPORT": str(report) if report is not None else "",
        }
        call(invariant.on_failure, about)
