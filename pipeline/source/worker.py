"""Configures a Python worker of Spark before its first task of ours: signals and garbage collection."""

from __future__ import annotations

import gc
import signal
import threading
from functools import cache

from pyspark import TaskContext

_AT_LEAST = 100_000
"""Objects between two collections: a chunk of Kafka's messages, of which no two refer to each other, is 10,000. By
Python's own measure, 700, a fourth of the time of reading them went into collections that found nothing."""


@cache
def configure_worker() -> None:
    """Let this worker survive signals, and its garbage collections pass over what it has imported. Once a process.

    A terminal sends Ctrl-C to every process, a service manager SIGTERM, and the batch under way shall end: who started
    this worker ends it when it is time. And Spark's workers collect all their garbage after every task, which costs
    them more than a small task when they look through every module each time.

    Does nothing in any other process, which may read as a worker does: it hears of Ctrl-C.
    """
    if TaskContext.get() is None:
        return
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    gc.freeze()
    gc.set_threshold(_AT_LEAST)
