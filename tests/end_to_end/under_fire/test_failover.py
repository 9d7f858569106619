"""Disaster recovery on a real broker and Spark: a lost app is recovered from its replica, onto a mirrored topic.

The mirror has the same records at other offsets.
"""

import json
import shutil
import struct
import time
from collections import Counter
from pathlib import Path
from uuid import uuid4

import pytest
from confluent_kafka import Producer
from slackwater.pipeline.dev.kafka import EmbeddedKafka

from tests.pipeline.publish.reader import committed
from tests.support.running import Ledger

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.usefixtures("one_spark")]


def mirror(ledger: Ledger) -> str:
    """Copy all records of the ledger's topic to a topic named as MirrorMaker 2 does, after some unrelated records."""
    name = f"primary.{ledger.topic}"
    ledger.kafka.create_topics({name: 3, "mm2-offset-syncs.primary.internal": 1})
    producer = Producer(dict(ledger.kafka.properties))
    for partition, end in enumerate(ledger.kafka.offset_bounds(ledger.topic)[1]):
        for number in range(partition + 1):
            producer.produce(name, f"older {number}".encode(), partition=partition)
        for messages in ledger.kafka.read(ledger.topic, partition, 0, end, patience_s=180):
            for message in messages:
                producer.produce(name, message.value(), partition=partition, timestamp=message.timestamp()[1])
        key = struct.pack(">h", len(ledger.topic)) + ledger.topic.encode() + struct.pack(">i", partition)
        producer.produce("mm2-offset-syncs.primary.internal", struct.pack(">qq", 0, partition + 1), key=key)
    assert producer.flush(30) == 0
    return name


def test_a_recovered_app_continues_on_a_mirrored_topic_and_counts_each_record_once(
    kafka: EmbeddedKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger, alerts = Ledger(kafka.bootstrap, tmp_path), f"alerts-{uuid4().hex[:6]}"
    ledger.kafka.create_topics({alerts: 2})
    monkeypatch.setenv("ALERTS_TOPIC", alerts)
    ledger.send(600)
    ledger.catch_up(variant="publishes")
    ledger.send(300)
    ledger.catch_up("entries", variant="publishes")  # what these send is on its way
    replica = str(tmp_path / "replica")
    done = json.loads(ledger.slackwater("replicate", ledger.app, "--to", replica, "--once", "--json").stdout)
    assert done["objects"] > 0
    assert not done["cut"]["lacks"]
    drill = ("recover", ledger.app, "--from", replica, "--drill", "--keep", "--json")
    drilled = json.loads(ledger.slackwater(*drill).stdout)
    assert drilled["passed"]
    assert {each["checksums"] for each in drilled["tables"]} == {"equal"}

    primary = ledger.store
    ledger.send(300)  # of which the replica knows nothing
    ledger.topic = mirror(ledger)
    shutil.rmtree(primary)
    refused = ledger.slackwater("recover", ledger.app, "--from", replica, "--topic", f"x={ledger.topic}", check=False)
    assert "topic read by" in refused.stderr
    monkeypatch.setenv("LEDGER_TOPIC", ledger.topic.removeprefix("primary."))
    recover = ("recover", ledger.app, "--from", replica, "--mirror", "primary", "--json")
    recovered = json.loads(ledger.slackwater(*recover).stdout)
    assert {each["how"] for each in recovered["plan"]["inputs"]} == {"records"}
    assert recovered["plan"]["in_flight_rows"] == 600  # 300 for each of the two stages that read them
    assert sum(recovered["plan"]["again"].values()) == 300

    ledger.store, mirrored = replica, ledger.topic
    ledger.topic = mirrored.removeprefix("primary.")  # as the program names it
    began = time.monotonic()
    ledger.catch_up(variant="publishes")
    assert time.monotonic() - began < 60
    ledger.check_tables()
    ledger.verify(ledger.app)
    seqs = Counter(json.loads(each.value() or b"")["seq"] for each in committed(ledger.kafka, alerts))
    assert seqs == dict.fromkeys(range(1_200), 1)
