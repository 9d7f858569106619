"""Errors of the user's program: where in it, what, and what to do; and what stopped a query, in one sentence.

Errors cross from Spark's workers as text, and Spark wraps them in its own.
"""

from __future__ import annotations

import importlib.util
import os
import re
import sys
import sysconfig
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, TracebackType

from pyspark.errors import AnalysisException

from ... import errors
from ...errors import Refused, SlackwaterError

_OURS = __name__.partition(".")[0]
_HINT = "fix it and run again (SLACKWATER_DEBUG=1 shows the traceback)"


@contextmanager
def as_user_error(what: str, function: object = None) -> Iterator[None]:
    """Run code of the user's program; `what` begins the sentence where it fails: "the program", "stage 'legs'".

    `function` is told as the place of an error with no line of the user's on its way: a wrong number of arguments.
    Raises `Refused`, which names the last line of the user's own that led there; as it is, what the code got from us.
    """
    try:
        yield
    except SlackwaterError:
        raise
    except Exception as error:
        place = _place(error)
        if place is None and isinstance(code := getattr(function, "__code__", None), CodeType):
            place = Path(code.co_filename), code.co_firstlineno
        where = f"{_shown(place[0])}, line {place[1]}: " if place else ""
        sentence, _, quoted = _described(error).partition("\n")
        raise Refused(f"{what} does not run: {where}{sentence}", quoted=quoted, hint=_hint(error)) from error


def _described(error: Exception) -> str:
    if isinstance(error, AnalysisException):
        # It names its kind itself. As a string it would bring the whole plan.
        return error.getMessage()
    # A SyntaxError and what Spark's JVM raised repeat in their strings where they come from, the latter at length.
    behind = getattr(error, "java_exception", None)
    text = error.msg if isinstance(error, SyntaxError) else str(error if behind is None else behind.toString())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _hint(error: Exception) -> str:
    missing = error.name if isinstance(error, ModuleNotFoundError) else None
    if missing and importlib.util.find_spec(missing.partition(".")[0]) is None:
        return f"install what has {missing!r} for {sys.executable}, or fix the import, and run again"
    return _HINT


def _place(error: Exception) -> tuple[Path, int] | None:
    """File and line: the last of the user's own; None if no line of the user's led to the error."""
    own = list(_foreign(error.__traceback__))
    if isinstance(error, SyntaxError) and error.filename and error.lineno:
        # Raised by whoever imports the file; literal_eval and the like have no file to name.
        file = Path(error.filename)
        if file.is_file() and not _is_installed(file):
            return file, error.lineno
    if not own:
        return None
    # Libraries that are not installed, such as those of a Spark from elsewhere, are in other folders.
    folder = own[0][0].parent
    return [at for at in own if at[0].is_relative_to(folder)][-1]


def _foreign(trace: TracebackType | None) -> Iterator[tuple[Path, int]]:
    """The lines of a traceback that are neither slackwater's nor Python's nor of an installed library."""
    for frame, line in traceback.walk_tb(trace):
        file = Path(frame.f_code.co_filename)
        module = str(frame.f_globals.get("__name__", ""))
        if module.partition(".")[0] != _OURS and file.is_file() and not _is_installed(file):
            yield file, line


def _is_installed(file: Path) -> bool:
    return bool({"site-packages", "dist-packages"}.intersection(file.parts)) or file.is_relative_to(
        sysconfig.get_path("stdlib")
    )


def _shown(file: Path) -> str:
    """The path as one would type it here."""
    resolved, here = file.resolve(), Path.cwd()
    return os.fspath(resolved.relative_to(here) if resolved.is_relative_to(here) else resolved)


_RAISED = re.compile(r"^\s*((?!org\.apache\.spark\.api\.)[\w.]+(?:Error|Exception)\b: .*)", re.MULTILINE)
_ENDED = re.compile(r"terminated with exception: (.*)")
_CRASHED = re.compile(r"Exception: Python worker (exited unexpectedly|failed to connect back)")
"""As Spark raises it: a record's text, in what the program raised of it, may have the same words."""
_FAULT = re.compile(r"Fatal Python error: (.*)")
_OUR_ERROR = re.compile(rf"{re.escape(errors.__name__)}\.(\w+): (.*)")

_HINTS = {"Gone": "they outlived the topic's retention; the same command with --accept-loss goes on without them"}
"""By kind, the next step of who runs an app."""
_DROPPED = "the batch was dropped whole and nothing is lost"


def translate(stage: str, text: str) -> SlackwaterError:
    """The error behind what Spark says of a stage's query; one of ours where it was one."""
    ours = _OUR_ERROR.findall(text)
    if ours:
        kind, message = ours[-1]
        known = getattr(errors, kind, None)
        error = known.__new__(known) if isinstance(known, type) and issubclass(known, SlackwaterError) else Refused("")
        # A hint does not cross.
        SlackwaterError.__init__(error, f"stage {stage!r}: {message.strip()}", hint=_HINTS.get(kind, ""))
        return error
    if crashed := _CRASHED.search(text):
        return _crash(stage, crashed[1], _FAULT.search(text))
    raised = _RAISED.findall(text)
    ended = _ENDED.findall(text)
    reason = (raised or ended or ["no reason given"])[-1].strip()
    return Refused(
        f"stage {stage!r} stopped: {reason}",
        hint=f"{_DROPPED}; fix the cause and run again (SLACKWATER_DEBUG=1 shows Spark's own words)",
    )


def _crash(stage: str, how: str, fault: re.Match[str] | None) -> Refused:
    """The error of a Python worker that went without a word of its own; `fault` is what Python said of it."""
    if how.startswith("failed"):
        return Refused(
            f"stage {stage!r} stopped: a Python process of Spark's did not come up in time",
            hint=f"is the machine too busy, or short of memory? {_DROPPED}: run again",
        )
    if fault is None:
        return Refused(
            f"stage {stage!r} stopped: a Python worker of Spark's was killed in the middle of a batch",
            hint="most often for want of memory: the kernel's log (dmesg) names the process then; "
            f"{_DROPPED}: run again",
        )
    return Refused(
        f"stage {stage!r} stopped: a Python worker of Spark's crashed: {fault[1].strip()}",
        hint=f"SLACKWATER_DEBUG=1 shows where in Python that was; {_DROPPED}: run again",
    )
