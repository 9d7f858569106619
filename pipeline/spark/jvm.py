"""Spark's JVM out of the reach of signals that are meant for us: it ends when this process does, and not before.

A terminal sends Ctrl-C to every process of the group, a service manager SIGTERM to every process of its control group.
A JVM that gets one begins to end, amidst the batch that shall end first. So it runs in a session of its own, and is
started with SIGTERM ignored: a JVM leaves alone what was ignored when it began, and what it starts inherits that.

It reads the pipe that is its standard input, and ends when that breaks, because this process ended in whatever way.
"""

from __future__ import annotations

import os
import shlex
import tempfile
import threading
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark import SparkContext

_SCRIPT = """\
#!/bin/sh
trap '' TERM
exec {submit} "$@"
"""
_REAP_S = 1.0


def start(settings: dict[str, str]) -> SparkContext:
    """A Spark context, in a new JVM unless there is one.

    Made beside the main thread, in which pyspark would handle Ctrl-C itself, and break off whatever goes on. To be
    interrupted while it waits leaves a JVM behind that ends as soon as this process has.
    """
    from pyspark import SparkConf, SparkContext

    made: Future[SparkContext] = Future()

    def make() -> None:
        try:
            conf = SparkConf().setAll(list(settings.items()))
            if SparkContext._gateway is None and "PYSPARK_GATEWAY_PORT" not in os.environ:
                made.set_result(SparkContext(conf=conf, gateway=_launched(conf)))
            else:
                made.set_result(SparkContext.getOrCreate(conf))
        except BaseException as error:
            made.set_exception(error)

    threading.Thread(target=make, name="spark", daemon=True).start()
    return made.result()


def ended(context: SparkContext) -> str:
    """How the context's JVM ended, in words; empty while it runs, or when it is not ours."""
    from subprocess import Popen, TimeoutExpired

    process = getattr(context._gateway, "proc", None)
    if not isinstance(process, Popen):
        return ""
    try:
        code = process.wait(_REAP_S)
    except TimeoutExpired:
        return ""
    return f"killed by signal {-code}" if code < 0 else f"exit code {code}"


def _launched(conf: object) -> object:
    from pyspark.find_spark_home import _find_spark_home
    from pyspark.java_gateway import launch_gateway

    submit = Path(_find_spark_home()) / "bin" / "spark-submit"
    with tempfile.TemporaryDirectory(prefix="slackwater-") as folder:
        script = Path(folder) / "spark-submit"
        script.write_text(_SCRIPT.format(submit=shlex.quote(str(submit))))
        script.chmod(0o700)
        return launch_gateway(conf, {"executable": str(script), "start_new_session": True})  # type: ignore[no-untyped-call]
