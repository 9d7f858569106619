"""Filters what the JVM and pyspark write to the terminal of a run, so that it shows our lines and real errors."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ...printable import printable

if TYPE_CHECKING:
    from pyspark import SparkContext

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


_ERROR_LOGGERS = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")


@contextmanager
def quiet_errors() -> Iterator[None]:
    """Inside, pyspark raises what Spark refuses without logging it as kilobytes of JSON before."""
    from pyspark.logger import PySparkLogger

    # Made by pyspark's own class: its calls are not those that a logger of the standard library takes.
    loggers = [PySparkLogger.getLogger(name) for name in _ERROR_LOGGERS]
    before = [logger.disabled for logger in loggers]
    for logger in loggers:
        logger.disabled = True
    try:
        yield
    finally:
        for logger, disabled in zip(loggers, before, strict=True):
            logger.disabled = disabled


def quiet_loss(context: SparkContext) -> None:
    """Let nobody print a traceback when the JVM goes away: that it is gone is told once and in words.

    The server to which it reports its accumulators would, and py4j, which logs each call that then fails with the root
    logger's functions: these install a handler where there is none. Its own logger has one that is silent.
    """
    from py4j import java_gateway

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
    threading.Thread(target=_relay, args=(read, os.dup(stderr)), name="stderr", daemon=True).start()
    try:
        yield
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)


def _relay(read: int, to: int) -> None:
    with os.fdopen(read, "rb") as lines, os.fdopen(to, "wb", buffering=0) as terminal:
        for line in lines:
            if not line.startswith(_NOISE):
                terminal.write(_shown(line))


def _shown(line: bytes) -> bytes:
    """The line as a terminal may get it: users' values are in the messages of Spark and of its Python workers."""
    text = line.removesuffix(b"\n").removesuffix(b"\r").decode(errors="backslashreplace")
    # Java indents by tabs.
    return printable(text.expandtabs(4)).encode() + b"\n"
