"""What goes wrong over HTTP: an error of the library, or one of these, as a status and a document."""

from collections.abc import Mapping
from typing import Any

from ..errors import (
    Corruption,
    Forbidden,
    Gone,
    MomentGone,
    NotFound,
    Refused,
    SlackwaterError,
    TooMuch,
    Unavailable,
    Usage,
)


class NotKnown(SlackwaterError):
    """Nobody is known by what was sent to say who asks."""


class Denied(SlackwaterError):
    """Whoever asks is known, and may not have this."""


class TooOften(SlackwaterError):
    """More was asked within a time than may be. `after_s` is when to ask again."""

    def __init__(self, sentence: str, *, after_s: float = 1.0) -> None:
        super().__init__(sentence, hint=f"ask again in {after_s:.1f} s")
        self.after_s = after_s


class NotYet(SlackwaterError):
    """The state has not read as far as was asked for. `offsets` is how far it has."""

    def __init__(self, sentence: str, *, offsets: Mapping[str, tuple[int, ...]], hint: str) -> None:
        super().__init__(sentence, hint=hint)
        self.offsets = offsets


STATUS: tuple[tuple[type[SlackwaterError], int], ...] = (
    (Usage, 400),
    (NotKnown, 401),
    (Denied, 403),
    (MomentGone, 410),
    (Gone, 410),
    (NotFound, 404),
    (NotYet, 409),
    (TooMuch, 413),
    (TooOften, 429),
    (Unavailable, 503),
    (Corruption, 500),
    (Forbidden, 502),
    (Refused, 409),
)
"""The first that fits counts. Anything else of ours is 422: understood, and it could not be carried out."""
CODES = tuple(sorted({422, *(status for _, status in STATUS)} - {500}))


def status_of(error: SlackwaterError) -> int:
    """The status of an error."""
    return next((status for kind, status in STATUS if isinstance(error, kind)), 422)


def problem(error: Exception, root: str = "") -> dict[str, Any]:
    """The document of an error: `error` is a name of `errors`, or "Bug", whose words are for the log alone.

    Where the store lies, `root`, is nobody's business.
    """
    if not isinstance(error, SlackwaterError):
        return {"error": "Bug", "message": "this is a bug of slackwater; the server's log has more", "hint": ""}
    more = {"offsets": error.offsets} if isinstance(error, NotYet) else {}
    message, hint = (text.replace(root, "the store") if root else text for text in (error.message, error.hint))
    return {"error": type(error).__name__, "message": message, "hint": hint, **more}
