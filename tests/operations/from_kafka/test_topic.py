"""Following a topic: after each version the table has the newest value of each key up to the version's offsets."""

from contextlib import nullcontext, suppress
from functools import partial
from pathlib import Path
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st
from slackwater.errors import Fenced, NotFound, Refused, Unavailable
from slackwater.operations.repair.rewind import rewind
from slackwater.pipeline.kafka.channels import KafkaChannels
from slackwater.pipeline.kafka.memory import MemoryKafka
from slackwater.pipeline.kafka.protocol import Record
from slackwater.snapshot.cut.refs import parse_ref
from slackwater.snapshot.verify.verify import verify
from slackwater.store.objects.memory import MemoryStore
from slackwater.store.read.cache import SstCache

from tests.crash.points import Killed, killed_at_each_call
from tests.operations.attach.following import versions
from tests.operations.from_kafka.following import (
    DAY_MS,
    START_MS,
    Clock,
    LoggedTopic,
    Value,
    followed,
    read_all,
    rows_of,
    tail_of,
)
from tests.support.collecting import AgingStore


@pytest.fixture
def cache(tmp_path: Path) -> SstCache:
    return SstCache(tmp_path / "cache", 1 << 30)


@pytest.fixture
def topic(memory_kafka: MemoryKafka) -> LoggedTopic:
    made = LoggedTopic(memory_kafka)
    made.create()
    return made


def orders(first: int, count: int, keys: int = 7) -> list[tuple[str, Value]]:
    return [(f"c{number % keys}", {"orders": number, "name": f"n{number}"}) for number in range(first, first + count)]


def check(store: MemoryStore, cache: SstCache, topic: LoggedTopic) -> None:
    for version in versions(store):
        if version.kind == "batch":
            assert rows_of(store, cache, version) == topic.state(version.inputs[topic.name].offsets), version.version


def test_the_first_version_has_the_newest_row_of_each_key_and_each_later_poll_is_a_version(
    cache: SstCache, topic: LoggedTopic
) -> None:
    store, clock = MemoryStore(), Clock()
    topic.send(orders(0, 30))
    following = tail_of(store, cache, topic.kafka, clock)
    read_all(following)
    for round_number in range(3):
        clock.now_ms += 1_000
        topic.send([*orders(100 * round_number, 5), (f"c{round_number}", None)])
        read_all(following)
    made = [version for version in versions(store) if version.kind == "batch"]
    assert [version.time_ms for version in made] == [START_MS + 1_000 * number for number in range(4)]
    check(store, cache, topic)
    assert verify(store, "shop", now_ms=clock.now_ms, deep=True).consistent


def test_a_restarted_follower_continues_at_the_next_offset_with_the_stored_formats(
    cache: SstCache, topic: LoggedTopic
) -> None:
    store, clock = MemoryStore(), Clock()
    topic.send(orders(0, 10))
    read_all(tail_of(store, cache, topic.kafka, clock, value="json", columns="orders double"))
    topic.send(orders(10, 1))
    (made,) = read_all(tail_of(store, cache, topic.kafka, clock))
    assert made.rows == 1
    assert made.manifest.table is not None
    assert made.manifest.table.values[0].type == "double"
    assert made.manifest.attached is not None
    assert made.manifest.attached.formats["columns"] == "orders double"
    check(store, cache, topic)


def test_compaction_between_two_reads_changes_nothing(cache: SstCache, topic: LoggedTopic) -> None:
    store, clock = MemoryStore(), Clock()
    topic.send(orders(0, 20))
    following = tail_of(store, cache, topic.kafka, clock)
    read_all(following)
    topic.send([*orders(20, 20), ("c3", None)])
    topic.kafka.compact(topic.name)
    clock.now_ms += 1_000
    (made,) = read_all(following)
    assert made.rows == 7
    check(store, cache, topic)


def test_after_a_break_longer_than_tombstones_are_kept_the_whole_topic_is_compared(
    cache: SstCache, topic: LoggedTopic, caplog: pytest.LogCaptureFixture
) -> None:
    store, clock = MemoryStore(), Clock()
    topic.send(orders(0, 20))
    read_all(tail_of(store, cache, topic.kafka, clock))
    topic.send([("c3", None), *orders(20, 1)])
    topic.kafka.compact(topic.name, tombstones=True)
    clock.now_ms += DAY_MS + 1
    (made,) = read_all(tail_of(store, cache, topic.kafka, clock))
    assert made.rows == 2, "the deleted row and the changed one"
    check(store, cache, topic)
    assert "tombstones may be gone" in caplog.text


@pytest.mark.parametrize("dies", [True, False], ids=["the process dies", "the store does not answer"])
@pytest.mark.parametrize("requests", range(13))
def test_a_break_within_a_backlog_never_hides_its_tombstones(
    cache: SstCache, topic: LoggedTopic, requests: int, dies: bool
) -> None:
    """The backlog has several batches.

    At some request, 20 hours pass, and Kafka deletes tombstones that are 40 hours old.
    """
    store, clock = AgingStore(), Clock()
    topic.send(orders(0, 20))
    read_all(tail_of(store, cache, topic.kafka, clock))
    topic.send([*orders(20, 25), ("c3", None), ("c4", None), *orders(42, 3)])
    clock.now_ms += DAY_MS * 5 // 6
    following = tail_of(store, cache, topic.kafka, clock)
    following.checkpoint.max_records = 10  # type: ignore[attr-defined]
    left = [requests]

    def pause(_verb: str, _key: str) -> None:
        left[0] -= 1
        if left[0] == -1:
            clock.now_ms += DAY_MS * 5 // 6
            topic.kafka.compact(topic.name, tombstones=True)
            if dies:
                raise Killed

    store.before = pause
    with suppress(Killed):
        read_all(following)
    assert left[0] < 0, "the break was within the backlog"
    store.before = lambda _verb, _key: None
    read_all(tail_of(store, cache, topic.kafka, clock))
    assert rows_of(store, cache, versions(store)[-1]) == topic.state((99, 99))


def test_a_rewind_to_a_moment_before_tombstones_were_deleted_leads_to_a_comparison(
    cache: SstCache, topic: LoggedTopic
) -> None:
    store, clock = MemoryStore(), Clock()
    topic.send(orders(0, 20))
    following = tail_of(store, cache, topic.kafka, clock)
    read_all(following)
    clock.now_ms += DAY_MS
    topic.send([("c3", None), *orders(20, 1)])
    read_all(following)
    topic.kafka.compact(topic.name, tombstones=True)
    target = parse_ref("shop/totals@v2", now_ms=clock.now_ms)
    rewind(store, "shop", target, KafkaChannels(topic.kafka), by="ann", now_ms=clock.now_ms, cache=cache)
    assert "c3" in rows_of(store, cache, versions(store)[-1])
    read_all(tail_of(store, cache, topic.kafka, clock))
    assert rows_of(store, cache, versions(store)[-1]) == topic.state((99, 99))


def test_a_topic_that_was_created_again_replaces_the_rows_and_the_history_stays(
    cache: SstCache, topic: LoggedTopic, caplog: pytest.LogCaptureFixture
) -> None:
    store, clock = MemoryStore(), Clock()
    topic.send(orders(0, 20))
    following = tail_of(store, cache, topic.kafka, clock)
    read_all(following)
    before = topic.state((99, 99))
    topic.kafka.delete_topics([topic.name])
    with pytest.raises(Unavailable, match="does not exist any more"):
        following.commit_next()
    topic.create()
    topic.send(orders(500, 3))
    (made,) = read_all(following)
    assert rows_of(store, cache, made.manifest) == topic.state((99, 99))
    assert rows_of(store, cache, versions(store)[1]) == before
    assert "was deleted and created again" in caplog.text
    (source,) = made.manifest.inputs.values()
    assert source.topic_id == topic.kafka.topic_id(topic.name)
    assert [reset.version for reset in source.resets] == [made.manifest.version - 1], "a claim"
    topic.send(orders(503, 2))
    assert len(read_all(tail_of(store, cache, topic.kafka, clock))) == 1
    assert verify(store, "shop", now_ms=clock.now_ms, deep=True).consistent


@pytest.mark.parametrize("behind", ["one batch", "one after the other", "the first version", "the whole topic"])
def test_of_a_key_that_moved_to_an_added_partition_the_later_record_counts(
    cache: SstCache, topic: LoggedTopic, behind: str
) -> None:
    """With a third partition, c0 moves from the second to the first, and c1 from the first to the third."""
    store, clock = MemoryStore(), Clock()
    topic.send(orders(0, 14))
    if behind != "the first version":
        read_all(tail_of(store, cache, topic.kafka, clock))
    topic.send(orders(14, 7))
    if behind == "one after the other":
        read_all(tail_of(store, cache, topic.kafka, clock))
    topic.add_partition()
    topic.send([*orders(21, 6), ("c6", None)])
    if behind == "the whole topic":
        clock.now_ms += 2 * DAY_MS
    read_all(tail_of(store, cache, topic.kafka, clock))
    assert rows_of(store, cache, versions(store)[-1]) == topic.state((99, 99, 99))


def test_unread_records_that_retention_deleted_lead_to_a_comparison(cache: SstCache, memory_kafka: MemoryKafka) -> None:
    store, clock = MemoryStore(), Clock()
    topic = LoggedTopic(memory_kafka, partitions=1, config={"cleanup.policy": "compact,delete"})
    topic.create()
    topic.send(orders(0, 14))
    read_all(tail_of(store, cache, topic.kafka, clock))
    topic.send([("c1", None), *orders(20, 3)])
    topic.kafka.delete_records(topic.name, 15)
    topic.log[0][:15] = [None] * 15
    read_all(tail_of(store, cache, topic.kafka, clock))
    newest = versions(store)[-1]
    assert rows_of(store, cache, newest) == topic.state((99,)), "rows without a record are gone, as after a restore"


def test_a_new_field_becomes_a_column_while_the_topic_is_followed(cache: SstCache, topic: LoggedTopic) -> None:
    store, clock = MemoryStore(), Clock()
    topic.send(orders(0, 4))
    following = tail_of(store, cache, topic.kafka, clock)
    read_all(following)
    topic.send([("c1", {"orders": 9, "tier": {"name": "gold"}}), ("c9", {"tier": {"name": "new", "since": 3}})])
    read_all(following)
    check_nested = rows_of(store, cache, versions(store)[-1])
    assert check_nested["c1"] == {"orders": 9, "tier": {"name": "gold", "since": None}}
    assert check_nested["c9"] == {"tier": {"name": "new", "since": 3}}
    assert check_nested["c2"] == {"orders": 2, "name": "n2"}
    assert [version.kind for version in versions(store)] == ["claim", "batch", "claim", "batch"]
    assert verify(store, "shop", now_ms=clock.now_ms, deep=True).consistent


def test_new_fields_far_apart_in_one_batch_become_columns(cache: SstCache, memory_kafka: MemoryKafka) -> None:
    """A batch is read 10,000 records at a time: new fields appear in the first read, and others in a later one."""
    store, clock, topic = MemoryStore(), Clock(), LoggedTopic(memory_kafka, partitions=1)
    topic.create()
    topic.send(orders(0, 4))
    following = tail_of(store, cache, topic.kafka, clock)
    read_all(following)
    topic.send([("x", {"x": 1}), *orders(4, 15_000), ("y", {"y": 2}), *orders(15_004, 10_000), ("z", {"z": 3})])
    read_all(following)
    check(store, cache, topic)
    assert [version.kind for version in versions(store)] == ["claim", "batch", "claim", "claim", "claim", "batch"]


TAKEN = ("id", "_deleted", "_partition", "_offset", "_Hash")


@given(st.permutations([prefix + name for name in TAKEN for prefix in ("", "value_", "value_value_")]))
def test_fields_with_names_of_key_columns_and_of_slackwater_get_a_prefix(cache_folder: Path, names: list[str]) -> None:
    """Each record has one field more than the one before, and is read by a new process, which knows the columns."""
    store, clock, cache = MemoryStore(), Clock(), SstCache(cache_folder / "cache", 1 << 30)
    topic = LoggedTopic(MemoryKafka.named(f"memory://{uuid4().hex}"))
    topic.create()
    for count in (1, 2, 8, len(names)):
        topic.send(
            [(f'{{"id": {count}}}', {name: number for number, name in enumerate(names[:count])} | {"other": -1})]
        )
        read_all(tail_of(store, cache, topic.kafka, clock, key="json"))
    expected = {f"value_{name}": number for number, name in enumerate(names)} | {"other": -1}
    rows = rows_of(store, cache, versions(store)[-1])
    assert rows[len(names)] == expected
    assert rows[1] == {f"value_{names[0]}": 0, "other": -1}


@pytest.mark.parametrize("name", ["_deleted", "_partition", "_Offset", "_hash"])
def test_a_key_with_the_name_of_a_column_of_slackwater_is_refused(topic: LoggedTopic, name: str) -> None:
    topic.send([(f'{{"{name}": 1}}', {"n": 1})])
    with pytest.raises(Refused, match=f"the keys of topic 'shop-totals-changelog' have a field '{name}'") as raised:
        followed(MemoryStore(), topic.kafka, Clock(), key="json")
    assert "--key FILE:FUNCTION" in raised.value.hint


def test_a_record_that_cannot_be_decoded_ends_the_attachment_and_is_named(cache: SstCache, topic: LoggedTopic) -> None:
    store, clock = MemoryStore(), Clock()
    topic.send(orders(0, 4))
    following = tail_of(store, cache, topic.kafka, clock)
    read_all(following)
    topic.kafka.send(topic.name, [Record(b'{"orders": "many"}', 1, b"c1")], patience_s=5)
    offset = len(topic.log[1])
    with pytest.raises(
        Refused, match=rf"value of shop-totals-changelog\[1\]@{offset} cannot be decoded: field orders is a string"
    ):
        following.commit_next()
    with pytest.raises(Refused, match=rf"changelog\[1\]@{offset} cannot be decoded: field orders is a string"):
        tail_of(MemoryStore(), cache, topic.kafka, clock)
    topic.create()
    topic.kafka.send(topic.name, [Record(b'{"orders": 1}', 0, b"\xff")], patience_s=5)
    with pytest.raises(Refused, match=r"the key of .*\[0\]@\d+ cannot be decoded: it is not UTF-8"):
        tail_of(MemoryStore(), cache, topic.kafka, clock)


def test_records_without_a_key_are_left_out_as_by_a_ktable(
    cache: SstCache, topic: LoggedTopic, caplog: pytest.LogCaptureFixture
) -> None:
    store, clock = MemoryStore(), Clock()
    topic.send(orders(0, 4))
    topic.kafka.send(topic.name, [Record(b'{"orders": 1}', 0, None)], patience_s=5)
    read_all(tail_of(store, cache, topic.kafka, clock))
    assert len(rows_of(store, cache, versions(store)[-1])) == 4
    assert "records without a key are left out" in caplog.text


def test_a_missing_topic_and_one_that_lost_records_are_said(topic: LoggedTopic) -> None:
    store, clock = MemoryStore(), Clock()
    topic.config = {"cleanup.policy": "delete"}
    topic.create()
    topic.send(orders(0, 40))
    assert followed(store, topic.kafka, clock).notes() == ()
    topic.kafka.delete_records(topic.name, 3)
    (note,) = followed(store, topic.kafka, clock).notes()
    assert "is not compacted (cleanup.policy=delete), and its first 3 records are gone" in note
    topic.kafka.delete_topics([topic.name])
    with pytest.raises(NotFound, match="no Kafka topic named 'shop-totals-changelog'"):
        followed(store, topic.kafka, clock)


def test_the_first_of_two_followers_is_fenced(cache: SstCache, topic: LoggedTopic) -> None:
    store, clock = MemoryStore(), Clock()
    topic.send(orders(0, 4))
    first, second = (tail_of(store, cache, topic.kafka, clock) for _ in range(2))
    read_all(first)
    read_all(second)
    topic.send(orders(4, 1))
    with pytest.raises(Fenced, match="was taken over"):
        first.commit_next()
    read_all(second)
    check(store, cache, topic)


def test_a_killed_follower_is_continued_by_the_next_one(cache: SstCache) -> None:
    """The follower is killed at every request of a claim, a first version, batches, and a comparison with the topic."""

    def fresh() -> tuple[AgingStore, LoggedTopic, Clock]:
        topic = LoggedTopic(MemoryKafka.named(f"memory://{uuid4().hex}"))
        topic.create()
        topic.send(orders(0, 9))
        return AgingStore(), topic, Clock()

    def work(world: tuple[AgingStore, LoggedTopic, Clock]) -> None:
        store, topic, clock = world
        read_all(tail_of(store, cache, topic.kafka, clock))
        topic.send([("c3", None), *orders(9, 3)])
        topic.kafka.compact(topic.name, tombstones=True)
        clock.now_ms += 2 * DAY_MS
        read_all(tail_of(store, cache, topic.kafka, clock))

    for (store, topic, clock), _ in killed_at_each_call("attach-topic", fresh, work, lambda world: world[0]):
        read_all(tail_of(store, cache, topic.kafka, clock))
        check(store, cache, topic)
        (source,) = versions(store)[-1].inputs.values()
        assert source.offsets == tuple(map(len, topic.log))


KEYS = st.sampled_from(["a", "b", "c", "d"])
SENT = st.lists(st.tuples(KEYS, st.none() | st.integers(0, 3)), min_size=1, max_size=6)
DOES = st.one_of(
    st.tuples(st.just("send"), SENT),
    st.tuples(st.just("send"), SENT),
    st.tuples(st.just("round"), st.none()),
    st.tuples(st.just("restart"), st.none()),
    st.tuples(st.just("kill"), st.integers(0, 12)),
    st.tuples(st.just("compact"), st.booleans()),
    st.tuples(st.just("create again"), SENT),
    st.tuples(st.just("add a partition"), st.none()),
)


@given(st.lists(DOES, max_size=25))
def test_no_version_is_ever_wrong(cache_folder: Path, does: list[tuple[str, object]]) -> None:
    """The topic is written, compacted and recreated; the follower is killed and restarted."""
    store, clock, cache = AgingStore(), Clock(), SstCache(cache_folder / "cache", 1 << 30)
    topic = LoggedTopic(MemoryKafka.named(f"memory://{uuid4().hex}"))
    topic.create()
    topic.send([("z", {"n": 1})])
    # A topic may have only tombstones.
    follow = partial(tail_of, store, cache, topic.kafka, clock, columns="n bigint")
    following, checked = follow(), 0
    for what, how in does:
        clock.now_ms += 1_000
        if what in ("send", "create again"):
            if what == "create again":
                topic.create()
            topic.send([(key, None if value is None else {"n": value}) for key, value in how])  # type: ignore[attr-defined]
        elif what == "compact":
            # Without its tombstone in a new partition, a key's record in an old one counts again: for Kafka, too.
            expired = bool(how) and len(topic.log) == topic.partitions
            topic.kafka.compact(topic.name, tombstones=expired)
            # Kafka keeps tombstones for a day.
            clock.now_ms += 2 * DAY_MS if expired else 0
        elif what == "add a partition":
            topic.add_partition()
        else:
            killed = False
            if what != "round" or following is None:
                following = follow()
            with store.death_after(int(how)) if what == "kill" else nullcontext():  # type: ignore[call-overload]
                try:
                    read_all(following)
                except Killed:
                    killed = True
            if killed:
                following = follow()
            read_all(following)
            newest = versions(store)[-1]
            assert newest.version >= checked
            checked = newest.version
            if source := newest.inputs.get(topic.name):
                assert rows_of(store, cache, newest) == topic.state(source.offsets)
                # An added partition without records makes no version.
                assert sum(source.offsets) == sum(map(len, topic.log))


@pytest.fixture(scope="module")
def cache_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("attach-topic")
