"""Pages that a runner writes equal the stored versions, whoever committed them.

The runner reads only versions of other processes from the store.
"""

from collections.abc import Collection

import pytest
from msgspec.structs import replace
from slackwater.pipeline.upkeep.pages import PageWriter
from slackwater.store.objects.counting import CountingStore
from slackwater.store.objects.memory import MemoryStore
from slackwater.store.versions import codec, keys
from slackwater.store.versions.entries.ssts import Ssts
from slackwater.store.versions.manifest import Manifest
from slackwater.store.versions.pages.page import build_page
from slackwater.store.versions.pages.stored import StagePages, list_pages, read_parts

from tests.store.versions.test_pages import TABLE, sst
from tests.support.manifests import manifest


def run(store: MemoryStore | CountingStore, first: int, last: int, others: Collection[int] = ()) -> None:
    """Commit versions (another process commits those in `others`), and let a runner write pages."""
    writer = PageWriter(store, first)
    for number in range(first, last + 1):
        version = version_of(number)
        store.put_if_absent(keys.manifest("app", "stage", number), codec.encode(version))
        if number not in others:
            writer.record(version)
    writer.close()


def version_of(number: int) -> Manifest:
    ssts = Ssts(sst(each, each) for each in range(max(1, number - 7), number + 1))
    return replace(manifest(number), table=TABLE, ssts=ssts)


def pages_of(store: MemoryStore) -> list[tuple[int, int]]:
    """Return the version ranges of the pages. First compares each page with the manifests of its versions."""
    for ref in list_pages(store, "app", "stage"):
        page = StagePages(CountingStore(store), "app", "stage").load(ref)
        assert page == build_page(read_parts(store, "app", "stage", n) for n in range(ref.first, ref.last + 1))
    return [(ref.first, ref.last) for ref in list_pages(store, "app", "stage")]


def test_a_page_is_written_per_64_versions_and_pages_are_merged_without_reads() -> None:
    memory = MemoryStore()
    store = CountingStore(memory)
    run(store, 1, 640)
    assert pages_of(memory) == [(1, 512), (513, 576), (577, 640)]
    assert store.counts == {"put_if_absent": 640, "put": 11, "list": 1, "delete": 8}


@pytest.mark.parametrize("others", [range(2, 64, 3), range(60, 80), (64, 65, 128), range(64, 1_000, 64)])
def test_versions_of_other_processes_are_read_to_write_the_page(others: Collection[int]) -> None:
    store = MemoryStore()
    run(store, 1, 640, others)
    assert pages_of(store) == [(1, 512), (513, 576), (577, 640)][: 2 if 640 in others else 3]


def test_whole_blocks_of_other_processes_versions_are_left_to_garbage_collection() -> None:
    store = MemoryStore()
    run(store, 60, 320, range(61, 200))
    assert pages_of(store) == [(60, 64), (193, 256), (257, 320)]


def test_a_second_runner_merges_the_pages_of_the_first() -> None:
    store = MemoryStore()
    run(store, 1, 300)
    assert pages_of(store) == [(1, 64), (65, 128), (129, 192), (193, 256)]
    run(store, 301, 600)
    assert pages_of(store) == [(1, 512), (513, 576)]
