"""Words that look like a moment but are no ref, and the refs that they may stand for, most likely first.

People write `app@5m`, `app@yesterday`, `app@latest`, `app@5`. Resolving never guesses: the error lists the forms. Names
of snapshots and other objects may not be such words.
"""

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

from ...common.durations import format_ms, parse_ms
from ...errors import Usage

Form = tuple[str, str]
"""Text after the `@` of a ref, and a description of the moment that it names."""

_NEWEST = frozenset({"now", "latest", "newest", "current", "head"})
OLDEST = frozenset({"beginning", "oldest", "earliest"})
"""Words for the moment before everything, which has no ref; `log` shows the first moment that has one."""
_DAYS = {"today": 0, "yesterday": 1}
_SPAN = re.compile(r"[+-]?\s*(.*?)[\s_-]*(?:ago|back|earlier|before)?")
_BACK = re.compile(r"(?:(?:head|latest|newest|now|last)[~^-]|~|\^|-|\+|#)?(\d{1,9})")
_MARKS = re.compile(r"(?:head|latest|newest|now|last)?([~^]+)")
_VERSION = re.compile(r"(?:v|ver|version)[\s._-]*(\d{1,19})")
_DAY = re.compile(r"(\d{4})[-/._]?(\d{2})[-/._]?(\d{2})")
_CLOCK = re.compile(r"(\d{1,2}):(\d{2})(?::(\d{2}))?")
_EPOCHS = {10: 1_000, 13: 1}
"""Milliseconds per unit of a time since 1970, by its number of digits."""


def forms(text: str, now_ms: int) -> tuple[Form, ...]:
    """Return the refs that `text`, after the `@` of a ref, may stand for; empty if it does not look like a moment.

    `STAGE@v5` is a form for one stage. Days and times of day are in this machine's time zone.
    """
    return tuple(dict.fromkeys(_forms(text.strip().lower(), now_ms)))


def looks_like_a_moment(name: str) -> bool:
    """Return True if a ref or a person would take a name for a moment."""
    return name in OLDEST or bool(forms(name, 0))


def _forms(text: str, now_ms: int) -> Iterator[Form]:
    if text in _NEWEST:
        yield "now", "the newest state"
    if text in _DAYS:
        day = datetime.fromtimestamp(now_ms / 1_000, UTC).astimezone() - timedelta(days=_DAYS[text])
        yield day.date().isoformat(), f"the first instant of {text}"
        if _DAYS[text]:
            yield f"-{_DAYS[text]}d", "24 hours ago"
    if match := _VERSION.fullmatch(text):
        yield f"v{match[1]}", f"version {match[1]} of one stage"
    if match := _DAY.fullmatch(text):
        dates = tuple(_time("-".join(match.groups()), "the first instant of that day"))
        yield from dates
        if dates:
            return
    if text.isdecimal() and len(text) in _EPOCHS:
        yield from _time_since_1970(int(text) * _EPOCHS[len(text)])
    elif match := _BACK.fullmatch(text):
        yield f"~{match[1]}", _commits(int(match[1]))
        if text.isdecimal():
            yield f"v{match[1]}", f"version {match[1]} of one stage"
    if match := _MARKS.fullmatch(text):
        yield f"~{len(match[1])}", _commits(len(match[1]))
    if match := _CLOCK.fullmatch(text):
        today = datetime.fromtimestamp(now_ms / 1_000, UTC).astimezone().date()
        yield from _time(f"{today.isoformat()}T{int(match[1]):02}:{text.partition(':')[2]}", "that time today")
    if (match := _SPAN.fullmatch(text)) and (span := _span(match[1])):
        yield f"-{span}", f"{span} ago"


def _commits(number: int) -> str:
    return f"{number} commit{'' if number == 1 else 's'} of data back"


def _span(text: str) -> str:
    try:
        return format_ms(parse_ms("", re.sub(r"[_-]", " ", text)))
    except Usage:
        return ""


def _time(text: str, meaning: str) -> Iterator[Form]:
    try:
        datetime.fromisoformat(text)
    except ValueError:
        return
    yield text, meaning


def _time_since_1970(time_ms: int) -> Iterator[Form]:
    try:
        text = datetime.fromtimestamp(time_ms / 1_000, UTC).isoformat(timespec="milliseconds")
    except (ValueError, OverflowError, OSError):
        return
    yield f"{text.removesuffix('+00:00')}Z", "that time since 1970"
