"""Do the tests notice? Plants the faults of `planted.py` one at a time in a copy of the tree and runs tests there.

`make mutants`, or `python -m tests.mutants --only marker` for the faults whose description has that word. Exits 1 when
fewer than 95 % are noticed, when a fault has no place in the tree any more, or when tests fail without any fault.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

from rich.console import Console
from rich.progress import BatchReport
from rich.table import Table

from tests.fault import Fault
from tests.planted import FAULTS

ROOT = Path(__file__).parent.parent
LIMIT_S = 120
"""For the tests of one fault; all of them without one have ten times as long."""
ENOUGH = 0.95

_LEFT_OUT = shutil.ignore_patterns(".*", "__pycache__", "*.egg-info", "build", "dist", "out", "docs", "examples")
_FIRST = re.compile(r"^(?:FAILED|ERROR) tests/([^\s]+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Ran:
    """What became of a run of tests: `noticed` is the first that failed, empty when all passed."""

    noticed: str
    seconds: float


class Tree:
    """A copy of the project, in which the tests import the copy."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._root = folder / "slackwater"
        shutil.copytree(ROOT, self._root, ignore=_LEFT_OUT)
        shutil.copy(ROOT / "pyproject.toml", self._root)
        self._writes = 0
        self._environment = {**os.environ, "PYTHONPATH": str(folder), "SLACKWATER_SCHEDULES": "0.15"}
        where = [sys.executable, "-c", "import slackwater.pipeline.kafka.messages as wire; print(wire.__file__)"]
        found = subprocess.run(where, cwd=self._root, env=self._environment, capture_output=True, text=True, check=True)
        if not found.stdout.startswith(str(self._root)):
            raise SystemExit(f"tests in {self._root} would import {found.stdout.strip()}")

    def plant(self, fault: Fault) -> Ran:
        """Run the fault's tests on the tree with the fault in it."""
        file = self._root / fault.file
        sound = file.read_text(encoding="utf-8")
        self._write(file, sound.replace(fault.old, fault.new))
        try:
            return self.run(fault.tests)
        finally:
            self._write(file, sound)

    def _write(self, file: Path, text: str) -> None:
        """Replace a file, and give it a time of its own: compiled files are taken for fresh by time and size."""
        file.write_text(text, encoding="utf-8")
        self._writes += 1
        os.utime(file, (self._writes, self._writes))

    def run(self, tests: tuple[str, ...], limit_s: float = LIMIT_S) -> Ran:
        """Run these test files until one test fails, for so long at most.

        Raises:
            RuntimeError: pytest could not run them.
        """
        command = [sys.executable, "-m", "pytest", "-x", "-q", "--tb=no", "-p", "no:cacheprovider", "--timeout", "60"]
        command += ["--hypothesis-profile=mutants", f"--basetemp={self._folder / 'tmp'}"]
        started = time.monotonic()
        process = subprocess.Popen(
            [*command, *(f"tests/{name}" for name in tests)],
            cwd=self._root,
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            output, _ = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            return Ran("(no end within the time limit)", time.monotonic() - started)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.communicate()
        first = _FIRST.search(output)
        if process.returncode not in (0, 1) or (process.returncode == 1) != (first is not None):
            raise RuntimeError(f"pytest ended with {process.returncode}:\n{output}")
        return Ran(first[1] if first else "", time.monotonic() - started)


def misplaced(faults: tuple[Fault, ...]) -> list[str]:
    """Each fault that cannot be planted, as a sentence."""
    found = []
    for fault in faults:
        times = (ROOT / fault.file).read_text(encoding="utf-8").count(fault.old)
        if times != 1:
            found.append(f"{fault.what}: {fault.file} has the text to replace {times} times, expected once")
        found += [
            f"{fault.what}: there is no tests/{name}" for name in fault.tests if not (ROOT / "tests" / name).exists()
        ]
    return found


def show(console: Console, ran: dict[Fault, Ran]) -> None:
    """The table: fault, file, and who noticed."""
    table = Table("fault", "in", "noticed by", "s", title="Faults planted")
    for fault, found in ran.items():
        noticed = found.noticed.replace("::", "\n") or "[bold red]SURVIVED[/]"
        table.add_row(fault.what, fault.file, noticed, f"{found.seconds:.1f}")
    console.print(table)


def main() -> int:
    """Plant, run, print."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description="Do the tests notice planted faults?")
    parser.add_argument("--only", default="", help="faults whose description or file has this in it")
    parser.add_argument("--jobs", type=int, default=min(2, os.cpu_count() or 1), help="runs of tests at once")
    options = parser.parse_args()
    console = Console()
    faults = tuple(fault for fault in FAULTS if options.only in fault.what or options.only in fault.file)
    if errors := misplaced(faults) or ([] if faults else [f"no fault is about {options.only!r}"]):
        console.print("\n".join(errors), style="red", markup=False)
        return 1
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="slackwater-mutants-") as name, BatchReport(console=console) as progress:
        trees: SimpleQueue[Tree] = SimpleQueue()
        for number in range(options.jobs):
            trees.put(Tree(Path(name) / str(number)))
        task = progress.add_task("the tests without a fault", total=len(faults) + 1)
        tree = trees.get()
        sound = tree.run(tuple(sorted({test for fault in faults for test in fault.tests})), 10 * LIMIT_S)
        trees.put(tree)
        if sound.noticed:
            console.print(f"{sound.noticed} fails without any fault", style="red", markup=False)
            return 1
        progress.update(task, description="faults", advance=1)

        def plant(fault: Fault) -> Ran:
            tree = trees.get()
            try:
                return tree.plant(fault)
            finally:
                trees.put(tree)
                progress.advance(task)

        with ThreadPoolExecutor(options.jobs) as pool:
            ran = dict(zip(faults, pool.map(plant, faults), strict=True))
    show(console, ran)
    noticed = sum(bool(found.noticed) for found in ran.values())
    console.print(f"{noticed} of {len(ran)} noticed, in {time.monotonic() - started:.0f} s")
    return 0 if noticed >= ENOUGH * len(ran) else 1


if __name__ == "__main__":
    raise SystemExit(main())
