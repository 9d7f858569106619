"""The first-app page, followed step by step by a simulated new user: its files, commands and outputs."""

import itertools
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from slackwater.pipeline.dev.jars import cache_folder

from tests.documents.pages.blocks import Command, blocks, commands
from tests.support.running import SLACKWATER, eventually

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.timeout(900)]

PAGE = "docs/first-app.md"
INSTALLED = ("python3 -m venv", ". .venv/bin", ". ~/slackwater/.venv/bin", "pip install", "cd ..")
"""Prefixes of commands that are skipped, because slackwater is already installed."""
RUN = "slackwater run shop.py --max-records 5000"
"""Command that the page leaves running in another shell."""
SHELL = "test -f .slackwater/dev/env.sh && source .slackwater/dev/env.sh; "
"""Command that the page gives for every other shell."""
UNSTEADY = re.compile(r"\d[\d.,:TZ-]*\d[Z]?|\d")
"""Numbers and times in outputs that depend on the clock or on batch boundaries."""


@dataclass
class User:
    """A user at a shell with an empty home."""

    home: Path
    folder: Path = field(init=False)
    app: "subprocess.Popen[bytes] | None" = None
    sent: int = 0

    def __post_init__(self) -> None:
        self.folder = self.home / "shop"

    def environment(self) -> dict[str, str]:
        path = f"{SLACKWATER.parent}{os.pathsep}{os.environ['PATH']}"
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("SLACKWATER_", "AWS_"))}
        cache = {"XDG_CACHE_HOME": str(cache_folder().parent)}
        return {**kept, **cache, "HOME": str(self.home), "PATH": path}

    def types(self, words: str) -> str:
        """Run a command to its end; return its output."""
        folder = self.folder if self.folder.exists() else self.home
        command, both = ["bash", "-c", SHELL + words], {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        done = subprocess.run(command, cwd=folder, env=self.environment(), text=True, check=False, **both)
        assert done.returncode == 0, f"{words}\n{done.stdout}"
        return done.stdout

    def starts(self, words: str) -> None:
        """Start the app and leave it running."""
        with (self.folder / "run.txt").open("wb") as output:
            command = ["bash", "-c", f"{SHELL}exec {words}"]
            self.app = subprocess.Popen(command, cwd=self.folder, env=self.environment(), stdout=output, stderr=output)

    def printed(self) -> str:
        """Return the app's output so far."""
        text = (self.folder / "run.txt").read_text()
        assert self.app is not None
        assert self.app.poll() is None, text
        return text

    def commits(self) -> list[int]:
        """Return the row counts of the batches that the app has printed."""
        return [int(rows.replace(",", "")) for rows in re.findall(r"  ([\d,]+) rows  ", self.printed())]

    def stops(self) -> None:
        """Send Ctrl-C."""
        assert self.app is not None
        self.app.send_signal(signal.SIGINT)
        assert self.app.wait(60) == 0


@pytest.fixture
def user(tmp_path: Path) -> Iterator[User]:
    user = User(tmp_path)
    yield user
    if user.app is not None and user.app.poll() is None:
        user.app.kill()
        user.app.wait()
    user.types("slackwater dev down --purge")


def test_following_the_page_gives_the_outputs_that_it_shows(user: User) -> None:
    for command in (command for block in blocks("console", PAGE) for command in commands(block)):
        if command.words.startswith(INSTALLED):
            continue
        if command.words == RUN:
            user.starts(command.words)
            eventually(
                lambda: bool(user.commits()) and "everything is read" in user.printed(), "the app reads all orders"
            )
            assert_prints(command, user.printed())
            continue
        if command.words.startswith("slackwater dev down"):
            user.stops()
        assert_prints(command, user.types(command.words))
        if command.words.startswith("python feed.py orders "):
            user.sent = int(command.words.split()[4])
            if user.app is not None:
                eventually(lambda: sum(user.commits()) == user.sent, "the app reads the orders")


def assert_prints(command: Command, text: str) -> None:
    """Check that the page's lines are printed in order, and that the rows of a query match exactly.

    Elsewhere, lines that differ only in numbers count as one line, because a batch may have read one partition or both.
    """
    shape = exact if command.words.startswith("slackwater query") else without_numbers
    printed = iter([shape(line) for line in text.splitlines()])
    for shown, _ in itertools.groupby(shape(line) for line in command.output if line.strip() not in ("…", "")):
        assert shown in printed, f"$ {command.words}\nexpected {shown!r} in\n{text}"


def exact(line: str) -> str:
    return " ".join(line.split())


def without_numbers(line: str) -> str:
    return exact(re.sub(r"\b(?:ms|s|min)\b", "s", UNSTEADY.sub("0", line)))
