"""Whose fault an error of a batch is: a record's, or of whatever else there is. Errors cross from tasks as text."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from py4j import protocol
from py4j.protocol import Py4JJavaError
from pyspark import errors
from pyspark.errors import AnalysisException, PySparkException

from ...errors import BadRecord
from ...state.failing import Failure, StateFailed
from ..source.worker import ERROR_MARK

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

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
_TRACEBACK = "Traceback (most recent call last)"
_WRAPS = ("PythonException", "SparkException", "Py4JJavaError")
"""What Spark wraps errors of tasks in."""
_MOST, _PIECE = 16_000, 4_000
"""Characters that are kept of a stack, and those that Java is asked for at once."""


def blamed(error: BaseException) -> Failure | None:
    """What records are to blame for; None where the store, Kafka, Spark or a machine failed.

    What no record can be blamed for is not searched for: the batch is dropped whole, as ever. What the user's function
    raises is a record's, whatever its class and words; what our own part of a task raises is marked (`source.worker`).
    """
    if isinstance(error, StateFailed):
        return error.told.why
    text = text_of(error)
    own = ERROR_MARK.told(text)
    # What Python raised comes after its traceback, and may quote a record: its words say nothing of Spark.
    if None in own or _OF_SPARK.search(_QUOTED.sub("''", text.partition(_TRACEBACK)[0])):
        return None
    text = ERROR_MARK.without(text)
    if own:
        return Failure(BadRecord.__name__, str(own[-1]), text[-_MOST:])
    if isinstance(error, AnalysisException) or not (isinstance(error, PySparkException) or _TASK.search(text)):
        return None
    first = _first_raised(text.partition(_TRACEBACK)[2] or text)
    return Failure(*(first or (type(error).__name__, str(error).partition("\n")[0])), text[-_MOST:])


def blamed_of_java(spark: SparkSession, error: Any) -> Failure:
    """What a record is to blame for of a Java error that one of Spark's expressions raised.

    Raises `Py4JJavaError`, the error itself, where it is not the record's.
    """
    shown = _shown(spark, error)
    if _OF_SPARK.search(_QUOTED.sub("''", shown)):
        raise Py4JJavaError("", error)
    first = _first_raised(shown.replace("Caused by: ", ""))
    kind, message = first or (str(error.getClass().getSimpleName()), str(error.getMessage()))
    # Pyspark names Spark's own classes so where it knows them, and `blamed` tells its names.
    plain = kind.removeprefix("Spark")
    return Failure(plain if hasattr(errors, plain) else kind, message, shown[-_MOST:])


def text_of(error: BaseException) -> str:
    """All that is known of an error: what it says, and where it was raised in Spark's workers and its JVM."""
    cause = getattr(error, "_origin", None) or getattr(error, "java_exception", None)
    behind: list[str] = []
    while cause is not None and len(behind) < 8:  # an error may be its own cause
        behind.append(f"{cause.getClass().getName()}: {cause.getMessage()}")
        cause = cause.getCause()
    return f"{type(error).__name__}: {error}\n" + "\n".join(behind)


def _first_raised(text: str) -> tuple[str, str] | None:
    """Kind and message of what was raised first."""
    return next((each for each in _RAISED.findall(text) if each[0] not in _WRAPS), None)


def raised(target: Any, method: str, *arguments: Any) -> Any:
    """The Java error that a call of a method ends with, as an object of the JVM; None where it ends well.

    Pyspark makes an error of its own of each Java error, with some fifty calls more.
    """
    client = target._gateway_client
    words = "".join(protocol.get_command_part(each, client.gateway_property.pool) for each in arguments)
    called = f"{protocol.CALL_COMMAND_NAME}{target._target_id}\n{method}\n{words}{protocol.END_COMMAND_PART}"
    answer = client.send_command(called)
    try:
        protocol.get_return_value(answer, client, target._target_id, method)
    except protocol.Py4JJavaError as error:
        return error.java_exception
    return None


def _shown(spark: SparkSession, error: Any) -> str:
    """What Java shows of an error and of those behind it, up to `_MOST` characters.

    An answer of more than 8 KiB takes two packets, the second of which waits 40 ms for the first to be acknowledged.
    """
    jvm: Any = spark._jvm
    text = jvm.java.io.StringWriter()
    error.printStackTrace(jvm.java.io.PrintWriter(text))
    written = text.getBuffer()
    length = min(int(written.length()), _MOST)
    return "".join(str(written.substring(at, min(at + _PIECE, length))) for at in range(0, length, _PIECE))
