"""Errors that users may see, one class for each way to handle them.

Every message has the failure, the expected value and the actual value; `hint` has the next step. The command line
prints both and exits with 1. Any other exception is a bug.
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
    """Base class of all errors that users may see.

    `sentence` is the error, and `quoted` is text shown verbatim below it: a query, the end of a log. `message` has
    both. `hint` is the next step, or empty.
    """

    def __init__(self, sentence: str, *, quoted: str = "", hint: str = "") -> None:
        self.message = f"{sentence}\n{quoted}" if quoted else sentence
        super().__init__(self.message)
        self.sentence = sentence
        self.quoted = quoted
        self.hint = hint

    @property
    def hint(self) -> str:
        """Next step for the user, or empty. Python and notebooks show it below the error's message."""
        return self._hint

    @hint.setter
    def hint(self, hint: str) -> None:
        old = f"hint: {getattr(self, '_hint', '')}"
        self._hint = hint
        # Keep notes added by other code.
        self.__notes__ = [note for note in getattr(self, "__notes__", ()) if note != old]
        if hint:
            self.add_note(f"hint: {hint}")

    def begin_with(self, subject: str) -> None:
        """Put a subject, such as "stage 'legs'", in front of the message, unless the message contains it."""
        if subject not in self.message:
            self.sentence = f"{subject}: {self.sentence}"
            self.message = f"{self.sentence}\n{self.quoted}" if self.quoted else self.sentence
            self.args = (self.message,)

    def _render_traceback_(self) -> list[str]:
        """Return a traceback without slackwater's own frames, for IPython, which calls this hook."""
        shown = _user_traceback(self.__traceback__)
        ipython = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
        if ipython is None:
            return "".join(traceback.format_exception(type(self), self, shown)).splitlines()
        lines: list[str] = ipython.InteractiveTB.structured_traceback(type(self), self, shown, tb_offset=0)
        return lines

    def __reduce__(self) -> tuple[object, ...]:
        # Spark's workers send exceptions by value: keep the attributes.
        return (_recreate, (type(self), self.__dict__))


def _user_traceback(trace: TracebackType | None) -> TracebackType | None:
    frames = [trace] if trace is not None else []
    while frames and (following := frames[-1].tb_next) is not None:
        frames.append(following)
    user_frames = [number for number, part in enumerate(frames) if _is_user_code(part.tb_frame)] or [0, len(frames) - 1]
    shown: TracebackType | None = None
    for part in reversed(frames[user_frames[0] : user_frames[-1] + 1]):
        shown = TracebackType(shown, part.tb_frame, part.tb_lasti, part.tb_lineno)
    return shown


def _is_user_code(frame: FrameType) -> bool:
    if str(frame.f_globals.get("__name__", "")).partition(".")[0] == __name__.partition(".")[0]:
        return False
    file = frame.f_code.co_filename
    installed = ("site-packages", "dist-packages", sysconfig.get_path("stdlib"), "<frozen ")
    return not any(folder in file for folder in installed)


def _recreate(cls: type[SlackwaterError], state: dict[str, object]) -> SlackwaterError:
    return recreate_error(cls, **state)


def recreate_error(cls: type[SlackwaterError], **state: object) -> SlackwaterError:
    """Recreate an error that another process raised, from its class and attributes."""
    error = cls.__new__(cls)
    error.__dict__.update(state)
    error.args = (state["message"],)
    return error


class Usage(SlackwaterError):
    """The request is malformed: correct it and try again (exit code 2)."""


class NotFound(SlackwaterError, LookupError):
    """A named object (app, stage, ref, table, column, topic) does not exist."""

    def __init__(self, what: str, name: str, known: Iterable[str] = (), *, found: str = "", hint: str = "") -> None:
        """`known` has the existing names. Without `known`, `found` describes the existing objects."""
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
    """The moment was removed by garbage collection. The message says what remains."""


class Refused(SlackwaterError):
    """The request is valid, but would lose or break data. No state was changed."""


class Protected(Refused):
    """The app is protected, and the caller did not confirm by repeating its name."""


class TooMuch(Refused):
    """The request exceeds a limit of time, memory or rows."""


class Forbidden(Refused):
    """The user lacks permission on a server or in the file system."""


class BadRecord(Refused):
    """One record has content that cannot be used. Other records are not affected."""


class Gone(Refused):
    """Records that have to be read were deleted from Kafka."""

    lost_from: int = 0
    resume_at: int = 0
    """First lost offset, and the first offset after the lost ones; both 0 if they are unknown."""


class AnotherTopic(Refused):
    """A topic was deleted and re-created under its name, so that stored offsets refer to different records."""


class KeysForgotten(Gone):
    """Some records that have to be read are missing, because their keys were forgotten."""


class Unstorable(Refused, ValueError):
    """A value was not written, because decoding its bytes would not give an equal value."""


class Unavailable(SlackwaterError, ConnectionError):
    """A server did not answer in time; trying again later may work.

    Any call to a store or to Kafka may raise this error. Docstrings mention it only if something may have been written.
    """


class Corruption(SlackwaterError):
    """Stored bytes are missing or damaged. `object_key` names the object.

    Any read of stored data may raise this error.
    """

    def __init__(self, message: str, *, object_key: str, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.object_key = object_key


class ObjectNotFound(SlackwaterError, KeyError):
    """No object has this key."""

    def __init__(self, key: str, root: str) -> None:
        super().__init__(f"no object {key!r} under {root}")
        self.key = key

    def __str__(self) -> str:
        # KeyError would show the repr of the message.
        return self.message


class ObjectExists(SlackwaterError, FileExistsError):
    """A put-if-absent found an existing object under its key."""

    def __init__(self, key: str, root: str) -> None:
        super().__init__(f"object {key!r} exists already under {root}")
        self.key = key


class CommitConflict(SlackwaterError):
    """A writer of this stage committed a version with this number first."""

    def __init__(self, message: str, *, version: int, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.version = version


class Fenced(CommitConflict):
    """A writer with a newer epoch has taken over the stage; the older writer must stop."""
