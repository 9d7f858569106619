"""Python processes that Spark starts on this machine: their interpreter, and how they are forked."""

import os
import socket
import struct
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path

import psutil
import pyarrow as pa
import pyspark
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType
from slackwater.pipeline.spark.jvm import python_interpreter
from slackwater.pipeline.spark.planner_server import RUNNER, run_server

from tests.support.running import eventually

HOME = Path(pyspark.__file__).parent


@pytest.fixture(autouse=True)
def nobody_said(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PYSPARK_PYTHON", "SPARK_HOME"):
        monkeypatch.delenv(name, raising=False)


def path_inside(path: str) -> list[str]:
    """Return the `sys.path` of a Python process that Spark starts with this PYTHONPATH."""
    command = [os.environ["PYSPARK_PYTHON"], "-c", "import os; print(os.environ['PYTHONPATH'])"]
    environment = {**os.environ, "PYTHONPATH": path}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout[:-1].split(":")


def test_sparks_bundled_pyspark_is_removed_from_the_path() -> None:
    mine = ["/some where/*", str(HOME / "python"), "/else/pyspark.zip"]
    spark = [HOME / "python/lib/pyspark.zip", HOME / "python/lib/py4j-0.10-src.zip", HOME / "jars/spark-core.jar"]
    with python_interpreter(on_this_machine=True):
        assert path_inside(":".join([*map(str, spark), *mine])) == mine
        assert path_inside("") == [""]
    assert "PYSPARK_PYTHON" not in os.environ


@pytest.mark.parametrize(("home", "on_this_machine"), [("/opt/spark", True), (str(HOME), False)])
def test_without_a_known_spark_home_the_interpreter_is_that_of_this_process(
    home: str, on_this_machine: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_HOME", home)
    with python_interpreter(on_this_machine=on_this_machine):
        assert os.environ["PYSPARK_PYTHON"] == sys.executable


def test_a_configured_interpreter_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", "/opt/python")
    with python_interpreter(on_this_machine=True):
        assert os.environ["PYSPARK_PYTHON"] == "/opt/python"
    assert os.environ["PYSPARK_PYTHON"] == "/opt/python"


@pytest.mark.spark
@pytest.mark.usefixtures("one_spark")
def test_workers_are_forked_from_the_installed_pyspark_with_the_modules_of_a_task() -> None:
    def tell(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyspark

        for _ in batches:
            loaded = "slackwater.pipeline.batch.task" in sys.modules
            yield pa.RecordBatch.from_pydict({"file": [pyspark.__file__], "loaded": [loaded]})

    spark = SparkSession.getActiveSession()
    assert spark is not None
    (row,) = spark.range(1).mapInArrow(tell, "file string, loaded boolean").collect()
    assert Path(row.file).parent == HOME
    assert row.loaded


def has_ended(pid: int) -> bool:
    """True if the process has ended, even if it is a zombie."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@pytest.mark.parametrize("is_served", [True, False])
def test_a_planner_daemon_works_with_and_without_the_fork_server_and_ends_with_spark(is_served: bool) -> None:
    before = psutil.Process().children()
    with python_interpreter(on_this_machine=True, starts_session=is_served):
        python = os.environ["PYSPARK_PYTHON"]
        command = [python, "-m", "pyspark.daemon", "pyspark.sql.worker.lookup_data_sources"]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as client:
            assert client.stdin is not None
            assert client.stdout is not None
            # Spark's protocol: the port, in four bytes.
            (port,) = struct.unpack("!i", client.stdout.read(4))
            (daemon,) = (
                child
                for child in psutil.Process().children(recursive=True)
                for at in child.net_connections()
                if at.status == psutil.CONN_LISTEN and at.laddr.port == port
            )
            assert (daemon.pid != client.pid) == is_served
            client.stdin.close()
            client.wait(30)
            eventually(lambda: has_ended(daemon.pid), "it ends")
    assert psutil.Process().children() == before


def planner(spark: socket.socket) -> tuple[subprocess.Popen[bytes], socket.socket, int]:
    """Start a planner as Spark does. Returns Spark's client process, the connection, and the planner's process id."""
    environment = {
        **os.environ,
        "PYTHON_WORKER_FACTORY_PORT": str(spark.getsockname()[1]),
        "PYTHON_WORKER_FACTORY_SECRET": "secret",
    }
    client = subprocess.Popen([os.environ["PYSPARK_PYTHON"], "-m", RUNNER], env=environment)
    connection, _ = spark.accept()
    assert connection.recv(100) == struct.pack("!i", 6) + b"secret"
    connection.sendall(struct.pack("!i", 2) + b"ok")
    (pid,) = struct.unpack("!i", connection.recv(4))
    return client, connection, pid


def test_planners_are_forked_from_one_server_process_and_end_with_their_connections() -> None:
    before = psutil.Process().children()
    with ExitStack() as stack:
        spark = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        with python_interpreter(on_this_machine=True, starts_session=True):
            planners = [planner(spark) for _ in range(3)]
            for client, connection, _ in planners:
                stack.enter_context(connection)
                assert client.wait(30) == 0
            (pid,) = {pid for *_, pid in planners}
            host = psutil.Process(pid)
            planners[0][1].close()
            eventually(lambda: host.num_threads() == 3, "the first has ended, two and the main thread are left")
        # The session is gone, but a query may still stop.
        assert not has_ended(pid)
        _, connection, _ = planners[1]
        connection.sendall(struct.pack("!i", 3) + b"3.9")
        connection.shutdown(socket.SHUT_WR)
        assert b"PYTHON_VERSION_MISMATCH" in b"".join(iter(lambda: connection.recv(1 << 16), b""))
        planners[2][1].close()
        eventually(lambda: has_ended(pid), "it ends with its last planner")
    assert psutil.Process().children() == before


def test_the_fork_server_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    code = (
        "import os, signal, sys, pathlib, psutil\n"
        "from slackwater.pipeline.spark.planner_server import run_server\n"
        "with run_server(pathlib.Path(sys.argv[1]), sys.executable):\n"
        "    print(psutil.Process().children()[0].pid, flush=True)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True)
    eventually(lambda: has_ended(int(done.stdout)), "it ends")


def test_if_the_socket_path_is_too_long_no_fork_server_is_started(tmp_path: Path) -> None:
    before = psutil.Process().children()
    with run_server(tmp_path / ("a" * 200), sys.executable):
        assert psutil.Process().children() == before


@pytest.mark.spark
@pytest.mark.usefixtures("one_spark")
def test_planners_are_forked_with_their_modules_and_get_sparks_environment() -> None:
    class Reader(DataSourceReader):
        def partitions(self) -> list[InputPartition]:
            import pyspark

            loaded = "slackwater.pipeline.source.readers" in sys.modules
            zips = [entry for entry in sys.path if entry.endswith("pyspark.zip")]
            told = any(name.startswith("PYTHON_WORKER_FACTORY_") for name in os.environ)
            return [InputPartition((pyspark.__file__, loaded, told, zips))]

        def read(self, partition: InputPartition) -> Iterator[tuple[object, ...]]:
            yield partition.value

    class Source(DataSource):
        @classmethod
        def name(cls) -> str:
            return "told"

        def schema(self) -> str:
            return "file string, loaded boolean, told boolean, zips array<string>"

        def reader(self, schema: StructType) -> DataSourceReader:
            return Reader()

    spark = SparkSession.getActiveSession()
    assert spark is not None
    spark.dataSource.register(Source)
    (row,) = spark.read.format("told").load().collect()
    assert Path(row.file).parent == HOME
    assert (row.loaded, row.told, row.zips) == (True, True, [])
