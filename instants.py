"""Instants: the present, and how a time and its age are written for people.

As a ref takes them back, and short enough for a column: humanize would write `4 seconds ago`.
"""

import time
from datetime import UTC, datetime

from .durations import parse_ms, rounded
from .errors import Usage


def now_ms() -> int:
    """The present, in milliseconds since 1970 UTC."""
    return time.time_ns() // 1_000_000


def parse(what: str, text: str) -> int:
    """An instant, in milliseconds since 1970 UTC: an ISO time (local, unless it says otherwise), or `-5m`, before now.

    Raises `Usage`, which begins with `what`, where it is neither.
    """
    if text.startswith("-"):
        return now_ms() - parse_ms(what, text[1:])
    try:
        # astimezone() takes a time without an offset as local.
        return round(datetime.fromisoformat(text).astimezone().timestamp() * 1_000)
    except (ValueError, OverflowError, OSError) as error:
        raise Usage(
            f"{what} {text!r} is no time ({error})", hint="such as 2026-11-21T07:12Z (local time without Z), or -5m"
        ) from None


def iso(time_ms: int, precision: str = "seconds") -> str:
    """A time in UTC, cut off at minutes, seconds or milliseconds: `2026-11-21T07:12:05Z`."""
    exact = datetime.fromtimestamp(time_ms // 1000, UTC).replace(microsecond=time_ms % 1000 * 1000)
    return f"{exact.isoformat(timespec=precision).removesuffix('+00:00')}Z"


def age(time_ms: int, present_ms: int | None = None) -> str:
    """How long ago, in the largest unit that fits: `4 s ago`; `now` for the last second and the future."""
    elapsed_ms = (now_ms() if present_ms is None else present_ms) - time_ms
    return "now" if elapsed_ms < 1000 else f"{rounded(elapsed_ms)} ago"


def when(time_ms: int) -> str:
    """A time and how long ago it was: `2026-11-21T07:12:05Z (4 s ago)`."""
    return f"{iso(time_ms)} ({age(time_ms)})"
