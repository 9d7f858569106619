"""The words of `slackwater bisect` beside the search itself: those for a person who looks, and the session's own."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .. import instants
from ..errors import NotFound, Refused, Unavailable
from ..results import formats
from ..results.document import Table
from . import options
from .session import Session, either, verb

if TYPE_CHECKING:
    from ..snapshot.bisect.session import Session as Search
    from ..snapshot.bisect.verdict import Answer
    from ..snapshot.cut.graph import Cut

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
    from ..snapshot.bisect.ends import pinned
    from ..snapshot.bisect.session import Asked, Mark
    from ..snapshot.bisect.session import Session as Search
    from .verbs.bisect import go_on

    check_none_open(app_name)
    now_ms = instants.now_ms()
    ends: dict[Answer, str] = {"good": good, "bad": bad}
    marks = tuple(
        Mark(pinned(session.store, app_name, ref, answer, now_ms), answer, by_hand=True)
        for answer, ref in ends.items()
        if ref
    )
    refs = {mark.answer: mark.ref for mark in marks}
    asked = Asked(app_name, good=refs.get("good", ""), bad=refs.get("bad", ""))
    go_on(session, Search(session.store.url, asked).with_marks(*marks))


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
    from ..snapshot.bisect.session import log_of

    lines = tuple(log_of(_of(session, app_name)))
    session.show({"app": app_name, "lines": lines}, *lines)


@verb("slackwater bisect replay search.log", of=words, kafka=True)
def replay(session: Session, file: LogFile) -> None:
    """Take the answers of a log for given, and go on from there, in the place of the app's session."""
    from ..snapshot.bisect.session import of_log
    from .verbs.bisect import go_on

    try:
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        raise NotFound("log", str(file), found=error.strerror or "") from None
    go_on(session, of_log(text, session.store.url))


@verb("slackwater bisect explain flights", of=words)
def explain(session: Session, app_name: options.App) -> None:
    """Show of each moment that was looked at what it was found to be, how long that took, and why it was skipped."""
    search = _of(session, app_name)
    lines = (
        (
            str(number),
            mark.ref or "before the first commit",
            mark.answer,
            "-" if mark.by_hand else formats.duration(mark.took_ms),
            "said by hand" if mark.by_hand else mark.why,
        )
        for number, mark in enumerate(search.marks, 1)
    )
    last = f"{search.wanted or 'the beginning'} is to be looked at" if search.wanted is not None else search.found
    session.show(search, Table.of((">", "moment", "was", ">took", "why"), lines), *filter(None, [last]))


@verb("slackwater bisect reset flights", of=words)
def reset(session: Session, app_name: options.App) -> None:
    """Forget the app's search."""
    from ..snapshot.bisect.session import path_of

    path = path_of(FOLDER, app_name)
    was_there = path.exists()
    path.unlink(missing_ok=True)
    done = f"removed {path}" if was_there else f"there is no search of {app_name}"
    session.show({"app": app_name, "removed": was_there}, done)


def keep(session: Session, search: "Search") -> None:
    """Write the search down. One that a predicate makes goes on where the folder cannot be written."""
    try:
        search.write(FOLDER)
    except Refused as error:
        if search.asked.by_hand:
            raise
        if search.found:
            session.note(f"note: {error.message}")


def check_none_open(app_name: str) -> None:
    """Raise `Refused` when somebody is about to look for the first bad commit of an app."""
    from ..snapshot.bisect.session import read

    try:
        search = read(FOLDER, app_name)
    except NotFound:
        return
    if search.wanted is not None:
        raise Refused(
            f"a search of {app_name} by hand is open: {search.wanted or 'the beginning'} is to be looked at",
            hint=f"`slackwater bisect log {app_name}` prints it, `slackwater bisect reset {app_name}` forgets it",
        )


def note_input_gone(session: Session, app_name: str) -> None:
    """Say of which versions Kafka does not hold the input any more, where it is known where Kafka is."""
    from ..snapshot.query.replayable import unreplayable

    topics = session.settings.open_channels()
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


def show_wanted(session: Session, search: "Search", cut: "Cut", left: int) -> None:
    """What a person is to look at next."""
    app, ref = search.asked.app, search.wanted or ""
    stage = ref.partition("/")[2].partition("@")[0]
    table = stage if stage in cut.tables else next(iter(cut.tables), "")
    to_type = [f"  slackwater query {ref} 'FROM {table}'{session.flags}"] if ref and table else []
    session.show(
        {"app": app, "wanted": ref, "cut": cut.versions, "left": left},
        f"look at {ref or 'the beginning'}, {instants.when(cut.time_ms)}; about {left} more after it:",
        *to_type,
        f"and say what it is: slackwater bisect good {app}{session.flags} (or bad, or skip)",
    )


def _mark(session: Session, app_name: str, answer: "Answer", refs: list[str] | None) -> None:
    from ..snapshot.bisect.ends import pinned
    from ..snapshot.bisect.session import BEGINNING, Mark
    from .verbs.bisect import go_on

    search, now_ms = _of(session, app_name), instants.now_ms()
    if not refs and search.wanted is None:
        raise Refused(
            f"no moment of {app_name} is to be looked at: {search.found or 'the search was interrupted'}",
            hint=f"name the moment: slackwater bisect {answer} {app_name} REF",
        )
    names = [
        "" if ref == BEGINNING else pinned(session.store, app_name, ref, answer, now_ms) for ref in refs or ()
    ] or [search.wanted or ""]
    go_on(session, search.with_marks(*(Mark(ref, answer, by_hand=True) for ref in names)))


def _of(session: Session, app_name: str) -> "Search":
    """The app's session. Raises `Refused` when it is one of another store."""
    from ..snapshot.bisect.session import read

    search = read(FOLDER, app_name)
    if search.store != session.store.url:
        raise Refused(
            f"the search of {app_name} is one in {search.store}, not in {session.store.url}",
            hint=f"give --store {search.store}, or forget it: `slackwater bisect reset {app_name}`",
        )
    return search
