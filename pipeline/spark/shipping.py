"""Slackwater and the user's files, sent to the machines on which tasks run.

What pickles in a task's closure are values of this version's classes, and another version on a worker would take them
for its own. So the driver's goes with the job, as `spark-submit --py-files` would send it, and comes before what is
installed there. What it needs is not sent: pyarrow, librdkafka and numpy are compiled for a machine.
"""

from __future__ import annotations

import hashlib
import io
import sys
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark import SparkContext

_NOT_SENT = frozenset({"bench", "cli", "client", "results"})
"""Folders of slackwater that no task needs."""


def on_path(files: Iterable[str]) -> None:
    """Let the program, which is read here, import what its tasks will import."""
    for file in files:
        entry = str(Path(file).parent) if file.endswith(".py") else file
        if entry not in sys.path:
            sys.path.insert(0, entry)


def ship_slackwater(spark: SparkContext) -> None:
    """Send this slackwater to every worker, once a session; not where it came as a zip itself."""
    home = Path(__file__).parents[2]
    if not home.is_dir():
        return
    data = _zipped(home)
    name = f"slackwater-{hashlib.sha256(data).hexdigest()[:12]}.zip"
    if name in (spark._python_includes or ()):
        return
    # Spark's own folder: an executor that starts in an hour asks for the file then, and it goes when Spark ends.
    file = Path(spark._temp_dir) / name
    file.write_bytes(data)
    spark.addPyFile(str(file))


def _zipped(home: Path) -> bytes:
    """The modules as a zip; the same modules give the same bytes, as Spark takes no other file of a name it knows."""
    modules = sorted(home.glob("*.py"))
    modules += (
        module
        for package in sorted(home.glob("*/__init__.py"))
        if package.parent.name not in _NOT_SENT
        for module in sorted(package.parent.rglob("*.py"))
    )
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as packed:
        for module in modules:
            # A ZipInfo has no time of day in it.
            entry = zipfile.ZipInfo(f"slackwater/{module.relative_to(home).as_posix()}")
            packed.writestr(entry, module.read_bytes(), zipfile.ZIP_DEFLATED)
    return data.getvalue()
