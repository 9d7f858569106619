"""A store with hot places, beside a plain dictionary: where SSTs lie, and that every process finds them."""

import pickle
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from slackwater.common import runtime
from slackwater.errors import Forbidden, NotFound, ObjectNotFound, Refused, SlackwaterError, Unavailable, Usage
from slackwater.operations.staging.clone import clone
from slackwater.operations.staging.clone_plan import CloneTerms
from slackwater.snapshot.cut.moments import heads_of
from slackwater.snapshot.gc.collect import collect
from slackwater.snapshot.gc.reachable import Retention
from slackwater.snapshot.verify.verify import verify
from slackwater.store.hot.hot_store import HotStore
from slackwater.store.hot.places import PLACES, declare_hot_place
from slackwater.store.objects.counting import CountingStore, Stats
from slackwater.store.objects.local import LocalStore, SpooledStore
from slackwater.store.objects.memory import MemoryStore
from slackwater.store.objects.protocol import ObjectInfo, ObjectStore
from slackwater.store.read.cache import SstCache
from slackwater.store.sst.writer import write_sst
from slackwater.store.versions import keys
from slackwater.store.versions.forgotten import INDEXES, empty_index

from tests.store.sst.test_writer import ROUTES
from tests.support.histories import FlightsApp, Kafka, flights, rows_of
from tests.support.state_rows import state_rows

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


def test_only_hot_ssts_lie_in_the_newest_place_or_in_that_of_the_run() -> None:
    inner = RootedStore("/store")
    store = HotStore(inner)
    store.put(HOT[0], b"0")
    for number, root in enumerate(("/a", "/b", "/b", "/a"), 1):
        declare_hot_place(store, APPS[0], root)
        if number < 3:
            store.put(HOT[number], b"")
        store.put(COLD[0], b"")
    places = PLACES.all(inner, APPS[0])
    assert [place.root.rpartition("/")[0] for place in places] == ["/a", "/b"]
    assert declare_hot_place(store, APPS[0], "/a") == places[0]
    assert inner.places == {"/a": [HOT[1]], "/b": [HOT[2]]}
    HotStore(inner, places[0].root).put(HOT[0], b"")
    assert inner.places == {"/a": [HOT[0], HOT[1]], "/b": [HOT[2]]}


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
        lambda: declare_hot_place(store, APPS[0], "/hot"),
        lambda: declare_hot_place(store, APPS[0], "/hot-b"),
    ):
        with pytest.raises(Refused, match="belong to /store") as caught:
            write()
        assert "--store /copy" in caught.value.hint
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


def test_every_process_opens_the_places(tmp_path: Path) -> None:
    store = HotStore(LocalStore(tmp_path / "store"))
    declare_hot_place(store, APPS[0], str(tmp_path / "hot"))
    spooled = SpooledStore(CountingStore(store), tmp_path / "spool")
    spooled.put(HOT[1], b"in the place")
    spooled.upload(HOT[1])
    spooled.drop_spooled(HOT[1])
    assert [path.name for path in (tmp_path / "hot").rglob("*.parquet")] == [HOT[1].rpartition("/")[2]]
    assert pickle.loads(pickle.dumps(store)).get(HOT[1]) == b"in the place"  # noqa: S301


@pytest.mark.parametrize("hot", ["", keys.HOT])
def test_local_copies_stay_while_ssts_move_and_go_when_keys_are_forgotten(tmp_path: Path, hot: str) -> None:
    store, cache = HotStore(LocalStore(tmp_path / "store")), SstCache(tmp_path / "cache", 1 << 30)
    declare_hot_place(store, "flights", str(tmp_path / "hot"))
    rows = state_rows(ROUTES, {("EWR", "LAX"): (3, None, None)}, 9)
    sst = write_sst(
        store, cache, app="flights", stage="routes", table=ROUTES, partition=0, rows=rows, ulid=f"{runtime.ulid()}{hot}"
    )
    path = cache.parquet_path(store, sst)
    store.settle("flights", 2 * LATER_MS)
    assert path.read_bytes() == store.get(sst.object)
    assert cache.has(sst)
    cache.drop([sst.object])
    assert not cache.has(sst)
    assert [*(tmp_path / "cache").rglob(f"*{sst.checksum}*")] == []


@pytest.mark.parametrize("moved", range(1, 4))
def test_a_listing_shows_ssts_that_are_moved_meanwhile(tmp_path: Path, moved: int) -> None:
    plain, hot = LocalStore(tmp_path / "store"), HOT[:3]
    store = HotStore(plain)
    declare_hot_place(store, APPS[0], str(tmp_path / "hot"))
    for key in hot:
        store.put(key, bytes(100))
    listing = store.list(keys.ssts(APPS[0], "legs"))
    shown = [next(listing).key for _ in range(moved)]
    store.settle(APPS[0], 2 * LATER_MS)
    assert shown + [info.key for info in listing] == list(hot)


class LostStore(MemoryStore):
    """Place that answers each request with an error."""

    def __init__(self, root: str, error: SlackwaterError) -> None:
        super().__init__(root)
        self.error = error

    def get(self, key: str) -> bytes:
        raise self.error

    def put(self, key: str, data: bytes) -> None:
        raise self.error

    def list(self, prefix: str, start_after: str = "") -> Iterator[ObjectInfo]:
        raise self.error

    def delete(self, key: str) -> None:
        raise self.error


@pytest.mark.parametrize("error", [NotFound("bucket", "hot"), Unavailable("no answer"), Forbidden("no rights")])
def test_ssts_that_have_left_a_lost_place_are_read(error: SlackwaterError) -> None:
    inner = RootedStore("/store")
    place = declare_hot_place(HotStore(inner), APPS[0], "/hot")
    HotStore(inner).put(HOT[0], b"moved")
    HotStore(inner).settle(APPS[0], 10 * LATER_MS)
    inner._stores_by_root[place.root] = LostStore(place.root, error)
    store = HotStore(inner)
    assert store.get(HOT[0]) == b"moved"
    with pytest.raises(type(error)) as caught:
        store.get(HOT[1])
    assert caught.value is error
    for refused in (lambda: list(store.list(f"{APPS[0]}/")), lambda: store.delete(HOT[0])):
        with pytest.raises(type(error)):
            refused()


class UnwritableStore(MemoryStore):
    def at(self, root: str) -> ObjectStore:
        return self if root == self.url else UnwritableStore(root)

    def put(self, key: str, data: bytes) -> None:
        raise Forbidden("no rights")


def test_a_place_that_refuses_puts_is_refused() -> None:
    inner = UnwritableStore("/store")
    with pytest.raises(Forbidden):
        declare_hot_place(HotStore(inner), APPS[0], "/hot")
    assert [*inner.list("")] == []


@pytest.mark.parametrize("root", ["link/hot", "store/hot", "."])
def test_folders_are_compared_without_symbolic_links(tmp_path: Path, root: str) -> None:
    (tmp_path / "store").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "store")
    for name in ("store", "link"):
        with pytest.raises(Usage, match="neither inside"):
            declare_hot_place(HotStore(LocalStore(tmp_path / name)), APPS[0], str(tmp_path / root))


def test_a_moved_store_works_under_its_former_path_or_as_a_clone(tmp_path: Path) -> None:
    app = FlightsApp(HotStore(LocalStore(tmp_path / "store")), Kafka())
    place = declare_hot_place(app.store, "flights", str(tmp_path / "hot"))
    with pytest.MonkeyPatch.context() as patch:
        name = keys.sst
        patch.setattr(keys, "sst", lambda app, stage, ulid: name(app, stage, f"{ulid}{keys.HOT}"))
        app.run(flights(20))
    now_ms, expected = app.clock.now_ms, rows_of(app.store, app.heads["aircraft"])
    assert [*Path(place.root).rglob("*.parquet")]
    (tmp_path / "store").rename(tmp_path / "moved")
    moved = HotStore(LocalStore(tmp_path / "moved"))
    assert verify(moved, "flights", now_ms=now_ms).consistent
    with pytest.raises(Refused) as caught:
        collect(moved, "flights", Retention(versions=3), by="ada@host")
    assert caught.value.hint.endswith(f"ln -s {tmp_path}/moved {tmp_path}/store")
    copy = LocalStore(tmp_path / "copy")
    terms = CloneTerms(deep=True, owner="ada@host")
    clone(moved, "flights", "copy", terms=terms, channels=app.kafka, by="ada@host", now_ms=now_ms, target_store=copy)
    assert rows_of(copy, heads_of(copy, "copy", ("aircraft",))["aircraft"]) == expected
    (tmp_path / "store").symlink_to(tmp_path / "moved")
    for path in ("moved", "store"):
        store = HotStore(LocalStore(tmp_path / path))
        assert declare_hot_place(store, "flights", str(tmp_path / "hot")) == place
        collect(store, "flights", Retention(versions=3), by="ada@host")
        assert verify(store, "flights", now_ms=now_ms).consistent
