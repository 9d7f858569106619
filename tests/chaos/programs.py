"""Processes for chaos tests to kill: each has its own log, and is restarted when it has exited."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import psutil
from slackwater.pipeline.dev.jvm_server import SupervisedProcess

from tests.end_to_end.under_fire.spark_cluster import words_of
from tests.support.running import SLACKWATER

_EXECUTOR = "org.apache.spark.executor.CoarseGrainedExecutorBackend"
_CRASH_CODES = (128 + signal.SIGSEGV, 128 + signal.SIGABRT, 128 + signal.SIGBUS)
_BUGS = re.compile(rb"this is a bug|Fatal Python error|SIGSEGV|malloc\(\)|double free")
_TRACEBACK = b"Traceback (most recent call last)"

Environment = dict[str, str]


@dataclass
class Program:
    """A program that is restarted whenever it exits, as a service manager does.

    Attributes:
        words: Function that returns the command for the next start, or None if the program must not be started again.
        environment: Variables beside those of this process.
        problems: Crashes and unexpected lines of the log.
    """

    name: str
    words: Callable[[], tuple[str, ...] | None]
    folder: Path
    environment: Environment = field(default_factory=dict)
    process: SupervisedProcess | None = None
    exits: list[int] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    log_start: int = 0
    is_killed: bool = False
    """True from a kill until the next start. During this time the log may end in the middle of a line."""

    @property
    def log(self) -> Path:
        return self.folder / f"{self.name}.log"

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.poll_exit_code() is None

    def said(self) -> bytes:
        """Return the log since the last start."""
        if not self.log.exists():
            return b""
        with self.log.open("rb") as log:
            log.seek(self.log_start)
            return log.read()

    def start(self) -> bool:
        """Start the program; returns False if it must not be started again."""
        words = self.words()
        if words is None:
            return False
        self.log.touch()
        self.log_start, self.is_killed = self.log.stat().st_size, False
        variables = (f"{name}={value}" for name, value in self.environment.items())
        self.process = SupervisedProcess(("env", *variables, *words), folder=self.folder, log=self.log)
        return True

    def keep_up(self) -> bool:
        """Start the program again if it has ended; returns False once it has ended for good."""
        if self.is_running:
            return True
        self.note_end()
        return self.start()

    def note_end(self) -> None:
        """Record the exit code, and unexpected lines of the log."""
        if self.process is None:
            return
        code = self.process.poll_exit_code(30)
        self.exits.append(-1 if code is None else code)
        said = self.said()
        if code in _CRASH_CODES or (found := _BUGS.search(said)) or (_TRACEBACK in said and not self.is_killed):
            at = found.start() if code not in _CRASH_CODES and found else max(said.rfind(_TRACEBACK), 0)
            excerpt = said[max(at - 200, 0) : at + 3_000].decode(errors="replace")
            self.problems.append(f"{self.name} ended with {code}:\n{excerpt}")
        self.process.kill()
        self.process = None

    def processes(self) -> list[psutil.Process]:
        """Return the program's process, followed by all processes that it started."""
        if self.process is None or not self.is_running:
            return []
        with suppress(psutil.NoSuchProcess):
            own = psutil.Process(self.process.pid)
            return [own, *own.children(recursive=True)]
        return []

    def kill(self) -> bool:
        """Send SIGKILL to the program's own process; returns False if the process does not run."""
        return kill_one(self.processes()[:1], self)

    def stop(self, patience_s: float) -> bool:
        """Send SIGTERM and wait for the program to end. Returns False if it had to be killed."""
        for process in self.processes()[:1]:
            process.terminate()
        in_time = self.process is None or self.process.poll_exit_code(patience_s) is not None
        if self.process is not None:
            if in_time:
                self.note_end()
            else:
                self.process.kill()
        return in_time


def kill_one(victims: list[psutil.Process], program: Program, chance: Random | None = None) -> bool:
    """Send SIGKILL to a random one of these processes. Returns False if there is none."""
    with suppress(psutil.NoSuchProcess):
        if victims:
            program.is_killed = True
            (chance.choice(victims) if chance else victims[0]).kill()
            return True
    return False


@dataclass
class Driver(Program):
    """`slackwater run`, with its JVM, executors and Python processes."""

    app_folder: str = ""
    struck_at: int = 0
    """Number of commits at the last kill of a Spark process."""

    def commits(self) -> int:
        """Return the number of commits since the last start."""
        return self.said().count(b'"version":')

    def victims(self, kind: str) -> list[psutil.Process]:
        """Return the processes of one kind: driver, jvm, executor or worker (a Python process)."""
        own, *started = [*self.processes(), None]
        if own is None:
            return []
        kinds: dict[str, list[psutil.Process]] = {"driver": [own], "jvm": [], "executor": [], "worker": []}
        for process in filter(None, started):
            words = words_of(process)
            if _EXECUTOR in words:
                kinds["executor"].append(process)
            elif words and Path(words[0]).name == "java":
                kinds["jvm"].append(process)
            elif words and "python" in Path(words[0]).name:
                kinds["worker"].append(process)
        return kinds[kind]


@dataclass
class Verb:
    """A run of a verb that may be killed, and is then repeated until it succeeds."""

    words: tuple[str, ...]
    program: Program
    kill_at_s: float | None
    """CPU time after which the verb is killed, or None for never. CPU time does not depend on the machine's load."""
    tries: int = 1

    @property
    def name(self) -> str:
        return " ".join(self.words[: 2 if self.words[0] == "snapshot" or self.words[1] == "rm" else 1])

    def kill_if_due(self) -> bool:
        """Kill the verb if its time has come. Returns True if it was killed."""
        own = self.program.processes()[:1]
        if self.kill_at_s is None or not own:
            return False
        with suppress(psutil.NoSuchProcess):
            if sum(own[0].cpu_times()[:2]) < self.kill_at_s:
                return False
        self.kill_at_s = None
        return self.program.kill()


def verb(words: tuple[str, ...], folder: Path, environment: Environment, kill_at_s: float | None) -> Verb:
    """Start a verb."""
    once = iter([(str(SLACKWATER), *words, "--json")])
    program = Program(f"verb-{'-'.join(words[:2])}".replace("/", "-"), lambda: next(once, None), folder, environment)
    started = Verb(words, program, kill_at_s)
    program.start()
    return started


def marked(mark: str) -> Iterator[psutil.Process]:
    """Yield the processes that have the mark in their environment, except this one."""
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            if process.pid != os.getpid() and process.environ().get("SLACKWATER_CHAOS") == mark:
                yield process
