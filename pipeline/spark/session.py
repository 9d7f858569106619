"""The Spark session of a run: starts it in UTC with slackwater's sources registered, and warms it up."""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib import resources

import pyarrow as pa
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark import SparkContext, __version__
from pyspark.errors import PySparkRuntimeError
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from ...common import runtime
from ...errors import Refused
from ..dev.java import check_spark_runs_on, find_java
from ..source.data_source import InputSource
from . import jvm
from .conf import SECRETS, check_master, check_not_connect, ship_slackwater
from .jvm import filter_stderr, python_interpreter, silence_error_logs, silence_jvm_loss
from .placement import repartition_by_number

_STOP_S = 10.0
_POLL_S = 0.05
_JAVA_OPTIONS = "spark.driver.extraJavaOptions"
_DAEMON, _OUR_DAEMON = "spark.python.daemon.module", "slackwater.pipeline.batch.worker_daemon"
_STREAMING = f"org.apache.spark.sql.execution.streaming{'' if __version__.startswith('4.0.') else '.checkpointing'}"
# Tasks of batches start before tasks of merges (`placement.MERGE_POOL`).
_POOLS = {
    "spark.scheduler.mode": "FAIR",
    "spark.scheduler.allocation.file": f"file:{resources.files(__package__) / 'pools.xml'}",
}
_IDLE_TIMEOUT = "spark.dynamicAllocation.executorIdleTimeout"
# By default, Spark never removes an executor that has cached rows, as every executor does (`placement.Homes`), or
# shuffled rows.
_IDLE_TIMEOUTS = (
    "spark.dynamicAllocation.cachedExecutorIdleTimeout",
    "spark.dynamicAllocation.shuffleTracking.timeout",
)
_FAST_START_OPTIONS = (
    # Spark fills the JVM's initial metaspace about ten times at its start, with a collection each time.
    "-XX:MetaspaceSize=256m "
    # Full optimisation of code that only runs at Spark's start would cost the first batch a fourth of the time of few
    # cores. Loops over rows still reach these thresholds, ten times the JVM's own, within seconds.
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
    hurry: runtime.Event | None = None,
) -> Iterator[SparkSession]:
    """Yield a Spark session, and stop it at the end of the block, unless it existed before, as in a notebook.

    `master` is Spark's master URL; None for the URL of spark-defaults, else all cores of this machine. `conf` has more
    Spark settings, which override slackwater's; `py_files` are paths of Python files and zips that tasks can import. If
    `hurry` is set, the end of the block does not wait for Spark to stop: Spark ends with this process. Raises
    `MissingTool` without a Java for this Spark, and `Refused` for Spark Connect, if Spark does not start, or if its JVM
    ended during the block.
    """
    chosen = conf or {}
    check_can_start(master, chosen)
    running, has_gateway = running_session(), "PYSPARK_GATEWAY_PORT" in os.environ
    java = find_java("Spark") if running is None and not has_gateway else None
    if java is not None:
        check_spark_runs_on(java, __version__)
    if master is None and not has_gateway:
        master = "local[*]"
    is_local = master is not None and _is_local(master)
    python_setting = chosen.get("spark.pyspark.python", "")
    on_this_machine = is_local or (master or "").startswith("local-cluster[")
    with (
        python_interpreter(on_this_machine=on_this_machine, configured=python_setting, starts_session=running is None),
        silence_error_logs(),
    ):
        spark = _start_session(_settings(app, master, chosen), java.environment if java else {}, running)
        if not _is_local(spark.sparkContext.master or ""):
            ship_slackwater(spark.sparkContext)
        for file in py_files:
            spark.sparkContext.addPyFile(file)
        spark.dataSource.register(InputSource)
        try:
            yield spark
        except (Py4JError, ConnectionError) as error:
            if not (how := jvm.exit_phrase(spark.sparkContext)):
                raise
            raise Refused(
                f"Spark's JVM has ended ({how}) while the app was running",
                hint="nothing committed is lost: run it again; if it was out of memory, raise "
                "spark.driver.memory, or use a larger machine",
            ) from error
        finally:
            if running is None:
                call_all([spark.stop], lambda: 0.0 if hurry is not None and hurry.is_set() else _STOP_S)


def _settings(app: str, master: str | None, chosen: Mapping[str, str]) -> dict[str, str]:
    log4j = resources.files(__package__) / "log4j2.properties"
    settings = {
        "spark.app.name": app,
        _JAVA_OPTIONS: f"-Dlog4j2.configurationFile=file:{log4j} {_FAST_START_OPTIONS}",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        # Sources answer from memory. Spark's default, 10 ms, keeps a core busy when idle.
        "spark.sql.streaming.pollingDelay": "40ms",
        # Each batch writes two files of a scratch checkpoint. Spark's default file manager forks five commands for each
        # file.
        "spark.sql.streaming.checkpointFileManagerClass": f"{_STREAMING}.FileSystemBasedCheckpointFileManager",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "50000",
        "spark.python.sql.dataFrameDebugging.enabled": "false",
        # To distinguish a worker that a library crashed, and where, from a worker that the kernel killed.
        "spark.python.worker.faulthandler.enabled": "true",
        "spark.sql.execution.pyspark.udf.faulthandler.enabled": "true",
        "spark.sql.streaming.stopTimeout": "8s",
        # Place tasks where their state is, not where most of a batch's rows were read.
        "spark.shuffle.reduceLocality.enabled": "false",
        # Spark's UI shows all settings: redact passwords.
        "spark.redaction.regex": SECRETS,
    }
    if master is not None:
        settings["spark.master"] = master
        if _is_local(master):
            # Daemons on other machines may lack slackwater if it is shipped with the job (--py-files).
            settings[_DAEMON] = _OUR_DAEMON
        else:
            settings |= _POOLS | dict.fromkeys(_IDLE_TIMEOUTS, chosen.get(_IDLE_TIMEOUT, "60s"))
    java_options = settings[_JAVA_OPTIONS]
    settings |= chosen
    if options := chosen.get(_JAVA_OPTIONS):
        # If an option is repeated, the JVM uses the last value.
        settings[_JAVA_OPTIONS] = f"{java_options} {options}"
    return settings


def _start_session(
    settings: dict[str, str], variables: Mapping[str, str], running: SparkSession | None
) -> SparkSession:
    try:
        with filter_stderr():
            if running is not None:
                return running
            silence_jvm_loss(jvm.start(settings, variables))
            return SparkSession.builder.config(map={**settings}).getOrCreate()
    except (PySparkRuntimeError, OSError) as error:
        raise Refused(f"Spark does not start: {error}", hint="see `slackwater doctor java spark`") from error
    except Py4JJavaError as error:
        where = settings.get("spark.master", "the master that Spark's configuration names")
        java = error.java_exception
        first_line = str(java.getMessage() or java.getClass().getName()).partition("\n")[0]
        raise Refused(
            f"Spark does not start at {where}: {first_line}",
            hint="check that the master is running and that the settings (--conf) are valid",
        ) from error


def check_can_start(master: str | None, conf: Mapping[str, str]) -> None:
    """Raise `Refused` for Spark Connect and `Usage` for an invalid master, before the slow start of Spark."""
    check_not_connect(master, conf)
    if running_session() is None:
        check_master(conf.get("spark.master", master))


def running_session() -> SparkSession | None:
    """Return the session of this process, or None. Spark's own function returns only the calling thread's session."""
    return None if SparkContext._active_spark_context is None else SparkSession.builder.getOrCreate()


def has_own_workers(spark: SparkSession) -> bool:
    return spark.sparkContext.getConf().get(_DAEMON, "") == _OUR_DAEMON


@contextmanager
def with_settings(spark: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    previous = {name: spark.conf.get(name, None) for name in settings}
    for name, value in settings.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, old_value in previous.items():
            if old_value is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, old_value)


SUBEXPRESSION_ELIMINATION = "spark.sql.subexpressionElimination.enabled"
"""Spark setting that evaluates common subexpressions once, before the expressions that contain them."""


def without_subexpression_elimination(spark: SparkSession) -> SparkSession:
    """Return a copy of the session in which common subexpressions are not evaluated ahead of time.

    Otherwise a common subexpression may fail outside of its `try_` function, or for a row that a preceding condition of
    the filter drops. Cached DataFrames are shared with the original session.
    """
    session = SparkSession(spark.sparkContext, spark._jsparkSession.cloneSession())
    session.conf.set(SUBEXPRESSION_ELIMINATION, "false")
    return session


def call_all(ends: Iterable[Callable[[], object]], patience_s: Callable[[], float]) -> None:
    """Call functions in parallel, and wait for at most `patience_s()` seconds.

    Calls that last longer end with this process. Failures are ignored, because the functions only stop Spark.
    """
    threads = [_run_in_thread(end) for end in ends]
    started = runtime.monotonic()
    for thread in threads:
        while thread.is_alive() and runtime.monotonic() - started < patience_s():
            thread.join(_POLL_S)


def _run_in_thread(work: Callable[[], object]) -> runtime.Thread:
    def quiet() -> None:
        with suppress(Exception):
            work()

    thread = runtime.thread(quiet, name="spark")
    thread.start()
    return thread


def _is_local(master: str) -> bool:
    return master == "local" or master.startswith("local[")


def warm_up(spark: SparkSession) -> None:
    """Start Python processes, and load and compile the code of a first batch, while stages are claimed.

    Uses a source that is never started and a job over one row, in threads that nobody waits for. Failures are ignored,
    because the run itself reports the cause better.
    """

    def job() -> None:
        rows = spark.range(0, 1, 1, 1).select("id", F.xxhash64("id").alias("_hash"))
        repartition_by_number(rows, F.lit(0), 1).select("id").mapInArrow(_identity, "id long").collect()

    _run_in_thread(lambda: spark.readStream.format(InputSource.name()).load())
    _run_in_thread(job)


def _identity(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    # A function of this module: a worker that unpickles the function imports the modules that tasks need.
    yield from batches
