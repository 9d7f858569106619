"""Helpers that run verbs in this process, through typer's runner, or in a new process."""

import json
import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from slackwater.cli import main
from slackwater.client import app  # noqa: F401  before a test replaces the class that one of its own derives from
from typer.testing import CliRunner, Result

from tests.support.histories import Flight

BAD = "SELECT carrier, delay FROM carriers WHERE delay > 1000"
BROKEN = Flight("N001", "C1", 5000)
"""The app's bad flight."""
MODULE = [sys.executable, "-m", "slackwater.cli.main"]


def slackwater(*args: str, text: str | bytes | None = None) -> Result:
    """Run a verb in this process; `text` is its standard input."""
    return CliRunner().invoke(main.app, args, input=text)


def done(*args: str) -> str:
    """Run a verb that must succeed; return its output."""
    result = slackwater(*args)
    assert result.exit_code == 0, result.output
    return result.stdout


def from_json(*args: str) -> Any:
    """Run a verb with `--json` that must succeed; return the document."""
    return json.loads(done(*args, "--json"))


def rows_of(ref: str, *args: str) -> Any:
    """Return the rows of a query."""
    return from_json("query", ref, *args)["rows"]


@contextmanager
def process(*args: str) -> Iterator[subprocess.Popen[str]]:
    """Run a verb in a new process, which ends together with the block."""
    with subprocess.Popen([*MODULE, *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as started:
        try:
            yield started
        finally:
            started.kill()


class Terminal:
    """A verb in a new process group with its own terminal."""

    def __init__(self, *args: str, environment: Mapping[str, str] | None = None) -> None:
        self.text = ""
        self._end, its_end = pty.openpty()
        streams: Any = dict.fromkeys(("stdin", "stdout", "stderr"), its_end)
        self.process = subprocess.Popen([*MODULE, *args], **streams, env=environment, start_new_session=True)
        os.close(its_end)

    def __enter__(self) -> "Terminal":
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        os.close(self._end)

    def read_until(self, pattern: str) -> str:
        """Return the first group of the pattern when the verb has written it."""
        while (found := re.search(pattern, self.text)) is None:
            try:
                self.text += os.read(self._end, 65_536).decode()
            except OSError:  # on Linux, this error means that the other side was closed
                raise AssertionError(f"it ended before it wrote {pattern!r}:\n{self.text}") from None
        return found[1]

    def interrupt(self) -> str:
        """Send Ctrl-C to all processes of the group; return their output until all have ended."""
        before = len(self.text)
        os.killpg(self.process.pid, signal.SIGINT)
        with suppress(OSError):
            while written := os.read(self._end, 65_536):
                self.text += written.decode()
        return self.text[before:]
