"""Converts errors of the user's program, and texts of failed Spark queries, to errors with line, cause and hint.

Errors reach the driver as text from Spark's workers, wrapped in Spark's own errors.
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

from py4j.protocol import Py4JJavaError
from pyspark.errors import AnalysisException, PySparkException, PySparkRuntimeError

from ... import errors
from ...common.validation import nearest_hint
from ...errors import Refused, SlackwaterError

_PACKAGE = __name__.partition(".")[0]
_HINT = "fix it and run again (SLACKWATER_DEBUG=1 shows the traceback)"
_BEFORE_SPARK = (
    "Spark starts after the program is read: call Spark's functions inside the function of a stage, and give a UDF its "
    "type as an object, such as @F.udf(LongType())"
)


@contextmanager
def as_user_error(subject: str, function: object = None) -> Iterator[None]:
    """Turn errors of the user's code in the `with` block into `Refused`, with the prefix `subject`.

    The error names the innermost line of the user's code in the traceback. If the traceback has no such line (for
    example after a call with a wrong number of arguments), the error names the line of `function`. slackwater's own
    errors keep their class and name the stage.
    """
    try:
        yield
    except SlackwaterError as error:
        if stage := _STAGE.search(subject):
            error.begin_with(stage[0])
        place = _user_line(error)
        if place is not None and (at := _format_line(place)) not in error.hint:
            error.hint = f"{error.hint} ({at})" if error.hint else f"see {at}"
        raise
    except Exception as error:
        place = _user_line(error)
        if place is None and isinstance(code := getattr(function, "__code__", None), CodeType):
            place = Path(code.co_filename), code.co_firstlineno
        where = "" if place is None else f"{_format_line(place)}: "
        sentence, _, quoted = _describe(error).partition("\n")
        hint = _expected(error) or (_BEFORE_SPARK if _is_before_spark(error) else _HINT)
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing and importlib.util.find_spec(missing.partition(".")[0]) is None:
            hint = f"install a package with {missing!r} for {sys.executable}, or fix the import, and run again"
        raise Refused(f"{subject} does not run: {where}{sentence}", quoted=quoted, hint=hint) from error


def _format_line(place: tuple[Path, int]) -> str:
    file, folder = place[0].resolve(), Path.cwd()
    return f"{file.relative_to(folder) if file.is_relative_to(folder) else file}, line {place[1]}"


_STAGE = re.compile(r"stage '[^']+'")
_UNEXPECTED = re.compile(r"(?:App\.)?(\w+)\(\) got an unexpected keyword argument '(\w+)'")


def _expected(error: Exception) -> str:
    match = _UNEXPECTED.match(str(error)) if isinstance(error, TypeError) else None
    package = sys.modules[_PACKAGE]
    if match is None or not (match[1] in package.__all__ or hasattr(package.App, match[1])):
        return ""
    function = getattr(package, match[1]) if match[1] in package.__all__ else getattr(package.App, match[1])
    arguments = [name for name in inspect.signature(function).parameters if name != "self"]
    return f"{match[1]} takes {', '.join(arguments)}{nearest_hint(match[2], arguments)}"


def _is_before_spark(error: Exception) -> bool:
    if isinstance(error, PySparkRuntimeError):
        return error.getCondition() == "SESSION_OR_CONTEXT_NOT_EXISTS"
    raised_at = traceback.extract_tb(error.__traceback__)[-1].line or ""
    return isinstance(error, AssertionError) and "_active_spark_context" in raised_at


def reason_of(error: Exception) -> str:
    """Return an error's message for use as a reason within a sentence, with the error's hint if there is one."""
    if isinstance(error, SlackwaterError):
        return f"{error.message}; {error.hint}" if error.hint else error.message
    return _describe(error).partition("\n")[0]


def _describe(error: Exception) -> str:
    if isinstance(error, AnalysisException):
        # The message names its class. str() would add the whole plan.
        return error.getMessage()
    if isinstance(error, PySparkException | Py4JJavaError) and (raised := _error_in_worker(str(error))):
        # Spark's own sentence only says that a worker raised an error.
        ours = _OUR_ERROR.fullmatch(raised)
        return ours[2] if ours else raised
    # The text of a SyntaxError or of a JVM error also contains the location; that of a JVM error is a long stack trace.
    java_error = getattr(error, "java_exception", None)
    text = error.msg if isinstance(error, SyntaxError) else str(error if java_error is None else java_error.toString())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _user_line(error: Exception) -> tuple[Path, int] | None:
    """Return file and line of the innermost user code in an error's traceback; None if there is none.

    User code is code that belongs neither to slackwater nor to Python nor to an installed library.
    """
    own = [
        (file, line)
        for frame, line in traceback.walk_tb(error.__traceback__)
        if (file := Path(frame.f_code.co_filename)).is_file()
        and str(frame.f_globals.get("__name__", "")).partition(".")[0] != _PACKAGE
        and not _is_installed(file)
    ]
    if isinstance(error, SyntaxError) and error.filename and error.lineno:
        # Raised by the import of the file. Errors of literal_eval and similar functions have no file.
        file = Path(error.filename)
        if file.is_file() and not _is_installed(file):
            return file, error.lineno
    if not own:
        return None
    # Libraries that are not installed, such as another Spark's pyspark, are in other folders.
    folder = own[0][0].parent
    return [at for at in own if at[0].is_relative_to(folder)][-1]


def is_user_module(module: ModuleType) -> bool:
    """Return True if a module belongs neither to slackwater nor to Python nor to an installed library."""
    name, file = module.__name__, getattr(module, "__file__", None)
    if file is None:
        return name == "__main__"
    return name.partition(".")[0] != _PACKAGE and not _is_installed(Path(file))


@cache
def _is_installed(file: Path) -> bool:
    stdlib = sysconfig.get_path("stdlib")
    return not {"site-packages", "dist-packages"}.isdisjoint(file.parts) or file.is_relative_to(stdlib)


_RAISED = re.compile(r"^\s*((?!org\.apache\.spark\.api\.)[\w.]+(?:Error|Exception)\b: .*)", re.MULTILINE)
_TRACEBACK = re.compile(r"^Traceback \(most recent call last\):\n(?:[ \t].*\n)+(\S.*)", re.MULTILINE)
_WRAPS = re.compile(r"(?:[\w.]+\.)?(?:PythonException|Py4JJavaError|StreamingQueryException)\b")
_ENDED = re.compile(r"terminated with exception: (.*)")
_CRASHED = re.compile(r"Exception: Python worker (exited unexpectedly|failed to connect back)")
_FAULT = re.compile(r"Fatal Python error: (.*)")
_OUR_ERROR = re.compile(rf"{re.escape(errors.__name__)}\.(\w+): (.*)(?:\n[ \t]*hint: (.*))?")

_BATCH_DISCARDED = "the batch was discarded and nothing is lost"
_HINTS = {
    "Gone": "the topic's retention has deleted them; to continue without them: the same command with --accept-loss",
    "AnotherTopic": "slackwater reset sets where to read the new topic; the same command with --accept-loss "
    "reads it from its beginning",
    "BadRecord": f"{_BATCH_DISCARDED}: fix the program, or have it set such records "
    'aside with on_error="reject", and run again',
    "TooMuch": f"{_BATCH_DISCARDED}: fix the program, and run again",
}


def parse_query_error(stage: str, text: str) -> SlackwaterError:
    """Return the error of a stage's query that Spark describes in `text`. A slackwater error keeps its class."""
    if ours := _OUR_ERROR.findall(text):
        kind, message, hint = ours[-1]
        cls = getattr(errors, kind, None)
        error = cls.__new__(cls) if isinstance(cls, type) and issubclass(cls, SlackwaterError) else Refused("")
        # Hints without a command or an argument of the program are for readers of the past; a run has others.
        hint = hint.strip() if "slackwater " in hint or "name=" in hint or kind not in _HINTS else _HINTS[kind]
        SlackwaterError.__init__(error, f"stage {stage!r}: {message.strip()}", hint=hint)
        return error
    if crashed := _CRASHED.search(text):
        return _crash(stage, crashed[1], _FAULT.search(text))
    reasons = _RAISED.findall(text) or _ENDED.findall(text) or ["no reason given"]
    reason = _error_in_worker(text) or reasons[-1].strip()
    return Refused(
        f"stage {stage!r} stopped: {reason}",
        hint=f"{_BATCH_DISCARDED}; fix the cause and run again (SLACKWATER_DEBUG=1 shows Spark's own error)",
    )


def _error_in_worker(text: str) -> str:
    """Return the error of the last Python traceback in the text of a Spark error; empty without a traceback."""
    raised = [line for line in _TRACEBACK.findall(text) if not _WRAPS.match(line)]
    return raised[-1].strip() if raised else ""


def _crash(stage: str, how: str, fault: re.Match[str] | None) -> Refused:
    if how.startswith("failed"):
        event, hint = "worker of Spark did not start in time", "is the machine too busy, or short of memory? "
    elif fault is None:
        event = "worker of Spark was killed during a batch"
        hint = "most often because memory ran out: then the kernel's log (dmesg) names the process; "
    else:
        event = f"worker of Spark crashed: {fault[1].strip()}"
        hint = "SLACKWATER_DEBUG=1 shows the place in Python; "
    return Refused(f"stage {stage!r} stopped: a Python {event}", hint=f"{hint}{_BATCH_DISCARDED}: run again")
