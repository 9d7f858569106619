"""Processes that Spark starts on this machine: the JVM, protected from signals to this process, and Python processes.

A terminal sends Ctrl-C to every process of the group, a service manager SIGTERM to every process of its control group.
A JVM that gets such a signal would shut down in the middle of a batch that should end first. So the JVM runs in a
separate session, and SIGTERM is ignored when it starts. The JVM and its children then keep ignoring SIGTERM. The JVM
ends when its standard input breaks, that is, when this process ends in any way.

Python processes import pyspark from its installation. Otherwise Spark would put its own `pyspark.zip` and a jar first
on their path, and modules in a zip are never cached as bytecode. That costs half a second of CPU time for each process,
and the first batch of every source starts four processes, one after the other. So a server forks these processes, and
runs planners as threads of one process (`planner_server.py`). Like Spark's workers, these processes use one numpy
thread instead of one for each core. Terminal output of all these processes is filtered.
"""

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyspark
from py4j import java_gateway
from pyspark import SparkConf, SparkContext
from pyspark.find_spark_home import _find_spark_home
from pyspark.java_gateway import launch_gateway
from pyspark.logger import PySparkLogger

from ...common import runtime
from ...common.printable import printable
from ...common.runtime import Future
from ...common.whole_file import temporary_folder
from . import planner_server

_NOISE = (
    b"WARNING: Using incubator modules",
    b"WARNING: package sun.security.action not in",
    b"WARNING: A terminally deprecated method",
    b"WARNING: sun.misc.Unsafe",
    b"WARNING: Please consider reporting this",
    b"WARNING: Use --enable-native-access",
    b"WARNING: A restricted method in java.lang.System",
    b"WARNING: java.lang.System::",
    b"WARNING: Restricted methods will be blocked",
    b"Using Spark's default log4j profile",
    b"Picked up JAVA_TOOL_OPTIONS",
    b"NOTE: Picked up JDK_JAVA_OPTIONS",
)
_SUBMIT_SCRIPT = """\
#!/bin/sh
trap '' TERM
exec env {variables} {submit} "$@"
"""
_PYTHON_SCRIPT = """\
#!/bin/sh
set -f
IFS=:
path=
for entry in $PYTHONPATH; do
    case $entry in
        {home}/python/lib/*.zip | {home}/jars/*.jar) ;;
        *) path=$path${{path:+:}}$entry ;;
    esac
done
export OPENBLAS_NUM_THREADS="${{OPENBLAS_NUM_THREADS:-${{OMP_NUM_THREADS:-1}}}}"
export PYTHONPATH="$path"
case "$2 $3" in
    "{runner} ") socket={planners} ;;
    "{daemon} {once}"*) socket={daemons} ;;
    *) exec {python} "$@" ;;
esac
exec {python} -IS {client} "$socket" {python} "$@"
"""
_REAP_S = 1.0


def start(settings: dict[str, str], variables: Mapping[str, str]) -> SparkContext:
    """Return a Spark context, in a new JVM with these environment variables unless one runs already.

    Runs on a thread of its own, because pyspark on the main thread handles Ctrl-C itself and interrupts any operation.
    If the wait for that thread is interrupted, the JVM continues to run, and ends with this process.
    """
    context: Future[SparkContext] = runtime.future()

    def make() -> None:
        try:
            conf = SparkConf().setAll(list(settings.items()))
            if SparkContext._gateway is None and "PYSPARK_GATEWAY_PORT" not in os.environ:
                submit = Path(_find_spark_home()) / "bin" / "spark-submit"
                with temporary_folder() as folder:
                    exports = shlex.join(f"{name}={value}" for name, value in variables.items())
                    text = _SUBMIT_SCRIPT.format(variables=exports, submit=shlex.quote(str(submit)))
                    how = {"executable": _executable(folder / "spark-submit", text), "start_new_session": True}
                    gateway = launch_gateway(conf, how)  # type: ignore[no-untyped-call]
                context.set_result(SparkContext(conf=conf, gateway=gateway))
            else:
                context.set_result(SparkContext.getOrCreate(conf))
        except BaseException as error:
            context.set_exception(error)

    runtime.thread(make, name="spark").start()
    return context.result()


def exit_phrase(context: SparkContext) -> str:
    """Return a phrase about the end of the context's JVM; empty if the JVM runs or was not started by this process."""
    process = getattr(context._gateway, "proc", None)
    if not isinstance(process, subprocess.Popen):
        return ""
    try:
        code = process.wait(_REAP_S)
    except subprocess.TimeoutExpired:
        return ""
    return f"killed by signal {-code}" if code < 0 else f"exit code {code}"


def _executable(path: Path, text: str) -> str:
    path.write_text(text)
    path.chmod(0o700)
    return str(path)


@contextmanager
def python_interpreter(*, on_this_machine: bool, configured: str = "", starts_session: bool = False) -> Iterator[None]:
    """Set `PYSPARK_PYTHON`, the Python that Spark starts, during the block, unless it is set already.

    The value is this process's Python, which has slackwater and its dependencies, or the `configured` Python. With
    `on_this_machine`, Spark starts Python only on this machine, so the value can be a script that removes Spark's zips
    from the module path. With `starts_session`, a session starts in the block, and a server that has imported the
    planners' modules runs them.
    """
    if "PYSPARK_PYTHON" in os.environ:
        yield
        return
    with temporary_folder() as folder, ExitStack() as stack:
        python = configured or (_script(folder) if on_this_machine else sys.executable)
        if starts_session and Path(python).parent == folder:
            with filter_stderr():
                stack.enter_context(planner_server.run_server(folder, python))
        os.environ["PYSPARK_PYTHON"] = python
        try:
            yield
        finally:
            del os.environ["PYSPARK_PYTHON"]


def _script(folder: Path) -> str:
    spark_home = str(Path(pyspark.__file__).parent)
    # The other Spark installation may have a different version of pyspark.
    if os.environ.get("SPARK_HOME", spark_home) != spark_home:
        return sys.executable
    script = _PYTHON_SCRIPT.format(
        home=shlex.quote(spark_home),
        python=shlex.quote(sys.executable),
        runner=planner_server.RUNNER,
        daemon=planner_server.DAEMON,
        once=planner_server.QUESTION_PREFIX,
        client=shlex.quote(str(planner_server.CLIENT)),
        planners=shlex.quote(str(folder / planner_server.PLANNERS)),
        daemons=shlex.quote(str(folder / planner_server.DAEMONS)),
    )
    return _executable(folder / "python", script)


@contextmanager
def silence_error_logs() -> Iterator[None]:
    # pyspark's own class: its methods differ from those of a standard logger.
    loggers = map(PySparkLogger.getLogger, ("SQLQueryContextLogger", "DataFrameQueryContextLogger"))
    states = [(logger, logger.disabled) for logger in loggers]
    for logger, _ in states:
        logger.disabled = True
    try:
        yield
    finally:
        for logger, disabled in states:
            logger.disabled = disabled


def silence_jvm_loss(context: SparkContext) -> None:
    """Suppress tracebacks about the end of the JVM, because the run itself reports the end once.

    pyspark's accumulator server would print a traceback. py4j logs each failing call with the root logger, and adds a
    handler to a root logger without handlers. So py4j gets its own logger with a silent handler.
    """
    context._accumulatorServer.handle_error = lambda request, client_address: None  # type: ignore[method-assign]
    java_gateway.logging = java_gateway.logger


@contextmanager
def filter_stderr() -> Iterator[None]:
    """Filter the stderr of processes that start within the `with` block, until these processes end.

    Drops some lines that no option of the JVM suppresses. Spark's Python workers inherit the JVM's stderr, so the
    filter runs until the last worker ends. This process's own stderr is restored at the end of the block.
    """
    read, write = os.pipe()
    stderr = os.dup(2)
    os.dup2(write, 2)
    os.close(write)
    to = os.dup(stderr)

    def relay() -> None:
        with os.fdopen(read, "rb") as lines, os.fdopen(to, "wb", buffering=0) as terminal:
            for line in lines:
                if not line.startswith(_NOISE):
                    terminal.write(_escape_line(line))

    runtime.thread(relay, name="stderr").start()
    try:
        yield
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)


def _escape_line(line: bytes) -> bytes:
    text = line.removesuffix(b"\n").removesuffix(b"\r").decode(errors="backslashreplace")
    # Java's stack traces are indented by tabs.
    return printable(text.expandtabs(4)).encode() + b"\n"
