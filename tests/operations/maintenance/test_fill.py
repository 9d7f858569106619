"""`archive` fills input archives from Kafka, and `compact` merges their objects."""

from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from msgspec.structs import replace
from slackwater.common import instants
from slackwater.errors import NotFound
from slackwater.operations.maintenance.archive_fill import TopicFilled, fill, merge_archives
from slackwater.pipeline.kafka.channels import KafkaChannels
from slackwater.pipeline.kafka.memory import MemoryKafka
from slackwater.pipeline.kafka.protocol import Record
from slackwater.snapshot.cut.resolve import resolve
from slackwater.snapshot.status.overview import archive_statuses
from slackwater.snapshot.take.audit_log import list_operations
from slackwater.store.archive import index
from slackwater.store.archive.extents import Extent
from slackwater.store.archive.index import ArchiveIndex
from slackwater.store.objects.local import LocalStore
from slackwater.store.objects.memory import MemoryStore
from slackwater.store.objects.protocol import ObjectStore
from slackwater.store.versions import apps, commit, history
from slackwater.store.versions.manifest import AppInfo, Input, Manifest

from tests.cli.verbs.calling import slackwater
from tests.crash.points import NumberedBroker, killed_at_each_call
from tests.store.archive.small_archives import append
from tests.support.collecting import AgingStore

APP, TOPIC, BY, DAY_MS = "shop", "orders", "somebody@here", 86_400_000
BEGAN_MS = 1_700_000_000_000


def an_app(store: ObjectStore, *, days: int = 3) -> MemoryKafka:
    """Return an app that began at offset 5, and read ten records per day from each of two partitions."""
    kafka = MemoryKafka.named(f"memory://{uuid4().hex}")
    kafka.create_topics({TOPIC: 2})
    kafka.send(TOPIC, (Record(b"%d" % n, p, time_ms=BEGAN_MS + n) for n in range(100) for p in (0, 1)), patience_s=1)
    apps.ensure_app(store, AppInfo(APP, BEGAN_MS))
    head = Manifest(APP, "s", 1, 1, "w", BEGAN_MS, "claim", {TOPIC: Input(TOPIC, (5, 5))})
    commit.commit(store, head)
    for day in range(1, days + 1):
        read = {TOPIC: Input(TOPIC, (5 + 10 * day, 5 + 10 * day), rows=20)}
        head = replace(head, version=1 + day, kind="batch", time_ms=BEGAN_MS + day * DAY_MS, inputs=read)
        commit.commit(store, head)
    return kafka


def newest(store: ObjectStore) -> ArchiveIndex:
    found = index.newest(store, APP, TOPIC)
    assert found is not None
    return found


def test_archive_adds_the_records_read_since_a_moment_with_their_times() -> None:
    store = MemoryStore()
    kafka = KafkaChannels(an_app(store))
    since = resolve(store, f"{APP}/s@v2", now_ms=instants.now_ms())
    looked = fill(store, APP, kafka, since, by=BY, dry_run=True)
    assert looked == (TopicFilled(TOPIC, 40, 0, ()),)
    assert index.newest(store, APP, TOPIC) is None
    assert fill(store, APP, kafka, since, by=BY) == (TopicFilled(TOPIC, 40, 40, ()),)
    assert newest(store).covered == (Extent(0, 15, 35), Extent(1, 15, 35))
    assert [each.read_ms for each in newest(store).objects] == [BEGAN_MS + 2 * DAY_MS, BEGAN_MS + 3 * DAY_MS]
    assert fill(store, APP, kafka, since, by=BY) == (TopicFilled(TOPIC, 0, 0, ()),)
    # "From the beginning" means: from where the app began to read.
    assert fill(store, APP, kafka, None, by=BY) == (TopicFilled(TOPIC, 20, 20, ()),)
    assert newest(store).covered == (Extent(0, 5, 35), Extent(1, 5, 35))
    (first, second) = list_operations(store, APP, 0)
    assert (first.verb, second.detail) == ("archive", f"from {since.ref}: 40 records of orders")


def test_records_no_longer_in_kafka_are_named_and_the_rest_is_added() -> None:
    store = MemoryStore()
    kafka = an_app(store)
    append(store, APP, Extent(0, 5, 8))
    kafka.delete_records(TOPIC, 20, 0)
    found = fill(store, APP, KafkaChannels(kafka), None, by=BY)
    assert found == (TopicFilled(TOPIC, 45, 45, ("[0]@8..20",)),)
    assert newest(store).gaps == (Extent(0, 8, 20),)
    kafka.delete_topics([TOPIC])
    (again,) = fill(store, APP, KafkaChannels(kafka), None, by=BY)
    assert (again.offsets, again.gone) == (0, ("[0]@8..20",))


def test_a_killed_archive_call_is_finished_by_the_same_call() -> None:
    def build() -> tuple[AgingStore, NumberedBroker]:
        store = AgingStore()
        return store, NumberedBroker(KafkaChannels(an_app(store, days=4)), store)

    def filled(world: tuple[AgingStore, Any]) -> None:
        fill(world[0], APP, world[1], None, by=BY)

    for (store, kafka), _ in killed_at_each_call("archive", build, filled, lambda world: world[0]):
        filled((store, kafka))
        assert newest(store).covered == (Extent(0, 5, 45), Extent(1, 5, 45))
        assert newest(store).rows == 80


def test_a_recreated_topic_is_not_added_to_the_old_topics_archive() -> None:
    store = MemoryStore()
    kafka = an_app(store)
    fill(store, APP, KafkaChannels(kafka), None, by=BY)
    before = newest(store)
    kafka.delete_topics([TOPIC])
    kafka.create_topics({TOPIC: 2})
    kafka.send(TOPIC, [Record(b"new", p) for p in (0, 1)] * 50, patience_s=1)
    fill(store, APP, KafkaChannels(kafka), None, by=BY)
    assert newest(store) == before
    assert index.newest_incarnations(store, APP) == {TOPIC: 2}


def test_small_objects_of_a_day_are_merged_on_demand() -> None:
    store = MemoryStore()
    kafka = KafkaChannels(an_app(store, days=2))
    fill(store, APP, kafka, None, by=BY)
    for at in range(50, 60):
        append(store, APP, Extent(0, at, at + 1), read_ms=BEGAN_MS + 2 * DAY_MS)
    looked = merge_archives(store, APP, full=True, by=BY, dry_run=True)
    assert [(each.before, each.after) for each in looked] == [(12, 2)]
    assert len(newest(store).objects) == 12
    (done,) = merge_archives(store, APP, full=True, by=BY)
    assert (done.before, done.after, len(newest(store).objects)) == (12, 2, 2)
    assert merge_archives(store, APP, full=True, by=BY) == ()


def test_the_status_compares_the_archive_with_the_offsets_read() -> None:
    store = MemoryStore()
    an_app(store, days=3)
    append(store, APP, Extent(0, 5, 25), Extent(1, 5, 35))
    cut = resolve(store, APP, now_ms=instants.now_ms())
    (found,) = archive_statuses(store, APP, cut.stages.values())
    assert (found.behind, found.gaps, found.holds) == (10, (), ("[0]@5..25", "[1]@5..35"))


@pytest.mark.parametrize("words", [("--from", "beginning", "--dry-run"), ("--from", "beginning"), ()])
def test_the_verb_prints_the_added_and_all_archived_records(
    words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = LocalStore(tmp_path)
    kafka = an_app(store)
    monkeypatch.setenv("SLACKWATER_STORE", str(tmp_path))
    monkeypatch.setenv("SLACKWATER_KAFKA", kafka.address)
    result = slackwater("archive", APP, *words)
    assert result.exit_code == 0, result.output
    expected = {
        (): "shop has no input archive",
        ("--from", "beginning"): "added 60 records of orders to its input archive",
    }
    assert expected.get(words, "would add 60 offsets of orders to its input archive") in result.stdout
    if words == ("--from", "beginning"):
        assert "orders from [0]@5..35, [1]@5..35" in result.stdout
        assert "input archive" in slackwater("status", APP).stdout
        again = slackwater("archive", APP, *words)
        assert "done already: the input archive of orders has all records that Kafka still has" in again.stdout
        assert slackwater("archive", APP, "--from", "other@-1h").exit_code == 2


def test_archiving_an_unknown_app_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLACKWATER_STORE", str(tmp_path))
    with pytest.raises(NotFound):
        fill(MemoryStore(), "nowhere", KafkaChannels(MemoryKafka("memory://x")), None, by=BY)
    assert slackwater("archive", "nowhere").exit_code == 1


def test_offsets_read_from_a_former_topic_are_not_archived_from_its_successor() -> None:
    store = MemoryStore()
    memory = an_app(store)
    kafka, former = KafkaChannels(memory), memory.topic_id(TOPIC)
    head = history.head(store, APP, "s")
    assert head is not None
    read = {TOPIC: replace(head.inputs[TOPIC], offsets=(45, 45), topic_id=former)}
    commit.commit(store, replace(head, version=head.version + 1, time_ms=head.time_ms + 1, inputs=read))
    memory.delete_topics([TOPIC])
    memory.create_topics({TOPIC: 2})
    memory.send(TOPIC, [Record(b"other", p) for p in (0, 1) for _ in range(100)], patience_s=1)
    unknown, known = fill(store, APP, kafka, None, by=BY, dry_run=True)
    # For versions from before topic ids were stored, the topic cannot be told.
    assert (unknown.topic, unknown.gone) == (TOPIC, ())
    assert (known.topic, known.offsets, known.gone) == (TOPIC, 0, ("[0]@35..45", "[1]@35..45"))
