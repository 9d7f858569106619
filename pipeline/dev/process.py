"""Processes of servers: supervised while ours, found by their mark once released."""

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
    """A server that ends when this process does, however that happens, unless it is released.

    It runs in a session of its own, so that a Ctrl-C in the terminal reaches us and not the server.
    """

    def __init__(self, argv: Sequence[str], *, folder: Path, log: Path) -> None:
        """Start `argv` in `folder`, its output appended to `log`. Raises `SlackwaterError` when it cannot be run."""
        command, pipe = (sys.executable, "-I", "-S", launch.__file__, *argv), subprocess.PIPE
        with log.open("ab") as out:
            self._launcher = subprocess.Popen(
                command, bufsize=0, stdin=pipe, stdout=pipe, stderr=out, cwd=folder, start_new_session=True
            )
        self._orders = cast("IO[bytes]", self._launcher.stdin)
        self._answers = cast("IO[bytes]", self._launcher.stdout)
        try:
            said = self._answers.readline()
        except BaseException:
            self.kill()
            raise
        if not said:
            self.kill()
            raise SlackwaterError(f"{argv[0]} cannot be run", hint=f"the reason is in {log}")
        self.pid = int(said)
        """The server's process id."""

    def ended(self, patience_s: float = 0) -> int | None:
        """The server's exit code as a shell would say it, or None if it still runs after `patience_s`."""
        try:
            return self._launcher.wait(patience_s)
        except subprocess.TimeoutExpired:
            return None

    def kill(self) -> None:
        """End the server at once, and wait until it is gone."""
        self._orders.close()
        self._finish()

    def release(self) -> None:
        """Let the server live on when this process ends. Nothing may be asked of this object afterwards."""
        # A server that has ended by itself took the pipe's other end with it.
        with suppress(BrokenPipeError):
            self._orders.write(b"r")
        self._finish()

    def _finish(self) -> None:
        self._launcher.wait()
        self._orders.close()
        self._answers.close()


def find(pid: int, mark: str) -> psutil.Process | None:
    """The process of that id if it has `mark` among its arguments: another may have got the id since."""
    with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
        process = psutil.Process(pid)
        if process.status() != psutil.STATUS_ZOMBIE and mark in process.cmdline():
            return process
    return None


def terminate(pid: int, mark: str, patience_s: float) -> None:
    """Ask a released server, if there is one, to end and wait until it is gone; after `patience_s` it is killed."""
    asked, deadline = False, time.monotonic() + patience_s
    while process := find(pid, mark):
        with suppress(psutil.NoSuchProcess):
            if not asked:
                process.terminate()
            elif time.monotonic() > deadline:
                process.kill()
        asked = True
        time.sleep(_POLL_S)


def logged(log: Path, since: int) -> str:
    """The end of what was appended to `log` after byte `since`, up to 64 KiB."""
    with log.open("rb") as file:
        file.seek(max(since, os.fstat(file.fileno()).st_size - 65_536))
        return file.read().decode(errors="replace")


def last_words(log: Path, since: int, num_lines: int = 6) -> str:
    """The last lines that were appended to `log` after byte `since`, without stack frames, each indented."""
    lines = logged(log, since).splitlines()
    telling = [line for line in lines if line.strip() and not line.lstrip().startswith(("at ", "... "))]
    return "\n".join(f"  {line}" for line in telling[-num_lines:])
