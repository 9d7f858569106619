"""What can go wrong, grouped by what a handler would do about it.

Every message says what failed, what was expected and what was found; `hint` says the next step. The command line
prints both and exits 1. Anything else that escapes is a bug.
"""

import sys
import sysconfig
import traceback
from collections.abc import Iterable
from difflib import get_close_matches
from types import FrameType, TracebackType

__all__ = ["BadRecord", "CommitConflict", "Corruption", "Fenced", "Forbidden", "Gone", "MomentGone", "NotFound"]
__all__ += ["ObjectExists", "ObjectNotFound", "Protected", "Refused", "SlackwaterError", "TooMuch", "Unavailable"]
__all__ += ["AnotherTopic", "Unstorable", "Usage"]


class SlackwaterError(Exception):
    """Base of all errors a user may see. `hint` is the next step, or empty.

    `quoted` is text that belongs under the `sentence`, line by line and as it came: a query, the end of a log.
    `message` is both together.
    """

    def __init__(self, sentence: str, *, quoted: str = "", hint: str = "") -> None:
        self.message = f"{sentence}\n{quoted}" if quoted else sentence
        super().__init__(self.message)
        self.sentence = sentence
        self.quoted = quoted
        self.hint = hint

    @property
    def hint(self) -> str:
        """The next step, or empty. Python shows it as a note under the error's message, notebooks too."""
        return self._hint

    @hint.setter
    def hint(self, hint: str) -> None:
        old = f"hint: {getattr(self, '_hint', '')}"
        self._hint = hint
        # Notes of others stay.
        self.__notes__ = [note for note in getattr(self, "__notes__", ()) if note != old]
        if hint:
            self.add_note(f"hint: {hint}")

    def begin_with(self, subject: str) -> None:
        """Begin the message with its subject, "stage 'legs'", unless it names that already."""
        if subject not in self.message:
            self.sentence = f"{subject}: {self.sentence}"
            self.message = f"{self.sentence}\n{self.quoted}" if self.quoted else self.sentence
            self.args = (self.message,)

    def _render_traceback_(self) -> list[str]:
        """IPython's hook: the lines of a traceback that ends in the user's code, not in ours."""
        shown = _up_to_the_users(self.__traceback__)
        ipython = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
        if ipython is None:
            return "".join(traceback.format_exception(type(self), self, shown)).splitlines()
        lines: list[str] = ipython.InteractiveTB.structured_traceback(type(self), self, shown, tb_offset=0)
        return lines

    def __reduce__(self) -> tuple[object, ...]:
        # Exceptions cross process borders (Spark's workers) by value: keep the attributes.
        return (_rebuild, (type(self), self.__dict__))


def _up_to_the_users(trace: TracebackType | None) -> TracebackType | None:
    """A traceback from the first to the last frame of the user's code; all of it where there is none."""
    frames = [trace] if trace is not None else []
    while frames and (following := frames[-1].tb_next) is not None:
        frames.append(following)
    users = [number for number, each in enumerate(frames) if _is_users(each.tb_frame)] or [0, len(frames) - 1]
    shown: TracebackType | None = None
    for each in reversed(frames[users[0] : users[-1] + 1]):
        shown = TracebackType(shown, each.tb_frame, each.tb_lasti, each.tb_lineno)
    return shown


def _is_users(frame: FrameType) -> bool:
    """Whether a frame's code is neither slackwater's nor of Python's library nor of an installed one."""
    if str(frame.f_globals.get("__name__", "")).partition(".")[0] == __name__.partition(".")[0]:
        return False
    file = frame.f_code.co_filename
    installed = ("site-packages", "dist-packages", sysconfig.get_path("stdlib"), "<frozen ")
    return not any(each in file for each in installed)


def _rebuild(cls: type[SlackwaterError], state: dict[str, object]) -> SlackwaterError:
    return again(cls, **state)


def again(cls: type[SlackwaterError], **state: object) -> SlackwaterError:
    """An error with these attributes, as it came from elsewhere."""
    error = cls.__new__(cls)
    error.__dict__.update(state)
    error.args = (state["message"],)
    return error


class Usage(SlackwaterError):
    """The request itself is malformed: fix the words and ask again (exit code 2)."""


class NotFound(SlackwaterError, LookupError):
    """A named thing (app, stage, ref, table, column, topic) does not exist."""

    def __init__(self, what: str, name: str, known: Iterable[str] = (), *, found: str = "", hint: str = "") -> None:
        """`found` says what there is, where a list of names (`known`) would not."""
        self.what = what
        self.name = name
        self.known = tuple(sorted(known))
        near = get_close_matches(name, self.known, n=3, cutoff=0.4)
        if found:
            found = f"; {found}"
        elif near:
            found = f"; the nearest: {', '.join(near)}"
        elif self.known:
            shown = ", ".join(self.known[:8])
            found = f"; there are: {shown}{', …' if len(self.known) > 8 else ''}"
        else:
            found = "; there is none yet"
        super().__init__(f"no {what} named {name!r}{found}", hint=hint)


class MomentGone(NotFound):
    """A moment that there was: garbage collection has taken it. The message says what is left."""


class Refused(SlackwaterError):
    """The request is understood but would lose or break something; nothing was changed."""


class Protected(Refused):
    """The app is protected: what could lose something of it wants its name once more."""


class TooMuch(Refused):
    """It would take, or took, more than it may: time, memory, rows. Ask for less at once."""


class Forbidden(Refused):
    """A server, or the file system, does not let this user do it."""


class BadRecord(Refused):
    """What a record holds cannot be used: that is the record's fault, and nobody else's."""


class Gone(Refused):
    """Records that are to be read are not in Kafka any more."""


class AnotherTopic(Refused):
    """A topic was deleted and made again under its name: the offsets that are kept of it mean other records."""


class KeysForgotten(Gone):
    """Of records that are to be read, some held keys that were forgotten: fewer are there, and that is right."""


class Unstorable(Refused, ValueError):
    """A value that could not be read again is not written. Nothing was."""


class Unavailable(SlackwaterError, ConnectionError):
    """A server did not answer within the patience it was given; trying again later may work.

    Whatever asks a store or Kafka may raise it, so docstrings name it only where something was done by then.
    """


class Corruption(SlackwaterError):
    """Stored bytes are missing, or not what the manifest promises. `object_key` names the object.

    Whatever reads what is stored may raise it; docstrings name it where it means anything else.
    """

    def __init__(self, message: str, *, object_key: str, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.object_key = object_key


class ObjectNotFound(SlackwaterError, KeyError):
    """No object under this key."""

    def __init__(self, key: str, root: str) -> None:
        super().__init__(f"no object {key!r} under {root}")
        self.key = key

    def __str__(self) -> str:
        # KeyError would show the repr.
        return self.message


class ObjectExists(SlackwaterError, FileExistsError):
    """A put-if-absent found the key taken."""

    def __init__(self, key: str, root: str) -> None:
        super().__init__(f"object {key!r} exists already under {root}")
        self.key = key


class CommitConflict(SlackwaterError):
    """Somebody else committed this version first."""

    def __init__(self, message: str, *, version: int, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.version = version


class Fenced(CommitConflict):
    """A writer with a newer epoch has taken the stage over; this one must stop."""
