"""The archiver: it archives the input of committed batches, despite kills, and whatever was spooled."""

import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from slackwater.pipeline.kafka.archived import with_archives
from slackwater.pipeline.kafka.columns import MessageColumns
from slackwater.pipeline.kafka.memory import MemoryKafka
from slackwater.pipeline.kafka.protocol import Kafka, Record
from slackwater.pipeline.source import spool
from slackwater.pipeline.source.spool import InputSpool
from slackwater.pipeline.upkeep import archiver
from slackwater.pipeline.upkeep.archiver import Archiver
from slackwater.snapshot.status.overview import archive_status
from slackwater.store.archive import index, merge
from slackwater.store.archive.extents import Extent
from slackwater.store.archive.index import ArchiveIndex
from slackwater.store.objects.memory import MemoryStore
from slackwater.store.objects.protocol import ObjectStore
from slackwater.store.versions import apps
from slackwater.store.versions.manifest import AppInfo, Input, Manifest, Reset

from tests.store.objects.faulty_store import FaultyStore
from tests.support.manifests import manifest

TOPIC, BY = "orders", "here:1"


def a_kafka(count: int = 100, partitions: int = 2) -> MemoryKafka:
    kafka = MemoryKafka(f"memory://{uuid4().hex}")
    kafka.create_topics({TOPIC: partitions})
    kafka.send(TOPIC, (Record(b"%d" % n, p) for n in range(count) for p in range(partitions)), patience_s=1)
    return kafka


def at(version: int, *offsets: int, stage: str = "countries") -> Manifest:
    made = replace(manifest(version), app="shop", stage=stage, time_ms=1_000 + version, kind="batch")
    return replace(made, inputs={TOPIC: Input(TOPIC, offsets)})


def archiver_of(store: ObjectStore, kafka: Kafka, folder: Path | None = None) -> Archiver:
    apps.ensure_app(getattr(store, "_inner", store), AppInfo("shop", 1))
    kept = InputSpool(folder) if folder is not None else None
    return Archiver(store, "shop", kafka, {TOPIC: 86_400_000}.get, spool=kept, by=BY, patience_s=1)


def read_batch(kafka: Kafka, folder: Path, before: tuple[int, ...], after: tuple[int, ...]) -> None:
    """Spool a batch as readers do."""
    for partition, (first, end) in enumerate(zip(before, after, strict=True)):
        if first < end:
            with InputSpool(folder).open_writer(TOPIC, Extent(partition, first, end)) as keeper:
                for chunk in kafka.read(TOPIC, partition, first, end, patience_s=1):
                    assert keeper is not None
                    keeper.add(MessageColumns(chunk))


def newest(store: ObjectStore) -> ArchiveIndex:
    found = index.newest(store, "shop", TOPIC)
    assert found is not None
    return found


def values(kafka: Kafka, partition: int, first: int, end: int) -> list[bytes | None]:
    chunks = kafka.read(TOPIC, partition, first, end, patience_s=1)
    return [each.value() for chunk in chunks for each in chunk]


@given(
    st.lists(
        st.tuples(st.integers(0, 9), st.integers(0, 9), st.sampled_from(["spooled", "half", "lost"]), st.booleans()),
        min_size=1,
        max_size=8,
    ),
    st.sets(st.integers(1, 7), max_size=3),
    st.integers(0, 99),
)
def test_everything_read_since_the_start_is_archived_once_despite_kills(
    tmp_path_factory: pytest.TempPathFactory, batches: list[tuple[int, int, str, bool]], deaths: set[int], seed: int
) -> None:
    kafka, inner, folder = a_kafka(), MemoryStore(), tmp_path_factory.mktemp("spool")
    store = FaultyStore(inner, seed, refused=0.05, lost=0.05, late=0.05, echoed=0.05)
    stands = (3, 5)
    going = archiver_of(store, kafka, folder)
    going.on_version(at(1, *stands))
    for number, (one, other, how, is_round) in enumerate(batches, 2):
        after = stands[0] + one, stands[1] + other
        if how != "lost":
            read_batch(kafka, folder, stands, after if how == "spooled" else (after[0], stands[1]))
        going.on_version(at(number, *after))
        stands = after
        if is_round:
            going.archive_pending()
        if number in deaths:
            going = archiver_of(store, kafka, tmp_path_factory.mktemp("spool"))
            going.on_version(replace(at(number, *stands), kind="claim"))
    store._rates = dict.fromkeys(store._rates, 0.0)
    store.settle()
    for topic in going._topics.values():
        topic.retry_s = 0
    going.archive_pending()
    if deaths and not any(is_round for *_, is_round in batches):
        return  # it may have begun with the last death
    head = newest(inner)
    assert head.unarchived([((), stands)]) == ()
    assert [each.lag for each in going.states] == [0]
    before = [values(kafka, partition, head.begins[partition], stands[partition]) for partition in (0, 1)]
    for partition in (0, 1):
        kafka.delete_records(TOPIC, 100, partition)
    behind = with_archives(kafka, inner, "shop")
    assert [values(behind, p, head.begins[p], stands[p]) for p in (0, 1)] == before
    if not deaths:
        assert list(folder.glob("*/[0-9]*")) == []


def test_a_backlog_of_batches_becomes_one_object_and_objects_are_merged(tmp_path: Path) -> None:
    kafka, store = a_kafka(), MemoryStore()
    going = archiver_of(store, kafka, tmp_path)
    going.on_version(at(1, 0, 0))
    going.on_version(at(2, 4, 0))
    going.on_version(at(3, 4, 4))
    going.archive_pending()
    assert [each.extents for each in newest(store).objects] == [(Extent(0, 0, 4), Extent(1, 0, 4))]
    for number in range(8):
        going.on_version(at(4 + number, 5 + number, 4))
        going.archive_pending()
    assert len(newest(store).objects) < merge._MERGE_WIDTH
    assert newest(store).covered == (Extent(0, 0, 12), Extent(1, 0, 4))
    (state,) = going.states
    assert (state.lag, state.bytes, state.objects) == (0, newest(store).bytes, len(newest(store).objects))


def test_records_skipped_by_a_reset_are_not_archived_and_those_read_before_it_are() -> None:
    kafka, store = a_kafka(), MemoryStore()
    going = archiver_of(store, kafka)
    going.on_version(at(1, 0, 0))
    going.archive_pending()
    # Read up to 10 and not archived; then set on to 20, read up to 25; set back to 5, and read up to 8.
    resets = (Reset(2, (10, 0), (20, 0)), Reset(3, (25, 0), (5, 0)))
    head = at(4, 8, 0)
    there = replace(head, kind="claim", inputs={n: replace(i, resets=resets) for n, i in head.inputs.items()})
    assert archive_status(newest(store), [there]).behind == 15
    going = archiver_of(store, kafka)
    going.on_version(there)
    going.archive_pending()
    assert newest(store).covered == (Extent(0, 0, 10), Extent(0, 20, 25))
    assert archive_status(newest(store), [there]).behind == 0


def test_records_deleted_by_kafka_become_a_gap_and_the_rest_is_archived(caplog: pytest.LogCaptureFixture) -> None:
    kafka, store = a_kafka(), MemoryStore()
    going = archiver_of(store, kafka)
    going.on_version(at(1, 0, 0))
    going.archive_pending()
    kafka.delete_records(TOPIC, 10, 0)
    going.on_version(at(2, 30, 0))
    with caplog.at_level(logging.INFO, "slackwater"):
        going.archive_pending()
    assert newest(store).covered == (Extent(0, 10, 30),)
    assert newest(store).unarchived([((), (30, 0))]) == (Extent(0, 0, 10),)
    assert "orders[0]@0..10 of shop is gone from Kafka, and not in its input archive" in caplog.text
    assert [each.lag for each in going.states] == [0]


def test_a_stage_that_starts_later_at_earlier_offsets_is_archived_too() -> None:
    kafka, store = a_kafka(), MemoryStore()
    going = archiver_of(store, kafka)
    going.on_version(at(1, 50, 50))
    going.archive_pending()
    going.on_version(at(1, 0, 0, stage="late"))
    going.on_version(at(2, 60, 50))
    going.on_version(at(2, 20, 0, stage="late"))
    going.archive_pending()
    assert newest(store).covered == (Extent(0, 0, 20), Extent(0, 50, 60))
    assert newest(store).begins == (50, 50)


def test_a_recreated_topic_gets_a_separate_archive(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(archiver, "_TOPIC_CHECK_S", -1)
    kafka, store = a_kafka(), MemoryStore()
    going = archiver_of(store, kafka)
    going.on_version(at(1, 0, 0))
    going.on_version(at(2, 10, 0))
    going.archive_pending()
    kafka.delete_topics([TOPIC])
    kafka.create_topics({TOPIC: 2})
    kafka.send(TOPIC, [Record(b"new", 0)] * 20, patience_s=1)
    going.on_version(at(3, 20, 0))
    going.archive_pending()
    assert "orders was deleted and created again" in caplog.text
    first, second = index.iter_archives(store, "shop")
    assert (first.life, first.covered) == (1, (Extent(0, 0, 10),))
    assert (second.life, second.covered, second.topic_id) == (2, (Extent(0, 10, 20),), kafka.topic_id(TOPIC))
    again = archiver_of(store, kafka)
    again.on_version(at(3, 20, 0))
    again.archive_pending()
    assert len(list(index.iter_archives(store, "shop"))) == 2


def test_offsets_read_from_one_topic_are_not_archived_from_its_successor() -> None:
    kafka, store = a_kafka(), MemoryStore()
    former = kafka.topic_id(TOPIC)

    def read_of(version: int, *offsets: int) -> Manifest:
        return replace(at(version), inputs={TOPIC: Input(TOPIC, offsets, topic_id=former)})

    going = archiver_of(store, kafka)
    going.on_version(read_of(1, 0, 0))
    going.on_version(read_of(2, 10, 0))
    kafka.delete_topics([TOPIC])
    kafka.create_topics({TOPIC: 2})
    kafka.send(TOPIC, [Record(b"new", 0)] * 20, patience_s=1)
    going.archive_pending()
    (state,) = going.states
    assert f"topic {TOPIC!r} was deleted and created again since it was read" in state.error
    assert (newest(store).covered, newest(store).topic_id, newest(store).rows) == ((), former, 0)


def test_records_missing_from_a_full_or_damaged_spool_are_read_from_kafka(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kafka, store = a_kafka(), MemoryStore()
    going = archiver_of(store, kafka, tmp_path)
    going.on_version(at(1, 0, 0))
    going.archive_pending()
    read_batch(kafka, tmp_path, (0, 0), (10, 0))
    (file,) = (tmp_path / TOPIC).glob("*.arrow")
    file.write_bytes(file.read_bytes()[:100])
    going.on_version(at(2, 10, 0))
    going.archive_pending()
    for topic in going._topics.values():
        topic.retry_s = 0
    going.archive_pending()
    assert newest(store).covered == (Extent(0, 0, 10),)
    monkeypatch.setattr(spool, "_MAX_BYTES", 10)
    read_batch(kafka, tmp_path, (10, 0), (20, 0))
    assert len(InputSpool(tmp_path).list_files(TOPIC)) == 1
    with InputSpool(tmp_path).open_writer(TOPIC, Extent(0, 20, 30)) as keeper:
        assert keeper is None
    going.on_version(at(3, 30, 0))
    going.archive_pending()
    assert newest(store).covered == (Extent(0, 0, 30),)
    assert InputSpool(tmp_path).list_files(TOPIC) == []
    with InputSpool(tmp_path).open_writer(TOPIC, Extent(0, 20, 30)) as keeper:
        assert keeper is not None


def test_a_partially_read_range_is_not_spooled(tmp_path: Path) -> None:
    kafka = a_kafka()

    def reading() -> Iterator[None]:
        with InputSpool(tmp_path).open_writer(TOPIC, Extent(0, 0, 10)) as keeper:
            for chunk in kafka.read(TOPIC, 0, 0, 10, patience_s=1):
                assert keeper is not None
                keeper.add(MessageColumns(chunk))
                yield

    left = reading()
    next(left)
    left.close()
    assert [*tmp_path.glob("*/*.arrow")] == []


def test_the_archiver_runs_in_a_thread_and_finishes_its_work_at_the_end() -> None:
    kafka, store = a_kafka(), MemoryStore()
    going = archiver_of(store, kafka)
    with going.running(lambda: 10.0):
        going.on_version(at(1, 0, 0))
        going.on_version(at(2, 40, 2))
    assert newest(store).covered == (Extent(0, 0, 40), Extent(1, 0, 2))
    assert not [each for each in threading.enumerate() if each.name == "archiver"]
