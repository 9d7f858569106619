"""Names of snapshots in a run's output, and the store requests to find them."""

from slackwater.pipeline.run.supervisor import snapshot_names
from slackwater.snapshot.cut.stored import SnapshotRequest
from slackwater.store.objects.counting import CountingStore
from slackwater.store.objects.memory import MemoryStore
from slackwater.store.versions import codec, keys
from ulid import ULID

from tests.store.objects.faulty_store import FaultyStore


def asked_for(store: CountingStore, name: str) -> SnapshotRequest:
    ulid = ULID()
    asked = SnapshotRequest(id=str(ulid), name=name, created_ms=ulid.milliseconds, by="ada@host")
    store.put(keys.json_object(keys.requests("app"), asked.id), codec.encode(asked))
    return asked


def test_each_snapshot_is_looked_up_once_however_many_stages_record_it() -> None:
    store = CountingStore(MemoryStore())
    first, known = asked_for(store, "first"), dict[str, str]()
    store.reset()
    assert snapshot_names(store, "app", (), known) == ()
    assert store.requests == 0, "most commits are part of none"
    for _ in range(3):
        assert snapshot_names(store, "app", (first.id,), known) == ("first",)
    assert store.counts == {"list": 1, "get_range": 1}
    second = asked_for(store, "second")
    store.reset()
    for _ in range(3):
        assert snapshot_names(store, "app", (second.id, first.id), known) == ("second", "first")
    assert store.counts == {"list": 1, "get_range": 2}


def test_an_id_without_a_known_name_is_shown_until_it_can_be_looked_up() -> None:
    store, known = CountingStore(MemoryStore()), dict[str, str]()
    asked = asked_for(store, "late")
    assert snapshot_names(FaultyStore(store, 0, refused=1.0), "app", (asked.id,), known) == (asked.id,)
    assert snapshot_names(store, "app", (asked.id, "withdrawn"), known) == ("late", "withdrawn")
