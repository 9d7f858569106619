"""The error message for an exception that has stopped a query."""

import pytest
from pyspark.errors import PySparkException
from slackwater.errors import Gone, TooMuch
from slackwater.pipeline.spark.user_errors import parse_query_error, reason_of

AROUND = "Py4JJavaError: An error occurred while calling o1.collectToPython.\n: org.apache.spark.SparkException: {}\n"


@pytest.mark.parametrize(
    ("text", "told", "hint"),
    [
        ("Python worker exited unexpectedly (crashed): \n", "was killed during a batch", "memory ran out"),
        (
            "Python worker exited unexpectedly (crashed): Fatal Python error: Aborted\n\nCurrent thread:",
            "crashed: Aborted",
            "SLACKWATER_DEBUG=1",
        ),
        ("Python worker exited unexpectedly (crashed)\nFatal Python error: Aborted\n", "crashed: Aborted", "run again"),
        ("Python worker failed to connect back.", "did not start in time", "too busy"),
    ],
)
def test_a_crashed_worker_is_reported_as_crashed(text: str, told: str, hint: str) -> None:
    error = parse_query_error("legs", AROUND.format(text))
    assert str(error).startswith("stage 'legs' stopped: ")
    assert told in str(error)
    assert hint in error.hint
    assert "nothing is lost" in error.hint


@pytest.mark.parametrize("words", ["the branch is closed", "'Python worker exited unexpectedly' is no number"])
def test_an_exception_of_the_program_keeps_its_message(words: str) -> None:
    text = AROUND.format("Job aborted") + f"  ValueError: {words}\n"
    assert str(parse_query_error("legs", text)) == f"stage 'legs' stopped: ValueError: {words}"


WORKER = """PythonException: An exception was thrown from the Python worker:
Traceback (most recent call last):
  File "/app/shop.py", line 7, in counted
    total.cast(kind)
    ~~~~~~~~~~^^^^^^
{}
0123456789abcdef null

JVM stacktrace:
org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 1.0 failed 1 times
\tat org.apache.spark.scheduler.DAGScheduler.abortStage(DAGScheduler.scala:1)
"""


@pytest.mark.parametrize(
    "reason", ["pyarrow.lib.ArrowInvalid: Decimal value does not fit in precision 38", "shop.Odd: no", "StopIteration"]
)
def test_a_reason_is_kept_for_any_name_of_its_class(reason: str) -> None:
    for text in (WORKER.format(reason), f"StreamingQueryException: [STREAM_FAILED]\n{WORKER.format(reason)}"):
        assert str(parse_query_error("legs", text)) == f"stage 'legs' stopped: {reason}"


@pytest.mark.parametrize(
    ("hint", "expected"),
    [
        ('read the table under another name (name="...")', 'read the table under another name (name="...")'),
        ("slackwater reset shop --topic t", "slackwater reset shop --topic t"),
        ("choose a moment whose records Kafka still has", "the same command with --accept-loss"),
    ],
)
def test_a_hint_for_a_run_is_kept(hint: str, expected: str) -> None:
    error = parse_query_error("legs", WORKER.format(f"slackwater.errors.Gone: no version 5\nhint: {hint}"))
    assert isinstance(error, Gone)
    assert expected in error.hint


def test_of_chained_exceptions_the_last_is_reported() -> None:
    first = WORKER.format("KeyError: 'a'").partition("0123")[0]
    text = first + "\nDuring handling of the above exception, another exception occurred:\n\n" + WORKER.format("Bad: b")
    assert str(parse_query_error("legs", text)) == "stage 'legs' stopped: Bad: b"


def test_an_error_in_a_worker_is_reported_without_sparks_text_around_it() -> None:
    text = WORKER.format("slackwater.errors.TooMuch: the row has 22 MB")
    assert reason_of(PySparkException(text)) == "the row has 22 MB"
    told = parse_query_error("legs", text)
    assert (type(told), str(told)) == (TooMuch, "stage 'legs': the row has 22 MB")
    assert "nothing is lost" in told.hint


def test_a_hint_with_a_command_comes_from_the_worker_and_other_hints_are_those_of_a_run() -> None:
    skip = "restore the file; to pass over the file: slackwater reset APP --topic files:in --to-offset 2"
    for hint, expected in ((skip, skip), ("choose a later moment", "the topic's retention has deleted them")):
        error = parse_query_error("legs", f"slackwater.errors.Gone: it is gone\nhint: {hint}\n0a1b null\n")
        assert isinstance(error, Gone)
        assert error.message == "stage 'legs': it is gone"
        assert error.hint.startswith(expected)
    assert parse_query_error("legs", "slackwater.errors.Refused: no\nhint: try this\n").hint == "try this"
    assert parse_query_error("legs", "slackwater.errors.Refused: no\n").hint == ""
