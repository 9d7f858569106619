"""The publishers of a runner, in this process: the errors that they report, and how they continue after them."""

import os
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pytest
import slackwater as sw
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource
from deltalake import DeltaTable
from msgspec.structs import replace
from slackwater.errors import AnotherTopic, Fenced, Gone, Refused, SlackwaterError
from slackwater.pipeline.dev.kafka import EmbeddedKafka
from slackwater.pipeline.kafka.memory import MemoryKafka
from slackwater.pipeline.kafka.messages import send_messages, split_into_messages
from slackwater.pipeline.kafka.open import open_kafka
from slackwater.pipeline.kafka.protocol import (
    Kafka,
    ProducerFenced,
    TransactionalProducer,
    TransactionFailed,
    TransactionSettings,
)
from slackwater.pipeline.messages import outgoing
from slackwater.pipeline.messages.outgoing import single_batch_bytes
from slackwater.pipeline.publish.publishers import Publishers
from slackwater.pipeline.publish.sinks import claim_sinks, create_internal_topics
from slackwater.pipeline.publish.tables.lookup import table_snapshots
from slackwater.pipeline.run.housekeeping import TopicWatch
from slackwater.store.archive.columns import HEADERS
from slackwater.store.objects.memory import MemoryStore
from slackwater.store.versions import apps, commit, history, keys, published
from slackwater.store.versions.manifest import AppInfo, Input, Manifest, Output

from tests.pipeline.publish.reader import committed
from tests.support.manifests import claim
from tests.support.running import eventually


class Writer:
    """A runner of one stage with one sink, without Spark."""

    def __init__(self, kafka: Kafka, make: Callable[[str], object]) -> None:
        self.kafka = kafka
        self.name = f"app-{uuid4().hex[:8]}"
        self.topic = f"{self.name}-out"
        self.kafka.create_topics({self.topic: 1})
        app = sw.App(self.name)
        app.stage(reads=sw.topic("in"), writes=make(self.topic), name="s")(lambda raw: raw)  # type: ignore[arg-type]
        (self.stage,) = app.stages_in_order()
        (self.sink,) = self.stage.sinks
        self.store = MemoryStore()
        self.info = apps.ensure_app(self.store, AppInfo(self.name, 1))
        create_internal_topics(self.kafka, self.name, (self.stage,), None, validate_only=False)
        self.head = self.claim()

    def claim(self, *, accept_loss: bool = False) -> Manifest:
        def build(draft: Manifest) -> Manifest:
            return replace(draft, sinks=claim_sinks(self.store, self.kafka, self.stage, draft, None, accept_loss))

        self.head = claim(self.store, self.name, "s", writer=uuid4().hex, by="test", now_ms=1, build=build)
        return self.head

    def commit(self, *values: bytes, **columns: pa.Array) -> Manifest:
        head = self.head
        rows = pa.table({"body": pa.array(values, pa.binary()), **columns})
        mine = outgoing.encode_records(rows, self.sink.encoding, 30) if self.sink.encoding is not None else rows
        sink, attempt = head.sinks[self.sink.name], uuid4().hex
        messages = list(split_into_messages(mine, np.zeros(len(values), np.int32)))
        end = send_messages(self.kafka, sink.topic, messages, attempt.encode(), patience_s=60)[0]
        draft = commit.successor(
            head, kind="batch", epoch=head.epoch, writer=head.writer, by="test", now_ms=head.time_ms
        )
        after = replace(sink, end=end, attempts=(attempt,), rows=len(values), sent=sink.sent + len(values))
        self.head = replace(draft, sinks={self.sink.name: after})
        commit.commit(self.store, self.head)
        return self.head

    @contextmanager
    def publishing(self, *, accept_loss: bool = False, patience_s: float = 60) -> Iterator[Publishers]:
        publishers = Publishers(
            self.store,
            self.info,
            self.kafka,
            (self.stage,),
            {"s": self.head},
            accept_loss=accept_loss,
            patience_s=patience_s,
        )
        publishers.start()
        try:
            yield publishers
        finally:
            publishers.close()

    def found(self) -> list[bytes]:
        return [message.value() or b"" for message in committed(self.kafka, self.topic)]

    @property
    def internal(self) -> str:
        return self.head.sinks[self.sink.name].topic


def bodies(topic: str) -> object:
    return sw.sink(topic, value="body")


def failure(publishers: Publishers) -> SlackwaterError:
    """Return the error with which the publishers stop."""
    found: list[SlackwaterError] = []

    def failed() -> bool:
        try:
            publishers.check()
        except SlackwaterError as error:
            found.append(error)
        return bool(found)

    eventually(failed, "they end", 60)
    return found[0]


def test_records_have_the_headers_of_their_rows(memory_kafka: MemoryKafka) -> None:
    carried = [[("traceparent", b"00-1"), ("from", None), ("from", b"x")], [], None]
    column = pa.array([each and [{"key": name, "value": value} for name, value in each] for each in carried], HEADERS)
    writer = Writer(memory_kafka, lambda topic: sw.sink(topic, value="body", headers="headers"))
    with writer.publishing() as publishers:
        publishers.on_version(writer.commit(b"1", b"2", b"3", headers=column))
        eventually(lambda: publishers.is_done, "all is published")
    found = {message.value(): message.headers() or [] for message in committed(writer.kafka, writer.topic)}
    assert found == {b"1": carried[0], b"2": [], b"3": []}


def test_committed_rows_are_published_and_then_deleted_from_the_internal_topic(any_kafka: Kafka) -> None:
    writer = Writer(any_kafka, bodies)
    with writer.publishing() as publishers:
        for number in range(20):
            publishers.on_version(writer.commit(b"%d" % number, b""))
        eventually(lambda: publishers.is_done, "all is published")
    assert writer.found() == [value for number in range(20) for value in (b"%d" % number, b"")]
    place = published.newest(writer.store, writer.head, writer.topic)
    assert place is not None
    assert (place.version, place.rows) == (writer.head.version, 40)
    # The next runner takes over, and only has to tidy up.
    writer.claim()
    with writer.publishing() as publishers:
        eventually(lambda: writer.kafka.offset_bounds(writer.internal)[0][0] > 0, "published records are deleted")
    assert len(writer.found()) == 40
    assert len(list(writer.store.list(keys.published_positions(writer.name, "s", writer.topic)))) == 1


def test_a_publisher_whose_stage_was_taken_over_stops_and_the_new_one_continues(any_kafka: Kafka) -> None:
    writer = Writer(any_kafka, bodies)
    with writer.publishing() as old:
        old.on_version(writer.commit(b"1"))
        eventually(lambda: old.is_done, "the first is published")
        writer.claim()
        with writer.publishing() as new:
            new.on_version(head := writer.commit(b"2"))
            eventually(lambda: new.is_done, "the second is published")
            old.on_version(head)
            assert isinstance(failure(old), Fenced)
            new.on_version(writer.commit(b"3"))
            eventually(lambda: new.is_done, "the third is published")
    assert writer.found() == [b"1", b"2", b"3"]


def opened(transactions: TransactionalProducer) -> tuple[int, str] | None:
    """Return the committed position, once the group has a coordinator."""
    found: list[tuple[int, str] | None] = []

    def answers() -> bool:
        with suppress(TransactionFailed):
            found.append(transactions.open())
        return bool(found)

    eventually(answers, "Kafka answers")
    return found[0]


@pytest.mark.kafka
def test_records_of_a_publisher_that_was_away_too_long_are_aborted_and_published_again(
    kafka: EmbeddedKafka,
) -> None:
    properties, topic = open_kafka(kafka.bootstrap), f"away-{uuid4().hex[:8]}"
    properties.create_topics({topic: 1, f"{topic}-internal": 1})
    settings = TransactionSettings(
        transactional_id=topic,
        group=topic,
        source=f"{topic}-internal",
        topic=topic,
        patience_s=60,
        timeout_s=2,
    )
    with closing(properties.transactional_producer(settings)) as transactions:
        assert opened(transactions) is None
        transactions.begin()
        transactions.write([b"k"], [b"before it was away"])
        # Readers of committed records see the end move once the broker has given the transaction up.
        eventually(lambda: properties.offset_bounds(topic)[1] == (2,), "the broker has given it up")
        with pytest.raises(ProducerFenced):
            transactions.commit(1, "place")
        assert opened(transactions) is None
        transactions.begin()
        transactions.write([b"k"], [b"again"])
        transactions.commit(1, "place")
        # Kafka reports the commit before the records are visible in each topic.
        eventually(lambda: len(list(committed(properties, topic))) == 1, "it is there")
        assert [message.value() for message in committed(properties, topic)] == [b"again"]
        assert opened(transactions) == (1, "place")


def test_a_failing_function_is_called_again_with_the_same_rows(memory_kafka: MemoryKafka) -> None:
    calls: list[tuple[int, list[bytes]]] = []
    fails = threading.Event()
    fails.set()

    def tell(_app: str, _stage: str, version: int, rows: pa.Table) -> None:
        calls.append((version, rows["body"].to_pylist()))
        if fails.is_set() and len(calls) < 3:
            raise ConnectionError("the database is away")

    writer = Writer(memory_kafka, lambda _topic: sw.foreach_version(tell))
    with writer.publishing() as publishers:
        publishers.on_version(writer.commit(b"a", b"b"))
        publishers.on_version(writer.commit(b"c"))
        eventually(lambda: publishers.is_done, "both are done")
    assert calls == [(2, [b"a", b"b"])] * 3 + [(3, [b"c"])]

    def always(*_: object) -> None:
        raise ConnectionError("the database is gone")

    writer = Writer(memory_kafka, lambda _topic: sw.foreach_version(always))
    with writer.publishing(patience_s=3) as publishers:
        publishers.on_version(writer.commit(b"a"))
        error = failure(publishers)
    assert isinstance(error, Refused)
    assert "sink 'always' of stage 's', at v2 does not run" in error.message
    assert "ConnectionError: the database is gone" in error.message


@pytest.mark.kafka
def test_a_record_that_the_topic_refuses_ends_the_run_with_one_sentence(kafka: EmbeddedKafka) -> None:
    writer = Writer(open_kafka(kafka.bootstrap), bodies)
    small = ConfigEntry("max.message.bytes", "1000", incremental_operation=AlterConfigOpType.SET)
    topic, admin = (
        ConfigResource("topic", writer.topic, incremental_configs=[small]),
        AdminClient(writer.kafka.properties),
    )
    admin.incremental_alter_configs([topic])[topic].result(30)
    # A batch of exactly that size is accepted, and one that is a byte larger is not. Random bytes do not compress.
    exact = next(body for size in range(900, 1_000) if whole_size(body := os.urandom(size)) == 1_000)
    with writer.publishing() as publishers:
        publishers.on_version(writer.commit(*[exact] * 3))
        eventually(lambda: publishers.is_done, "it is published", 60)
        publishers.on_version(writer.commit(exact + b"x"))
        error = failure(publishers)
    assert isinstance(error, Refused)
    said = f"'{writer.topic}': the record with no key of {len(exact) + 1:,} bytes exceeds the topic's"
    assert f"rejects records for {said} max.message.bytes (1,000)" in error.message
    assert "max.message.bytes" in error.hint
    assert writer.found() == [exact] * 3


def whole_size(body: bytes) -> int:
    rows = pa.table({"key": pa.nulls(1, pa.binary()), "value": [body]})
    return int(single_batch_bytes(rows)[0])


def test_rows_lost_by_kafka_are_reported_and_skipped_only_on_request(memory_kafka: MemoryKafka) -> None:
    writer = Writer(memory_kafka, bodies)
    writer.commit(b"1")
    writer.commit(b"2")
    writer.kafka.delete_records(writer.internal, writer.kafka.offset_bounds(writer.internal)[1][0])
    with writer.publishing() as publishers:
        error = failure(publishers)
    assert isinstance(error, Gone)
    assert "are gone from Kafka, and were not published" in error.message
    writer.claim()
    with writer.publishing(accept_loss=True) as publishers:
        publishers.on_version(writer.commit(b"3"))
        eventually(lambda: publishers.is_done, "the rest is published")
    assert writer.found() == [b"3"]


def test_removing_a_sink_from_the_program_is_refused_while_rows_are_unpublished(
    memory_kafka: MemoryKafka,
) -> None:
    writer = Writer(memory_kafka, bodies)
    writer.commit(b"1")
    other = sw.App(writer.name)
    other.stage(reads=sw.topic("in"), writes=sw.repartition("c", "body"), name="s")(lambda raw: raw)
    before, writer.stage = writer.stage, other.stages["s"]
    with pytest.raises(
        Refused, match=f"no longer has the sink '{writer.topic}', but .* of its rows are not published yet"
    ):
        writer.claim()
    writer.stage = before
    with writer.publishing() as publishers:
        eventually(lambda: publishers.is_done, "it is published")
    writer.stage = other.stages["s"]
    assert writer.claim().sinks == {}


def test_a_table_sink_stays_with_its_table(memory_kafka: MemoryKafka, tmp_path: Path) -> None:
    address = str(tmp_path / "out")
    writer = Writer(memory_kafka, lambda _topic: sw.delta(address))
    with writer.publishing() as publishers:
        publishers.on_version(writer.commit(b"1", b"2"))
        publishers.on_version(writer.commit(b"3"))
        eventually(lambda: publishers.is_done, "all is published")
    assert sorted(DeltaTable(address).to_pyarrow_table()["body"].to_pylist()) == [b"1", b"2", b"3"]
    (snapshot,) = table_snapshots(writer.store, writer.head)
    assert (snapshot.sink, snapshot.table, snapshot.snapshot) == ("out", f"delta:{address}", "2")
    (first,) = table_snapshots(writer.store, history.read(writer.store, writer.name, "s", 2))
    assert sorted(DeltaTable(address, version=int(first.snapshot)).to_pyarrow_table()["body"].to_pylist()) == [
        b"1",
        b"2",
    ]
    other = Writer(memory_kafka, lambda _topic: sw.delta(f"{address}-2", name="out")).stage
    before, writer.stage = writer.stage, other
    with pytest.raises(
        Refused, match=re.escape(f"publishes to delta:{address}-2; until now it published to delta:{address},")
    ):
        writer.claim()
    writer.stage = before
    writer.claim()
    with writer.publishing() as publishers:
        publishers.on_version(writer.commit(b"4"))
        eventually(lambda: publishers.is_done, "the rest is published")
    assert DeltaTable(address).to_pyarrow_table().num_rows == 4


def test_a_table_that_refuses_rows_ends_the_run_with_one_sentence(memory_kafka: MemoryKafka, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "_delta_log").write_text("no folder")
    writer = Writer(memory_kafka, lambda _topic: sw.delta(str(tmp_path / "out")))
    with writer.publishing(patience_s=1) as publishers:
        publishers.on_version(writer.commit(b"1"))
        error = failure(publishers)
    assert isinstance(error, Refused)
    assert error.message.startswith(f"table {tmp_path}/out: ")


def test_a_recreated_internal_topic_stops_its_stage_unless_the_loss_is_accepted(
    memory_kafka: MemoryKafka,
) -> None:
    writer = Writer(memory_kafka, bodies)
    writer.commit(b"a", b"b")
    with writer.publishing() as publishers:
        eventually(lambda: publishers.is_done, "two are published")
    writer.commit(b"lost")
    former = memory_kafka.topic_id(writer.internal)
    memory_kafka.delete_topics([writer.internal])
    memory_kafka.create_topics({writer.internal: 1})
    with pytest.raises(
        AnotherTopic, match=f"sink {writer.sink.name!r} of stage 's' cannot continue: .* id {re.escape(former)}"
    ) as no:
        writer.claim()
    assert "rows committed but not published yet were lost with the topic" in no.value.hint
    sink = writer.claim(accept_loss=True).sinks[writer.sink.name]
    assert (sink.end, sink.sent, sink.since) == (0, 0, writer.head.version)
    assert sink.topic_id == memory_kafka.topic_id(writer.internal)
    writer.commit(b"c")
    with writer.publishing() as publishers:
        eventually(lambda: publishers.is_done, "the third is published")
    assert writer.found() == [b"a", b"b", b"c"]


def test_a_watch_detects_recreated_topics_of_every_kind_with_one_request(memory_kafka: MemoryKafka) -> None:
    writer = Writer(memory_kafka, bodies)
    topics = {"in": "users'", "in-repartition": "read", "out-repartition": "written"}
    memory_kafka.create_topics(dict.fromkeys(topics, 1))
    ids = {topic: memory_kafka.topic_id(topic) for topic in topics}
    head = replace(
        writer.head,
        inputs={
            "in": Input("in", (0,), topic_id=ids["in"]),
            "by": Input("in-repartition", (0,), "before", topic_id=ids["in-repartition"]),
        },
        outputs={"to": Output("out-repartition", (0,), (0,), topic_id=ids["out-repartition"])},
    )
    for topic in (*topics, writer.internal):
        watch = TopicWatch(memory_kafka, writer.name, [SimpleNamespace(head=head)])  # type: ignore[list-item]
        assert watch.check() is None
        former = memory_kafka.topic_id(topic)
        memory_kafka.delete_topics([topic])
        assert watch.check() is None  # whoever reads it says so
        memory_kafka.create_topics({topic: 3})
        found = watch.check()
        assert found is not None
        assert f"{topic!r} was deleted and created again while the app ran: its id was {former}" in found.message
        assert "--accept-loss" in found.hint
        memory_kafka._ids[topic] = former
