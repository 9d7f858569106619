"""Refs: how a person names a moment of an app. Text to a value; what exists is found out by `resolve`."""

import re
from dataclasses import dataclass

from ...common import instants
from ...common.durations import parse_ms
from ...errors import Usage
from ...store.versions.keys import check_name
from .lookalikes import OLDEST, forms, looks_like_a_moment

FORMS = (
    "app, app@SNAPSHOT, app@2026-11-21T07:12 (local time, or with Z or +01:00), app@2026-11-21, "
    "app@-5m (s, m, h, d, w), app@now, app@~3 (commits of data back); "
    "for one stage app/stage@v42, app/stage@~3, app/stage@TIME"
)
"""All forms of a ref, in one line for messages and help."""

_BACK = re.compile(r"~(\d{1,9})")
_VERSION = re.compile(r"v(\d{1,19})")
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")
_SKEW_MS = 60_000
"""How far ahead of this machine's clock a time may lie: what another machine committed just now may be."""
_WHOLE_SECOND = re.compile(r".{10}[T ]\d{2}:\d{2}:\d{2}(?![.,\d]).*")


@dataclass(frozen=True, slots=True)
class Latest:
    """The newest that is committed."""


@dataclass(frozen=True, slots=True)
class Back:
    """`commits` commits of data before the newest; 0 is the newest commit of data itself."""

    commits: int


@dataclass(frozen=True, slots=True)
class AtTime:
    """Everything committed at or before this instant, milliseconds since 1970 UTC."""

    time_ms: int


@dataclass(frozen=True, slots=True)
class Named:
    """A snapshot."""

    name: str


@dataclass(frozen=True, slots=True)
class Version:
    """One version of one stage, and the other stages as they were when it was committed."""

    version: int


When = Latest | Back | AtTime | Named | Version


@dataclass(frozen=True, slots=True)
class Ref:
    """A moment of `app`; `stage` is empty unless it is about one stage. `text` is what the person wrote."""

    text: str
    app: str
    stage: str
    moment: When

    @property
    def moves(self) -> bool:
        """Whether the same words may name another moment later: `app`, `app@now`, `app@-5m`, `app@~3`."""
        return isinstance(self.moment, Latest | Back) or "@-" in self.text


def parse(text: str, *, now_ms: int) -> Ref:
    """The ref that `text` names. `now_ms` is what relative times count from.

    A time without an offset is local; a date alone is its first instant. A time written to the second covers all of
    that second, so that a time as a listing shows it includes the commit it stands for. Raises `Usage` (`text` has none
    of the forms, which the hint lists; or it is a time that is still to come).
    """
    where, at, when = text.partition("@")
    app, slash, stage = where.partition("/")
    try:
        check_name("app", app)
        if slash:
            check_name("stage", stage)
    except Usage as error:
        raise _malformed(text, error.message) from None
    if not at:
        return Ref(text, app, stage, Latest())
    return Ref(text, app, stage, _moment(text, app, stage, when, now_ms))


def check_new_name(what: str, name: str) -> str:
    """Return `name` if a new snapshot or clone may have it: usable, and taken for no moment. Else raise `Usage`."""
    check_name(what, name)
    if _DATE.match(name) or looks_like_a_moment(name):
        raise Usage(
            f"{what} name {name!r} would read as a moment of an app",
            hint="choose another name, for example before-upgrade",
        )
    return name


def _moment(text: str, app: str, stage: str, when: str, now_ms: int) -> When:
    if when == "now":
        return Latest()
    if match := _BACK.fullmatch(when):
        return Back(int(match[1]))
    if when.startswith("-"):
        try:
            return AtTime(now_ms - parse_ms("the time before now,", when[1:]))
        except Usage as error:
            raise _likely(text, when, now_ms) or _malformed(text, error.message) from None
    if match := _VERSION.fullmatch(when):
        if not stage:
            raise Usage(
                f"ref {text!r}: a version belongs to one stage, and no stage is named",
                hint=f"write {app}/STAGE@{when}; `slackwater log {app}` shows stages and versions",
            )
        return Version(int(match[1]))
    if _DATE.match(when):
        try:
            time_ms = instants.of_iso(when)
        except Usage as error:
            raise Usage(f"ref {text!r}: {error.sentence}", hint=error.hint) from None
        except (ValueError, OverflowError, OSError) as error:
            raise _malformed(text, f"{when!r} is not an ISO time ({error})") from None
        time_ms += 999 if _WHOLE_SECOND.fullmatch(when) else 0
        if time_ms > now_ms + _SKEW_MS:
            # It would be answered as now is: who mistypes a year would take that for the state of another day.
            where = f"{app}/{stage}" if stage else app
            raise Usage(
                f"ref {text!r}: {when} is still to come; by this machine's clock it is {instants.iso(now_ms)}",
                hint=f"write an earlier time, or {where}@now for the newest state",
            )
        return AtTime(time_ms)
    if likely := _likely(text, when, now_ms):
        raise likely
    try:
        return Named(check_name("snapshot", when))
    except Usage:
        raise _malformed(text, f"{when!r} is neither a time nor a snapshot's name") from None


def _likely(text: str, when: str, now_ms: int) -> Usage | None:
    """The error for words that look like a moment, which names the forms that were meant; None for other words."""
    where, _, _ = text.partition("@")
    if when in OLDEST:
        hint = f"`slackwater log {where.partition('/')[0]} --limit 0` lists the first commit last; write its time"
        return Usage(f"ref {text!r}: {when!r} names no moment", hint=hint)
    found = [
        f"{where if '/' in where or not form.startswith('v') else f'{where}/STAGE'}@{form} for {words}"
        for form, words in forms(when, now_ms)
    ]
    return Usage(f"ref {text!r}: {when!r} names no moment", hint=f"write {', or '.join(found)}") if found else None


def _malformed(text: str, why: str) -> Usage:
    return Usage(f"ref {text!r}: {why}", hint=f"a ref is one of: {FORMS}")
