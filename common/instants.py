"""The current time, and conversion of times and ages from and to text.

The formatted texts can be used in refs, and are short enough for a column of a table.
"""

from datetime import UTC, date, datetime, timedelta

from ..errors import Usage
from . import runtime
from .durations import DAY_MS, format_rounded, parse_ms


def now_ms() -> int:
    return runtime.time_ns() // 1_000_000


def parse_instant(subject: str, text: str) -> int:
    """Parse a time into ms since 1970 UTC: an ISO time (local if without an offset), or an age such as `-5m`.

    Raises `Usage`, with a message that begins with `subject`, for anything else.
    """
    if text.startswith("-"):
        return now_ms() - parse_ms(subject, text[1:])
    try:
        return parse_iso(text)
    except Usage as error:
        raise Usage(f"{subject} {error.sentence}", hint=error.hint) from None
    except (ValueError, OverflowError, OSError) as error:
        raise Usage(
            f"{subject} {text!r} is not a time ({error})",
            hint="such as 2026-11-21T07:12Z (local time without Z), or -5m",
        ) from None


def parse_iso(text: str) -> int:
    """Parse an ISO time into ms since 1970 UTC. A time without an offset is local; a date stands for its first instant.

    Raises `Usage` for a local time that is ambiguous or does not exist, because clocks change. Raises `ValueError`,
    `OverflowError` and `OSError` for invalid text.
    """
    at = datetime.fromisoformat(text)
    readings = sorted((at.replace(fold=fold).astimezone() for fold in (0, 1)), key=datetime.timestamp)
    times_ms = [round(reading.timestamp() * 1_000) for reading in readings]
    is_twice = all(reading.replace(tzinfo=None) == at for reading in readings)
    if at.tzinfo is None and times_ms[0] != times_ms[1] and not _is_date(text):
        why = (
            f"comes twice in local time, {format_iso(times_ms[0])} and {format_iso(times_ms[1])}, when clocks are "
            f"put back"
            if is_twice
            else "does not exist in local time: clocks are put forward over it"
        )
        offsets = " or ".join(f"{text}{reading.isoformat()[-6:]}" for reading in readings)
        raise Usage(
            f"{text} {why} ({' and '.join(str(reading.tzname()) for reading in readings)})",
            hint=f"write it with its offset: {offsets}; or in UTC, as {format_iso(times_ms[0])}",
        )
    # If clocks are set forward over midnight, the day begins at the new time.
    return times_ms[0 if is_twice else 1]


def _is_date(text: str) -> bool:
    try:
        date.fromisoformat(text)
    except ValueError:
        return False
    return True


def format_iso(time_ms: int, precision: str = "seconds") -> str:
    """Format a time in UTC, truncated to `precision` (minutes, seconds or milliseconds): `2026-11-21T07:12:05Z`."""
    days, ms = divmod(time_ms, DAY_MS)
    clock = (_MIDNIGHT + timedelta(milliseconds=ms)).time()
    return f"{format_day(days)}T{clock.isoformat(timespec=precision)}Z"


_EPOCH = date(1970, 1, 1)
_MIDNIGHT = datetime(1970, 1, 1, tzinfo=UTC)
_CYCLE_DAYS, _CYCLE_YEARS = 146_097, 400


def format_day(days: int) -> str:
    """Format a day, given as days since 1970-01-01, as a Gregorian date of any year: `55840-11-08`.

    Years have at least four digits and are numbered as in ISO 8601: year 0 precedes year 1, and -43 is 44 BC. Python's
    dates support only the years 1 to 9999.
    """
    cycles, day_of_cycle = divmod(days, _CYCLE_DAYS)
    within = _EPOCH + timedelta(days=day_of_cycle)
    year = within.year + cycles * _CYCLE_YEARS
    return f"{year:0{5 if year < 0 else 4}}-{within.month:02}-{within.day:02}"


def format_age(time_ms: int, present_ms: int | None = None) -> str:
    """Format the age of a time in its largest unit: `4 s ago`; `now` if the age is under a second or negative."""
    elapsed_ms = (now_ms() if present_ms is None else present_ms) - time_ms
    return "now" if elapsed_ms < 1000 else f"{format_rounded(elapsed_ms)} ago"


def format_with_age(time_ms: int) -> str:
    return f"{format_iso(time_ms)} ({format_age(time_ms)})"
