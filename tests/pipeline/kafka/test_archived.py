"""Within the archive's range, Kafka combined with the archive behaves like a Kafka that has lost nothing."""

from collections.abc import Sequence
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from slackwater.errors import AnotherTopic, Corruption, Gone, Refused
from slackwater.pipeline.kafka.archived import ArchivedKafka, with_archives
from slackwater.pipeline.kafka.channels import KafkaChannels
from slackwater.pipeline.kafka.columns import SPARK_SOURCE_SCHEMA, ArchivedMessages, MessageColumns
from slackwater.pipeline.kafka.memory import MemoryKafka
from slackwater.pipeline.kafka.messages import decode_rows, encode_rows, read_rows, send_messages
from slackwater.pipeline.kafka.protocol import Kafka, Message, Record, TransactionSettings
from slackwater.snapshot.query.log import Remaining
from slackwater.state.records import Range
from slackwater.store.archive import index, objects
from slackwater.store.archive.columns import HEADERS, SCHEMA
from slackwater.store.archive.extents import Extent
from slackwater.store.objects.memory import MemoryStore
from slackwater.store.versions import apps
from slackwater.store.versions.manifest import AppInfo, Input, Origin

from tests.store.archive.small_archives import write

APP, TOPIC, BY = "shop", "orders", "somebody@here"


def a_kafka(partitions: int = 1) -> MemoryKafka:
    kafka = MemoryKafka(f"memory://{uuid4().hex}")
    kafka.create_topics({TOPIC: partitions})
    return kafka


def fill(kafka: Kafka, count: int, partition: int = 0) -> None:
    """Send records, some of them without key, value or headers."""
    at = kafka.offset_bounds(TOPIC)[1][partition]
    kafka.send(
        TOPIC,
        (
            Record(
                None if n % 5 == 4 else b"%d" % n,
                partition,
                None if n % 3 else b"k%d" % n,
                (("h", b"x"), ("h", None)) if n % 4 == 0 else (),
                1_000 + n,
            )
            for n in range(at, at + count)
        ),
        patience_s=1,
    )


def archive(store: MemoryStore, kafka: Kafka, *parts: tuple[int, int, int], app: str = APP) -> None:
    for partition, first, end in parts:
        rows = [
            pa.Table.from_batches([MessageColumns(chunk).to_archive_batch()], SCHEMA)
            for chunk in kafka.read(TOPIC, partition, first, end, patience_s=1)
        ]
        where = (Extent(partition, first, end),)
        archive = index.empty_index(app, TOPIC, topic_id=kafka.topic_id(TOPIC))
        some = (write(store, archive, rows, where, 1),) if rows else ()
        index.change(store, archive, index.append_update(some, where), by=BY, now_ms=1)


def told(messages: Sequence[Sequence[Message]]) -> list[tuple[object, ...]]:
    return [
        (each.topic(), each.partition(), each.offset(), each.key(), each.value(), each.headers(), each.timestamp())
        for chunk in messages
        for each in chunk
    ]


def read(kafka: Kafka, first: int, end: int, partition: int = 0) -> list[tuple[object, ...]]:
    return told(list(kafka.read(TOPIC, partition, first, end, patience_s=1)))


@given(
    st.lists(st.integers(1, 6), min_size=1, max_size=6),
    st.integers(0, 30),
    st.integers(0, 30),
    st.integers(0, 30),
    st.booleans(),
)
def test_archived_records_are_read_as_if_kafka_still_had_them(
    sizes: list[int], lost: int, first: int, end: int, of_past: bool
) -> None:
    kafka, store, at = a_kafka(), MemoryStore(), 0
    fill(kafka, sum(sizes))
    for size in sizes:
        archive(store, kafka, (0, at, at + size))
        at += size
    first, end = min(first, at), min(end, at)
    before = read(kafka, first, end), kafka.offsets_for_times(TOPIC, [1_000 + first])
    kafka.delete_records(TOPIC, lost)
    behind = ArchivedKafka(kafka, with_archives(kafka, store, APP).archives, of_past)
    assert (read(behind, first, end), behind.offsets_for_times(TOPIC, [1_000 + first])) == before
    assert behind.offset_bounds(TOPIC) == ((0,), (at,))


def test_an_archived_chunk_has_the_same_columns_as_its_messages() -> None:
    kafka = a_kafka()
    fill(kafka, 23)
    (chunk,) = kafka.read(TOPIC, 0, 0, 23, patience_s=1)
    records = MessageColumns(chunk).to_archive_batch()
    again = ArchivedMessages(pa.Table.from_batches([records]))
    assert told([again]) == told([chunk])
    assert told([again[3:7], [again[-1]]]) == told([chunk[3:7], [chunk[-1]]])
    assert (
        MessageColumns(again).to_spark_batch()
        == MessageColumns(chunk).to_spark_batch()
        == MessageColumns(list(again)).to_spark_batch()
    )
    assert MessageColumns(again).to_archive_batch() == records
    with_headers = SPARK_SOURCE_SCHEMA.append(pa.field("headers", HEADERS))
    assert MessageColumns(again).to_spark_batch(with_headers) == MessageColumns(chunk).to_spark_batch(with_headers)
    assert (
        MessageColumns(chunk).to_spark_batch(with_headers).columns[:-1]
        == MessageColumns(chunk).to_spark_batch().columns
    )
    assert any(MessageColumns(chunk).to_spark_batch(with_headers)["headers"].to_pylist())
    needed = MessageColumns(again).to_spark_batch(needed={"value"})
    assert [column.null_count for column in needed.columns[:2]] == [23, 4]
    some = np.array([1, 4, 22])
    assert (
        MessageColumns(again).take(some).to_archive_batch()
        == MessageColumns(chunk).take(some).to_archive_batch()
        == records.take(some)
    )
    with pytest.raises(IndexError):
        again[23]


def test_columns_of_several_partitions_are_those_of_each_in_turn() -> None:
    kafka = a_kafka(3)
    for partition, count in enumerate((9, 1, 14)):
        fill(kafka, count, partition)
    with_headers = SPARK_SOURCE_SCHEMA.append(pa.field("headers", HEADERS))
    (chunk,) = kafka.read_ranges(TOPIC, [Range(0, 2, 9), Range(1, 0, 1), Range(2, 0, 14)], patience_s=1)
    runs = [*chunk, chunk[0][::2]]
    together, alone = MessageColumns(*runs), [MessageColumns(run) for run in runs]
    rows = together.to_spark_batch(with_headers)
    assert rows == pa.concat_batches([each.to_spark_batch(with_headers) for each in alone])
    assert [number for number, _ in together.by_run()] == [0, 1, 2, 0]
    for (_, part), each in zip(together.by_run(), alone, strict=True):
        assert part.to_archive_batch() == each.to_archive_batch()
    some = np.array([0, 3, 7, 8, rows.num_rows - 1])
    assert together.take(some).to_spark_batch(with_headers) == rows.take(some)


@pytest.mark.parametrize("of_past", [True, False])
def test_ranges_read_together_get_deleted_records_from_the_archive(of_past: bool) -> None:
    kafka, store = a_kafka(3), MemoryStore()
    for partition in range(3):
        fill(kafka, 20, partition)
    archive(store, kafka, (1, 0, 12), (2, 5, 9))
    parts = [Range(0, 3, 20), Range(1, 2, 20), Range(2, 4, 15)]
    before = [told([*kafka.read(TOPIC, part.partition, part.first, part.last, patience_s=1)]) for part in parts]
    kafka.delete_records(TOPIC, 10, 1)
    behind = ArchivedKafka(kafka, with_archives(kafka, store, APP).archives, of_past)
    runs = [run for chunk in behind.read_ranges(TOPIC, parts, patience_s=1) for run in chunk]
    assert [told([run for run in runs if run[0].partition() == part.partition]) for part in parts] == before
    kafka.delete_records(TOPIC, 6, 2)
    with pytest.raises(Gone, match=r"offsets 4 to \d of orders\[2\]"):
        list(behind.read_ranges(TOPIC, parts, patience_s=1))
    gone: dict[int, list[Gone]] = {0: [], 1: [], 2: []}
    list(behind.read_ranges(TOPIC, parts, patience_s=1, deletion_errors=gone))
    assert {number: bool(errors) for number, errors in gone.items()} == {0: False, 1: False, 2: True}


def test_gaps_in_kafkas_offsets_are_no_gaps_of_an_archive() -> None:
    kafka, store = a_kafka(), MemoryStore()
    transactions = kafka.transactional_producer(TransactionSettings("id", "group", "source", TOPIC, 1))
    transactions.open()
    for number in range(3):
        transactions.begin()
        transactions.write([None, None], [b"%d" % number, b"again"])
        transactions.commit(number, "")
    (end,) = kafka.offset_bounds(TOPIC)[1]
    assert end == 9
    archive(store, kafka, (0, 0, 5), (0, 5, 6), (0, 6, end))
    before = read(kafka, 0, end)
    kafka.delete_records(TOPIC, end)
    assert [row[2] for row in before] == [0, 1, 3, 4, 6, 7]
    assert read(with_archives(kafka, store, APP), 0, end) == before
    # Nothing is missing at an offset that held only the end of a transaction.
    assert read(with_archives(kafka, store, APP), 5, 6) == []


def test_records_missing_from_the_archive_are_named_and_earlier_ones_are_read() -> None:
    kafka, store = a_kafka(), MemoryStore()
    fill(kafka, 30)
    archive(store, kafka, (0, 0, 10), (0, 15, 25))
    kafka.delete_records(TOPIC, 25)
    behind, found = with_archives(kafka, store, APP), list[Sequence[Message]]()
    with pytest.raises(
        Gone, match=r"offsets 10 to 14 of orders\[0\] are gone from Kafka, and not in the input"
    ) as gone:
        found.extend(behind.read(TOPIC, 0, 5, 30, patience_s=1))
    assert [row[2] for row in told(found)] == [5, 6, 7, 8, 9]
    assert "they were never archived" in gone.value.message
    errors: list[Gone] = []
    rest = told(list(behind.read(TOPIC, 0, 5, 30, patience_s=1, deletion_errors=errors)))
    assert [row[2] for row in rest] == [*range(5, 10), *range(15, 30)]
    assert len(errors) == 1
    assert behind.offset_bounds(TOPIC)[0] == (15,)
    index.change(store, index.empty_index(APP, TOPIC), index.thin_update(2), by=BY, now_ms=2)
    with pytest.raises(Gone, match="they were deleted there by `input` in"):
        read(with_archives(kafka, store, APP), 5, 30)


def test_only_messages_with_forgotten_keys_may_have_fewer_rows_than_sent() -> None:
    """A replay of a later stage reads the remaining rows. Elsewhere, counts must match the manifests."""
    kafka, store = a_kafka(), MemoryStore()
    rows = pa.RecordBatch.from_pydict({"tail": ["N001", "N003", "N003"]})
    for attempt in (b"a1", b"a2"):
        send_messages(kafka, TOPIC, [(0, encode_rows(rows))], attempt, patience_s=1)
    archive(store, kafka, (0, 0, 1), (0, 1, 2))
    kafka.delete_records(TOPIC, 2)
    head = index.newest(store, APP, TOPIC)
    assert head is not None
    (had,) = objects.ArchivedRecords(store, head.objects[0]).all_rows()
    rest = encode_rows(rows.slice(0, 1))
    left = had.set_column(had.schema.get_field_index("value"), "value", pa.array([rest] * had.num_rows, pa.binary()))
    changes = {head.objects[0].object: write(store, head, [left], head.objects[0].extents, 1)}
    index.change(store, head, index.replace_update(changes, forgotten=True), by=BY, now_ms=2)
    behind = with_archives(kafka, store, APP)

    def found(first: int, sent: int) -> list[str]:
        attempts = frozenset({"a1", "a2"})
        part = Range(0, first, first + 1, sent)
        chunks = list(
            read_rows(behind, TOPIC, (part,), lambda some: decode_rows(some, attempts, rows.schema), patience_s=1)
        )
        return [tail for each in chunks for tail in each["tail"].to_pylist()]

    assert found(0, 3) == ["N001"]
    assert found(1, 3) == ["N001", "N003", "N003"]
    with pytest.raises(Corruption, match="holds 3 rows of committed attempts, but the manifests say 4"):
        found(1, 4)
    with pytest.raises(Corruption, match="holds 1 rows"):  # more than was sent is damage there, too
        found(0, 0)


def test_damaged_archive_objects_are_replaced_by_records_from_kafka_if_it_has_them() -> None:
    kafka, store = a_kafka(), MemoryStore()
    fill(kafka, 30)
    archive(store, kafka, (0, 0, 10), (0, 10, 20), (0, 20, 25))
    before, head = read(kafka, 0, 30), index.newest(store, APP, TOPIC)
    assert head is not None
    store.put(head.objects[1].object, b"no Parquet")
    assert read(with_archives(kafka, store, APP), 0, 30) == before
    kafka.delete_records(TOPIC, 12)
    with pytest.raises(Corruption, match="of the input archive is damaged"):
        read(with_archives(kafka, store, APP), 0, 30)
    assert read(with_archives(kafka, store, APP), 20, 30) == before[20:]


def test_without_an_archive_reads_behave_as_from_kafka() -> None:
    kafka, behind = a_kafka(), with_archives(a_kafka(), MemoryStore(), APP)
    fill(behind.kafka, 10)
    behind.kafka.delete_records(TOPIC, 5)
    with pytest.raises(Gone, match=r"offsets 0 to 4 of orders\[0\] are gone from Kafka(\n|$)"):
        read(behind, 0, 10)
    errors: list[Gone] = []
    assert len(told(list(behind.read(TOPIC, 0, 0, 10, patience_s=1, deletion_errors=errors)))) == 5
    assert (len(errors), behind.offset_bounds(TOPIC)) == (1, ((5,), (10,)))
    with pytest.raises(Refused, match="there is no such partition"):
        list(with_archives(kafka, MemoryStore(), APP).read("nowhere", 0, 0, 1, patience_s=1))


def test_a_recreated_topic_is_not_read_in_place_of_the_archived_one() -> None:
    kafka, store = a_kafka(), MemoryStore()
    fill(kafka, 10)
    archive(store, kafka, (0, 0, 6))
    before = read(kafka, 0, 6)
    kafka.delete_topics([TOPIC])
    # The topic does not exist: only the archive answers.
    assert read(with_archives(kafka, store, APP), 0, 6) == before
    kafka.create_topics({TOPIC: 1})
    kafka.send(TOPIC, [Record(b"other", 0)] * 20, patience_s=1)
    kafka.delete_records(TOPIC, 2)
    behind = with_archives(kafka, store, APP)
    assert read(behind, 0, 6) == before
    with pytest.raises(Gone, match=r"offsets 6 to 9 of orders\[0\] are of a topic that was deleted and created again"):
        read(behind, 4, 10)
    assert behind.offset_bounds(TOPIC) == kafka.offset_bounds(TOPIC)
    # A reader that continues asks Kafka, and gets no records of the former topic for those that Kafka lost of this one.
    going_on = ArchivedKafka(kafka, behind.archives, archive_first=False)
    assert len(read(going_on, 2, 20)) == 18
    with pytest.raises(Gone, match="offsets 0 to 1"):
        read(going_on, 0, 20)


def test_a_clone_also_reads_its_sources_archive() -> None:
    kafka, store = a_kafka(), MemoryStore()
    apps.ensure_app(store, AppInfo(APP, 1))
    apps.ensure_app(store, AppInfo("staging", 2, Origin(store.url, APP, "s", {})))
    fill(kafka, 20)
    archive(store, kafka, (0, 0, 12))
    archive(store, kafka, (0, 10, 20), app="staging")
    before = read(kafka, 0, 20)
    kafka.delete_records(TOPIC, 20)
    assert read(with_archives(kafka, store, "staging"), 0, 20) == before
    with pytest.raises(Gone, match="offsets 12 to 19"):
        read(with_archives(kafka, store, APP), 0, 20)


def test_two_topics_of_the_same_name_are_read_from_separate_archives() -> None:
    kafka, store = a_kafka(), MemoryStore()
    fill(kafka, 10)
    first = kafka.topic_id(TOPIC)
    archive(store, kafka, (0, 0, 6))
    before = read(kafka, 0, 6)
    kafka.delete_topics([TOPIC])
    kafka.create_topics({TOPIC: 1})
    kafka.send(TOPIC, [Record(b"other", 0)] * 20, patience_s=1)
    second = kafka.topic_id(TOPIC)
    rows = [
        pa.Table.from_batches([MessageColumns(c).to_archive_batch()], SCHEMA)
        for c in kafka.read(TOPIC, 0, 0, 8, patience_s=1)
    ]
    where, life = (Extent(0, 0, 8),), index.empty_index(APP, TOPIC, 2, second)
    index.change(store, life, index.append_update((write(store, life, rows, where, 1),), where), by=BY, now_ms=2)
    behind = with_archives(kafka, store, APP)
    of = {"patience_s": 1.0}
    assert told(list(behind.read(TOPIC, 0, 0, 6, topic_id=first, **of))) == before  # type: ignore[arg-type]
    values = {value[4] for value in told(list(behind.read(TOPIC, 0, 0, 20, topic_id=second, **of)))}  # type: ignore[arg-type]
    assert values == {b"other"}
    with pytest.raises(Gone, match=r"offsets 6 to 9 of orders\[0\] are of a topic that was deleted and created again"):
        list(behind.read(TOPIC, 0, 6, 10, topic_id=first, **of))  # type: ignore[arg-type]
    # What can be read once more is told by the topic's id, too: by version that read up to an offset.
    held = KafkaChannels(behind).held()
    assert held(Input(TOPIC, (6,), topic_id=first)) == Remaining((0,), is_recreated=True)
    assert not held(Input(TOPIC, (10,), topic_id=first)).has(0, 6)
    assert held(Input(TOPIC, (10,), topic_id=second)) == Remaining((0,))
    assert KafkaChannels(kafka).held()(Input(TOPIC, (6,), topic_id=first)) == Remaining(is_recreated=True)
    # Without an archive nothing of it is there.
    with pytest.raises(AnotherTopic, match=f"its id was {first}, and is now {second}"):
        list(with_archives(kafka, MemoryStore(), APP).read(TOPIC, 0, 0, 6, topic_id=first, **of))  # type: ignore[arg-type]
