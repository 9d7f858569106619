"""Whose fault an error is, by what comes back from Spark's tasks."""

import pytest
from pyspark.errors import AnalysisException, NumberFormatException, PythonException
from slackwater.pipeline.kafka.rejects import DeadLetter
from slackwater.pipeline.reject.blame import blamed

CAST = '[CAST_INVALID_INPUT] The value \'ten\' of the type "STRING" cannot be cast to "BIGINT" because it is malformed.'
UDF = """
  An exception was thrown from the Python worker. Please see the stack trace below.
Traceback (most recent call last):
  File "/home/ada/shop.py", line 12, in cents
    return int(text)
ValueError: invalid literal for int() with base 10: 'ten'
"""
STATE = """org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "/x/slackwater/pipeline/batch/task.py", line 180, in _merge
slackwater.pipeline.state.failing.StateFailed: {"keys": [7, -3], "kind": "ValueError", "message": "no", "stack": "here"}
"""
OWN = """Traceback (most recent call last):
  File "/x/slackwater/pipeline/batch/task.py", line 9, in _run
KeyError: 1
"""
SEVERAL = """An error occurred while calling o353.collectToPython.
org.apache.spark.SparkException: [STAGE_MATERIALIZATION_MULTIPLE_FAILURES] Multiple failures (2):
  1. SparkNumberFormatException: [CAST_INVALID_INPUT] The value 'ten' cannot be cast.
  2. {}
"""
OURS = """Traceback (most recent call last):
  File "/x/slackwater/pipeline/source/readers.py", line 130, in read
slackwater.errors.{}: {}
"""


def test_an_expression_that_fails_is_a_records_fault() -> None:
    found = blamed(NumberFormatException(CAST))
    assert found is not None
    assert (found.kind, found.message.split()[0]) == ("NumberFormatException", "[CAST_INVALID_INPUT]")


@pytest.mark.parametrize("value", ["java.lang.OutOfMemoryError: heap", "FetchFailed", "No space left on device"])
def test_a_record_that_holds_words_of_spark_s_own_failures_is_at_fault_all_the_same(value: str) -> None:
    assert blamed(NumberFormatException(CAST.replace("ten", value))) is not None
    assert blamed(PythonException(UDF.replace("ten", value))) is not None


def test_an_expression_whose_error_spark_does_not_wrap_is_a_records_fault() -> None:
    """Of some conditions Python gets what the JVM raised, as py4j shows it."""
    said = (
        "org.apache.spark.SparkException: [{}] Malformed records are detected in record parsing: [null].\n"
        "com.fasterxml.jackson.core.io.JsonEOFException: Unexpected end-of-input in field name"
    )
    wrapped = type("Py4JJavaError", (Exception,), {})
    found = blamed(wrapped("An error occurred while calling o1.collectToPython.\n" + said.format("MALFORMED_RECORD")))
    assert found is not None
    assert (found.kind, found.message) == ("JsonEOFException", "Unexpected end-of-input in field name")
    assert blamed(wrapped("\n" + said.format("INTERNAL_ERROR"))) is None


def test_a_udf_that_raises_is_a_records_fault_by_what_it_raised() -> None:
    found = blamed(PythonException(UDF))
    assert found is not None
    assert (found.kind, found.message) == ("ValueError", "invalid literal for int() with base 10: 'ten'")
    assert "shop.py" in found.stack


def test_a_states_function_tells_the_keys_for_which_it_fails() -> None:
    found = blamed(PythonException(STATE))
    assert found is not None
    assert (found.kind, found.message, found.keys) == ("ValueError", "no", (7, -3))


def test_what_fails_in_several_parts_of_a_plan_is_a_records_fault_where_each_of_them_is() -> None:
    assert blamed(RuntimeError(SEVERAL.format("SparkNumberFormatException: [CAST_INVALID_INPUT] so do I"))) is not None
    assert blamed(RuntimeError(SEVERAL.format("SparkException: ExecutorLostFailure (executor 1 exited)"))) is None


def test_a_message_that_cannot_be_decoded_is_a_records_fault() -> None:
    found = blamed(PythonException(OURS.format("BadRecord", "the message at topic 't' cannot be decoded")))
    assert found is not None
    assert found.kind == "BadRecord"


@pytest.mark.parametrize(
    "error",
    [
        PythonException(OURS.format("Unavailable", "S3 did not answer")),
        PythonException(OURS.format("Gone", "offsets are gone")),
        PythonException(OURS.format("Corruption", "an SST is damaged")),
        PythonException(OWN),
        RuntimeError("Job aborted due to stage failure: ExecutorLostFailure (executor 1 exited): OutOfMemoryError"),
        RuntimeError("Job aborted due to stage failure: Python worker exited unexpectedly (crashed)"),
        RuntimeError("Job 3 cancelled part of cancelled job group 7"),
        AnalysisException("a column is not there"),
        ValueError("raised on the driver"),
        KeyboardInterrupt(),
    ],
    ids=str,
)
def test_nothing_else_is(error: BaseException) -> None:
    assert blamed(error) is None


def test_dead_letters_have_the_headers_of_kafka_streams() -> None:
    own = (("trace", b"1"), ("__streams.errors.topic", b"another app's"))
    headers = DeadLetter("orders", 2, 17, b"k", b"v", own, "ValueError", "no", "Traceback").headers_of()
    assert headers == [
        ("trace", b"1"),
        ("__streams.errors.exception", b"ValueError"),
        ("__streams.errors.stacktrace", b"Traceback"),
        ("__streams.errors.message", b"no"),
        ("__streams.errors.topic", b"orders"),
        ("__streams.errors.partition", b"2"),
        ("__streams.errors.offset", b"17"),
    ]
