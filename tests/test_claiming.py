"""Claiming a stage whose topics were changed behind the app's back."""

import os
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
from slackwater.snapshot.gc import collect
from slackwater.snapshot.retention import Retention
from slackwater.snapshot.retire import absent, retire
from slackwater.store import apps
from slackwater.store.errors import Refused
from slackwater.store.local import LocalStore
from slackwater.store.manifest import AppInfo

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
    shape = Shape({}, ROWS, (), None, None)
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


def test_a_retired_stage_comes_back_unless_what_it_has_to_read_was_collected(
    kafka: EmbeddedKafka, tmp_path: Path
) -> None:
    client = {"bootstrap.servers": kafka.bootstrap}
    app, store = sw.App(f"a{uuid4().hex[:8]}"), LocalStore(tmp_path)
    events = f"events-{app.name}"
    app.stage(reads=sw.topic(events), writes=sw.repartition("by-n", key=["n"], partitions=2))(same)
    sender = app.stages["same"]
    reader = app.stages["reader"] = replace(sender, name="reader", reads=("by-n",), writes=())
    kafka_client.create_topic(client, events, 1)
    apps.create_app(store, AppInfo(app.name, 1))
    claimer = Claimer(store, client, app, {}, "w", "test", accept_loss=False)
    shape = Shape({}, ROWS, (), None, None)
    claimer.create_channels((sender,))
    for stage in (sender, reader):
        claimer.claim(stage, shape, 1)
    retire(store, app.name, "reader", by="ada@host", now_ms=2)
    assert absent(store, app.name, {"same"}) == ()
    back = claimer.claim(reader, shape, 3)
    assert (back.kind, back.retired, back.epoch) == ("claim", False, 3)
    retire(store, app.name, "reader", by="ada@host", now_ms=4)
    for now_ms in range(5, 9):
        claimer.claim(sender, shape, now_ms)
    for path in tmp_path.rglob("*.json"):
        os.utime(path, (1, 1))
    assert collect(store, app.name, Retention(versions=1), by="test").objects
    with pytest.raises(Refused, match=r"'reader' was retired when it had read same up to v0, and the history of same"):
        claimer.check(reader, shape)
