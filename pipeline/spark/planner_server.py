"""Server that imports the modules of Spark's Python planners once, and then forks each planner process.

Spark starts a planner process for each source of each stage, and a daemon for each kind of one-time question about a
source. All of them import the same modules, which costs memory, and half a second of CPU time before the first batch.
So the script that Spark runs as Python (`jvm.python_interpreter`) runs `planner_client.py`, which asks a server to fork
the process, and represents it to Spark until it ends. If no server answers, the client becomes the process itself. The
forked process has the arguments, environment and streams of the client, and ends when the client would: when Spark
hangs up.
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
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

RUNNER = "pyspark.sql.streaming.python_streaming_source_runner"
"""Module that plans a source's batches; Spark runs it without further arguments."""
DAEMON, QUESTION_PREFIX = "pyspark.daemon", "pyspark.sql.worker."
"""Module that forks processes for one-time questions, and the prefix of the modules that answer them."""
CLIENT = Path(__file__).with_name("planner_client.py")
_QUESTIONS = ("create_data_source", "lookup_data_sources", "plan_data_source_read")
_CHUNK = 1 << 16
_ENVIRONMENT_FOLLOWS = b"\0\0"


@contextmanager
def run_server(address: Path, python: str) -> Iterator[None]:
    """Fork processes for clients of the socket at `address`, during the block; processes may outlive the block.

    If the machine does not allow the socket, there is no server, and planners start as Spark starts them. `python` is
    the script that runs the server.
    """
    with ExitStack() as stack:
        try:
            listener = stack.enter_context(socket.socket(socket.AF_UNIX))
            listener.bind(str(address))
        except OSError:  # the path is too long for a socket
            yield
            return
        # Clients wait in the queue until the server has finished its imports.
        listener.listen(128)
        server = stack.enter_context(
            subprocess.Popen(
                [python, "-m", __name__, str(listener.fileno())],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=[listener.fileno()],
                # Keep the terminal's Ctrl-C away from processes that Spark ends.
                start_new_session=True,
            )
        )
        listener.close()
        try:
            yield
        finally:
            server.kill()


def _serve(listener: socket.socket) -> None:
    # A service manager sends SIGTERM to every process of a run; children of Spark's JVM ignore it, too.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    # Exit codes of planners are not used.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for module in (DAEMON, RUNNER, *(f"{QUESTION_PREFIX}{question}" for question in _QUESTIONS)):
        importlib.import_module(module)

    from ..source import data_source, readers  # noqa: F401

    # Garbage collections skip the imported modules, so that processes share their memory.
    gc.collect()
    gc.freeze()
    with selectors.DefaultSelector() as selector:
        selector.register(listener, selectors.EVENT_READ)
        selector.register(sys.stdin, selectors.EVENT_READ)
        while all(key.fileobj is listener for key, _ in selector.select()):
            connection, _ = listener.accept()
            with connection:
                if os.fork() == 0:
                    listener.close()
                    _become_client_process(connection)


def _become_client_process(connection: socket.socket) -> None:
    code = 1
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        request, streams, _, _ = socket.recv_fds(connection, _CHUNK, 3)
        while more := connection.recv(_CHUNK):
            request += more
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
            os.close(stream)
        arguments, _, environment = request.partition(_ENVIRONMENT_FOLLOWS)
        os.environb.clear()
        os.environb.update(_pair(entry) for entry in environment.split(b"\0") if entry)
        path = os.environ.get("PYTHONPATH", "").split(os.pathsep)
        sys.path[1:1] = [folder for folder in path if folder and folder not in sys.path]
        sys.argv = arguments.decode().split("\0")
        connection.sendall(b"+")
        _run(sys.argv[0])
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    finally:
        # Like pyspark's own daemon ends its children.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _pair(entry: bytes) -> tuple[bytes, bytes]:
    name, _, value = entry.partition(b"=")
    return name, value


def _run(module: str) -> None:
    del sys.modules[module]  # runpy warns about modules imported already
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    with socket.socket(fileno=int(sys.argv[1])) as inherited:
        _serve(inherited)
