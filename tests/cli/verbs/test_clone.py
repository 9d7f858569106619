"""`slackwater clone` on the command line."""

import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from slackwater.common import runtime
from slackwater.snapshot.cut.stored import list_snapshots
from slackwater.store.objects.protocol import ObjectStore

from tests.cli.verbs.calling import done, from_json, rows_of, slackwater
from tests.support.histories import FlightsApp, Kafka, flights

pytestmark = pytest.mark.usefixtures("isolated")


@pytest.fixture
def kafka(isolated: None, app: FlightsApp, monkeypatch: pytest.MonkeyPatch) -> Kafka:
    """Return the app's Kafka, in memory, as cloning uses it."""
    from slackwater.pipeline.kafka import channels

    monkeypatch.setattr(channels, "KafkaChannels", lambda _properties: app.kafka)
    monkeypatch.setenv("SLACKWATER_KAFKA", "in-memory:9092")
    app.kafka.send("flights-corrected", flights(46))
    return app.kafka


@pytest.mark.usefixtures("kafka")
def test_a_clone_has_the_state_of_the_moment_and_runs_independently(store: ObjectStore) -> None:
    text = done("clone", "flights/carriers@v5", "flights-staging", "--topic", "flights=flights-corrected")
    assert "cloned flights/carriers@v5 as flights-staging" in text
    assert "flights-corrected[0] " in text
    assert "slackwater run FILE --app flights-staging" in text
    sql = "SELECT sum(flights) AS flights FROM carriers"
    assert rows_of("flights-staging", sql) == rows_of("flights/carriers@v5", sql)
    assert "clone of flights@clone-flights-staging" in done("status", "flights-staging")
    (pinned,) = list_snapshots(store, "flights")
    assert pinned.clone == "flights-staging"
    assert slackwater("snapshot", "rm", "flights", pinned.name).exit_code == 1
    for app in ("flights", "flights-staging"):
        assert [operation["verb"] for operation in from_json("log", app, "--operations")] == ["clone"]


@pytest.mark.usefixtures("kafka")
def test_a_clone_can_be_created_in_another_store(tmp_path: Path) -> None:
    other = str(tmp_path / "other")
    assert f"--store {other}" in done("clone", "flights", "flights-staging", "--to", other)
    sql = "SELECT sum(flights) AS flights FROM aircraft"
    assert rows_of("flights-staging", sql, "--store", other) == rows_of("flights", sql)
    assert [app["app"] for app in from_json("status")] == ["flights"]


@pytest.mark.usefixtures("kafka")
def test_a_dry_run_of_a_clone_changes_nothing(store: ObjectStore) -> None:
    before = [info.key for info in store.list("")]
    assert done("clone", "flights", "flights-staging", "--dry-run").startswith("would clone flights")
    assert [info.key for info in store.list("")] == before


@pytest.mark.usefixtures("kafka")
def test_cloning_an_app_that_is_not_in_the_given_store_explains_the_store_option(tmp_path: Path) -> None:
    result = slackwater("clone", "flights", "flights-staging", "--store", str(tmp_path / "other"))
    assert result.exit_code == 1
    assert "--to that of the clone" in result.stderr


@pytest.mark.usefixtures("app")
@pytest.mark.parametrize("pair", ["flights", "=other", "flights="])
def test_a_topic_that_is_not_a_pair_is_a_usage_error(pair: str) -> None:
    result = slackwater("clone", "flights", "other", "--topic", pair, "--kafka", "nowhere:1")
    assert result.exit_code == 2
    assert "NAME=OTHER" in result.stderr


def _at(patch: pytest.MonkeyPatch, days: float) -> None:
    """Move the clock forward by this many days."""
    present = time.time_ns
    patch.setattr(runtime, "time_ns", lambda: present() + round(days * 86_400 * 10**9))


@pytest.mark.usefixtures("kafka")
def test_list_shows_owner_reason_and_expiry_of_a_clone(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "no clone is known under" in done("clone", "list")
    made = done("clone", "flights", "flights-staging", "--ttl", "3d", "--owner", "ada", "--reason", "try it")
    assert "expires after 3d, at " in made
    assert "it has its own" not in made
    listed = done("clone", "list")
    for word in ("flights-staging", "flights@clone-flights-staging", "ada", "in 2 d", "not yet", "try it"):
        assert word in listed
    (found,) = from_json("clone", "list", "flights")["clones"]
    assert (found["owner"], found["reason"], found["expired"], found["kept_bytes"]) == ("ada", "try it", False, 0)
    assert found["shared_bytes"] > 0
    _at(monkeypatch, 4)
    assert "expired 1 d ago" in done("clone", "list")
    assert from_json("clone", "list")["clones"][0]["expired"]


@pytest.mark.usefixtures("kafka")
def test_rm_expired_removes_only_expired_clones(store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    done("clone", "flights", "short", "--ttl", "1h")
    done("clone", "flights", "long", "--ttl", "30d")
    done("clone", "flights", "for-ever")
    done("clone", "flights", "kept", "--ttl", "1h")
    done("protect", "kept", "--message", "shown to the board")
    assert "no clone has expired" in done("clone", "rm", "--expired")
    _at(monkeypatch, 2)
    result = slackwater("clone", "rm", "--expired", "--dry-run")
    assert "would remove short: " in result.stdout
    monkeypatch.setattr("slackwater.operations.maintenance.removal.horizon.SETTLED_MS", 0)
    result = slackwater("clone", "rm", "--expired")
    assert result.exit_code == 1
    assert "removed short: " in result.stdout
    assert "kept stays: app 'kept' is protected" in result.stdout
    assert [app["app"] for app in from_json("status")] == ["flights", "for-ever", "kept", "long"]
    assert {pinned.clone for pinned in list_snapshots(store, "flights")} == {"for-ever", "kept", "long"}


@pytest.mark.usefixtures("kafka")
def test_rm_refuses_an_app_that_is_no_clone(monkeypatch: pytest.MonkeyPatch) -> None:
    done("clone", "flights", "staging")
    refused = slackwater("clone", "rm", "flights")
    assert refused.exit_code == 1
    assert "app 'flights' is not a clone: nothing was removed" in refused.stderr
    for words in (("clone", "rm"), ("clone", "rm", "staging", "--expired")):
        wrong = slackwater(*words)
        assert wrong.exit_code == 2
        assert "takes the name of a clone, or --expired" in wrong.stderr
    monkeypatch.setattr("slackwater.operations.maintenance.removal.horizon.SETTLED_MS", 0)
    assert "removed staging: 3 stages" in done("clone", "rm", "staging", "--fence")
    assert "was removed" in done("clone", "rm", "staging")
    assert "no clone is known" in done("clone", "list")


def test_refresh_gives_a_clone_the_newest_state_and_keeps_its_name(
    app: FlightsApp, kafka: Kafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("slackwater.operations.maintenance.removal.horizon.SETTLED_MS", 0)
    monkeypatch.setattr(Kafka, "kafka", SimpleNamespace(delete_groups=lambda groups: None), raising=False)
    done("clone", "flights/carriers@v5", "staging", "--topic", "flights=flights-corrected", "--owner", "ada")
    kafka.topics["flights-corrected"] = kafka.topics["flights"]
    assert done("clone", "refresh", "staging", "--dry-run").startswith("would recreate staging from flights")
    sql = "SELECT sum(flights) AS flights FROM carriers"
    before = rows_of("staging", sql)
    made = from_json("clone", "refresh", "staging")
    assert made["topics"] == {"flights": "flights-corrected"}
    assert made["app"]["owner"] == "ada"
    assert rows_of("staging", sql) == rows_of("flights", sql) != before
    refused = slackwater("clone", "refresh", "flights")
    assert "app 'flights' is not a clone" in refused.stderr


@pytest.mark.usefixtures("kafka")
def test_a_deep_clone_requires_another_root_and_a_mask_requires_a_column(tmp_path: Path) -> None:
    wrong = slackwater("clone", "flights", "staging", "--deep")
    assert (wrong.exit_code, "--deep --to ROOT" in wrong.stderr) == (2, True)
    planned = done("clone", "flights", "staging", "--deep", "--to", str(tmp_path / "other"), "--dry-run")
    assert "aircraft has its own SSTs: " in planned
    assert " to write" in planned
    wrong = slackwater("clone", "flights", "staging", "--mask", "aircraft=hash")
    assert (wrong.exit_code, "is malformed" in wrong.stderr) == (2, True)
    refused = slackwater("clone", "flights", "staging", "--mask", "aircraft.tail=hash")
    assert (refused.exit_code, "aircraft.tail cannot be masked: it is part of the key" in refused.stderr) == (1, True)


def test_a_masked_clone_lists_its_masked_columns(app: FlightsApp, kafka: Kafka) -> None:
    app.step_all()  # nothing is on the way
    made = done("clone", "flights", "staging", "--mask", "carriers.delay=null")
    assert "carriers has its own SSTs: " in made
    assert "without delay (null)" in made
    assert rows_of("staging", "SELECT DISTINCT delay FROM carriers") == [{"delay": None}]
    assert rows_of("staging", "SELECT sum(flights) AS n FROM carriers") == rows_of(
        "flights", "SELECT sum(flights) AS n FROM carriers"
    )
    # Rows that differ, under one `_seq`.
    assert slackwater("diff", "flights", "staging").exit_code == 1
