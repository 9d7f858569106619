"""Whose fault an error of a batch is: a record's, or of whatever else there is. Errors cross from tasks as text."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from pyspark.errors import AnalysisException, PySparkException

from ...errors import BadRecord
from ..source.own_errors import ERROR_MARK
from ..state.failing import StateFailed

_OF_SPARK = re.compile(
    r"ExecutorLostFailure|FetchFailed|OutOfMemoryError|TaskKilled|TaskCommitDenied|Python worker exited unexpectedly"
    r"|Job \S+ cancelled|SparkContext (?:has been|was) |InterruptedException|ClosedByInterrupt|NotSerializable"
    r"|No space left on device"
)
_QUOTED = re.compile(r"'[^'\n]*'")
"""What Spark, and Python's `repr`, put around a value of the record: its words say nothing of Spark."""
_TASK = re.compile(
    r"Traceback \(most recent call last\)|Job aborted due to stage failure|Task \d+ in stage"
    # What an expression raised comes as it is, and not as the failure of a job, where it has a condition's name.
    r"|^org\.apache\.spark\.Spark\w*Exception: \[(?!INTERNAL_ERROR)[A-Z]",
    re.MULTILINE,
)
_RAISED = re.compile(r"^\s*(?:[\w$]+\.)*([A-Z]\w*): (.+)", re.MULTILINE)
_WRAPS = ("PythonException", "SparkException", "Py4JJavaError")
"""What Spark wraps errors of tasks in."""
_MOST = 16_384
"""Characters that are kept of a stack."""


@dataclass(frozen=True, slots=True)
class Blame:
    """An error that is the fault of records.

    Attributes:
        kind: Its class, without what that lies in: `ValueError`, `NumberFormatException`.
        message: What it says.
        stack: Where it was raised, as far as that is known.
        keys: Where a state's function raised it, the `_hash` of the keys for which it does.
    """

    kind: str
    message: str
    stack: str
    keys: tuple[int, ...] = ()


def blamed(error: BaseException) -> Blame | None:
    """What records are to blame for; None where the store, Kafka, Spark or a machine failed.

    What no record can be blamed for is not searched for: the batch is dropped whole, as ever. What the user's function
    raises is a record's, whatever its class and words; what our own part of a task raises is marked (`own_errors`).
    """
    if isinstance(error, StateFailed):
        found = json.loads(str(error))
        return Blame(found["kind"], found["message"], found["stack"], tuple(found["keys"]))
    text = text_of(error)
    own = ERROR_MARK.told(text)
    if None in own or _OF_SPARK.search(_QUOTED.sub("''", text)):
        return None
    text = ERROR_MARK.without(text)
    if own:
        return Blame(BadRecord.__name__, str(own[-1]), text[-_MOST:])
    if isinstance(error, AnalysisException) or not (isinstance(error, PySparkException) or _TASK.search(text)):
        return None
    kind, message = _raised(error, text)
    return Blame(kind, message, text[-_MOST:])


def text_of(error: BaseException) -> str:
    """All that is known of an error: what it says, and where it was raised in Spark's workers and its JVM."""
    origin = getattr(error, "_origin", None) or getattr(error, "java_exception", None)
    behind = "" if origin is None else _of_jvm(origin)
    return f"{type(error).__name__}: {error}\n{behind}"


def _of_jvm(origin: object) -> str:
    """The messages of a Java error and of those behind it."""
    found = []
    cause, depth = origin, 0
    while cause is not None and depth < 8:  # an error may be its own cause
        found.append(f"{cause.getClass().getName()}: {cause.getMessage()}")  # type: ignore[attr-defined]
        cause, depth = cause.getCause(), depth + 1  # type: ignore[attr-defined]
    return "\n".join(found)


def _raised(error: BaseException, text: str) -> tuple[str, str]:
    """Kind and message of what was raised first."""
    traceback = text.partition("Traceback (most recent call last)")[2]
    raised = [each for each in _RAISED.findall(traceback or text) if each[0] not in _WRAPS]
    return raised[0] if raised else (type(error).__name__, str(error).partition("\n")[0])
