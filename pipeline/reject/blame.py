"""Decision if a batch failed because of its records or because of its environment, by the error text from Spark."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from py4j import protocol
from py4j.protocol import Py4JJavaError
from pyspark import errors
from pyspark.errors import AnalysisException, PySparkException

from ...errors import BadRecord
from ...state.failing import Failure, StateFailed
from ..source.worker import ERROR_TAG

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SPARK_FAILURE = re.compile(
    r"ExecutorLostFailure|FetchFailed|OutOfMemoryError|TaskKilled|TaskCommitDenied|Python worker exited unexpectedly"
    r"|Job \S+ cancelled|SparkContext (?:has been|was) |InterruptedException|ClosedByInterrupt|NotSerializable"
    r"|No space left on device"
)
_QUOTED = re.compile(r"'[^'\n]*'")
_TASK = re.compile(
    r"Traceback \(most recent call last\)|Job aborted due to stage failure|Task \d+ in stage"
    # An error of an expression that has a condition name comes without the wrapping "Job aborted".
    r"|^org\.apache\.spark\.Spark\w*Exception: \[(?!INTERNAL_ERROR)[A-Z]",
    re.MULTILINE,
)
_RAISED = re.compile(r"^\s*(?:[\w$]+\.)*([A-Z]\w*): (.+)", re.MULTILINE)
_TRACEBACK = "Traceback (most recent call last)"
_WRAPPERS = ("PythonException", "SparkException", "Py4JJavaError")
_MAX_STACK, _CHUNK = 16_000, 4_000
"""Maximum number of characters of a stored stack trace, and of one answer from the JVM."""


def record_failure(error: BaseException) -> Failure | None:
    """Convert an error to a record's failure; return None if the store, Kafka, Spark or a machine failed.

    An error of a user's function is attributed to a record, regardless of its class and text. Errors of slackwater's
    code in tasks are tagged (`source.worker`). If the result is None, the batch fails without a search for records.
    """
    if isinstance(error, StateFailed):
        return error.reported.why
    text = error_text(error)
    own = ERROR_TAG.tagged_causes(text)
    # Text after a Python traceback may quote a record, so only the text before it is searched for Spark's own errors.
    if None in own or _SPARK_FAILURE.search(_QUOTED.sub("''", text.partition(_TRACEBACK)[0])):
        return None
    text = ERROR_TAG.remove_tags(text)
    if own:
        return Failure(BadRecord.__name__, str(own[-1]), text[-_MAX_STACK:])
    if isinstance(error, AnalysisException) or not (isinstance(error, PySparkException) or _TASK.search(text)):
        return None
    first = _first_raised(text.partition(_TRACEBACK)[2] or text)
    return Failure(*(first or (type(error).__name__, str(error).partition("\n")[0])), text[-_MAX_STACK:])


def java_record_failure(spark: SparkSession, error: Any) -> Failure:
    """Convert a Java error of a Spark expression to a record's failure.

    Raises `error` as a `Py4JJavaError` if no record causes it.
    """
    shown = _stack_trace(spark, error)
    if _SPARK_FAILURE.search(_QUOTED.sub("''", shown)):
        raise Py4JJavaError("", error)
    first = _first_raised(shown.replace("Caused by: ", ""))
    kind, message = first or (str(error.getClass().getSimpleName()), str(error.getMessage()))
    # PySpark's names of these classes have no "Spark" prefix. These are the names that `record_failure` uses.
    plain = kind.removeprefix("Spark")
    return Failure(plain if hasattr(errors, plain) else kind, message, shown[-_MAX_STACK:])


def error_text(error: BaseException) -> str:
    cause = getattr(error, "_origin", None) or getattr(error, "java_exception", None)
    causes: list[str] = []
    while cause is not None and len(causes) < 8:  # an error may be its own cause
        causes.append(f"{cause.getClass().getName()}: {cause.getMessage()}")
        cause = cause.getCause()
    return f"{type(error).__name__}: {error}\n" + "\n".join(causes)


def _first_raised(text: str) -> tuple[str, str] | None:
    return next((match for match in _RAISED.findall(text) if match[0] not in _WRAPPERS), None)


def java_error_of_call(target: Any, method: str, *arguments: Any) -> Any:
    """Call a Java method. Returns the error that it raises, as a JVM object; None if the call succeeds.

    This avoids PySpark's conversion of the error to a Python error, which takes about fifty more calls of the JVM.
    """
    client = target._gateway_client
    encoded_arguments = "".join(
        protocol.get_command_part(argument, client.gateway_property.pool) for argument in arguments
    )
    command = (
        f"{protocol.CALL_COMMAND_NAME}{target._target_id}\n{method}\n{encoded_arguments}{protocol.END_COMMAND_PART}"
    )
    answer = client.send_command(command)
    try:
        protocol.get_return_value(answer, client, target._target_id, method)
    except protocol.Py4JJavaError as error:
        return error.java_exception
    return None


def _stack_trace(spark: SparkSession, error: Any) -> str:
    """Return a Java error's stack trace with its causes, up to `_MAX_STACK` characters.

    The text is fetched in parts: an answer of more than 8 KiB takes two packets, and the second packet waits 40 ms for
    the acknowledgement of the first.
    """
    jvm: Any = spark._jvm
    text = jvm.java.io.StringWriter()
    error.printStackTrace(jvm.java.io.PrintWriter(text))
    written = text.getBuffer()
    length = min(int(written.length()), _MAX_STACK)
    return "".join(str(written.substring(start, min(start + _CHUNK, length))) for start in range(0, length, _CHUNK))
