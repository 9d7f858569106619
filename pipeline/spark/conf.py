"""Checks of a user's Spark settings, master URL and Python files, before Spark starts.

Also sends slackwater itself to other machines, because pickled task closures contain values of this version's classes.
The driver's slackwater is sent with the job, as by `spark-submit --py-files`, and replaces an installed slackwater. Its
dependencies are not sent: pyarrow, librdkafka and numpy are compiled for a machine.
"""

import hashlib
import io
import os
import re
import sys
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ...common.validation import expand_home
from ...errors import NotFound, Refused, Usage

if TYPE_CHECKING:
    from pyspark import SparkContext

SECRETS = r"(?i)secret|password|passwd|token|access[.]?key|credential|sasl[.]jaas"

_KEY = re.compile(r"spark\.[A-Za-z0-9_.$/-]+")
_OWN_OPTIONS = {
    "spark.master": ("--master URL", "master=URL"),
    "spark.submit.pyFiles": ("--py-files FILES", "py_files=[…]"),
}
_DEPLOY_MODE = "spark.submit.deployMode"
_TIME_ZONE = "spark.sql.session.timeZone"
_FILE_SUFFIXES = (".py", ".zip", ".egg")
_NOT_SENT = frozenset({"bench", "cli", "client", "serve", "testing"})


def parse_settings(arguments: Iterable[str]) -> dict[str, str]:
    """Parse Spark settings such as `spark.executor.memory=2g`; the last value of a key counts.

    Raises `Usage` for an invalid setting, and for a setting for which there is a separate option. Errors do not quote
    values, which may be secret.
    """
    settings: dict[str, str] = {}
    for word in arguments:
        key, equals, value = word.partition("=")
        key = key.strip()
        if not equals:
            shown = f", not {key!r}" if _KEY.fullmatch(key) else "; one of them has no '='"
            raise Usage(f"--conf takes KEY=VALUE{shown}", hint="write --conf spark.executor.memory=2g")
        settings[key] = value
    return check_settings(settings, "--conf")


def check_settings(chosen: Mapping[str, str], by: str) -> dict[str, str]:
    """Check Spark settings. `by` is the option's name for messages: `--conf`, or `spark_conf` in Python.

    Raises `Usage` for an invalid setting.
    """
    settings: dict[str, str] = {}
    in_python = not by.startswith("-")
    for key, value in chosen.items():
        if not _KEY.fullmatch(key):
            wrote = '{"spark.executor.memory": "2g"}' if in_python else "spark.executor.memory=2g"
            raise Usage(
                f"{by} {key!r} is not a setting of Spark: their names begin with 'spark.'", hint=f"write {by} {wrote}"
            )
        if not isinstance(value, str):
            raise Usage(f"{by}: the value of {key} has type {type(value).__name__}; expected text")
        if any(not char.isprintable() for char in value):
            raise Usage(f"the value of Spark's setting {key} has an unprintable character")
        if key in _OWN_OPTIONS:
            option, argument = _OWN_OPTIONS[key]
            raise Usage(f"{key} cannot be set by {by}", hint=f"use {argument if in_python else option}")
        settings[key] = value
    if settings.get(_DEPLOY_MODE, "client") != "client":
        raise Usage(
            f"{_DEPLOY_MODE} is {settings[_DEPLOY_MODE]!r}: `slackwater run` always runs the driver where it is "
            "started",
            hint="remove it, or use spark-submit in client mode on the machine that should be the driver",
        )
    if settings.get(_TIME_ZONE, "UTC") != "UTC":
        raise Usage(
            f"{_TIME_ZONE} is {settings[_TIME_ZONE]!r}: slackwater's tables and sessions use UTC",
            hint="remove it; convert times in the program with from_utc_timestamp",
        )
    return settings


_MASTER = re.compile(r"local(\[(\*|\d+)(\s*,\s*\d+)?\s*\])?|local-cluster\[.+\]|yarn|.+://.*")


def check_master(master: str | None) -> None:
    if master is not None and not _MASTER.fullmatch(master):
        raise Usage(
            f"the master is {master!r}; expected local[4], local[*], spark://HOST:7077, k8s://https://HOST or yarn",
            hint="omit it to use all cores of this machine",
        )


def check_not_connect(master: str | None, settings: Mapping[str, str]) -> None:
    """Raise `Refused` if the URL, a setting or the installed pyspark makes Spark use Spark Connect."""
    from pyspark.sql.utils import is_remote

    ways = {
        f"the master is {master}": (master or "").startswith("sc://"),
        **{f"{name} is set": name in os.environ for name in ("SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED")},
        "spark.remote is set": "spark.remote" in settings,
        "spark.api.mode is connect": settings.get("spark.api.mode", os.environ.get("SPARK_API_MODE")) == "connect",
        "this pyspark is Connect's client": is_remote(),
    }
    if way := next((way for way, holds in ways.items() if holds), None):
        raise Refused(
            f"slackwater does not run over Spark Connect ({way}): it reads query plans in Spark's own process, which a "
            "Connect client cannot reach",
            hint="run it on the driver's machine: without a remote URL, with --master local[*], spark://…, yarn or k8s://…",
        )


def secret_names(settings: Iterable[str]) -> tuple[str, ...]:
    return tuple(name for name in settings if re.search(SECRETS, name))


def check_py_files(paths: Iterable[str], by: str = "--py-files") -> tuple[str, ...]:
    """Return the files' absolute paths. `by` is the option's name for messages: `--py-files` or `py_files`.

    Raises `NotFound`, and `Usage` for a file that is no Python file, zip or egg, or for two files of the same name.
    """
    files: dict[str, Path] = {}
    for path in paths:
        if not path.strip():
            raise Usage(f"{by} has an empty file name", hint=f"list files: {by} parsing.py,rules.zip")
        if "://" in path:
            raise Usage(
                f"{by} {path}: expected a local file, because the program is also read on this machine",
                hint="download it first; Spark sends it to the executors",
            )
        file = expand_home(by, path).resolve()
        if file.is_dir():
            raise Usage(
                f"{by} {path} is a folder; expected {', '.join(_FILE_SUFFIXES)}", hint="zip it, and name the zip"
            )
        if not file.exists():
            siblings = file.parent.glob("*") if file.parent.is_dir() else ()
            near = [sibling.name for sibling in siblings if sibling.suffix in _FILE_SUFFIXES]
            raise NotFound("Python file", path, near)
        if file.suffix not in _FILE_SUFFIXES:
            raise Usage(f"{by} {path}: expected a file that ends in {', '.join(_FILE_SUFFIXES)}")
        if file.suffix != ".py" and not zipfile.is_zipfile(file):
            raise Usage(f"{by} {path} is not a valid zip file")
        if files.setdefault(file.name, file) != file:
            both = f"{by} has {files[file.name]} and {file}"
            raise Usage(f"{both}: Spark identifies files by their names", hint="rename one of them")
    return tuple(map(str, files.values()))


def add_to_python_path(files: Iterable[str]) -> None:
    """Put files on `sys.path`, so that the program can import in this process the modules that its tasks import."""
    for file in files:
        entry = str(Path(file).parent) if file.endswith(".py") else file
        if entry not in sys.path:
            sys.path.insert(0, entry)


def ship_slackwater(spark: "SparkContext") -> None:
    """Send the driver's slackwater to every worker, once per session. Does nothing if the driver runs it from a zip."""
    package = Path(__file__).parents[2]
    if not package.is_dir():
        return
    data = _zipped(package)
    name = f"slackwater-{hashlib.sha256(data).hexdigest()[:12]}.zip"
    if name in (spark._python_includes or ()):
        return
    # The file is in Spark's own folder, which lasts until Spark ends: a late executor may still fetch the file.
    file = Path(spark._temp_dir) / name
    file.write_bytes(data)
    spark.addPyFile(str(file))


def _zipped(package_folder: Path) -> bytes:
    """Return the modules as a zip.

    Equal modules give equal bytes, because Spark rejects a changed file with a known name.
    """
    modules = sorted(package_folder.glob("*.py"))
    modules += (
        module
        for package in sorted(package_folder.glob("*/__init__.py"))
        if package.parent.name not in _NOT_SENT
        for module in sorted(package.parent.rglob("*.py"))
    )
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as packed:
        for module in modules:
            # A new ZipInfo has a fixed time.
            entry = zipfile.ZipInfo(f"slackwater/{module.relative_to(package_folder).as_posix()}")
            packed.writestr(entry, module.read_bytes(), zipfile.ZIP_DEFLATED)
    return data.getvalue()
