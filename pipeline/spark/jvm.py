"""What Spark starts on this machine: its JVM, out of the reach of signals that are meant for us, and its Python.

A terminal sends Ctrl-C to every process of the group, a service manager SIGTERM to every process of its control group.
A JVM that gets one begins to end, amidst the batch that shall end first. So it runs in a session of its own, and is
started with SIGTERM ignored: a JVM leaves alone what was ignored when it began, and what it starts inherits that.
It reads the pipe that is its standard input, and ends when that breaks, because this process ended in whatever way.

Its Python processes import pyspark from where it is installed. Spark puts its own `pyspark.zip` and a jar before all
else on their path; nothing in a zip is kept compiled: half a second of a core for each process, and the first batch of
every source takes four, one after the other. Those that plan are forked (`planner_server.py`) and have one thread of
numpy, as Spark gives those that compute, not one for each core. What all of these write to a terminal is filtered.
"""

import os
import shlex
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyspark
from py4j import java_gateway
from pyspark import SparkConf, SparkContext
from pyspark.find_spark_home import _find_spark_home
from pyspark.java_gateway import launch_gateway
from pyspark.logger import PySparkLogger

from ...common.printable import printable
from ...common.whole_file import temporary_folder
from . import planner_server

_NOISE = (
    b"WARNING: Using incubator modules",
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
exec {submit} "$@"
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
    "{runner} " | "{daemon} {once}"*) exec {python} -IS {client} {planners} {python} "$@" ;;
    *) exec {python} "$@" ;;
esac
"""
_PLANNERS = "planners"
_REAP_S = 1.0


def start(settings: dict[str, str]) -> SparkContext:
    """A Spark context, in a new JVM unless there is one.

    Made beside the main thread, in which pyspark would handle Ctrl-C itself, and break off whatever goes on. To be
    interrupted while it waits leaves a JVM behind that ends as soon as this process has.
    """
    made: Future[SparkContext] = Future()

    def make() -> None:
        try:
            conf = SparkConf().setAll(list(settings.items()))
            if SparkContext._gateway is None and "PYSPARK_GATEWAY_PORT" not in os.environ:
                submit = Path(_find_spark_home()) / "bin" / "spark-submit"
                with temporary_folder() as folder:
                    text = _SUBMIT_SCRIPT.format(submit=shlex.quote(str(submit)))
                    how = {"executable": _executable(folder / "spark-submit", text), "start_new_session": True}
                    gateway = launch_gateway(conf, how)  # type: ignore[no-untyped-call]
                made.set_result(SparkContext(conf=conf, gateway=gateway))
            else:
                made.set_result(SparkContext.getOrCreate(conf))
        except BaseException as error:
            made.set_exception(error)

    threading.Thread(target=make, name="spark", daemon=True).start()
    return made.result()


def ended(context: SparkContext) -> str:
    """How the context's JVM ended, in words; empty while it runs, or when it is not ours."""
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
def interpreter(*, on_this_machine: bool, said: str = "", starts: bool = False) -> Iterator[None]:
    """Inside, Spark is told by `PYSPARK_PYTHON` which Python it is to start, unless somebody has said so.

    That is this one, which has slackwater and its libraries. `on_this_machine` is true when Spark starts it nowhere
    else: the script that spares it the zips is here only. `said` is what the run's settings say. Where a session
    `starts`, those that plan are forked from a process that has imported what they need.
    """
    if "PYSPARK_PYTHON" in os.environ:
        yield
        return
    with temporary_folder() as folder, ExitStack() as stack:
        found = said or (_script(folder) if on_this_machine else sys.executable)
        if starts and Path(found).parent == folder:
            stack.enter_context(planner_server.serving(folder / _PLANNERS, found))
        os.environ["PYSPARK_PYTHON"] = found
        try:
            yield
        finally:
            del os.environ["PYSPARK_PYTHON"]


def _script(folder: Path) -> str:
    home = str(Path(pyspark.__file__).parent)
    # The pyspark of a Spark from elsewhere may be another version.
    if os.environ.get("SPARK_HOME", home) != home:
        return sys.executable
    script = _PYTHON_SCRIPT.format(
        home=shlex.quote(home),
        python=shlex.quote(sys.executable),
        runner=planner_server.RUNNER,
        daemon=planner_server.DAEMON,
        once=planner_server.ONCE,
        client=shlex.quote(str(planner_server.CLIENT)),
        planners=shlex.quote(str(folder / _PLANNERS)),
    )
    return _executable(folder / "python", script)


@contextmanager
def quiet_errors() -> Iterator[None]:
    """Inside, pyspark raises what Spark refuses without logging it as kilobytes of JSON before."""
    # Made by pyspark's own class: its calls are not those that a logger of the standard library takes.
    loggers = map(PySparkLogger.getLogger, ("SQLQueryContextLogger", "DataFrameQueryContextLogger"))
    before = [(logger, logger.disabled) for logger in loggers]
    for logger, _ in before:
        logger.disabled = True
    try:
        yield
    finally:
        for logger, disabled in before:
            logger.disabled = disabled


def quiet_loss(context: SparkContext) -> None:
    """Let nobody print a traceback when the JVM goes away: that it is gone is told once and in words.

    The server to which it reports its accumulators would, and py4j, which logs each call that then fails with the root
    logger's functions: these install a handler where there is none. Its own logger has one that is silent.
    """
    context._accumulatorServer.handle_error = lambda request, client_address: None  # type: ignore[method-assign]
    java_gateway.logging = java_gateway.logger


@contextmanager
def quiet_start() -> Iterator[None]:
    """Processes started inside write their stderr through a filter, for as long as they live.

    The JVM has no switch for these lines, and Spark's Python workers inherit its stderr, so the filter stays and
    passes all else on, line by line. This process's own stderr is as before once the block is left.
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
                    terminal.write(_shown(line))

    threading.Thread(target=relay, name="stderr", daemon=True).start()
    try:
        yield
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)


def _shown(line: bytes) -> bytes:
    """The line as a terminal may get it: users' values are in the messages of Spark and of its Python workers."""
    text = line.removesuffix(b"\n").removesuffix(b"\r").decode(errors="backslashreplace")
    # Java indents by tabs.
    return printable(text.expandtabs(4)).encode() + b"\n"
