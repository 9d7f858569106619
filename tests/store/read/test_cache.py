import errno
import logging
import os
import subprocess
import sys
import time
from pathlib import Path
from textwrap import dedent

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from slackwater.errors import Corruption, Unavailable
from slackwater.store.objects.counting import CountingStore
from slackwater.store.objects.memory import MemoryStore
from slackwater.store.objects.open import open_store
from slackwater.store.objects.protocol import ObjectStore
from slackwater.store.read import decode
from slackwater.store.read.cache import SstCache
from slackwater.store.read.cache_folder import CacheFolder
from slackwater.store.sst import writer
from slackwater.store.versions.entries.ssts import Sst
from slackwater.store.versions.manifest import Column, Table

from tests.models.profiles import scaled
from tests.support.state_rows import ROUTES, state_rows, write_version

LARGE = 1 << 40


def put(store: ObjectStore, cache: SstCache | None = None, number: int = 0) -> Sst:
    """Write an SST of 100 rows, which takes about 10 KB as an Arrow file."""
    changes = {(str(number), str(i)): (i, i / 2, None) for i in range(100)}
    (written,) = write_version(store, cache, ROUTES, changes, number + 1)
    return written


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


def folder_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir())


def expected_rows(number: int = 0) -> pa.Table:
    changes = {(str(number), str(i)): (i, i / 2, None) for i in range(100)}
    return writer.prepare_rows(state_rows(ROUTES, changes, number + 1), ROUTES)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def test_rows_are_fetched_once_and_mapped_afterwards(folder: Path) -> None:
    store = CountingStore(MemoryStore())
    written = put(store)
    for _ in range(3):
        mapped = SstCache(folder, LARGE).open(store, written, ROUTES)
        assert mapped.stored == expected_rows()
        assert mapped.memory_bytes == 0
    assert dict(store.counts) == {"put": 1, "get": 1}


def test_a_just_written_sst_is_not_fetched(folder: Path) -> None:
    store = CountingStore(MemoryStore())
    cache = SstCache(folder, LARGE)
    written = put(store, cache)
    assert SstCache(folder, LARGE).open(store, written, ROUTES).stored == expected_rows()
    encoded = put(store, None, 1)
    cache.add_encoded(encoded, ROUTES, store.get(encoded.object))
    mapped = cache.cached_rows(encoded, ROUTES)
    assert mapped is not None
    assert mapped.stored == expected_rows(1)
    assert dict(store.counts) == {"put": 2, "get": 1}


def test_hashes_are_numpys_view_of_the_mapped_file(folder: Path) -> None:
    store = MemoryStore()
    (block,) = SstCache(folder, LARGE).open(store, put(store), ROUTES).blocks
    assert block.hashes.ctypes.data == block.stored.column("_hash").buffers()[1].address
    assert not block.hashes.flags.writeable
    assert (np.diff(block.hashes) >= 0).all()


def test_cached_rows_makes_no_requests(folder: Path) -> None:
    store = CountingStore(MemoryStore())
    written = put(store)
    assert SstCache(folder, LARGE).cached_rows(written, ROUTES) is None
    assert dict(store.counts) == {"put": 1}


def test_large_ssts_are_kept_in_blocks(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decode, "BLOCK_ROWS", 30)
    store = MemoryStore()
    mapped = SstCache(folder, LARGE).open(store, put(store), ROUTES)
    assert [len(block.hashes) for block in mapped.blocks] == [30, 30, 30, 10]
    assert mapped.stored == expected_rows()


@scaled(50, in_ci=500)
@given(data=st.data())
def test_a_damaged_cache_file_is_fetched_again(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    folder = tmp_path_factory.mktemp("cache")
    store = CountingStore(MemoryStore())
    written = put(store, SstCache(folder, LARGE))
    (path,) = folder.iterdir()
    whole = path.read_bytes()
    at = data.draw(st.integers(0, len(whole) - 1), "at")
    damaged = data.draw(
        st.sampled_from([whole[:at], whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :], whole + b"x"])
    )
    # A new file, as nobody changes one in place.
    path.unlink()
    path.write_bytes(damaged)
    cache = SstCache(folder, LARGE)
    assert cache.open(store, written, ROUTES).stored == expected_rows()
    assert store.counts["get"] == 1
    assert SstCache(folder, LARGE).cached_rows(written, ROUTES) is not None


def test_damage_in_the_store_is_reported_with_the_object(folder: Path) -> None:
    store = MemoryStore()
    written = put(store)
    store.put(written.object, b"x" + store.get(written.object)[1:])
    cache = SstCache(folder, LARGE)
    for ask in (lambda: cache.open(store, written, ROUTES), lambda: cache.parquet_path(store, written)):
        with pytest.raises(Corruption, match=f"{written.object} is damaged: expected checksum") as error:
            ask()
        assert error.value.object_key == written.object
    assert files(folder) == []


def test_the_folder_stays_within_its_size_and_evicts_the_least_recently_used(folder: Path) -> None:
    store = CountingStore(MemoryStore())
    first = put(store, SstCache(folder, LARGE))
    limit = 4 * folder_bytes(folder) + 1000
    cache = SstCache(folder, limit)
    old_ns = time.time_ns() - 10**12
    for number in range(1, 12):
        for path in folder.iterdir():
            os.utime(path, ns=(old_ns, old_ns))
        # Whoever opens a file uses it.
        assert SstCache(folder, limit).cached_rows(first, ROUTES) is not None
        put(store, cache, number)
        assert folder_bytes(folder) <= limit
    assert len(files(folder)) >= 3
    assert SstCache(folder, limit).cached_rows(first, ROUTES) is not None


def test_an_evicted_file_stays_readable_where_it_is_open(folder: Path) -> None:
    store = MemoryStore()
    cache = SstCache(folder, LARGE)
    mapped = cache.open(store, put(store), ROUTES)
    for path in folder.iterdir():
        path.unlink()
    assert mapped.stored == expected_rows()


def test_an_sst_larger_than_the_cache_is_read_into_memory(folder: Path) -> None:
    store = CountingStore(MemoryStore())
    written = put(store)
    cache = SstCache(folder, 1000)
    mapped = cache.open(store, written, ROUTES)
    assert mapped.stored == expected_rows()
    assert mapped.memory_bytes > 1000
    assert files(folder) == []
    # Kept in memory, so asked for once.
    cache.open(store, written, ROUTES)
    assert store.counts["get"] == 1


def test_memory_is_bounded(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = CountingStore(MemoryStore())
    written = [put(store, None, number) for number in range(4)]
    one = SstCache(folder, 0).open(store, written[0], ROUTES).memory_bytes
    monkeypatch.setattr("slackwater.store.read.cache._MEMORY_BYTES", 2 * one + 100)
    cache = SstCache(folder, 0)
    before = store.counts["get"]
    for _ in range(2):
        for entry in written[:2]:
            cache.open(store, entry, ROUTES)
    assert store.counts["get"] == before + 2
    for entry in written:
        cache.open(store, entry, ROUTES)
    assert store.counts["get"] == before + 4
    assert [cache.cached_rows(entry, ROUTES) is not None for entry in written] == [False, False, True, True]


def test_an_unusable_folder_makes_the_cache_slower_and_is_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = MemoryStore()
    blocked = tmp_path / "file"
    blocked.write_bytes(b"")
    cache = SstCache(blocked / "cache", LARGE)
    with caplog.at_level(logging.WARNING):
        for number in range(3):
            written = put(store, cache, number)
            assert cache.open(store, written, ROUTES).stored == expected_rows(number)
            assert cache.parquet_path(store, written).read_bytes() == store.get(written.object)
    assert [record.getMessage().split(" (")[0] for record in caplog.records] == [
        f"cannot use cache folder {blocked / 'cache'}"
    ]


@pytest.mark.parametrize("reason", [errno.ENOSPC, errno.EROFS, errno.EACCES], ids=errno.errorcode.get)
def test_a_full_folder_serves_its_files(folder: Path, monkeypatch: pytest.MonkeyPatch, reason: int) -> None:
    store = CountingStore(MemoryStore())
    written, other = put(store, SstCache(folder, LARGE)), put(store, None, 1)

    def refuse(*_: object, **__: object) -> None:
        raise OSError(reason, os.strerror(reason))

    monkeypatch.setattr(pa, "OSFile", refuse)
    cache = SstCache(folder, LARGE)
    assert cache.open(store, written, ROUTES).memory_bytes == 0
    assert cache.open(store, other, ROUTES).stored == expected_rows(1)
    assert len(files(folder)) == 1


def test_leftovers_of_dead_processes_are_deleted(folder: Path) -> None:
    store = MemoryStore()
    folder.mkdir()
    dead, alive = folder / ".tmp-dead", folder / ".tmp-alive"
    dead.write_bytes(b"x" * 100)
    alive.write_bytes(b"x" * 100)
    os.utime(dead, (1, 1))
    put(store, SstCache(folder, LARGE))
    assert not dead.exists()
    assert alive.exists()


def test_a_local_object_is_its_own_parquet_file_once_checked(folder: Path, tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "root"))
    written = put(store)
    cache = SstCache(folder, LARGE)
    path = cache.parquet_path(store, written)
    assert path == store.local_path(written.object)
    assert not folder.exists()
    # Once: a second look would find this.
    path.write_bytes(b"damaged")
    assert cache.parquet_path(store, written) == path
    with pytest.raises(Corruption, match=r"expected \d+ bytes, found 7"):
        SstCache(folder, LARGE).parquet_path(store, written)
    path.unlink()
    with pytest.raises(Corruption, match="missing"):
        SstCache(folder, LARGE).parquet_path(store, written)


def test_a_path_that_duckdb_would_read_as_a_pattern_is_copied(folder: Path, tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "ro[o]t"))
    written = put(store)
    path = SstCache(folder, LARGE).parquet_path(store, written)
    assert path.parent == folder
    spilled = SstCache(tmp_path / "c*che", LARGE)
    path = spilled.parquet_path(store, written)
    assert "*" not in str(path)
    assert path.read_bytes() == store.get(written.object)


def test_a_remote_object_is_copied_once_and_checked_by_each_process(folder: Path) -> None:
    store = CountingStore(MemoryStore())
    written = put(store)
    path = SstCache(folder, LARGE).parquet_path(store, written)
    assert path.parent == folder
    assert path.read_bytes() == store.get(written.object)
    before = store.counts
    assert SstCache(folder, LARGE).parquet_path(store, written) == path
    assert store.counts == before
    path.unlink()
    path.write_bytes(b"damaged")
    cache = SstCache(folder, LARGE)
    assert cache.parquet_path(store, written).read_bytes() == store.get(written.object)


def test_a_copy_in_use_is_not_evicted_until_the_cache_is_closed(folder: Path) -> None:
    store = MemoryStore()
    cache = SstCache(folder, 30_000)
    written = put(store)
    path = cache.parquet_path(store, written)
    os.utime(path, (1, 1))
    for number in range(1, 8):
        put(store, cache, number)
    assert path.exists()
    assert folder_bytes(folder) <= 30_000
    cache.close()
    os.utime(path, (1, 1))
    for number in range(8, 12):
        put(store, cache, number)
    assert not path.exists()


def test_if_nothing_can_hold_a_copy_the_error_has_a_hint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore()
    blocked = tmp_path / "file"
    blocked.write_bytes(b"")
    monkeypatch.setattr("tempfile.tempdir", str(blocked))
    with pytest.raises(Unavailable, match="no folder on this machine can hold a copy") as error:
        SstCache(blocked / "cache", LARGE).parquet_path(store, put(store))
    assert "cache" in error.value.hint


def test_a_cache_that_was_not_closed_leaves_no_copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    cache = SstCache(tmp_path / "c[ache", LARGE)
    path = cache.parquet_path(store, put(store))
    assert path.exists()
    del cache
    assert not path.exists()


def test_an_absent_file_cannot_be_pinned(folder: Path) -> None:
    assert CacheFolder(folder, LARGE).pin("absent") is None


def test_processes_share_a_folder_that_is_too_small_for_them(folder: Path, tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "root"))
    written = [put(store, None, number) for number in range(12)]
    listing = tmp_path / "ssts.json"
    listing.write_bytes(msgspec.json.encode(written))
    program = dedent(
        """
        import os, sys, msgspec
        from pathlib import Path
        from slackwater.store.read.cache import SstCache
        from slackwater.store.versions.manifest import (Column, Table)
        from slackwater.store.versions.entries.ssts import Sst
        from slackwater.store.objects.open import open_store
        root, folder, listing, table = sys.argv[1:]
        ssts = msgspec.json.decode(Path(listing).read_bytes(), type=list[Sst])
        table = msgspec.json.decode(table, type=Table)

        def use() -> None:
            store = open_store(root)
            for turn in range(4):
                cache = SstCache(Path(folder), 60_000)
                for number, sst in enumerate(ssts):
                    rows = cache.open(store, sst, table).stored
                    assert set(rows["origin"].to_pylist()) == {str(number)}, number
                    assert sorted(rows["flights"].to_pylist()) == list(range(100))

        # Three that have imported everything, which takes longest.
        children = []
        for _ in range(3):
            children.append(os.fork())
            if not children[-1]:
                use()
                os._exit(0)
        assert [os.waitpid(pid, 0)[1] for pid in children] == [0] * 3
        """
    )
    table = msgspec.json.encode(ROUTES).decode()
    arguments = [sys.executable, "-c", program, store.url, str(folder), str(listing), table]
    done = subprocess.run(arguments, stderr=subprocess.PIPE, timeout=120, check=False)
    assert done.returncode == 0, done.stderr.decode()
    assert not [name for name in files(folder) if name.startswith(".tmp-")]
    # Each may exceed the bound by a tenth while the others write.
    assert folder_bytes(folder) <= 60_000 * 1.4


def test_ssts_of_the_same_name_in_two_roots_are_distinguished(folder: Path) -> None:
    mine, theirs = MemoryStore(), MemoryStore()
    a, b = put(mine, None, 0), put(theirs, None, 1)
    theirs.put(a.object, theirs.get(b.object))
    same_name = replace(b, object=a.object)
    cache = SstCache(folder, LARGE)
    assert cache.open(mine, a, ROUTES).stored == expected_rows(0)
    assert cache.open(theirs, same_name, ROUTES).stored == expected_rows(1)


def test_a_prefetch_runs_in_the_callers_thread_which_may_have_a_low_priority(tmp_path: Path) -> None:
    store, table = MemoryStore(), Table((Column("k", "int64"),), (Column("v", "int64"),), 1)
    numbers = np.arange(400_000)
    rows = {
        "_hash": numbers,
        "k": numbers,
        "v": numbers * 7 % 1_000_003,
        "_seq": numbers,
        "_op": np.zeros_like(numbers),
    }
    sst = writer.write_sst(store, None, app="app", stage="stage", table=table, partition=0, rows=pa.table(rows))
    cache = SstCache(tmp_path, 1 << 30)
    own_s, all_s = time.thread_time(), time.process_time()
    cache.prefetch(store, sst, table)
    own_s, all_s = time.thread_time() - own_s, time.process_time() - all_s
    assert cache.has(sst)
    assert own_s > 0.8 * all_s
