"""The Spark session of a run: quiet, in UTC, with our sources registered."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import resources
from typing import TYPE_CHECKING

from ..store.errors import Refused
from ..store.s3_settings import exported
from .quiet import quiet_start

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["spark_session"]


@contextmanager
def spark_session(app: str, *, master: str | None = None, conf: dict[str, str] | None = None) -> Iterator[SparkSession]:
    """Spark, stopped at the end; a session that runs already (a notebook's) is taken as it is and goes on.

    Args:
        app: Name shown in Spark's UI.
        master: Spark's master URL; None for what spark-defaults says, else all cores of this machine.
        conf: Further Spark settings; they win over ours.

    Raises:
        Refused: Spark does not start, most often for want of Java.
    """
    # Workers must be this interpreter: the one that has slackwater and its libraries.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    from pyspark.errors import PySparkRuntimeError
    from pyspark.sql import SparkSession

    from .source import ChannelSource, TopicSource

    log4j = resources.files(__package__) / "log4j2.properties"
    builder = SparkSession.builder.appName(app)
    settings = {
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile=file:{log4j}",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.scheduler.mode": "FAIR",
        # Sources answer from memory; ten milliseconds, Spark's own, keep a core busy when nothing happens.
        "spark.sql.streaming.pollingDelay": "40ms",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "50000",
        "spark.python.sql.dataFrameDebugging.enabled": "false",
        "spark.sql.streaming.stopTimeout": "8s",
        # What was asked of Spark is shown in its UI; passwords are not.
        "spark.redaction.regex": r"(?i)secret|password|passwd|token|access[.]?key|credential|sasl[.]jaas",
        # Wherever its workers run, they talk to S3 as this process does.
        **{f"spark.executorEnv.{name}": value for name, value in exported(os.environ).items()},
        **(conf or {}),
    }
    if master is not None:
        builder = builder.master(master)
    elif "PYSPARK_GATEWAY_PORT" not in os.environ:
        builder = builder.master("local[*]")
    for name, value in settings.items():
        builder = builder.config(name, value)
    running = SparkSession.getActiveSession()
    try:
        with quiet_start():
            spark = running or builder.getOrCreate()
    except (PySparkRuntimeError, OSError) as error:
        raise Refused(
            f"Spark does not start: {error}", hint="it needs Java 17 or later on PATH or in JAVA_HOME"
        ) from error
    # Python workers and sources, here too; a session that ran already was made without these settings.
    spark.sparkContext.environment.update(exported(os.environ))
    spark.dataSource.register(TopicSource)
    spark.dataSource.register(ChannelSource)
    try:
        yield spark
    finally:
        if running is None:
            spark.stop()
