"""A source that reads a share of keys returns only their rows, from Kafka or an archive."""

from pathlib import Path
from uuid import uuid4

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema
from slackwater.pipeline.kafka.columns import SPARK_SOURCE_SCHEMA, MessageColumns
from slackwater.pipeline.kafka.memory import MemoryKafka
from slackwater.pipeline.kafka.protocol import Record
from slackwater.pipeline.source.options import PrivateOptions, SourceOptions
from slackwater.pipeline.source.readers import TopicSourceReader, _Ranges
from slackwater.pipeline.source.wake import PlannerFiles
from slackwater.state.records import Range
from slackwater.store.archive import index
from slackwater.store.archive.columns import SCHEMA
from slackwater.store.archive.extents import Extent
from slackwater.store.objects.open import open_store
from slackwater.store.sst.hashing import KeyShare

from tests.store.archive.small_archives import write

APP, STAGE, TOPIC, COUNT = "shop", "orders", "orders", 25_000
SHARE = KeyShare(("key",), 1_000)


def test_a_share_has_the_same_rows_from_kafka_the_archive_and_both(tmp_path: Path) -> None:
    kafka = MemoryKafka.named(f"memory://{uuid4().hex}")
    kafka.create_topics({TOPIC: 1})
    sent = (Record(b"%d" % n, 0, b"k%d" % (n % 3_000) if n % 7 else None, time_ms=n) for n in range(COUNT))
    kafka.send(TOPIC, sent, patience_s=1)
    (first, *rest) = kafka.read(TOPIC, 0, 0, COUNT, patience_s=1)
    every = pa.Table.from_batches([MessageColumns(chunk).to_archive_batch() for chunk in (first, *rest)], SCHEMA)
    wanted = every.filter(pa.array(SHARE.select_rows(every)))
    assert 0 < wanted.num_rows < COUNT // 4
    assert read(tmp_path, kafka) == told(wanted)

    store, archive = open_store(str(tmp_path)), index.empty_index(APP, TOPIC)
    where = (Extent(0, 5_000, 18_000),)
    some = write(store, archive, [every.slice(5_000, 13_000)], where, 1)
    index.change(store, archive, index.append_update((some,), where), by="test", now_ms=1)
    assert read(tmp_path, kafka) == told(wanted)
    # Not of the past: Kafka has all.
    assert read(tmp_path, kafka, until=None) == told(wanted)
    kafka.delete_records(TOPIC, 18_000)
    assert read(tmp_path, kafka, first=5_000) == told(wanted.filter(wanted["offset"].to_numpy() >= 5_000))


def read(folder: Path, kafka: MemoryKafka, first: int = 0, until: tuple[int, ...] | None = (COUNT,)) -> list[object]:
    told_to = PlannerFiles(folder / "told")
    told_to.write_needed_columns(STAGE, {TOPIC: ["key", "value", "offset"]})
    told_to.write_key_shares(STAGE, {TOPIC: SHARE})
    options = SourceOptions(
        input=TOPIC,
        topic=TOPIC,
        app=APP,
        stage=STAGE,
        store=str(folder),
        planner_folder=str(told_to.folder),
        end_offsets=until,
    )
    schema = from_arrow_schema(SPARK_SOURCE_SCHEMA)
    reader = TopicSourceReader(options, schema, PrivateOptions(kafka.properties))
    batches = list(reader.read(_Ranges(TOPIC, (Range(0, first, COUNT),))))
    assert len(batches) == 1, "what is left of many batches comes in few"
    return told(pa.Table.from_batches(batches))


def told(rows: pa.Table) -> list[object]:
    return rows.select(["key", "value", "offset"]).to_pylist()
