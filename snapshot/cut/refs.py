"""Parse refs, by which people name moments of an app, and suggest refs for text that resembles a ref but is not one.

This module only parses; `resolve` looks refs up. Users often write `app@5m`, `app@yesterday`, `app@latest` or `app@5`,
which are not refs. Parsing never guesses: the error lists the refs that the user may mean, most likely first. Such
texts are not allowed as names of snapshots and other objects.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from ...common import instants
from ...common.durations import format_ms, parse_ms
from ...errors import Usage
from ...store.versions.keys import check_name

RefSuggestion = tuple[str, str]

_NEWEST = frozenset({"now", "latest", "newest", "current", "head"})
OLDEST = frozenset({"beginning", "oldest", "earliest"})
_DAYS = {"today": 0, "yesterday": 1}
_SPAN = re.compile(r"[+-]?\s*(.*?)[\s_-]*(?:ago|back|earlier|before)?")
_COMMITS_BACK = re.compile(r"(?:(?:head|latest|newest|now|last)[~^-]|~|\^|-|\+|#)?(\d{1,9})")
_MARKS = re.compile(r"(?:head|latest|newest|now|last)?([~^]+)")
_VERSION_WORD = re.compile(r"(?:v|ver|version)[\s._-]*(\d{1,19})")
_DAY = re.compile(r"(\d{4})[-/._]?(\d{2})[-/._]?(\d{2})")
_CLOCK = re.compile(r"(\d{1,2}):(\d{2})(?::(\d{2}))?")
_EPOCHS = {10: 1_000, 13: 1}
"""Milliseconds per unit of a Unix time, by number of digits: 10 digits are seconds, 13 are milliseconds."""


def suggest_refs(text: str, now_ms: int) -> tuple[RefSuggestion, ...]:
    """Return the refs that a user may mean by `text`, the part after `@`: pairs of a corrected text and its meaning.

    Empty if `text` does not look like a moment. A version, such as `v5`, is valid only in a ref with a stage:
    `APP/STAGE@v5`. Days and times of day are in this machine's time zone.
    """
    return tuple(dict.fromkeys(_forms(text.strip().lower(), now_ms)))


def _forms(text: str, now_ms: int) -> Iterator[RefSuggestion]:
    if text in _NEWEST:
        yield "now", "the newest state"
    if text in _DAYS:
        day = datetime.fromtimestamp(now_ms / 1_000, UTC).astimezone() - timedelta(days=_DAYS[text])
        yield day.date().isoformat(), f"the first instant of {text}"
        if _DAYS[text]:
            yield f"-{_DAYS[text]}d", "24 hours ago"
    if match := _VERSION_WORD.fullmatch(text):
        yield f"v{match[1]}", f"version {match[1]} of one stage"
    if match := _DAY.fullmatch(text):
        dates = tuple(_time("-".join(match.groups()), "the first instant of that day"))
        yield from dates
        if dates:
            return
    if text.isdecimal() and len(text) in _EPOCHS:
        yield from _time_since_1970(int(text) * _EPOCHS[len(text)])
    elif match := _COMMITS_BACK.fullmatch(text):
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
    return f"{number} data commit{'' if number == 1 else 's'} back"


def _span(text: str) -> str:
    try:
        return format_ms(parse_ms("", re.sub(r"[_-]", " ", text)))
    except Usage:
        return ""


def _time(text: str, meaning: str) -> Iterator[RefSuggestion]:
    try:
        datetime.fromisoformat(text)
    except ValueError:
        return
    yield text, meaning


def _time_since_1970(time_ms: int) -> Iterator[RefSuggestion]:
    try:
        text = datetime.fromtimestamp(time_ms / 1_000, UTC).isoformat(timespec="milliseconds")
    except (ValueError, OverflowError, OSError):
        return
    yield f"{text.removesuffix('+00:00')}Z", "that time since 1970"


REF_FORMS = (
    "app, app@SNAPSHOT, app@2026-11-21T07:12 (local time, or with Z or +01:00), app@2026-11-21, "
    "app@-5m (s, m, h, d, w), app@now, app@~3 (three commits with data before the newest); "
    "for one stage app/stage@v42, app/stage@~3, app/stage@TIME"
)

_BACK = re.compile(r"~(\d{1,9})")
_VERSION = re.compile(r"v(\d{1,19})")
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")
_SKEW_MS = 60_000
_WHOLE_SECOND = re.compile(r".{10}[T ]\d{2}:\d{2}:\d{2}(?![.,\d]).*")


@dataclass(frozen=True, slots=True)
class Latest:
    """Newest committed state."""


@dataclass(frozen=True, slots=True)
class CommitsBack:
    """Moment at a data commit, counted back from the newest data commit, which is 0."""

    commits: int


@dataclass(frozen=True, slots=True)
class AtTime:
    """State with all commits up to and including an instant, in ms since 1970 UTC."""

    time_ms: int


@dataclass(frozen=True, slots=True)
class NamedSnapshot:
    """Moment named by a snapshot."""

    name: str


@dataclass(frozen=True, slots=True)
class AtVersion:
    """Version of a stage, with the versions of the other stages at the time of its commit."""

    version: int


RefMoment = Latest | CommitsBack | AtTime | NamedSnapshot | AtVersion


@dataclass(frozen=True, slots=True)
class Ref:
    """Parsed ref: a moment of `app`. An empty `stage` means a ref of the whole app; `text` is the unparsed ref."""

    text: str
    app: str
    stage: str
    moment: RefMoment

    @property
    def is_relative(self) -> bool:
        return isinstance(self.moment, Latest | CommitsBack) or "@-" in self.text


def parse_ref(text: str, *, now_ms: int) -> Ref:
    """Parse a ref. Relative times count from `now_ms`.

    A time without an offset from UTC is local; a date alone is its first instant. A time with seconds covers all of
    that second, so that a time copied from a listing includes its commit. Raises `Usage` if `text` has no valid form
    (the hint lists the forms), or is a time in the future.
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
    """Return `name` if it may name a new snapshot or clone. Raises `Usage` if it is invalid, or looks like a moment."""
    check_name(label, name)
    if _DATE.match(name) or name in OLDEST or suggest_refs(name, 0):
        raise Usage(
            f"{label} name {name!r} could be mistaken for a moment of an app",
            hint="choose another name, for example before-upgrade",
        )
    return name


def _moment(text: str, app: str, stage: str, when: str, now_ms: int) -> RefMoment:
    if when == "now":
        return Latest()
    if match := _BACK.fullmatch(when):
        return CommitsBack(int(match[1]))
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
        return AtVersion(int(match[1]))
    if _DATE.match(when):
        try:
            time_ms = instants.parse_iso(when)
        except Usage as error:
            raise Usage(f"ref {text!r}: {error.sentence}", hint=error.hint) from None
        except (ValueError, OverflowError, OSError) as error:
            raise _malformed(text, f"{when!r} is not an ISO time ({error})") from None
        time_ms += 999 if _WHOLE_SECOND.fullmatch(when) else 0
        if time_ms > now_ms + _SKEW_MS:
            # The answer would be the newest state. A user who mistyped the year would take it for the state of another
            # day.
            where = f"{app}/{stage}" if stage else app
            raise Usage(
                f"ref {text!r}: {when} is in the future; this machine's clock says {instants.format_iso(now_ms)}",
                hint=f"write an earlier time, or {where}@now for the newest state",
            )
        return AtTime(time_ms)
    if likely := _suggest(text, when, now_ms):
        raise likely
    try:
        return NamedSnapshot(check_name("snapshot", when))
    except Usage:
        raise _malformed(text, f"{when!r} is neither a time nor a snapshot's name") from None


def _suggest(text: str, when: str, now_ms: int) -> Usage | None:
    where, _, _ = text.partition("@")
    if when in OLDEST:
        app = where.partition("/")[0]
        hint = f"write the time of the first commit, the last line of `slackwater log {app} --limit 0`"
        return Usage(f"ref {text!r}: {when!r} is not a moment", hint=hint)
    suggestions = [
        f"{where if '/' in where or not form.startswith('v') else f'{where}/STAGE'}@{form} for {meaning}"
        for form, meaning in suggest_refs(when, now_ms)
    ]
    return (
        Usage(f"ref {text!r}: {when!r} is not a moment", hint=f"write {', or '.join(suggestions)}")
        if suggestions
        else None
    )


def _malformed(text: str, why: str) -> Usage:
    return Usage(f"ref {text!r}: {why}", hint=f"a ref is one of: {REF_FORMS}")
