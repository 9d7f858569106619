"""The index of an archive: concurrent changes, and the changes and content that are valid."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from slackwater.errors import CommitConflict, Corruption, ObjectExists, Unstorable
from slackwater.store.archive import index
from slackwater.store.archive.extents import Extent, subtract, union
from slackwater.store.archive.index import ArchiveIndex
from slackwater.store.objects.memory import MemoryStore
from slackwater.store.versions import horizon, keys

from tests.store.archive.small_archives import BY, append, put
from tests.store.objects.faulty_store import FaultyStore

APP, TOPIC = "shop", "orders"
PREFIX = "shop/input/orders/"


def change(store: MemoryStore, update: index.Update) -> ArchiveIndex:
    return index.change(store, index.empty_index(APP, TOPIC), update, by=BY, now_ms=5)


def test_each_change_creates_an_index_and_the_newest_is_valid() -> None:
    store = MemoryStore()
    assert index.newest(store, APP, TOPIC) is None
    first = append(store, APP, Extent(0, 0, 10))
    second = append(store, APP, Extent(0, 10, 15), Extent(1, 0, 3))
    assert (first.number, second.number, second.follows) == (1, 2, first.id)
    assert index.newest(store, APP, TOPIC) == second
    assert second.covered == (Extent(0, 0, 15), Extent(1, 0, 3))
    assert second.rows == 18
    assert index.newest_incarnations(store, APP) == {TOPIC: 1}
    assert tuple(index.iter_archives(store, APP)) == (second,)


def test_the_same_offsets_are_not_appended_twice() -> None:
    store = MemoryStore()
    head = append(store, APP, Extent(0, 0, 10))
    assert append(store, APP, Extent(0, 9, 12)) == head
    assert change(store, index.append_update((), (Extent(0, 9, 12),))) == head


def test_the_loser_of_a_race_builds_on_the_winner() -> None:
    store = MemoryStore()
    append(store, APP, Extent(0, 0, 10))

    one = put(store, index.empty_index(APP, TOPIC), Extent(0, 10, 12))
    seen: list[int] = []

    def overtaken(head: ArchiveIndex) -> ArchiveIndex | None:
        seen.append(head.number)
        if len(seen) == 1:
            append(store, APP, Extent(1, 0, 4))
        return index.append_update((one,), (Extent(0, 10, 12),))(head)

    made = change(store, overtaken)
    assert (seen, made.number) == ([1, 2], 3)
    assert made.covered == (Extent(0, 0, 12), Extent(1, 0, 4))


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 20), st.integers(1, 6)), max_size=8), st.integers(0, 99))
def test_with_any_store_faults_an_archive_has_each_offset_once(wanted: list[tuple[int, int, int]], seed: int) -> None:
    inner = MemoryStore()
    faulty = FaultyStore(inner, seed, refused=0.1, lost=0.2, late=0.1, echoed=0.1)
    asked, told = set[Extent](), set[Extent]()
    for partition, first, size in wanted:
        extent = Extent(partition, first, first + size)
        one = put(inner, index.empty_index(APP, TOPIC), extent)
        for _ in range(20):
            try:
                head = index.change(
                    faulty, index.empty_index(APP, TOPIC), index.append_update((one,), (extent,)), by=BY, now_ms=1
                )
            except (OSError, ObjectExists):
                continue
            told.update(head.covered)
            break
        asked.add(extent)
    faulty.settle()
    # Decoding it holds it to the rest: no two objects have one offset, and all of theirs are covered.
    found = index.newest(inner, APP, TOPIC) or index.empty_index(APP, TOPIC)
    assert subtract(found.covered, asked) == subtract(told, found.covered) == ()
    assert union(*(each.extents for each in found.objects)) == found.covered


def test_a_writer_paused_during_a_garbage_collection_does_not_reuse_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore()
    for at in range(3):
        append(store, APP, Extent(0, at, at + 1))
    clock = iter(range(0, 100_000, 1_000))
    monkeypatch.setattr(horizon.freshness(store), "now", lambda: float(next(clock)))
    listed = index.INDEXES.listed(store, PREFIX)

    def asleep(head: ArchiveIndex) -> ArchiveIndex | None:
        if head.number == 3 and not slept:
            slept.append(True)
            append(store, APP, Extent(0, 3, 4))
            append(store, APP, Extent(0, 4, 5))
            for info in (*listed, *index.INDEXES.listed(store, PREFIX)[:-1]):
                store.delete(info.key)
        return index.append_update((), (Extent(1, 0, 9),))(head)

    slept: list[bool] = []
    made = change(store, asleep)
    assert made.number == 6
    assert made.covered == (Extent(0, 0, 5), Extent(1, 0, 9))
    assert index.newest(store, APP, TOPIC) == made


def test_records_deleted_by_retention_are_no_gap() -> None:
    store = MemoryStore()
    append(store, APP, Extent(0, 0, 10), read_ms=100)
    append(store, APP, Extent(0, 20, 30), read_ms=200)
    head = append(store, APP, Extent(0, 30, 40), read_ms=300)
    assert head.gaps == (Extent(0, 10, 20),)
    thin = change(store, index.thin_update(201))
    assert thin.covered == (Extent(0, 30, 40),)
    assert thin.thinned == (Extent(0, 0, 10), Extent(0, 20, 30))
    assert thin.gaps == (Extent(0, 10, 20),)
    assert change(store, index.thin_update(201)) == thin
    assert append(store, APP, Extent(0, 10, 30)).thinned == (Extent(0, 0, 10),)


def test_an_object_is_replaced_only_if_it_is_still_in_the_index() -> None:
    store = MemoryStore()
    append(store, APP, Extent(0, 0, 10))
    head = append(store, APP, Extent(0, 10, 20))
    old, kept = head.objects
    new = put(store, head, Extent(0, 0, 10), gaps=frozenset({4}))
    made = change(store, index.replace_update({old.object: new}))
    assert made.objects == (new, kept)
    assert made.covered == head.covered
    assert change(store, index.replace_update({old.object: None})) == made
    assert change(store, index.replace_update({new.object: None})).objects == (kept,)


def test_incarnations_of_a_topic_have_separate_archives() -> None:
    store = MemoryStore()
    append(store, APP, Extent(0, 0, 10))
    second = index.change(
        store, index.empty_index(APP, TOPIC, 2, "abc"), index.append_update((), (Extent(0, 0, 3),)), by=BY, now_ms=1
    )
    assert second.folder == "orders@2"
    assert second.topic_id == "abc"
    assert index.newest_incarnations(store, APP) == {TOPIC: 2}
    assert [each.life for each in index.iter_archives(store, APP)] == [1, 2]


def test_an_endless_race_is_given_up() -> None:
    store = MemoryStore()

    def overtaken(head: ArchiveIndex) -> ArchiveIndex | None:
        change(store, index.append_update((), (Extent(0, head.number, head.number + 1),)))
        return index.append_update((), (Extent(1, 0, 1),))(head)

    with pytest.raises(CommitConflict, match="could not be changed: other processes"):
        change(store, overtaken)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (lambda head: replace(head, covered=()), "covered is (); expected all offsets of its objects"),
        (lambda head: replace(head, objects=(*head.objects, head.objects[0])), "an object that is named once"),
        (
            lambda head: replace(
                head, objects=(*head.objects, replace(head.objects[0], object="shop/input/orders/A.parquet"))
            ),
            "offsets that no other object has",
        ),
        (
            lambda head: replace(head, objects=(replace(head.objects[0], object="shop/stages/a/sst/A.parquet"),)),
            "a key like shop/input/orders/ULID.parquet",
        ),
        (
            lambda head: replace(head, covered=(Extent(0, 0, 99), Extent(0, 50, 100))),
            "offsets after the previous extent",
        ),
    ],
)
def test_an_impossible_index_is_not_stored(wrong: object, says: str) -> None:
    store = MemoryStore()
    append(store, APP, Extent(0, 0, 10))
    with pytest.raises(Unstorable, match=r".*") as caught:
        change(store, wrong)  # type: ignore[arg-type]
    assert says in caught.value.message


def test_a_damaged_index_or_one_of_another_topic_is_named() -> None:
    store = MemoryStore()
    append(store, APP, Extent(0, 0, 10))
    key = f"{keys.archive_indexes(PREFIX)}{1:020}.json"
    data = store.get(key)
    store.put(key, data.replace(b'"rows":10', b'"rows":11'))
    with pytest.raises(Corruption, match="it does not match its checksum"):
        index.newest(store, APP, TOPIC)
    store.put(key.replace("orders", "others"), data)
    with pytest.raises(Corruption, match="has the content of another object"):
        index.newest(store, APP, "others")
