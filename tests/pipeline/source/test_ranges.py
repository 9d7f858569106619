"""A task that reads ranges of several partitions returns the same rows as tasks that read one range each."""

from pathlib import Path
from uuid import uuid4

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.pandas.types import from_arrow_schema
from slackwater.pipeline.kafka.columns import SPARK_SOURCE_SCHEMA
from slackwater.pipeline.kafka.memory import MemoryKafka
from slackwater.pipeline.kafka.protocol import Record
from slackwater.pipeline.source.options import PrivateOptions, SourceOptions
from slackwater.pipeline.source.readers import TopicSourceReader, _Ranges
from slackwater.pipeline.source.spool import InputSpool
from slackwater.state.records import Position

TOPIC = "orders"


def reader_of(kafka: MemoryKafka, **more: object) -> TopicSourceReader:
    options = SourceOptions(input=TOPIC, topic=TOPIC, patience_s=1, **more)  # type: ignore[arg-type]
    return TopicSourceReader(options, from_arrow_schema(SPARK_SOURCE_SCHEMA), PrivateOptions(kafka.properties))


def a_kafka(counts: list[int]) -> MemoryKafka:
    kafka = MemoryKafka.named(f"memory://{uuid4().hex}")
    kafka.create_topics({TOPIC: len(counts)})
    records = [
        Record(b"%d" % n, part, b"k%d" % n, time_ms=n) for part, count in enumerate(counts) for n in range(count)
    ]
    kafka.send(TOPIC, records, patience_s=1)
    return kafka


def read(reader: TopicSourceReader, starts: list[int], ends: list[int]) -> tuple[int, pa.Table]:
    """Return the number of tasks, and all of their rows."""
    at, to = (Position(TOPIC, tuple(each)).to_json() for each in (starts, ends))
    tasks = reader.partitions(at, to)
    batches = [batch for task in tasks for batch in reader.read(task)]
    return len(tasks), pa.Table.from_batches(batches, SPARK_SOURCE_SCHEMA)


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=8), st.integers(1, 4))
def test_a_batch_has_the_same_rows_with_any_number_of_tasks(spans: list[tuple[int, int]], tasks: int) -> None:
    starts, ends = [min(span) for span in spans], [max(span) for span in spans]
    kafka = a_kafka([end + 3 for end in ends])
    count, found = read(reader_of(kafka, tasks=tasks), starts, ends)
    _, alone = read(reader_of(kafka, tasks=len(spans)), starts, ends)
    assert count == min(tasks, sum(start < end for start, end in zip(starts, ends, strict=True)))
    assert found.sort_by([("partition", "ascending"), ("offset", "ascending")]) == alone.sort_by(
        [("partition", "ascending"), ("offset", "ascending")]
    )
    for partition, (start, end) in enumerate(zip(starts, ends, strict=True)):
        offsets = found.filter(pa.compute.equal(found["partition"], partition))["offset"].to_pylist()
        assert offsets == [*range(start, end)], "in order"


def test_a_task_of_many_partitions_spools_a_file_for_each_partition_for_the_archive(tmp_path: Path) -> None:
    kafka = a_kafka([5, 0, 700, 1])
    reader = reader_of(kafka, spool=str(tmp_path))
    (task,) = reader.partitions(*(Position(TOPIC, ends).to_json() for ends in ((1, 0, 0, 0), (5, 0, 700, 1))))
    every = pa.Table.from_batches([*reader.read(task)])
    files = InputSpool(tmp_path).list_files(TOPIC)
    assert [(file.extent.partition, file.extent.first, file.extent.end) for file in files] == [
        (0, 1, 5),
        (2, 0, 700),
        (3, 0, 1),
    ]
    for file in files:
        kept = pa.concat_tables(file.read_records(file.extent))
        same = every.filter(pa.compute.equal(every["partition"], file.extent.partition))
        for name in ("offset", "key", "value"):
            assert kept[name].to_pylist() == same[name].to_pylist()


def test_a_task_that_fails_in_one_partition_leaves_no_spool_file(tmp_path: Path) -> None:
    kafka = a_kafka([5, 5])
    reader = reader_of(kafka, spool=str(tmp_path))
    (task,) = reader.partitions(*(Position(TOPIC, ends).to_json() for ends in ((0, 0), (5, 5))))
    assert isinstance(task, _Ranges)
    kafka.delete_records(TOPIC, 2, 1)
    with pytest.raises(Exception, match="are gone from Kafka"):
        list(reader.read(task))
    assert InputSpool(tmp_path).list_files(TOPIC) == []
    assert [*tmp_path.rglob("*.arrow")] == []
