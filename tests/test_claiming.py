"""Claiming a stage whose topics were changed behind the app's back."""

from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import pytest
import slackwater as sw
from confluent_kafka.admin import AdminClient, NewPartitions
from pyspark.sql import DataFrame
from pyspark.sql.types import LongType, StructField, StructType
from slackwater.pipeline import kafka as kafka_client
from slackwater.pipeline.broker import EmbeddedKafka
from slackwater.pipeline.claiming import Claimer
from slackwater.pipeline.schemas import Shape
from slackwater.store.local import LocalStore

from .running import eventually

pytestmark = pytest.mark.kafka

ROWS = StructType([StructField("n", LongType())])


def same(rows: DataFrame) -> DataFrame:
    return rows


def test_partitions_added_by_hand_to_a_repartition_topic_are_left_alone(kafka: EmbeddedKafka, tmp_path: Path) -> None:
    client = {"bootstrap.servers": kafka.bootstrap}
    app = sw.App(f"a{uuid4().hex[:8]}")
    events = f"events-{app.name}"
    app.stage(reads=sw.topic(events), writes=sw.repartition("by-n", key=["n"], partitions=2))(same)
    sender = app.stages["same"]
    for name in ("early", "late"):
        app.stages[name] = replace(sender, name=name, reads=("by-n",), writes=())
    kafka_client.create_topic(client, events, 1)
    claimer = Claimer(LocalStore(tmp_path), client, app, {}, "w", "test", accept_loss=False)
    shape = Shape({}, {"by-n": ROWS}, (), None, None)
    claimer.create_channels((sender,))
    claimer.claim(sender, shape, 1)
    early = claimer.claim(app.stages["early"], shape, 1)
    topic = early.inputs["by-n"].topic

    admin = AdminClient(client)
    admin.create_partitions([NewPartitions(topic, 5)])[topic].result()
    eventually(lambda: len(kafka_client.offsets(client, topic)[1]) == 5, "the new partitions")
    again = claimer.claim(app.stages["early"], shape, 2)
    late = claimer.claim(app.stages["late"], shape, 2)
    assert claimer.claim(sender, shape, 2).outputs["by-n"].ends == (0, 0)
    for claimed in (early, again, late):
        assert (claimed.inputs["by-n"].offsets, claimed.inputs["by-n"].consumed) == ((0, 0), (0, 0))
