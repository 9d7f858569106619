"""Spark on other machines: settings of the driver reach the tasks, and secrets appear nowhere else."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.request import urlopen

import boto3
import psutil
import pytest
from slackwater.pipeline.dev.jvm_server import HOST, choose_port
from slackwater.pipeline.spark.jvm import _script

from tests.end_to_end.under_fire.spark_cluster import packed_rules, standalone, words_of
from tests.pipeline.kafka.secured import GuardedKafka, login_module
from tests.support.running import PAIR, Ledger, eventually
from tests.support.s3_servers import BUCKET, signed

ACCESS_KEY, SECRET_KEY, PASSWORD = "AKIA7HUSHHUSHKEYID", "hush7hush7secretkey", "hush7hush7password"
SECRETS = (ACCESS_KEY, SECRET_KEY, PASSWORD)
_ENTRIES = 1_500


@dataclass
class Guarded(Ledger):
    """An app whose broker and store both require a password."""

    guarded: str = ""

    def environment(self) -> dict[str, str]:
        properties = {
            "SECURITY_PROTOCOL": "SASL_PLAINTEXT",
            "SASL_MECHANISMS": "PLAIN",
            "SASL_USERNAME": "app",
            "SASL_PASSWORD": PASSWORD,
        }
        return {
            **super().environment(),
            # All machines are this machine here, so the Python for local masters suffices; it starts sooner.
            "PYSPARK_PYTHON": _script(self.folder),
            "SLACKWATER_KAFKA": self.guarded,
            **{f"SLACKWATER_KAFKA_PROPERTIES_{name}": value for name, value in properties.items()},
        }


@pytest.fixture
def guarded(tmp_path: Path, aws_environment: pytest.MonkeyPatch, monkeypatch: pytest.MonkeyPatch) -> Iterator[Guarded]:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
    (tmp_path / "s3").mkdir()
    users = login_module("plain", f'user_app="{PASSWORD}"')
    broker = GuardedKafka(tmp_path / "kafka", ("sasl.enabled.mechanisms=PLAIN", users))
    with signed(tmp_path / "s3", ACCESS_KEY, SECRET_KEY) as endpoint, broker:
        monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
        boto3.Session().client("s3").create_bucket(Bucket=BUCKET)
        folder = tmp_path / "app"
        folder.mkdir()
        yield Guarded(broker.bootstrap, folder, f"s3://{BUCKET}/state", program=PAIR, guarded=broker.guarded)


def shown_by_spark(ui: int) -> dict[str, str]:
    """Return everything that Spark's UI shows of the running app: settings, plans, queries, jobs, and HTML pages."""

    def ask(path: str) -> str:
        with urlopen(f"http://{HOST}:{ui}/{path}", timeout=180) as answer:
            return str(answer.read(), "utf-8", "replace")

    api = "api/v1/applications"
    # If Spark's API is not served yet or at the moment, Spark redirects to an HTML page.
    eventually(lambda: ask(api).startswith("["), "Spark's UI answers as an API")
    app = f"{api}/{json.loads(ask(api))[0]['id']}"
    plans = "sql?details=true&planDescription=true&length=1000"
    paths = [f"{app}/{part}" for part in ("environment", plans, "stages?details=true", "jobs", "allexecutors")]
    return {path: ask(path) for path in [*paths, "environment/", "SQL/", "StreamingQuery/", "SQL/execution/?id=1"]}


def said_to_processes(processes: list[psutil.Process]) -> dict[str, str]:
    """Return the command line and the environment of each process."""
    said = {}
    for process in processes:
        try:
            said[f"{process.pid}"] = f"{process.cmdline()} {process.environ()}"
        except (psutil.NoSuchProcess, psutil.ZombieProcess):
            continue
    return said


def telling(said: dict[str, str]) -> list[str]:
    """Return the places where a secret appears."""
    return [where for where, text in said.items() if any(secret in text for secret in SECRETS)]


def written_in(*folders: Path) -> dict[str, str]:
    files = [file for folder in folders for file in folder.rglob("*") if file.is_file()]
    return {str(file): file.read_bytes().decode("latin-1") for file in files}


@pytest.mark.ci
@pytest.mark.kafka
@pytest.mark.spark
@pytest.mark.s3
def test_tasks_on_other_machines_can_read_s3_and_kafka_and_no_secret_leaks(guarded: Guarded, tmp_path: Path) -> None:
    events, ui = tmp_path / "events", choose_port()
    events.mkdir()
    conf = {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": events.as_uri(),
        "spark.eventLog.compress": "false",
        "spark.ui.port": ui,
        "spark.executor.memory": "512m",
        "spark.driver.host": HOST,
    }
    words = [word for name, value in conf.items() for word in ("--conf", f"{name}={value}")]
    guarded.send(_ENTRIES)
    with standalone(tmp_path / "cluster", workers=2) as cluster:
        words += ["--master", cluster.url, "--py-files", str(packed_rules(tmp_path)), "--max-records", "300"]
        with guarded.running(*words) as app:
            app.await_commit("branches")
            victim, other = cluster.executors()
            victim.kill()
            eventually(lambda: other in cluster.executors() and len(cluster.executors()) == 2, "a new executor")
            eventually(guarded.has_caught_up, "all is read")
            driver = psutil.Process(app.process.pid)
            assert telling(shown_by_spark(ui)) == []
            mine = [driver, *driver.children(recursive=True)]
            assert telling({str(one.pid): str(words_of(one)) for one in mine}) == []
            assert telling(said_to_processes(cluster.processes())) == []
            everything = [*mine, *cluster.processes()]
            assert app.interrupt()[0] == 0, app.errors.read_text()
        shipped = [file.name for file in cluster.folder.rglob("slackwater-*.zip")]
    assert [words_of(process) for process in everything if words_of(process)] == []
    guarded.check_tables()
    written = written_in(events, cluster.folder, guarded.folder)
    assert telling(written) == []
    assert any("SparkListenerSQLExecutionStart" in text for text in written.values())
    assert len(set(shipped)) == 1
    assert len(shipped) >= 2
