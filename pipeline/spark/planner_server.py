"""Server that imports the modules of Spark's Python planners once, and runs all planners in one process.

Spark starts a planner process for each source of each stage, and a daemon for each kind of one-time question about a
source. All these processes import the same modules, which costs memory, and half a second of CPU time before the first
batch. So the script that Spark runs as Python (`jvm.python_interpreter`) runs `planner_client.py` instead, which asks a
server:

- For a planner, the server's *host*, a process forked for the first planner, starts a thread, which connects to Spark;
  the client ends. Planners of one host share clients of Kafka and the store.
- For a daemon, the server forks a process with the arguments, environment and streams of the client. The client
  represents this process to Spark until the process ends.

Planners and daemons end when Spark hangs up. If no server answers, the client becomes the planner or daemon itself.
"""

import gc
import importlib
import os
import runpy
import selectors
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from pyspark.serializers import write_int
from pyspark.util import local_connect_and_auth

from ...common import runtime

RUNNER = "pyspark.sql.streaming.python_streaming_source_runner"
"""Module that plans a source's batches; Spark runs it without further arguments."""
DAEMON, QUESTION_PREFIX = "pyspark.daemon", "pyspark.sql.worker."
"""Module that forks a process for each one-time question of Spark, and the prefix of the modules that answer."""
CLIENT = Path(__file__).with_name("planner_client.py")
PLANNERS, DAEMONS = "planners", "daemons"
"""Names of the server's sockets."""
_QUESTIONS = ("create_data_source", "lookup_data_sources", "plan_data_source_read")
_FACTORY = "PYTHON_WORKER_FACTORY_"
_CHUNK = 1 << 16
_ENVIRONMENT_FOLLOWS = b"\0\0"


@contextmanager
def run_server(folder: Path, python: str) -> Iterator[None]:
    """Serve clients of the sockets `planners` and `daemons` in a folder, during the block.

    Planners and daemons may outlive the block. If the machine does not permit the sockets, there is no server, and
    Spark starts the planners itself. `python` is the script that runs the server. The server writes to this process's
    stderr.
    """
    with ExitStack() as stack:
        try:
            listeners = [_listen(stack, folder / name) for name in (PLANNERS, DAEMONS)]
        except OSError:  # the path is too long for a socket
            yield
            return
        numbers = [listener.fileno() for listener in listeners]
        server = stack.enter_context(
            subprocess.Popen(
                [python, "-m", __name__, *map(str, numbers)],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                pass_fds=numbers,
                # Keep the terminal's Ctrl-C away from processes that Spark ends.
                start_new_session=True,
            )
        )
        for listener in listeners:
            listener.close()
        try:
            yield
        finally:
            server.kill()


def _listen(stack: ExitStack, address: Path) -> socket.socket:
    listener = stack.enter_context(socket.socket(socket.AF_UNIX))
    listener.bind(str(address))
    # Clients wait in the queue until the server has finished its imports.
    listener.listen(128)
    return listener


def _serve(planners: socket.socket, daemons: socket.socket) -> None:
    # A service manager sends SIGTERM to every process of a run; children of Spark's JVM ignore it, too.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    # Exit codes of daemons and hosts are not used.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for module in (DAEMON, RUNNER, *(f"{QUESTION_PREFIX}{question}" for question in _QUESTIONS)):
        importlib.import_module(module)

    from ..source import data_source, readers  # noqa: F401

    # Garbage collections skip the imported modules, so that processes share their memory.
    gc.collect()
    gc.freeze()
    for listener in _accepting(planners, daemons):
        if listener is planners:
            # The host has threads, because it never forks.
            if os.fork() == 0:
                daemons.close()
                _run_planners(planners)
            planners.close()
        else:
            connection, _ = daemons.accept()
            with connection:
                if os.fork() == 0:
                    for inherited in (planners, daemons):
                        inherited.close()
                    _run_daemon(connection)


def _accepting(*listeners: socket.socket) -> Iterator[socket.socket]:
    """Yield each listener at which a client waits, until the process that started the server has ended.

    The caller accepts the client, or closes the listener.
    """
    with selectors.PollSelector() as selector:
        for listener in listeners:
            selector.register(listener, selectors.EVENT_READ, listener)
        selector.register(sys.stdin, selectors.EVENT_READ)
        while all(ready := [key.data for key, _ in selector.select()]):
            for listener in ready:
                yield listener
                if listener.fileno() < 0:
                    selector.unregister(listener)


def _run_planners(listener: socket.socket) -> None:
    """Run a thread for each planner that a client requests. End this process after the last planner."""
    code = 1
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        planners: list[runtime.Thread] = []
        for _ in _accepting(listener):
            connection, _address = listener.accept()
            with connection:
                request = _Request.receive(connection)
                for stream in request.streams:
                    os.close(stream)
                if not planners:
                    # All planners of a session have the same environment, apart from their connection to Spark.
                    request.adopt_environment()
                planner = runtime.thread(_plan, request.environment)
                planner.start()
                planners = [*(other for other in planners if other.is_alive()), planner]
                connection.sendall(b"+")
        for planner in planners:
            planner.join()
        code = 0
    finally:
        _exit(code)


def _plan(environment: Mapping[str, str]) -> None:
    """Connect to Spark and plan batches until Spark closes the connection."""
    address = environment.get(f"{_FACTORY}SOCK_PATH") or int(environment[f"{_FACTORY}PORT"])
    # pyspark has no types here.
    connect: Any = local_connect_and_auth
    write: Any = write_int
    connection, spark = connect(address, environment.get(f"{_FACTORY}SECRET"))
    with suppress(BrokenPipeError, ConnectionResetError, EOFError, SystemExit), spark, connection:
        spark.settimeout(None)
        write(os.getpid(), connection)
        connection.flush()
        sys.modules[RUNNER].main(connection, connection)


def _run_daemon(connection: socket.socket) -> None:
    code = 1
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        request = _Request.receive(connection)
        for number, stream in enumerate(request.streams):
            os.dup2(stream, number)
            os.close(stream)
        request.adopt_environment()
        sys.argv = list(request.arguments)
        connection.sendall(b"+")
        del sys.modules[DAEMON]  # runpy warns about modules imported already
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    finally:
        _exit(code)


@dataclass(frozen=True, slots=True)
class _Request:
    """A client's request: its arguments, environment and standard streams."""

    arguments: tuple[str, ...]
    environment: Mapping[str, str]
    streams: tuple[int, ...]

    @classmethod
    def receive(cls, connection: socket.socket) -> Self:
        request, streams, _, _ = socket.recv_fds(connection, _CHUNK, 3)
        while more := connection.recv(_CHUNK):
            request += more
        arguments, _, environment = (os.fsdecode(part) for part in request.partition(_ENVIRONMENT_FOLLOWS))
        pairs = (entry.partition("=") for entry in environment.split("\0") if entry)
        return cls(tuple(arguments.split("\0")), {name: value for name, _, value in pairs}, tuple(streams))

    def adopt_environment(self) -> None:
        os.environ.clear()
        os.environ.update(self.environment)
        path = os.environ.get("PYTHONPATH", "").split(os.pathsep)
        sys.path[1:1] = [folder for folder in path if folder and folder not in sys.path]


def _exit(code: int) -> None:
    # End the children in the same way as pyspark's own daemon.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    with socket.socket(fileno=int(sys.argv[1])) as planners, socket.socket(fileno=int(sys.argv[2])) as daemons:
        _serve(planners, daemons)
