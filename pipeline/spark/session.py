"""The Spark session of a run: quiet, in UTC, with our sources registered; and warmed up."""

import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib import resources

import pyarrow as pa
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark import SparkContext, __version__
from pyspark.errors import PySparkRuntimeError
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from ...errors import Refused
from ..dev.jars import find_java
from ..source.data_source import InputSource
from . import jvm
from .conf import SECRETS, check_master, check_not_connect, ship_slackwater
from .exchange import to_partitions
from .jvm import interpreter, quiet_errors, quiet_loss, quiet_start

_STOP_S = 10.0
_POLL_S = 0.05
_JAVA_OPTIONS = "spark.driver.extraJavaOptions"
_DAEMON, _OUR_DAEMON = "spark.python.daemon.module", "slackwater.pipeline.batch.worker_daemon"
_STREAMING = f"org.apache.spark.sql.execution.streaming{'' if __version__.startswith('4.0.') else '.checkpointing'}"
"""Where Spark has what writes checkpoints."""
_START_SOONER = (
    # Spark fills the metaspace that a JVM begins with some ten times while it starts, and collects each time.
    "-XX:MetaspaceSize=256m "
    # With few cores, compiling for good what runs only while Spark starts takes a fourth of them from the first batch.
    # The loops over rows get there in their first seconds all the same. Ten times the JVM's own thresholds.
    "-XX:Tier4InvocationThreshold=50000 -XX:Tier4MinInvocationThreshold=6000 "
    "-XX:Tier4CompileThreshold=150000 -XX:Tier4BackEdgeThreshold=400000"
)


@contextmanager
def spark_session(
    app: str,
    *,
    master: str | None = None,
    conf: dict[str, str] | None = None,
    py_files: Sequence[str] = (),
    hurry: threading.Event | None = None,
) -> Iterator[SparkSession]:
    """Spark, stopped at the end; a session that runs already (a notebook's) is taken as it is and goes on.

    `master` is Spark's master URL; None for what spark-defaults says, else all cores of this machine. `conf` are more
    Spark settings, which win over ours; `py_files` are paths of Python files and zips that its tasks can import. Once
    `hurry` is set, nobody waits any more for Spark to stop: it ends with this process. Raises `Refused` for Spark
    Connect, and where Spark does not start, most often for want of Java, or its JVM ended while it was used.
    """
    check_start(master, conf or {})
    if running_session() is None and "PYSPARK_GATEWAY_PORT" not in os.environ:
        find_java("Spark")
    log4j = resources.files(__package__) / "log4j2.properties"
    settings = {
        "spark.app.name": app,
        _JAVA_OPTIONS: f"-Dlog4j2.configurationFile=file:{log4j} {_START_SOONER}",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        # Sources answer from memory; ten milliseconds, Spark's own, keep a core busy when nothing happens.
        "spark.sql.streaming.pollingDelay": "40ms",
        # Each batch logs two files of a checkpoint that is scratch. Spark's own choice forks five commands for a file.
        "spark.sql.streaming.checkpointFileManagerClass": f"{_STREAMING}.FileSystemBasedCheckpointFileManager",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "50000",
        "spark.python.sql.dataFrameDebugging.enabled": "false",
        # A worker that a library crashes says where; else nobody knows it from one that the kernel killed.
        "spark.python.worker.faulthandler.enabled": "true",
        "spark.sql.execution.pyspark.udf.faulthandler.enabled": "true",
        "spark.sql.streaming.stopTimeout": "8s",
        # Tasks go where their state is, not where most of a batch's rows were read.
        "spark.shuffle.reduceLocality.enabled": "false",
        # What was asked of Spark is shown in its UI; passwords are not.
        "spark.redaction.regex": SECRETS,
    }
    if master is None and "PYSPARK_GATEWAY_PORT" not in os.environ:
        master = "local[*]"
    if master is not None:
        settings["spark.master"] = master
    if here := master is not None and _is_local(master):
        # Other machines may get slackwater with the job (--py-files), which their daemons do not see.
        settings[_DAEMON] = _OUR_DAEMON
    chosen = conf or {}
    if options := chosen.get(_JAVA_OPTIONS):
        # Of an option that is given twice, the JVM takes the last.
        chosen = {**chosen, _JAVA_OPTIONS: f"{settings[_JAVA_OPTIONS]} {options}"}
    settings |= chosen
    running = running_session()
    said = chosen.get("spark.pyspark.python", "")
    with interpreter(on_this_machine=here, said=said, starts=running is None), quiet_errors():
        try:
            with quiet_start():
                if running is None:
                    quiet_loss(jvm.start(settings))
                spark = running or SparkSession.builder.config(map={**settings}).getOrCreate()
        except (PySparkRuntimeError, OSError) as error:
            raise Refused(
                f"Spark does not start: {error}", hint="it needs Java 17 or later on PATH or in JAVA_HOME"
            ) from error
        except Py4JJavaError as error:
            where, java = (
                settings.get("spark.master", "the master that Spark's configuration names"),
                error.java_exception,
            )
            first_line = str(java.getMessage() or java.getClass().getName()).partition("\n")[0]
            raise Refused(
                f"Spark does not start at {where}: {first_line}",
                hint="is the master there, and are the settings (--conf) such as Spark takes?",
            ) from error
        if not _is_local(spark.sparkContext.master or ""):
            ship_slackwater(spark.sparkContext)
        for file in py_files:
            spark.sparkContext.addPyFile(file)
        spark.dataSource.register(InputSource)
        try:
            yield spark
        except (Py4JError, ConnectionError) as error:
            if not (how := jvm.ended(spark.sparkContext)):
                raise
            raise Refused(
                f"Spark's JVM has ended ({how}) while the app was running",
                hint="nothing committed is lost: start again; if it was short of memory, give it more "
                "(spark.driver.memory) or the machine",
            ) from error
        finally:
            if running is None:
                end_all([spark.stop], lambda: 0.0 if hurry is not None and hurry.is_set() else _STOP_S)


def check_start(master: str | None, conf: Mapping[str, str]) -> None:
    """Raise `Refused` for Spark Connect and `Usage` for a master that is none, before Spark takes its seconds."""
    check_not_connect(master, conf)
    if running_session() is None:
        check_master(conf.get("spark.master", master))


def running_session() -> SparkSession | None:
    """The session that runs in this process, whichever thread made it: Spark's own answer is the thread's alone."""
    return None if SparkContext._active_spark_context is None else SparkSession.builder.getOrCreate()


def has_own_workers(spark: SparkSession) -> bool:
    """Whether Python workers of a session come of slackwater's own daemon."""
    return spark.sparkContext.getConf().get(_DAEMON, "") == _OUR_DAEMON


@contextmanager
def with_settings(spark: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    """While this lasts, a session has these settings; then those that it had before."""
    before = {name: spark.conf.get(name, None) for name in settings}
    for name, value in settings.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, earlier in before.items():
            if earlier is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, earlier)


COMMON_PARTS = "spark.sql.subexpressionElimination.enabled"
"""Whether Spark computes parts that expressions have in common once, and before these."""


def part_by_part(spark: SparkSession) -> SparkSession:
    """A session that computes what expressions have in common no earlier than these; what the other keeps, it has.

    Else such a part may fail outside of what tries it, or for a row that another part of its filter leaves out.
    """
    session = SparkSession(spark.sparkContext, spark._jsparkSession.cloneSession())
    session.conf.set(COMMON_PARTS, "false")
    return session


def end_all(ends: Iterable[Callable[[], object]], patience_s: Callable[[], float]) -> None:
    """End these side by side, for as long as there is patience; what takes longer ends with this process.

    What fails is no news: the JVM is gone, or does not end in time.
    """
    threads = [_quietly(end) for end in ends]
    began = time.monotonic()
    for thread in threads:
        while thread.is_alive() and time.monotonic() - began < patience_s():
            thread.join(_POLL_S)


def _quietly(work: Callable[[], object]) -> threading.Thread:
    def quiet() -> None:
        with suppress(Exception):
            work()

    thread = threading.Thread(target=quiet, name="spark", daemon=True)
    thread.start()
    return thread


def _is_local(master: str) -> bool:
    return master == "local" or master.startswith("local[")


def warm_up(spark: SparkSession) -> None:
    """Have Python processes started, and what a first batch takes loaded and compiled, while stages are claimed.

    That takes seconds: a source that is never started, and a job over one row, in threads that nobody need wait for.
    Whatever fails here fails again in the run, which says it better, unless the run has ended: then it is no news.
    """

    def job() -> None:
        rows = spark.range(0, 1, 1, 1).select("id", F.xxhash64("id").alias("_hash"))
        to_partitions(rows, F.lit(0), 1).select("id").mapInArrow(_same, "id long").collect()

    _quietly(lambda: spark.readStream.format(InputSource.name()).load())
    _quietly(job)


def _same(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    # By itself in its module, so that a worker that unpickles it imports what tasks need.
    yield from batches
