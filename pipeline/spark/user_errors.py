"""Errors of the user's program: where in it, what, and what to do; and what stopped a query, in one sentence.

Errors cross from Spark's workers as text, and Spark wraps them in its own.
"""

import importlib.util
import inspect
import re
import sys
import sysconfig
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import CodeType, ModuleType

from pyspark.errors import AnalysisException, PySparkRuntimeError

from ... import errors
from ...common.validation import nearest
from ...errors import Refused, SlackwaterError

_OURS = __name__.partition(".")[0]
_HINT = "fix it and run again (SLACKWATER_DEBUG=1 shows the traceback)"
_BEFORE_SPARK = (
    "Spark starts after the program is read: call Spark's functions inside the function of a stage, and give a UDF its "
    "type as an object, such as @F.udf(LongType())"
)


@contextmanager
def as_user_error(what: str, function: object = None) -> Iterator[None]:
    """Run code of the user's program; `what` begins the sentence where it fails: "the program", "stage 'legs'".

    `function` is told as the place of an error with no line of the user's on its way: a wrong number of arguments.
    Raises `Refused`, which names the last line of the user's own that led there. Errors of ours keep their class, and
    name the stage.
    """
    try:
        yield
    except SlackwaterError as error:
        if stage := _STAGE.search(what):
            error.begin_with(stage[0])
        place = _place(error)
        if place is not None and (at := _shown(place)) not in error.hint:
            error.hint = f"{error.hint} ({at})" if error.hint else f"see {at}"
        raise
    except Exception as error:
        place = _place(error)
        if place is None and isinstance(code := getattr(function, "__code__", None), CodeType):
            place = Path(code.co_filename), code.co_firstlineno
        where = "" if place is None else f"{_shown(place)}: "
        sentence, _, quoted = _described(error).partition("\n")
        hint = _expected(error) or (_BEFORE_SPARK if _is_before_spark(error) else _HINT)
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing and importlib.util.find_spec(missing.partition(".")[0]) is None:
            hint = f"install what has {missing!r} for {sys.executable}, or fix the import, and run again"
        raise Refused(f"{what} does not run: {where}{sentence}", quoted=quoted, hint=hint) from error


def _shown(place: tuple[Path, int]) -> str:
    file, here = place[0].resolve(), Path.cwd()
    return f"{file.relative_to(here) if file.is_relative_to(here) else file}, line {place[1]}"


_STAGE = re.compile(r"stage '[^']+'")
_UNEXPECTED = re.compile(r"(?:App\.)?(\w+)\(\) got an unexpected keyword argument '(\w+)'")


def _expected(error: Exception) -> str:
    """The arguments that a function of ours takes, where it was called with one that it does not; else empty."""
    found = _UNEXPECTED.match(str(error)) if isinstance(error, TypeError) else None
    package = sys.modules[_OURS]
    if found is None or not (found[1] in package.__all__ or hasattr(package.App, found[1])):
        return ""
    function = getattr(package, found[1]) if found[1] in package.__all__ else getattr(package.App, found[1])
    arguments = [name for name in inspect.signature(function).parameters if name != "self"]
    return f"{found[1]} takes {', '.join(arguments)}{nearest(found[2], arguments)}"


def _is_before_spark(error: Exception) -> bool:
    """Say if Spark raised it for want of a session: by its class of error, or by an assertion that there is one."""
    if isinstance(error, PySparkRuntimeError):
        return error.getCondition() == "SESSION_OR_CONTEXT_NOT_EXISTS"
    raised_at = traceback.extract_tb(error.__traceback__)[-1].line or ""
    return isinstance(error, AssertionError) and "_active_spark_context" in raised_at


def reason_of(error: Exception) -> str:
    """An error as a reason in a sentence, with the next step where it is known."""
    if isinstance(error, SlackwaterError):
        return f"{error.message}; {error.hint}" if error.hint else error.message
    return _described(error).partition("\n")[0]


def _described(error: Exception) -> str:
    if isinstance(error, AnalysisException):
        # It names its kind itself. As a string it would bring the whole plan.
        return error.getMessage()
    # A SyntaxError and what Spark's JVM raised repeat in their strings where they come from, the latter at length.
    behind = getattr(error, "java_exception", None)
    text = error.msg if isinstance(error, SyntaxError) else str(error if behind is None else behind.toString())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _place(error: Exception) -> tuple[Path, int] | None:
    """File and line: the last of the user's own; None if no line of the user's led to the error.

    Lines are the user's that are neither slackwater's nor Python's nor of an installed library.
    """
    own = [
        (file, line)
        for frame, line in traceback.walk_tb(error.__traceback__)
        if (file := Path(frame.f_code.co_filename)).is_file()
        and str(frame.f_globals.get("__name__", "")).partition(".")[0] != _OURS
        and not _is_installed(file)
    ]
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


def is_of_user(module: ModuleType) -> bool:
    """Whether a module is neither slackwater's nor Python's nor of an installed library."""
    name, file = module.__name__, getattr(module, "__file__", None)
    if file is None:
        return name == "__main__"
    return name.partition(".")[0] != _OURS and not _is_installed(Path(file))


@cache
def _is_installed(file: Path) -> bool:
    stdlib = sysconfig.get_path("stdlib")
    return not {"site-packages", "dist-packages"}.isdisjoint(file.parts) or file.is_relative_to(stdlib)


_RAISED = re.compile(r"^\s*((?!org\.apache\.spark\.api\.)[\w.]+(?:Error|Exception)\b: .*)", re.MULTILINE)
_TRACEBACK = re.compile(r"^Traceback \(most recent call last\):\n(?:[ \t].*\n)+(\S.*)", re.MULTILINE)
"""Python's own last word, the class of which may have any name."""
_WRAPS = re.compile(r"(?:[\w.]+\.)?(?:PythonException|Py4JJavaError|StreamingQueryException)\b")
"""What Spark wraps such errors in."""
_ENDED = re.compile(r"terminated with exception: (.*)")
_CRASHED = re.compile(r"Exception: Python worker (exited unexpectedly|failed to connect back)")
"""As Spark raises it: a record's text, in what the program raised of it, may have the same words."""
_FAULT = re.compile(r"Fatal Python error: (.*)")
_OUR_ERROR = re.compile(rf"{re.escape(errors.__name__)}\.(\w+): (.*)")

_HINTS = {
    "Gone": "they outlived the topic's retention; the same command with --accept-loss goes on without them",
    "AnotherTopic": "slackwater reset says where the topic that is there now is read on; the same command with "
    "--accept-loss reads it from its beginning",
    "BadRecord": "the batch was dropped whole and nothing is lost: change the program, or have it set such records "
    'aside by on_error="reject", and run again',
}
"""By kind, the next step of who runs an app."""
_DROPPED = "the batch was dropped whole and nothing is lost"


def translate(stage: str, text: str) -> SlackwaterError:
    """The error behind what Spark says of a stage's query; one of ours where it was one."""
    if ours := _OUR_ERROR.findall(text):
        kind, message = ours[-1]
        known = getattr(errors, kind, None)
        error = known.__new__(known) if isinstance(known, type) and issubclass(known, SlackwaterError) else Refused("")
        # A hint does not cross.
        SlackwaterError.__init__(error, f"stage {stage!r}: {message.strip()}", hint=_HINTS.get(kind, ""))
        return error
    if crashed := _CRASHED.search(text):
        return _crash(stage, crashed[1], _FAULT.search(text))
    raised = [line for line in _TRACEBACK.findall(text) if not _WRAPS.match(line)]
    reason = (raised or _RAISED.findall(text) or _ENDED.findall(text) or ["no reason given"])[-1].strip()
    return Refused(
        f"stage {stage!r} stopped: {reason}",
        hint=f"{_DROPPED}; fix the cause and run again (SLACKWATER_DEBUG=1 shows Spark's own words)",
    )


def _crash(stage: str, how: str, fault: re.Match[str] | None) -> Refused:
    """The error of a Python worker that went without a word of its own; `fault` is what Python said of it."""
    if how.startswith("failed"):
        what, hint = "process of Spark's did not come up in time", "is the machine too busy, or short of memory? "
    elif fault is None:
        what = "worker of Spark's was killed in the middle of a batch"
        hint = "most often for want of memory: the kernel's log (dmesg) names the process then; "
    else:
        what = f"worker of Spark's crashed: {fault[1].strip()}"
        hint = "SLACKWATER_DEBUG=1 shows where in Python that was; "
    return Refused(f"stage {stage!r} stopped: a Python {what}", hint=f"{hint}{_DROPPED}: run again")
