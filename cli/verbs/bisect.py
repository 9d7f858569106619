"""`slackwater bisect`: find the commit, and its input, that made the state wrong."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ... import instants
from ...errors import NotFound, Refused, Unavailable, Usage
from ...results import formats
from ...results.document import Result
from .. import options
from ..output import Progress
from ..replaying import replayed
from ..reports import Reports
from ..session import Session, either, verb

if TYPE_CHECKING:
    from ...search.session import Session as Search
    from ...search.verdict import Answer, Step, Verdict

FOLDER = Path(".slackwater")
"""Where sessions are kept, beside what `dev` keeps."""

words = either()

Refs = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="REF...", help="The moments; `beginning` is before the first. Default: the one asked for.",
        show_default=False,
    ),
]  # fmt: skip


LogFile = Annotated[
    Path, typer.Argument(metavar="FILE", help="What `bisect log` printed, perhaps mended.", show_default=False)
]


@verb(
    'slackwater bisect flights --where "SELECT * FROM carriers WHERE worst > 3000"',
    'slackwater bisect flights --check "min(flights) >= 0" --table carriers --good flights@before-deploy',
    'slackwater bisect flights --run "python check.py"      # SLACKWATER_DB is the moment, 0 good, 125 skip, else bad',
    'slackwater bisect flights --where "SELECT tail FROM aircraft WHERE flights < 0" --out keys.parquet',
    "slackwater bisect start flights      # and say of each moment what it is: good, bad, skip",
    of=words,
    whole=True,
    kafka=True,
)
def bisect(
    session: Session,
    app_name: options.App,
    where: str = options.option("SQL", "A query that returns rows when something is wrong.", ""),
    check: str = options.option("CONDITION", "SQL that must hold, over a table's columns or as a SELECT.", ""),
    table: str = options.option("TABLE", "Which table --check is over, where its columns do not say.", ""),
    python: str = options.option("FILE:FUNCTION", "Gets a DuckDB connection with the tables; says if it is good.", ""),
    run: str = options.option("CMD", "Gets the moment as the file $SLACKWATER_DB; exits as git's run has it.", ""),
    good: str = options.option("REF", "A moment at which nothing is wrong. Default: the beginning.", ""),
    bad: str = options.option("REF", "A moment at which something is. Default: now.", ""),
    first: bool = options.flag("--first", "The first change from good to bad, should there be several."),
    last: bool = options.flag("--last", "The last one."),
    scan: bool = options.flag("--scan", "List all changes; for a condition on the single rows of one table."),
    out: Path | None = options.option("FILE", "Write all keys that turned bad to a .parquet, .csv or .json file."),
    code: Path | None = options.option(
        "FILE", "The program that ran, to replay the commit. Default: [programs] of slackwater.toml."
    ),
    no_replay: bool = options.flag("--no-replay", "Stop at the commit; do not look for the input record."),
    report: Path | None = options.option("FILE", "Write what was found as one .html file, without the values."),
    md: Path | None = options.option("FILE", "The same as .md, for a pull request."),
    show_values: bool = options.flag("--show-values", "Show keys, rows, payloads and literals in these files."),
) -> None:
    """Find the first commit at which something is wrong: by a query, a condition, a function or a command.

    The commits of all stages are searched in the order in which `log` shows them, as few as a binary search takes;
    each moment that is looked at is printed as a ref. The answer names the last good and the first bad moment, the
    offsets read between them, and the keys that turned bad. Moments that cannot be judged are passed over; where that
    leaves several commits, all are named, and the exit code is 2.

    Then the batch is replayed here, on a Spark and a store of its own, by the stage's own code, until the input record
    is found that turned it bad.
    """
    from ...results import values, verdict
    from ...search.flips import scan as find_all
    from ...search.session import Asked
    from ...search.session import Session as Search

    if "@" in app_name or "/" in app_name:
        name = app_name.partition("@")[0].partition("/")[0]
        raise Usage(
            f"bisect takes the name of an app, found the ref {app_name!r}; --good and --bad take refs",
            hint=f"write `slackwater bisect {name}`, and --good {app_name} if that is where it was good",
        )
    if first and last:
        raise Usage("--first and --last name two changes; give one of them")
    if out is not None:
        values.check_ending(out)
    wanted = Reports(report, md, show_values)
    wanted.check()
    asked = Asked(app_name, where, check, table, python, run, good, bad, "first" if first else "last" if last else "")
    if asked.by_hand:
        raise Usage(
            "nothing says what is wrong",
            hint=f"give --where, --check, --python or --run; or look yourself: `slackwater bisect start {app_name}`",
        )
    if scan:
        said, ends = asked.predicate(session.store), (asked.good or None, asked.bad or None)
        found = find_all(session.store, session.cache, app_name, said, good=ends[0], bad=ends[1])
        session.show(verdict.scan(found))
        return
    _check_none_open(app_name)
    _note_input_gone(session, app_name)
    _go_on(session, Search(session.store.url, asked), out, code, wanted, replay=not no_replay)


@verb("slackwater bisect start flights --good flights@before-deploy", of=words)
def start(
    session: Session,
    app_name: options.App,
    good: str = options.option("REF", "A moment that is good. Default: the beginning.", ""),
    bad: str = options.option("REF", "A moment that is bad. Default: now is the first to look at.", ""),
) -> None:
    """Begin a search in which a person says of each moment what it is.

    Each answer, `bisect good`, `bad` or `skip`, is followed by the next moment to look at, until one commit is left.
    """
    from ...search.ends import pinned
    from ...search.session import Asked, Mark
    from ...search.session import Session as Search

    _check_none_open(app_name)
    now_ms = instants.now_ms()
    ends: dict[Answer, str] = {"good": good, "bad": bad}
    marks = tuple(
        Mark(pinned(session.store, app_name, ref, answer, now_ms), answer, by_hand=True)
        for answer, ref in ends.items()
        if ref
    )
    refs = {mark.answer: mark.ref for mark in marks}
    asked = Asked(app_name, good=refs.get("good", ""), bad=refs.get("bad", ""))
    _go_on(session, Search(session.store.url, asked).with_marks(*marks))


@verb("slackwater bisect good flights", of=words)
def good(session: Session, app_name: options.App, refs: Refs = None) -> None:
    """Say that nothing is wrong at a moment; go on with the next."""
    _mark(session, app_name, "good", refs)


@verb("slackwater bisect bad flights", of=words)
def bad(session: Session, app_name: options.App, refs: Refs = None) -> None:
    """Say that something is wrong at a moment; go on with the next."""
    _mark(session, app_name, "bad", refs)


@verb("slackwater bisect skip flights", "slackwater bisect skip flights flights/carriers@v41", of=words)
def skip(session: Session, app_name: options.App, refs: Refs = None) -> None:
    """Say that nobody can tell of a moment; go on with another.

    When only such moments are left, the commits that may be the first bad one are named, and the exit code is 2.
    """
    _mark(session, app_name, "skip", refs)


@verb("slackwater bisect log flights > search.log", of=words)
def log(session: Session, app_name: options.App) -> None:
    """Print the search so far, as commands that `bisect replay` reads."""
    from ...search.session import log_of

    lines = tuple(log_of(_of(session, app_name)))
    session.show(Result({"app": app_name, "lines": lines}, *lines))


@verb("slackwater bisect replay search.log", of=words, kafka=True)
def replay(session: Session, file: LogFile) -> None:
    """Take the answers of a log for given, and go on from there, in the place of the app's session."""
    from ...search.session import of_log

    try:
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        raise NotFound("log", str(file), found=error.strerror or "") from None
    _go_on(session, of_log(text, session.store.url))


@verb("slackwater bisect explain flights", of=words)
def explain(session: Session, app_name: options.App) -> None:
    """Show of each moment that was looked at what it was found to be, how long that took, and why it was skipped."""
    from ...results import verdict

    session.show(verdict.explained(_of(session, app_name)))


@verb("slackwater bisect reset flights", of=words)
def reset(session: Session, app_name: options.App) -> None:
    """Forget the app's search."""
    from ...search.session import path_of

    path = path_of(FOLDER, app_name)
    was_there = path.exists()
    path.unlink(missing_ok=True)
    done = f"removed {path}" if was_there else f"there is no search of {app_name}"
    session.show(Result({"app": app_name, "removed": was_there}, done))


def _go_on(
    session: Session,
    search: "Search",
    out: Path | None = None,
    code: Path | None = None,
    reports: Reports | None = None,
    *,
    replay: bool = False,
) -> None:
    """Search with what is known, keep what is found out, and show the verdict or what a person is to look at."""
    from msgspec.structs import replace

    from ...results import verdict as shown
    from ...search.predicate import Wanted
    from ...search.search import bisect as find
    from ...store.versions.apps import free_name

    asked, kept = search.asked, search
    predicate = asked.predicate(session.store)
    with session.output.progress() as progress:
        show_step = _steps(progress, asked.app)

        def on_step(step: "Step") -> None:
            nonlocal kept
            show_step(step)
            kept = kept.with_step(step)
            _keep(session, kept)

        try:
            verdict = find(
                session.store,
                session.cache,
                asked.app,
                predicate,
                good=asked.good or None,
                bad=asked.bad or None,
                edge=asked.edge,
                known=search.known,
                on_step=on_step,
                reader=session.client.channels() if predicate.channels and not asked.by_hand else None,
            )
        except Wanted as wanted:
            kept = replace(kept, wanted=wanted.ref, asked=replace(asked, bad=asked.bad or wanted.ref))
            _keep(session, kept)
            session.show(shown.wanted(kept, wanted.cut, wanted.left, session.flags))
            return
        _keep(session, replace(kept, found=shown.sentence(verdict), wanted=None))
        guilty = replayed(session, verdict, code, progress) if replay else None
    for ref, cut in verdict.asked.items():
        session.note_thinned(ref, cut.thinned)
    if verdict.begins:
        session.note(
            f"note: the history of {verdict.app} before {verdict.begins} was thinned out by gc; "
            "of that, the moments that are left are searched"
        )
    if out is not None:
        _write_keys(session, verdict, out)
    clone = free_name(session.store, f"{verdict.app}-staging")
    session.show(shown.verdict(verdict, guilty, out, asked.edge, clone, session.flags))
    if reports is not None:
        reports.write(session, verdict, guilty)
    if verdict.candidates:
        raise typer.Exit(2)


def _write_keys(session: Session, verdict: "Verdict", out: Path) -> None:
    from ...results import values

    if verdict.keys is not None:
        values.write(verdict.keys.flat(), out)
        return
    why = f"{verdict.stage} keeps no table, so no key turned bad" if not verdict.candidates else "no key is certain"
    session.note(f"note: {why}, and {out} is not written")


def _steps(progress: Progress, app_name: str) -> "Callable[[Step], None]":
    def on_step(step: "Step") -> None:
        moment = step.ref or f"{app_name} before its first commit"
        line = f"{step.number}/{step.total}  {moment}: {step.answer}{f' ({step.why})' if step.why else ''}"
        progress(line, f"{formats.bar(step.number, step.total)}  {line}")

    return on_step


def _keep(session: Session, search: "Search") -> None:
    """Write the search down. One that a predicate makes goes on where the folder cannot be written."""
    try:
        search.write(FOLDER)
    except Refused as error:
        if search.asked.by_hand:
            raise
        if search.found:
            session.note(f"note: {error.message}")


def _check_none_open(app_name: str) -> None:
    """Raise `Refused` when somebody is about to look for the first bad commit of an app."""
    from ...search.session import read

    try:
        search = read(FOLDER, app_name)
    except NotFound:
        return
    if search.wanted is not None:
        raise Refused(
            f"a search of {app_name} by hand is open: {search.wanted or 'the beginning'} is to be looked at",
            hint=f"`slackwater bisect log {app_name}` prints it, `slackwater bisect reset {app_name}` forgets it",
        )


def _note_input_gone(session: Session, app_name: str) -> None:
    """Say of which versions Kafka does not hold the input any more, where it is known where Kafka is."""
    from ...moments.query.log import unreplayable

    topics = session.client.channels()
    if topics is None:
        return
    try:
        gone = unreplayable(session.store, app_name, topics)
    except (Unavailable, Refused) as error:
        session.note(f"note: nobody knows what Kafka still holds: {error.message}")
        return
    if gone:
        versions = ", ".join(f"{stage} up to v{version}" for stage, version in gone.items())
        session.note(f"note: Kafka does not hold all input any more of {versions}: these can be found, not replayed")


def _mark(session: Session, app_name: str, answer: "Answer", refs: list[str] | None) -> None:
    from ...search.ends import pinned
    from ...search.session import BEGINNING, Mark

    search, now_ms = _of(session, app_name), instants.now_ms()
    if not refs and search.wanted is None:
        raise Refused(
            f"no moment of {app_name} is to be looked at: {search.found or 'the search was interrupted'}",
            hint=f"name the moment: slackwater bisect {answer} {app_name} REF",
        )
    names = [
        "" if ref == BEGINNING else pinned(session.store, app_name, ref, answer, now_ms) for ref in refs or ()
    ] or [search.wanted or ""]
    _go_on(session, search.with_marks(*(Mark(ref, answer, by_hand=True) for ref in names)))


def _of(session: Session, app_name: str) -> "Search":
    """The app's session. Raises `Refused` when it is one of another store."""
    from ...search.session import read

    search = read(FOLDER, app_name)
    if search.store != session.store.url:
        raise Refused(
            f"the search of {app_name} is one in {search.store}, not in {session.store.url}",
            hint=f"give --store {search.store}, or forget it: `slackwater bisect reset {app_name}`",
        )
    return search
