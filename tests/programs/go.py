"""Programs of Go and Node.js that tests run, built into the user's cache by `make programs`."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest
from slackwater.common.whole_file import lock_file
from slackwater.pipeline.dev.cache import cache_folder

_MODULES = {
    "actionlint": ("github.com/rhysd/actionlint/cmd/actionlint", "v1.7.12"),
    "fake-gcs-server": ("github.com/fsouza/fake-gcs-server", "v1.56.1"),
    "helm": ("helm.sh/helm/v3/cmd/helm", "v3.22.0"),
    "versitygw": ("github.com/versity/versitygw/cmd/versitygw", "v1.8.0"),
    "vegeta": ("github.com/tsenart/vegeta/v12", "v12.12.0"),
    "promtool": ("github.com/prometheus/prometheus/cmd/promtool", "v0.316.0"),
}
_PACKAGES = {"azurite": ("azurite", "3.37.0")}
"""Packages of npm, and their versions."""


class NotBuilt(Exception):
    """Error of a failed build; the message has the reason."""


def is_built(name: str) -> bool:
    """True if the program is in the cache."""
    return path_of(name).exists()


def built(name: str) -> Path:
    """Return the built program. Skips the test if it was not built, since a build takes longer than a test may."""
    if not is_built(name):
        tool = "npm" if name in _PACKAGES else "Go"
        pytest.skip(f"{name} was not built: `make programs` does it, with {tool} on PATH")
    return path_of(name)


def build(name: str) -> None:
    """Build the program, which takes minutes, unless it is in the cache.

    Processes may call this concurrently. Raises `NotBuilt`.
    """
    tool = "npm" if name in _PACKAGES else "go"
    command, program = shutil.which(tool), path_of(name)
    if is_built(name):
        return
    if command is None:
        raise NotBuilt(f"there is no {tool} on PATH")
    folder = _folder_of(name)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with lock_file(folder.with_name(f"{folder.name}.lock"), lambda: None):
        # What builds left that were killed.
        for scratch in folder.parent.glob(f"{folder.name}.*/"):
            shutil.rmtree(scratch)
        if not program.exists():
            _build([command, "install", *_words(name)], folder, program)


def path_of(name: str) -> Path:
    """Return the path of the built program."""
    return _folder_of(name) / (f"node_modules/.bin/{name}" if name in _PACKAGES else name)


def _folder_of(name: str) -> Path:
    return cache_folder() / f"{name}-{(_MODULES | _PACKAGES)[name][1]}"


def _words(name: str) -> list[str]:
    if name in _PACKAGES:
        return ["--silent", "--no-audit", "--no-fund", "--prefix", ".", "@".join(_PACKAGES[name])]
    return ["-ldflags=-s -w", "@".join(_MODULES[name])]


def _build(command: Sequence[str], folder: Path, program: Path) -> None:
    with tempfile.TemporaryDirectory(prefix=f"{folder.name}.", dir=folder.parent) as scratch:
        done = subprocess.run(
            command,
            cwd=scratch,
            # Without a C compiler, and for this machine whatever the developer builds for.
            env={**os.environ, "GOBIN": scratch, "CGO_ENABLED": "0", "GOFLAGS": "", "GOOS": "", "GOARCH": ""},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise NotBuilt(done.stderr)
        # The folder appears whole.
        made = Path(scratch) / "made"
        made.mkdir()
        top = program.relative_to(folder).parts[0]
        (Path(scratch) / top).rename(made / top)
        made.rename(folder)
