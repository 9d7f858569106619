"""A standalone Spark cluster on this machine: a master, and workers without settings for S3 or Kafka."""

from __future__ import annotations

import json
import os
import time
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.request import urlopen

import psutil
import pyspark
from slackwater.pipeline.dev.java import find_java
from slackwater.pipeline.dev.jvm_server import HOST, SupervisedProcess, choose_port, last_log_lines

from tests.support.running import APPS

_START_PATIENCE_S = 180.0
_STOP_PATIENCE_S = 10.0
_EXECUTOR = "org.apache.spark.executor.CoarseGrainedExecutorBackend"
_KEPT = ("PATH", "JAVA_HOME", "JDK_JAVA_OPTIONS", "LANG", "LC_ALL", "TMPDIR", "NO_PROXY", "no_proxy")
"""The only variables that a worker gets from this process's environment."""


@dataclass(frozen=True)
class Cluster:
    """A master and its workers.

    Attributes:
        url: The value for `--master`.
        folder: Folder of the logs and of the executors' working folders.
        pids: Process ids of the servers.
    """

    url: str
    folder: Path
    pids: tuple[int, ...]

    def processes(self) -> list[psutil.Process]:
        """Return the servers, their executors, and the executors' Python workers."""
        found: list[psutil.Process] = []
        for pid in self.pids:
            try:
                server = psutil.Process(pid)
                found += [server, *server.children(recursive=True)]
            except psutil.NoSuchProcess:
                continue
        return found

    def executors(self) -> list[psutil.Process]:
        """Return the JVMs in which tasks run, oldest first."""
        found = [process for process in self.processes() if _EXECUTOR in words_of(process)]
        return sorted(found, key=lambda process: process.create_time())


def words_of(process: psutil.Process) -> list[str]:
    """Return a process's command line; empty if it has ended."""
    try:
        return process.cmdline()
    except (psutil.NoSuchProcess, psutil.ZombieProcess):
        return []


def packed_rules(folder: Path) -> Path:
    """Return the path of the zip with the rules of the app `pair`, for `--py-files`."""
    rules = folder / "rules.zip"
    with zipfile.ZipFile(rules, "w") as packed:
        packed.write(APPS / "rules" / "pair_rules.py", "pair_rules.py")
    return rules


@contextmanager
def standalone(folder: Path, *, workers: int) -> Iterator[Cluster]:
    """Run a cluster whose workers have one core each; stop all of its processes at the end of the block."""
    folder.mkdir()
    port, web = choose_port(), choose_port()
    url = f"spark://{HOST}:{port}"
    address = ("--host", HOST, "--webui-port")
    started: list[SupervisedProcess] = []
    try:
        started.append(_server(folder, "master", *address, str(web), "--port", str(port)))
        for n in range(workers):
            room = ("--cores", "1", "--memory", "1g", "--work-dir", str(folder / f"worker-{n}"))
            # Each worker has its own cache, as on a separate machine.
            cache = {"SLACKWATER_CACHE": str(folder / f"cache-{n}")}
            started.append(_server(folder, "worker", *address, "0", *room, url, more=cache))
        deadline = time.monotonic() + _START_PATIENCE_S
        while _workers(web) < workers:
            assert time.monotonic() < deadline, f"no cluster in time:\n{last_log_lines(folder / 'master.log', 0, 20)}"
            time.sleep(0.1)
        yield Cluster(url, folder, tuple(process.pid for process in started))
    finally:
        everything = Cluster(url, folder, tuple(process.pid for process in started)).processes()
        for process in reversed(started):
            process.kill()
        for process in everything:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(everything, timeout=_STOP_PATIENCE_S)


def _server(folder: Path, kind: str, *words: str, more: Mapping[str, str] | None = None) -> SupervisedProcess:
    """Start a master or a worker in an environment like that of another user on another machine."""
    home = Path(pyspark.__file__).parent
    environment = {
        **{name: os.environ[name] for name in _KEPT if name in os.environ},
        "HOME": str(folder),
        "SPARK_HOME": str(home),
        # As Spark's own scripts say it.
        "SPARK_SCALA_VERSION": next(home.glob("jars/spark-core_*.jar")).name.split("_")[1].partition("-")[0],
        "SPARK_LOCAL_IP": HOST,
        "SPARK_LOCAL_DIRS": str(folder / "local"),
        **(more or {}),
    }
    started = ("env", "-i", *(f"{name}={value}" for name, value in environment.items()))
    java = (find_java("Spark").path, "-Xmx256m", "-Dspark.master.rest.enabled=false", "-cp", f"{home}/jars/*")
    main = f"org.apache.spark.deploy.{kind}.{kind.capitalize()}"
    return SupervisedProcess((*started, *java, main, *words), folder=folder, log=folder / f"{kind}.log")


def _workers(web: int) -> int:
    """Return the number of workers that the master knows."""
    try:
        with urlopen(f"http://{HOST}:{web}/json/", timeout=2) as answer:
            return int(json.load(answer)["aliveworkers"])
    except OSError:
        return 0
