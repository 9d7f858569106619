"""Refs, by which people name moments of an app: parsing only; `resolve` looks them up."""

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
"""Maximum time in the future that is accepted, since another machine's clock may be ahead."""
_WHOLE_SECOND = re.compile(r".{10}[T ]\d{2}:\d{2}:\d{2}(?![.,\d]).*")


@dataclass(frozen=True, slots=True)
class Latest:
    """Newest committed state."""


@dataclass(frozen=True, slots=True)
class Back:
    """Moment `commits` data commits before the newest; 0 is the newest data commit itself."""

    commits: int


@dataclass(frozen=True, slots=True)
class AtTime:
    """State of everything committed at or before this instant, in milliseconds since 1970 UTC."""

    time_ms: int


@dataclass(frozen=True, slots=True)
class Named:
    """Moment named by a snapshot."""

    name: str


@dataclass(frozen=True, slots=True)
class Version:
    """One version of one stage, and the other stages when it was committed."""

    version: int


When = Latest | Back | AtTime | Named | Version


@dataclass(frozen=True, slots=True)
class Ref:
    """Moment of `app`; `stage` is empty unless the ref names one. `text` is the ref as typed."""

    text: str
    app: str
    stage: str
    moment: When

    @property
    def moves(self) -> bool:
        """True if the ref may name another moment later: `app`, `app@now`, `app@-5m`, `app@~3`."""
        return isinstance(self.moment, Latest | Back) or "@-" in self.text


def parse(text: str, *, now_ms: int) -> Ref:
    """Parse a ref. Relative times count from `now_ms`.

    A time without an offset is local; a date alone is its first instant. A time with seconds covers all of
    that second, so that a time copied from a listing includes its commit. Raises `Usage` if `text` has none
    of the forms, which the hint lists, or is a time in the future.
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


def check_new_name(label: str, name: str) -> str:
    """Return `name` if a new snapshot or clone may have it. Raises `Usage` if it is invalid, or reads as a moment."""
    check_name(label, name)
    if _DATE.match(name) or looks_like_a_moment(name):
        raise Usage(
            f"{label} name {name!r} would read as a moment of an app",
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
            raise _suggest(text, when, now_ms) or _malformed(text, error.message) from None
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
            # The answer would be the newest state, which a user who mistyped the year would take for another day's.
            where = f"{app}/{stage}" if stage else app
            raise Usage(
                f"ref {text!r}: {when} is in the future; this machine's clock says {instants.iso(now_ms)}",
                hint=f"write an earlier time, or {where}@now for the newest state",
            )
        return AtTime(time_ms)
    if likely := _suggest(text, when, now_ms):
        raise likely
    try:
        return Named(check_name("snapshot", when))
    except Usage:
        raise _malformed(text, f"{when!r} is neither a time nor a snapshot's name") from None


def _suggest(text: str, when: str, now_ms: int) -> Usage | None:
    """Return an error that lists the forms that may be meant, for text that looks like a moment; else None."""
    where, _, _ = text.partition("@")
    if when in OLDEST:
        hint = f"`slackwater log {where.partition('/')[0]} --limit 0` lists the first commit last; write its time"
        return Usage(f"ref {text!r}: {when!r} is not a moment", hint=hint)
    suggestions = [
        f"{where if '/' in where or not form.startswith('v') else f'{where}/STAGE'}@{form} for {meaning}"
        for form, meaning in forms(when, now_ms)
    ]
    return (
        Usage(f"ref {text!r}: {when!r} is not a moment", hint=f"write {', or '.join(suggestions)}")
        if suggestions
        else None
    )


def _malformed(text: str, why: str) -> Usage:
    return Usage(f"ref {text!r}: {why}", hint=f"a ref is one of: {FORMS}")
