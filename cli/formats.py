"""How numbers, times and windows of offsets are written for people.

Short enough for columns of a table, and as a ref takes them back: humanize would write `930 Bytes` and `4 seconds ago`.
"""

import time
from collections.abc import Iterable
from datetime import UTC, datetime

_AGES = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1_000, "s"))


def now_ms() -> int:
    """The present, in milliseconds since 1970 UTC."""
    return time.time_ns() // 1_000_000


def count(number: int) -> str:
    """1234567 as `1,234,567`."""
    return f"{number:,}"


def plural(number: int, noun: str) -> str:
    """`1 row`, `2 rows`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def size(num_bytes: int) -> str:
    """Bytes in decimal units with at most one digit after the point: `930 B`, `12.4 MB`."""
    value = float(num_bytes)
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if value < 999.95 or unit == "TB":
            break
        value /= 1000
    return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"


def duration(milliseconds: int) -> str:
    """A span of time, rounded to what a person reads: `85 ms`, `2.4 s`, `3 min`."""
    if milliseconds < 1000:
        return f"{milliseconds} ms"
    if milliseconds < 60_000:
        return f"{milliseconds / 1000:.1f} s"
    return _rounded(milliseconds)


def age(time_ms: int, present_ms: int | None = None) -> str:
    """How long ago, in the largest unit that fits: `4 s ago`; `now` for the last second and the future."""
    elapsed_ms = (now_ms() if present_ms is None else present_ms) - time_ms
    return "now" if elapsed_ms < 1000 else f"{_rounded(elapsed_ms)} ago"


def _rounded(milliseconds: int) -> str:
    for unit_ms, unit in _AGES:
        if milliseconds >= unit_ms:
            return f"{milliseconds // unit_ms} {unit}"
    return f"{milliseconds} ms"


def moment(time_ms: int, precision: str = "seconds") -> str:
    """A time in UTC, as a ref takes it, in whole seconds or milliseconds: `2026-11-21T07:12:05Z`."""
    time = datetime.fromtimestamp(time_ms // 1000, UTC).replace(microsecond=time_ms % 1000 * 1000)
    return f"{time.isoformat(timespec=precision).removesuffix('+00:00')}Z"


def windows(texts: Iterable[str]) -> str:
    """Windows of offsets in one line, each topic named once: `flights[0] 3..9, [1] 2..7`."""
    shown, last = [], None
    for text in texts:
        topic, bracket, rest = text.rpartition("[")
        shown.append(text if topic != last else bracket + rest)
        last = topic
    return ", ".join(shown)


def when(time_ms: int) -> str:
    """A moment and how long ago it was."""
    return f"{moment(time_ms)} ({age(time_ms)})"


def listed(*counted: tuple[int, str]) -> str:
    """Each number with its noun: `1 row, 2 SSTs`."""
    return ", ".join(plural(number, noun) for number, noun in counted)
