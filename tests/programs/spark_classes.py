"""An archive of the classes that Spark loads. It halves the CPU time that each JVM of the tests needs to start.

See "Class Data Sharing" in the JDK's documentation. A JVM ignores an archive that was made by another Java or from
other jars, so an archive is never wrong.
"""

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pyspark
from slackwater.pipeline.dev.java import MissingTool, find_java

SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""JVM options for Spark sessions of half a minute, in which the second compiler costs more time than it saves."""
_QUIET = "-Xlog:disable"
"""Option for Spark's launcher, whose output is a command: it must not warn that the archive is not for it."""
_PROGRAM = """
import slackwater as sw
from pyspark import SparkContext
from pyspark.sql import functions as F
from slackwater.testing import run

app = sw.App("classes")

@app.stage(name="t", reads=sw.topic("in"), key="k", state=sw.aggregate(n=sw.count(), x=sw.sum("x")))
def t(raw):
    return raw.select(F.from_json(F.col("value").cast("string"), "k string, x long").alias("r")).select("r.*")

run(app, {"in": [{"k": "a", "x": 1}]})
java = SparkContext._gateway.proc
java.stdin.close()
java.wait()
"""


def archive() -> Path:
    """Return the path of the archive, which belongs to this environment's Spark. It may not exist."""
    return Path(sys.prefix) / "spark-classes.jsa"


def options() -> str:
    """Return the JVM options of the tests."""
    return f"{SHORT_LIVED} -XX:SharedArchiveFile={archive()} {_QUIET}" if archive().exists() else SHORT_LIVED


def build() -> None:
    """Run an app, and archive the classes that its JVM has loaded, unless there already is an archive. Needs Java."""
    path = archive()
    if path.exists() and path.stat().st_mtime > (Path(pyspark.__file__).parent / "jars").stat().st_mtime:
        return
    scratch = path.with_name(f"{path.name}.{os.getpid()}")
    with suppress(MissingTool, subprocess.TimeoutExpired):
        flags = f"{SHORT_LIVED} -XX:ArchiveClassesAtExit={scratch} {_QUIET}"
        environment = os.environ | find_java("Spark").environment | {"JDK_JAVA_OPTIONS": flags}
        subprocess.run([sys.executable, "-c", _PROGRAM], env=environment, capture_output=True, check=False, timeout=300)
    if scratch.exists():
        scratch.rename(path)
