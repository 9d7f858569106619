"""Keys and values with schemas in a registry: their columns, and schemas that grow while the topic is followed."""

from pathlib import Path

import pytest
from slackwater.errors import Refused
from slackwater.operations.attach.tail import Tail
from slackwater.pipeline.kafka.memory import MemoryKafka
from slackwater.pipeline.kafka.protocol import Record
from slackwater.store.objects.memory import MemoryStore
from slackwater.store.read.cache import SstCache

from tests.operations.attach.following import rows_at, versions
from tests.operations.from_kafka.following import Clock, read_all, tail_of
from tests.pipeline.messages.avro_messages import encoded, record
from tests.support.registries import EmbeddedRegistry

pytestmark = pytest.mark.kafka

TOPIC = "shop-totals-changelog"
KEY = record("customer", {"name": "customer", "type": "long"})
TOTAL = record("total", {"name": "orders", "type": "long"}, {"name": "customer", "type": "string"})
GROWN = record("total", *TOTAL["fields"], {"name": "cents", "type": ["null", "long"], "default": None})


@pytest.fixture
def cache(tmp_path: Path) -> SstCache:
    return SstCache(tmp_path / "cache", 1 << 30)


def follow(kafka: MemoryKafka, cache: SstCache, store: MemoryStore, registry: str) -> Tail:
    return tail_of(store, cache, kafka, Clock(), key="registry", value="registry", registry=registry)


def test_a_schema_that_grows_adds_its_column_while_the_topic_is_followed(
    registry: EmbeddedRegistry, memory_kafka: MemoryKafka, cache: SstCache
) -> None:
    store = MemoryStore()
    memory_kafka.create_topics({TOPIC: 1}, config={"cleanup.policy": "compact"})
    key, total = registry.register(f"{TOPIC}-key", KEY), registry.register(f"{TOPIC}-value", TOTAL)

    def send(customer: int, value: bytes | None) -> None:
        record = Record(value, 0, encoded(KEY, key, customer=customer))
        memory_kafka.send(TOPIC, [record], patience_s=5)

    send(1, encoded(TOTAL, total, orders=5, customer="ann"))
    send(2, encoded(TOTAL, total, orders=6, customer="bob"))
    following = follow(memory_kafka, cache, store, registry.url)
    read_all(following)
    grown = registry.register(f"{TOPIC}-value", GROWN)
    send(1, encoded(GROWN, grown, orders=7, customer="ann", cents=70))
    send(2, None)
    send(3, encoded(TOTAL, total, orders=1, customer="cid"))
    read_all(following)
    newest = versions(store)[-1]
    assert newest.table is not None
    names = [column.name for column in newest.table.values]
    assert names == ["orders", "value_customer", "cents", "_partition", "_offset"]
    rows = rows_at(store, cache, newest)["totals"]
    found = {
        customer: {name: value for name, value in zip(names, values, strict=True) if name[0] != "_"}
        for (customer,), values in rows.items()
    }
    assert found == {
        1: {"orders": 7, "value_customer": "ann", "cents": 70},
        3: {"orders": 1, "value_customer": "cid", "cents": None},
    }
    memory_kafka.send(TOPIC, [Record(b"plain", 0, encoded(KEY, key, customer=1))], patience_s=5)
    with pytest.raises(Refused, match=rf"the value of {TOPIC}\[0\]@5 cannot be decoded: it has no schema registry"):
        following.commit_next()
