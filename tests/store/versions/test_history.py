"""Searches for versions, and the number of their requests."""

from bisect import bisect_right
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from slackwater.errors import Corruption, NotFound
from slackwater.store.objects.counting import CountingStore
from slackwater.store.objects.local import LocalStore
from slackwater.store.objects.memory import MemoryStore
from slackwater.store.objects.protocol import ObjectStore
from slackwater.store.versions import codec, history, keys
from slackwater.store.versions.apps import create_app
from slackwater.store.versions.manifest import AppInfo, Input, Manifest

from tests.support.manifests import manifest


def write(store: ObjectStore, *manifests: Manifest) -> None:
    for each in manifests:
        store.put(keys.manifest(each.app, each.stage, each.version), codec.encode(each))


def store_of(versions: int) -> CountingStore:
    """Return a store with this many versions of one stage. Its request counts are reset."""
    store = CountingStore(MemoryStore())
    write(store, *(manifest(version) for version in range(1, versions + 1)))
    store.reset()
    return store


@pytest.fixture(scope="module")
def long_history() -> MemoryStore:
    store = MemoryStore()
    write(store, *(manifest(version) for version in range(1, 30_001)))
    return store


def test_a_stage_without_versions_has_no_head() -> None:
    store = store_of(0)
    assert history.head(store, "app", "stage") is None
    assert store.counts == {"list": 1}
    assert history.latest_at(store, "app", "stage", 5) is None
    assert history.first_version(store, "app", "stage") == 0


@pytest.mark.parametrize("versions", [1, 2, 999, 1000, 1001, 1999, 2000, 2001, 3000, 5555])
def test_the_head_is_the_newest_version(versions: int) -> None:
    store = store_of(versions)
    assert history.head(store, "app", "stage") == manifest(versions)


def test_up_to_a_page_of_versions_the_head_takes_a_listing_and_a_read() -> None:
    store = store_of(999)
    history.head(store, "app", "stage")
    assert store.counts == {"list": 1, "get_range": 1}


def test_of_30000_versions_the_head_takes_few_requests(long_history: MemoryStore) -> None:
    store = CountingStore(long_history)
    assert history.head(store, "app", "stage") == manifest(30_000)
    assert store.counts == {"list": 3, "get_range": 10}
    # The listings' keys aside: one manifest, and a byte for each version that was asked for.
    assert store.bytes_read < 1000


@pytest.mark.parametrize("first", [1, 2, 700])
@pytest.mark.parametrize("versions", [1, 2, 3, 7, 8, 1500])
def test_versions_in_a_local_folder_are_searched_too(tmp_path: Path, first: int, versions: int) -> None:
    store = CountingStore(LocalStore(tmp_path))
    (tmp_path / keys.manifest("app", "stage", 1)).parent.mkdir(parents=True)
    for version in range(first, first + versions):
        # Not by put: to make each of them durable takes its time.
        (tmp_path / keys.manifest("app", "stage", version)).write_bytes(codec.encode(manifest(version)))
    assert history.head(store, "app", "stage") == manifest(first + versions - 1)
    # To list a long history would take longer than everything else: only the boundary is looked for.
    assert store.counts["list"] == 1 or first > 1
    assert history.first_version(store, "app", "stage") == first


def test_finding_a_known_head_takes_one_request() -> None:
    store = store_of(50)
    head = history.head(store, "app", "stage")
    assert head is not None
    store.reset()
    assert history.head(store, "app", "stage", hint=head.version) is head
    assert store.counts == {"get_range": 1}


def test_if_an_unread_version_is_known_finding_the_head_takes_two_requests() -> None:
    store = store_of(50)
    assert history.head(store, "app", "stage", hint=50) == manifest(50)
    assert store.counts == {"get_range": 2}


def test_if_the_previous_version_is_known_finding_the_head_takes_two_requests() -> None:
    store = store_of(50)
    assert history.head(store, "app", "stage", hint=49) == manifest(50)
    assert store.counts == {"get_range": 2}


@pytest.mark.parametrize("known", [1, 40, 45, 46, 47, 48, 49, 50])
def test_the_head_is_found_from_any_known_version(known: int) -> None:
    store = store_of(50)
    assert history.head(store, "app", "stage", hint=known) == manifest(50)
    assert store.requests <= 6


def test_a_known_version_of_an_app_that_was_recreated_does_no_harm() -> None:
    store = store_of(3)
    assert history.head(store, "app", "stage", hint=50) == manifest(3)


def test_the_head_is_found_although_old_versions_were_collected() -> None:
    store = MemoryStore()
    write(store, *(manifest(version) for version in range(4000, 8001)))
    assert history.head(store, "app", "stage") == manifest(8000)
    assert history.first_version(store, "app", "stage") == 4000
    assert history.latest_at(store, "app", "stage", 45_005) == manifest(4500)
    assert history.latest_at(store, "app", "stage", 39_999) is None


def test_files_that_are_no_manifests_are_ignored() -> None:
    store = store_of(3)
    store.put("app/stages/stage/manifests/zz-notes.txt", b"")
    assert history.head(store, "app", "stage") == manifest(3)


def test_a_version_is_read_once() -> None:
    store = store_of(3)
    assert history.read(store, "app", "stage", 2) is history.read(store, "app", "stage", 2)
    assert store.counts == {"get_range": 1}


def test_the_error_for_a_missing_version_names_the_existing_ones() -> None:
    store = store_of(42)
    with pytest.raises(NotFound) as caught:
        history.read(store, "app", "stage", 99)
    assert str(caught.value) == "no version of app/stage named 'v99'; there are v1 to v42"


def test_the_error_for_a_missing_stage_suggests_the_nearest() -> None:
    with pytest.raises(NotFound, match="no stage of app 'app' named 'stge'; the nearest: stage"):
        history.read(store_of(1), "app", "stge", 1)


def test_the_error_for_a_missing_app_suggests_the_nearest() -> None:
    store = MemoryStore()
    create_app(store, AppInfo("flights", 1))
    with pytest.raises(NotFound, match="no app named 'flihgts'; the nearest: flights"):
        history.read(store, "flihgts", "routes", 1)


def test_a_manifest_under_the_name_of_another_version_is_corruption() -> None:
    store = MemoryStore()
    store.put(keys.manifest("app", "stage", 2), codec.encode(manifest(1)))
    with pytest.raises(Corruption, match="holds the manifest of app/stage v1; expected app/stage v2"):
        history.head(store, "app", "stage")


def test_later_versions_are_read_in_order_until_the_newest() -> None:
    store = store_of(5)
    assert list(history.iter_after(store, "app", "stage", 2)) == [manifest(3), manifest(4), manifest(5)]
    assert store.counts == {"get_range": 4}
    assert list(history.iter_after(store, "app", "stage", 5)) == []


@given(st.sets(st.integers(0, 300), min_size=1), st.integers(-1, 301))
def test_the_version_at_a_time_is_the_newest_committed_by_then(times: set[int], time_ms: int) -> None:
    in_order = sorted(times)
    store = MemoryStore()
    write(store, *(manifest(number, time_ms=time) for number, time in enumerate(in_order, start=1)))
    found = history.latest_at(store, "app", "stage", time_ms)
    assert (found.version if found else 0) == bisect_right(in_order, time_ms)


def test_the_version_at_a_time_is_found_while_old_versions_are_collected() -> None:
    class Collecting(MemoryStore):
        """A store that loses the versions 1 to 9 after a reader has seen version 1."""

        def get_range(self, key: str, start: int, length: int) -> bytes:
            found = super().get_range(key, start, length)
            for version in range(1, 10):
                self.delete(keys.manifest("app", "stage", version))
            return found

    for time_ms, version in ((50, None), (100, 10), (125, 12)):
        store = Collecting()
        write(store, *(manifest(number) for number in range(1, 21)))
        found = history.latest_at(store, "app", "stage", time_ms)
        assert (found.version if found else None) == version


def test_the_version_at_a_time_is_found_by_binary_search_among_30000(long_history: MemoryStore) -> None:
    store = CountingStore(long_history)
    head = history.head(store, "app", "stage")
    assert head is not None
    to_head = store.requests
    assert history.latest_at(store, "app", "stage", 123_456) == manifest(12_345)
    assert store.requests - to_head <= to_head + 18


def test_the_size_of_manifests_in_memory_is_bounded() -> None:
    store = CountingStore(MemoryStore())
    large = Input("topic", (10**18,) * 60_000)
    write(store, *(replace(manifest(version), inputs={"topic": large}) for version in range(1, 21)))
    store.reset()
    for version in (*range(1, 21), 20, 19, 18):
        history.read(store, "app", "stage", version)
    assert store.counts == {"get_range": 20}
    assert store.bytes_read > 20 << 20
    history.read(store, "app", "stage", 1)
    assert store.counts == {"get_range": 21}


def test_stages_are_listed_in_order() -> None:
    store = store_of(1)
    write(store, Manifest("app", "another", 1, 1, "w", 1, "claim"))
    assert history.list_stages(store, "app") == ("another", "stage")
    assert history.list_stages(store, "nobody") == ()


def test_the_manifests_of_two_stores_are_distinguished() -> None:
    one, other = MemoryStore(), MemoryStore()
    write(one, manifest(1, writer="one"))
    write(other, manifest(1, writer="other"))
    assert history.read(one, "app", "stage", 1).writer == "one"
    assert history.read(other, "app", "stage", 1).writer == "other"


@given(st.sets(st.integers(1, 20)), st.integers(21, 30), st.integers(0, 12))
def test_version_numbers_are_the_kept_ones_and_the_complete_history(kept: set[int], first: int, more: int) -> None:
    numbers = history.VersionNumbers(tuple(sorted(kept)), range(first, first + more))
    expected = (*sorted(kept), *range(first, first + more))
    assert tuple(numbers) == expected
    assert [numbers[at] for at in range(-len(expected), len(expected))] == [*expected, *expected]
    assert tuple(numbers[1:-1]) == expected[1:-1]
    assert [bisect_right(numbers, at) for at in range(32)] == [bisect_right(expected, at) for at in range(32)]


@pytest.mark.parametrize("begins", [1, 7])
def test_version_numbers_need_no_listing_of_all(begins: int) -> None:
    store = MemoryStore()
    for version in range(begins, 3_000):
        store.put(keys.manifest("app", "stage", version), b"")
    counted = CountingStore(store)
    assert tuple(history.version_numbers(counted, "app", "stage", 2_999)) == history.list_versions(
        store, "app", "stage"
    )
    assert counted.requests <= 3
