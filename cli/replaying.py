"""Replays as verbs start them: with which program, and what is said while they go on."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import SlackwaterError, Usage
from .output import Progress
from .session import Session

if TYPE_CHECKING:
    from ..pipeline.replay.program import Program
    from ..snapshot.bisect.verdict import Guilty, Hop, Verdict
    from ..store.read.cache import SstCache


def program_file(session: Session, app_name: str, code: Path | None) -> str | None:
    """The program to replay an app with: what was said, else what the settings name; None where neither does."""
    return str(code) if code is not None else session.settings.programs.get(app_name)


def needed_program(session: Session, app_name: str, code: Path | None, what_for: str, ran: str = "FILE.py") -> str:
    """The same, for what cannot be done without: `what_for` goes on from "which program", `ran` is the file to name.

    Raises:
        Usage: neither says which program.
    """
    file = program_file(session, app_name, code)
    if file is None:
        raise Usage(
            f"nothing says which program {what_for}",
            hint=f"add --code {ran}, or write under [programs] in slackwater.toml: {app_name} = …",
        )
    return file


@contextmanager
def program_here(
    session: Session, app_name: str, file: str, cache: "SstCache", progress: Progress
) -> "Iterator[Program]":
    """A program with Spark for it, which ends with the context. Raises as `load_app` and `open_program` do."""
    progress("starting Spark for the replay")
    # Spark's Python side takes a second or two.
    from ..pipeline.replay.program import open_program
    from ..pipeline.run.program import load_app

    app = load_app(file, name=app_name)
    with open_program(app, session.store, cache, session.settings.open_kafka()) as program:
        yield program


def replayed(
    session: Session, verdict: "Verdict", cache: "SstCache", code: Path | None, progress: Progress
) -> "Guilty | None":
    """The record behind a verdict; None, and a note why, where nothing can be replayed here."""
    settings = session.settings
    if verdict.candidates:
        return None  # it is not known which commit it was
    file = program_file(session, verdict.app, code)
    if file is None:
        ran = verdict.bad.stages[verdict.stage].program
        session.note(
            f"note: which input record it was, a replay tells: add --code {ran.path if ran else 'FILE'}, the program "
            "that ran"
        )
        return None
    if not settings.brokers:
        session.note("note: nothing is replayed, as nothing says where Kafka is: add --kafka HOST:PORT")
        return None

    def on_hop(hop: "Hop") -> None:
        progress(f"{hop.stage} v{hop.version}: {hop.record}, found with {hop.replays} replays")

    try:
        with program_here(session, verdict.app, file, cache, progress) as program:
            from ..pipeline.replay.record import find_record

            return find_record(program, verdict, verdict.predicate, on_hop)
    except SlackwaterError as error:
        # What is found already is not lost.
        more = f"; {error.hint}" if error.hint else ""
        session.note(f"note: the commit is found, but nothing is replayed: {error.message}{more}")
        return None
