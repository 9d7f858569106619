"""Java servers for development, the demo and tests: starts and stops them, or lets them outlive this process.

A server ends with this process, unless it is released. Later processes recognise a released server by its tag.
"""

import os
import secrets
import socket
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, ClassVar, Self, cast

import psutil

from ...errors import Refused, SlackwaterError, Unavailable
from . import launch
from .jars import Jars, ReportProgress, ignore_progress
from .java import find_java

_POLL_S = 0.05


class SupervisedProcess:
    """Server process that ends with this process, even if this process is killed, unless it is released.

    It runs in its own session, so that a Ctrl-C in the terminal reaches this process and not the server.
    """

    def __init__(self, argv: Sequence[str], *, folder: Path, log: Path) -> None:
        command, pipe = (sys.executable, "-I", "-S", launch.__file__, *argv), subprocess.PIPE
        with log.open("ab") as out:
            self._launcher = subprocess.Popen(
                command, bufsize=0, stdin=pipe, stdout=pipe, stderr=out, cwd=folder, start_new_session=True
            )
        self._stdin = cast("IO[bytes]", self._launcher.stdin)
        self._stdout = cast("IO[bytes]", self._launcher.stdout)
        try:
            pid_line = self._stdout.readline()
        except BaseException:
            self.kill()
            raise
        if not pid_line:
            self.kill()
            raise SlackwaterError(f"{argv[0]} cannot be run", hint=f"the reason is in {log}")
        self.pid = int(pid_line)
        """Process id of the server."""

    def poll_exit_code(self, patience_s: float = 0) -> int | None:
        """Return the server's exit code, in the form of a shell; None if it still runs after `patience_s`."""
        try:
            return self._launcher.wait(patience_s)
        except subprocess.TimeoutExpired:
            return None

    def kill(self) -> None:
        self._stdin.close()
        self._wait_and_close()

    def release(self) -> None:
        """Let the server outlive this process. The object must not be used afterwards."""
        # If the server has ended by itself, the pipe is closed.
        with suppress(BrokenPipeError):
            self._stdin.write(b"r")
        self._wait_and_close()

    def _wait_and_close(self) -> None:
        self._launcher.wait()
        self._stdin.close()
        self._stdout.close()


def find_process(pid: int, tag: str) -> psutil.Process | None:
    """Return the process with this id if `tag` is among its arguments, else None. The tag detects reused ids."""
    with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
        process = psutil.Process(pid)
        if process.status() != psutil.STATUS_ZOMBIE and tag in process.cmdline():
            return process
    return None


def terminate_process(pid: int, tag: str, patience_s: float) -> None:
    """Terminate a released server, if it runs, and wait until it has ended; kill it after `patience_s`."""
    is_terminated, deadline = False, time.monotonic() + patience_s
    while process := find_process(pid, tag):
        with suppress(psutil.NoSuchProcess):
            if not is_terminated:
                process.terminate()
            elif time.monotonic() > deadline:
                process.kill()
        is_terminated = True
        time.sleep(_POLL_S)


def read_log_since(log: Path, since: int) -> str:
    with log.open("rb") as file:
        file.seek(max(since, os.fstat(file.fileno()).st_size - 65_536))
        return file.read().decode(errors="replace")


def last_log_lines(log: Path, since: int, num_lines: int = 6) -> str:
    lines = read_log_since(log, since).splitlines()
    relevant = [line for line in lines if line.strip() and not line.lstrip().startswith(("at ", "... "))]
    return "\n".join(f"  {line}" for line in relevant[-num_lines:])


HOST = "127.0.0.1"

# Below the ports that systems use for outgoing connections (from 32768 on Linux, 49152 on macOS). In that range, a
# client that keeps retrying a stopped server's port can connect to itself, and then holds the port.
_FIRST_PORT, _NUM_PORTS = 20_000, 10_000
_MAX_TRIES = 100


def is_port_open(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex((HOST, port)) == 0


def is_port_free(port: int) -> bool:
    # This is checked as well, because some systems allow binding to one address while a server listens on all
    # addresses.
    if is_port_open(port):
        return False
    with socket.socket() as probe:
        # Like a server, ignore connections in TIME_WAIT.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def choose_port(*preferred: int) -> int:
    for port in preferred:
        if is_port_free(port):
            return port
    for _ in range(_MAX_TRIES):
        port = _FIRST_PORT + secrets.randbelow(_NUM_PORTS)
        if is_port_free(port):
            return port
    raise Unavailable(
        f"no free port was found on {HOST} in {_MAX_TRIES} tries from {_FIRST_PORT} to {_FIRST_PORT + _NUM_PORTS - 1}"
    )


START_PATIENCE_S = 180.0
"""Seconds to wait for a server's answer. A JVM that shares two slow cores needs over a minute.

An exit is noticed at once.
"""


_MAX_PORT_CHANGES = 5
_PORT_TAKEN_MESSAGE = "Address already in use"

JVM_FLAGS = (
    # The server shares a small machine with Spark. Using only the first compiler tier saves 40 % of a start's CPU time
    # (1.8 s instead of 2.9 s for Kafka), and the broker still handles 300 MB/s.
    "-XX:TieredStopAtLevel=1",
    "-XX:+UseSerialGC",
    "-XX:+ExitOnOutOfMemoryError",
    "-Djava.awt.headless=true",
)


class EmbeddedServer(ABC):
    """Base class of a Java server with a data folder. Its port on 127.0.0.1 stays the same after restarts.

    As a context manager, kills the server at the end, which is quick and loses no acknowledged data. The server ends
    with this process, even if this process is killed, unless `release` was called.
    """

    name: ClassVar[str]
    jars: ClassVar[Jars]
    heap: ClassVar[str]

    def __init__(
        self,
        folder: Path,
        *,
        port: int | None = None,
        log: Path | None = None,
        report: ReportProgress = ignore_progress,
    ) -> None:
        """Configure a server in `folder`, which holds its data and settings and is created at the first start.

        Without a `port`, any free port is used. The server's output is appended to `log`, by default `server.log` in
        the folder. `report` receives progress messages, such as the number of files downloaded at the first start.
        """
        self.folder = folder.absolute()
        self.port = choose_port() if port is None else port
        self.may_change_port = port is None
        """True if the port may change when another program takes it; False once the server has answered."""
        self.log = log.absolute() if log else self.folder / "server.log"
        self._report = report
        self._process: SupervisedProcess | None = None
        self._log_start = 0

    @property
    def address(self) -> str:
        return f"{HOST}:{self.port}"

    @property
    def tag(self) -> str:
        """Argument of the server's process that identifies the process."""
        return f"-Dslackwater.server={self.folder}"

    @property
    def pid(self) -> int | None:
        """Process id of the server; None before this object started the server, and after `release`."""
        return self._process.pid if self._process else None

    @abstractmethod
    def is_answering(self) -> bool:
        """Return True if this folder's server answers now, whoever started it.

        Returns False if the server of another folder answers on the port.
        """

    @abstractmethod
    def _prepare(self, java: str, classpath: str) -> tuple[str, ...]: ...

    def start(self) -> None:
        """Start the server and wait until it answers. After an error, no server runs.

        Raises `Refused` if the port is taken, `Unavailable` if the server ended while starting or did not answer within
        three minutes, `SlackwaterError` if its folder cannot be prepared, and the errors of `find_java` and
        `Jars.fetch`.
        """
        try:
            self.launch()
            self.wait_until_answering()
        except BaseException:
            self.kill()
            raise

    def launch(self) -> None:
        """Start the server's process without waiting for an answer: the first half of `start`."""
        if self._process is not None and self._process.poll_exit_code() is None:
            return
        self.kill()
        java = find_java(self.name).path
        classpath = f"{self.jars.fetch(self._report)}/*"
        if not is_port_free(self.port) and not self._change_port():
            raise Refused(
                f"{self.name} cannot listen on port {self.port} of {HOST}: it is taken",
                hint="choose another port, or stop what listens there",
            )
        for folder in (self.folder, self.log.parent):
            folder.mkdir(parents=True, exist_ok=True)
        self.log.touch()
        self._log_start = self.log.stat().st_size
        main = self._prepare(java, classpath)
        argv = (java, f"-Xmx{self.heap}", *JVM_FLAGS, f"-Djava.io.tmpdir={self.folder}", self.tag, *main)
        self._process = SupervisedProcess(argv, folder=self.folder, log=self.log)

    def wait_until_answering(self) -> None:
        """Wait until the server answers, possibly on another port: the second half of `start`."""
        if self._process is None:
            raise RuntimeError(f"{self.name} was not launched")
        deadline, moves = time.monotonic() + START_PATIENCE_S, 0
        while self._process.poll_exit_code() is not None or not self.is_answering():
            if (code := self._process.poll_exit_code(_POLL_S)) is not None:
                if moves < _MAX_PORT_CHANGES and self._has_lost_port():
                    moves += 1
                    self.launch()
                    continue
                raise self._start_error(Unavailable, f"{self.name} ended while starting, with exit code {code}")
            if time.monotonic() > deadline:
                raise self._start_error(
                    Unavailable, f"{self.name} does not answer {START_PATIENCE_S:.0f} s after its start"
                )
        self.may_change_port = False

    def _has_lost_port(self) -> bool:
        return not is_port_free(self.port) or _PORT_TAKEN_MESSAGE in read_log_since(self.log, self._log_start)

    def _change_port(self) -> bool:
        if self.may_change_port:
            old_port, self.port = self.port, choose_port()
            self._report(f"port {old_port} was taken by another program: {self.name} uses port {self.port}")
        return self.may_change_port

    def kill(self) -> None:
        """Kill the server as a crash would (SIGKILL), and wait until it has ended."""
        if self._process is not None:
            self._process.kill()
            self._process = None

    def release(self) -> None:
        """Let the server outlive this process. Afterwards this object cannot stop the server."""
        if self._process is not None:
            self._process.release()
            self._process = None

    def _start_error(self, kind: type[SlackwaterError], message: str) -> SlackwaterError:
        log_lines = last_log_lines(self.log, self._log_start)
        suffix = "; the last lines of its log:" if log_lines else ", and it logged nothing"
        return kind(f"{message}{suffix}", quoted=log_lines, hint=f"the whole log is in {self.log}")

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
