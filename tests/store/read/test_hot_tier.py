import os
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pyarrow as pa
import pytest
from msgspec.structs import replace
from slackwater.store.objects.counting import CountingStore
from slackwater.store.objects.memory import MemoryStore
from slackwater.store.read import hot_tier
from slackwater.store.read.cache import SstCache
from slackwater.store.read.cache_folder import CacheFolder
from slackwater.store.read.hot_tier import HotTier
from slackwater.store.read.read_stats import Reads
from slackwater.store.sst import writer
from slackwater.store.versions.manifest import Sst

from tests.support.state_rows import ROUTES, state_rows, write_version

LARGE = 1 << 40


@pytest.fixture(autouse=True)
def memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in the place of the machine's tmpfs."""
    folder = tmp_path / "shm"
    folder.mkdir()
    monkeypatch.setattr(hot_tier, "_MEMORY", folder)
    monkeypatch.setattr(HotTier.open, "__defaults__", (folder,))
    return folder


def put(store: CountingStore, cache: SstCache | None, number: int = 0) -> Sst:
    """One SST of 100 rows, about 10 KB as an Arrow file."""
    changes = {(str(number), str(i)): (i, i / 2, None) for i in range(100)}
    (written,) = write_version(store, cache, ROUTES, changes, number + 1)
    return written


def expected_rows(number: int = 0) -> pa.Table:
    changes = {(str(number), str(i)): (i, i / 2, None) for i in range(100)}
    return writer.prepare(state_rows(ROUTES, changes, number + 1), ROUTES)


def arrow_files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*.arrow"))


def test_new_ssts_lie_in_memory_and_all_caches_of_the_folder_find_them(tmp_path: Path, memory: Path) -> None:
    store, disk = CountingStore(MemoryStore()), tmp_path / "cache"
    cache, other = (SstCache(disk, LARGE, hot_bytes=1 << 20) for _ in range(2))
    written = put(store, cache)
    assert len(arrow_files(memory)) == 1
    assert not arrow_files(disk)
    mapped = other.peek(written, ROUTES)
    assert mapped is not None
    assert mapped.stored == expected_rows()
    assert other.has(written)
    assert other.size_of(written) > 0


def test_compacted_and_large_ssts_lie_on_disk(tmp_path: Path, memory: Path) -> None:
    store, disk = CountingStore(MemoryStore()), tmp_path / "cache"
    cache = SstCache(disk, LARGE, hot_bytes=8_000)
    cache.open(store, replace(put(store, None), level=1), ROUTES)
    assert not arrow_files(memory)
    put(store, cache, 1)
    assert not arrow_files(memory)
    assert len(arrow_files(disk)) == 2


def test_it_stays_within_its_bytes_and_what_was_used_lately_goes_to_disk(tmp_path: Path, memory: Path) -> None:
    store, disk = CountingStore(MemoryStore()), tmp_path / "cache"
    cache = SstCache(disk, LARGE, hot_bytes=100_000)
    written = [put(store, cache, number) for number in range(20)]
    assert sum(path.stat().st_size for path in memory.rglob("*.arrow")) <= 100_000
    assert len(arrow_files(memory)) + len(arrow_files(disk)) == 20
    for number, one in enumerate(written):
        mapped = cache.peek(one, ROUTES)
        assert mapped is not None
        assert mapped.stored == expected_rows(number)
    assert "get" not in store.counts


def test_what_nobody_used_for_long_is_dropped(tmp_path: Path, memory: Path) -> None:
    store, disk = CountingStore(MemoryStore()), tmp_path / "cache"
    cache = SstCache(disk, LARGE, hot_bytes=100_000)
    first = put(store, cache)
    for path in memory.rglob("*.arrow"):
        os.utime(path, (1, 1))
    for number in range(1, 12):
        put(store, cache, number)
    assert not SstCache(disk, LARGE).has(first)


def test_a_full_tmpfs_leaves_everything_on_disk(tmp_path: Path, memory: Path) -> None:
    store, disk = CountingStore(MemoryStore()), tmp_path / "cache"
    cache = SstCache(disk, LARGE, hot_bytes=1 << 20)
    (hot,) = (path for path in memory.iterdir() if path.is_dir())
    hot.rmdir()
    hot.write_bytes(b"no folder")
    written = put(store, cache)
    mapped = cache.peek(written, ROUTES)
    assert mapped is not None
    assert mapped.stored == expected_rows()
    assert len(arrow_files(disk)) == 1


def test_without_a_tmpfs_and_with_no_bytes_there_is_none(tmp_path: Path, memory: Path) -> None:
    disk = CacheFolder(tmp_path / "cache", LARGE)
    assert HotTier.open(disk, 0) is None
    assert HotTier.open(disk, 1 << 20, tmp_path / "absent") is None
    assert not list(memory.iterdir())


def test_a_folder_of_somebody_else_is_not_used(tmp_path: Path, memory: Path) -> None:
    disk = CacheFolder(tmp_path / "cache", LARGE)
    tier = HotTier.open(disk, 1 << 20)
    assert tier is not None
    folder = tier.folder.path
    tier.close()
    folder.mkdir(mode=0o777)
    folder.chmod(0o777)
    assert HotTier.open(disk, 1 << 20) is None
    folder.rmdir()
    folder.symlink_to(tmp_path)
    assert HotTier.open(disk, 1 << 20) is None


def test_the_last_one_to_leave_removes_it_and_loses_nothing(tmp_path: Path, memory: Path) -> None:
    store, disk = CountingStore(MemoryStore()), tmp_path / "cache"
    one, other = (SstCache(disk, LARGE, hot_bytes=1 << 20) for _ in range(2))
    written = put(store, one)
    one.close()
    assert len(arrow_files(memory)) == 1
    other.close()
    assert not list(memory.iterdir())
    mapped = SstCache(disk, LARGE).bring(store, written, ROUTES, Reads())
    assert mapped is not None
    assert mapped.stored == expected_rows()
    assert "get" not in store.counts


def test_what_killed_processes_left_goes_at_the_next_start(tmp_path: Path, memory: Path) -> None:
    program = dedent(
        """
        import os, sys
        from pathlib import Path
        from slackwater.store.read.cache_folder import CacheFolder
        from slackwater.store.read.hot_tier import HotTier
        disk, memory = map(Path, sys.argv[1:])
        tier = HotTier.open(CacheFolder(disk, 1 << 40), 1 << 20, memory)
        tier.folder.put("left", lambda path: path.write_bytes(b"x"))
        os._exit(9)
        """
    )
    for name in ("one", "two"):
        arguments = [sys.executable, "-c", program, str(tmp_path / name), str(memory)]
        assert subprocess.run(arguments, check=False).returncode == 9
    assert len(list(memory.rglob("left"))) >= 1
    tier = HotTier.open(CacheFolder(tmp_path / "three", LARGE), 1 << 20)
    assert tier is not None
    assert not list(memory.rglob("left"))
    tier.close()
    assert not list(memory.iterdir())


def test_a_tier_in_use_is_not_swept(tmp_path: Path, memory: Path) -> None:
    tier = HotTier.open(CacheFolder(tmp_path / "one", LARGE), 1 << 20)
    assert tier is not None
    assert tier.folder.put("here", lambda path: path.write_bytes(b"x"))
    other = HotTier.open(CacheFolder(tmp_path / "two", LARGE), 1 << 20)
    assert other is not None
    assert tier.folder.has("here")
    other.close()
    tier.close()
