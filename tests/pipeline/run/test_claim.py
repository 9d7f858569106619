"""Claims of stages whose Kafka topics somebody has changed."""

import os
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import pytest
import slackwater as sw
from msgspec import structs
from pyspark.sql import DataFrame
from pyspark.sql.types import LongType, StructField, StructType
from slackwater.errors import Gone, Refused
from slackwater.pipeline.batch.schemas import StageSchemas
from slackwater.pipeline.kafka.memory import MemoryKafka
from slackwater.pipeline.kafka.messages import send_messages
from slackwater.pipeline.run.claim import Claimer
from slackwater.snapshot.change.stages import retire, stages_missing_from_program
from slackwater.snapshot.gc.collect import collect
from slackwater.snapshot.gc.reachable import Retention
from slackwater.snapshot.query import log
from slackwater.store.objects.local import LocalStore
from slackwater.store.versions.apps import ensure_app
from slackwater.store.versions.commit import commit, successor
from slackwater.store.versions.manifest import AppInfo, LostRecords

ROWS = StructType([StructField("n", LongType())])


def same(rows: DataFrame) -> DataFrame:
    return rows


def test_partitions_added_by_hand_to_a_repartition_topic_are_ignored(memory_kafka: MemoryKafka, tmp_path: Path) -> None:
    app = sw.App(f"a{uuid4().hex[:8]}")
    events = f"events-{app.name}"
    app.stage(reads=sw.topic(events), writes=sw.repartition("by-n", key=["n"], partitions=2))(same)
    sender = app.stages["same"]
    for name in ("early", "late"):
        app.stages[name] = replace(sender, name=name, reads=("by-n",), writes=())
    memory_kafka.create_topics({events: 1})
    claimer = Claimer(LocalStore(tmp_path), memory_kafka, app, {}, "w", "test", accept_loss=False)
    shape = StageSchemas({}, {"by-n": ROWS}, (), None, None)
    claimer.create_channels((sender,))
    claimer.claim(sender, shape, 1)
    early = claimer.claim(app.stages["early"], shape, 1)
    topic = early.inputs["by-n"].topic

    memory_kafka.add_partitions(topic, 5)
    again = claimer.claim(app.stages["early"], shape, 2)
    late = claimer.claim(app.stages["late"], shape, 2)
    assert claimer.claim(sender, shape, 2).outputs["by-n"].ends == (0, 0)
    for claimed in (early, again, late):
        assert (claimed.inputs["by-n"].offsets, claimed.inputs["by-n"].consumed) == ((0, 0), (0, 0))


def test_deleted_records_can_only_be_skipped_and_a_new_stage_reports_the_records_it_will_miss(
    memory_kafka: MemoryKafka, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    app = sw.App(f"a{uuid4().hex[:8]}")
    events = f"events-{app.name}"
    app.stage(reads=sw.topic(events), writes=sw.repartition("by-n", key=["n"], partitions=2))(same)
    old = app.stages["same"]
    new = app.stages["new"] = replace(old, name="new", writes=())
    memory_kafka.create_topics({events: 2})

    def delete(*before: int) -> None:
        for partition, offset in enumerate(before):
            memory_kafka.delete_records(events, offset, partition)
        assert memory_kafka.offset_bounds(events)[0] == before

    refusing = Claimer(LocalStore(tmp_path), memory_kafka, app, {}, "w", "test", accept_loss=False)
    accepting = replace(refusing, accept_loss=True)
    shape = StageSchemas({}, {"by-n": ROWS}, (), None, None)
    ensure_app(refusing.store, AppInfo(app.name, 1))
    refusing.create_channels((old,))
    refusing.claim(old, shape, 1)
    send_messages(
        memory_kafka, events, [(partition, b"x") for partition in (0, 1) for _ in range(5)], b"", patience_s=180
    )
    delete(3, 0)

    with pytest.raises(Gone, match=rf"would continue at offsets that are gone from Kafka: {events}\[0\] 0\.\.3\n"):
        refusing.check_stage(old)
    claimed = accepting.claim(old, shape, 2)
    assert claimed.lost == {events: LostRecords(events, (0, 0), (3, 0))}
    assert (claimed.inputs[events].offsets, claimed.inputs[events].lost) == ((3, 0), (3, 0))
    delete(3, 2)
    again = accepting.claim(old, shape, 3)
    assert (again.lost, again.inputs[events].lost) == ({events: LostRecords(events, (3, 0), (3, 2))}, (3, 2))
    newest, before, _ = log.log_entries(refusing.store, app.name, stage="same")
    assert (newest.windows, newest.lost, before.lost) == ((), again.lost, claimed.lost)
    assert accepting.claim(old, shape, 4).lost == {}

    # For a new stage nothing was lost on its way; it says what it begins without, before anything is claimed.
    refusing.check_shape(new, shape, *refusing.check_stage(new))
    unseen = f"new stage 'new' on input {events} will not see {events}[0] 0..3, {events}[1] 0..2, gone from"
    assert [message for message in caplog.messages if unseen in message]
    begun = refusing.claim(new, shape, 5)
    assert (begun.inputs[events].offsets, begun.lost) == ((3, 2), {})


def test_a_retired_stage_returns_unless_its_input_was_collected(memory_kafka: MemoryKafka, tmp_path: Path) -> None:
    app, store = sw.App(f"a{uuid4().hex[:8]}"), LocalStore(tmp_path)
    events = f"events-{app.name}"
    app.stage(reads=sw.topic(events), writes=sw.repartition("by-n", key=["n"], partitions=2))(same)
    sender = app.stages["same"]
    reader = app.stages["reader"] = replace(sender, name="reader", reads=("by-n",), writes=())
    memory_kafka.create_topics({events: 1})
    ensure_app(store, AppInfo(app.name, 1))
    claimer = Claimer(store, memory_kafka, app, {}, "w", "test", accept_loss=False)
    shape = StageSchemas({}, {"by-n": ROWS}, (), None, None)
    claimer.create_channels((sender,))
    for stage in (sender, reader):
        claimer.claim(stage, shape, 1)
    retire(store, app.name, "reader", by="ada@host", now_ms=2)
    assert stages_missing_from_program(store, app.name, {"same"}) == ()
    back = claimer.claim(reader, shape, 3)
    assert (back.kind, back.retired, back.epoch) == ("claim", False, 3)
    retire(store, app.name, "reader", by="ada@host", now_ms=4)
    for now_ms in range(5, 9):
        claimer.claim(sender, shape, now_ms)
    for path in tmp_path.rglob("*.json"):
        os.utime(path, (1, 1))
    assert collect(store, app.name, Retention(versions=1), by="test").objects
    with pytest.raises(
        Refused,
        match=r"'reader' cannot continue: it was retired after reading same up to v0, but the history of same now",
    ):
        claimer.check_stage(reader)


def test_a_claim_reads_offsets_from_kafka_again_after_the_preflight_check(
    memory_kafka: MemoryKafka, tmp_path: Path
) -> None:
    app = sw.App(f"a{uuid4().hex[:8]}")
    events = f"events-{app.name}"
    latest = sw.topic(events, starting_offsets="latest")
    app.stage(reads=latest, writes=sw.repartition("by-n", key=["n"], partitions=2))(same)
    memory_kafka.create_topics({events: 1})
    claimer = Claimer(LocalStore(tmp_path), memory_kafka, app, {}, "w", "test", accept_loss=False)
    stage, shape = app.stages["same"], StageSchemas({}, {"by-n": ROWS}, (), None, None)
    claimer.create_channels((stage,))

    def more() -> None:
        send_messages(memory_kafka, events, [(0, b"x")] * 5, b"", patience_s=180)

    more()
    assert claimer.check_stage(stage)[1][events].ends == (5,)
    more()
    assert claimer.claim(stage, shape, 1).inputs[events].offsets == (10,)
    # Another runner reads on, beyond where the topic ended when this one checked it.
    more()
    ahead = claimer.claim(stage, shape, 2)
    further = structs.replace(ahead.inputs[events], offsets=(15,))
    batch = successor(ahead, kind="batch", epoch=ahead.epoch, writer="other", by="test:2", now_ms=3)
    commit(claimer.store, structs.replace(batch, inputs={events: further}))
    assert claimer.claim(stage, shape, 3).inputs[events].offsets == (15,)
