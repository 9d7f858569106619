"""HTTP statuses and JSON documents of errors, and the error classes that only a server has."""

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
    """The client's token or certificate is unknown."""


class Denied(SlackwaterError):
    """The client is known, but lacks the right for this request."""


class TooOften(SlackwaterError):
    """Error for an exceeded rate limit or limit of concurrent work. `after_s` is the time to wait before a retry."""

    def __init__(self, sentence: str, *, after_s: float = 1.0) -> None:
        super().__init__(sentence, hint=f"retry in {after_s:.1f} s")
        self.after_s = after_s


class NotYet(SlackwaterError):
    """The app has not read up to the requested offsets. `offsets` has the next offsets that the app will read."""

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
"""HTTP status by class of error; the first matching class counts. Other errors of slackwater have the status 422."""
CODES = tuple(sorted({422, *(status for _, status in STATUS)} - {500}))


def status_of(error: SlackwaterError) -> int:
    return next((status for kind, status in STATUS if isinstance(error, kind)), 422)


def problem(error: Exception, root: str = "") -> dict[str, Any]:
    """Return the JSON document of an error; `error` has the class name, or "Bug" if its details are only in the log.

    `root`, the address of the store, is replaced in the texts, since clients need not know the address.
    """
    if not isinstance(error, SlackwaterError):
        return {"error": "Bug", "message": "this is a bug in slackwater; see the server's log", "hint": ""}
    extra = {"offsets": error.offsets} if isinstance(error, NotYet) else {}
    message, hint = (text.replace(root, "the store") if root else text for text in (error.message, error.hint))
    return {"error": type(error).__name__, "message": message, "hint": hint, **extra}
