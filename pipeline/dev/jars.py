"""Downloads the jars of Java servers once, into the user's cache folder: with Maven if installed, else with Ivy."""

import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from ...common.whole_file import lock_file
from ...errors import SlackwaterError
from .cache import cache_folder
from .ivy import Jar, ivy_command, ivy_jars
from .java import find_java

ReportProgress = Callable[[str], None]

_REPORT_EVERY_S = 1.0
# Maven prints a downloaded file as "(5.9 MB at 3.1 MB/s)", Ivy as "(5892kB)".
_DOWNLOADED = re.compile(r"\((\d+(?:\.\d+)?) ?(B|kB|MB)(?: at .*)?\)$")
_PROJECT = """\
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>slackwater</groupId><artifactId>jars</artifactId><version>1</version><packaging>pom</packaging>
  <dependencies>
    {dependencies}
  </dependencies>
  <build><plugins><plugin>
    <groupId>org.apache.maven.plugins</groupId><artifactId>maven-dependency-plugin</artifactId><version>3.8.1</version>
  </plugin></plugins></build>
</project>
"""
_DEPENDENCY = """\
<dependency><groupId>{0.group}</groupId><artifactId>{0.artifact}</artifactId><version>{0.version}</version>\
<type>{0.kind}</type>{classifier}\
<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions></dependency>"""
_UNIT_BYTES = {"B": 1, "kB": 1_000, "MB": 1_000_000}
_FAILURE = re.compile(r"\s*(\[ERROR\]|HttpClientHandler:|Server access error|module not found:|\[FAILED +\])\s*(.+)")
_CAUSES = ("HttpClientHandler:", "Server access error")
"""Beginnings of the lines of Ivy's output that explain why a jar was not found."""


def ignore_progress(_line: str) -> None: ...


@dataclass(frozen=True, slots=True)
class Jars:
    """Jars of a Java program, from Maven Central. The text file `listed` has one line per jar (`Jar.parse`)."""

    name: str
    folder_name: str
    listed: Path
    megabytes: int
    """Approximate size of the download."""

    @property
    def folder(self) -> Path:
        """Folder of the jars. Its name depends on the list of jars, so that running servers keep their jars."""
        return cache_folder() / f"{self.folder_name}-{sha256(self.listed.read_bytes()).hexdigest()[:8]}"

    @property
    def is_complete(self) -> bool:
        return self.folder.exists()

    @property
    def jars(self) -> tuple[Jar, ...]:
        lines = self.listed.read_text(encoding="utf-8").splitlines()
        return tuple(Jar.parse(line) for line in lines if line and not line.startswith("#"))

    @property
    def maven(self) -> str:
        """Path of Maven; empty if it is not installed, so that Ivy downloads the jars."""
        return shutil.which("mvn") or ""

    def fetch(self, report: ReportProgress = ignore_progress) -> Path:
        """Return the folder with the jars, after downloading them if needed. Safe for concurrent processes.

        Raises `MissingTool` without Java, or with neither Maven nor pyspark, and `SlackwaterError` if the download
        fails.
        """
        folder = self.folder
        if not self.is_complete:
            folder.parent.mkdir(parents=True, exist_ok=True)
            lock = folder.with_name(f"{folder.name}.lock")
            with lock_file(lock, lambda: report(f"waiting for {self.name} to be downloaded")):
                if not self.is_complete:
                    self._fetch_into(folder, report)
        return folder

    def _fetch_into(self, folder: Path, report: ReportProgress) -> None:
        maven, java = self.maven, find_java(f"the download of {self.name}")
        tool = "Maven" if maven else "Ivy"
        ivy = Path() if maven else ivy_jars(self.name)
        report(f"downloading {self.name} with {tool}, once, about {self.megabytes} MB, into {folder}")
        for leftover in folder.parent.glob(f"{folder.name}.{'?' * 8}"):
            shutil.rmtree(leftover)  # of a killed download
        # Kept after a failure: Ivy continues where it stopped.
        ivy_scratch = folder.with_name(f"{folder.name}.ivy")
        with tempfile.TemporaryDirectory(prefix=f"{folder.name}.", dir=folder.parent) as scratch:
            jars_folder = Path(scratch) / "jars"
            jars_folder.mkdir()
            if maven:
                pom = Path(scratch) / "pom.xml"
                pom.write_text(_maven_project(self.jars))
                flags = ("-B", "-Dstyle.color=never", "-f", str(pom))
                command: tuple[str, ...] = (
                    maven,
                    *flags,
                    "dependency:copy-dependencies",
                    f"-DoutputDirectory={jars_folder}",
                )
                hint = (
                    "make `mvn dependency:copy-dependencies` work in a project of yours (network, proxy, settings.xml)"
                )
            else:
                ivy_scratch.mkdir(exist_ok=True)
                command = ivy_command(java, ivy, self.jars, jars_folder, ivy_scratch)
                hint = (
                    "check that Maven Central can be reached; a mirror or a proxy is taken from ~/.m2/settings.xml "
                    "or HTTPS_PROXY, and one with a password needs Maven (package: maven)"
                )
            code, failure = _run(
                command,
                jars_folder,
                java.environment,
                lambda files, size: report(
                    f"downloading {self.name}: {size / 1e6:.0f} of about {self.megabytes} MB, {files} files"
                ),
            )
            if code:
                raise SlackwaterError(
                    f"{tool} could not download {self.name}: {failure or f'it ended with exit code {code}'}",
                    hint=f"{hint}, then run this again",
                )
            jars_folder.rename(folder)
            shutil.rmtree(ivy_scratch, ignore_errors=True)


def _maven_project(jars: Sequence[Jar]) -> str:
    lines = (
        _DEPENDENCY.format(jar, classifier=jar.classifier and f"<classifier>{jar.classifier}</classifier>")
        for jar in jars
    )
    return _PROJECT.format(dependencies="\n    ".join(lines))


def _run(
    command: Sequence[str], folder: Path, environment: dict[str, str], report_size: Callable[[int, float], None]
) -> tuple[int, str]:
    failure, num_files, num_bytes, reported_s = "", 0, 0.0, time.monotonic()
    silent, output, errors = subprocess.DEVNULL, subprocess.PIPE, subprocess.STDOUT
    variables = os.environ | environment
    with subprocess.Popen(
        command, cwd=folder, env=variables, stdin=silent, stdout=output, stderr=errors, text=True, errors="replace"
    ) as process:
        try:
            for line in process.stdout or ():
                if downloaded := _DOWNLOADED.search(line.rstrip()):
                    size = float(downloaded[1]) * _UNIT_BYTES[downloaded[2]]
                    num_files += size > 0  # Ivy also prints checksums, of 0 kB
                    num_bytes += size
                    if time.monotonic() - reported_s > _REPORT_EVERY_S:
                        reported_s = time.monotonic()
                        report_size(num_files, num_bytes)
                elif (problem := _FAILURE.match(line)) and (not failure or problem[1] in _CAUSES):
                    failure = problem[2].strip()
        except BaseException:
            process.kill()
            raise
    return process.returncode, failure
