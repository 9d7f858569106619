"""Programs in Go that tests want, built once into the user's cache."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest
from slackwater.pipeline.dev.jars import cache_folder
from slackwater.whole_file import locked


def path_of(module: str, version: str) -> Path:
    """Where the program of this module is, once it was built."""
    name = module.rpartition("/")[2]
    return cache_folder() / f"{name}-{version}" / name


def built(module: str, version: str) -> Path:
    """The program, which takes a minute or some the first time. Many processes may ask at once.

    Skips the test where there is no Go to build it.
    """
    go, program = shutil.which("go"), path_of(module, version)
    if program.exists():
        return program
    if go is None:
        pytest.skip(f"no go on PATH: {program.name} cannot be built")
    program.parent.parent.mkdir(parents=True, exist_ok=True)
    with locked(program.parent.with_name(f"{program.parent.name}.lock"), lambda: None):
        if not program.exists():
            _build(go, f"{module}@{version}", program)
    return program


def _build(go: str, what: str, program: Path) -> None:
    folder = program.parent
    with tempfile.TemporaryDirectory(prefix=f"{folder.name}.", dir=folder.parent) as scratch:
        done = subprocess.run(
            [go, "install", "-ldflags=-s -w", what],
            cwd=scratch,
            # Without a C compiler, and for this machine whatever the developer builds for.
            env={**os.environ, "GOBIN": scratch, "CGO_ENABLED": "0", "GOFLAGS": "", "GOOS": "", "GOARCH": ""},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            pytest.fail(f"{program.name} cannot be built:\n{done.stderr}")
        # The folder appears whole.
        made = Path(scratch) / "made"
        made.mkdir()
        (Path(scratch) / program.name).rename(made / program.name)
        made.rename(folder)
