"""The source tree: small folders and files, each with a docstring, and all of them packaged."""

import ast
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from tests.support.static import PARTS, ROOT

MOST_MODULES = 15
MOST_LINES = 600
AROUND = ("__init__.py", "__main__.py", "conftest.py")
ONE_A_VERB = Path("tests/cli/verbs")
"""Folder with one file per verb."""

PACKAGE = sorted([*ROOT.glob("*.py"), *(path for part in PARTS for path in (ROOT / part).rglob("*.py"))])
TESTS = sorted((ROOT / "tests").rglob("*.py"))
BENCH = sorted((ROOT / "bench").rglob("*.py"))
PACKAGE_FOLDERS = sorted({path.parent for path in PACKAGE})


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


@cache
def said(path: Path) -> tuple[str, tuple[str, ...]]:
    """Return a module's docstring and the names of its classes."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return ast.get_docstring(tree) or "", tuple(node.name for node in tree.body if isinstance(node, ast.ClassDef))


def test_no_folder_has_too_many_modules() -> None:
    counts = Counter(path.parent for path in PACKAGE + TESTS + BENCH if path.name not in AROUND)
    many = {folder.relative_to(ROOT): count for folder, count in counts.items() if count > MOST_MODULES}
    assert {folder: count for folder, count in many.items() if folder != ONE_A_VERB} == {}


def test_no_file_has_too_many_lines() -> None:
    lines = {name(path): len(path.read_text(encoding="utf-8").splitlines()) for path in PACKAGE + TESTS + BENCH}
    assert {path: count for path, count in lines.items() if count > MOST_LINES} == {}


def test_every_folder_of_the_package_is_packaged() -> None:
    ask = "import setuptools; from distutils.core import run_setup as run; "
    ask += "print(*run('setup.py', stop_after='init').packages)"
    words = [sys.executable, "-W", "ignore", "-c", ask]
    packages = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    folders = [".".join(("slackwater", *folder.relative_to(ROOT).parts)) for folder in PACKAGE_FOLDERS]
    assert sorted(packages) == sorted(["pyspark_slackwater", *folders])
    assert [name(folder) for folder in PACKAGE_FOLDERS if not (folder / "__init__.py").exists()] == []


def test_the_first_line_of_every_module_is_a_sentence() -> None:
    first = {name(path): said(path)[0].partition("\n")[0] for path in PACKAGE}
    assert {path: line for path, line in first.items() if not line.endswith((".", ":", ")"))} == {}
    assert {path: line for path, line in first.items() if re.match("todo|fixme|xxx", line, re.IGNORECASE)} == {}


def test_class_names_are_unique() -> None:
    classes = Counter(one for path in PACKAGE for one in said(path)[1] if not one.startswith("_"))
    # A program's `App` is the declared class, with an additional method that runs it.
    assert [one for one, count in classes.items() if count > 1 and one != "App"] == []


NAMES = ("slackwater", "a checkout", "checkout")


@pytest.fixture
def clone(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Return a copy of the repository in a folder of the parameter's name."""
    ignored = shutil.ignore_patterns(".[!c]*", ".cache", "__pycache__", "*.egg-info", "build", "out", "images")
    return Path(shutil.copytree(ROOT, tmp_path / request.param, ignore=ignored))


@pytest.mark.parametrize("clone", NAMES, indirect=True)
def test_lint_passes_in_a_clone_of_any_name(clone: Path) -> None:
    """Check a folder of the package's name, in which ruff would treat the package as first party without a setting."""
    words = [sys.executable, "-m", "ruff", "check", "--no-cache", "."]
    done = subprocess.run(words, cwd=clone, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.ci
@pytest.mark.parametrize("clone", NAMES, indirect=True)
def test_make_check_passes_in_a_clone_of_any_name(clone: Path) -> None:
    """Run all of `make check` with this checkout's packages. mypy alone takes half a minute."""
    (clone / ".venv").symlink_to(Path(sys.prefix))
    (clone / "pyproject.toml").touch()
    done = subprocess.run(
        ["make", "--assume-old", ".venv/.ready", "check"],
        cwd=clone,
        env={**os.environ, "PYTHONPATH": ".types"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
