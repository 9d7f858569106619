"""The Python that Spark starts on this machine: it imports pyspark from where it is installed.

Spark puts its own `pyspark.zip` and a jar before everything else on the path of its Python processes. Nothing in a zip
is kept compiled, and Spark has the zips' directories read anew in each process: half a second of a core for each, and
the first batch of every source takes four of them, one after the other.
"""

from __future__ import annotations

import os
import shlex
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_SCRIPT = """\
#!/bin/sh
set -f
IFS=:
path=
for entry in $PYTHONPATH; do
    case $entry in
        {home}/python/lib/*.zip | {home}/jars/*.jar) ;;
        *) path=$path${{path:+:}}$entry ;;
    esac
done
PYTHONPATH=$path exec {python} "$@"
"""


@contextmanager
def interpreter(*, on_this_machine: bool, said: str = "") -> Iterator[None]:
    """Inside, Spark is told by `PYSPARK_PYTHON` which Python it is to start, unless somebody has said so.

    That is this one, which has slackwater and its libraries. `on_this_machine` is true when Spark starts it nowhere
    else: the script that spares it the zips is here only. `said` is what the run's settings say.
    """
    if "PYSPARK_PYTHON" in os.environ:
        yield
        return
    with tempfile.TemporaryDirectory(prefix="slackwater-") as folder:
        os.environ["PYSPARK_PYTHON"] = said or (_script(Path(folder)) if on_this_machine else sys.executable)
        try:
            yield
        finally:
            del os.environ["PYSPARK_PYTHON"]


def _script(folder: Path) -> str:
    import pyspark

    home = str(Path(pyspark.__file__).parent)
    # The pyspark of a Spark from elsewhere may be another version.
    if os.environ.get("SPARK_HOME", home) != home:
        return sys.executable
    path = folder / "python"
    path.write_text(_SCRIPT.format(home=shlex.quote(home), python=shlex.quote(sys.executable)))
    path.chmod(0o700)
    return str(path)
