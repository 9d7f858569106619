"""Messages that a run does not show on the terminal."""

import io
import logging
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from pyspark.errors import AnalysisException, QueryContextType
from pyspark.logger import PySparkLogger
from slackwater.pipeline.spark.jvm import silence_error_logs


@pytest.fixture
def logged(monkeypatch: pytest.MonkeyPatch) -> Iterator[io.StringIO]:
    """Capture pyspark's log of query errors, even while another test's session silences it."""
    logger, text = PySparkLogger.getLogger("SQLQueryContextLogger"), io.StringIO()
    handler = logging.StreamHandler(text)
    logger.addHandler(handler)
    monkeypatch.setattr(logger, "disabled", False)
    yield text
    logger.removeHandler(handler)


def make_one() -> None:
    """Create an exception as pyspark does for an exception of Spark's."""
    context = SimpleNamespace(contextType=lambda: QueryContextType.SQL)
    AnalysisException("no such column", errorClass="X", contexts=[context])._log_exception()  # type: ignore[list-item]


def test_pyspark_does_not_log_exceptions_that_it_raises_in_a_run(logged: io.StringIO) -> None:
    with silence_error_logs():
        make_one()
    assert logged.getvalue() == ""
    make_one()
    assert "no such column" in logged.getvalue()
