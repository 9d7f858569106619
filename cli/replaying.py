"""Replays as verbs start them: with which program, and what is said while they go on."""

from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import SlackwaterError, Usage
from .output import Progress
from .session import Session

if TYPE_CHECKING:
    from ..search.verdict import Guilty, Hop, Verdict

STARTING = "starting Spark for the replay"


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


def replayed(session: Session, verdict: "Verdict", code: Path | None, progress: Progress) -> "Guilty | None":
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

    from ..client.programs import record_behind

    def on_hop(hop: "Hop") -> None:
        progress(f"{hop.stage} v{hop.version}: {hop.record}, found with {hop.replays} replays")

    try:
        progress(STARTING)
        return record_behind(session.client, verdict.app, verdict, file, on_hop)
    except SlackwaterError as error:
        # What is found already is not lost.
        more = f"; {error.hint}" if error.hint else ""
        session.note(f"note: the commit is found, but nothing is replayed: {error.message}{more}")
        return None
