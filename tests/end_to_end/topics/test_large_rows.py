"""A row that is too large for a repartition topic stops its stage with one sentence; nothing is lost."""

import json
from pathlib import Path

import pytest
from confluent_kafka import Producer
from slackwater.errors import TooMuch
from slackwater.pipeline.dev.kafka import EmbeddedKafka

from tests.support.running import APPS, Ledger

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.usefixtures("one_spark")]


def test_a_row_too_large_for_a_repartition_topic_is_named(kafka: EmbeddedKafka, tmp_path: Path) -> None:
    ledger = Ledger(kafka.bootstrap, tmp_path, program=APPS / "large.py")
    producer = Producer(ledger.kafka.properties)
    for amount in (2_000_000, 22_000_000):
        producer.produce(ledger.topic, json.dumps({"account": f"a{amount}", "amount": amount}).encode(), partition=0)
    assert producer.flush(30) == 0
    expected = (
        r"^stage 'events': repartition topic 'by-account' at v2: the row with account='a22000000' has 22,\d+,\d+ "
        r"bytes, but a message between stages has at most 8,323,072: drop such rows in the function, .*several rows"
    )
    with pytest.raises(TooMuch, match=expected) as told:
        ledger.catch_up()
    assert told.value.hint.startswith("the batch was discarded and nothing is lost")
