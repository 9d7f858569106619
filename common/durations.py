"""Parsing and formatting of durations: one or more numbers, each with a unit.

Examples: `10 seconds`, `1.5 s`, `500ms`, `90d`, `1d12h`, `1 day 12 hours`. One grammar serves all durations: command
line options, `slackwater.toml`, refs such as `app@-5m`, and arguments of a program's stages.
"""

import re
from contextlib import suppress

from ..errors import Usage

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS

_SHORT = {"d": DAY_MS, "h": HOUR_MS, "m": 60_000, "s": 1_000, "ms": 1}
_UNITS_MS = _SHORT | {
    "millisecond": 1,
    "sec": 1_000,
    "second": 1_000,
    "min": 60_000,
    "minute": 60_000,
    "hour": HOUR_MS,
    "day": DAY_MS,
    "w": 7 * DAY_MS,
    "week": 7 * DAY_MS,
}
_MAX_MS = 10**9 * DAY_MS
_NUMBER = r"\d{1,18}(?:\.\d{1,18})?"
_WORDS = "|".join(unit for unit in _UNITS_MS if len(unit) > 2)
_PART = re.compile(rf"({_NUMBER})\s*(?:({_WORDS})s?|({'|'.join(_SHORT)}|w))(?![a-z])\s*", re.ASCII)
_SPAN = re.compile(rf"(?:{_PART.pattern})+", re.ASCII)


def parse_ms(subject: str, text: object, *, bare_seconds: bool = False) -> int:
    """Parse a duration into milliseconds, rounded. `m` means minutes. Units are case-insensitive.

    With `bare_seconds`, a number without a unit is in seconds. Raises `Usage`, with a message that begins with
    `subject`, if the text is no duration, or the duration exceeds 10^9 days.
    """
    normalized = text.strip().lower() if isinstance(text, str) else ""
    if bare_seconds:
        with suppress(ValueError):  # `1e3` and `.5` are numbers as well; `inf` has no digits then
            normalized = f"{float(normalized):.3f}s"
    if not _SPAN.fullmatch(normalized):
        expected = "expected a number and a unit, such as '500 ms', '10 seconds' or 7d"
        raise Usage(
            f"{subject} {text!r} is not a span of time; {expected}".lstrip(),
            hint="the units are ms, s, m, h, d and w, or whole words; several add up: 1d12h",
        )
    span_ms = 0
    for number, word, symbol in _PART.findall(normalized):
        # Integer arithmetic: a float cannot represent every millisecond of a long duration.
        digits, _, fraction = number.partition(".")
        parts: int = 10 ** len(fraction)
        span_ms += (2 * int(digits + fraction) * _UNITS_MS[word or symbol] + parts) // (2 * parts)
    if span_ms > _MAX_MS:
        raise Usage(f"{subject} {text!r} is longer than {_MAX_MS // DAY_MS:,} days".lstrip())
    return span_ms


def format_ms(span_ms: int) -> str:
    """Format a nonnegative duration as the shortest text that `parse_ms` accepts: `1d12h`, `500ms`, `0s`."""
    parts = []
    for unit, unit_ms in _SHORT.items():
        number, span_ms = divmod(span_ms, unit_ms)
        parts.append(f"{number}{unit}" if number else "")
    return "".join(parts) or "0s"


def format_rounded(span_ms: int) -> str:
    """Format a duration in the largest unit that fits, rounded down: `3 min`, `85 ms`."""
    for unit, unit_ms in (("d", DAY_MS), ("h", HOUR_MS), ("min", 60_000), ("s", 1_000)):
        if span_ms >= unit_ms:
            return f"{span_ms // unit_ms} {unit}"
    return f"{span_ms} ms"
