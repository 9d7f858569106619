"""Words that look like a moment and are none: the form of a ref that each stands for, most likely first.

People write `app@5m`, `app@yesterday`, `app@latest`, `app@5`. A ref never guesses: it names the forms. Nothing that is
named by a ref, such as a snapshot, may be called by such a word.
"""

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

from ...common.durations import format_ms, parse_ms
from ...errors import Usage

Form = tuple[str, str]
"""What stands behind the `@` of a ref, and the moment that it names, in words."""

_NEWEST = frozenset({"now", "latest", "newest", "current", "head"})
OLDEST = frozenset({"beginning", "oldest", "earliest"})
"""The moment before everything, which no ref names: `log` shows the first that one can."""
_DAYS = {"today": 0, "yesterday": 1}
_SPAN = re.compile(r"[+-]?\s*(.*?)[\s_-]*(?:ago|back|earlier|before)?")
_BACK = re.compile(r"(?:(?:head|latest|newest|now|last)[~^-]|~|\^|-|\+|#)?(\d{1,9})")
_MARKS = re.compile(r"(?:head|latest|newest|now|last)?([~^]+)")
_VERSION = re.compile(r"(?:v|ver|version)[\s._-]*(\d{1,19})")
_DAY = re.compile(r"(\d{4})[-/._]?(\d{2})[-/._]?(\d{2})")
_CLOCK = re.compile(r"(\d{1,2}):(\d{2})(?::(\d{2}))?")
_EPOCHS = {10: 1_000, 13: 1}
"""Milliseconds in a unit of the times since 1970 that have so many digits."""


def forms(words: str, now_ms: int) -> tuple[Form, ...]:
    """The forms that `words`, behind the `@` of a ref, may have been meant as; none where they look like no moment.

    `STAGE@v5` is a form of one stage. Days and times of day are those of this machine's time zone.
    """
    return tuple(dict.fromkeys(_forms(words.strip().lower(), now_ms)))


def looks_like_a_moment(name: str) -> bool:
    """Say if a name would be taken for a moment, by a ref or by a person."""
    return name in OLDEST or bool(forms(name, 0))


def _forms(words: str, now_ms: int) -> Iterator[Form]:
    if words in _NEWEST:
        yield "now", "the newest state"
    if words in _DAYS:
        day = datetime.fromtimestamp(now_ms / 1_000, UTC).astimezone() - timedelta(days=_DAYS[words])
        yield day.date().isoformat(), f"the first instant of {words}"
        if _DAYS[words]:
            yield f"-{_DAYS[words]}d", "24 hours ago"
    if match := _VERSION.fullmatch(words):
        yield f"v{match[1]}", f"version {match[1]} of one stage"
    if match := _DAY.fullmatch(words):
        dates = tuple(_time("-".join(match.groups()), "the first instant of that day"))
        yield from dates
        if dates:
            return
    if words.isdecimal() and len(words) in _EPOCHS:
        yield from _time_since_1970(int(words) * _EPOCHS[len(words)])
    elif match := _BACK.fullmatch(words):
        yield f"~{match[1]}", _commits(int(match[1]))
        if words.isdecimal():
            yield f"v{match[1]}", f"version {match[1]} of one stage"
    if match := _MARKS.fullmatch(words):
        yield f"~{len(match[1])}", _commits(len(match[1]))
    if match := _CLOCK.fullmatch(words):
        today = datetime.fromtimestamp(now_ms / 1_000, UTC).astimezone().date()
        yield from _time(f"{today.isoformat()}T{int(match[1]):02}:{words.partition(':')[2]}", "that time today")
    if (match := _SPAN.fullmatch(words)) and (span := _span(match[1])):
        yield f"-{span}", f"{span} ago"


def _commits(number: int) -> str:
    return f"{number} commit{'' if number == 1 else 's'} of data back"


def _span(text: str) -> str:
    try:
        return format_ms(parse_ms("", re.sub(r"[_-]", " ", text)))
    except Usage:
        return ""


def _time(text: str, words: str) -> Iterator[Form]:
    try:
        datetime.fromisoformat(text)
    except ValueError:
        return
    yield text, words


def _time_since_1970(time_ms: int) -> Iterator[Form]:
    try:
        text = datetime.fromtimestamp(time_ms / 1_000, UTC).isoformat(timespec="milliseconds")
    except (ValueError, OverflowError, OSError):
        return
    yield f"{text.removesuffix('+00:00')}Z", "that time since 1970"
