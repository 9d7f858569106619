"""Classification of errors in Spark's tasks: the fault of a record, or not."""

import runpy
import traceback
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException, NumberFormatException, PySparkException, PythonException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType
from slackwater.errors import BadRecord, Corruption, Gone, Unavailable
from slackwater.pipeline.batch.spark_engine import run_write_task
from slackwater.pipeline.batch.task import OutputTopic, WriteTask
from slackwater.pipeline.reject.blame import record_failure
from slackwater.pipeline.reject.records import NumberedRangeReader
from slackwater.pipeline.reject.table import DeadLetter
from slackwater.pipeline.source.options import PrivateOptions, SourceOptions
from slackwater.pipeline.source.readers import TopicSourceReader
from slackwater.pipeline.source.worker import ERROR_TAG, ErrorTag
from slackwater.pipeline.spark.worker_resources import WorkerResources
from slackwater.state.failing import Failure, StateFailed, StateFailure
from slackwater.state.records import Range

CAST = '[CAST_INVALID_INPUT] The value \'ten\' of the type "STRING" cannot be cast to "BIGINT" because it is malformed.'
UDF = """
  An exception was thrown from the Python worker. Please see the stack trace below.
Traceback (most recent call last):
  File "/home/ada/shop.py", line 12, in cents
    return int(text)
ValueError: invalid literal for int() with base 10: 'ten'
"""
SEVERAL = """An error occurred while calling o353.collectToPython.
org.apache.spark.SparkException: [STAGE_MATERIALIZATION_MULTIPLE_FAILURES] Multiple failures (2):
  1. SparkNumberFormatException: [CAST_INVALID_INPUT] The value 'ten' cannot be cast.
  2. {}
"""


def raised_in_a_task(error: Exception, mark: ErrorTag = ERROR_TAG) -> PythonException:
    """Return the exception that Spark raises when our code raises this error in a task."""
    try:
        with mark.tagging():
            raise error
    except Exception:
        return PythonException(f"\n  An exception was thrown from the Python worker.\n{traceback.format_exc()}\n")


def test_a_failing_expression_is_a_records_fault() -> None:
    found = record_failure(NumberFormatException(CAST))
    assert found is not None
    assert (found.kind, found.message.split()[0]) == ("NumberFormatException", "[CAST_INVALID_INPUT]")


@pytest.mark.parametrize("value", ["java.lang.OutOfMemoryError: heap", "FetchFailed", "No space left on device"])
def test_a_records_fault_is_recognised_even_if_the_record_contains_sparks_own_error_texts(value: str) -> None:
    assert record_failure(NumberFormatException(CAST.replace("ten", value))) is not None
    assert record_failure(PythonException(UDF.replace("ten", value))) is not None


def test_an_expressions_error_that_spark_does_not_wrap_is_a_records_fault() -> None:
    """For some conditions, Python gets the JVM's error through py4j."""
    said = (
        "org.apache.spark.SparkException: [{}] Malformed records are detected in record parsing: [null].\n"
        "com.fasterxml.jackson.core.io.JsonEOFException: Unexpected end-of-input in field name"
    )
    wrapped = type("Py4JJavaError", (Exception,), {})
    found = record_failure(
        wrapped("An error occurred while calling o1.collectToPython.\n" + said.format("MALFORMED_RECORD"))
    )
    assert found is not None
    assert (found.kind, found.message) == ("JsonEOFException", "Unexpected end-of-input in field name")
    assert record_failure(wrapped("\n" + said.format("INTERNAL_ERROR"))) is None


def test_an_exception_of_a_udf_is_a_records_fault_and_reported_by_its_class() -> None:
    found = record_failure(PythonException(UDF))
    assert found is not None
    assert (found.kind, found.message) == ("ValueError", "invalid literal for int() with base 10: 'ten'")
    assert "shop.py" in found.stack


def test_a_failure_of_the_state_function_is_a_records_fault() -> None:
    why = Failure("ValueError", "no", "here")
    assert record_failure(StateFailed(StateFailure(why, (7, -3)))) == why


def test_errors_in_several_parts_of_a_plan_are_a_records_fault_only_if_all_of_them_are() -> None:
    assert (
        record_failure(RuntimeError(SEVERAL.format("SparkNumberFormatException: [CAST_INVALID_INPUT] so do I")))
        is not None
    )
    assert (
        record_failure(RuntimeError(SEVERAL.format("SparkException: ExecutorLostFailure (executor 1 exited)"))) is None
    )


def test_an_undecodable_message_is_a_records_fault_and_the_internal_tag_is_not_shown() -> None:
    sentence = "the message at topic 't' cannot be decoded: \n{"
    found = record_failure(raised_in_a_task(BadRecord(sentence)))
    assert found is not None
    assert (found.kind, found.message) == ("BadRecord", sentence)
    assert "Traceback" in found.stack
    assert ERROR_TAG.token not in found.stack


FORGED = (
    "slackwater.errors.Unavailable: S3 did not answer",
    "slackwater.state.failing.StateFailed: {",
    'File "/x/slackwater/pipeline/batch/task.py", line 9, in _run',
    f"\n{ErrorTag().token} null",
)


@pytest.mark.parametrize("value", FORGED, ids=["class", "state", "frame", "mark"])
def test_a_records_content_cannot_imitate_an_internal_error(value: str) -> None:
    """Such a record could otherwise stop the stage."""
    found = record_failure(PythonException(UDF.replace("ten", value)))
    assert found is not None
    assert found.kind == "ValueError"


def mapped(program: str, folder: Path, rows: DataFrame) -> Exception:
    """Return the error that occurs when a user's program in this folder maps the rows in Spark's workers."""
    folder.mkdir(parents=True)
    (folder / "mine.py").write_text(program)
    names = runpy.run_path(str(folder / "mine.py"))
    with pytest.raises(PySparkException) as caught:
        rows.mapInArrow(names["mine"], "id long").collect()
    return caught.value


@pytest.mark.spark
@pytest.mark.usefixtures("one_spark")
@pytest.mark.parametrize(
    ("raises", "kind"), [("ValueError('no')", "ValueError"), ("sw.errors.Unavailable('my own service')", "Unavailable")]
)
def test_any_exception_of_a_users_program_in_any_folder_is_a_records_fault(
    raises: str, kind: str, tmp_path: Path
) -> None:
    spark = SparkSession.getActiveSession()
    assert spark is not None
    refuse = f"import slackwater as sw\ndef refuse(_batch):\n    raise {raises}\n"
    program = refuse + "def mine(batches):\n    yield from map(refuse, batches)\n"
    found = record_failure(mapped(program, tmp_path / "slackwater" / "pipeline" / "kafka", spark.range(1)))
    assert found is not None
    assert found.kind == kind


@pytest.mark.spark
@pytest.mark.usefixtures("one_spark")
def test_an_internal_error_around_a_users_iterator_is_not_a_records_fault(
    tmp_path: Path,
) -> None:
    spark = SparkSession.getActiveSession()
    assert spark is not None
    program = "def mine(batches):\n    for batch in batches:\n        yield batch\n"
    # No broker has this address.
    nowhere = {"bootstrap.servers": "127.0.0.1:1"}
    resources = WorkerResources("app", "stage", "memory:", nowhere, (tmp_path, 0), 1.0)
    feed = NumberedRangeReader(resources, "t", pa.schema([("id", pa.int64())]), ((0, Range(0, 0, 1)),), None, 0.5)
    error = mapped(program, tmp_path / "anywhere", spark.range(1).mapInArrow(ERROR_TAG.wrap(feed), "id long"))
    assert "Unavailable" in str(error)
    assert record_failure(error) is None
    with pytest.raises(PySparkException) as caught:
        run_write_task(spark.range(1), WriteTask(resources, "writer", 1, (OutputTopic("c", "c", 1, ("id",)),)))
    assert "did not accept messages" in str(caught.value)
    assert record_failure(caught.value) is None


def test_a_failure_to_read_input_is_not_a_records_fault() -> None:
    private = PrivateOptions({"bootstrap.servers": "127.0.0.1:1"})
    reader = TopicSourceReader(SourceOptions(input="t", topic="t", patience_s=0.5), StructType(), private)
    (partition,) = reader.partitions({"input": "t", "offsets": [0]}, {"input": "t", "offsets": [1]})
    with pytest.raises(Unavailable) as caught:
        list(reader.read(partition))
    assert ERROR_TAG.tagged_causes("".join(traceback.format_exception(caught.value))) == (None,)


@pytest.mark.parametrize(
    "error",
    [
        raised_in_a_task(Unavailable("S3 did not answer")),
        raised_in_a_task(Gone("offsets are gone")),
        raised_in_a_task(Corruption("an SST is damaged", object_key="a")),
        raised_in_a_task(KeyError(1)),
        RuntimeError("Job aborted due to stage failure: ExecutorLostFailure (executor 1 exited): OutOfMemoryError"),
        RuntimeError("Job aborted due to stage failure: Python worker exited unexpectedly (crashed)"),
        RuntimeError("Job 3 cancelled part of cancelled job group 7"),
        AnalysisException("a column is not there"),
        ValueError("raised on the driver"),
        KeyboardInterrupt(),
    ],
    ids=lambda error: type(error).__name__,
)
def test_other_errors_are_not_a_records_fault(error: BaseException) -> None:
    assert record_failure(error) is None


def test_dead_letters_have_the_headers_that_kafka_streams_uses() -> None:
    own = (("trace", b"1"), ("__streams.errors.topic", b"another app's"))
    headers = DeadLetter("orders", 2, 17, b"k", b"v", own, "ValueError", "no", "Traceback").message_headers()
    assert headers == [
        ("trace", b"1"),
        ("__streams.errors.exception", b"ValueError"),
        ("__streams.errors.stacktrace", b"Traceback"),
        ("__streams.errors.message", b"no"),
        ("__streams.errors.topic", b"orders"),
        ("__streams.errors.partition", b"2"),
        ("__streams.errors.offset", b"17"),
    ]
