"""A store with hot places, beside a plain dictionary: where SSTs lie, and that every process finds them."""

import pickle
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from slackwater.errors import ObjectNotFound, Refused, Usage
from slackwater.store.hot.hot_store import HotStore
from slackwater.store.hot.places import PLACES, declare_hot_place
from slackwater.store.objects.counting import CountingStore, Stats
from slackwater.store.objects.local import LocalStore, SpooledStore
from slackwater.store.objects.memory import MemoryStore
from slackwater.store.objects.protocol import ObjectStore
from slackwater.store.versions import keys
from slackwater.store.versions.forgotten import INDEXES, empty_index

LATER_MS = 4_000_000_000_000
APPS = ("flights", "flights2")
HOT = tuple(keys.sst(app, "legs", f"01A{number}{keys.HOT}") for app in APPS for number in range(3))
COLD = (*(keys.sst(app, "legs", "01A1") for app in APPS), keys.app_info("flights"), keys.manifest("flights", "legs", 1))
KEYS = st.sampled_from(HOT + COLD)


class RootedStore(MemoryStore):
    """Store in memory that has other roots beside it."""

    def at(self, root: str) -> ObjectStore:
        if root not in ("", self.url):
            self._stores_by_root.setdefault(root, MemoryStore(root))
        return super().at(root)

    @property
    def places(self) -> dict[str, list[str]]:
        """Keys under each other root, without the place's own folder."""
        others = {root: [info.key for info in store.list("")] for root, store in self._stores_by_root.items()}
        return {root.rpartition("/")[0]: listed for root, listed in others.items() if listed}


STEPS = st.one_of(
    st.tuples(st.just("put"), KEYS),
    st.tuples(st.just("delete"), KEYS),
    st.tuples(st.just("declare"), st.sampled_from(APPS), st.sampled_from(("/hot-a", "/hot-b"))),
    st.tuples(st.just("settle"), st.sampled_from(APPS), st.sampled_from((0, LATER_MS))),
    st.tuples(st.just("list"), KEYS, st.integers(0, 99), st.sampled_from(("", *HOT, *COLD))),
)


@given(steps=st.lists(st.tuples(st.integers(0, 1), STEPS), max_size=30))
def test_two_processes_see_one_store(steps: list[tuple[int, tuple[str, ...]]]) -> None:
    inner, model = RootedStore("/store"), set[str]()
    processes = (HotStore(inner), HotStore(inner))
    for process, (verb, name, *words) in steps:
        store = processes[process]
        match verb, words:
            case "put", _:
                store.put(name, name.encode())
                model.add(name)
            case "delete", _:
                # Whoever deletes SSTs lists them first.
                assert (name in {info.key for info in store.list(name.rpartition("/")[0] + "/")}) == (name in model)
                store.delete(name)
                model.discard(name)
            case "declare", [root]:
                declare_hot_place(store, name, root)
            case "settle", [now_ms]:
                store.settle(name, now_ms)
            case "list", [end, after]:
                app = name.partition("/")[0]
                prefix = name[: max(len(app) + 1, end)]
                listed = [info.key for info in store.list(prefix, after) if keys.hot_places(app) not in info.key]
                assert listed == sorted(key for key in model if key.startswith(prefix) and key > after)
        for key in HOT + COLD:
            for each in processes:
                if key in model:
                    assert (each.get(key), each.get_range(key, 1, 1)) == (key.encode(), key[1:2].encode())
                else:
                    with pytest.raises(ObjectNotFound, match=key):
                        each.get(key)
    assert {key for listed in inner.places.values() for key in listed} <= set(HOT)


def test_only_hot_ssts_lie_in_the_newest_place() -> None:
    inner = RootedStore("/store")
    store = HotStore(inner)
    store.put(HOT[0], b"0")
    for number, root in enumerate(("/a", "/b", "/b", "/a"), 1):
        declare_hot_place(store, APPS[0], root)
        if number < 3:
            store.put(HOT[number], b"")
        store.put(COLD[0], b"")
    assert [place.root.rpartition("/")[0] for place in PLACES.all(inner, APPS[0])] == ["/a", "/b", "/a"]
    assert inner.places == {"/a": [HOT[1]], "/b": [HOT[2]]}


def test_other_requests_cost_what_they_cost_without_places() -> None:
    counting = CountingStore(RootedStore("/store"))
    store = HotStore(counting)
    declare_hot_place(store, APPS[0], "/hot")
    store.put(HOT[0], b"1")
    counting.take_stats()
    store.put(COLD[0], b"1")
    assert (store.get(COLD[0]), store.get_range(COLD[0], 0, 1)) == (b"1", b"1")
    for prefix in (keys.manifests(APPS[0], "legs"), keys.app_info(APPS[0]), keys.snapshots(APPS[0])):
        assert [*store.list(prefix)] == []
    assert store.get(HOT[0]) == b"1"  # the place is known by now
    assert counting.take_stats() == Stats(puts=1, gets=3, lists=3, bytes_read=3, bytes_written=1)


@pytest.mark.parametrize("root", ["/store", "/store/hot", "/"])
def test_a_place_is_another_root(root: str) -> None:
    store = HotStore(RootedStore("/store"))
    with pytest.raises(Usage):
        declare_hot_place(store, APPS[0], "/store/" if root == "/store" else root)
    assert PLACES.all(store, APPS[0]) == ()


def test_a_copy_of_a_store_does_not_touch_the_ssts_of_the_original() -> None:
    original, copy = RootedStore("/store"), RootedStore("/copy")
    declare_hot_place(HotStore(original), APPS[0], "/hot")
    HotStore(original).put(HOT[0], b"1")
    for info in original.list(""):
        copy.put(info.key, original.get(info.key))
    copy._stores_by_root = original._stores_by_root
    store = HotStore(copy)
    assert store.get(HOT[0]) == b"1"
    for write in (
        lambda: list(store.list("flights/")),
        lambda: store.put(HOT[1], b""),
        lambda: store.delete(HOT[0]),
        lambda: store.settle(APPS[0], LATER_MS),
    ):
        with pytest.raises(Refused, match="belong to /store") as caught:
            write()
        assert "--store /store" in caught.value.hint
    assert original.places == {"/hot": [HOT[0]]}


@pytest.mark.parametrize("forgotten", [False, True])
def test_an_sst_that_has_cost_more_storage_than_a_put_is_moved(*, forgotten: bool) -> None:
    inner = RootedStore("/store")
    store = HotStore(inner)
    declare_hot_place(store, APPS[0], "/hot")
    data = bytes(61_709)  # a put costs what these bytes cost in a month
    store.put(HOT[0], data)
    store.put(HOT[1], data[:1])
    (written_ms,) = {info.modified_ms for info in store.list(HOT[0])}
    store.settle(APPS[0], written_ms + 729 * 3_600_000)
    assert inner.places == {"/hot": [HOT[0], HOT[1]]}
    if forgotten:  # another process has replaced it since this one read it
        INDEXES.add(inner, replace(empty_index(APPS[0]), number=1, time_ms=1, by="x", ssts={HOT[0]: None}))
    CountingStore(store).settle(APPS[0], written_ms + 731 * 3_600_000)
    assert inner.places == {"/hot": [HOT[1]]}
    if not forgotten:
        assert inner.get(HOT[0]) == store.get(HOT[0]) == data
    else:
        with pytest.raises(ObjectNotFound):
            store.get(HOT[0])


def test_local_files_are_read_where_they_lie(tmp_path: Path) -> None:
    plain = LocalStore(tmp_path / "store")
    store, spool = HotStore(plain), tmp_path / "spool"
    store.put(HOT[0], b"before")
    declare_hot_place(store, APPS[0], str(tmp_path / "hot"))
    store.put(HOT[1], b"in the place")
    spooled = SpooledStore(CountingStore(store), spool)
    spooled.put(HOT[2], b"in the spool")
    for key, inside in ((HOT[0], "store"), (HOT[1], "hot"), (HOT[2], "spool")):
        path = spooled.local_path(key)
        assert path is not None
        assert path.read_bytes() == spooled.get(key)
        assert path.is_relative_to(tmp_path / inside)
    assert pickle.loads(pickle.dumps(store)).get(HOT[1]) == b"in the place"  # noqa: S301
    spooled.upload(HOT[2])
    spooled.drop_spooled(HOT[2])
    path = spooled.local_path(HOT[2])
    assert path is not None
    assert path.is_relative_to(tmp_path / "hot")
