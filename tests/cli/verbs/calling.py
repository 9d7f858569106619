"""Verbs as they are typed: through typer's runner, and as processes."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from slackwater.cli import main
from slackwater.client import app  # noqa: F401  before a test replaces the class that one of its own derives from
from typer.testing import CliRunner, Result

from tests.support.histories import Flight

BAD = "SELECT carrier, delay FROM carriers WHERE delay > 1000"
BROKEN = Flight("N001", "C1", 5000)
"""The one flight of the app that this finds."""
MODULE = [sys.executable, "-m", "slackwater.cli.main"]


def slackwater(*args: str, text: str | bytes | None = None) -> Result:
    """Run a verb in this process; `text` is its standard input."""
    return CliRunner().invoke(main.app, args, input=text)


def done(*args: str) -> str:
    """What a verb that must succeed prints."""
    result = slackwater(*args)
    assert result.exit_code == 0, result.output
    return result.stdout


def from_json(*args: str) -> Any:
    """What a verb that must succeed prints with `--json`."""
    return json.loads(done(*args, "--json"))


def rows_of(ref: str, *args: str) -> Any:
    """The rows that a query returns."""
    return from_json("query", ref, *args)["rows"]


@contextmanager
def process(*args: str) -> Iterator[subprocess.Popen[str]]:
    """A verb in a process of its own, which does not outlive the block."""
    with subprocess.Popen([*MODULE, *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as started:
        try:
            yield started
        finally:
            started.kill()
