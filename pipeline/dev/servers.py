"""Development servers of a folder: Kafka and S3 as background processes that outlive the command.

Under the folder (`.slackwater`): `kafka/` and `s3/` hold the data; `dev/` holds the records of the processes
(`kafka.json`, `s3.json`), their logs, the lock, and `env.sh`, which a shell can source.
"""

import os
import shlex
import shutil
import time
from collections.abc import Iterable
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar

import msgspec

from ...common import instants
from ...common.whole_file import atomic_file, lock_file
from ...errors import Refused, Unavailable
from .jars import ReportProgress, ignore_progress
from .jvm_server import (
    HOST,
    START_PATIENCE_S,
    EmbeddedServer,
    choose_port,
    find_process,
    is_port_free,
    terminate_process,
)
from .kafka import EmbeddedKafka
from .s3 import EmbeddedS3

_POLL_S = 0.05
_STOP_PATIENCE_S = 20.0
_GITIGNORE = ".gitignore"
_Server = TypeVar("_Server", bound=EmbeddedServer)

KAFKA_PORT = 9092
S3_PORT = 9000

ServerState = Literal["running", "silent", "stopped"]
"""State of a server. A `silent` server has a process that does not answer: it is starting, or has a problem."""


@dataclass(frozen=True, slots=True)
class ServerStatus:
    """State, address, process and data folder of a development server."""

    name: str
    state: ServerState
    address: str
    """Current address; for a stopped server, the last address; empty before the first start."""
    pid: int | None
    started_ms: int | None
    data: str
    data_bytes: int
    log: str


@dataclass(frozen=True, slots=True)
class PurgedFolder:
    """Folder that a purge deletes, and the size of its files."""

    path: str
    bytes: int


class _ProcessRecord(msgspec.Struct, frozen=True):
    """Stored record of a server's process. After a stop, `pid` is 0 and the port stays recorded."""

    pid: int
    mark: str
    port: int
    started_ms: int


class DevServers:
    """Kafka and S3 of a folder. All methods are safe for concurrent use by threads and processes."""

    def __init__(self, folder: Path, *, report: ReportProgress = ignore_progress) -> None:
        """Configure the servers of `folder`, which the first start creates; `report` receives progress messages."""
        self.folder = folder.absolute()
        self._control_folder = self.folder / "dev"
        self._report = report

    @property
    def env_file(self) -> Path:
        return self._control_folder / "env.sh"

    def up(self, *, kafka_port: int | None = None, s3_port: int | None = None) -> tuple[str, ...]:
        """Start the servers that do not run, and wait until both answer. Returns the names of the started servers.

        If no port is given, a server uses its last port, else its usual port, else any free port; it changes to a free
        port if another program takes its port during the start. After an error or Ctrl-C, the servers started by this
        call are stopped. Raises `Refused` if a given port is taken, if a server already runs on another port than
        requested, or if the folder cannot be written, and the errors of `EmbeddedServer.start`.
        """
        try:
            self._control_folder.mkdir(parents=True, exist_ok=True)
            # The folder must not be committed to a repository.
            (self.folder / _GITIGNORE).write_text("*\n", encoding="ascii")
        except OSError as error:
            hint = "name another one with --folder"
            raise Refused(f"{self.folder} cannot be written: {error.strerror}", hint=hint) from None
        with self._locked():
            both = (
                self._server_on_port(EmbeddedKafka, kafka_port, KAFKA_PORT),
                self._server_on_port(EmbeddedS3, s3_port, S3_PORT),
            )
            new = tuple(server for server in both if self._running_record(server) is None)
            try:
                for server in new:
                    server.launch()
                    self._write_record(server, server.pid or 0)
                    self._report(f"starting {server.name} on port {server.port}")
                for server in both:
                    if server in new:
                        server.wait_until_answering()
                        # The server may have moved to a different port, in a new process.
                        self._write_record(server, server.pid or 0)
                    else:
                        self._wait_for(server)
                exports = (f"export {name}={shlex.quote(value)}\n" for name, value in self.environment().items())
                with atomic_file(self.env_file, "--folder") as written:
                    written.write_text("".join(exports))
                for server in new:
                    server.release()
            except BaseException:
                for server in new:
                    server.kill()
                # The records of servers that were already released show where they run.
                self._stop(new, 0)
                raise
        return tuple(server.name for server in new)

    def down(self) -> tuple[str, ...]:
        if not self._control_folder.exists():
            return ()
        with self._locked():
            return self._stop(self._servers())

    def purge(self) -> tuple[PurgedFolder, ...]:
        if not self.folder.exists():
            return ()
        self._control_folder.mkdir(exist_ok=True)
        with self._locked():
            self._stop(self._servers())
            deleted = self.list_purgeable()
            for purged in deleted:
                shutil.rmtree(purged.path)
        if [path.name for path in self.folder.iterdir()] == [_GITIGNORE]:
            shutil.rmtree(self.folder)
        return deleted

    def list_purgeable(self) -> tuple[PurgedFolder, ...]:
        folders = (*(server.folder for server in self._servers()), self._control_folder)
        return tuple(PurgedFolder(str(folder), _size_bytes(folder)) for folder in folders if folder.exists())

    def status(self) -> tuple[ServerStatus, ...]:
        statuses = []
        for server in self._servers():
            memory = self._running_record(server)
            state: ServerState = "stopped" if memory is None else "running" if server.is_answering() else "silent"
            address, data = server.address if server.port else "", server.folder
            pid, started_ms = (memory.pid, memory.started_ms) if memory else (None, None)
            size, log = _size_bytes(data), str(server.log)
            statuses.append(ServerStatus(server.name, state, address, pid, started_ms, str(data), size, log))
        return tuple(statuses)

    def environment(self) -> dict[str, str]:
        kafka, bucket = self._servers()
        return {"SLACKWATER_STORE": bucket.store_root, "SLACKWATER_KAFKA": kafka.bootstrap, **bucket.environment}

    def _servers(self) -> tuple[EmbeddedKafka, EmbeddedS3]:
        return self._recorded_server(EmbeddedKafka), self._recorded_server(EmbeddedS3)

    def _recorded_server(self, kind: type[_Server]) -> _Server:
        key = kind.name.lower()
        memory = self._read_record(key)
        port = memory.port if memory else 0
        return kind(self.folder / key, port=port, log=self._control_folder / f"{key}.log", report=self._report)

    def _server_on_port(self, kind: type[EmbeddedServer], port: int | None, usual_port: int) -> EmbeddedServer:
        """Return a server with its port set: the port on which the server runs, else the port for its start.

        Raises `Refused` if the server runs on another port than `port`, or if `port` is taken.
        """
        recorded = self._recorded_server(kind)
        if self._running_record(recorded):
            if port not in (None, recorded.port):
                raise Refused(
                    f"{recorded.name} runs already, on port {recorded.port} and not on {port}",
                    hint="omit the port to keep the server, or stop it first with `slackwater dev down`",
                )
            return recorded
        if port is None:
            recorded.port, recorded.may_change_port = choose_port(*filter(None, (recorded.port, usual_port))), True
            return recorded
        if not is_port_free(port):
            raise Refused(
                f"{recorded.name} cannot listen on port {port} of {HOST}: it is taken",
                hint=f"choose another with --{kind.name.lower()}-port, or omit the option to use any free port",
            )
        recorded.port = port
        return recorded

    def _running_record(self, server: EmbeddedServer) -> _ProcessRecord | None:
        memory = self._read_record(server.folder.name)
        return memory if memory and find_process(memory.pid, memory.mark) else None

    def _wait_for(self, server: EmbeddedServer) -> None:
        deadline = time.monotonic() + START_PATIENCE_S
        while not server.is_answering():
            running = self._running_record(server)
            if running is None or time.monotonic() > deadline:
                raise Unavailable(
                    f"{server.name} runs on port {server.port} and does not answer"
                    if running
                    else f"{server.name} ended before it answered",
                    hint=f"restart it: `slackwater dev down`, then `slackwater dev up`; its log is {server.log}",
                )
            time.sleep(_POLL_S)

    def _stop(self, servers: Iterable[EmbeddedServer], patience_s: float = _STOP_PATIENCE_S) -> tuple[str, ...]:
        stopped = []
        for server in servers:
            memory = self._running_record(server)
            if memory:
                self._report(f"stopping {server.name}")
                terminate_process(memory.pid, memory.mark, patience_s)
                stopped.append(server.name)
            self._write_record(server, 0)
        return tuple(stopped)

    def _read_record(self, key: str) -> _ProcessRecord | None:
        try:
            return msgspec.json.decode((self._control_folder / f"{key}.json").read_bytes(), type=_ProcessRecord)
        except (FileNotFoundError, msgspec.DecodeError):
            return None

    def _write_record(self, server: EmbeddedServer, pid: int) -> None:
        memory = _ProcessRecord(pid=pid, mark=server.tag, port=server.port, started_ms=instants.now_ms() if pid else 0)
        with atomic_file(self._control_folder / f"{server.folder.name}.json", "--folder") as written:
            written.write_bytes(msgspec.json.encode(memory))

    def _locked(self) -> AbstractContextManager[None]:
        return lock_file(
            self._control_folder / "lock", lambda: self._report("waiting for another `slackwater dev` to end")
        )


def _size_bytes(folder: Path) -> int:
    total = 0
    for parent, _folders, names in os.walk(folder):
        for name in names:
            with suppress(FileNotFoundError):
                total += (Path(parent) / name).lstat().st_blocks * 512
    return total
