"""Following a query: one version per batch, missed batches reported, despite clean-ups and kills."""

import datetime
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from slackwater.errors import Fenced, Refused
from slackwater.operations.maintenance.compact import StageCompactor
from slackwater.operations.repair.rewind import rewind
from slackwater.pipeline.kafka.channels import KafkaChannels
from slackwater.pipeline.kafka.memory import MemoryKafka
from slackwater.pipeline.kafka.protocol import Record
from slackwater.snapshot.cut.refs import parse_ref
from slackwater.snapshot.cut.replicas import Replica
from slackwater.snapshot.query.log import describe_imported_batches
from slackwater.snapshot.take.audit_log import list_operations
from slackwater.snapshot.verify.verify import verify
from slackwater.store.objects.memory import MemoryStore
from slackwater.store.read.cache import SstCache
from slackwater.store.versions import codec, keys

from tests.crash.points import Killed, killed_at_each_call
from tests.operations.attach.following import (
    SEEN,
    START_MS,
    TOTALS,
    RacingCheckpoint,
    caught_up,
    check_never_wrong,
    commit,
    query,
    rows_at,
    tail,
    truth,
    versions,
)
from tests.operations.attach.memory_checkpoint import MemoryCheckpoint, Row
from tests.support.collecting import AgingStore

DAY = datetime.date(2026, 11, 26)


@pytest.fixture
def cache(tmp_path: Path) -> SstCache:
    return SstCache(tmp_path / "cache", 1 << 30)


def batch(checkpoint: MemoryCheckpoint, number: int) -> None:
    """Commit a batch that adds, changes and removes rows of all tables, and appends to lists."""
    gone: dict[Row, Row | None] = {(f"c{number - 3}",): None} if number > 2 else {}
    totals: dict[Row, Row | None] = {
        ("DE",): (number, 1.5 * number),
        (f"c{number}",): (1, None),
        (None,): (number, 0.0),
    }
    seen: dict[Row, Row | None] = {(number, DAY): (), (number - 2, DAY): None}
    days: list[int] = list(range(number // 4 * 4, number + 1))
    latest: dict[Row, Row | None] = {
        (1,): (days,),
        (number // 2 + 2,): ([number] * (number % 2 + 1),),
        (number - 5,): None,
    }
    commit(checkpoint, {"": totals | gone, "Seen": seen, "Latest": latest})


def batches(checkpoint: MemoryCheckpoint, count: int) -> None:
    for _ in range(count):
        batch(checkpoint, len(checkpoint.batches))


def brought(store: MemoryStore) -> list[str]:
    return [describe_imported_batches(each) for each in versions(store) if each.kind == "batch"]


def test_each_batch_is_a_version_and_the_first_has_all_earlier_batches(cache: SstCache) -> None:
    store, checkpoint = MemoryStore(), query()
    batches(checkpoint, 6)
    checkpoint.clean_up(before=2)
    following = tail(store, cache, checkpoint)
    landed = caught_up(following)
    assert brought(store) == ["batches 0 to 2", "batch 3", "batch 4", "batch 5"]
    assert [each.manifest.version for each in landed] == [2, 3, 4, 5]
    check_never_wrong(store, cache, checkpoint)
    assert versions(store)[0].time_ms == START_MS + 1_000, "a claim comes before the first batch"
    assert verify(store, "shop", now_ms=START_MS, deep=True).consistent
    (done,) = list_operations(store, "shop")
    assert (done.verb, done.detail) == ("attach", "totals: memory:checkpoint")


def test_batches_cleaned_up_before_they_were_read_are_one_version_that_says_so(cache: SstCache) -> None:
    store, checkpoint = MemoryStore(), query()
    batches(checkpoint, 3)
    following = tail(store, cache, checkpoint)
    caught_up(following)
    batches(checkpoint, 20)
    checkpoint.clean_up(before=12)
    caught_up(following)
    assert brought(store)[2:5] == ["batch 2", "batches 3 to 12", "batch 13"]
    check_never_wrong(store, cache, checkpoint)
    assert verify(store, "shop", now_ms=START_MS, deep=True).consistent


def test_without_a_changelog_a_version_is_the_difference_of_two_whole_states(cache: SstCache) -> None:
    store, checkpoint = MemoryStore(), query()
    checkpoint.keeps_changes = False
    batches(checkpoint, 3)
    following = tail(store, cache, checkpoint)
    caught_up(following)
    batch(checkpoint, 3)
    caught_up(following)
    batches(checkpoint, 2)
    caught_up(following)
    assert brought(store) == ["batches 0 to 2", "batch 3", "batches 4 to 5"]
    check_never_wrong(store, cache, checkpoint)
    changed = versions(store)[-1]
    assert sum(sst.rows for sst in changed.ssts if sst.seq_max == changed.version) == 6, "the rows that differ alone"


def test_a_restarted_follower_continues_and_versions_have_the_times_of_batches(cache: SstCache) -> None:
    store, checkpoint = MemoryStore(), query()
    batches(checkpoint, 2)
    caught_up(tail(store, cache, checkpoint))
    batches(checkpoint, 2)
    caught_up(tail(store, cache, checkpoint))
    assert [each.kind for each in versions(store)] == ["claim", "batch", "batch", "claim", "batch", "batch"]
    check_never_wrong(store, cache, checkpoint)


def test_the_first_of_two_followers_is_fenced(cache: SstCache) -> None:
    store, checkpoint = MemoryStore(), query()
    batches(checkpoint, 2)
    first, second = tail(store, cache, checkpoint), tail(store, cache, checkpoint)
    caught_up(first)
    caught_up(second)
    batch(checkpoint, 2)
    with pytest.raises(Fenced, match="was taken over"):
        first.commit_next()
    caught_up(second)
    check_never_wrong(store, cache, checkpoint)


def test_a_concurrent_merge_only_takes_a_version_number(cache: SstCache) -> None:
    store, checkpoint = MemoryStore(), query()
    batches(checkpoint, 12)
    following = tail(store, cache, checkpoint)
    caught_up(following)
    head = following.head
    assert head is not None
    merging = StageCompactor(store, cache, head, by="host:1", threads=1, now_ms=lambda: 0, stop=threading.Event())
    merged = [*merging.merge_until_done()]
    assert merged, "both tables have more runs than they may"
    batches(checkpoint, 2)
    # The follower is not notified of the merge: it builds on the version it knows.
    caught_up(following)
    check_never_wrong(store, cache, checkpoint)
    newest = versions(store)[-1]
    assert all(len(each.ssts) < 12 for each in newest.side_tables.values()), "tables beside it are merged, too"
    assert verify(store, "shop", now_ms=START_MS, deep=True).consistent


def test_a_stage_of_a_program_or_of_another_query_is_refused(cache: SstCache) -> None:
    store, checkpoint = MemoryStore(), query()
    batch(checkpoint, 0)
    caught_up(tail(store, cache, checkpoint))
    other = query()
    other.query = "another"
    batch(other, 0)
    with pytest.raises(Refused, match="is attached to the query 6a1c9c30"):
        tail(store, cache, other).claim()
    with pytest.raises(Refused, match="is attached to the query 6a1c9c30"):
        tail(store, cache, other).plan()


def test_after_a_rewind_the_batches_since_are_read_again(cache: SstCache) -> None:
    store, checkpoint = MemoryStore(), query()
    batches(checkpoint, 5)
    caught_up(tail(store, cache, checkpoint))
    later_ms, kafka = START_MS + 60_000, MemoryKafka("memory://orders")
    kafka.create_topics({"orders": 2})
    kafka.send("orders", [Record(b"", number % 2) for number in range(200)], patience_s=5)
    target = parse_ref("shop/totals@v3", now_ms=later_ms)
    rewind(store, "shop", target, KafkaChannels(kafka), by="ann", now_ms=later_ms, cache=cache)
    assert rows_at(store, cache, versions(store)[-1]) == truth(checkpoint, 1)
    batch(checkpoint, 5)
    caught_up(tail(store, cache, checkpoint))
    assert rows_at(store, cache, versions(store)[-1]) == truth(checkpoint, 5)


def test_a_query_is_not_followed_in_a_replica(cache: SstCache) -> None:
    store, checkpoint = MemoryStore(), query()
    batch(checkpoint, 0)
    caught_up(tail(store, cache, checkpoint))
    codec.put(store, keys.replica("shop"), Replica("shop", "s3://primary", 1))
    with pytest.raises(Refused, match="is a replica of s3://primary: `run` is possible only where the app runs"):
        tail(store, cache, checkpoint).claim()


def test_a_query_that_was_rolled_back_is_refused(cache: SstCache) -> None:
    store, checkpoint = MemoryStore(), query()
    batches(checkpoint, 5)
    following = tail(store, cache, checkpoint)
    caught_up(following)
    del checkpoint.batches[3:]
    with pytest.raises(Refused, match="batches up to 4, but its checkpoint ends with batch 2"):
        following.commit_next()


def test_a_query_that_was_rolled_back_and_continued_is_refused_when_attached_again(cache: SstCache) -> None:
    store, checkpoint = MemoryStore(), query()
    batches(checkpoint, 3)
    caught_up(tail(store, cache, checkpoint))
    last = checkpoint.batches.pop()
    checkpoint.batches.append(replace(last, offsets={"orders": (7, 7)}))
    with pytest.raises(Refused, match="was rolled back: its batch 2 has other offsets"):
        tail(store, cache, checkpoint).claim()


def test_a_table_that_the_query_added_begins_with_all_of_its_rows(cache: SstCache) -> None:
    store, checkpoint = MemoryStore(), query(TOTALS)
    batches(checkpoint, 3)
    caught_up(tail(store, cache, checkpoint))
    # The query was started again with one more table, and some of its batches are gone.
    checkpoint.tables = (TOTALS, SEEN)
    batches(checkpoint, 3)
    caught_up(tail(store, cache, checkpoint))
    newest = versions(store)[-1]
    assert rows_at(store, cache, newest) == truth(checkpoint, 5)
    checkpoint.tables = (SEEN,)
    with pytest.raises(Refused, match="have changed from"):
        tail(store, cache, checkpoint).claim()


def test_a_killed_follower_is_continued_by_the_next_one(cache: SstCache) -> None:
    """The follower is killed at every request of a claim, of a first version, of batches, and of missed batches."""

    def fresh() -> tuple[AgingStore, RacingCheckpoint]:
        store, checkpoint = AgingStore(), query()
        batches(checkpoint, 3)
        return store, checkpoint

    def work(world: tuple[AgingStore, RacingCheckpoint]) -> None:
        store, checkpoint = world
        caught_up(tail(store, cache, checkpoint))
        batches(checkpoint, 6)
        checkpoint.clean_up(before=6)
        caught_up(tail(store, cache, checkpoint))

    for (store, checkpoint), _ in killed_at_each_call("attach", fresh, work, lambda world: world[0]):
        caught_up(tail(store, cache, checkpoint))
        check_never_wrong(store, cache, checkpoint)
        newest = versions(store)[-1]
        assert newest.attached is not None
        assert newest.attached.next_batch == len(checkpoint.batches)


KEYS = st.integers(0, 5)
CHANGED = st.dictionaries(KEYS, st.none() | st.integers(0, 2), max_size=4)
DOES = st.one_of(
    st.tuples(st.just("commit"), CHANGED),
    st.tuples(st.just("commit"), CHANGED),
    st.tuples(st.just("clean up"), st.integers(1, 4)),
    st.tuples(st.just("round"), st.none()),
    st.tuples(st.just("restart"), st.none()),
    st.tuples(st.just("kill"), st.integers(0, 12)),
    st.tuples(st.just("merge"), st.none()),
    st.tuples(st.just("race"), st.lists(st.booleans(), max_size=6)),
    st.tuples(st.just("changelog"), st.booleans()),
)


@given(st.lists(DOES, max_size=25))
def test_no_version_is_ever_wrong(cache_folder: Path, does: list[tuple[str, object]]) -> None:
    """The query commits and cleans up, even between two reads; the follower is killed and restarted."""
    store, checkpoint, cache = AgingStore(), query(), SstCache(cache_folder / "cache", 1 << 30)
    following = tail(store, cache, checkpoint)

    def a_batch(changed: dict[int, int | None]) -> None:
        totals: dict[Row, Row | None] = {
            (str(key),): None if value is None else (value, 0.5) for key, value in changed.items()
        }
        seen: dict[Row, Row | None] = {(key, DAY): None if value == 0 else () for key, value in changed.items()}
        before = checkpoint.state(len(checkpoint.batches) - 1)["Latest"] if checkpoint.batches else {}
        latest: dict[Row, Row | None] = {
            (key,): None if value is None else ([*(before.get((key,), ([],))[0] if value else []), value],)  # type: ignore[misc]
            for key, value in changed.items()
        }
        commit(checkpoint, {"": totals, "Seen": seen, "Latest": latest})

    def one_round() -> None:
        if following.head is None:
            following.claim()
        following.commit_next()

    for what, how in does:
        if what == "commit":
            a_batch(how)  # type: ignore[arg-type]
        elif what == "clean up" and checkpoint.batches:
            checkpoint.clean_up(before=len(checkpoint.batches) - how)  # type: ignore[operator]
        elif what == "changelog":
            checkpoint.keeps_changes = bool(how)
        elif what == "race":
            # Between two reads, a batch is committed, and all before the last one are cleaned up or none.
            def later(cleans: bool) -> None:
                a_batch({1: len(checkpoint.batches) % 3})
                checkpoint.clean_up(before=len(checkpoint.batches) - 1 if cleans else 0)

            checkpoint.between = iter([lambda cleans=cleans: later(cleans) for cleans in how])  # type: ignore[attr-defined, misc]
        elif not checkpoint.batches:
            continue  # a claim would be of now, and batches of then
        elif what == "restart":
            following = tail(store, cache, checkpoint)
        elif what == "round":
            one_round()
        elif what == "kill":
            with store.death_after(how):  # type: ignore[arg-type]
                try:
                    one_round()
                except Killed:
                    following = tail(store, cache, checkpoint)
        elif what == "merge" and following.head is not None:
            merging = StageCompactor(
                store, cache, following.head, by="host:1", threads=1, now_ms=lambda: 0, stop=threading.Event()
            )
            assert all(each.version for each in merging.merge_until_done(full=True))
    checkpoint.between = iter(())
    if not checkpoint.batches:
        a_batch({})
    caught_up(following)
    check_never_wrong(store, cache, checkpoint)
    newest = versions(store)[-1]
    assert newest.attached is not None
    assert newest.attached.next_batch == len(checkpoint.batches)


@pytest.fixture(scope="module")
def cache_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("attach")
