"""Following a topic of a real broker: transactions, and the topic's own properties."""

from pathlib import Path
from uuid import uuid4

import pytest
from confluent_kafka import Producer
from slackwater.operations.attach.tail import Tail
from slackwater.operations.from_kafka.opening import open_topic
from slackwater.pipeline.kafka.open import open_kafka
from slackwater.store.objects.memory import MemoryStore
from slackwater.store.read.cache import SstCache

from tests.operations.from_kafka.following import read_all, rows_of

pytestmark = pytest.mark.kafka


def transactional(broker: str) -> Producer:
    producer = Producer({"bootstrap.servers": broker, "transactional.id": uuid4().hex})
    producer.init_transactions(30)
    return producer


def test_only_records_of_committed_transactions_become_rows(broker: str, tmp_path: Path) -> None:
    topic, kafka = f"attached-{uuid4().hex[:8]}", open_kafka(broker)
    kafka.create_topics({topic: 1}, config={"cleanup.policy": "compact"})
    assert kafka.topic_config(topic)["cleanup.policy"] == "compact"
    store, cache = MemoryStore(), SstCache(tmp_path / "cache", 1 << 30)
    closed, open_one = transactional(broker), transactional(broker)

    def write(producer: Producer, *, commit: bool | None, **rows: str | None) -> None:
        producer.begin_transaction()
        for key, value in rows.items():
            producer.produce(topic, value, key)
        producer.flush(30)
        if commit is not None:
            (producer.commit_transaction if commit else producer.abort_transaction)(30)

    write(closed, commit=True, a='{"n": 1}', b='{"n": 2}')
    write(closed, commit=False, a='{"n": 99}', c='{"n": 99}')
    names = ("shop", "totals")
    following = Tail(store, cache, open_topic(store, kafka, f"kafka:{topic}", names, {}), *names, by="host:1")
    (first,) = read_all(following)
    assert rows_of(store, cache, first.manifest) == {"a": {"n": 1}, "b": {"n": 2}}
    write(open_one, commit=None, a='{"n": 5}')
    write(closed, commit=True, b=None)
    assert read_all(following) == (), "the end is that of the open transaction"
    open_one.commit_transaction(30)
    (second,) = read_all(following)
    assert rows_of(store, cache, second.manifest) == {"a": {"n": 5}}
    (source,) = second.manifest.inputs.values()
    assert source.offsets == kafka.offset_bounds(topic)[1]
    kafka.delete_topics([topic])
