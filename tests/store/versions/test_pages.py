"""A page names exactly the objects of its versions, and searches with pages give the same results as without."""

from collections.abc import Sequence
from itertools import count, pairwise
from threading import Event

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from slackwater.store.objects.counting import CountingStore
from slackwater.store.objects.memory import MemoryStore
from slackwater.store.versions import codec, history, keys
from slackwater.store.versions.entries.ssts import Sst, Ssts, name_of
from slackwater.store.versions.leaves.fold import apply_fold, plan_fold, write_fold
from slackwater.store.versions.leaves.objects import bind_reader
from slackwater.store.versions.manifest import Column, Input, Manifest, Program, SideTable, Table
from slackwater.store.versions.pages.page import VersionPage, build_page, concat_pages, parts_of
from slackwater.store.versions.pages.stored import (
    StagePages,
    block_of,
    list_pages,
    merge_pages,
    put_page,
    read_parts,
)
from slackwater.store.versions.side_tables import named_objects

from tests.models.profiles import scaled
from tests.support.manifests import manifest

TABLE = Table((Column("k", "int64"),), (Column("v", "int64"),), 4)
SMALL = 165 * 4
"""Limit that allows four inline entries."""
OTHER_ROOT = "/srv/other"


def write(store: MemoryStore, *manifests: Manifest) -> None:
    for version in manifests:
        store.put(keys.manifest("app", "stage", version.version), codec.encode(version))


def write_page(store: MemoryStore, versions: Sequence[int]) -> None:
    put_page(store, build_page(read_parts(store, "app", "stage", version) for version in versions))


def sst(number: int, version: int, root: str = "", app: str = "app") -> Sst:
    low = -(2**63) + number % 32 * 2**58
    key = keys.sst(app, "stage", f"{number:026}")
    return Sst(key, 0, number % 2, 5, 900, "0a" * 16, low, low + 9, version, version, 8, "ff" * 16, 4, root=root)


def random_history(data: st.DataObject, store: MemoryStore) -> list[Manifest]:
    """Return the versions after random batches, merges, folds and rewinds, as read by another process."""
    numbers, versions = count(1), list[Manifest]()
    ssts, side = Ssts(), Ssts()
    for version in range(1, data.draw(st.integers(1, 14), "versions") + 1):
        some = sorted(ssts, key=name_of)
        chosen = data.draw(st.lists(st.sampled_from(some), unique=True, max_size=4), "chosen") if some else []
        match data.draw(st.sampled_from(["batch", "merge", "move", "map", "fold", "rewind", "foreign"]), "change"):
            case "batch":
                ssts = ssts.plus(sst(next(numbers), version) for _ in range(data.draw(st.integers(1, 5))))
                side = side.plus((sst(next(numbers), version),))
            case "merge":
                ssts = ssts.replaced(chosen, (sst(next(numbers), version),))
            case "move":  # out of a leaf, which then lists the name among those removed
                ssts = ssts.replaced(chosen, [replace(old, level=old.level + 1) for old in chosen])
            case "map":
                ssts = ssts.mapped(lambda old, gone=frozenset(chosen): None if old in gone else old)
            case "fold":
                ssts = apply_fold(ssts, write_fold(store, "app", "stage", plan_fold(ssts, SMALL, per_leaf=3)))
            case "rewind" if versions:
                earlier = data.draw(st.sampled_from(versions), "earlier")
                ssts, side = earlier.ssts, earlier.side_tables["rejected"].ssts
            case _:
                ssts = ssts.plus((sst(next(numbers), version, OTHER_ROOT), sst(next(numbers), version, app="parent")))
        sides = {"rejected": SideTable(TABLE, side)}
        draft = replace(manifest(version), table=TABLE, ssts=ssts, side_tables=sides)
        write(store, draft)
        versions.append(bind_reader(store, codec.decode(codec.encode(draft), Manifest, key="k")))
        ssts = versions[-1].ssts if data.draw(st.booleans(), "other process") else ssts
    return versions


def named_by(page: VersionPage, version: int) -> set[tuple[str, str]]:
    at = page.numbers.index(version)
    return {(each.root, each.key) for each in page.objects() if each.first <= at <= each.last}


@scaled(60, in_ci=400)
@given(st.data())
def test_a_page_names_the_objects_of_each_of_its_versions_in_the_apps_folder(data: st.DataObject) -> None:
    store = MemoryStore()
    versions = random_history(data, store)
    places = data.draw(st.sets(st.sampled_from(range(len(versions))), min_size=1), "chosen")
    chosen = [versions[at] for at in sorted(places)]
    whole = build_page(map(parts_of, chosen))
    for version in chosen:
        expected = {(root, key) for root, key in named_objects(version) if key.startswith("app/")}
        assert named_by(whole, version.version) == expected
    assert codec.decode(codec.encode(whole), VersionPage, key="k") == whole
    assert build_page(read_parts(store, "app", "stage", version.version) for version in chosen) == whole
    cuts = sorted(data.draw(st.sets(st.integers(1, len(chosen))), "cuts"))
    parts = [chosen[start:end] for start, end in pairwise((0, *cuts, len(chosen))) if start < end]
    assert concat_pages([build_page(map(parts_of, part)) for part in parts]) == whole


def test_an_outline_has_what_searches_collections_and_timelines_need() -> None:
    source = {"by-legs": Input("t", (5,), "legs", 7, rows=3), "users": Input("users", (9,), rows=4)}
    version = replace(
        manifest(8, epoch=2), kind="claim", inputs=source, program=Program("a.py", "0a" * 16), migration=4
    )
    outline = build_page(map(parts_of, (manifest(7), version))).outline(8)
    assert outline is not None
    expected = {"by-legs": Input("by-legs", (), "legs", 7, rows=3), "users": Input("users", (), rows=4)}
    assert outline == replace(version, inputs=expected, by="")
    assert build_page(map(parts_of, (manifest(7), manifest(9)))).outline(8) is None


@scaled(60, in_ci=400)
@given(st.data())
def test_the_version_at_a_time_is_found_with_any_pages(data: st.DataObject) -> None:
    store, versions = MemoryStore(), data.draw(st.integers(1, 300), "versions")
    steps = data.draw(st.lists(st.integers(1, 9), min_size=versions, max_size=versions), "steps")
    times = [sum(steps[:number]) for number in range(1, versions + 1)]
    write(store, *(manifest(number, time_ms=time) for number, time in enumerate(times, 1)))
    other = MemoryStore()
    write(other, *(manifest(number, writer="other", time_ms=3 * number) for number in range(1, 400)))
    for _ in range(data.draw(st.integers(0, 4), "pages")):
        ends = sorted(data.draw(st.tuples(*[st.integers(1, versions)] * 2), "page"))
        write_page(store, range(ends[0], ends[1] + 1))
    for _ in range(data.draw(st.integers(0, 2), "foreign")):
        ends = sorted(data.draw(st.tuples(*[st.integers(1, 399)] * 2), "foreign page"))
        write_page(other, range(ends[0], ends[1] + 1))
        for ref in list_pages(other, "app", "stage"):
            store.put(ref.key, other.get(ref.key))
    for ref in list_pages(store, "app", "stage"):
        if data.draw(st.booleans(), "damaged"):
            store.put(ref.key, store.get(ref.key)[:-2] + b"x}")
    for time_ms in data.draw(st.lists(st.integers(0, times[-1] + 3), min_size=1, max_size=5), "times"):
        found = history.latest_at(CountingStore(store), "app", "stage", time_ms)
        assert (found.version if found else 0) == sum(time <= time_ms for time in times)


@pytest.fixture(scope="module")
def paged() -> MemoryStore:
    """Return a store with a hundred pages of a long history, as a runner writes them, and 40 versions without one."""
    store = MemoryStore()
    write(store, *(manifest(version) for version in range(1, 6_440 + 1)))
    for start in range(1, 6_400, 64):
        write_page(store, range(start, start + 64))
        for size in (512, 4_096):
            if start > 1 and (start - 1) % size == 0:
                merge_pages(store, "app", "stage", block_of(start - 1, size))
    return store


def test_pages_are_merged_so_that_few_remain(paged: MemoryStore) -> None:
    sizes = [ref.last - ref.first + 1 for ref in list_pages(paged, "app", "stage")]
    assert sizes == [4_096, 512, 512, 512, 512, 64, 64, 64, 64]


def test_finding_the_version_at_a_time_takes_three_rounds_of_requests(paged: MemoryStore) -> None:
    store = CountingStore(paged)
    assert history.latest_at(store, "app", "stage", 12_345) == manifest(1_234)
    # Listings of pages, boundaries and forgotten keys; the page beside a manifest that proves it; the version.
    assert store.counts == {"list": 3, "get_range": 3}
    store.reset()
    assert history.latest_at(store, "app", "stage", 23_456) == manifest(2_345)
    assert store.counts == {"list": 2, "get_range": 1}


class LeafBesideVersion(CountingStore):
    """A store that answers the request for a version only after its leaf has been requested as well."""

    def __init__(self, inner: MemoryStore, version: str) -> None:
        super().__init__(inner)
        self._version, self._requested = version, Event()

    def get_range(self, key: str, start: int, length: int) -> bytes:
        if "/leaves/" in key:
            self._requested.set()
        elif key == self._version:
            assert self._requested.wait(60), "the leaf was not requested beside the version"
        return super().get_range(key, start, length)


@pytest.mark.parametrize(("ssts", "leaves"), [(12, 1), (600, 16)])
def test_the_leaves_of_a_table_are_read_concurrently_with_the_version(ssts: int, leaves: int) -> None:
    store = MemoryStore()
    full = Ssts(sst(number, 1) for number in range(ssts))
    folded = apply_fold(full, write_fold(store, "app", "stage", plan_fold(full, SMALL, per_leaf=ssts // leaves)))
    write(store, *(replace(manifest(version), table=TABLE, ssts=folded) for version in range(1, 80)))
    write_page(store, range(1, 65))
    counting = LeafBesideVersion(store, keys.manifest("app", "stage", 30))
    version = history.latest_at(counting, "app", "stage", 305, with_leaves=True)
    assert version is not None
    assert (version.version, version.ssts.leaves) == (30, folded.leaves)
    spent = dict(counting.counts)
    assert {*version.ssts} == {*full}
    assert spent == dict(counting.counts) == {"list": 3, "get_range": 3 + len(folded.leaves)}
    assert len(folded.leaves) >= leaves


def test_a_page_without_any_remaining_manifest_is_not_used(paged: MemoryStore) -> None:
    pages = StagePages(paged, "app", "stage", check_at=lambda _ref: 0)
    assert StagePages(CountingStore(paged), "app", "stage").outline(1_234) is not None
    assert StagePages(CountingStore(paged), "app", "stage", pages.check_at).outline(1_234) is None
