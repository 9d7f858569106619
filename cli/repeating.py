"""What a verb does again and again until it is asked to stop, and what fails of it meanwhile."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from .. import instants
from ..errors import SlackwaterError
from .session import Session

if TYPE_CHECKING:
    from ..pipeline.run.stopping import Stop

_RETRY_S = 5.0
"""After so long what failed is tried again."""


def repeat(
    session: Session,
    stop: "Stop",
    due_ms: Callable[[], int],
    act: Callable[[], object],
    *,
    ends: tuple[type[SlackwaterError], ...] = (),
) -> None:
    """`act` whenever it is due, until somebody asks to stop.

    What it raises is told once and tried again: storage will be there again, what is damaged may be mended, and nothing
    is lost meanwhile. Raises those of the errors that `ends` names.
    """
    last_error = ""
    while not stop.wait(max(0.0, (due_ms() - instants.now_ms()) / 1_000)):
        try:
            act()
            last_error = ""
        except SlackwaterError as error:
            if isinstance(error, ends):
                raise
            if error.message != last_error:
                session.failure(error)
                session.note(f"trying again every {_RETRY_S:g} s")
            last_error = error.message
            stop.wait(_RETRY_S)
