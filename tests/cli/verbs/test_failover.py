"""`slackwater replicate` and `slackwater recover` on the command line."""

import shutil
from pathlib import Path

import pytest

from tests.cli.verbs.calling import done, from_json, rows_of, slackwater
from tests.operations.failover import FailoverKafka
from tests.support.histories import FlightsApp

pytestmark = pytest.mark.usefixtures("isolated")
SQL = "SELECT sum(flights) AS flights FROM carriers"


@pytest.fixture
def kafka(isolated: None, app: FlightsApp, monkeypatch: pytest.MonkeyPatch) -> FailoverKafka:
    """Return the app's Kafka, in memory, as replicas and recoveries use it."""
    from slackwater.pipeline.kafka import channels

    made = FailoverKafka()
    made.topics, made.groups = app.kafka.topics, app.kafka.groups
    vars(made).update(kafka=made, with_archives=lambda *_: made)
    monkeypatch.setattr(channels, "KafkaChannels", lambda *_: made)
    monkeypatch.setenv("SLACKWATER_KAFKA", "in-memory:9092")
    return made


def noted(*words: str) -> list[tuple[str, str]]:
    """Return the operations and their reasons from the log."""
    return [(each["verb"], each["message"]) for each in from_json("log", *words, "--operations")]


@pytest.mark.usefixtures("kafka")
def test_an_app_is_replicated_queried_there_and_recovered_when_its_store_is_gone(
    app: FlightsApp, tmp_path: Path
) -> None:
    other = str(tmp_path / "elsewhere")
    assert "would copy flights to" in done("replicate", "flights", "--to", other, "--dry-run")
    assert "complete up to" in done("replicate", "flights", "--to", other, "--once", "--message", "the flood plain")
    (said,) = from_json("log", "flights", "--operations")
    assert (said["verb"], said["message"]) == ("replicate", "the flood plain")
    assert other in said["detail"]
    assert "is up to date" in done("replicate", "flights", "--to", other, "--once")
    assert f"replica in {other}: up to date" in done("status", "flights")
    assert "replica of" in done("status", "flights", "--store", other)
    expected = rows_of("flights", SQL)
    assert rows_of("flights", SQL, "--store", other) == expected
    assert "consistent" in done("verify", "flights", "--deep", "--store", other)
    for words in (
        ("gc", "flights"),
        ("compact", "flights"),
        ("retire", "flights/carriers"),
        ("reset", "flights", "--all-topics", "--to-earliest"),
        ("forget", "flights", "--key", "carriers=AA"),
        ("clone", "refresh", "flights"),
        ("snapshot", "rm", "flights", "replica-1"),
    ):
        refused = slackwater(*words, "--store", other)
        assert refused.exit_code == 1
        assert "is a replica of" in refused.stderr
    looked = done("recover", "flights", "--from", other, "--dry-run")
    assert "would recover flights" in looked
    assert "nothing: there were no newer versions" in looked
    shutil.rmtree(app.store.url)
    text = done("recover", "flights", "--from", other, "--message", "the bucket is gone")
    assert "recovered flights" in text
    assert "could not be fenced" in text
    assert rows_of("flights", SQL, "--store", other) == expected
    assert "done already" in done("recover", "flights", "--from", other)
    assert "recovered" in done("status", "flights", "--store", other)
    assert ("recover", "the bucket is gone") in noted("flights", "--store", other)
    assert {each["kind"] for each in from_json("log", "flights", "--limit", "3", "--store", other)} == {"recover"}


@pytest.mark.usefixtures("kafka")
def test_a_recovery_fences_the_old_store_and_a_drill_writes_a_report(app: FlightsApp, tmp_path: Path) -> None:
    other, report, md = str(tmp_path / "elsewhere"), tmp_path / "drill.html", tmp_path / "drill.md"
    done("replicate", "flights", "--to", other, "--once")
    drill = ("recover", "flights", "--from", other, "--drill", "--keep")
    assert "can be recovered" in done(*drill, "--report", str(report), "--md", str(md))
    assert "can be recovered" in report.read_text(encoding="utf-8")
    assert "Duration of each step" in md.read_text(encoding="utf-8")
    found = from_json("recover", "flights", "--from", other)
    assert found["fenced"] == ""
    refused = slackwater("compact", "flights")
    assert refused.exit_code == 1
    assert f"runs under {other}" in refused.stderr
    assert "replaced: it was recovered" in done("status", "flights")
    refused = slackwater("replicate", "flights", "--to", str(tmp_path / "third"), "--once")
    assert "was recovered elsewhere by" in refused.stderr
    assert "is no longer tracked" in done("replicate", "flights", "--to", other, "--end")


@pytest.mark.usefixtures("app")
def test_an_invalid_call_is_refused_at_once(tmp_path: Path) -> None:
    other = str(tmp_path / "elsewhere")
    for words in (
        ("recover", "flights", "--from", other, "--keep"),
        ("recover", "flights", "--from", other, "--drill", "--dry-run"),
        ("recover", "flights", "--from", other, "--from-offset", "flights[0]=x"),
    ):
        assert slackwater(*words).exit_code == 2
    assert "no Kafka configured" in slackwater("recover", "flights", "--from", other).stderr
    said = slackwater("replicate", "flights", "--to", other, "--once")
    assert said.exit_code == 0
    assert "in-flight records are not replicated" in said.stderr
