"""The Python processes that Spark starts on this machine."""

import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa
import pyspark
import pytest
from pyspark.sql import SparkSession
from slackwater.pipeline.spark.jvm import interpreter

HOME = Path(pyspark.__file__).parent


@pytest.fixture(autouse=True)
def nobody_said(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PYSPARK_PYTHON", "SPARK_HOME"):
        monkeypatch.delenv(name, raising=False)


def path_inside(path: str) -> list[str]:
    """The path of a process that Spark starts with this one."""
    command = [os.environ["PYSPARK_PYTHON"], "-c", "import os; print(os.environ['PYTHONPATH'])"]
    environment = {**os.environ, "PYTHONPATH": path}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout[:-1].split(":")


def test_what_spark_puts_before_the_installed_pyspark_is_left_out() -> None:
    mine = ["/some where/*", str(HOME / "python"), "/else/pyspark.zip"]
    spark = [HOME / "python/lib/pyspark.zip", HOME / "python/lib/py4j-0.10-src.zip", HOME / "jars/spark-core.jar"]
    with interpreter(on_this_machine=True):
        assert path_inside(":".join([*map(str, spark), *mine])) == mine
        assert path_inside("") == [""]
    assert "PYSPARK_PYTHON" not in os.environ


@pytest.mark.parametrize(("home", "on_this_machine"), [("/opt/spark", True), (str(HOME), False)])
def test_where_that_is_not_known_it_is_this_interpreter(
    home: str, on_this_machine: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_HOME", home)
    with interpreter(on_this_machine=on_this_machine):
        assert os.environ["PYSPARK_PYTHON"] == sys.executable


def test_what_somebody_said_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", "/opt/python")
    with interpreter(on_this_machine=True):
        assert os.environ["PYSPARK_PYTHON"] == "/opt/python"
    assert os.environ["PYSPARK_PYTHON"] == "/opt/python"


@pytest.mark.spark
@pytest.mark.usefixtures("one_spark")
def test_workers_are_forked_with_what_a_task_needs_and_from_the_installed_pyspark() -> None:
    def tell(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyspark

        for _ in batches:
            loaded = "slackwater.pipeline.batch.state_task" in sys.modules
            yield pa.RecordBatch.from_pydict({"file": [pyspark.__file__], "loaded": [loaded]})

    spark = SparkSession.getActiveSession()
    assert spark is not None
    (row,) = spark.range(1).mapInArrow(tell, "file string, loaded boolean").collect()
    assert Path(row.file).parent == HOME
    assert row.loaded
