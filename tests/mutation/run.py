"""Mutation testing with mutmut (`make mutants`): checks that every small change of the code makes some test fail.

`python -m tests.mutation.run commit merge` runs these groups of `modules.toml` only; `--sample 100` limits the number
of mutants of each group. It prints the table for `docs/testing.md`, and the diff of every surviving mutant. mutmut's
files stay under `.cache/mutants/GROUP`, where `mutmut browse` shows them.

The package is the repository's root, for which mutmut has no package name. Each group therefore has a workspace with
the package in `slackwater/`, beside the tests.
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
from contextlib import chdir
from dataclasses import dataclass
from pathlib import Path
from random import Random

from mutmut.configuration import reset_config
from mutmut.mutation.file_mutation import mutate_file_contents
from mutmut.utils.format_utils import get_mutant_name

ROOT = Path(__file__).parents[2]
WORKSPACES = ROOT / ".cache" / "mutants"
WORTH_A_LOOK = ("survived", "not run", "odd")
MUTMUT = Path(sys.executable).with_name("mutmut")

_NOT_THE_PACKAGE = (".*", "__pycache__", "*.egg-info", "build", "dist", "out", "docs", "examples", "bench", "tests")
_SETTINGS = """
[tool.mutmut]
source_paths = ["slackwater"]
only_mutate = {modules}
pytest_add_cli_args = [
    "-p", "tests.mutation.fastest_first", "-p", "no:cacheprovider", "--timeout=300",
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
    """Modules that share tests; paths are relative to the workspace."""

    name: str
    modules: tuple[str, ...]
    tests: tuple[str, ...]

    @property
    def workspace(self) -> Path:
        """Return the folder in which mutmut works."""
        return WORKSPACES / self.name

    def prepare(self) -> None:
        """Create the workspace again."""
        shutil.rmtree(self.workspace, ignore_errors=True)
        shutil.copytree(ROOT, self.workspace / "slackwater", ignore=shutil.ignore_patterns(*_NOT_THE_PACKAGE))
        shutil.copytree(ROOT / "tests", self.workspace / "tests", ignore=shutil.ignore_patterns("__pycache__"))
        (self.workspace / "tmp").mkdir()
        settings = _SETTINGS.format(modules=json.dumps(self.modules), tests=json.dumps(self.tests))
        project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
        (self.workspace / "pyproject.toml").write_text(project + settings, encoding="utf-8")

    def mutmut(self, *words: str, quiet: bool = False) -> str:
        """Run mutmut in the workspace; return its output if `quiet`."""
        environment = os.environ | {
            "TMPDIR": str(self.workspace / "tmp"),
            "SLACKWATER_PROFILE": "mutants",
            "SLACKWATER_SCHEDULES": "0.2",
        }
        ran = subprocess.run(
            [str(MUTMUT), *words], cwd=self.workspace, env=environment, text=True, capture_output=quiet, check=True
        )
        return ran.stdout if quiet else ""

    def mutants(self) -> list[str]:
        """Return the names of all mutants."""
        with chdir(self.workspace):
            reset_config()  # mutmut reads it from the folder it is in
            return [
                get_mutant_name(Path(module), name)
                for module in self.modules
                for name in mutate_file_contents(module, Path(module).read_text(encoding="utf-8")).mutant_names
            ]

    def outcomes(self, module: str) -> dict[str, int | None]:
        """Return the tests' exit code for each mutant of a module; None if the mutant was not run."""
        meta = json.loads((self.workspace / "mutants" / f"{module}.meta").read_text(encoding="utf-8"))
        found: dict[str, int | None] = meta["exit_code_by_key"]
        return found


def groups() -> dict[str, Group]:
    """Return the groups of `modules.toml`."""
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
    """Mutate, run the tests, and print the table."""
    known = groups()
    parser = argparse.ArgumentParser(prog="python -m tests.mutation.run", description="Do the tests notice mutants?")
    parser.add_argument("groups", nargs="*", metavar="GROUP", help=f"of {', '.join(known)}; all without one")
    parser.add_argument("--jobs", type=int, default=min(4, os.cpu_count() or 1), help="mutants tried at once")
    parser.add_argument("--sample", type=int, default=0, help="so many mutants of each group, always the same ones")
    options = parser.parse_args()
    if unknown := [name for name in options.groups if name not in known]:
        parser.error(f"there is no group {', '.join(unknown)}")
    rows: list[tuple[str, dict[str, int | None]]] = []
    survivors: list[tuple[Group, str]] = []
    for group in (known[name] for name in options.groups or known):
        began_s = time.monotonic()
        group.prepare()
        names = group.mutants()
        chosen = Random(1985).sample(names, options.sample) if 0 < options.sample < len(names) else []
        group.mutmut("run", "--max-children", str(options.jobs), *chosen)
        print(f"{group.name}: {time.monotonic() - began_s:.0f} s", flush=True)
        for module in group.modules:
            outcomes = group.outcomes(module)
            rows.append((module.removeprefix("slackwater/"), outcomes))
            survivors += [(group, name) for name, code in outcomes.items() if _outcome(code) in WORTH_A_LOOK]
    for group, name in survivors:
        print(group.mutmut("show", name, quiet=True))
    print(*_table(rows), sep="\n")
    return 0


_OUTCOMES = {0: "survived", 1: "killed", 3: "killed", 33: "not run", 36: "timed out", -24: "timed out"}
"""Outcomes by exit code. Codes above 30 are mutmut's own; negative ones are signals."""


def _outcome(code: int | None) -> str:
    return "left out" if code is None else _OUTCOMES.get(code, "odd")


def _table(rows: list[tuple[str, dict[str, int | None]]]) -> list[str]:
    """Return the score of each module, in Markdown."""
    columns = ("killed", "timed out", "survived", "not run", "odd")
    lines = [f"| module | mutants | tried | {' | '.join(columns)} | score |", "|---|" + "--:|" * (len(columns) + 3)]
    everything = {mutant: code for _, outcomes in rows for mutant, code in outcomes.items()}
    for name, outcomes in [*rows, ("all", everything)]:
        found = Counter(map(_outcome, outcomes.values()))
        tried = found.total() - found["left out"]
        score = 100 * (found["killed"] + found["timed out"]) / (tried or 1)
        counts = (found.total(), tried, *(found[column] for column in columns))
        lines.append(f"| {name} | {' | '.join(map(str, counts))} | {score:.0f} % |")
    return lines


if __name__ == "__main__":
    raise SystemExit(main())
