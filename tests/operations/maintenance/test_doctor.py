"""What `slackwater doctor` reports about a machine, a store and Kafka."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from slackwater.cli.main import app as cli
from slackwater.common import instants
from slackwater.errors import Usage
from slackwater.operations.maintenance import doctor
from slackwater.operations.maintenance.doctor import Configuration, Diagnosis, examine
from slackwater.pipeline.kafka.memory import MemoryKafka
from slackwater.store.objects.memory import MemoryStore
from slackwater.store.objects.open import open_store
from slackwater.store.objects.s3_settings import S3Settings
from typer.testing import CliRunner

from tests.support.s3_servers import BUCKET


def diagnose(
    store: str | None = None, kafka: MemoryKafka | None = None, *requested: str, writes: bool = False
) -> dict[str, Diagnosis]:
    properties = None if kafka is None else {"bootstrap.servers": kafka.address}
    diagnoses = examine(Configuration(store, properties, S3Settings()), requested, writes=writes)
    return {diagnosis.name: diagnosis for diagnosis in diagnoses}


@pytest.fixture
def no_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "gone"))
    return


def test_everything_in_use_is_listed_and_unconfigured_services_fail_only_if_requested() -> None:
    diagnoses = diagnose()
    assert {diagnoses[name].state for name in ("python", "java", "spark", "dev", "serve")} == {"ok"}
    assert {diagnoses[name].state for name in ("store", "kafka")} == {"absent"}
    assert "--store" in diagnoses["store"].next_step
    assert diagnose(None, None, "store")["store"].state == "missing"


def test_an_unknown_name_is_refused_with_the_nearest() -> None:
    with pytest.raises(Usage, match="'sparc' is not used by slackwater; the nearest is 'spark'"):
        diagnose(None, None, "sparc")


@pytest.mark.usefixtures("no_java")
def test_java_is_missing_if_spark_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert diagnose()["java"].state == "missing"
    assert diagnose()["java"].next_step.startswith("unset JAVA_HOME")
    monkeypatch.setattr(doctor, "find_spec", lambda _name: None)
    assert {name: diagnose()[name].state for name in ("java", "spark")} == {"java": "absent", "spark": "absent"}


def test_an_extra_that_is_not_installed_is_missing_only_if_requested(monkeypatch: pytest.MonkeyPatch) -> None:
    extra = doctor._extra("serve", ("starlette", "no-such-package"))
    assert extra.state == "absent"
    assert extra.detail == "not installed: no-such-package"
    assert "[serve]" in extra.next_step


def test_a_store_and_kafka_that_answer_are_ok_and_nothing_is_written(tmp_path: Path) -> None:
    kafka = MemoryKafka.named(f"memory://{instants.now_ms()}")
    kafka.create_topics({"orders": 1})
    diagnoses = diagnose(str(tmp_path / "store"), kafka)
    assert {diagnoses[name].state for name in ("store", "rights", "clocks", "kafka")} == {"ok"}
    assert "1 topics" in diagnoses["kafka"].detail
    assert not (tmp_path / "store").exists()


def test_write_access_is_tested_on_request_and_leaves_nothing(s3_server: str) -> None:
    root = f"s3://{BUCKET}/doctor"
    assert "--write" in diagnose(root)["rights"].detail
    assert diagnose(root, writes=True)["rights"].detail == "list, read, write, write only once, delete"
    assert list(open_store(root).list("")) == []


def test_a_store_whose_put_if_absent_overwrites_fails() -> None:
    class Overwriting(MemoryStore):
        put_if_absent = MemoryStore.put

    store = Overwriting()
    diagnosis = doctor._rights(store, writes=True)
    assert (diagnosis.state, list(store.list(""))) == ("failed", [])
    assert "If-None-Match" in diagnosis.detail


@pytest.mark.parametrize(("ahead_ms", "state"), [(0, "ok"), (50_000, "ok"), (-70_000, "failed"), (70_000, "failed")])
def test_clocks_that_differ_by_more_than_a_minute_fail(
    ahead_ms: int, state: str, s3_server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    true = instants.now_ms
    monkeypatch.setattr(instants, "now_ms", lambda: true() + ahead_ms)
    assert diagnose(f"s3://{BUCKET}/clocks")["clocks"].state == state


def test_a_bucket_that_does_not_exist_fails_with_one_sentence(s3_server: str) -> None:
    diagnosis = diagnose("s3://no-such-bucket/x")["store"]
    assert diagnosis.state == "failed"
    assert "no-such-bucket" in diagnosis.detail


def test_the_exit_code_is_1_if_something_requested_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("SLACKWATER_STORE", "SLACKWATER_KAFKA"):
        monkeypatch.delenv(name, raising=False)
    assert CliRunner().invoke(cli, ["doctor", "spark"]).exit_code == 0
    done = CliRunner().invoke(cli, ["doctor", "spark", "kafka", "--json"])
    assert done.exit_code == 1
    diagnoses = {diagnosis["name"]: diagnosis for diagnosis in json.loads(done.stdout)}
    assert (diagnoses["kafka"]["state"], diagnoses["python"]["state"]) == ("missing", "ok")
    assert sys.executable in diagnoses["python"]["detail"]
    failed = CliRunner().invoke(cli, ["doctor", "--store", f"{tmp_path}/store", "--kafka", "127.0.0.1:1"])
    assert failed.exit_code == 1
    assert "127.0.0.1:1" in failed.stdout
