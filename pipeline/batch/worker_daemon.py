"""Spark's daemon of Python workers, which imports the modules of slackwater's tasks before it forks the workers.

Spark starts this module by its setting `spark.python.daemon.module`. Without this module, each worker would import the
same modules, which costs memory, and half a second of CPU time before the first batch. These imports start threads of
OpenBLAS and jemalloc, but both libraries support forks. The daemon and its workers ignore SIGTERM, which a service
manager sends to every process of a run (`configure_worker`). Spark ends them by closing the daemon's standard input.
"""

import gc
import os
import signal
import socket
from collections.abc import Callable

import pandas  # noqa: F401 pyarrow imports it when it creates its first array from a list
from pyspark import daemon

from ..source import readers  # noqa: F401
from ..spark.clock import STOPPED_AT, stop_clocks
from . import task  # noqa: F401

_TCP_QUICKACK = getattr(socket, "TCP_QUICKACK", None)


def ignore_hang_up(worker: Callable[..., int]) -> Callable[..., int]:
    """Wrap pyspark's worker function: the wrapper returns without an error when Spark closes the connection.

    The worker also acknowledges each TCP packet from Spark at once. Otherwise the second and later packets of a small
    task would each be delayed by 40 ms.
    """

    def quiet(connection: socket.socket, *arguments: object) -> int:
        if _TCP_QUICKACK is not None and connection.family != socket.AF_UNIX:
            connection.setsockopt(socket.IPPROTO_TCP, _TCP_QUICKACK, 1)
        try:
            return worker(connection, *arguments)
        except (BrokenPipeError, ConnectionResetError, EOFError):
            return 1

    return quiet


if __name__ == "__main__":
    daemon.worker = ignore_hang_up(daemon.worker)
    if (at_ms := os.environ.get(STOPPED_AT)) is not None:
        stop_clocks(int(at_ms))
    # Blocked instead of ignored, because pyspark sets its own handler here and in each worker before each task.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    # Garbage collections skip the imported modules, so that workers share their memory (`configure_worker`).
    gc.freeze()
    daemon.manager()
