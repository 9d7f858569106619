"""`slackwater retire` and `slackwater app rm` on the command line."""

import os
from pathlib import Path

import pytest
from slackwater.pipeline.kafka.memory import MemoryKafka
from slackwater.snapshot.cut.stored import SnapshotRequest
from slackwater.snapshot.take.taking import request_snapshot
from slackwater.store.objects.protocol import ObjectStore
from slackwater.store.versions import codec, keys

from tests.cli.verbs.calling import done, from_json, slackwater
from tests.support.histories import FlightsApp, Kafka, flights

pytestmark = pytest.mark.usefixtures("isolated")


@pytest.fixture
def app(store: ObjectStore) -> FlightsApp:
    """Return an app whose program no longer has its last stage; the other stages continue to run."""
    app = FlightsApp(store, Kafka())
    app.run(flights(40))
    for _ in range(3):
        app.send(*flights(5))
        app.step("legs")
        app.step("aircraft")
    return app


def test_a_snapshot_that_waits_for_a_removed_stage_suggests_retire_and_then_completes(app: FlightsApp) -> None:
    nothing_runs = slackwater("snapshot", "take", "flights", "before", "--timeout", "0.2")
    assert nothing_runs.exit_code == 1
    assert "no answer from" in nothing_runs.stderr
    assert "retire" not in nothing_runs.stderr
    asked = request_snapshot(app.store, "flights", "before", "ada@host")
    app.step("legs")
    app.step("aircraft")
    app.store.put(keys.json_object(keys.requests("flights"), asked.id), codec.encode(long_ago(asked)))
    for verb in (("status",), ("snapshot", "list", "flights")):
        result = slackwater(*verb)
        assert result.exit_code == 0
        told = "is carriers still in the program? if it is gone for good: `slackwater retire flights/carriers`"
        assert told in result.stderr
        assert "legs" not in result.stderr
    would = done("retire", "flights/carriers", "--dry-run")
    assert would.startswith("would retire flights/carriers with v6\n")
    assert "snapshots under way do not wait for it then: before" in would
    assert "it has not read 4 versions of aircraft, which gc no longer keeps for it" in would
    said = done("retire", "flights/carriers")
    assert said.startswith("retired flights/carriers with v6; its history stays, and so does its table (")
    assert "a runner that has it stops within seconds" in said
    assert done("retire", "flights/carriers") == "done already: flights/carriers is retired since v6\n"
    assert "retire" not in slackwater("status").stderr


def long_ago(asked: SnapshotRequest) -> SnapshotRequest:
    """Return the request with a time that is a minute earlier, but after every commit."""
    return SnapshotRequest(asked.id, asked.name, asked.created_ms - 60_000, asked.by)


@pytest.mark.usefixtures("app")
def test_a_retired_stage_is_marked_and_can_still_be_queried() -> None:
    before = from_json("query", "flights", "FROM carriers ORDER BY carrier")["rows"]
    done("retire", "flights/carriers")
    (line,) = (line for line in done("status").splitlines() if line.startswith("carriers"))
    assert line.endswith("retired")
    (stage,) = (one for one in from_json("status", "flights")[0]["stages"] if one["stage"] == "carriers")
    assert (stage["retired"], stage["inputs"][0]["lag"]) == (True, None)
    (newest,) = from_json("log", "flights", "--limit", "1")
    assert (newest["stage"], newest["kind"], newest["version"]) == ("carriers", "retire", 6)
    for ref in ("flights/carriers", "flights/carriers@v5"):
        assert from_json("query", ref, "FROM carriers ORDER BY carrier")["rows"] == before
    lost = slackwater("query", "flights", "FROM carriers")
    assert lost.exit_code == 1
    assert "hint: its stage is retired: flights/carriers is its last moment" in lost.stderr
    assert done("verify", "flights", "--deep")
    assert "flights/carriers" not in done("gc", "flights", "--versions", "1", "--dry-run")
    refused = slackwater("rescale", "flights/carriers", "--partitions", "3")
    assert (refused.exit_code, "is retired since v6" in refused.stderr) == (1, True)


@pytest.mark.usefixtures("app")
@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (("retire", "flights"), 2, "expected APP/STAGE"),
        (("retire", "flights/carrier"), 1, "carriers"),
        (("retire", "flight/carriers"), 1, "flights"),
        (("retire", "flights/legs"), 1, "aircraft reads what it writes"),
        (("app", "rm", "flight"), 1, "flights"),
        (("app", "rm", "Flights"), 2, "not usable"),
        (("app", "rm", "flights", "--topics"), 2, "--kafka"),
    ],
)
def test_an_impossible_call_is_explained_in_one_sentence(words: tuple[str, ...], code: int, told: str) -> None:
    result = slackwater(*words)
    assert (result.exit_code, told in result.stderr) == (code, True), result.output


def test_gc_suggests_retire_for_a_stage_that_no_longer_commits(app: FlightsApp, tmp_path: Path) -> None:
    aged(tmp_path)
    said = done("gc", "flights", "--versions", "1", "--dry-run")
    assert "aircraft keeps versions for carriers, which has not committed for an hour or more" in said
    assert "`slackwater retire flights/carriers`" in said
    done("retire", "flights/carriers")
    assert "retire" not in done("gc", "flights", "--versions", "1", "--dry-run")


def aged(tmp_path: Path) -> None:
    """Set the age of every object in the store to many years."""
    for path in (tmp_path / "store").rglob("*.*"):
        os.utime(path, (1, 1))


@pytest.mark.usefixtures("app")
def test_an_app_is_removed_and_then_its_name_is_free(store: ObjectStore, tmp_path: Path) -> None:
    for stage in ("carriers", "aircraft", "legs"):
        done("retire", f"flights/{stage}")
    aged(tmp_path)
    before = {info.key for info in store.list("")}
    would = done("app", "rm", "flights", "--dry-run")
    assert would.startswith("would remove flights: 3 stages, 24 versions, ")
    assert "kept in Kafka: its topics flights-by-aircraft-repartition, flights-by-carrier-repartition" in would
    assert "consumer groups slackwater-flights-aircraft" in would
    assert {info.key for info in store.list("")} == before
    assert done("app", "rm", "flights").startswith("removed flights: 3 stages, 24 versions, ")
    assert [info.key for info in store.list("")] == ["flights/removed.json"]
    assert "no app in this store" in done("status")
    assert "done already" in done("app", "rm", "flights")
    again = slackwater("query", "flights", "FROM carriers")
    assert (again.exit_code, "no app named 'flights'" in again.stderr) == (1, True)
    FlightsApp(store, Kafka()).run(flights(5))
    assert "flights  created" in done("status")


def test_a_clone_keeps_its_source_from_being_removed(app: FlightsApp, tmp_path: Path) -> None:
    from slackwater.operations.staging.clone import clone

    clone(app.store, "flights", "staging", topics={}, channels=app.kafka, by="ada@host")
    result = slackwater("app", "rm", "flights", "--dry-run")
    assert result.exit_code == 1
    assert "app 'staging' is a clone that still uses files of flights" in result.stderr


def test_app_rm_removes_topics_and_groups_in_kafka_if_asked(
    memory_kafka: MemoryKafka, app: FlightsApp, tmp_path: Path
) -> None:
    from slackwater.pipeline.kafka.channels import consumer_group

    topics = {"flights-by-aircraft-repartition", "flights-by-carrier-repartition"}
    for topic in (*topics, "flights"):
        memory_kafka.create_topics({topic: 1})
    for stage in app.heads:
        memory_kafka.commit_offsets(consumer_group("flights", stage), {"flights": (0,)})
    assert set(memory_kafka.groups) >= {f"slackwater-flights-{stage}" for stage in app.heads}
    done("retire", "flights/carriers", "--kafka", memory_kafka.address)
    assert "slackwater-flights-carriers" not in set(memory_kafka.groups)
    for stage in ("aircraft", "legs"):
        done("retire", f"flights/{stage}")
    aged(tmp_path)
    assert "kept in Kafka" in done("app", "rm", "flights", "--kafka", memory_kafka.address)
    assert topics <= memory_kafka.partition_counts().keys()
    # It is not too late for that.
    for _ in range(2):
        said = done("app", "rm", "flights", "--topics", "--kafka", memory_kafka.address)
        assert "done already" in said
        assert "removed from Kafka its topics flights-by-aircraft-repartition" in said
    assert memory_kafka.partition_counts() == {"flights": 1}
    assert not {group for group in set(memory_kafka.groups) if group.startswith("slackwater-flights-")}
