"""Finds Java, and downloads the jars of Java servers with Maven, once, into the user's cache folder."""

import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ...common.whole_file import lock_file
from ...errors import SlackwaterError

ReportProgress = Callable[[str], None]

MIN_JAVA_VERSION = 17
_REPORT_EVERY_S = 1.0


class MissingTool(SlackwaterError):
    """A required program is missing or too old."""


def ignore_progress(_line: str) -> None: ...


def find_java(program: str) -> str:
    """Return the path of Java in JAVA_HOME, else of the first Java on PATH.

    Raises `MissingTool` if there is none or it is too old; the message says that `program` needs Java.
    """
    hint = f"install Java {MIN_JAVA_VERSION} (packages: openjdk-17-jre-headless, openjdk@17), or set JAVA_HOME"
    java_home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=str(Path(java_home) / "bin") if java_home else None)
    where = f"in JAVA_HOME ({java_home})" if java_home else "on PATH"
    if java is None:
        raise MissingTool(f"{program} needs Java {MIN_JAVA_VERSION} or newer, and there is no java {where}", hint=hint)
    printed = subprocess.run((java, "-version"), capture_output=True, text=True, errors="replace", check=False)
    match = re.search(r'version "(?:1\.)?(\d+)', printed.stderr + printed.stdout)
    version = 0 if printed.returncode or match is None else int(match[1])
    if version < MIN_JAVA_VERSION:
        but = f"is Java {version}" if version else "does not run"
        raise MissingTool(f"{program} needs Java {MIN_JAVA_VERSION} or newer, and {java} {but}", hint=hint)
    return java


def cache_folder() -> Path:
    """Return the user's cache for programs: `slackwater` in XDG_CACHE_HOME, else in ~/.cache.

    SLACKWATER_CACHE is ignored: it is the folder of SSTs, possibly on another disk for each app.
    """
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base).absolute() if base else Path.home() / ".cache") / "slackwater"


@dataclass(frozen=True, slots=True)
class Jars:
    """Jars of a Java program; a Maven project file, `pom`, lists them."""

    name: str
    folder_name: str
    pom: Path

    def fetch(self, report: ReportProgress = ignore_progress) -> Path:
        """Return the folder with the jars, after downloading them if needed. Safe for concurrent processes.

        Raises `MissingTool` if Maven is missing, and `SlackwaterError` if the download fails.
        """
        folder = cache_folder() / self.folder_name
        if not self._is_complete(folder):
            folder.parent.mkdir(parents=True, exist_ok=True)
            lock = folder.with_name(f"{folder.name}.lock")
            with lock_file(lock, lambda: report(f"waiting for {self.name} to be fetched")):
                if not self._is_complete(folder):
                    self._fetch_into(folder, report)
        return folder

    def _is_complete(self, folder: Path) -> bool:
        with suppress(FileNotFoundError, NotADirectoryError):
            return (folder / "pom.xml").read_bytes() == self.pom.read_bytes()
        return False

    def _fetch_into(self, folder: Path, report: ReportProgress) -> None:
        maven = shutil.which("mvn")
        if maven is None:
            raise MissingTool(
                f"Maven is needed to fetch {self.name}, and there is no mvn on PATH",
                hint="install Maven (package: maven), and run this again; it is needed only once",
            )
        report(f"fetching {self.name} with Maven, once, into {folder}")
        with tempfile.TemporaryDirectory(prefix=f"{folder.name}.", dir=folder.parent) as scratch:
            jars_folder = Path(scratch) / "jars"
            jars_folder.mkdir()
            shutil.copyfile(self.pom, jars_folder / "pom.xml")
            command = (
                maven,
                "-B",
                "-Dstyle.color=never",
                "dependency:copy-dependencies",
                f"-DoutputDirectory={jars_folder}",
            )
            code, failure = _run_maven(
                command, jars_folder, lambda number: report(f"fetching {self.name} with Maven: {number} files")
            )
            if code:
                raise SlackwaterError(
                    f"Maven could not fetch {self.name}: {failure or f'it ended with exit code {code}'}",
                    hint=f"make `mvn -f {self.pom} dependency:resolve` work (network, proxy, settings.xml), "
                    "then run this again",
                )
            if folder.exists():
                shutil.rmtree(folder)
            jars_folder.rename(folder)


def _run_maven(command: tuple[str, ...], folder: Path, report_count: Callable[[int], None]) -> tuple[int, str]:
    failure, num_files, reported_s = "", 0, time.monotonic()
    silent, output, errors = subprocess.DEVNULL, subprocess.PIPE, subprocess.STDOUT
    with subprocess.Popen(
        command, cwd=folder, stdin=silent, stdout=output, stderr=errors, text=True, errors="replace"
    ) as process:
        try:
            for line in process.stdout or ():
                if "Downloaded from" in line:
                    num_files += 1
                    if time.monotonic() - reported_s > _REPORT_EVERY_S:
                        reported_s = time.monotonic()
                        report_count(num_files)
                elif line.startswith("[ERROR]"):
                    failure = failure or line.removeprefix("[ERROR]").strip()
        except BaseException:
            process.kill()
            raise
    return process.returncode, failure
