"""The servers of a folder, for development: Kafka and S3 as background processes that outlive the command.

Under the folder (`.slackwater`): `kafka/` and `s3/` hold the data; `dev/` holds what is known of the processes
(`kafka.json`, `s3.json`), their logs, the lock, and `env.sh`, which a shell can source.
"""

import os
import shlex
import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

from ..store.errors import Refused, Unavailable
from . import leash, ports
from .broker import EmbeddedKafka
from .bucket import EmbeddedBucket
from .embedded import START_PATIENCE_S, STOP_PATIENCE_S, EmbeddedServer
from .jars import Tell, quiet
from .lock import locked

__all__ = ["KAFKA_PORT", "S3_PORT", "DevServers", "Doomed", "ServerStatus", "State"]

KAFKA_PORT = 9092
S3_PORT = 9000

State = Literal["running", "silent", "stopped"]
"""`silent` is a process that runs and does not answer: it is starting, or something is wrong with it."""


@dataclass(frozen=True, slots=True)
class ServerStatus:
    """One server as it is at this moment."""

    name: str
    state: State
    address: str
    """Where it listens, or listened last; empty if it never did."""
    pid: int | None
    started_ms: int | None
    data: str
    """Folder of its data."""
    data_bytes: int
    log: str


@dataclass(frozen=True, slots=True)
class Doomed:
    """Something that a purge deletes."""

    path: str
    bytes: int


class _Process(msgspec.Struct, frozen=True):
    """What is remembered of a server between two commands. `pid` is 0 once it was stopped: the port is kept."""

    pid: int
    mark: str
    port: int
    started_ms: int


class DevServers:
    """Kafka and S3 of one folder. Each method is safe against others at the same time, in any process."""

    def __init__(self, folder: Path, *, tell: Tell = quiet) -> None:
        """`folder` is made when a server is first started; `tell` takes a line when something takes long."""
        self.folder = folder.absolute()
        self._control = self.folder / "dev"
        self._tell = tell

    @property
    def env_file(self) -> Path:
        """A shell script that sets `environment()`."""
        return self._control / "env.sh"

    def up(
        self,
        *,
        kafka_port: int | None = None,
        s3_port: int | None = None,
        patience_s: float = START_PATIENCE_S,
    ) -> tuple[str, ...]:
        """Start whichever server does not run, and wait until both answer.

        On a port that is None a server listens where it did last time, else on its usual port, else on any free one.
        After an error or Ctrl-C, what this call started is stopped again.

        Returns:
            Names of the servers that were started.

        Raises:
            Refused: a port is taken, or a server runs already on another port than the one asked for.
            MissingTool: Java or Maven is missing or too old.
            Unavailable: a server ended while starting, or does not answer.
            SlackwaterError: something else kept a server from starting.
        """
        self._control.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError), (self.folder / ".gitignore").open("x") as file:
            file.write("*\n")
        asked = ((EmbeddedKafka, kafka_port, KAFKA_PORT), (EmbeddedBucket, s3_port, S3_PORT))
        with self._locked():
            servers = tuple(self._server(kind, port, usual) for kind, port, usual in asked)
            new = tuple(server for server in servers if not self._process(server))
            try:
                for server in new:
                    self._tell(f"starting {server.name} on port {server.port}")
                    server.launch()
                    self._remember(server)
                for server in servers:
                    if server in new:
                        server.wait(patience_s=patience_s)
                    else:
                        self._await(server, patience_s)
                self._write_environment()
                for server in new:
                    server.release()
            except BaseException:
                for server in new:
                    server.kill()
                    self._forget(server)
                raise
        return tuple(server.name for server in new)

    def down(self, *, patience_s: float = STOP_PATIENCE_S) -> tuple[str, ...]:
        """Stop both servers and wait until they are gone; the data stays.

        Returns:
            Names of the servers that were stopped.
        """
        if not self._control.exists():
            return ()
        with self._locked():
            return tuple(self._stop(patience_s))

    def status(self) -> tuple[ServerStatus, ...]:
        """Both servers."""
        return tuple(map(self._status, self._known()))

    def environment(self) -> dict[str, str]:
        """Environment variables with which slackwater, and any AWS client, uses these servers."""
        kafka, bucket = self._known()
        return {
            "SLACKWATER_STORE": bucket.store_root,
            "SLACKWATER_KAFKA": kafka.bootstrap,
            **bucket.environment,
        }

    def doomed(self) -> tuple[Doomed, ...]:
        """What `purge` would delete."""
        folders = (*(server.folder for server in self._known()), self._control)
        return tuple(Doomed(str(folder), _size_bytes(folder)) for folder in folders if folder.exists())

    def purge(self) -> tuple[Doomed, ...]:
        """Stop both servers, and delete their data and everything that is known of them.

        Returns:
            What was deleted.
        """
        if not self.folder.exists():
            return ()
        self._control.mkdir(exist_ok=True)
        with self._locked():
            tuple(self._stop(STOP_PATIENCE_S))
            doomed = self.doomed()
            for each in doomed:
                shutil.rmtree(each.path)
        if [path.name for path in self.folder.iterdir()] == [".gitignore"]:
            shutil.rmtree(self.folder)
        return doomed
