"""Base class of Java servers for development, the demo and tests: start, wait, stop, kill, release."""

import time
from abc import ABC, abstractmethod
from pathlib import Path
from typing import ClassVar, Self

from ...errors import Refused, SlackwaterError, Unavailable
from .jars import Jars, Tell, find_java, quiet
from .ports import HOST, choose_port, is_port_free
from .process import SupervisedProcess, last_words, logged

START_PATIENCE_S = 60.0
_POLL_S = 0.05
_MOST_MOVES = 5
"""Maximum number of port changes in one start."""
_TAKEN = "Address already in use"
"""Java's message if it cannot listen."""

JVM_FLAGS = (
    # The server shares a small machine with Spark. Using only the first compiler tier saves 40 % of a start's CPU time
    # (1.8 s instead of 2.9 s for Kafka), and the broker still handles 300 MB/s.
    "-XX:TieredStopAtLevel=1",
    "-XX:+UseSerialGC",
    "-XX:+ExitOnOutOfMemoryError",
    "-Djava.awt.headless=true",
)


class EmbeddedServer(ABC):
    """A server in a folder, on a port of 127.0.0.1 that stays the same after a restart.

    As a context manager, it is killed at the end, which is quick and loses no acknowledged data. Unless released, it
    ends with this process, even if that is killed.
    """

    name: ClassVar[str]
    """Name for messages: `Kafka`."""
    jars: ClassVar[Jars]
    heap: ClassVar[str]
    """Value of `-Xmx`."""

    def __init__(self, folder: Path, *, port: int | None = None, log: Path | None = None, tell: Tell = quiet) -> None:
        """Configure a server in `folder`, which holds its data and settings and is created at the first start.

        `port` None selects a free port, and another one if that is taken before the server listens. Output is appended
        to `log`, default `server.log` in the folder. `tell` receives progress messages, such as of the download at the
        first start.
        """
        self.folder = folder.absolute()
        self.port = choose_port() if port is None else port
        self.may_move = port is None
        """True if the port may change when taken by another program; False once the server has answered."""
        self.log = log.absolute() if log else self.folder / "server.log"
        self._tell = tell
        self._process: SupervisedProcess | None = None
        self._log_start = 0

    @property
    def address(self) -> str:
        """Address as `host:port`."""
        return f"{HOST}:{self.port}"

    @property
    def mark(self) -> str:
        """Process argument that identifies the server's process."""
        return f"-Dslackwater.server={self.folder}"

    @property
    def pid(self) -> int | None:
        """Process id of the server; None unless this object started it and has not released it."""
        return self._process.pid if self._process else None

    @abstractmethod
    def answers(self) -> bool:
        """Return True if this server is working now, whoever started it.

        False if another server answers on its port.
        """

    @abstractmethod
    def _prepare(self, java: str, classpath: str) -> tuple[str, ...]:
        """Write the server's files into the folder; return its main class with arguments."""

    def start(self) -> None:
        """Start the server and wait until it answers. After an error, no server runs.

        Raises `Refused` if the port is taken, `Unavailable` if the server ended while starting or did not answer within
        a minute, `SlackwaterError` if its folder could not be prepared, and the errors of `find_java` and `Jars.fetch`.
        """
        try:
            self.launch()
            self.wait()
        except BaseException:
            self.kill()
            raise

    def launch(self) -> None:
        """Start the server's process without waiting for an answer: the first half of `start`."""
        if self._process is not None and self._process.ended() is None:
            return
        self.kill()
        java = find_java(self.name)
        classpath = f"{self.jars.fetch(self._tell)}/*"
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
        argv = (java, f"-Xmx{self.heap}", *JVM_FLAGS, f"-Djava.io.tmpdir={self.folder}", self.mark, *main)
        self._process = SupervisedProcess(argv, folder=self.folder, log=self.log)

    def wait(self) -> None:
        """Wait until the server answers, possibly on another port: the second half of `start`."""
        if self._process is None:
            raise RuntimeError(f"{self.name} was not launched")
        deadline, moves = time.monotonic() + START_PATIENCE_S, 0
        while self._process.ended() is not None or not self.answers():
            if (code := self._process.ended(_POLL_S)) is not None:
                if moves < _MOST_MOVES and self._has_lost_port():
                    moves += 1
                    self.launch()
                    continue
                raise self._failed(Unavailable, f"{self.name} ended while starting, with exit code {code}")
            if time.monotonic() > deadline:
                raise self._failed(Unavailable, f"{self.name} does not answer {START_PATIENCE_S:.0f} s after its start")
        self.may_move = False

    def _has_lost_port(self) -> bool:
        """Return True if the server ended because a port that it needs was taken."""
        return not is_port_free(self.port) or _TAKEN in logged(self.log, self._log_start)

    def _change_port(self) -> bool:
        """Choose another port if the current one is taken and may change. Returns True if it may."""
        if self.may_move:
            old_port, self.port = self.port, choose_port()
            self._tell(f"port {old_port} was taken by another program: {self.name} uses port {self.port}")
        return self.may_move

    def kill(self) -> None:
        """Kill the server as a crash would (SIGKILL), and wait until it has ended."""
        if self._process is not None:
            self._process.kill()
            self._process = None

    def release(self) -> None:
        """Let the server outlive this process; afterwards this object can no longer stop it."""
        if self._process is not None:
            self._process.release()
            self._process = None

    def _failed(self, kind: type[SlackwaterError], message: str) -> SlackwaterError:
        log_lines = last_words(self.log, self._log_start)
        suffix = "; the last lines of its log:" if log_lines else ", and it logged nothing"
        return kind(f"{message}{suffix}", quoted=log_lines, hint=f"the whole log is in {self.log}")

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
