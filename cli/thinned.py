"""What every verb that takes a ref says when gc has left another moment than the one that was asked for."""

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from . import humane

if TYPE_CHECKING:
    from ..snapshot.cut.graph import Thinned
    from .output import Output

__all__ = ["tell"]


def tell(output: "Output", ref: str, thinned: "Thinned | None") -> None:
    """A note on standard error, if the answer is of another moment. Machines find `thinned_out` in the result."""
    if thinned is None:
        return
    moved_ms = thinned.answered_ms - thinned.asked_ms
    how_far = f", {humane.duration(abs(moved_ms))} {'earlier' if moved_ms < 0 else 'later'}" if moved_ms else ""
    output.note(
        f"note: {ref}: history was thinned out by gc there; answering with the moment "
        f"{_exactly(thinned.answered_ms)}{how_far}"
    )


def _exactly(time_ms: int) -> str:
    """To the millisecond, as a ref takes it."""
    shown = datetime.fromtimestamp(time_ms / 1_000, UTC).isoformat(timespec="milliseconds")
    return shown.replace("+00:00", "Z")
