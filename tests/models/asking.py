"""A process that runs command lines on request, to measure their time and memory.

`python -m tests.models.asking` reads one command line per line of input, and writes one answer per line. It runs all
commands in one process, since starting a process for each would take most of the time. `python -m tests.models.asking
2` answers like a later release whose objects have format 2.
"""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple

from slackwater.store.versions import codec

TOO_LONG_S = 10.0
"""Limit in seconds of processor time, because the machine may be busy."""
_PATIENCE_S = 60.0
TOO_LARGE_MIB = 512
_GIVE_UP_MIB = 1024
"""Memory above the memory at the start at which the process ends itself."""


class Answer(NamedTuple):
    """An answer, with the time and memory that it took."""

    exit: int
    stdout: str
    stderr: str
    seconds: float
    more_mib: int
    """Peak memory above the memory in use before."""


class Asking:
    """Runs command lines in such a process, and replaces the process if it ends or does not answer."""

    def __init__(self, cache: Path, stored_format: int = codec.FORMAT) -> None:
        self._cache, self._format = cache, stored_format
        self._process: subprocess.Popen[str] | None = None
        self._answers: SimpleQueue[str] = SimpleQueue()

    def __call__(self, store: Path, words: Sequence[str]) -> Answer:
        if self._process is None:
            self._start()
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([str(store), list(words)]) + "\n")
        self._process.stdin.flush()
        try:
            line = self._answers.get(timeout=_PATIENCE_S)
        except Empty:
            line = ""
        if not line:
            self.close()
            return Answer(-1, "", "no answer: it took too long, or too much memory", _PATIENCE_S, _GIVE_UP_MIB)
        return Answer(*json.loads(line))

    def _start(self) -> None:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("SLACKWATER_")}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.models.asking", str(self._format)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[2],
            env=environment | {"SLACKWATER_CACHE": str(self._cache)},
        )
        self._answers = SimpleQueue()
        threading.Thread(target=_pass_on, args=(self._process.stdout, self._answers), daemon=True).start()

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None


def _pass_on(lines: Any, answers: "SimpleQueue[str]") -> None:
    for line in lines:
        answers.put(line)
    answers.put("")


def _status_mib(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) >> 10
    raise AssertionError(f"no {field} in /proc/self/status")


def _watch(limit_mib: int) -> None:
    while True:
        time.sleep(0.02)
        if _status_mib("VmRSS") > limit_mib:
            os._exit(99)


def _answer_all() -> None:
    from slackwater.cli import main
    from typer.testing import CliRunner

    lines = os.fdopen(os.dup(1), "w")
    first = True
    for question in sys.stdin:
        store, words = json.loads(question)
        if first:
            # Imports and one-time allocations do not count as memory of an answer.
            CliRunner().invoke(main.app, ["query", "types", "FROM rows"], env={"SLACKWATER_STORE": store})
            threading.Thread(target=_watch, args=(_status_mib("VmRSS") + _GIVE_UP_MIB,), daemon=True).start()
            first = False
        Path("/proc/self/clear_refs").write_text("5")  # VmHWM counts from here
        before = _status_mib("VmRSS")
        began = time.process_time()
        result = CliRunner().invoke(main.app, words, env={"SLACKWATER_STORE": store})
        took = time.process_time() - began
        more = _status_mib("VmHWM") - before
        stderr = result.stderr
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            stderr += f"escaped: {result.exception!r}"
        lines.write(json.dumps([result.exit_code, result.stdout[-100_000:], stderr[-10_000:], took, more]) + "\n")
        lines.flush()


if __name__ == "__main__":
    codec.FORMAT = int(sys.argv[1])
    _answer_all()
