"""Mutation testing with mutmut: does a test fail for every small change of the code? `make mutants`.

`python -m tests.mutation.run commit merge` runs some groups of `modules.toml` only, `--sample 100` that many mutants of
each. Prints the table that `docs/testing.md` keeps, and the change of every mutant that survived. What mutmut wrote
stays under `.cache/mutants/GROUP`, where `mutmut browse` shows it.

The package is the repository's root, which mutmut takes for a folder without a name: so each group has a workspace in
which it lies as `slackwater/`, beside the tests.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
import tomllib
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
WORKSPACES = ROOT / ".cache" / "mutants"
MUTMUT = Path(sys.executable).with_name("mutmut")

_NOT_THE_PACKAGE = (".*", "__pycache__", "*.egg-info", "build", "dist", "out", "docs", "examples", "bench", "tests")
_SETTINGS = """
[tool.mutmut]
source_paths = ["slackwater"]
only_mutate = {modules}
pytest_add_cli_args = [
    "--hypothesis-profile=mutants", "-p", "tests.mutation.fastest_first", "-p", "no:cacheprovider", "--timeout=60",
    "-m", "not kafka and not spark and not soak and not s3",
]
pytest_add_cli_args_test_selection = {tests}
# Workers are made by a process that has run no test: threads of Arrow and DuckDB do not survive a fork.
process_isolation = "forkserver"
use_git_change_detection = false
timeout_multiplier = 10.0
timeout_constant = 5.0
"""


@dataclass(frozen=True, slots=True)
class Group:
    """Modules that the same tests are about; the paths are those of the workspace."""

    name: str
    modules: tuple[str, ...]
    tests: tuple[str, ...]

    @property
    def workspace(self) -> Path:
        """Where mutmut works on it."""
        return WORKSPACES / self.name

    def prepare(self) -> None:
        """Make the workspace anew."""
        shutil.rmtree(self.workspace, ignore_errors=True)
        shutil.copytree(ROOT, self.workspace / "slackwater", ignore=shutil.ignore_patterns(*_NOT_THE_PACKAGE))
        ignore = shutil.ignore_patterns("__pycache__", "kept")
        shutil.copytree(ROOT / "tests", self.workspace / "tests", ignore=ignore)
        (self.workspace / "tmp").mkdir()
        settings = _SETTINGS.format(modules=json.dumps(self.modules), tests=json.dumps(self.tests))
        project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
        (self.workspace / "pyproject.toml").write_text(project + settings, encoding="utf-8")

    def mutmut(self, *words: str, quiet: bool = False) -> str:
        """Run mutmut in the workspace; what it printed, when `quiet`."""
        environment = os.environ | {
            "TMPDIR": str(self.workspace / "tmp"),
            "SLACKWATER_PROFILE": "mutants",
            "SLACKWATER_SCHEDULES": "0.05",
        }
        ran = subprocess.run(
            [str(MUTMUT), *words], cwd=self.workspace, env=environment, text=True, capture_output=quiet, check=True
        )
        return ran.stdout if quiet else ""

    def outcomes(self, module: str) -> dict[str, int | None]:
        """The exit code of the tests for each mutant of a module; None for one that was not tried."""
        meta = json.loads((self.workspace / "mutants" / f"{module}.meta").read_text(encoding="utf-8"))
        found: dict[str, int | None] = meta["exit_code_by_key"]
        return found


def groups() -> dict[str, Group]:
    """Those of `modules.toml`."""
    with (Path(__file__).parent / "modules.toml").open("rb") as file:
        declared = tomllib.load(file)
    return {
        name: Group(
            name,
            tuple(f"slackwater/{module}" for module in group["modules"]),
            tuple(f"tests/{test}" for test in group["tests"]),
        )
        for name, group in declared.items()
    }


def main() -> int:
    """Mutate, run, print."""
    known = groups()
    parser = argparse.ArgumentParser(prog="python -m tests.mutation.run", description="Do the tests notice mutants?")
    parser.add_argument("groups", nargs="*", metavar="GROUP", help=f"of {', '.join(known)}; all without one")
    parser.add_argument("--jobs", type=int, default=min(4, os.cpu_count() or 1), help="mutants tried at once")
    options = parser.parse_args()
    if unknown := [name for name in options.groups if name not in known]:
        parser.error(f"there is no group {', '.join(unknown)}")
    rows, survivors = [], []
    for group in (known[name] for name in options.groups or known):
        began_s = time.monotonic()
        group.prepare()
        group.mutmut("run", "--max-children", str(options.jobs))
        print(f"{group.name}: {time.monotonic() - began_s:.0f} s", flush=True)
        for module in group.modules:
            outcomes = group.outcomes(module)
            rows.append((module.removeprefix("slackwater/"), outcomes))
            survivors += [(group, name) for name, code in outcomes.items() if _outcome(code) != "killed"]
    for group, name in survivors:
        print(group.mutmut("show", name, quiet=True))
    print(*_table(rows), sep="\n")
    return 0


def _outcome(code: int | None) -> str:
    """What the exit code of a mutant's tests says; mutmut's own are above 30, those below 0 are signals."""
    if code is None:
        return "not tried"
    return {0: "survived", 1: "killed", 3: "killed", 33: "not run", -24: "timed out", 36: "timed out"}.get(code, "odd")


def _table(rows: list[tuple[str, dict[str, int | None]]]) -> list[str]:
    """The score of each module, in Markdown."""
    lines = ["| module | mutants | killed | timed out | not run | survived | score |", "|---|--:|--:|--:|--:|--:|--:|"]
    total: Counter[str] = Counter()
    for module, outcomes in rows:
        found = Counter(map(_outcome, outcomes.values()))
        total += found
        lines.append(_row(f"`{module}`", found))
    return [*lines, _row("all", total)]


def _row(name: str, found: Counter[str]) -> str:
    noticed = found["killed"] + found["timed out"]
    rest = found.total() - noticed - found["not run"]
    score = 100 * noticed / (found.total() or 1)
    counts = (found.total(), found["killed"], found["timed out"], found["not run"], rest)
    return f"| {name} | {' | '.join(map(str, counts))} | {score:.0f} % |"


if __name__ == "__main__":
    raise SystemExit(main())
