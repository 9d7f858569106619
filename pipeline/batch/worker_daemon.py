"""Spark's daemon of Python workers, with what our tasks import imported before it forks them.

Spark starts it by its setting `spark.python.daemon.module`. Without it, each worker imports the same: half a second of
a core before its first batch, and memory of its own. The threads that these imports start (OpenBLAS, jemalloc) belong
to libraries that look after forks. It and its workers do not hear SIGTERM, which a service manager sends to every
process of a run (`configure_worker`): Spark ends them by closing the daemon's standard input.
"""

import gc
import os
import signal
import socket
from collections.abc import Callable

import pandas  # noqa: F401  pyarrow wants it as soon as it makes an array of a list
from pyspark import daemon

from ..source import readers  # noqa: F401
from ..spark.clock import STOPPED_AT, stop_for_good
from . import state_task, task  # noqa: F401

_AT_ONCE = getattr(socket, "TCP_QUICKACK", None)
"""Linux has it."""


def hung_up(worker: Callable[..., int]) -> Callable[..., int]:
    """Pyspark's worker, which raises nothing where Spark has hung up, as on those beside a task that failed.

    It acknowledges at once what Spark sends, which would wait for 40 ms after the first of a small task's pieces, else.
    """

    def quiet(connection: socket.socket, *given: object) -> int:
        if _AT_ONCE is not None and connection.family != socket.AF_UNIX:
            connection.setsockopt(socket.IPPROTO_TCP, _AT_ONCE, 1)
        try:
            return worker(connection, *given)
        except (BrokenPipeError, ConnectionResetError, EOFError):
            return 1

    return quiet


if __name__ == "__main__":
    daemon.worker = hung_up(daemon.worker)
    if (at_ms := os.environ.get(STOPPED_AT)) is not None:
        stop_for_good(int(at_ms))
    # Blocked, for pyspark sets a handler of its own here, and in each worker before each task.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    # Collections leave alone what all workers have, so that its memory stays shared (`configure_worker`).
    gc.freeze()
    daemon.manager()
