"""A server on Java that we run ourselves, for development, the demo and tests: start, wait, stop, kill, release."""

import time
from abc import ABC, abstractmethod
from pathlib import Path
from typing import ClassVar, Self

from ...errors import Refused, SlackwaterError, Unavailable
from . import ports
from .jars import Jars, Tell, find_java, quiet
from .process import SupervisedProcess, last_words, logged

START_PATIENCE_S = 60.0
_POLL_S = 0.05
_MOST_MOVES = 5
"""Ports that one start loses to others before it gives up."""
_TAKEN = "Address already in use"
"""What Java says where it cannot listen."""

JVM_FLAGS = (
    # The server shares a small machine with Spark. The quick compiler alone saves 40 % of a start's CPU time
    # (1.8 s instead of 2.9 s for Kafka), and the broker still takes 300 MB/s.
    "-XX:TieredStopAtLevel=1",
    "-XX:+UseSerialGC",
    "-XX:+ExitOnOutOfMemoryError",
    "-Djava.awt.headless=true",
)


class EmbeddedServer(ABC):
    """One server in one folder, on a port of 127.0.0.1 that stays the same when it is started again.

    As a context manager it is killed at the end, which is quick and loses nothing that it has acknowledged. Unless
    released, it never outlives this process, even if that is killed.
    """

    name: ClassVar[str]
    """For people: `Kafka`."""
    jars: ClassVar[Jars]
    heap: ClassVar[str]
    """As `-Xmx` takes it."""

    def __init__(self, folder: Path, *, port: int | None = None, log: Path | None = None, tell: Tell = quiet) -> None:
        """Nothing is started yet. `folder` is for all of the server's data and settings, and made when it is needed.

        `port` is a free one when it is None, and another one where somebody else takes that before the server has it;
        output is appended to `log`, `server.log` in the folder when it is None; `tell` takes a line when something
        takes long, such as the download at the first start of all.
        """
        self.folder = folder.absolute()
        self.port = ports.choose() if port is None else port
        self.may_move = port is None
        """Whether another port will do where somebody else has taken this one meanwhile; not once it has answered."""
        self.log = log.absolute() if log else self.folder / "server.log"
        self._tell = tell
        self._process: SupervisedProcess | None = None
        self._log_start = 0

    @property
    def address(self) -> str:
        """`host:port`."""
        return f"{ports.HOST}:{self.port}"

    @property
    def mark(self) -> str:
        """The argument that tells the server's process from any other."""
        return f"-Dslackwater.server={self.folder}"

    @property
    def pid(self) -> int | None:
        """The server's process id, None while it is not ours."""
        return self._process.pid if self._process else None

    @abstractmethod
    def answers(self) -> bool:
        """Whether this server does its work at this moment, whoever started it.

        Another one that answers on its port is not this one.
        """

    @abstractmethod
    def _prepare(self, java: str, classpath: str) -> tuple[str, ...]:
        """Write what the server needs into the folder; returns its main class with arguments."""

    def start(self) -> None:
        """Start the server and wait until it answers. After an error nothing runs.

        Raises `Refused` where the port is taken, `Unavailable` where the server ended while starting or did not answer
        within a minute, `SlackwaterError` where its folder could not be prepared, and as `find_java` and `Jars.fetch`.
        """
        try:
            self.launch()
            self.wait()
        except BaseException:
            self.kill()
            raise

    def launch(self) -> None:
        """The first half of `start`: returns when the server's process runs."""
        if self._process is not None and self._process.ended() is None:
            return
        self.kill()
        java = find_java(self.name)
        classpath = f"{self.jars.fetch(self._tell)}/*"
        if not ports.is_free(self.port) and not self._moved():
            raise Refused(
                f"{self.name} cannot listen on port {self.port} of {ports.HOST}: it is taken",
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
        """The second half of `start`: returns when the server answers, on another port where it had to move."""
        if self._process is None:
            raise RuntimeError(f"{self.name} was not launched")
        deadline, moves = time.monotonic() + START_PATIENCE_S, 0
        while self._process.ended() is not None or not self.answers():
            if (code := self._process.ended(_POLL_S)) is not None:
                if moves < _MOST_MOVES and self._lost_a_port():
                    moves += 1
                    self.launch()
                    continue
                raise self._failed(Unavailable, f"{self.name} ended while starting, with exit code {code}")
            if time.monotonic() > deadline:
                raise self._failed(Unavailable, f"{self.name} does not answer {START_PATIENCE_S:.0f} s after its start")
        self.may_move = False

    def _lost_a_port(self) -> bool:
        """Whether the server ended because somebody else had a port that it wanted, its own or a further one."""
        return not ports.is_free(self.port) or _TAKEN in logged(self.log, self._log_start)

    def _moved(self) -> bool:
        """Choose another port in place of one that is taken, where that is allowed."""
        if self.may_move:
            taken, self.port = self.port, ports.choose()
            self._tell(f"port {taken} was taken meanwhile: {self.name} goes to port {self.port}")
        return self.may_move

    def kill(self) -> None:
        """End the server at once, as a crash would (SIGKILL), and wait until it is gone."""
        if self._process is not None:
            self._process.kill()
            self._process = None

    def release(self) -> None:
        """Let the server live on when this process ends; from here on it is not ours to stop."""
        if self._process is not None:
            self._process.release()
            self._process = None

    def _failed(self, kind: type[SlackwaterError], message: str) -> SlackwaterError:
        words = last_words(self.log, self._log_start)
        said = "; the last lines of its log:" if words else ", and it logged nothing"
        return kind(f"{message}{said}", quoted=words, hint=f"the whole log is in {self.log}")

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
