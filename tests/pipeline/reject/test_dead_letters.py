"""Rejected records on a dead-letter topic: delivery is confirmed, or an error is raised."""

import os
from dataclasses import replace
from uuid import uuid4

import pyarrow as pa
import pytest
import slackwater as sw
from slackwater.errors import Refused
from slackwater.pipeline.dev.kafka import EmbeddedKafka
from slackwater.pipeline.kafka.columns import SPARK_SOURCE_SCHEMA
from slackwater.pipeline.kafka.open import open_kafka
from slackwater.pipeline.kafka.protocol import Kafka
from slackwater.pipeline.reject.table import DeadLetter, rejected_row, send_rejects, to_input_rows
from slackwater.store.archive.columns import HEADERS

from tests.pipeline.publish.reader import committed

LETTER = DeadLetter("orders", 2, 17, b"k", b"ten", (("trace", b"1"),), "ValueError", "no number", "Traceback")


def test_rejected_records_are_sent_to_the_topic_with_the_reason(any_kafka: Kafka) -> None:
    brokers, topic = any_kafka, f"dead-{uuid4().hex[:8]}"
    brokers.create_topics({topic: 1})
    send_rejects(brokers, topic, [LETTER, replace(LETTER, key=None, value=None)], patience_s=180)
    first, second = committed(brokers, topic)
    assert (first.key(), first.value(), first.headers()) == (b"k", b"ten", LETTER.message_headers())
    assert (second.key(), second.value()) == (None, None)


def test_a_retried_record_has_its_headers() -> None:
    app = sw.App("a")
    app.stage(reads=sw.topic("orders", include_headers=True), writes=sw.sink("t"), name="s")(lambda raw: raw)
    stored = [rejected_row(each, version=1, now_ms=2) for each in (LETTER, replace(LETTER, headers=()))]
    schema = SPARK_SOURCE_SCHEMA.append(pa.field("headers", HEADERS))
    (stage,) = app.stages_in_order()
    rows = to_input_rows(stage, "orders", stored, schema)
    assert rows["headers"].to_pylist() == [[{"key": "trace", "value": b"1"}], None]
    assert to_input_rows(stage, "orders", stored, SPARK_SOURCE_SCHEMA) == rows.select(SPARK_SOURCE_SCHEMA.names)


@pytest.mark.kafka
def test_a_topic_that_refuses_records_is_named_and_later_ones_do_not_wait(kafka: EmbeddedKafka) -> None:
    brokers, topic = open_kafka(kafka.bootstrap), f"dead-{uuid4().hex[:8]}"
    brokers.create_topics({topic: 1}, config={"max.message.bytes": "1000"})
    large = replace(LETTER, value=os.urandom(5_000))  # nothing makes these smaller
    with pytest.raises(Refused, match=f"cannot write to the topic of rejected records, '{topic}'") as refused:
        send_rejects(brokers, topic, [large], patience_s=180)
    assert "nothing is lost: make room in the topic, or name another" in refused.value.hint
    send_rejects(brokers, topic, [LETTER], patience_s=180)
    assert [message.value() for message in committed(brokers, topic)] == [b"ten"]
