"""Spark's Python processes that plan batches, forked from one that has imported what they need.

Spark starts one for each source of each stage, and a daemon of them for each thing that it asks of a source once. Each
imports the same: half a second of a core before the first batch, and memory of its own. So the script that Spark takes
for Python (`jvm.interpreter`) asks a server for them: `planner_client.py`, which stands for the forked process until
that ends, and where no server answers is that process itself. What is forked has the words, the environment and the
streams that Spark gave the client, and ends as it would: when Spark hangs up.
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
"""The module that plans a source's batches, which Spark has Python run without more words."""
DAEMON, ONCE = "pyspark.daemon", "pyspark.sql.worker."
"""The module that forks those that are asked once, and how the word begins that names what is asked."""
CLIENT = Path(__file__).with_name("planner_client.py")
_ASKED = ("create_data_source", "lookup_data_sources", "plan_data_source_read")
_CHUNK = 1 << 16
_SAYS_THE_REST = b"\0\0"


@contextmanager
def serving(address: Path, python: str) -> Iterator[None]:
    """While this lasts, clients of this address, the path of a socket, get forked processes, which may outlive it.

    There is none where the machine does not allow for that: planners start as Spark starts them, then. `python` is the
    script that the server is run with.
    """
    with ExitStack() as stack:
        try:
            listener = stack.enter_context(socket.socket(socket.AF_UNIX))
            listener.bind(str(address))
        except OSError:  # the path is too long for a socket
            yield
            return
        # Clients that come before it has imported anything wait.
        listener.listen(128)
        server = stack.enter_context(
            subprocess.Popen(
                [python, "-m", __name__, str(listener.fileno())],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=[listener.fileno()],
                # A terminal's Ctrl-C is not for those that Spark ends.
                start_new_session=True,
            )
        )
        listener.close()
        try:
            yield
        finally:
            server.kill()


def _serve(listener: socket.socket) -> None:
    """Fork a process for each client, until the process that started this one has ended, in whatever way."""
    # A service manager sends SIGTERM to every process of a run; Spark's JVM hands on that it is ignored, too.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    # Nobody asks how a planner ended.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for module in (DAEMON, RUNNER, *(f"{ONCE}{what}" for what in _ASKED)):
        importlib.import_module(module)

    from ..source import data_source, readers  # noqa: F401

    # Collections leave alone what all have, so that its memory stays shared.
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
                    _become(connection)


def _become(connection: socket.socket) -> None:
    """Be the process that a client asks for, and end with it."""
    code = 1
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        said, streams, _, _ = socket.recv_fds(connection, _CHUNK, 3)
        while more := connection.recv(_CHUNK):
            said += more
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
            os.close(stream)
        words, _, environment = said.partition(_SAYS_THE_REST)
        os.environb.clear()
        os.environb.update(_pair(entry) for entry in environment.split(b"\0") if entry)
        path = os.environ.get("PYTHONPATH", "").split(os.pathsep)
        sys.path[1:1] = [folder for folder in path if folder and folder not in sys.path]
        sys.argv = words.decode().split("\0")
        connection.sendall(b"+")
        _run(sys.argv[0])
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    finally:
        # As pyspark's own daemon ends what it forked.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _pair(entry: bytes) -> tuple[bytes, bytes]:
    name, _, value = entry.partition(b"=")
    return name, value


def _run(module: str) -> None:
    """Run a module as Python does: what it imports is there, and it is small itself."""
    del sys.modules[module]  # runpy warns of what is imported already
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    with socket.socket(fileno=int(sys.argv[1])) as inherited:
        _serve(inherited)
