"""The index of objects that replace those with forgotten keys, and its caches."""

import pytest
from msgspec.structs import replace
from slackwater.errors import Corruption, Unstorable
from slackwater.store.objects.counting import CountingStore
from slackwater.store.objects.memory import MemoryStore
from slackwater.store.versions import forgotten, history, keys
from slackwater.store.versions.commit import commit, successor
from slackwater.store.versions.entries.ssts import Sst
from slackwater.store.versions.forgotten import ForgetJournal, ForgottenIndex, RemainingRecords
from slackwater.store.versions.manifest import Manifest

from tests.support.manifests import claim

ULIDS = [f"01JD000000000000000000000{letter}" for letter in "ABCD"]


def sst(ulid: str, level: int = 0, root: str = "") -> Sst:
    key = keys.sst("app", "stage", ulid)
    return Sst(key, 0, level, 1, 10, "ab", 1, 2, 1, 1, 1, "ab", 1, root=root)


OLD, NEW, NEWER, OTHER = map(sst, ULIDS)


def changed(store: MemoryStore | CountingStore, **ssts: Sst | None) -> ForgottenIndex:
    by_key = {keys.sst("app", "stage", ULIDS["ABCD".index(letter)]): now for letter, now in ssts.items()}
    return forgotten.change(store, "app", lambda head: head.with_changes(by_key, {}, {}), by="ada", now_ms=5)


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def head(store: MemoryStore) -> Manifest:
    def with_ssts(draft: Manifest) -> Manifest:
        return replace(draft, ssts=(OLD, replace(OTHER, level=3)))

    return claim(store, "app", "stage", writer="w", by="host:1", now_ms=1, build=with_ssts)


def test_a_version_is_read_with_the_replacements_of_its_ssts(store: MemoryStore, head: Manifest) -> None:
    assert history.read(store, "app", "stage", 1).ssts == head.ssts
    changed(store, A=NEW, D=replace(OTHER, object=NEWER.object))
    found = history.read(store, "app", "stage", 1).ssts
    assert [(each.object, each.level) for each in found] == [(NEW.object, 0), (NEWER.object, 3)]
    assert history.read_stored(store, "app", "stage", 1) == head
    changed(store, B=None)
    assert [each.object for each in history.read(store, "app", "stage", 1).ssts] == [NEWER.object]
    assert forgotten.newest(store, "app").current_keys([OLD.object, OTHER.object, "x"]) == (NEWER.object, "x")


def test_no_entry_leads_to_an_object_that_is_itself_replaced(store: MemoryStore) -> None:
    changed(store, A=NEW)
    made = changed(store, B=NEWER)
    assert made.ssts == {OLD.object: NEWER, NEW.object: NEWER}
    with pytest.raises(Unstorable, match="an object that is not replaced itself"):
        forgotten.INDEXES.put(store, replace(made, number=9, ssts={OLD.object: NEW, NEW.object: NEWER}))
    gone = RemainingRecords("app/snapshots/s/channels/b.parquet", 2, 9, "ab", (1, 0))
    first = ForgottenIndex("app", 1, 1, "ada").with_changes({}, {"a": gone}, {})
    second = first.with_changes({}, {str(gone.key): RemainingRecords(None, gone=(0, 2, 1))}, {"s": 7})
    assert (second.records["a"].key, second.records["a"].gone, second.snapshots) == (None, (1, 2, 1), {"s": 7})


def test_a_manifest_written_after_a_forgetting_makes_readers_read_the_index_which_others_read_once(
    store: MemoryStore, head: Manifest
) -> None:
    other = CountingStore(store)
    for _ in range(3):
        history.read(other, "app", "stage", 1)
    assert other.counts == {"get_range": 1, "list": 1}
    changed(store, A=NEW)
    assert history.read(other, "app", "stage", 1).ssts[0] == OLD  # it has not heard of it
    draft = successor(head, kind="forget", epoch=1, writer="w", by="ada", now_ms=2)
    commit(store, replace(draft, ssts=(NEW,), forgotten=1))
    assert history.read(other, "app", "stage", 2).ssts == (NEW,)
    assert history.read(other, "app", "stage", 1).ssts[0] == NEW


def test_a_damaged_index_is_an_error_and_a_change_that_lost_a_race_is_computed_again(store: MemoryStore) -> None:
    changed(store, A=NEW)
    raced = False

    def update(head: ForgottenIndex) -> ForgottenIndex:
        nonlocal raced
        if not raced:
            raced = True
            changed(store, D=None)
        return head.with_changes({NEW.object: NEWER}, {}, {})

    made = forgotten.change(store, "app", update, by="ada", now_ms=6)
    assert (made.number, set(made.ssts)) == (3, {OLD.object, NEW.object, OTHER.object})
    forgotten.delete_replaced(store, "app", 1 << 60)
    assert [info.key for info in store.list("app/forgotten/")] == [forgotten.INDEXES.key(made)]
    store.put(forgotten.INDEXES.key(made), b"{}")
    with pytest.raises(Corruption):
        forgotten.newest(CountingStore(store), "app")


def test_the_first_journal_stays_until_it_is_deleted(store: MemoryStore) -> None:
    assert forgotten.find_journal(store, "app") is None
    note = ForgetJournal(ULIDS[0], "app", "ada@host", 1, "00", "ab")
    assert forgotten.begin_journal(store, "app", note) == note
    assert forgotten.begin_journal(store, "app", replace(note, id=ULIDS[1])) == note
    forgotten.delete_journal(store, "app")
    assert forgotten.find_journal(store, "app") is None
