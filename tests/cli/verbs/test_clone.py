"""`slackwater clone` as it is typed."""

from pathlib import Path

import pytest
from slackwater.moments.cut.stored import list_snapshots
from slackwater.store.objects.protocol import ObjectStore

from tests.cli.verbs.calling import done, from_json, rows_of, slackwater
from tests.support.histories import FlightsApp, Kafka, flights

pytestmark = pytest.mark.usefixtures("isolated")


@pytest.fixture
def kafka(isolated: None, app: FlightsApp, monkeypatch: pytest.MonkeyPatch) -> Kafka:
    """The app's own Kafka, in memory, behind the seam that cloning has for it."""
    from slackwater.pipeline.kafka import channels

    monkeypatch.setattr(channels, "KafkaChannels", lambda _properties: app.kafka)
    monkeypatch.setenv("SLACKWATER_KAFKA", "in-memory:9092")
    app.kafka.send("flights-corrected", flights(46))
    return app.kafka


@pytest.mark.usefixtures("kafka")
def test_a_clone_has_the_state_of_the_moment_and_runs_on_its_own(store: ObjectStore) -> None:
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
def test_a_clone_can_go_to_another_store(tmp_path: Path) -> None:
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
def test_a_clone_of_an_app_that_is_not_in_the_store_of_the_flag_says_what_store_means(tmp_path: Path) -> None:
    result = slackwater("clone", "flights", "flights-staging", "--store", str(tmp_path / "other"))
    assert result.exit_code == 1
    assert "--to says where the clone goes" in result.stderr


@pytest.mark.usefixtures("app")
@pytest.mark.parametrize("pair", ["flights", "=other", "flights="])
def test_a_topic_that_is_not_a_pair_is_a_usage_error(pair: str) -> None:
    result = slackwater("clone", "flights", "other", "--topic", pair, "--kafka", "nowhere:1")
    assert result.exit_code == 2
    assert "NAME=OTHER" in result.stderr
