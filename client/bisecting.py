"""What bisect is asked, in Python's values, and the input record behind its answer."""

from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import Usage
from ..snapshot.bisect.predicate import Predicate
from ..snapshot.bisect.programs import Function, Python
from ..snapshot.bisect.session import Asked
from ..snapshot.bisect.verdict import Guilty, Verdict
from ..store.objects.protocol import ObjectStore

if TYPE_CHECKING:
    from .client import Client


def predicate_of(
    store: ObjectStore, app: str, where: str, check: str, table: str, python: Function | None = None, run: str = ""
) -> Predicate:
    """What says whether a moment is bad.

    Raises:
        Usage: nothing says it, or several do, or it is malformed.
        NotFound: there is no such table.
    """
    if python is None:
        asked = Asked(app, where=where, check=check, table=table, run=run)
        if not asked.by_hand:
            return asked.predicate(store)
    elif not (where or check or run):
        return Python(getattr(python, "__name__", "function"), python)
    raise Usage("say what is wrong by one of where=, check=, python= and run=")


def record_behind(client: "Client", app: str, verdict: Verdict, code: str | Path) -> Guilty:
    """The input record behind a verdict: the commit is replayed with the program of a file. Raises as `find_record`."""
    # Spark's Python side takes a second or two.
    from ..pipeline.replay.program import open_program
    from ..pipeline.replay.record import find_record
    from ..pipeline.run.program import load_app

    channels = client.known_channels("which have the records to replay")
    with open_program(load_app(str(code), name=app), client.store, client.cache, channels.kafka) as program:
        return find_record(program, verdict, verdict.predicate)
