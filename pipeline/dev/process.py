"""Server processes: supervised while ours, and found by their mark once released."""

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, cast

import psutil

from ...errors import SlackwaterError
from . import launch

_POLL_S = 0.05


class SupervisedProcess:
    """A server process that ends with this process, even if that is killed, unless released.

    It runs in its own session, so that a Ctrl-C in the terminal reaches us and not the server.
    """

    def __init__(self, argv: Sequence[str], *, folder: Path, log: Path) -> None:
        """Start `argv` in `folder`, appending its output to `log`. Raises `SlackwaterError` if it cannot be run."""
        command, pipe = (sys.executable, "-I", "-S", launch.__file__, *argv), subprocess.PIPE
        with log.open("ab") as out:
            self._launcher = subprocess.Popen(
                command, bufsize=0, stdin=pipe, stdout=pipe, stderr=out, cwd=folder, start_new_session=True
            )
        self._orders = cast("IO[bytes]", self._launcher.stdin)
        self._answers = cast("IO[bytes]", self._launcher.stdout)
        try:
            pid_line = self._answers.readline()
        except BaseException:
            self.kill()
            raise
        if not pid_line:
            self.kill()
            raise SlackwaterError(f"{argv[0]} cannot be run", hint=f"the reason is in {log}")
        self.pid = int(pid_line)
        """Process id of the server."""

    def ended(self, patience_s: float = 0) -> int | None:
        """Return the server's exit code as a shell reports it, or None if it still runs after `patience_s`."""
        try:
            return self._launcher.wait(patience_s)
        except subprocess.TimeoutExpired:
            return None

    def kill(self) -> None:
        """Kill the server and wait until it has ended."""
        self._orders.close()
        self._finish()

    def release(self) -> None:
        """Let the server outlive this process. The object must not be used afterwards."""
        # If the server has ended by itself, the pipe is closed.
        with suppress(BrokenPipeError):
            self._orders.write(b"r")
        self._finish()

    def _finish(self) -> None:
        self._launcher.wait()
        self._orders.close()
        self._answers.close()


def find_process(pid: int, mark: str) -> psutil.Process | None:
    """Return the process of that id if `mark` is among its arguments, because the id may have been reused."""
    with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
        process = psutil.Process(pid)
        if process.status() != psutil.STATUS_ZOMBIE and mark in process.cmdline():
            return process
    return None


def terminate_process(pid: int, mark: str, patience_s: float) -> None:
    """Terminate a released server, if it runs, and wait until it has ended; kill it after `patience_s`."""
    is_terminated, deadline = False, time.monotonic() + patience_s
    while process := find_process(pid, mark):
        with suppress(psutil.NoSuchProcess):
            if not is_terminated:
                process.terminate()
            elif time.monotonic() > deadline:
                process.kill()
        is_terminated = True
        time.sleep(_POLL_S)


def logged(log: Path, since: int) -> str:
    """Return the end of the text appended to `log` after byte `since`, up to 64 KiB."""
    with log.open("rb") as file:
        file.seek(max(since, os.fstat(file.fileno()).st_size - 65_536))
        return file.read().decode(errors="replace")


def last_words(log: Path, since: int, num_lines: int = 6) -> str:
    """Return the last lines appended to `log` after byte `since`, without stack frames, indented."""
    lines = logged(log, since).splitlines()
    relevant = [line for line in lines if line.strip() and not line.lstrip().startswith(("at ", "... "))]
    return "\n".join(f"  {line}" for line in relevant[-num_lines:])
