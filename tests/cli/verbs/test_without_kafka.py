"""Clone an app without repartition topics, without Kafka."""

import pytest
from msgspec.structs import replace
from slackwater.pipeline.kafka.memory import MemoryKafka
from slackwater.pipeline.kafka.protocol import Record
from slackwater.store.objects.protocol import ObjectStore
from slackwater.store.versions import apps
from slackwater.store.versions.commit import commit, successor
from slackwater.store.versions.manifest import AppInfo, Column, Input, Table

from tests.cli.verbs.calling import done, from_json, rows_of, slackwater
from tests.support.histories import START_MS
from tests.support.manifests import claim
from tests.support.state_rows import write_version

pytestmark = pytest.mark.usefixtures("isolated")

TOTALS = Table((Column("k", "string"),), (Column("n", "int64"),), 1)
NOTE = "note: no Kafka configured (--kafka), so it was not checked whether 'orders' still has the offsets\n"


def write_shop(store: ObjectStore) -> None:
    """Write an app with one stage over a user's topic, and two batches."""
    apps.ensure_app(store, AppInfo("app", START_MS))
    first = Input("orders", (0, 0))
    head = claim(
        store,
        "app",
        "stage",
        writer="w",
        by="test:1",
        now_ms=START_MS,
        build=lambda draft: replace(draft, table=TOTALS, inputs={"orders": first}),
    )
    for number in (1, 2):
        draft = successor(head, kind="batch", epoch=1, writer="w", by="test:1", now_ms=START_MS + number * 1_000)
        ssts = write_version(store, None, TOTALS, {("a",): (number,), (f"k{number}",): (number,)}, draft.version)
        source = replace(first, offsets=(number, number), rows=2)
        head = replace(draft, inputs={"orders": source}, ssts=(*ssts, *draft.ssts))
        commit(store, head)


@pytest.fixture
def shop(store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> ObjectStore:
    monkeypatch.setattr("slackwater.operations.maintenance.removal.horizon.SETTLED_MS", 0)
    write_shop(store)
    return store


@pytest.mark.usefixtures("shop")
def test_cloning_an_app_without_repartition_topics_needs_no_kafka() -> None:
    result = slackwater("clone", "app@~1", "copy")
    assert result.exit_code == 0, result.output
    assert result.stderr == NOTE
    assert rows_of("copy", "FROM stage ORDER BY k") == [{"k": "a", "n": 1}, {"k": "k1", "n": 1}]
    (stage,) = from_json("status", "copy")[0]["stages"]
    assert [each["topic"] for each in stage["inputs"]] == ["orders"]
    assert slackwater("clone", "refresh", "copy").exit_code == 0
    assert rows_of("copy", "SELECT n FROM stage WHERE k = 'a'") == [{"n": 2}]
    assert done("clone", "rm", "copy")


@pytest.mark.usefixtures("shop")
@pytest.mark.parametrize("more", [("--topic", "orders=mirrored"), ("--topic", "orders=mirrored", "--dry-run")])
def test_a_clone_with_another_input_topic_needs_kafka(more: tuple[str, ...]) -> None:
    """Check that Kafka is required: the other topic must exist before anything is created."""
    result = slackwater("clone", "app", "copy", *more)
    assert (result.exit_code, "no Kafka configured" in result.stderr) == (2, True)
    assert slackwater("status", "copy").exit_code == 1


@pytest.mark.usefixtures("app")
def test_cloning_an_app_with_repartition_topics_needs_kafka() -> None:
    result = slackwater("clone", "flights@~1", "copy")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "no Kafka configured" in result.stderr.splitlines()[0]
    assert slackwater("status", "copy").exit_code == 1


@pytest.mark.usefixtures("shop")
def test_a_clone_can_read_a_topic_whose_first_records_kafka_has_deleted(
    memory_kafka: MemoryKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory_kafka.create_topics({"orders": 2})
    for partition in (0, 1):
        memory_kafka.send("orders", [Record(b"{}", partition)] * 3, patience_s=1)
        memory_kafka.delete_records("orders", 2, partition)
    monkeypatch.setenv("SLACKWATER_KAFKA", memory_kafka.address)
    for words in (("clone", "app", "copy"), ("clone", "refresh", "copy")):
        result = slackwater(*words)
        assert result.exit_code == 0, result.output
    assert rows_of("copy", "FROM stage ORDER BY k") == rows_of("app", "FROM stage ORDER BY k")
    (stage,) = from_json("status", "copy")[0]["stages"]
    assert [(each["topic"], each["offsets"]) for each in stage["inputs"]] == [("orders", [2, 2])]
    early = slackwater("clone", "app@~1", "early")
    assert (early.exit_code, "orders[0] would be read from offset 1, but Kafka has 2 to 3" in early.stderr) == (1, True)
